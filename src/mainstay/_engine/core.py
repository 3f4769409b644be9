"""What stands behind a client's face: its keeper, its tool book, its observers, its way to send.

Private to the engine, so that `Client` shows its users nothing but what is theirs. Making one does
no I/O; the SDK and the HTTP library are imported when the keeper is first needed.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from mainstay._engine.observing import Observers
from mainstay._rules import headers as header_rules
from mainstay._rules.classify import SESSION_ROWS, SessionRow
from mainstay._version import __version__
from mainstay.auth import Authorizer, StaticKey
from mainstay.config import ServerSpec
from mainstay.config.spec import warn
from mainstay.errors import ConfigError, InvalidArguments, RemoteProtocolError
from mainstay.events import Disconnected, Event, Notice

if TYPE_CHECKING:
    from mainstay._engine.keeper import Keeper
    from mainstay._engine.negotiate import Agreement
    from mainstay._engine.outgoing import Outgoing
    from mainstay._engine.pursuit import Pursuit
    from mainstay._engine.toolbook import Toolbook

_MOST_PAGES = 1000
"""A server with more pages than this is not listing, it is counting."""


class Core:
    """One for each client, for as long as the client lives."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        auth: Authorizer | None,
        principal: str | None,
        client_info: Mapping[str, str] | None,
        session_rows: Sequence[SessionRow],
        terminate_on_close: bool | None,
    ) -> None:
        self.spec, self._principal = spec, principal
        self._auth = auth or _static_key(spec)
        self._headers = _server_headers(spec)
        self._client_info = dict(client_info or {"name": "mainstay", "version": __version__})
        self._session_rows = (*session_rows, *SESSION_ROWS)
        self._terminate = True if terminate_on_close is None else terminate_on_close
        self._keeper: Keeper | None = None
        self._changes = 0
        """How often the server said that its tools changed."""
        self.observers = Observers(spec.name)
        self.book: Toolbook | None = None
        self.log_level: str | None = None

    @property
    def state(self) -> str:
        return self._keeper.state.value if self._keeper else "idle"

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        return self._keeper.agreement if self._keeper else None

    @property
    def session_id(self) -> str | None:
        return self._keeper.session_id if self._keeper else None

    @property
    def era(self) -> str | None:
        return self.agreement.era.value if self.agreement else None

    def keeper(self) -> Keeper:
        """The keeper, made at first use."""
        if self._keeper is None:
            from mcp_types import Implementation

            from mainstay._engine.keeper import Keeper

            self._keeper = Keeper(
                self.spec,
                headers=self._headers,
                auth=self._auth,
                principal=self._principal,
                client_info=Implementation.model_validate(self._client_info),
                session_rows=self._session_rows,
                terminate_on_close=self._terminate,
                emit=self.emit,
                log_level=lambda: self.log_level,
                wants_notices=lambda: self.spec.listen or self.observers.listening,
            )
        return self._keeper

    def listen(self) -> None:
        """Somebody wants to hear what the server says outside of calls."""
        if self._keeper is not None:
            self._keeper.listen()

    async def aclose(self) -> None:
        if self._keeper is not None:
            await self._keeper.aclose()
        self.book = None

    # -- sending --------------------------------------------------------------------------------

    def pursuit(self, outgoing: Outgoing) -> Pursuit:
        from mainstay._engine.pursuit import Pursuit

        return Pursuit(self.keeper(), outgoing)

    async def pursue(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]:
        """One request, to its result. What is `known` about it goes to `Outgoing`."""
        from mainstay._engine.outgoing import Outgoing

        within = self.spec.timeouts.call if timeout is None else timeout
        if not within > 0:
            raise self.invalid(method, "its timeout is no positive number of seconds")
        outgoing = Outgoing(method=method, params=params, timeout=within, **known)
        return await self.pursuit(outgoing).run()

    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None:
        if not headers:
            return None
        try:
            checked = header_rules.check(headers, origin="the call")
        except header_rules.HeaderRefused as refused:
            raise self.invalid(what, str(refused)) from None
        return header_rules.split_ignored(checked)[0]

    def invalid(self, what: str, why: str, problems: tuple[str, ...] = ()) -> InvalidArguments:
        name = self.spec.name
        text = f"{name}: {what} was not sent: {why}"
        return InvalidArguments(text, server=name, tool=what, problems=problems)

    # -- listing --------------------------------------------------------------------------------

    async def list_tools(self, *, refresh: bool) -> Toolbook:
        """The tool book, filled anew if it has to be."""
        if not refresh and self.book is not None and not self.book.stale:
            return self.book
        from mainstay._engine.toolbook import Toolbook

        changes = self._changes
        raw = await self.all_pages("tools/list", "tools")
        book = Toolbook(self.spec.name, raw, modern=self.era == "modern")
        book.stale = changes != self._changes  # they changed while they were listed
        self.book = book
        return book

    async def all_pages(self, method: str, key: str) -> list[Any]:
        """Everything from all pages, within one deadline."""
        deadline = time.monotonic() + self.spec.timeouts.call
        items: list[Any] = []
        cursors: set[str] = set()
        cursor: Any = None
        for _ in range(_MOST_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            left = max(deadline - time.monotonic(), 0.001)
            page = await self.pursue(method, params, timeout=left, lenient=True)
            found = page.get(key)
            if not isinstance(found, list):
                raise self._bad_list(method, f"holds no list {key!r}")
            items += cast("list[Any]", found)
            cursor = page.get("nextCursor")
            if not cursor:
                return items
            if not isinstance(cursor, str) or cursor in cursors:
                raise self._bad_list(method, "repeats a cursor: its pages have no end")
            cursors.add(cursor)
        raise self._bad_list(method, f"has more than {_MOST_PAGES} pages")

    def _bad_list(self, method: str, problem: str) -> RemoteProtocolError:
        text = f"{self.spec.name}: the answer to {method} {problem}. The server is at fault"
        return RemoteProtocolError(text, server=self.spec.name)

    # -- observing ------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Note what an event means for the tool book, and tell the observers."""
        match event:
            case Notice(method="notifications/tools/list_changed"):
                self._changes += 1
                self.book = None
            case Disconnected() if self.book is not None:
                self.book.stale = True  # the next connection may lead to a newer server
            case _:
                pass
        self.observers.tell(event)


def _static_key(spec: ServerSpec) -> Authorizer | None:
    return StaticKey(spec.api_key.get_secret_value()) if spec.api_key is not None else None


def _server_headers(spec: ServerSpec) -> dict[str, str]:
    try:
        checked = header_rules.check(spec.headers, origin="headers")
    except header_rules.HeaderRefused as refused:
        key = f"headers.{refused.name}"
        raise ConfigError(
            refused.reason, server=spec.name, key=key, remedy="Remove or correct it"
        ) from None
    kept, ignored = header_rules.split_ignored(checked)
    for name in ignored:
        text = f"{spec.name}: the header {name!r} is the protocol's own and is ignored"
        warn(text)
    return {"user-agent": f"mainstay/{__version__}", **_basic_auth(spec.url), **kept}


def _basic_auth(url: str) -> dict[str, str]:
    """The credentials in a URL, as the header that they stand for."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
