"""`Guard`: who may look at a console, and what its answers forbid browsers to do.

With a token: only over loopback, only under a name of this machine, and only with the cookie for
which the page exchanges the token. With the embedding application's own check: what that says.
Changing requests come from the page itself (`Origin`), and are JSON, which no foreign form can
send. Fails closed.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolkeep._tasks import foreign_code
from toolkeep.config.fields import is_loopback

logger = logging.getLogger("toolkeep.console")

MAX_SESSIONS = 64
"""Browsers that are logged in. The one that logged in first is logged out."""
CHECK_TIMEOUT = 10.0
"""Seconds for a function of the embedding application."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; media-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE | re.ASCII)

Authenticate = Callable[[Request], bool | Awaitable[bool]]
"""The embedding application's own check of a request."""


class Refused(Exception):
    """A request that is refused, with the HTTP status to answer."""

    def __init__(
        self, http_status: int, kind: str, message: str, remedy: str = "", **more: object
    ) -> None:
        super().__init__(message)
        self.http_status, self.kind = http_status, kind
        self.message, self.remedy = message, remedy
        self.more = more


async def ask(check: Callable[[], bool | Awaitable[bool]]) -> bool:
    """The answer of a function of the embedding application; False when it fails."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            with foreign_code():
                answer = check()
                return (await answer if inspect.isawaitable(answer) else answer) is True
    except Exception:
        logger.exception("a check of the embedding application failed")
        return False


class Guard:
    """Checks every request of one `Console`."""

    def __init__(self, token: str, authenticate: Authenticate | None) -> None:
        self._token, self._authenticate = token, authenticate
        self._sessions: OrderedDict[str, None] = OrderedDict()

    # -- requests -------------------------------------------------------------------------------

    def check_origin(self, request: Request) -> None:
        """Raises `Refused` for requests that another page may have caused, or that came under a
        foreign name (DNS rebinding)."""
        host = request.headers.get("host", "")
        if self._authenticate is None:
            client = request.client
            near = client is None or is_loopback(client.host)
            if not near or not is_loopback(_host_name(host)):
                remedy = "An application on another address gives Console(authenticate=…)"
                raise Refused(403, "ForeignHost", "the console answers at loopback only", remedy)
        if request.method in ("GET", "HEAD"):
            return
        origin = request.headers.get("origin")
        own = origin is None or origin.partition("://")[2] == host
        if not own or request.headers.get("sec-fetch-site") not in (None, "same-origin"):
            raise Refused(403, "ForeignOrigin", "the request comes from another page")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refused(415, "NotJson", "the body must be application/json")

    async def check_login(self, request: Request) -> None:
        """Raises `Refused` without a valid cookie, or if the application refuses."""
        # Pages at another port of this host send the cookie, and CORS of the application may let
        # them read. "none": the user entered the address.
        if request.headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            raise Refused(403, "ForeignOrigin", "the request comes from another page")
        check = self._authenticate
        if check is not None:
            if not await ask(lambda: check(request)):
                raise Refused(401, "NotLoggedIn", "the application refuses this request")
            return
        if request.cookies.get(self._cookie_name(request), "") not in self._sessions:
            remedy = "Open the link that the process printed when it started"
            raise Refused(401, "NotLoggedIn", "this browser is not logged in", remedy)

    def log_in(self, request: Request, token: object) -> Response:
        """Exchange the token for a cookie. Raises `Refused`."""
        given, own = (
            one.encode(errors="replace") if isinstance(one, str) else b""
            for one in (token, self._token)
        )
        if self._authenticate is not None or not hmac.compare_digest(given, own):
            raise Refused(401, "WrongToken", "the token is not that of this process")
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        response = Response(status_code=204)
        response.set_cookie(
            self._cookie_name(request),
            session,
            path=request.scope.get("root_path") or "/",
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="strict",
        )
        return response

    def _cookie_name(self, request: Request) -> str:
        """By port and path: browsers send cookies to all ports of a host, and to paths below."""
        path = request.scope.get("root_path", "")
        return re.sub(r"\W", "_", f"toolkeep_console_{request.url.port or 0}{path}", flags=re.ASCII)


def _host_name(host: str) -> str:
    """The name in a `Host` header; empty if it is malformed."""
    found = _HOST.fullmatch(host)
    return found["name"].strip("[]").lower() if found else ""


class SecureHeaders:
    """Adds `HEADERS` to every response of an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, secured)
