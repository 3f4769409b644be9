"""`Client`: one server that stays usable.

Building one does no I/O and imports neither the SDK nor the HTTP library; the first call opens it.
The client is the public face only: what it does is the `Core`'s, its connections are the
`Keeper`'s, the way of a request is the `Pursuit`'s. A client is one principal: it speaks for one
user, or for nobody in particular.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from toolkeep._engine.call import Call, Emit
from toolkeep._engine.calling import Calling
from toolkeep._engine.core import Core
from toolkeep._engine.inputs import Answers, Inputs
from toolkeep._engine.observing import Observation
from toolkeep._engine.requests import Requests
from toolkeep._engine.setup import Setup
from toolkeep._engine.wanted import OnProgress, Wanted
from toolkeep._rules.classify import METHOD_NOT_FOUND, SessionRow
from toolkeep.auth import Authorizer
from toolkeep.config import ServerSpec
from toolkeep.errors import CallRejected, ToolkeepError
from toolkeep.events import Observer
from toolkeep.results import CallResult
from toolkeep.stores import SessionStore

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.client.caching import ResponseCacheStore
    from mcp.server import MCPServer
    from mcp.server.lowlevel import Server

    from toolkeep._engine.endpoints import Endpoint

    LocalServer = MCPServer | Server[Any] | Callable[..., Any] | Sequence[Callable[..., Any]]


class Client(Requests):
    """One MCP server, over as many connections as it takes.

    May be used from any task of the loop that first used it, and closed from any. After `aclose`
    it can be used again, also in another loop.
    """

    def __init__(
        self,
        server: str | Mapping[str, Any] | ServerSpec | LocalServer,
        *,
        mode: Literal["auto", "legacy", "modern"] | None = None,
        auth: Authorizer | None = None,
        principal: str | None = None,
        client_info: Mapping[str, str] | None = None,
        session_rows: Sequence[SessionRow] = (),
        store: SessionStore | None = None,
        terminate_on_close: bool | None = None,
        sampling: Answers | None = None,
        elicitation: Answers | None = None,
        roots: Answers | Sequence[str | Path] | None = None,
        cache: ResponseCacheStore | None = None,
    ) -> None:
        spec = ServerSpec.parse(server)
        self.spec = spec if mode is None else spec.changed(mode=mode)
        """The configuration; frozen."""
        self.principal = principal
        setup = Setup(
            auth=auth,
            principal=principal,
            client_info=client_info,
            session_rows=session_rows,
            store=store,
            terminate_on_close=terminate_on_close,
            cache=cache,
        )
        inputs = Inputs(
            self.spec.name,
            self.spec.timeouts.input,
            principal,
            sampling=sampling,
            elicitation=elicitation,
            roots=roots,
        )
        self._core = Core(self.spec, setup, inputs)

    _closes_core = True
    """Whether it is this client's to close what stands behind it."""

    @classmethod
    def of(cls, core: Core) -> Self:
        """The face of a core that was made elsewhere."""
        client = cls.__new__(cls)
        client.spec, client.principal, client._core = core.spec, core.setup.principal, core
        client._closes_core = False
        return client

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and self._closes_core and (home := core.open_in) is not None:
            home.close_dropped(self, core.aclose, core.abandon)

    def __repr__(self) -> str:
        return f"<Client {self.name!r}, {self._core.state}>"

    # -- what is true now -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def health_interval(self) -> float | None:
        """How often a group is to ask for a sign of life; None: as it does by default."""
        return self.spec.health_interval

    @property
    def connect_timeout(self) -> float | None:
        """The time that a group has to give a program; None: what it gives everybody."""
        return self.spec.timeouts.connect if self.spec.command else None

    @property
    def is_initialized(self) -> bool:
        """Whether there is a connection that takes calls."""
        return self._core.agreement is not None

    @property
    def session_id(self) -> str | None:
        """The legacy session in use, or None: not open, modern, or a server without sessions."""
        return self._core.session_id

    @property
    def era(self) -> str | None:
        """`"legacy"` or `"modern"`, while connected."""
        return self._core.era

    @property
    def protocol_version(self) -> str | None:
        agreement = self._core.agreement
        return agreement.version if agreement else None

    @property
    def handshake(self) -> types.InitializeResult | types.DiscoverResult | None:
        """What the server said of itself, while connected."""
        agreement = self._core.agreement
        return agreement.result if agreement else None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Its server's addresses, if there are several, and how each of them fares."""
        return self._core.addresses.shown if self._core.addresses else ()

    def report_trouble(self, to: Callable[[ToolkeepError | None], None]) -> None:
        """For a group: have it told why requests fail, and None when one is answered again."""
        self._core.on_trouble = to

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        """Open now rather than at the first call."""
        await self._core.connect()

    async def aclose(self) -> None:
        """Release sockets, tasks and the session. May be called twice, from any task."""
        await self._core.aclose()

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
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> CallResult:
        """Call a tool. Raises a `CallError` that says whether it ran.

        `input="return"`: when a modern server asks something first, give back its question
        (`result.needs_input`) instead of answering it; a later call goes on from there with
        `input_responses` and `request_state`.
        """
        wanted = Wanted(
            name,
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        return await Calling(self._core, wanted).carry_out()

    def stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> Call:
        """Call a tool and watch: `async with client.stream(…) as call: async for event in call`."""
        wanted = Wanted(
            name,
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        calling = Calling(self._core, wanted)

        # With a reference to the client: one that is still used is not dropped.
        def run(emit: Emit, _: Client = self) -> Awaitable[CallResult]:
            return calling.carry_out(emit)

        return Call(run)

    async def list_tools(self, *, refresh: bool = False) -> list[types.Tool]:
        """All tools, from all pages; copies, to do with as one likes. Listed once, and again after
        the list or the connection changed. Only tools that were listed are checked, and known to
        be read-only or idempotent.
        """
        try:
            book = await self._core.list_tools(refresh=refresh)
        except CallRejected as error:
            # Asked all the same: some servers have tools and do not say so.
            if error.code != METHOD_NOT_FOUND or not self._core.lacks("tools"):
                raise
            return []
        return await book.copies()

    # -- observing ------------------------------------------------------------------------------

    def observe(self, observer: Observer, *, listen: bool = True) -> Observation:
        """Have `observer` called with every event until the handle is closed.

        `listen`: also hear what the server says outside of calls, which over HTTP takes a stream
        of its own. Pass False for observers that only watch calls.
        """
        observation = self._core.observers.add(observer, listen=listen)
        observation.know(self.spec)
        if listen:
            self._core.listen()
        return observation
