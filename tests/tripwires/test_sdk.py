"""Facts about mcp 2.3 that toolkeep stands on. When one fails, its docstring says where."""

import asyncio
import dataclasses
import inspect
from typing import Any

import mcp_types as types
import pytest
from mcp import Client as SdkClient
from mcp.client.caching import (
    CacheEntry,
    CacheKey,
    InMemoryResponseCacheStore,
    ResponseCacheStore,
)
from mcp.shared.dispatcher import CallOptions, Dispatcher, coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from tests.tripwires.helpers_sdk import (
    CALLED,
    DISCOVERED,
    INITIALIZED,
    LISTED,
    MODERN,
    NUMBERS,
    Canned,
    Raw,
    session_on,
    where,
)
from toolkeep._engine.passing import stamped_call


def call(name: str = "count", **arguments: Any) -> types.CallToolRequest:
    params = types.CallToolRequestParams(name=name, arguments=arguments)
    return types.CallToolRequest(params=params)


async def test_a_request_runs_in_the_callers_task_and_context() -> None:
    """`_engine/connection.py` passes headers and progress in a context variable, and relies on the
    caller's own cancellation and deadline. A request that moved to another task would lose them."""
    wire = Canned(**{"tools/call": CALLED})
    async with session_on(wire, DISCOVERED) as session:
        token = where.set("here")
        await session.send_request(call(), Raw)
        where.reset(token)
    assert wire.tasks == [asyncio.current_task()]
    assert wire.contexts == ["here"]


@pytest.mark.parametrize("error", [MCPError(code=-1, message="ours"), LookupError("any")])
async def test_what_the_dispatcher_raises_reaches_the_caller_untouched(error: Exception) -> None:
    """`WireFault` carries the evidence; `_engine/pursuit.py` catches it by type around the SDK."""
    async with session_on(Canned(**{"tools/call": error}), DISCOVERED) as session:
        with pytest.raises(type(error)) as caught:
            await session.send_request(call(), Raw)
    assert caught.value is error


def test_a_dispatcher_is_run_as_ours_is() -> None:
    """`Dispatcher.run` is marked provisional; `_wire/http.py:HttpDispatcher.run` has its shape."""
    parameters = inspect.signature(Dispatcher.run).parameters
    assert list(parameters) == [
        *("self", "on_request", "on_notify", "on_notify_intercept", "task_status"),
    ]
    keys = {"timeout", "on_progress", "headers", "request_id", "cancel_on_abandon"}
    assert keys <= set(CallOptions.__annotations__)


async def test_initialize_is_sent_once_in_a_session() -> None:
    """Every handshake needs a new `ClientSession`: `_engine/connection.py` makes one for each
    generation. Were it sent again, one session could be used for all."""
    wire = Canned()
    async with session_on(wire) as session:
        assert await session.initialize() is await session.initialize()
    assert wire.methods == ["initialize", "notifications/initialized"]


@pytest.mark.parametrize("known", [INITIALIZED, DISCOVERED])
async def test_adopting_a_known_handshake_sends_nothing(known: dict[str, Any]) -> None:
    """Resuming a session is to cost no request, and `_engine/negotiate.py` discovers by itself."""
    wire = Canned()
    async with session_on(wire, known) as session:
        assert session.protocol_version in ("2025-11-25", MODERN)
    assert wire.methods == []


async def test_a_discovery_without_a_version_of_ours_is_a_runtime_error() -> None:
    """`_engine/negotiate.py` turns exactly this RuntimeError into "does not speak the protocol"."""
    async with session_on(Canned()) as session:
        with pytest.raises(RuntimeError):
            session.adopt(
                types.DiscoverResult.model_validate({**DISCOVERED, "supportedVersions": ["2031"]})
            )


async def test_a_handshake_at_an_unknown_version_is_a_runtime_error() -> None:
    """As above, for `initialize`."""
    wire = Canned(initialize={**INITIALIZED, "protocolVersion": "1999-01-01"})
    async with session_on(wire) as session:
        with pytest.raises(RuntimeError):
            await session.initialize()


@pytest.mark.parametrize(("known", "version"), [(INITIALIZED, "2025-11-25"), (DISCOVERED, MODERN)])
async def test_protocol_headers_travel_in_the_call_options(
    known: dict[str, Any], version: str
) -> None:
    """`_wire/http.py` sends these headers and reads the era of a request off them."""
    wire = Canned(**{"tools/call": CALLED})
    async with session_on(wire, known) as session:
        await session.send_request(call(), Raw)
    headers = {name.lower(): value for name, value in wire.sent[0][2].get("headers", {}).items()}
    assert headers["mcp-protocol-version"] == version
    expected = {"mcp-method": "tools/call", "mcp-name": "count"} if version == MODERN else {}
    assert expected.items() <= headers.items()
    assert "mcp-protocol-version" in wire.sent[0][2].get("headers", {})


@pytest.mark.parametrize("known", [INITIALIZED, DISCOVERED])
async def test_a_call_that_is_stamped_by_hand_is_what_the_session_sends(
    known: dict[str, Any],
) -> None:
    """`_engine/passing.py:stamped_call` uses the session's private `_stamp`: a call is sent beside
    the session, which would check its result twice."""
    wire = Canned(**{"tools/call": CALLED})
    params = {"name": "count", "arguments": {"to": 3}}
    async with session_on(wire, known) as session:
        await session.send_request(call(to=3), Raw)
        stamped, options = stamped_call(session, params)
    assert (stamped, options) == wire.sent[0][1:]
    assert params == {"name": "count", "arguments": {"to": 3}}, "the next attempt sends it again"


async def test_initialize_carries_no_version_header_and_discover_a_modern_one() -> None:
    """`_wire/http.py:_remember_version` learns the legacy version from later requests alone."""
    wire = Canned()
    async with session_on(wire) as session:
        await session.send_discover(MODERN)
        await session.initialize()
    discover, initialize, initialized = (opts.get("headers", {}) for _, _, opts in wire.sent)
    assert discover["mcp-protocol-version"] == MODERN
    assert "mcp-protocol-version" not in initialize
    assert initialized["mcp-protocol-version"] == "2025-11-25"


async def test_a_tool_called_by_the_sdk_lists_by_itself_and_one_sent_as_a_request_does_not() -> (
    None
):
    """Why `_engine/connection.py` uses `send_request`: the hidden list costs a request, can fail a
    call that has finished, and the SDK's validation throws the result away."""
    tool = {"name": "count", "inputSchema": {"type": "object"}, "outputSchema": NUMBERS}
    wire = Canned(**{"tools/call": CALLED, "tools/list": {**LISTED, "tools": [tool]}})
    async with session_on(wire, DISCOVERED) as session:
        assert (await session.send_request(call(), Raw)).root["structuredContent"] == {"n": "x"}
        assert wire.methods == ["tools/call"]
        with pytest.raises(RuntimeError):
            await session.call_tool("count", {})
    assert wire.methods == ["tools/call", "tools/call", "tools/list"]


async def test_an_absent_result_type_is_refused_and_an_unknown_one_accepted() -> None:
    """`_wire/answers.py:result_of` does the opposite, as the specification says. When the SDK does,
    too, that code can go."""
    wire = Canned(**{"tools/call": {"content": []}})
    async with session_on(wire, DISCOVERED) as session:
        with pytest.raises(ValidationError):
            await session.send_request(call(), Raw)
        wire.answers["tools/call"] = {"content": [], "resultType": "novel"}
        assert (await session.send_request(call(), Raw)).root["resultType"] == "novel"


async def test_a_malformed_modern_call_result_is_accepted() -> None:
    """The SDK takes what is no `CallToolResult` for an `InputRequiredResult` of any type, so the
    engine checks a complete result itself. When this fails, that check can go."""
    wire = Canned(**{"tools/call": {"content": "no list", "resultType": "complete"}})
    async with session_on(wire, DISCOVERED) as session:
        assert (await session.send_request(call(), Raw)).root["content"] == "no list"


async def test_a_malformed_legacy_call_result_is_refused() -> None:
    """`_engine/connection.py` turns this ValidationError into `InvalidResult`."""
    async with session_on(Canned(**{"tools/call": {"content": 1}}), INITIALIZED) as session:
        with pytest.raises(ValidationError):
            await session.send_request(call(), Raw)


async def test_one_malformed_tool_fails_the_whole_list() -> None:
    """Why lists are sent leniently and parsed tool by tool (`_engine/toolbook.py`)."""
    tools = [{"name": "good", "inputSchema": {"type": "object"}}, {"name": "bad"}]
    wire = Canned(**{"tools/list": {**LISTED, "tools": tools}})
    async with session_on(wire, DISCOVERED) as session:
        with pytest.raises(ValidationError):
            await session.list_tools()


async def test_a_raw_result_keeps_fields_that_the_sdk_does_not_know() -> None:
    """`CallResult.raw` is the result as it came (P11)."""
    odd = {"content": [{"type": "text", "text": "", "new": 1}], "resultType": "complete", "x": [1]}
    async with session_on(Canned(**{"tools/call": odd}), DISCOVERED) as session:
        assert (await session.send_request(call(), Raw)).root == odd


async def test_parameters_become_headers_only_after_listing_on_the_same_session() -> None:
    """Why `_engine/toolbook.py` computes `Mcp-Param-*` from the catalogue, for every generation."""
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    tools = [{"name": "count", "inputSchema": schema}]
    wire = Canned(**{"tools/call": CALLED, "tools/list": {**LISTED, "tools": tools}})
    for listed in (False, True):
        async with session_on(wire, DISCOVERED) as session:
            if listed:
                await session.list_tools()
            await session.send_request(call(r="eu"), Raw)
        sent = {name.lower() for name in wire.sent[-1][2].get("headers", {})}
        assert ("mcp-param-r" in sent) == listed


def test_the_functions_behind_those_headers_are_there() -> None:
    """`_engine/toolbook.py` imports them from `mcp.shared.inbound`."""
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    assert find_invalid_x_mcp_header(schema) is None
    found = mcp_param_headers(x_mcp_header_map(schema), {"r": "eu"})
    assert {name.lower(): value for name, value in found.items()} == {"mcp-param-r": "eu"}


async def test_rounds_of_input_are_not_the_sessions_business() -> None:
    """The rounds live in `mcp.Client`; `_engine/calling.py` has to drive its own."""
    asks = {"resultType": "input_required", "requestState": "s"}
    async with session_on(Canned(**{"tools/call": asks}), DISCOVERED) as session:
        assert (await session.send_request(call(), Raw)).root == asks
        with pytest.raises(RuntimeError):
            await session.call_tool("count", {})
    assert "input_required_max_rounds" in inspect.signature(SdkClient).parameters


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("callback", "capability"),
    [
        ("sampling_callback", "sampling"),
        ("elicitation_callback", "elicitation"),
        ("list_roots_callback", "roots"),
    ],
)
async def test_a_callback_is_declared_as_a_capability_and_nothing_else_is(
    callback: str, capability: str, modern: bool
) -> None:
    """`_engine/inputs.py:Inputs.callbacks` declares what a client answers by this alone."""

    async def answer(*asked: Any) -> Any:
        raise AssertionError

    wire = Canned(**{"tools/call": CALLED})
    known = DISCOVERED if modern else None
    async with session_on(wire, known, **{callback: answer}) as session:
        await (session.send_request(call(), Raw) if modern else session.initialize())
    params = wire.sent[0][1]
    own = "io.modelcontextprotocol/clientCapabilities"
    declared = params["_meta"][own] if modern else params["capabilities"]
    assert set(declared) == {capability}


def test_a_response_cache_store_has_four_methods_and_keys_of_three_parts() -> None:
    """`_engine/caching.py` speaks to stores of this protocol, and users bring theirs."""
    names = [name for name in vars(ResponseCacheStore) if not name.startswith("_")]
    assert sorted(names) == ["clear", "delete", "get", "set"]
    assert [field.name for field in dataclasses.fields(CacheKey)] == [
        *("method", "params_key", "partition"),
    ]
    assert [field.name for field in dataclasses.fields(CacheEntry)] == [
        *("value", "scope", "expires_at"),
    ]
    assert CacheKey("m", "k", "p") == CacheKey("m", "k", "p")
    assert hash(CacheKey("m", "k", "p")) == hash(CacheKey("m", "k", "p"))


async def test_the_store_in_memory_hands_out_what_it_was_given_and_forgets_the_oldest() -> None:
    """`_engine/caching.py` copies what it keeps and serves, and judges its age, by itself: the
    store does neither. Its bound is what bounds a client's memory."""
    store = InMemoryResponseCacheStore(max_entries=1)
    entry = CacheEntry(value={"n": []}, scope="private", expires_at=0.0)
    await store.set(CacheKey("m"), entry)
    assert await store.get(CacheKey("m")) is entry
    await store.set(CacheKey("other"), entry)
    assert await store.get(CacheKey("m")) is None


def test_ids_as_text_and_as_numbers_are_the_same_id() -> None:
    """`_wire/jsonrpc.py:answers` accepts "1" for 1 by this function."""
    assert coerce_request_id("1") == coerce_request_id(1)


def test_the_versions_of_both_eras() -> None:
    """`_engine/negotiate.py` and `_wire/http.py` tell the eras apart by these."""
    assert MODERN_PROTOCOL_VERSIONS[-1] == MODERN
    assert list(HANDSHAKE_PROTOCOL_VERSIONS) == [
        *("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"),
    ]
