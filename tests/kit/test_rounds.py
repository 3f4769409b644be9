"""Servers that ask back: by requests in the legacy era, in rounds in the modern one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)

from tests.kit.pipe import pipe_to
from tests.kit.wire import wire_to
from toolkeep.testing import ScriptedServer

FORM = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}}
PROMPT = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 9}
REQUESTS = {
    "name": {"method": "elicitation/create", "params": {"mode": "form", **FORM}},
    "guess": {"method": "sampling/createMessage", "params": PROMPT},
    "roots": {"method": "roots/list"},
}


async def elicit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def sample(context: Any, params: Any) -> CreateMessageResult | ErrorData:
    text = TextContent(type="text", text="42")
    return CreateMessageResult(role="assistant", content=text, model="none")


async def roots(context: Any) -> ListRootsResult:
    return ListRootsResult.model_validate({"roots": [Root.model_validate({"uri": "file:///a"})]})


@asynccontextmanager
async def talking(
    transport: str, era: Any, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    callbacks: Any = {"sampling_callback": sample, "list_roots_callback": roots}
    mode: Any = {"mode": "auto" if era == "modern" else "legacy"}
    match transport:
        case "stdio":
            server = ScriptedServer.stdio(era=era)
        case "sse":
            server = ScriptedServer.local(era=era, transport="sse")
        case "spawn":
            server = ScriptedServer.spawn(era=era)
        case _:
            server = ScriptedServer.local(era=era)
    async with server:
        if transport == "stdio":
            where: Any = stdio_client(StdioServerParameters(**server.spec))
        else:
            where = sse_client(server.url) if transport == "sse" else server.url
        callbacks = {"elicitation_callback": elicit, **callbacks, **options}
        async with Client(where, **mode, **callbacks) as client:
            yield server, client


transports = pytest.mark.parametrize("transport", ["http", "spawn", "sse", "stdio"])
eras = pytest.mark.parametrize("era", ["legacy", "modern"])


@transports
@eras
async def test_the_sdk_client_answers_every_round(transport: str, era: str):
    async with talking(transport, era) as (server, client):
        arguments = {"requests": REQUESTS, "rounds": 2, "key": "k"}
        result = await client.call_tool("ask", arguments)
        assert result.structured_content is not None
        first, second = result.structured_content["answers"]
        assert first == second
        assert first["name"] == {"action": "accept", "content": {"name": "Ada"}}
        assert first["guess"]["content"]["text"] == "42"
        assert first["roots"]["roots"][0]["uri"] == "file:///a"
        assert await server.ledger() == {"k": 1, "k:legs": 3 if era == "modern" else 1}


@transports
async def test_a_refusal_is_an_answer_too(transport: str):
    async with talking(transport, "legacy", elicitation_callback=None) as (server, client):
        asked = {"name": REQUESTS["name"]}
        result = await client.call_tool("ask", {"requests": asked})
        assert result.structured_content is not None
        assert result.structured_content["answers"][0]["name"]["error"]["code"] < 0
        assert await server.executions("ask") == 1


@eras
async def test_a_leg_may_carry_a_state_alone(era: str):
    async with talking("http", era) as (server, client):
        result = await client.call_tool("ask", {"requests": {}, "state_only": True})
        assert result.structured_content == {"answers": []}
        assert (await server.ledger())["ask:legs"] == (2 if era == "modern" else 1)


@transports
async def test_a_client_can_be_asked_outside_of_any_call(transport: str):
    async with talking(transport, "legacy") as (server, _):
        answer = await server.ask_client("roots/list")
        assert answer["roots"][0]["uri"] == "file:///a"
        assert (await server.ask_client("no/such"))["error"]["code"] == -32601


async def test_the_state_is_awkward_changes_and_must_come_back_byte_for_byte():
    async with ScriptedServer.stdio(era="modern") as server, pipe_to(server) as pipe:
        call = {"name": "ask", "arguments": {"requests": {"r": {"method": "roots/list"}}}}
        first = (await pipe.modern("tools/call", call))["result"]
        again = (await pipe.modern("tools/call", call))["result"]
        state = first["requestState"]
        assert (first["resultType"], first["inputRequests"]) == (
            "input_required",
            call["arguments"]["requests"],
        )
        assert state != again["requestState"]
        assert len(state.encode()) >= 4096
        assert set("\"\\'é😀\u2028\n") <= set(state)
        answers = {"r": {"roots": []}}
        for broken in (
            {"requestState": state[:-1], "inputResponses": answers},
            {"requestState": state.strip() + " ", "inputResponses": answers},
            {"inputResponses": answers},
            {"requestState": state},
            {"requestState": state, "inputResponses": {"other": {}}},
        ):
            refused = await pipe.modern("tools/call", {**call, **broken})
            assert refused["error"]["code"] == -32602
        assert await server.executions("ask") == 0
        whole = {"requestState": state, "inputResponses": answers}
        done = (await pipe.modern("tools/call", {**call, **whole}))["result"]
        assert done["structuredContent"] == {"answers": [answers]}
        assert await server.executions("ask") == 1


async def test_a_round_can_go_on_after_a_restart():
    async with ScriptedServer.spawn(era="modern") as server:
        call = {"name": "ask", "arguments": {"requests": {"r": {"method": "roots/list"}}}}
        async with wire_to(server.port) as wire:
            first = (await wire.modern("tools/call", call)).json["result"]
        await server.restart()
        rest = {"requestState": first["requestState"], "inputResponses": {"r": {"roots": []}}}
        async with wire_to(server.port) as wire:
            done = (await wire.modern("tools/call", {**call, **rest})).json["result"]
        assert done["structuredContent"] == {"answers": [{"r": {"roots": []}}]}
        assert await server.ledger() == {"ask": 1, "ask:legs": 2}


async def test_a_legacy_call_that_asks_answers_with_a_stream():
    async with ScriptedServer.local(encoding="json") as server, wire_to(server.port) as wire:
        await wire.initialize()
        asked = {"r": {"method": "roots/list"}}
        params = {"name": "ask", "arguments": {"requests": asked}}
        await wire.send(
            "POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        )
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b'"method":"roots/list"' in await wire.reader.readuntil(b"\n\n")
        async with wire_to(server.port) as other:
            other.session = wire.session
            answer = {"jsonrpc": "2.0", "id": "kit-1", "result": {"roots": []}}
            assert (await other.ask("POST", answer)).status == 202
            assert (await other.ask("POST", answer)).status == 202, "late answers are ignored"
        assert b'{"answers":[{"r":{"roots":[]}}]}' in await wire.reader.readuntil(b"\n\n")
