"""`Client`: one server that stays usable.

Building one does no I/O and imports neither the SDK nor the HTTP library; the first call opens it.
The client is the public face only: connections are the `Keeper`'s, the way of a request is the
`Pursuit`'s. A client is one principal: it speaks for one user, or for nobody in particular.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from mainstay._engine.call import Call, Emit
from mainstay._engine.calling import Calling, OnProgress
from mainstay._engine.observing import Observation, Observers
from mainstay._engine.requests import Requests
from mainstay._rules import headers as header_rules
from mainstay._rules.classify import SESSION_ROWS, SessionRow
from mainstay._version import __version__
from mainstay.auth import Authorizer, StaticKey
from mainstay.config import ServerSpec
from mainstay.config.spec import warn
from mainstay.errors import ConfigError, InvalidArguments
from mainstay.events import Disconnected, Event, Notice, Observer
from mainstay.results import CallResult

if TYPE_CHECKING:
    import mcp_types as types

    from mainstay._engine.keeper import Keeper
    from mainstay._engine.outgoing import Outgoing
    from mainstay._engine.pursuit import Pursuit
    from mainstay._engine.toolbook import Toolbook


class Client(Requests):
    """One MCP server, over as many connections as it takes.

    May be used from any task of the loop that first used it, and closed from any. After `aclose`
    it can be used again, also in another loop.
    """

    def __init__(
        self,
        server: str | Mapping[str, Any] | ServerSpec,
        *,
        mode: Literal["auto", "legacy", "modern"] | None = None,
        auth: Authorizer | None = None,
        principal: str | None = None,
        client_info: Mapping[str, str] | None = None,
        session_rows: Sequence[SessionRow] = (),
        terminate_on_close: bool | None = None,
    ) -> None:
        spec = ServerSpec.parse(server)
        self.spec = spec if mode is None else spec.changed(mode=mode)
        """The configuration; frozen."""
        self.principal = principal
        self._auth = auth or _static_key(self.spec)
        self._headers = _server_headers(self.spec)
        self._client_info = dict(client_info or {"name": "mainstay", "version": __version__})
        self._session_rows = (*session_rows, *SESSION_ROWS)
        self._terminate = True if terminate_on_close is None else terminate_on_close
        self._keeper: Keeper | None = None
        self._observers = Observers(self.spec.name)
        self._book: Toolbook | None = None
        self.log_level: str | None = None

    def __repr__(self) -> str:
        state = self._keeper.state.value if self._keeper else "idle"
        return f"<Client {self.name!r}, {state}>"

    # -- what is true now -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_initialized(self) -> bool:
        """Whether there is a connection that takes calls."""
        return self._keeper is not None and self._keeper.agreement is not None

    @property
    def session_id(self) -> str | None:
        """The legacy session in use, or None: not open, modern, or a server without sessions."""
        return self._keeper.session_id if self._keeper else None

    @property
    def era(self) -> str | None:
        """`"legacy"` or `"modern"`, while connected."""
        agreement = self._keeper.agreement if self._keeper else None
        return agreement.era.value if agreement else None

    @property
    def protocol_version(self) -> str | None:
        agreement = self._keeper.agreement if self._keeper else None
        return agreement.version if agreement else None

    @property
    def handshake(self) -> types.InitializeResult | types.DiscoverResult | None:
        """What the server said of itself, while connected."""
        agreement = self._keeper.agreement if self._keeper else None
        return agreement.result if agreement else None

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        """Open now rather than at the first call."""
        await self.pursue(method="", params=None, timeout=self.spec.timeouts.connect)

    async def aclose(self) -> None:
        """Release sockets, tasks and the session. May be called twice, from any task."""
        if self._keeper is not None:
            await self._keeper.aclose()
        self._book = None

    cleanup = aclose

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- calling tools --------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallResult:
        """Call a tool. Raises a `CallError` that says whether it ran."""
        calling = Calling(self, name, arguments, headers, meta, timeout, on_progress)
        return await calling.carry_out()

    def stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Call:
        """Call a tool and watch: `async with client.stream(…) as call: async for event in call`."""
        calling = Calling(self, name, arguments, headers, meta, timeout, on_progress)

        def run(emit: Emit) -> Awaitable[CallResult]:
            return calling.carry_out(emit)

        return Call(run)

    async def list_tools(self, *, refresh: bool = False) -> list[types.Tool]:
        """All tools, from all pages. Kept until the list or the connection changes."""
        if refresh or self._book is None or self._book.stale:
            raw = await self.all_pages("tools/list", "tools")
            from mainstay._engine.toolbook import Toolbook

            self._book = Toolbook(self.name, raw, modern=self.era == "modern")
        return list(self._book.tools)

    # -- observing ------------------------------------------------------------------------------

    def observe(self, observer: Observer, *, listen: bool = True) -> Observation:
        """Have `observer` called with every event until the handle is closed.

        `listen`: also hear what a legacy server says outside of calls, which takes a stream of its
        own. Pass False for observers that only watch calls.
        """
        if listen and self._keeper is not None:
            self._keeper.listen()
        return self._observers.add(observer, listen=listen)

    @property
    def is_observed(self) -> bool:
        return bool(self._observers)

    def emit(self, event: Event) -> None:
        """Note what an event means for the tool book, and tell the observers."""
        match event:
            case Notice(method="notifications/tools/list_changed"):
                self._book = None
            case Disconnected() if self._book is not None:
                self._book.stale = True  # the next connection may lead to a newer server
            case _:
                pass
        self._observers.tell(event)

    # -- for the engine -------------------------------------------------------------------------

    @property
    def book(self) -> Toolbook | None:
        return self._book

    def keeper(self) -> Keeper:
        """The keeper, made at first use: it brings the SDK and the HTTP library along."""
        if self._keeper is None:
            from mcp_types import Implementation

            from mainstay._engine.keeper import Keeper

            self._keeper = Keeper(
                self.spec,
                headers=self._headers,
                auth=self._auth,
                principal=self.principal,
                client_info=Implementation.model_validate(self._client_info),
                session_rows=self._session_rows,
                terminate_on_close=self._terminate,
                emit=self.emit,
                log_level=lambda: self.log_level,
            )
            if self._observers.listening:
                self._keeper.listen()
        return self._keeper

    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None:
        if not headers:
            return None
        try:
            checked = header_rules.check(headers, origin="the call")
        except header_rules.HeaderRefused as refused:
            text = f"{self.name}: {what} was not sent: {refused}"
            raise InvalidArguments(text, server=self.name, tool=what) from None
        return header_rules.split_ignored(checked)[0]

    def pursuit(self, outgoing: Outgoing) -> Pursuit:
        from mainstay._engine.pursuit import Pursuit

        return Pursuit(self.keeper(), outgoing)

    async def pursue(
        self,
        *,
        method: str,
        params: dict[str, Any] | None,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]:
        from mainstay._engine.outgoing import Outgoing

        within = self.spec.timeouts.call if timeout is None else timeout
        if not within > 0:
            text = f"{self.name}: {method} was not sent: its timeout is no positive number"
            raise InvalidArguments(text, server=self.name, tool=method)
        outgoing = Outgoing(method=method, params=params, timeout=within, **known)
        return await self.pursuit(outgoing).run()


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
