"""The scripted server over stdio: what it answers on its pipes, and what rules make of that."""

from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.kit.pipe import pipe_to
from tests.kit.test_sdk_client import ERAS
from tests.kit.wire import request
from toolkeep.testing import Behaviour, Cancelled, Rule, ScriptedServer
from toolkeep.testing.script import Drop


@pytest.mark.parametrize(("era", "mode"), ERAS)
async def test_the_sdk_client_can_use_it(era: Any, mode: Any):
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with ScriptedServer.stdio(era=era) as server:
        transport = stdio_client(StdioServerParameters(**server.spec))
        async with Client(transport, mode=mode) as client:
            added = await client.call_tool("add", {"a": 1, "b": 2})
            await client.call_tool("steps", {"count": 3}, progress_callback=listen)
            note = await client.read_resource("kit://notes")
            assert len(await server.processes()) == 1
        assert await server.processes() == []
        assert added.structured_content == {"sum": 3}
        assert (sorted(heard), len(note.contents)) == ([1, 2, 3], 1)
        assert await server.ledger() == {"add": 1, "steps": 1}


async def test_what_a_test_reads_outlives_the_processes():
    async with ScriptedServer.stdio() as server:
        await server.script(Rule(tool="echo", skip=1, do=Behaviour(result={"scripted": True})))
        answers: list[Any] = []
        for _ in range(2):
            async with pipe_to(server) as pipe:
                await pipe.initialize()
                answers.append(await pipe.call("echo", text="hi", key="k"))
        assert answers[0]["result"]["content"][0]["text"] == "hi"
        assert answers[1]["result"] == {"scripted": True}
        first, second = await server.requests("tools/call")
        assert (first.socket, second.socket) == (1, 2)
        assert first.session_id != second.session_id
        assert (await server.executions("k"), await server.starts()) == (2, 2)


@pytest.mark.parametrize(
    ("drop", "ran"), [("before_body", 0), ("after_body", 0), ("after_run", 1), ("mid_answer", 1)]
)
async def test_a_drop_ends_the_process_where_it_says(drop: Drop, ran: int):
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await pipe.initialize()
        await server.script(Rule(tool="record", do=Behaviour(drop=drop, exit_code=3)))
        pipe.send(request("tools/call", {"name": "record", "arguments": {}}))
        line = await pipe.line()
        assert line.endswith(b"\n") is False
        assert (line.startswith(b'{"jsonrpc"')) == (drop == "mid_answer")
        assert await pipe.ended() == 3
        assert await server.executions("record") == ran
        assert len(await server.requests("tools/call")) == 1


@pytest.mark.parametrize(
    ("behaviour", "lines"),
    [
        ({"body": "not json"}, [b"not json\n"]),
        ({"prefix_lines": "Starting up…\n\n", "body": "{}"}, ["Starting up…\n".encode(), b"\n"]),
        ({"prefix_lines": "\udcff\n"}, [b"\xff\n"]),
        ({"error": {"code": 1, "message": "m"}, "error_id": "null"}, []),
    ],
)
async def test_lines_are_printed_as_given(behaviour: dict[str, Any], lines: list[bytes]):
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await server.script(Rule(method="ping", do=Behaviour(**behaviour)))
        pipe.send(request("ping"))
        assert [await pipe.line() for _ in lines] == lines
        if "error" in behaviour:
            answer = await pipe.receive()
            assert (answer["id"], answer["error"]) == (None, behaviour["error"])


async def test_a_large_answer_comes_whole_and_in_one_line():
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await server.script(Rule(tool="big", do=Behaviour(body_bytes=3_000_000)))
        pipe.send(request("tools/call", {"name": "big", "arguments": {}}, 1))
        pipe.send(request("ping", {}, 2))
        lines = [await pipe.line() for _ in range(2)]
        assert sorted(map(len, lines))[1] == 3_000_001


async def test_answers_come_in_the_order_in_which_they_are_ready():
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await pipe.initialize()
        await server.script(Rule(method="ping", do=Behaviour(delay=0.2)))
        pipe.send(request("ping", {}, 1))
        pipe.send(request("tools/call", {"name": "record", "arguments": {}}, 2))
        assert [(await pipe.receive())["id"] for _ in range(2)] == [2, 1]


@pytest.mark.parametrize("tool", ["slow", "record"])
async def test_a_cancelled_call_is_noted_and_never_answered(tool: str):
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await pipe.initialize()
        await server.script(Rule(tool="record", do=Behaviour(hang=True)))
        pipe.send(request("tools/call", {"name": tool, "arguments": {"seconds": 60}}))
        await server.requests("tools/call", at_least=1)
        params = {"requestId": 7}
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert await server.cancelled(at_least=1) == [Cancelled(7, tool, "notification")]
        assert (await pipe.ask("ping", about=8))["id"] == 8


async def test_leaving_while_a_call_runs_is_noted():
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await pipe.initialize()
        pipe.send(request("tools/call", {"name": "slow", "arguments": {"seconds": 60}}))
        await server.requests("tools/call", at_least=1)
        pipe.stdin.close()
        assert await pipe.ended() == 0
        assert await server.cancelled(at_least=1) == [Cancelled(7, "slow", "disconnect")]


async def test_the_first_request_decides_the_era():
    async with ScriptedServer.stdio() as server:
        async with pipe_to(server) as pipe:
            discovered = await pipe.modern("server/discover")
            assert discovered["result"]["supportedVersions"] == ["2026-07-28"]
            assert (await pipe.initialize())["error"]["code"] == -32022
            assert (await pipe.ask("tools/list"))["error"]["code"] == -32602
        async with pipe_to(server) as pipe:
            assert (await pipe.initialize())["result"]["protocolVersion"] == "2025-11-25"
            assert (await pipe.modern("tools/list"))["error"]["code"] == -32600


@pytest.mark.parametrize(("era", "code"), [("legacy", None), ("modern", -32022)])
async def test_a_server_of_one_era_knows_only_that(era: Any, code: int | None):
    async with ScriptedServer.stdio(era=era) as server, pipe_to(server) as pipe:
        assert (await pipe.initialize()).get("error", {}).get("code") == code
        if era == "legacy":
            assert (await pipe.modern("server/discover"))["error"]["code"] == -32601


async def test_notifications_reach_an_initialized_client():
    async with ScriptedServer.stdio(era="legacy") as server, pipe_to(server) as pipe:
        await pipe.initialize()
        assert await server.notify("notifications/tools/list_changed") == 1
        assert (await pipe.receive())["method"] == "notifications/tools/list_changed"
        assert await server.break_streams() == 0


@pytest.mark.parametrize(
    "rule",
    [
        Rule(do=Behaviour(status=503)),
        Rule(do=Behaviour(redirect="/")),
        Rule(do=Behaviour(endless=True)),
        Rule(http="GET"),
    ],
)
async def test_rules_about_http_are_refused(rule: Rule):
    async with ScriptedServer.stdio() as server:
        with pytest.raises(ValueError):
            await server.script(rule)


async def test_garbage_on_stdin_is_a_parse_error():
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        pipe.stdin.write(b"{x}\n")
        assert (await pipe.receive())["error"]["code"] == -32700
        assert await server.requests() == []


async def test_it_can_be_silent_on_a_method_or_exit_on_it():
    async with (
        ScriptedServer.stdio(ignore=["server/discover"], exit_on=["ping"]) as server,
        pipe_to(server) as pipe,
    ):
        pipe.send(request("server/discover", {}, 1))
        assert (await pipe.ask("tools/list", about=2))["id"] == 2
        pipe.send(request("ping", {}, 3))
        assert await pipe.ended() == 1
        assert len(await server.requests()) == 3


async def test_a_restart_ends_the_processes_and_forgets_the_rules():
    async with ScriptedServer.stdio() as server, pipe_to(server) as pipe:
        await server.script(Rule(do=Behaviour(hang=True)))
        pipe.send(request("ping"))
        await server.requests(at_least=1)
        await server.restart()
        assert await pipe.ended() != 0
        async with pipe_to(server) as again:
            assert (await again.ask("ping"))["result"] == {}
        assert len(await server.requests()) == 2
