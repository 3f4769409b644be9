"""`login`, `logout` and `auth`: the logins of people at servers that want OAuth.

A login ends at a page of this machine: a small HTTP server on loopback, which takes one callback,
or the address that the person pastes. No token is ever printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import threading
import time
import webbrowser
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from toolkeep.cli.completion import complete_server
from toolkeep.cli.errors import OK, UsageError
from toolkeep.cli.output import Output
from toolkeep.cli.prompt import can_prompt, read_line
from toolkeep.cli.source import PrincipalOption, ServerSource, select_servers

if TYPE_CHECKING:
    from toolkeep.auth import Login, LoginRequest
    from toolkeep.auth.oauth import OAuth
    from toolkeep.config import ServerSpec

ServerArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SERVER",
        help="The server. It may be left out if there is only one.",
        autocompletion=complete_server,
        show_default=False,
    ),
]

MAX_REQUEST, REQUEST_WAIT = 16 * 1024, 10.0
"""Bytes and seconds for one request to the callback page."""
PAGE = (
    '<!doctype html><meta charset="utf-8"><title>toolkeep</title>'
    '<body style="font:16px sans-serif;margin:4em"><h1>{title}</h1><p>{text}</p>'
)


async def login(
    output: Output,
    source: ServerSource,
    server: ServerArgument = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="Request this scope in addition. Repeatable."
        ),
    ] = None,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Print the address to open, and ask for the one that the browser is sent to.",
        ),
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Show a code to enter on another device.")
    ] = False,
    principal: PrincipalOption = None,
) -> int:
    """Log in to a server with OAuth, in the browser."""
    from toolkeep.auth.login import begin_device_login, complete_device_login

    async with _login_at(source, output, server) as (spec, oauth):
        scopes = tuple(scope or ())
        if device:
            begun = await begin_device_login(oauth, principal, scopes=scopes)
            where = begun.verification_uri_complete or begun.verification_uri
            output.note(f"Open {where} on any device, and enter the code {begun.user_code}")
            grant = await complete_device_login(oauth, begun)
        else:
            grant = await _log_in(oauth, spec, output, principal, scopes, browser=not no_browser)
        _show([grant.login], output, f"logged in to {spec.name}")
    return OK


async def logout(
    output: Output,
    source: ServerSource,
    server: ServerArgument = None,
    principal: PrincipalOption = None,
) -> int:
    """Forget a login, and revoke its tokens."""
    from toolkeep.auth.login import logout as forget

    async with _login_at(source, output, server) as (spec, oauth):
        revoked = await forget(oauth, principal)
    output.print(f"logged out of {spec.name}")
    if not revoked:
        output.note("warning: the tokens are forgotten here, but could not be revoked")
    output.print_json({"server": spec.name, "principal": principal, "revoked": revoked})
    return OK


async def auth(output: Output) -> int:
    """List who is logged in where, and until when."""
    from toolkeep.auth.grants import stored_grants
    from toolkeep.auth.storage import LoginStorage

    storage = LoginStorage()
    try:
        found = [grant.login async for grant in stored_grants(await storage.open())]
    finally:
        await storage.aclose()
    _show(found, output, "" if found else "no one is logged in: run `toolkeep login SERVER`")
    return OK


# -- the server ---------------------------------------------------------------------------------


@asynccontextmanager
async def _login_at(
    source: ServerSource, output: Output, name: str | None
) -> AsyncGenerator[tuple[ServerSpec, OAuth]]:
    """The server to log in to. Raises `ConfigError` if logins cannot be kept."""
    from toolkeep.auth.configured import ServerAuth
    from toolkeep.auth.storage import LoginStorage

    found = select_servers(source.load(output), None if name is None else (name,))
    if len(found.servers) != 1:
        names = ", ".join(spec.name for spec in found.servers)
        raise UsageError(f"name the server: {names or 'none can be used'}")
    (spec,) = found.servers
    storage = LoginStorage(must_persist=True)
    made = ServerAuth(spec, storage)
    if made.login is None:
        raise UsageError(f"{spec.name} has no login: its configuration says how to authorize")
    try:
        yield spec, made.login
    finally:
        await made.aclose()
        await storage.aclose()


# -- the browser --------------------------------------------------------------------------------


async def _log_in(
    oauth: OAuth,
    spec: ServerSpec,
    output: Output,
    principal: str | None,
    scopes: tuple[str, ...],
    *,
    browser: bool,
) -> Any:
    from toolkeep.auth.login import begin_login, complete_login

    async with _callback_page(oauth, spec) as page:
        begun = await begin_login(oauth, principal, redirect_uri=page.url, scopes=scopes)
        if browser:
            output.note(f"Log in in the browser. If it does not open, go to\n{begun.url}")
            # Not awaited: some browsers return when they are closed.
            threading.Thread(target=webbrowser.open, args=(begun.url,), daemon=True).start()
        else:
            output.note(f"Log in at\n{begun.url}")
        callback = await _wait_for_callback(page, begun, paste=not browser or can_prompt())
        try:
            grant = await complete_login(oauth, callback, principal=principal)
        except Exception as error:
            page.answer("The login failed", str(error))
            raise
        page.answer("You are logged in", "You can close this page.")
        return grant


async def _wait_for_callback(page: CallbackPage, begun: LoginRequest, *, paste: bool) -> str:
    """The callback that comes first: from the browser, or pasted."""
    waiting = [asyncio.ensure_future(page.callback(begun.state))]
    if paste:
        waiting.append(asyncio.ensure_future(_pasted()))
    try:
        left = begun.expires - time.time()
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise UsageError("no one has logged in in time: run `toolkeep login` again")
            if callback := done.pop().result():
                return callback
            waiting = waiting[:1]  # standard input has ended
        raise AssertionError
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _pasted() -> str:
    """The address that the person pastes; empty at the end of input."""
    with contextlib.suppress(OSError, NotImplementedError):  # standard input cannot be watched
        while (line := await read_line("Or paste the address that it ends at: ")) is not None:
            if line.strip():
                return line.strip()
    return ""


class CallbackPage:
    """The page on this machine to which the browser comes back. Takes one callback."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._callback: asyncio.Future[tuple[str, asyncio.StreamWriter]] = asyncio.Future()
        self._state = ""
        self._writer: asyncio.StreamWriter | None = None

    async def callback(self, state: str) -> str:
        """The URL of the callback with this state."""
        self._state = state
        url, self._writer = await self._callback
        return url

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_WAIT):
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        target = parts[1] if len(parts) == 3 and parts[0] == "GET" else ""
        path, _, query = target.partition("?")
        url = f"{self.url}?{query}"
        if path != urlsplit(self.url).path or not self._is_ours(url):
            _answer(writer, 404, "Nothing is here", "This is no answer to a login that waits here.")
        elif self._callback.done():
            _answer(writer, 404, "This login is over", "Close this page.")
        else:
            self._callback.set_result((url, writer))

    def _is_ours(self, url: str) -> bool:
        from toolkeep.auth.authorizer import OAuthError
        from toolkeep.auth.oauth import read_callback

        try:
            return bool(self._state) and read_callback(url).state == self._state
        except OAuthError:
            return False

    def answer(self, title: str, text: str) -> None:
        """Show the browser how the login ended; nothing if its address was pasted."""
        if self._writer is not None:
            _answer(self._writer, 200, title, text)


def _answer(writer: asyncio.StreamWriter, status: int, title: str, text: str) -> None:
    body = PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    head = (
        f"HTTP/1.1 {status} \r\ncontent-type: text/html; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\n"
        "referrer-policy: no-referrer\r\n"
        "content-security-policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
        "connection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError):
        writer.write(head.encode() + body)
        writer.close()


@asynccontextmanager
async def _callback_page(oauth: OAuth, spec: ServerSpec) -> AsyncGenerator[CallbackPage]:
    """The page, on the configured port or a free one."""
    from toolkeep.config.fields import is_loopback

    wanted = urlsplit(oauth.settings.redirect_uri)
    own = wanted.scheme == "http" and is_loopback(wanted.hostname or "")
    host = (wanted.hostname if own else None) or "127.0.0.1"
    port = (wanted.port if own else None) or (spec.auth.callback_port if spec.auth else None) or 0
    page = CallbackPage("")
    try:
        listening = await asyncio.start_server(page.serve, host, port, limit=MAX_REQUEST)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UsageError(f"the callback cannot listen at {host}:{port}: {why}") from None
    actual = listening.sockets[0].getsockname()[1]
    path = (wanted.path if own else "") or "/callback"
    page.url = f"http://{f'[{host}]' if ':' in host else host}:{actual}{path}"
    try:
        yield page
    finally:
        listening.close()


# -- what is shown ------------------------------------------------------------------------------


def _show(found: Sequence[Login], output: Output, line: str) -> None:
    if line:
        output.print(line)
    headers = ("SERVER", "PRINCIPAL", "VALID", "SCOPES", "ISSUER")
    rows = [
        (one.server, one.principal or "-", _valid(one), " ".join(one.scopes) or "-", one.issuer)
        for one in found
    ]
    output.print_table(headers, rows)
    output.print_json({"logins": [_as_dict(one) for one in found]})


def _valid(login: Login) -> str:
    if login.is_renewable:
        return "until it is revoked"
    if login.expires is None:
        return "not known"
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(login.expires))
    return f"until {until}" if login.expires > time.time() else f"expired {until}"


def _as_dict(login: Login) -> dict[str, Any]:
    return {
        "server": login.server,
        "principal": login.principal,
        "url": login.url,
        "issuer": login.issuer,
        "scopes": list(login.scopes),
        "expires": login.expires,
        "renewable": login.is_renewable,
    }
