"""Opening and closing a runtime: all or some, once, by whoever, whatever is under way."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runtime._life import (
    LONG,
    PATIENCE,
    QUICK,
    Ear,
    config_of,
    ended,
    eras,
    eventually,
    failure_of,
    quiet_port,
)
from toolkeep import (
    CallContext,
    CallOutcomeUnknown,
    ConfigError,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery
from toolkeep.events import CatalogueChanged
from toolkeep.group import MemberState
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ADA, BOB = CallContext(principal="ada"), CallContext(principal="bob")


def nowhere(**more: Any) -> dict[str, Any]:
    """Where nobody listens, and nobody can."""
    return {"url": "http://127.0.0.1:1/mcp", "timeouts": {"connect": 0.3}, **more}


async def test_making_one_does_nothing():
    runtime = Runtime("/no/such/file.json")
    assert runtime.servers == ()
    assert not runtime.catalogue
    assert "not open" in repr(runtime)
    for attempt in (
        runtime.call("kit.echo", {"text": "a"}),
        runtime.resolve(["kit.echo"]),
        runtime.get_prompt("kit.greet"),
        runtime.read_resource("kit://readme"),
        runtime.complete("kit.greet", "name", "A"),
        runtime.reload(),
    ):
        error = await failure_of(attempt)
        assert isinstance(error, ServerUnavailable)
        assert "the runtime is not open" in str(error)
    assert isinstance(await failure_of(runtime.connect()), ConfigError)
    await runtime.aclose()


@pytest.mark.requirement("O3", "G2")
async def test_one_that_fails_is_no_reason_for_the_others(caplog: pytest.LogCaptureFixture):
    async with ScriptedServer.local() as kit:
        config = config_of(kit=kit, gone=nowhere())
        with caplog.at_level(logging.INFO, logger="toolkeep.runtime"):
            async with Runtime.open(config, backoff=None) as runtime:
                tools = len(await kit.requests("tools/list")) and runtime.servers[0].tools
                assert tools > 5
                assert runtime.summary() == f"1/2 servers healthy, {tools} tools"
                assert runtime.summary() in caplog.messages
                states = {one.name: one.state for one in runtime.servers}
                assert states == {"kit": MemberState.CONNECTED, "gone": MemberState.FAILED}
                assert isinstance(runtime.servers[1].error, ToolkeepError)
                assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"


@pytest.mark.requirement("G2", "G5")
async def test_a_strict_opening_undoes_what_it_did_and_raises():
    async with ScriptedServer.local(era="legacy") as kit, ScriptedServer.stdio() as program:
        runtime = Runtime(config_of(kit=kit, program=program, gone=nowhere()), strict=True)
        assert isinstance(await failure_of(runtime.connect()), ServerUnavailable)
        assert await program.processes() == []
        sessions = {one.session_id for one in await kit.requests() if one.session_id}
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert {one.session_id for one in ends} == sessions
        assert runtime.servers == ()
        error = await failure_of(runtime.call("kit.echo", {"text": "a"}))
        assert isinstance(error, ServerUnavailable)


@pytest.mark.requirement("G5")
@pytest.mark.parametrize("stage", ["initialize", "tools/list"])
async def test_an_opening_that_is_cancelled_leaves_nothing_behind(stage: str):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.stdio(era="legacy") as program,
    ):
        for server in (kit, program):
            await server.script(Rule(do=Behaviour(hang=True), method=stage, times=1))
        runtime = Runtime(config_of(kit=kit, program=program))
        opening = asyncio.create_task(runtime.connect())
        await kit.requests(stage, at_least=1)
        await program.requests(stage, at_least=1)
        opening.cancel()
        await ended(opening)
        assert opening.cancelled()
        assert await program.processes() == []
        async with runtime:
            assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
            assert (await runtime.call("program.echo", {"text": "a"})).text == "a"


async def test_opening_twice_is_opening_once():
    async with ScriptedServer.local(era="legacy") as kit:
        runtime = Runtime(config_of(kit=kit))
        await asyncio.gather(*(runtime.connect() for _ in range(5)))
        async with runtime:
            assert len(await kit.requests("initialize")) == 1
            assert len(await kit.requests("tools/list")) == 1


async def test_closing_does_not_wait_for_an_opening_under_way():
    async with ScriptedServer.local() as kit:
        await kit.script(Rule(do=Behaviour(hang=True), method="server/discover"))
        await kit.script(Rule(do=Behaviour(hang=True), method="initialize"))
        slow = {**kit.spec, "timeouts": {"connect": 2 * PATIENCE}}
        runtime = Runtime(config_of(kit=slow), connect_timeout=2 * PATIENCE)
        opening = asyncio.create_task(runtime.connect())
        await eventually(kit.requests)
        async with asyncio.timeout(PATIENCE):
            await runtime.aclose()
        (outcome,) = await ended(opening)
        assert isinstance(outcome, ServerUnavailable)
        assert runtime.servers == ()


@eras
async def test_closing_ends_calls_under_way_and_says_what_became_of_them(era: Any):
    async with ScriptedServer.local(era=era) as kit, ScriptedServer.stdio(era=era) as program:
        runtime = Runtime(config_of(kit=kit, program=program))
        await runtime.connect()
        sent = [
            asyncio.create_task(
                runtime.call(f"{name}.slow", {"seconds": LONG, "key": f"{name}{n}"}, context=who)
            )
            for name in ("kit", "program")
            for n, who in enumerate((None, ADA))
        ]
        for server in (kit, program):
            await server.requests(tool="slow", at_least=2)
        async with asyncio.timeout(PATIENCE):
            await runtime.aclose()
        for outcome in await ended(*sent):
            assert isinstance(outcome, CallOutcomeUnknown)
            assert outcome.delivery is Delivery.UNKNOWN
        assert await kit.ledger() == {"kit0": 1, "kit1": 1}
        assert await program.processes() == []


async def test_closing_ends_the_waiting_for_a_place_and_nothing_was_sent():
    async with ScriptedServer.local(era="legacy") as kit:
        runtime = Runtime(config_of(kit={**kit.spec, "max_sessions": 1}))
        await runtime.connect()
        held = asyncio.create_task(runtime.call("kit.slow", {"seconds": LONG}, context=ADA))
        await kit.requests(tool="slow", at_least=1)
        waiting = asyncio.create_task(runtime.call("kit.record", context=BOB))
        await eventually(lambda: not waiting.done() and runtime.servers[0].sessions == 1)
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await runtime.aclose()
        first, second = await ended(held, waiting)
        assert isinstance(first, CallOutcomeUnknown)
        assert isinstance(second, ToolkeepError)
        assert second.delivery is Delivery.NOT_SENT
        assert await kit.executions("record") == 0


async def test_closing_twice_and_by_others_is_closing_once():
    async with ScriptedServer.local(era="legacy") as kit:
        runtime = Runtime(config_of(kit=kit))
        await runtime.aclose()
        async with runtime:
            await asyncio.gather(*(asyncio.create_task(runtime.aclose()) for _ in range(3)))
            await runtime.aclose()
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert len(ends) == 1
        error = await failure_of(runtime.call("kit.echo", {"text": "a"}))
        assert isinstance(error, ServerUnavailable)
        assert isinstance(await failure_of(runtime.catalogue_for()), ServerUnavailable)
        assert isinstance(await failure_of(runtime.refresh()), ServerUnavailable)
        assert isinstance(
            await failure_of(runtime.add({"name": "x", **kit.spec})), ServerUnavailable
        )
        assert not runtime.catalogue


async def test_a_closing_that_is_cancelled_goes_on():
    async with ScriptedServer.local(era="legacy") as kit:
        await kit.script(Rule(do=Behaviour(delay=0.2), http="DELETE"))
        runtime = Runtime(config_of(kit=kit))
        await runtime.connect()
        closing = asyncio.create_task(runtime.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await ended(closing)
        await runtime.aclose()
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert len(ends) == 1


async def test_a_server_that_does_not_let_go_does_not_hold_up_the_end():
    async with ScriptedServer.local(era="legacy") as kit:
        await kit.script(Rule(do=Behaviour(hang=True), http="DELETE"))
        runtime = Runtime(config_of(kit=kit), cleanup_timeout=0.3)
        await runtime.connect()
        await runtime.call("kit.record", context=ADA)
        async with asyncio.timeout(PATIENCE):
            await runtime.aclose()
        assert runtime.servers == ()


async def test_closing_in_a_call_of_its_own_is_told_to_that_call():
    """Who is called back closes the runtime: the call ends, and nobody waits for itself."""
    async with ScriptedServer.local(encoding="sse") as kit:
        runtime = Runtime(config_of(kit=kit))
        await runtime.connect()

        async def close(*_: object) -> None:
            await runtime.aclose()

        call = runtime.call("kit.steps", {"count": 100, "gap": 0.1}, on_progress=close)
        error = await failure_of(call)
        assert error.delivery is Delivery.UNKNOWN


@pytest.mark.requirement("G2")
async def test_a_server_that_was_down_comes_back_by_itself_and_its_tools_appear():
    port = quiet_port()
    config = config_of(kit={"url": f"http://127.0.0.1:{port}/mcp"})
    async with Runtime.open(config, backoff=QUICK) as runtime:
        ear = Ear(runtime)
        assert not len(runtime.catalogue)
        error = await failure_of(runtime.call("kit.echo", {"text": "a"}, timeout=2))
        assert isinstance(error, ServerUnavailable)
        assert error.server == "kit"
        async with ScriptedServer.local(port=port):
            await ear.first(CatalogueChanged, "kit")
            assert "kit.echo" in {tool.name for tool in runtime.catalogue}
            assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
            assert runtime.summary().startswith("1/1 servers healthy")


async def test_a_call_to_a_server_that_is_down_names_it_and_does_not_doubt_the_tool():
    async with ScriptedServer.local() as kit:
        config = config_of(kit=kit, gone=nowhere())
        async with Runtime.open(config, backoff=None) as runtime:
            for context in (None, ADA):
                error = await failure_of(
                    runtime.call("gone.echo", {"text": "a"}, context=context, timeout=2)
                )
                assert isinstance(error, ServerUnavailable)
                assert (error.server, error.delivery) == ("gone", Delivery.NOT_SENT)


async def test_a_process_that_dies_while_the_runtime_lives_is_started_again(tmp_path: Path):
    async with ScriptedServer.stdio() as program:
        async with Runtime.open(config_of(kit=program), backoff=QUICK) as runtime:
            (pid,) = await program.processes(at_least=1)
            os.kill(pid, signal.SIGKILL)
            assert (await runtime.call("kit.record_idempotent", {"key": "a"})).success
            assert (await program.processes()) != [pid]
        assert await program.executions("a") == 1
