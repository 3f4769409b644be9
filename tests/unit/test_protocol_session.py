"""The protocol session by itself, on a transport with ready answers."""

import asyncio
import copy
import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import pytest
from pydantic import ValidationError

from toolkeep._client.notifications import to_event
from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.session import ProtocolSession, is_supported_handshake
from toolkeep._rules.classify import Era, Evidence, FaultKind
from toolkeep._tasks import BackgroundTasks
from toolkeep._transport.base import (
    NO_HEADERS,
    Attempt,
    ErrorReply,
    InvalidResponse,
    WireFault,
)
from toolkeep.config import ServerSpec
from toolkeep.events import ServerNotification

PATIENCE = 10.0
MODERN = "2026-07-28"
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"extensions": {"x.example/a": {"on": True}}},
    "serverInfo": {"name": "kit", "version": "1"},
}
DISCOVERED = {**INITIALIZED, "supportedVersions": [MODERN], "resultType": "complete"}
META = "io.modelcontextprotocol/"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class CannedTransport:
    """A transport that answers at once what it was given, or waits for `answered`."""

    session_id, stray_output = None, ""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "initialize": INITIALIZED,
            "server/discover": DISCOVERED,
            **answers,
        }
        self.sent: list[tuple[str, Any, Mapping[str, str], bool]] = []
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.background_tasks = BackgroundTasks()

    async def open(self, handler: Any) -> None: ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        attempt: Attempt,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        request_id: Any = None,
        cancellable: bool = True,
    ) -> dict[str, Any]:
        self.sent.append((method, params, headers, cancellable))
        if request_id is not None:
            self.listening.set_result(request_id)
            return await self.answered
        found = copy.deepcopy(self.answers[method])
        if isinstance(found, Exception):
            raise found
        attempt.raw_result = found
        return found

    async def notify(
        self, method: str, params: Any = None, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.sent.append((method, params, headers, True))

    def resume(self, session_id: str, version: str) -> None: ...

    async def listen(self, on_open: Any) -> None: ...

    def stop_replying(self) -> None: ...

    async def terminate(self) -> None: ...

    async def close(self) -> None: ...


class Talk:
    """A session, its transport, and the notifications that it passed on."""

    def __init__(self, extensions: Any = None, **answers: Any) -> None:
        self.wire = CannedTransport(**answers)
        self.heard: list[tuple[str, Any]] = []
        self.session = ProtocolSession(
            self.wire,
            client_info=types.Implementation(name="tests", version="1"),
            handlers=ServerRequestHandlers("kit", PATIENCE, roots=[]),
            extensions=extensions or {},
            on_notification=lambda method, params: self.heard.append((method, params)),
        )

    async def negotiate(self, mode: str) -> "Talk":
        await self.session.negotiate(mode=mode, known_era=None, probe_within=PATIENCE)
        return self

    async def ack(self, covered: Any, subscription_id: Any) -> None:
        params = {"notifications": covered, "_meta": {META + "subscriptionId": subscription_id}}
        await self.session.on_notification(ACKNOWLEDGED, params)


def broken() -> WireFault:
    return WireFault(Evidence(kind=FaultKind.BROKEN, sent=True, detail="closed"))


# -- extensions ---------------------------------------------------------------------------------

EXTENSIONS = {"x.example/a": {"deep": [1]}, "io.modelcontextprotocol/ui": {}}


async def test_extensions_are_offered_in_the_handshake_and_received() -> None:
    talk = await Talk(EXTENSIONS).negotiate("legacy")
    _, params, _, cancellable = talk.wire.sent[0]
    assert params["capabilities"]["extensions"] == EXTENSIONS
    assert not cancellable
    assert talk.session.protocol is not None
    assert talk.session.protocol.result.capabilities.extensions == {"x.example/a": {"on": True}}


async def test_extensions_are_offered_with_each_modern_request_and_received() -> None:
    talk = await Talk(EXTENSIONS, ping={"resultType": "complete"}).negotiate("modern")
    await talk.session.request("ping", None, Attempt())
    for _, params, _, _ in talk.wire.sent:
        assert params["_meta"][META + "clientCapabilities"]["extensions"] == EXTENSIONS
    assert talk.session.protocol is not None
    assert talk.session.protocol.result.capabilities.extensions == {"x.example/a": {"on": True}}


async def test_without_extensions_the_capability_is_absent() -> None:
    talk = await Talk().negotiate("legacy")
    assert talk.wire.sent[0][1]["capabilities"] == {"roots": {"listChanged": True}}


@pytest.mark.parametrize("name", ["", "x", "/x", "x/", "x/y/z", "x y/z", "-x/y", "x.y/\n"])
def test_an_extension_needs_a_valid_identifier(name: str) -> None:
    with pytest.raises(ValueError, match="identifier"):
        ServerSpec(name="kit", url="http://127.0.0.1/mcp", extensions={name: {}})


# -- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_a_request_never_changes_what_its_caller_gave(mode: str) -> None:
    called = {"content": [], "resultType": "complete"}
    talk = await Talk(**{"tools/call": called}).negotiate(mode)
    given = {"name": "a", "arguments": {"b": [1]}, "_meta": {"x": {"y": 1}}}
    before = copy.deepcopy(given)
    for _ in range(2):
        await talk.session.request("tools/call", given, Attempt())
        assert given == before
    first, second = talk.wire.sent[-2:]
    assert first == second


async def test_own_meta_wins_over_what_the_caller_claims() -> None:
    called = {"content": [], "resultType": "complete"}
    talk = await Talk(**{"tools/call": called}).negotiate("modern")
    meta = {META + "protocolVersion": "1", META + "clientInfo": 7, "x": 1}
    await talk.session.request("tools/call", {"name": "a", "_meta": meta}, Attempt())
    sent = talk.wire.sent[-1][1]["_meta"]
    assert sent[META + "protocolVersion"] == MODERN
    assert sent[META + "clientInfo"] == {"name": "tests", "version": "1"}
    assert sent["x"] == 1


async def test_a_malformed_result_is_returned_only_to_a_lenient_caller() -> None:
    talk = await Talk(**{"tools/list": {"tools": 7}}).negotiate("legacy")
    with pytest.raises(InvalidResponse) as caught:
        await talk.session.request("tools/list", None, Attempt())
    assert caught.value.raw == {"tools": 7}
    found = await talk.session.request("tools/list", None, Attempt(), lenient=True)
    assert found == {"tools": 7}


async def test_a_problem_is_shown_in_bounds() -> None:
    hostile = {"capabilities": {}, "prompts": [], "_meta": 7, "x" * 10_000: 1}
    talk = await Talk(**{"prompts/list": hostile}).negotiate("legacy")
    with pytest.raises(InvalidResponse) as caught:
        await talk.session.request("prompts/list", None, Attempt())
    assert len(str(caught.value)) < 1000


async def test_resuming_sends_nothing() -> None:
    talk = Talk()
    talk.session.resume(INITIALIZED)
    assert talk.wire.sent == []
    assert talk.session.protocol is not None
    assert (talk.session.protocol.era, talk.session.protocol.version) == (Era.LEGACY, "2025-11-25")
    await talk.session.notify("notifications/roots/list_changed")
    assert talk.wire.sent[0][2] == {"mcp-protocol-version": "2025-11-25"}


@pytest.mark.parametrize(
    "stored",
    [
        *({}, {**INITIALIZED, "protocolVersion": MODERN}, {**INITIALIZED, "protocolVersion": 7}),
        {"protocol_version": "2025-11-25", "capabilities": {}, "server_info": {}},
    ],
)
def test_a_handshake_of_another_program_is_not_resumed(stored: dict[str, Any]) -> None:
    assert is_supported_handshake(INITIALIZED)
    assert not is_supported_handshake(stored)


async def test_a_modern_server_gets_no_notification() -> None:
    talk = await Talk().negotiate("modern")
    await talk.session.notify("notifications/roots/list_changed")
    assert [method for method, *_ in talk.wire.sent] == ["server/discover"]


# -- from the server ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_a_notification_of_an_extension_becomes_an_event(mode: str) -> None:
    talk = await Talk().negotiate(mode)
    odd = {"_meta": 7, "x": {"y": [None]}}
    await talk.session.on_notification("notifications/x.example/changed", odd)
    ((method, params),) = talk.heard
    event = to_event("kit", method, params)
    assert isinstance(event, ServerNotification)
    assert (event.server, event.method, event.params) == ("kit", method, odd)


@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/roots/list_changed", "tools/call", ""]
)
async def test_what_only_clients_send_is_dropped(method: str) -> None:
    talk = await Talk().negotiate("legacy")
    await talk.session.on_notification(method, {})
    assert talk.heard == []


async def test_a_notification_before_negotiation_is_passed_on() -> None:
    talk = Talk()
    await talk.session.on_notification("notifications/tools/list_changed", None)
    await talk.session.on_notification(ACKNOWLEDGED, {"notifications": {}})
    assert talk.heard == [("notifications/tools/list_changed", {})]


async def test_a_failing_observer_costs_only_its_notification(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talk = Talk()

    def fail(method: str, params: Mapping[str, Any]) -> None:
        raise LookupError

    talk.session._on_notification = fail
    with caplog.at_level(logging.ERROR):
        await talk.session.on_notification("notifications/" + "x" * 10_000 + "\n", None)
    (record,) = caplog.records
    assert len(record.getMessage()) < 300
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("sampling/createMessage", {"messages": [], "maxTokens": 1}, -32601),
        ("x.example/ask", None, -32601),
        ("", None, -32601),
        ("roots/list", {"_meta": 7}, -32602),
        ("roots/list", {"_meta": {"progressToken": {}}}, -32602),
        ("ping", {"_meta": []}, -32602),
        ("elicitation/create", {}, -32602),
    ],
)
async def test_a_request_that_cannot_be_answered_gets_the_protocols_code(
    method: str, params: Any, code: int
) -> None:
    talk = await Talk().negotiate("legacy")
    with pytest.raises(ErrorReply) as caught:
        await talk.session.on_request(method, params, Attempt())
    assert caught.value.code == code


async def test_a_modern_server_may_send_no_request() -> None:
    talk = await Talk().negotiate("modern")
    with pytest.raises(ErrorReply) as caught:
        await talk.session.on_request("ping", None, Attempt())
    assert caught.value.code == -32601


# -- subscriptions ------------------------------------------------------------------------------


async def test_a_subscription_that_is_not_acknowledged_ends_in_time() -> None:
    talk = await Talk().negotiate("modern")
    with pytest.raises(TimeoutError):
        await talk.session.listen([], lambda covered: None, within=0.01)
    assert talk.wire.answered.cancelled()


@pytest.mark.parametrize(
    "hostile", [pytest.param(10**5000, id="huge"), ["x"], {"x": 1}, None, True, 1.5, "other"]
)
async def test_ids_of_any_type_are_no_ids_of_ours(hostile: Any) -> None:
    talk = await Talk().negotiate("modern")
    opened: list[Any] = []
    task = asyncio.ensure_future(talk.session.listen(["kit://a"], opened.append, within=PATIENCE))
    own_id = await talk.wire.listening
    await talk.session.on_notification("notifications/cancelled", {"requestId": hostile})
    await talk.ack({"resourceSubscriptions": ["kit://b"]}, hostile)
    assert (opened, task.done()) == ([], False)
    await talk.ack({"resourceSubscriptions": ["kit://a"]}, own_id)
    await talk.ack({}, own_id)
    talk.wire.answered.set_result({"resultType": "complete"})
    async with asyncio.timeout(PATIENCE):
        await task
    assert opened == [["kit://a"]]


async def test_an_acknowledgement_without_a_request_is_an_event_and_no_error() -> None:
    talk = await Talk().negotiate("modern")
    await talk.ack({}, "listen-0")
    assert [method for method, _ in talk.heard] == [ACKNOWLEDGED]


async def test_a_connection_that_closes_before_the_acknowledgement_is_a_fault() -> None:
    talk = await Talk().negotiate("modern")
    fault = broken()
    task = asyncio.ensure_future(talk.session.listen([], lambda covered: None, within=PATIENCE))
    await talk.wire.listening
    talk.wire.answered.set_exception(fault)
    with pytest.raises(WireFault) as caught:
        await task
    assert caught.value is fault


async def test_a_connection_that_closes_later_ends_the_subscription() -> None:
    talk = await Talk().negotiate("modern")
    opened: list[Any] = []
    task = asyncio.ensure_future(talk.session.listen([], opened.append, within=PATIENCE))
    await talk.ack({}, await talk.wire.listening)
    talk.wire.answered.set_exception(broken())
    async with asyncio.timeout(PATIENCE):
        await task
    assert opened == [()]


async def test_a_cancelled_listener_cancels_its_request() -> None:
    talk = await Talk().negotiate("modern")
    task = asyncio.ensure_future(talk.session.listen([], lambda covered: None, within=PATIENCE))
    await talk.wire.listening
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert talk.wire.answered.cancelled()


# -- results of two eras ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_odd_cache_hints_do_not_fail_a_result(mode: str) -> None:
    read = {"contents": [], "ttlMs": -5, "cacheScope": "public", "resultType": "complete"}
    odd = {"contents": [], "ttlMs": "soon", "cacheScope": 7, "resultType": 3}
    given = odd if mode == "legacy" else read
    talk = await Talk(**{"resources/read": given}).negotiate(mode)
    found = await talk.session.request("resources/read", {"uri": "kit://a"}, Attempt())
    assert types.ReadResourceResult.model_validate(found).ttl_ms == 0
    with pytest.raises(ValidationError):
        types.ReadResourceResult.model_validate(given)
