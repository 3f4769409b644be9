"""The MCP session on an open transport: negotiation, stamping, checks, and what the server sends.

`ProtocolSession` owns no connection and no retry. Transport faults pass through unchanged. The
types, versions and tables of methods are those of `mcp_types`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    CallToolResult,
    CompletionsCapability,
    DiscoverResult,
    ErrorData,
    Implementation,
    InitializeResult,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    SubscriptionFilter,
    ToolsCapability,
)
from mcp_types.methods import (
    CLIENT_NOTIFICATIONS,
    SERVER_NOTIFICATIONS,
    SERVER_RESULTS,
    parse_server_notification,
    parse_server_request,
    validate_client_result,
    validate_server_result,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import TypeAdapter, ValidationError

from toolkeep._client.server_requests import ELICITATION, ROOTS, SAMPLING, ServerRequestHandlers
from toolkeep._rules.classify import Era, ProbeVerdict, classify, probe_verdict, supported_versions
from toolkeep._rules.protocol_headers import (
    METHOD_HEADER,
    NAME_HEADER,
    NAME_PARAMS,
    VERSION_HEADER,
    encode_header_value,
)
from toolkeep._transport.base import (
    NO_HEADERS,
    Attempt,
    ErrorReply,
    InvalidResponse,
    RequestFault,
    Transport,
    WireFault,
    unreadable_fault,
)
from toolkeep.errors import FailureKind

logger = logging.getLogger("toolkeep.client")

TOOLS_CALL = "tools/call"
_INITIALIZE, _DISCOVER, _LISTEN = "initialize", "server/discover", "subscriptions/listen"
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_SUBSCRIPTION_ID_KEY = "io.modelcontextprotocol/subscriptionId"
BLOCKS_PER_SLICE = 200
"""Content blocks that are checked without yielding to the event loop."""
_PLAIN_KEYS = {"content", "isError", "resultType"}
_CAPABILITIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    SAMPLING: ("sampling", {}),
    ELICITATION: ("elicitation", {"form": {}, "url": {}}),
    ROOTS: ("roots", {"listChanged": True}),
}
"""The client capability for each server request that has a handler."""
_KNOWN_NOTIFICATIONS = frozenset(
    method for method, _ in (*SERVER_NOTIFICATIONS, *CLIENT_NOTIFICATIONS)
)
"""The notifications of the protocol, in any version and direction."""
_LATER_FIELDS = ("cacheScope", "inputRequests", "requestState", "resultType", "ttlMs")
"""Fields of results that 2026-07-28 added."""
_MAX_PROBLEM = 300
"""Characters of a problem that are shown; it may contain names that the server chose."""
_listen_ids = itertools.count(1)

OnNotification = Callable[[str, Mapping[str, Any]], None]
"""Takes a notification that belongs to no request."""


@dataclass(frozen=True, slots=True)
class NegotiatedProtocol:
    """The era and version that client and server agreed on, and the server's answer."""

    era: Era
    version: str
    result: InitializeResult | DiscoverResult


class ExitedDuringProbe(WireFault):
    """The server's process exited during the era probe.

    Some legacy servers (rmcp's) exit when the first message is not `initialize`; the next process
    is sent `initialize` first.
    """


class ProtocolSession:
    """The MCP session of one connection, on its transport. Made, negotiated and used once.

    An `InboundHandler` of its transport. Requests run in the tasks of their callers.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        client_info: Implementation,
        handlers: ServerRequestHandlers,
        extensions: Mapping[str, Mapping[str, Any]],
        on_notification: OnNotification,
    ) -> None:
        self._transport, self._handlers = transport, handlers
        self._on_notification = on_notification
        self._client_info = client_info.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._capabilities: dict[str, Any] = dict(_CAPABILITIES[one] for one in handlers.methods)
        if extensions:
            self._capabilities["extensions"] = dict(extensions)
        self.protocol: NegotiatedProtocol | None = None
        """None until `negotiate` or `resume` has succeeded."""
        self._stamp: Callable[[str, dict[str, Any] | None], _Stamped] = _unstamped
        self._subscriptions: dict[str, _Subscription] = {}

    @property
    def _version(self) -> str:
        return self.protocol.version if self.protocol else LATEST_HANDSHAKE_VERSION

    # -- requests -------------------------------------------------------------------------------

    async def request(
        self, method: str, params: dict[str, Any] | None, attempt: Attempt, *, lenient: bool = False
    ) -> dict[str, Any]:
        """Send one request, stamped for the era, and check its result. `lenient`: return a
        malformed result instead of raising `InvalidResponse`."""
        params, headers = self._stamp(method, params)
        result = await self._transport.request(method, params, attempt, headers=headers)
        try:
            if method != TOOLS_CALL:
                if attempt.raw_result is not None:
                    _normalize(attempt.raw_result, self._version)
                _check_result(method, result, self._version)
            elif not _is_plain_text(result):
                await _check_call_result(result, self._version)
        except ValidationError as error:
            raw = attempt.raw_result or {}
            if lenient:
                return raw
            detail = f"the result is malformed: {_first_problem(error)}"
            raise InvalidResponse(detail, raw) from None
        return attempt.raw_result or result

    async def notify(self, method: str) -> None:
        """Send a notification to a legacy server; a modern one gets none."""
        protocol = self.protocol
        if protocol is not None and protocol.era is Era.LEGACY:
            await self._transport.notify(method, headers={VERSION_HEADER: protocol.version})

    async def listen(
        self, uris: Sequence[str], on_open: Callable[[Sequence[str]], None], *, within: float
    ) -> None:
        """Hold one subscription at a modern server until it ends.

        Its notifications arrive like all others. `on_open` is called with the resources that the
        server agreed to report. Raises `RequestFault` if the server refuses the subscription, and
        `TimeoutError` if it does not acknowledge it in time.
        """
        request_id = f"listen-{next(_listen_ids)}"
        subscription = _Subscription(asyncio.ensure_future(self._send_listen(request_id, uris)))
        self._subscriptions[request_id] = subscription
        try:
            await subscription.wait_acknowledged(within)
            on_open(subscription.covered_uris())
            await subscription.wait_ended()
        finally:
            del self._subscriptions[request_id]
            await subscription.cancel()

    async def _send_listen(self, request_id: str, uris: Sequence[str]) -> None:
        wanted: dict[str, Any] = dict.fromkeys(
            ("toolsListChanged", "promptsListChanged", "resourcesListChanged"), True
        )
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        params, headers = self._stamp(_LISTEN, {"notifications": wanted})
        await self._transport.request(
            _LISTEN, params, Attempt(), headers=headers, request_id=request_id
        )

    # -- negotiation ----------------------------------------------------------------------------

    async def negotiate(
        self,
        *,
        mode: str,
        known_era: Era | None,
        discovered: DiscoverResult | None = None,
        probe_within: float,
    ) -> None:
        """Agree on era and version. `known_era` is an earlier verdict and saves the probe.
        `discovered` is what the server told another client and saves all requests."""
        if discovered is not None and mode != "legacy":
            self._adopt_discovery(discovered)
        elif mode in MODERN_PROTOCOL_VERSIONS:
            self._adopt_discovery(_assumed_discovery(mode))
        elif mode == "modern":
            self._adopt_discovery(await self._discover_modern())
        elif mode == "legacy":
            await self._initialize()
        elif known_era is Era.LEGACY:
            await self._initialize_or_probe(probe_within)
        elif (found := await self._probe(probe_within)) is not None:
            self._adopt_discovery(found)
        else:
            await self._initialize_or_probe(probe_within)

    def resume(self, handshake: Mapping[str, Any]) -> None:
        """Take up a session of another process, without a request. Check
        `is_supported_handshake` first."""
        self._adopt_handshake(InitializeResult.model_validate(handshake, by_name=False))

    async def _probe(self, within: float) -> DiscoverResult | None:
        """The server's discovery, or None if it is a legacy server."""
        try:
            async with asyncio.timeout(within):
                found = await self._discover()
        except TimeoutError:
            return None  # some servers ignore unknown methods; the handshake will tell
        except WireFault as fault:
            if fault.evidence.exit_code is not None:
                raise ExitedDuringProbe(fault.evidence) from None
            if _era_verdict(fault) not in (ProbeVerdict.LEGACY, ProbeVerdict.OTHER_VERSION):
                raise
            return None  # OTHER_VERSION: it refused the version that it had asked for
        except (InvalidResponse, ValidationError):
            return None  # malformed; the handshake will tell
        modern = any(version in MODERN_PROTOCOL_VERSIONS for version in found.supported_versions)
        return found if modern else None

    async def _discover(self) -> DiscoverResult:
        try:
            return await self._send_discover(LATEST_MODERN_VERSION)
        except WireFault as fault:
            if _era_verdict(fault) is not ProbeVerdict.OTHER_VERSION:
                raise
            version = _common_version(fault)
        return await self._send_discover(version)

    async def _send_discover(self, version: str) -> DiscoverResult:
        params, headers = self._modern_stamp(version)(_DISCOVER, None)
        raw = await self._transport.request(
            _DISCOVER, params, Attempt(), headers=headers, cancellable=False
        )
        _normalize(raw, version)
        return DiscoverResult.model_validate(raw, by_name=False)

    async def _discover_modern(self) -> DiscoverResult:
        """Discovery in mode "modern": a legacy server is the wrong server, not an outage."""
        try:
            return await self._discover()
        except ValidationError:
            raise unreadable_fault("the result of server/discover is malformed", None) from None
        except WireFault as fault:
            unread = classify(fault.evidence).kind is FailureKind.UNREADABLE
            if unread or _era_verdict(fault) is not ProbeVerdict.LEGACY:
                raise
            reason = fault.evidence.error.message if fault.evidence.error else fault.evidence.detail
        raise unreadable_fault(f"the server supports no modern protocol version ({reason})", None)

    async def _initialize_or_probe(self, within: float) -> None:
        """Legacy handshake. An error -32022 means that the server is modern after all: probe
        it."""
        try:
            await self._initialize()
            return
        except WireFault as fault:
            if _era_verdict(fault) is not ProbeVerdict.OTHER_VERSION:
                raise
            refusal = fault
        discovered = await self._probe(within)
        if discovered is None:
            raise refusal
        self._adopt_discovery(discovered)

    async def _initialize(self) -> None:
        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": self._capabilities,
            "clientInfo": self._client_info,
        }
        raw = await self._transport.request(_INITIALIZE, params, Attempt(), cancellable=False)
        try:
            _check_result(_INITIALIZE, raw, LATEST_HANDSHAKE_VERSION)
            result = InitializeResult.model_validate(raw, by_name=False)
        except ValidationError:
            raise unreadable_fault("the result of initialize is malformed", None) from None
        if result.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            found = result.protocol_version[:80]
            text = f"the server chose an unsupported protocol version: {found!r}"
            raise unreadable_fault(text, None)
        self._adopt_handshake(result)
        await self.notify("notifications/initialized")

    def _adopt_handshake(self, result: InitializeResult) -> None:
        version = result.protocol_version
        headers = {VERSION_HEADER: version}
        self._stamp = lambda method, params: (params, headers)
        self.protocol = NegotiatedProtocol(Era.LEGACY, version, result)

    def _adopt_discovery(self, result: DiscoverResult) -> None:
        common = [one for one in MODERN_PROTOCOL_VERSIONS if one in result.supported_versions]
        if not common:
            offered = ", ".join(result.supported_versions)[:200] or "none"
            text = f"the server supports no modern protocol version of ours (it offers {offered})"
            raise unreadable_fault(text, None)
        self._stamp = self._modern_stamp(common[-1])
        self.protocol = NegotiatedProtocol(Era.MODERN, common[-1], result)

    def _modern_stamp(self, version: str) -> Callable[[str, dict[str, Any] | None], _Stamped]:
        """The stamp of a modern version: parameters with `_meta`, and headers."""
        own_meta = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: self._client_info,
            CLIENT_CAPABILITIES_META_KEY: self._capabilities,
        }

        def stamp(method: str, params: dict[str, Any] | None) -> _Stamped:
            headers = {VERSION_HEADER: version, METHOD_HEADER: method}
            if params is None:
                return {"_meta": own_meta}, headers
            name = params.get(NAME_PARAMS.get(method, ""))
            if isinstance(name, str):
                headers[NAME_HEADER] = encode_header_value(name)
            given = params.get("_meta")
            if not given:
                return {**params, "_meta": own_meta}, headers
            # A copy: a retry may be for another era.
            meta = {**given, **own_meta}
            # A gateway asks in the name of its client, which can answer less.
            meta[CLIENT_CAPABILITIES_META_KEY] = given.get(
                CLIENT_CAPABILITIES_META_KEY, self._capabilities
            )
            return {**params, "_meta": meta}, headers

        return stamp

    # -- from the server ------------------------------------------------------------------------

    async def on_request(
        self, method: str, params: Mapping[str, Any] | None, attempt: Attempt
    ) -> Mapping[str, Any]:
        """Answer a request of a legacy server; a modern one sends none."""
        try:
            request = parse_server_request(method, self._version, params)
        except KeyError:
            raise ErrorReply(METHOD_NOT_FOUND, "the client does not know this method") from None
        except ValidationError as error:
            problem = f"the parameters are malformed: {_first_problem(error)}"
            raise ErrorReply(INVALID_PARAMS, problem) from None
        if method == "ping":
            return {}
        if method not in self._handlers.methods:
            raise ErrorReply(METHOD_NOT_FOUND, f"the client does not support {method}")
        given: dict[str, Any] = {}
        if request.params is not None:
            given = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        answer = await self._handlers.answer_during(attempt, method, given)
        if isinstance(answer, ErrorData):
            raise ErrorReply(answer.code, answer.message, answer.data)
        result = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            validate_client_result(method, self._version, result)
        except ValidationError as error:
            logger.error("the answer to %s is malformed: %s", method, _first_problem(error))
            raise ErrorReply(INTERNAL_ERROR, "the client's answer is malformed") from None
        return result

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass a valid notification on. One of an extension is passed on unchecked."""
        found = params or {}
        if method == "notifications/cancelled":
            self._end_subscription(found)
            return
        try:
            parse_server_notification(method, self._version, params)
        except KeyError:
            if method in _KNOWN_NOTIFICATIONS or not method.startswith("notifications/"):
                logger.debug("dropped %r: not defined in %s", method[:200], self._version)
                return
        except ValidationError as error:
            logger.warning("dropped a malformed %s: %s", method, _first_problem(error))
            return
        if method == _ACKNOWLEDGED and self._acknowledge(found):
            return
        try:
            self._on_notification(method, found)
        except Exception:
            logger.exception("handling the notification %r failed", method[:200])

    def _acknowledge(self, params: Mapping[str, Any]) -> bool:
        """Whether the notification acknowledges a subscription of this session."""
        meta = cast("dict[str, Any]", params.get("_meta") or {})
        subscription = self._subscription(meta.get(_SUBSCRIPTION_ID_KEY))
        if subscription is None:
            return False
        covered = SubscriptionFilter.model_validate(params["notifications"], by_name=False)
        subscription.acknowledge(covered)
        return True

    def _end_subscription(self, params: Mapping[str, Any]) -> None:
        subscription = self._subscription(params.get("requestId"))
        if subscription is not None:
            subscription.request.cancel()

    def _subscription(self, request_id: object) -> _Subscription | None:
        """The subscription with this id as received, which may be of any type."""
        return self._subscriptions.get(request_id) if isinstance(request_id, str) else None


class _Subscription:
    """One subscription: its request, which lasts as long, and what the server agreed to report."""

    def __init__(self, request: asyncio.Future[None]) -> None:
        self.request = request
        self._covered: asyncio.Future[SubscriptionFilter] = (
            asyncio.get_running_loop().create_future()
        )

    def acknowledge(self, covered: SubscriptionFilter) -> None:
        if not self._covered.done():
            self._covered.set_result(covered)

    def covered_uris(self) -> Sequence[str]:
        return self._covered.result().resource_subscriptions or ()

    async def wait_acknowledged(self, within: float) -> None:
        """Raises `TimeoutError`, or the fault of the request if it ended before."""
        either = (self.request, self._covered)
        await asyncio.wait(either, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if self._covered.done():
            return
        if not self.request.done():
            raise TimeoutError
        if not self.request.cancelled():
            self.request.result()
        raise InvalidResponse("the subscription ended before it was acknowledged", {})

    async def wait_ended(self) -> None:
        await asyncio.wait((self.request,))

    async def cancel(self) -> None:
        """End the request, and retrieve its exception."""
        self.request.cancel()
        self._covered.cancel()
        await asyncio.wait((self.request,))
        if not self.request.cancelled() and (fault := self.request.exception()) is not None:
            logger.debug("a subscription ended: %s", fault)
            if not isinstance(fault, RequestFault):
                raise fault


_Stamped = tuple[dict[str, Any] | None, Mapping[str, str]]
"""The parameters and headers of a request."""


def _unstamped(method: str, params: dict[str, Any] | None) -> _Stamped:
    return params, NO_HEADERS


# -- checks of results --------------------------------------------------------------------------


def _check_result(method: str, result: dict[str, Any], version: str) -> None:
    """Raises `ValidationError`. Results of methods that the version does not define pass."""
    _normalize(result, version)
    if (method, version) in SERVER_RESULTS:
        validate_server_result(method, version, result)


def _normalize(result: dict[str, Any], version: str) -> None:
    """Change what must not fail the request: fields of 2026-07-28 mean nothing in a legacy result,
    and a negative `ttlMs` means 0."""
    if version not in MODERN_PROTOCOL_VERSIONS:
        for field in _LATER_FIELDS:
            result.pop(field, None)
        return
    ttl = result.get("ttlMs")
    if isinstance(ttl, int | float) and ttl < 0:
        result["ttlMs"] = 0


async def _check_call_result(result: dict[str, Any], version: str) -> None:
    """Check a `tools/call` result, a long one in slices. Raises `ValidationError`."""
    content = result.get("content")
    if type(content) is not list or len(cast("list[Any]", content)) <= BLOCKS_PER_SLICE:
        check_call_slice(result, version)
        return
    for part in content_slices(result):
        check_call_slice(part, version)
        await asyncio.sleep(0)


def content_slices(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A result with many content blocks, in slices that take about 5 ms to check."""
    content = cast("list[Any]", result["content"])
    rest = {"resultType": result["resultType"]} if "resultType" in result else {}
    yield {**result, "content": content[:BLOCKS_PER_SLICE]}
    for start in range(BLOCKS_PER_SLICE, len(content), BLOCKS_PER_SLICE):
        yield {**rest, "content": content[start : start + BLOCKS_PER_SLICE]}


def check_call_slice(result: dict[str, Any], version: str) -> None:
    if _is_plain_text(result):
        return
    if version in MODERN_PROTOCOL_VERSIONS and result.get("resultType") == "complete":
        # The model for the version is a union whose other member accepts anything (2.3.0).
        CallToolResult.model_validate(result, by_name=False)
    elif (model := _call_result_model(version)) is not None:
        model.validate_python(result, by_name=False)


def _is_plain_text(result: dict[str, Any]) -> bool:
    """Whether it is plain text with nothing else to check, as most results are. This takes a tenth
    of the time of a model."""
    content = result.get("content")
    return (
        type(content) is list
        and result.keys() <= _PLAIN_KEYS
        and result.get("resultType", "complete") == "complete"
        and type(result.get("isError", False)) is bool
        and len(cast("list[Any]", content)) <= BLOCKS_PER_SLICE
        and all(
            type(block) is dict
            and len(block) == 2
            and block.get("type") == "text"
            and type(block.get("text")) is str
            for block in cast("list[Any]", content)
        )
    )


@cache
def _call_result_model(version: str) -> TypeAdapter[Any] | None:
    surface: Any = SERVER_RESULTS.get((TOOLS_CALL, version))
    return None if surface is None else TypeAdapter(surface)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where[:_MAX_PROBLEM]}: {first['msg'][:_MAX_PROBLEM]}"


# -- versions -----------------------------------------------------------------------------------


def is_supported_handshake(handshake: Mapping[str, Any]) -> bool:
    """Whether this version of toolkeep can resume a session with this stored handshake."""
    try:
        found = InitializeResult.model_validate(handshake, by_name=False)
    except ValidationError:
        return False
    return found.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def _assumed_discovery(version: str) -> DiscoverResult:
    """Stands in for the discovery of a pinned server: it may have everything, and what it does not
    have it refuses."""
    capabilities = ServerCapabilities(
        tools=ToolsCapability(),
        prompts=PromptsCapability(),
        resources=ResourcesCapability(),
        completions=CompletionsCapability(),
    )
    return DiscoverResult(supported_versions=[version], capabilities=capabilities)


def _era_verdict(fault: WireFault) -> ProbeVerdict:
    failure = classify(fault.evidence)
    return probe_verdict(
        failure, modern=MODERN_PROTOCOL_VERSIONS, legacy=HANDSHAKE_PROTOCOL_VERSIONS
    )


def _common_version(fault: WireFault) -> str:
    supported = supported_versions(classify(fault.evidence).data)
    return [version for version in MODERN_PROTOCOL_VERSIONS if version in supported][-1]
