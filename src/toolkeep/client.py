"""`Client`: one MCP server for one principal.

Owns the parts of a client and wires them; none of them refers to the `Client` itself, so that one
that is dropped open is noticed. Lists and reads change nothing at the server, so they may be sent
again freely. Results other than `CallResult` are the SDK's types. Importing this module loads
neither the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from pydantic import BaseModel, ValidationError

from toolkeep._client.auth import check_client_options
from toolkeep._client.call import Call, ToolCall
from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.endpoint import EndpointSelector, EndpointStatus, common_failure
from toolkeep._client.listing import Listings
from toolkeep._client.notifications import Subscriptions
from toolkeep._client.observers import Observation, Observers
from toolkeep._client.options import ClientOptions, OwnerEvent, ReachabilityChanged
from toolkeep._client.request import (
    TOOLS_CALL,
    CallOptions,
    CallRequest,
    Emit,
    OnProgress,
    RequestSender,
    prompt_arguments,
)
from toolkeep._client.server_requests import RequestHandlerOption, ServerRequestHandlers
from toolkeep._rules.classify import METHOD_NOT_FOUND, Era, SessionLostRule
from toolkeep._rules.recovery import RetryPolicy
from toolkeep.auth import Authorizer
from toolkeep.config import ServerSpec
from toolkeep.config.spec import Mode
from toolkeep.errors import (
    CallError,
    CallNotSentInTime,
    CallRejected,
    CallTimedOut,
    ConfigError,
    Delivery,
    Failure,
    FailureKind,
    InvalidResult,
    ToolkeepError,
)
from toolkeep.events import CallEvent, Event, Observer
from toolkeep.results import CallResult, adapter_for
from toolkeep.state import Store
from toolkeep.state.shared import SharedState

if TYPE_CHECKING:
    import mcp_types as types

    from toolkeep._client.tool_list import ToolList
    from toolkeep._transport.base import Attempt
    from toolkeep.config.spec import LocalServerObject

    LocalServer = LocalServerObject | Callable[..., Any] | Sequence[Callable[..., Any]]

__all__ = ["Call", "Client", "EndpointStatus", "Observation", "SessionLostRule"]

logger = logging.getLogger("toolkeep.client")

_ITEMS_PER_SLICE = 100
"""Items of a list that are parsed without yielding to the event loop: about 2 ms."""
_PING_REFUSED_KINDS = (FailureKind.REFUSED, FailureKind.UNREADABLE)
_ALIVE_STATUSES = (*range(200, 300), 400, 405, 406)
"""Answers to a plain GET that show a living server, where a ping was refused."""

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

ping_timeout: ContextVar[float | None] = ContextVar("toolkeep_ping_timeout", default=None)
"""Seconds for a ping in a health check; None: as long as a call. A client that knows it can tell a
session that does not answer from a health check that was cancelled."""


class ClientEvents:
    """Where the events of one client go: to its owner, its group and its observers."""

    def __init__(self, options: ClientOptions, observers: Observers) -> None:
        self._owner_emit, self._observers = options.emit, observers
        self.selector: EndpointSelector
        self.report_failure: Callable[[ToolkeepError | None], None] | None = None
        """For a group: called with the error when requests fail, with None when one is answered."""

    def publish(self, event: Event) -> None:
        if self._owner_emit is not None and not isinstance(event, CallEvent):
            self._owner_emit(event)
        if not isinstance(event, OwnerEvent):
            self._observers.emit(event)
        elif isinstance(event, ReachabilityChanged) and self.report_failure is not None:
            managers = self.selector.managers
            self.report_failure(common_failure(manager.endpoint for manager in managers))


class Client:
    """A client of one MCP server for one principal, which reconnects and retries as needed.

    May be used from any task of the event loop that first used it, and closed from any task. After
    `aclose` it can be used again, also in another loop.
    """

    def __init__(
        self,
        server: str | Path | Mapping[str, Any] | ServerSpec | LocalServer,
        *,
        mode: Mode | None = None,
        auth: Authorizer | None = None,
        principal: str | None = None,
        client_info: Mapping[str, str] | None = None,
        session_lost_rules: Sequence[SessionLostRule] = (),
        state: str | Store | None = None,
        keys: Sequence[str | bytes] | None = None,
        terminate_on_close: bool | None = None,
        sampling: RequestHandlerOption | None = None,
        elicitation: RequestHandlerOption | None = None,
        roots: RequestHandlerOption | Sequence[str | Path] | None = None,
        on_progress: OnProgress | None = None,
        strict: bool = False,
    ) -> None:
        """`on_progress`: for the calls that bring none of their own. `strict`: refuse a list whose
        pages repeat, instead of using its items with a warning. `state`: a store, or its URL, for
        what processes share: sessions, results that the server lets its clients keep, and rates.
        `keys` encrypt what is in it."""
        if on_progress is not None and not callable(cast("object", on_progress)):
            remedy = "Give a function that takes progress, total and message"
            raise ConfigError("on_progress must be a function", remedy=remedy, key="on_progress")
        spec = ServerSpec.parse(server)
        options = ClientOptions(
            auth=auth,
            principal=principal,
            client_info=client_info,
            session_lost_rules=session_lost_rules,
            state=SharedState(state, keys),
            stores_sessions=state is not None and bool(spec.url),
            terminate_on_close=terminate_on_close,
            on_progress=on_progress,
            strict=strict,
        )
        handlers = {"sampling": sampling, "elicitation": elicitation, "roots": roots}
        self._set_up(spec if mode is None else spec.replace(mode=mode), options, handlers)

    @classmethod
    def with_options(
        cls, spec: ServerSpec, options: ClientOptions, handlers: Mapping[str, Any]
    ) -> Self:
        """For a session pool: a client with options that users do not set. `handlers` answer
        server requests."""
        client = cls.__new__(cls)
        client._set_up(spec, options, handlers)
        return client

    def _set_up(
        self, spec: ServerSpec, options: ClientOptions, handlers: Mapping[str, Any]
    ) -> None:
        check_client_options(spec, options)
        self.spec = spec
        """The configuration; frozen."""
        self._entered = 0
        """How many `async with` blocks are open."""
        self.principal = options.principal
        self._options = options
        self._observers = Observers(spec.name) if options.observers is None else options.observers
        request_handlers = ServerRequestHandlers(
            spec.name, spec.timeouts.input, options.principal, **handlers
        )
        self._subscriptions = Subscriptions(
            spec.name,
            self._observers,
            always=spec.listen or options.listen,
            handles_requests=bool(request_handlers.methods),
        )
        self._events = ClientEvents(options, self._observers)
        self._listings = Listings(spec, options, self._subscriptions, self._events.publish)
        self._selector = EndpointSelector(
            spec, options, request_handlers, self._subscriptions, self._listings.emit
        )
        self._sender = RequestSender(spec, options, self._selector, request_handlers)
        # These four need each other.
        request_handlers.emit = self._listings.emit
        self._subscriptions.listings = self._listings
        self._listings.sender = self._sender
        self._events.selector = self._selector

    def __del__(self) -> None:
        selector: EndpointSelector | None = getattr(self, "_selector", None)
        # A pool closes its clients itself.
        if selector is not None and not self._options.pooled and selector.is_open:
            selector.loop_guard.close_unclosed(self, selector.aclose, selector.detach)

    def __repr__(self) -> str:
        leader = self._selector.current_leader
        return f"<Client {self.name!r}, {leader.state.value if leader else 'idle'}>"

    # -- state ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def health_interval(self) -> float | None:
        """Seconds between two health checks of a group; None: the group's own interval."""
        return self.spec.health_interval

    @property
    def connect_timeout(self) -> float | None:
        """The connect timeout that a group must grant a stdio server; None: the group's own."""
        return self.spec.timeouts.connect if self.spec.command else None

    @property
    def is_initialized(self) -> bool:
        """Whether there is an open connection."""
        return self._sender.protocol is not None

    @property
    def session_id(self) -> str | None:
        """The id of the current legacy session; None if there is no connection, or for a server
        without sessions."""
        leader = self._selector.current_leader
        return leader.session_id if leader else None

    @property
    def era(self) -> str | None:
        """`"legacy"` or `"modern"`, while connected."""
        era = self._sender.era
        return era.value if era else None

    @property
    def protocol_version(self) -> str | None:
        protocol = self._sender.protocol
        return protocol.version if protocol else None

    @property
    def handshake(self) -> types.InitializeResult | types.DiscoverResult | None:
        """The server's handshake result, while connected."""
        protocol = self._sender.protocol
        return protocol.result if protocol else None

    @property
    def server_info(self) -> types.Implementation | None:
        """The server's own name and version, while connected; None if it does not say."""
        handshake = self.handshake
        own: Any = getattr(handshake, "server_info", None)
        if handshake is None or own is not None:
            return own
        from mcp_types import SERVER_INFO_META_KEY, Implementation

        try:
            return Implementation.model_validate((handshake.meta or {}).get(SERVER_INFO_META_KEY))
        except ValidationError:
            return None  # a modern server need not say it, and nothing depends on it

    @property
    def instructions(self) -> str | None:
        """What the server says about its use, for a model; while connected."""
        handshake = self.handshake
        return handshake.instructions if handshake else None

    @property
    def endpoints(self) -> tuple[EndpointStatus, ...]:
        """The status of the server's addresses, if there are several."""
        return self._selector.statuses

    def report_failures(self, to: Callable[[ToolkeepError | None], None]) -> None:
        """For a group: call `to` with the error when requests fail, and with None when one is
        answered again."""
        self._events.report_failure = to

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        """Open a connection now rather than at the first call."""
        await self._sender.connect()

    async def aclose(self, *, terminate: bool | None = None) -> None:
        """Close connections, tasks and the session. May be called twice, from any task.
        `terminate`: whether to end the session at the server; None: as `terminate_on_close` says,
        or unless a store keeps it."""
        if self._selector.loop_guard.is_unreachable:
            self._entered = 0  # the blocks ended with their event loop
        await self._selector.aclose(terminate=terminate)
        self._listings.clear()
        if not self._options.pooled:
            await self._options.state.aclose()

    cleanup = aclose

    async def end_session(self) -> None:
        """End the session at the server and close the client, also a session that a store keeps
        and that is not open here."""
        await self._selector.wait_opened()  # only an opened session can be ended
        if self._options.stores_sessions:
            await self._selector.open_stored()
        await self.aclose(terminate=True)

    async def wait_opened(self) -> None:
        """For a session pool: wait until no connection is being opened."""
        await self._selector.wait_opened()

    def set_caller_headers(self, headers: Mapping[str, str]) -> None:
        """For a session pool: the identity headers of all requests that are not calls."""
        if self._options.caller_headers is not None:
            self._options.caller_headers.headers = headers

    def detach(self) -> None:
        """Let go without I/O, where the event loop is closed or belongs to the parent process."""
        self._entered = 0
        self._selector.detach()
        self._listings.clear()

    async def __aenter__(self) -> Self:
        """Blocks may be nested, also in several tasks: leaving the last one closes the client."""
        self._entered += 1
        try:
            await self.connect()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        self._entered = max(self._entered - 1, 0)
        if not self._entered:
            await self.aclose()

    # -- calling tools --------------------------------------------------------------------------

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[T],
        **options: Unpack[CallOptions],
    ) -> T: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[Any] | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> Any:
        """Call a tool. Raises a `CallError` that says whether it ran.

        `result_type`: return the value of the result as this pydantic model, or as another type
        that pydantic validates; a tool's own error then raises `ToolError`. See
        `CallResult.parse`.

        `input="return"`: when a modern server requests input, return its request
        (`result.needs_input`) instead of answering it; a later call continues with
        `input_responses` and `request_state`.
        """
        request = CallRequest(
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
        if result_type is None:
            return await self.make_call(request, None).run()
        adapter_for(result_type)  # an unusable type is found before the tool runs
        return (await self.make_call(request, None).run()).parse(result_type)

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
        request = CallRequest(
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

        # The default argument keeps the client alive while the call runs.
        def run(emit: Emit, client: Client = self) -> Awaitable[CallResult]:
            return client.make_call(request, emit).run()

        return Call(run)

    def make_call(
        self, request: CallRequest, emit: Emit | None, deadline: RequestDeadline | None = None
    ) -> ToolCall:
        """For a runtime: a call that is not sent yet. `emit`: its caller watches it."""
        return ToolCall(
            self._sender,
            self._listings,
            self._observers,
            request,
            emit=emit,
            deadline=deadline,
            log_level=self._subscriptions.log_level,
        )

    async def list_tools(self, *, refresh: bool = False) -> list[types.Tool]:
        """All tools, from all pages, as copies that the caller may change. They are listed once,
        and again after the list or the connection changed. Only the arguments and results of listed
        tools are checked, and only listed tools are known to be read-only or idempotent."""
        try:
            tools = await self._listings.list_tools(refresh=refresh)
        except CallRejected as error:
            # Listed even without the capability: some servers have tools and do not declare it.
            if error.code != METHOD_NOT_FOUND or not self._may_lack("tools"):
                raise
            return []
        return await tools.copies()

    async def fetch_tool_list(self, *, since: int | None = None) -> ToolList:
        """For a runtime, which keeps it: the tools as they are listed now, or as another process
        has listed them since this time of the store."""
        return await self._listings.list_tools(refresh=True, since=since)

    def hear_of_list(self, name: str, began: int) -> str:
        """For a runtime: another process has found that a list has changed. Returns what was
        listed, if it is a list of this client."""
        return self._listings.hear_of_list(name, began)

    def declares_public(self, method: str) -> bool:
        """For a runtime: whether the server said that its last list by this method is the same for
        all principals."""
        return self._listings.is_public(method)

    # -- prompts and resources ------------------------------------------------------------------

    async def list_prompts(self, *, refresh: bool = False) -> list[types.Prompt]:
        from mcp_types import Prompt

        return await self._parse_items(
            Prompt, await self._list_items("prompts/list", "prompts", refresh)
        )

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> types.GetPromptResult:
        """Get a prompt. Arguments that are not texts are sent as their JSON."""
        from mcp_types import GetPromptResult

        texts = prompt_arguments(arguments, server=self.name, prompt=name)
        params = {"name": name, "arguments": texts}
        checked = self._sender.checked_headers(headers, "prompts/get")
        raw, _ = await self._sender.send_with_rounds("prompts/get", params, checked)
        return self._parse(GetPromptResult, raw)

    async def list_resources(self, *, refresh: bool = False) -> list[types.Resource]:
        from mcp_types import Resource

        return await self._parse_items(
            Resource, await self._list_items("resources/list", "resources", refresh)
        )

    async def list_resource_templates(
        self, *, refresh: bool = False
    ) -> list[types.ResourceTemplate]:
        from mcp_types import ResourceTemplate

        method = "resources/templates/list"
        return await self._parse_items(
            ResourceTemplate, await self._list_items(method, "resourceTemplates", refresh)
        )

    async def read_resource(
        self, uri: str, *, headers: Mapping[str, str] | None = None, refresh: bool = False
    ) -> types.ReadResourceResult:
        """Read a resource. A result that a modern server allows to cache (`ttlMs`) is returned from
        the cache, unless `refresh` or `headers` are given."""
        from mcp_types import ReadResourceResult

        self._sender.check_uri(uri, "resources/read")
        checked = self._sender.checked_headers(headers, "resources/read")
        return self._parse(
            ReadResourceResult, await self._listings.read(uri, checked, refresh=refresh)
        )

    async def subscribe(self, uri: str) -> None:
        """Send observers a `Changed` event when this resource changes, on this connection and all
        later ones. Raises `CallRejected` if the server does not offer this."""
        self._sender.check_uri(uri, "resources/subscribe")
        await self._sender.connect()
        if uri in self._subscriptions.uris:
            return
        self._subscriptions.uris[uri] = None
        try:
            await self._subscribe(uri)
        except BaseException:
            self._subscriptions.uris.pop(uri, None)
            raise

    async def _subscribe(self, uri: str) -> None:
        if self._sender.era is not Era.MODERN:
            await self._sender.send(CallRequest(method="resources/subscribe"), {"uri": uri})
            self._subscriptions.add_covered(uri)
            self._selector.listen()
            return
        self._selector.listen()
        if not await self._subscriptions.is_covered(uri, self.spec.timeouts.call):
            failure = Failure(FailureKind.REJECTED, Delivery.ANSWERED, "not subscribed")
            text = (
                f"{self.name}: subscribing to {uri} failed: the server offers no change"
                " notifications for it"
            )
            raise CallRejected(text, server=self.name, delivery=Delivery.ANSWERED, failure=failure)

    async def unsubscribe(self, uri: str) -> None:
        if uri not in self._subscriptions.uris:
            return
        del self._subscriptions.uris[uri]
        if self._sender.era is Era.LEGACY:
            await self._sender.send(CallRequest(method="resources/unsubscribe"), {"uri": uri})
        elif self._sender.era is Era.MODERN:
            self._selector.listen()
            await self._subscriptions.wait_settled()

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> types.Completion:
        """Completions for one argument of a prompt or a resource template."""
        from mcp_types import CompleteResult

        params: dict[str, Any] = {
            "ref": ref.model_dump(by_alias=True, mode="json", exclude_none=True),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        checked = self._sender.checked_headers(headers, "completion/complete")
        request = CallRequest(method="completion/complete", headers=checked)
        raw = await self._sender.send(request, params)
        return self._parse(CompleteResult, raw).completion

    # -- other requests -------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send any request; parameters and result are JSON. `repeatable`: sending it twice is
        harmless."""
        request = CallRequest(
            method=method,
            headers=self._sender.checked_headers(headers, method),
            timeout=timeout,
            policy=RetryPolicy.ALWAYS if repeatable else RetryPolicy(self.spec.retry),
            repeatable=repeatable,
        )
        return await self._sender.send(request, dict(params) if params is not None else None)

    async def relay(
        self, method: str, params: dict[str, Any] | None, attempt: Attempt
    ) -> dict[str, Any]:
        """For a shared program: send a request of another process as it is, and never twice.
        Returns the result, well-formed or not: that process checks it, and has the deadline."""
        await self._sender.connect()
        if method in ("initialize", "server/discover"):
            return self._relay_handshake(method)
        request = CallRequest(
            str(params.get("name", "")) if method == TOOLS_CALL and params else "",
            method=method,
            timeout=self.spec.timeouts.max_call,
            policy=RetryPolicy.NEVER,
            repeatable=False,
            lenient=True,
            wants_progress=attempt.wants_progress,
            on_notification=attempt.on_notification,
            on_server_request=attempt.on_server_request,
        )
        return await self._sender.start(request).run(params)

    def _relay_handshake(self, method: str) -> dict[str, Any]:
        """The server's own answer to the handshake of this client."""
        from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        result, modern = self.handshake, self._sender.era is Era.MODERN
        if result is not None and modern == (method == "server/discover"):
            return result.model_dump(by_alias=True, mode="json", exclude_none=True)
        text, code, data = f"the server does not know {method}", METHOD_NOT_FOUND, None
        if modern:
            code, data = UNSUPPORTED_PROTOCOL_VERSION, {"supported": [*MODERN_PROTOCOL_VERSIONS]}
        failure = Failure(FailureKind.REJECTED, Delivery.ANSWERED, text, code=code, data=data)
        about: Any = {"server": self.name, "delivery": Delivery.ANSWERED, "failure": failure}
        raise CallRejected(text, **about)

    async def ping(self) -> float:
        """Ping the server on the current connection; returns the seconds it took.

        A server that refuses the ping counts as alive if it answers a plain GET. A session that
        does not answer is given up: the next request opens a new one.
        """
        await self._sender.connect()
        manager, started = self._selector.leader, time.monotonic()
        connection, modern = manager.connection, self._sender.era is Era.MODERN
        method = "server/discover" if modern else "ping"
        try:
            await self._sender.send(CallRequest(method=method, timeout=ping_timeout.get()))
        except CallError as error:
            refused = error.failure is not None and error.failure.kind in _PING_REFUSED_KINDS
            if not refused or await manager.probe() not in _ALIVE_STATUSES:
                if not isinstance(error, CallNotSentInTime):
                    silent = isinstance(error, CallTimedOut)
                    manager.check_failed(connection, None if silent else error.failure)
                raise
        return time.monotonic() - started

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Ask the server for log lines from this level on; later connections ask again."""
        self._subscriptions.log_level = level
        if self._sender.era is Era.LEGACY:
            await self._sender.send(CallRequest(method="logging/setLevel"), {"level": level})

    async def notify_roots_changed(self) -> None:
        """Notify a legacy server that the client's roots have changed. Modern servers ask again."""
        await self._sender.connect()
        connection = self._selector.leader.connection
        if connection is not None:
            await connection.notify("notifications/roots/list_changed")

    # -- observing ------------------------------------------------------------------------------

    def observe(self, observer: Observer, *, listen: bool = True) -> Observation:
        """Call `observer` with every event until the returned handle is closed.

        `listen`: also receive notifications outside of calls, which over HTTP takes a stream of its
        own. Pass False for observers that only watch calls.
        """
        observation = self._observers.add(observer, listen=listen)
        observation.add_server(self.spec)
        if listen:
            self._selector.listen()
        return observation

    async def wait_notifications(self) -> None:
        """Wait, for at most a second, until the server's notifications can be received."""
        await self._subscriptions.wait_settled()

    # -- parsing results ------------------------------------------------------------------------

    async def _list_items(self, method: str, key: str, refresh: bool) -> list[Any]:
        """All items; none, and no request, if the server did not declare the capability."""
        capability = method.partition("/")[0]
        if self._lacks(capability):
            return []
        try:
            return (await self._listings.list_all(method, key, refresh=refresh)).items
        except CallRejected as error:
            if error.code != METHOD_NOT_FOUND or not self._may_lack(capability):
                raise
        return []

    def _lacks(self, capability: str) -> bool:
        """Whether the server did not declare this capability (`prompts`, for example)."""
        protocol = self._sender.protocol
        return protocol is not None and getattr(protocol.result.capabilities, capability) is None

    def _may_lack(self, capability: str) -> bool:
        """The same, or that a pinned server was not asked."""
        return self.spec.pinned_version is not None or self._lacks(capability)

    def _parse(self, model: type[Model], raw: Mapping[str, Any]) -> Model:
        try:
            return model.model_validate(raw, by_name=False)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
        text = f"{self.name}: the result is not a valid {model.__name__} (at {place})"
        raise InvalidResult(text, server=self.name, result=raw)

    async def _parse_items(self, model: type[Model], items: list[Any]) -> list[Model]:
        """The valid items as models; the others are skipped and logged. Yields to the event loop,
        so that a long list does not block it."""
        kept: list[Model] = []
        for number, item in enumerate(items, 1):
            if number % _ITEMS_PER_SLICE == 0:
                await asyncio.sleep(0)
            try:
                kept.append(self._parse(model, item))
            except InvalidResult as error:
                logger.warning("%s; the item is skipped", error)
        return kept
