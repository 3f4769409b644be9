"""A gateway on standard streams: one client, both eras, and nothing but the protocol."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp import StdioServerParameters, types
from mcp.client.stdio import stdio_client

from tests.engine.helpers_rounds import ELICIT
from tests.wire.helpers_stdio import TOOLS
from toolkeep import Runtime
from toolkeep.gateway import CLIENT_ANSWERS, Gateway, stdio
from toolkeep.gateway.stdio import serve_stdio
from toolkeep.testing import ScriptedServer

pytestmark = [pytest.mark.requirement("W6"), pytest.mark.timeout(60)]
BOUND = 20.0
CAPABILITIES = {"elicitation": {"form": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Pipe:
    """A client that writes what it likes."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self.target = source, target
        self._buffer = b""
        self._waiting: list[dict[str, Any]] = []

    def write(self, text: bytes) -> None:
        os.write(self.target, text)

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            chunk = await asyncio.to_thread(os.read, self._source, 1 << 16)
            assert chunk, "the gateway has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """The next message with these members. Others are skipped."""
        while True:
            message = await self.receive()
            if wanted.items() <= message.items():
                return message

    async def ask(self, id: Any, method: str, **params: Any) -> dict[str, Any]:
        self.send(id=id, method=method, params=params)
        return await self.until(id=id)

    async def initialize(self) -> None:
        client = {"name": "test", "version": "1"}
        asked = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES}
        assert (await self.ask(0, "initialize", **asked, clientInfo=client))["result"]
        self.send(method="notifications/initialized")


@asynccontextmanager
async def served(
    server: ScriptedServer, **settings: Any
) -> AsyncIterator[tuple[Pipe, "asyncio.Task[None]"]]:
    """A gateway in this process, on pipes of its own. The end of the block ends its input."""
    from toolkeep.config.gateway import GatewaySettings

    runtime = Runtime({"kit": server.spec}, **CLIENT_ANSWERS)
    gateway = Gateway(runtime, settings=GatewaySettings(**settings))
    (source, to_gateway), (from_gateway, target) = os.pipe(), os.pipe()
    serving = asyncio.create_task(serve_stdio(gateway, (source, target)))
    pipe = Pipe(from_gateway, to_gateway)
    try:
        async with asyncio.timeout(BOUND):
            yield pipe, serving
            if pipe.target >= 0:
                os.close(pipe.target)
            await serving
    finally:
        serving.cancel()
        await asyncio.wait((serving,))
        os.close(from_gateway)


@pytest.fixture
async def kit() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer.local(encoding="sse") as server:
        yield server


# -- a real client, and the command --------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_sdks_client_uses_the_command_as_a_server(
    mode: Any, kit: ScriptedServer, tmp_path: Path
):
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"kit": kit.spec}}))
    words = ["-m", "toolkeep", "serve", "--stdio", "-c", str(config)]
    seen: list[float] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    command = StdioServerParameters(command=sys.executable, args=words)
    async with asyncio.timeout(BOUND):
        async with mcp.Client(
            stdio_client(command), mode=mode, elicitation_callback=answer
        ) as client:
            assert "kit__echo" in {tool.name for tool in (await client.list_tools()).tools}
            given = {"count": 3, "gap": 0}
            await client.call_tool("kit__steps", given, progress_callback=on_progress)
            asked = await client.call_tool("kit__ask", {"requests": {"who": ELICIT}})
            answers = (asked.structured_content or {})["answers"][0]
            assert answers["who"]["content"] == {"name": "Ada"}
    assert seen == [1, 2, 3]


async def test_only_the_protocol_reaches_standard_output(tmp_path: Path):
    noise = "import sys; print('noise', flush=True); print('noise', file=sys.stderr, flush=True)"
    entry = {"command": sys.executable, "args": ["-I", "-S", "-c", f"{noise}\n{TOOLS}"]}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"noisy": entry}}))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolkeep", "serve", "--stdio", "-c", str(config)),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    params = {"name": "noisy__pid", "arguments": {}, "_meta": META}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    try:
        async with asyncio.timeout(BOUND):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(call).encode() + b"\n")
            answer = json.loads(await process.stdout.readline())
            process.stdin.close()
            rest, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert answer["result"]["content"][0]["text"].isdecimal()
    assert rest == b""
    assert b"noise" in said
    assert process.returncode == 0


# -- on one pipe --------------------------------------------------------------------------------


async def test_both_eras_are_served_on_one_pipe(kit: ScriptedServer):
    async with served(kit) as (pipe, _):
        modern = await pipe.ask(
            "m", "tools/call", name="kit__echo", arguments={"text": "a"}, _meta=META
        )
        assert modern["result"]["resultType"] == "complete"
        await pipe.initialize()
        legacy = await pipe.ask(2, "tools/call", name="kit__echo", arguments={"text": "b"})
        assert "resultType" not in legacy["result"]
        found = await pipe.ask("d", "server/discover", _meta=META)
        assert "2026-07-28" in found["result"]["supportedVersions"]


async def test_calls_run_side_by_side_and_are_answered_as_they_end(kit: ScriptedServer):
    async with served(kit) as (pipe, _):
        await pipe.initialize()
        pipe.send(
            id=1, method="tools/call", params={"name": "kit__slow", "arguments": {"seconds": 0.3}}
        )
        pipe.send(id=2, method="ping")
        assert [(await pipe.receive())["id"] for _ in range(2)] == [2, 1]


async def test_a_cancelled_call_is_cancelled_at_its_server(kit: ScriptedServer):
    async with served(kit) as (pipe, _):
        await pipe.initialize()
        pipe.send(
            id=1, method="tools/call", params={"name": "kit__slow", "arguments": {"seconds": 30}}
        )
        while not await kit.executions("slow"):
            await asyncio.sleep(0.01)
        pipe.send(method="notifications/cancelled", params={"requestId": 1})
        assert len(await kit.cancelled(at_least=1)) == 1
        assert (await pipe.ask(2, "ping"))["result"] == {}


async def test_a_question_is_asked_on_the_pipe_and_its_refusal_is_passed_on(kit: ScriptedServer):
    async with served(kit) as (pipe, _):
        await pipe.initialize()
        params = {"name": "kit__ask", "arguments": {"requests": {"who": ELICIT}}}
        pipe.send(id=1, method="tools/call", params=params)
        question = await pipe.until(method="elicitation/create")
        pipe.send(id=question["id"], result={"action": "decline"})
        answers = (await pipe.until(id=1))["result"]["structuredContent"]["answers"][0]
        assert answers["who"]["action"] == "decline"


async def test_a_client_is_told_that_lists_have_changed():
    async with ScriptedServer.local(era="legacy") as server, served(server) as (pipe, _):
        await pipe.initialize()
        assert (await pipe.ask(1, "tools/list"))["result"]
        await server.set_tools([{"name": "new", "inputSchema": {"type": "object"}}])
        await server.notify("notifications/tools/list_changed")
        await pipe.until(method="notifications/tools/list_changed")
        shown = (await pipe.ask(2, "tools/list"))["result"]["tools"]
        assert "kit__new" in {tool["name"] for tool in shown}


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (b"not json\n", None, -32700),
        (b"[" * 5000 + b"\n", None, -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n', None, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', None, -32600),
        (b'{"jsonrpc":"2.0","id":5}\n', 5, -32600),
        (b'{"jsonrpc":"2.0","id":6,"method":"no/such"}\n', 6, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}\n', 7, -32600),
        (b'{"jsonrpc":"2.0","id":8,"method":"server/discover"}\n', 8, -32602),
        (b'{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}}\n', 9, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 3000 + b'"}\n', None, -32600),
    ],
)
async def test_what_is_no_request_is_refused_and_the_next_one_served(
    kit: ScriptedServer, line: bytes, id: Any, code: int
):
    async with served(kit, limits={"body_bytes": 2048 if len(line) < 4000 else 10_000}) as (
        pipe,
        _,
    ):
        pipe.write(line)
        refused = await pipe.receive()
        assert (refused["id"], refused["error"]["code"]) == (id, code)
        assert (await pipe.ask(100, "ping"))["result"] == {}


async def test_more_requests_than_allowed_are_refused(kit: ScriptedServer):
    async with served(kit, limits={"requests": 2}) as (pipe, _):
        await pipe.initialize()
        for number in (1, 2, 3):
            given = {"name": "kit__slow", "arguments": {"seconds": 0.2}}
            pipe.send(id=number, method="tools/call", params=given)
        refused = await pipe.receive()
        assert (refused["id"], refused["error"]["code"]) == (3, -32013)
        assert {(await pipe.receive())["id"] for _ in range(2)} == {1, 2}


async def test_the_end_of_the_input_ends_running_calls(
    kit: ScriptedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stdio, "END_GRACE", 0.1)
    async with served(kit) as (pipe, serving):
        await pipe.initialize()
        pipe.send(
            id=1, method="tools/call", params={"name": "kit__slow", "arguments": {"seconds": 30}}
        )
        while not await kit.executions("slow"):
            await asyncio.sleep(0.01)
        os.close(pipe.target)
        pipe.target = -1
        await serving
        assert len(await kit.cancelled(at_least=1)) == 1


async def test_requests_before_the_end_of_the_input_are_answered(kit: ScriptedServer):
    async with served(kit) as (pipe, serving):
        pipe.send(
            id=1,
            method="tools/call",
            params={"name": "kit__add", "arguments": {"a": 1, "b": 2}, "_meta": META},
        )
        os.close(pipe.target)
        pipe.target = -1
        assert (await pipe.until(id=1))["result"]["structuredContent"] == {"sum": 3}
        await serving


async def test_a_handshake_does_not_wait_for_a_server_that_is_slow_to_open(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stdio, "OPEN_WITHIN", 0.2)
    async with (
        ScriptedServer.local(era="legacy", initialize_delay=6.0) as slow,
        served(slow) as (pipe, _),
    ):
        async with asyncio.timeout(5.5):
            await pipe.initialize()
