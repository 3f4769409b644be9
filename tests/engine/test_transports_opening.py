"""Opening a program, a stream, a server in this process: once, within bounds, and told honestly."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from tests.engine.helpers_tasks import BOUND, PROMPT, Took, closing, outcome, until
from tests.engine.helpers_transports import (
    IN_PROCESS,
    SSE,
    STDIO,
    Way,
    every_way,
    over_kit,
    over_stdio,
    serving,
)
from toolkeep import (
    CallNotSentInTime,
    Client,
    ConfigError,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Rule, ScriptedServer
from toolkeep.testing.scripted import ScriptedProgram

SHAKE = ["initialize", "notifications/initialized"]


async def asked(server: Any) -> list[str]:
    return [record.rpc_method or record.http_method for record in await server.server.requests()]


@asynccontextmanager
async def starting(
    spec: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedProgram, Client]]:
    """A program, and a client that does not know its era."""
    async with (
        ScriptedServer.stdio(**options) as server,
        closing(Client({"name": "kit", **server.spec, **(spec or {})})) as client,
    ):
        yield server, client


def program(code: str, **spec: Any) -> dict[str, Any]:
    return {"name": "program", "command": sys.executable, "args": ["-I", "-S", "-c", code], **spec}


# -- once ---------------------------------------------------------------------------------------


@every_way
@pytest.mark.requirement("S2", "S13")
async def test_many_first_calls_share_one_opening(way: Way):
    async with serving(way) as (server, client):
        calls = [
            asyncio.create_task(client.call_tool("record", {"key": f"{n}"})) for n in range(30)
        ]
        results = [await outcome(call) for call in calls]
        assert {getattr(result, "text", result) for result in results} == {"recorded"}
        assert await server.openings() == 1
        assert set((await server.ledger()).values()) == {1}
        if way.transport == "stdio":
            assert await server.server.starts() == 1


@pytest.mark.requirement("S2", "S13")
@pytest.mark.parametrize(
    ("way", "mode", "opening"),
    [
        (STDIO[0], "auto", ["server/discover", *SHAKE]),
        (STDIO[0], "legacy", SHAKE),
        (STDIO[1], "auto", ["server/discover"]),
        (STDIO[1], "modern", ["server/discover"]),
        (SSE, "auto", ["GET", *SHAKE]),
        (SSE, "legacy", ["GET", *SHAKE]),
    ],
    ids=str,
)
async def test_the_first_call_opens_in_the_order_of_the_protocol(
    way: Way, mode: Any, opening: list[str]
):
    async with serving(way, {"mode": mode}) as (server, client):
        await client.call_tool("record")
        assert await asked(server) == [*opening, "tools/call"]
        assert client.era == way.era


@pytest.mark.requirement("S8", "S13")
@every_way
async def test_a_client_tells_the_truth_about_its_connection(way: Way):
    async with serving(way) as (server, client):
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
        assert await server.openings() == 0
        await client.connect()
        assert (client.is_initialized, client.era) == (True, way.era)
        assert (client.session_id is not None) == (way == SSE)
        await client.aclose()
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)


# -- which era ----------------------------------------------------------------------------------


@pytest.mark.requirement("S2")
async def test_a_program_that_is_silent_on_the_probe_costs_its_bound_once():
    spec = {"timeouts": {"connect": 1.5}}  # of which the probe may take a third
    async with starting(spec, era="legacy", ignore=["server/discover"]) as (server, client):
        with Took() as first:
            await client.connect()
        assert first.seconds < 1.5
        assert (client.era, await server.starts()) == ("legacy", 1)
        server.kill()
        await until(lambda: not client.is_initialized, "the loss")
        with Took() as second:
            assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
        assert second.seconds < first.seconds
        assert len(await server.requests("server/discover")) == 1
        assert len(await server.requests("initialize")) == 2


@pytest.mark.requirement("S2")
async def test_a_program_that_exits_on_the_probe_is_started_again_without_one():
    async with starting(era="legacy", exit_on=["server/discover"]) as (server, client):
        assert (await outcome(client.call_tool("record"))).attempts == 1
        assert (client.era, await server.starts()) == ("legacy", 2)
        server.kill()
        await until(lambda: not client.is_initialized, "the loss")
        assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
        assert await server.starts() == 3
        assert len(await server.requests("server/discover")) == 1
        assert await server.executions("record") == 1


@pytest.mark.requirement("S16")
async def test_a_program_that_exits_on_the_handshake_too_is_not_started_a_third_time():
    dies = ["server/discover", "initialize"]
    async with starting(era="legacy", exit_on=dies, stderr="no\n") as (server, client):
        error = await outcome(client.call_tool("record"))
        assert isinstance(error, ServerUnavailable)
        assert (error.exit_code, error.stderr) == (1, "no")
        assert await server.starts() == 2


@pytest.mark.requirement("S8")
@pytest.mark.parametrize("way", [STDIO[0]], ids=str)
async def test_a_legacy_program_is_the_wrong_one_for_a_modern_client(way: Way):
    async with serving(way, {"mode": "modern"}) as (server, client):
        error = await outcome(client.call_tool("record"))
        assert type(error) is RemoteProtocolError
        assert await server.arrived("record") == 0
        assert "initialize" not in await asked(server)
        assert not client.is_initialized


@pytest.mark.requirement("S13")
@pytest.mark.parametrize("way", IN_PROCESS, ids=str)
async def test_a_server_in_this_process_is_found_out_like_any_other(way: Way):
    async with serving(way, {"mode": "auto"}) as (_, client):
        await client.connect()
        assert client.era == "modern"  # the SDK's server knows both


# -- a program that is no server ------------------------------------------------------------------


@pytest.mark.requirement("S16")
async def test_a_missing_command_is_a_clear_error_and_stays_one():
    async with closing(Client({"name": "gone", "command": "no-such-program"})) as client:
        for _ in range(2):
            error = await outcome(client.call_tool("record"))
            assert isinstance(error, ConfigError)
            assert (error.server, error.key) == ("gone", "command")
            assert error.delivery is Delivery.NOT_SENT


@pytest.mark.requirement("S16")
@pytest.mark.parametrize("mode", ["auto", "legacy", "modern"])
async def test_an_exit_at_start_tells_code_and_last_words_and_is_tried_once_a_call(mode: Any):
    words = "Traceback:\nno such database\n"
    async with starting({"mode": mode}, exit_at_start=23, stderr=words) as (server, client):
        for call in (1, 2):
            error = await outcome(client.call_tool("record"))
            assert isinstance(error, ServerUnavailable)
            assert (error.exit_code, error.delivery) == (23, Delivery.NOT_SENT)
            assert error.stderr.splitlines() == ["Traceback:", "no such database"]
            # Only a second start tells a program that dies of the probe from one that dies anyway.
            assert await server.starts() == call + (mode == "auto")


@pytest.mark.requirement("S16")
async def test_many_callers_of_a_program_that_exits_share_one_start():
    spec = {"mode": "legacy", "breaker_threshold": 0}
    async with starting(spec, exit_at_start=1) as (server, client):
        calls = [asyncio.create_task(client.call_tool("record")) for _ in range(10)]
        errors = [await outcome(call) for call in calls]
        assert {type(error) for error in errors} == {ServerUnavailable}
        assert await server.starts() == 1


@over_stdio
@pytest.mark.requirement("S16")
async def test_a_program_that_prints_to_its_output_works_and_is_named(
    way: Way, caplog: pytest.LogCaptureFixture
):
    noise = "Welcome to the kit!\nListening on stdio\n"
    async with serving(way, stdout_noise=noise) as (server, client):
        await server.server.script(Rule(tool="echo", do=Behaviour(prefix_lines="debug: hi\n")))
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert (await client.call_tool("record")).text == "recorded"
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 3
    for line, text in zip(warned, ["Welcome", "Listening", "debug"], strict=True):
        assert "kit" in line
        assert text in line


@pytest.mark.requirement("S16")
async def test_a_handshake_that_never_comes_is_bounded_and_names_what_was_printed():
    usage = program(
        "print('Usage: frobnicate FILE', flush=True); import time; time.sleep(60)",
        timeouts={"connect": 0.6, "close": 0.3},
    )
    async with closing(Client(usage)) as client:
        with Took() as took:
            error = await outcome(client.connect())
        assert isinstance(error, ServerUnavailable | CallNotSentInTime)
        assert error.delivery is Delivery.NOT_SENT
        assert took.seconds < PROMPT
        assert "Usage: frobnicate FILE" in str(error)  # the words are the point
        assert not client.is_initialized


@over_stdio
@pytest.mark.requirement("S7")
async def test_after_a_handshake_in_vain_the_next_call_tries_again(way: Way):
    spec = {"max_retries": 0, "timeouts": {"connect": 0.5, "close": 0.6}}
    async with serving(way, spec) as (server, client):
        step = "initialize" if way.era == "legacy" else "server/discover"
        await server.server.script(Rule(method=step, times=1, do=Behaviour(hang=True)))
        assert isinstance(await outcome(client.call_tool("record")), ToolkeepError)
        assert (client.is_initialized, client.era) == (False, None)
        assert (await outcome(client.call_tool("record"))).text == "recorded"
        assert await server.executions("record") == 1
        assert await server.server.starts() == 2


@over_kit
@pytest.mark.requirement("S8")
async def test_an_answer_that_is_no_handshake_opens_nothing(way: Way):
    async with serving(way) as (server, client):
        step = "initialize" if way.era == "legacy" else "server/discover"
        await server.server.script(Rule(method=step, do=Behaviour(result={"tools": []})))
        assert type(await outcome(client.connect())) is RemoteProtocolError
        assert (client.is_initialized, client.session_id) == (False, None)


@pytest.mark.requirement("S13")
async def test_a_server_in_this_process_may_be_several_functions_or_one():
    def double(n: int) -> int:
        return 2 * n

    for given in (double, [double]):
        async with aclosing(Client(given)) as client, asyncio.timeout(BOUND):
            assert (await client.call_tool("double", {"n": 2})).data == {"result": 4}


@pytest.mark.requirement("S13", "S7")
async def test_a_server_in_this_process_that_cannot_start_is_unavailable_and_tried_again():
    lives: list[int] = []

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        lives.append(1)
        if len(lives) == 1:
            raise ZeroDivisionError
        yield

    spec = {"name": "late", "server": MCPServer("late", lifespan=lifespan), "max_retries": 0}
    async with closing(Client(spec)) as client:
        error = await outcome(client.connect())
        assert isinstance(error, ServerUnavailable)
        assert error.delivery is Delivery.NOT_SENT
        assert await outcome(client.connect()) is None
        assert len(lives) == 2
