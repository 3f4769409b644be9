"""Calls of a blocking runtime: watched, left, interrupted, closed on, and forgotten.

Who is interrupted, or forgets to close, is a program of its own.
"""

import asyncio
import json
import os
import signal
import sys
from contextvars import ContextVar
from typing import Any

import pytest

from tests.engine.helpers_rounds import ADA, ELICIT
from tests.runtime._blocking import LONG, PATIENCE, config_of, elsewhere, portals, program, said
from toolkeep import CallOutcomeUnknown, ToolkeepError
from toolkeep.blocking import Runtime
from toolkeep.errors import Delivery
from toolkeep.events import Completed, Event, Failed, InputNeeded, Progress, Started
from toolkeep.testing import Behaviour, Rule, ScriptedServer

asker: ContextVar[str] = ContextVar("asker", default="nobody")


@pytest.mark.parametrize("watched", [False, True])
async def test_closing_in_another_thread_ends_a_call_and_says_that_it_may_have_run(watched: bool):
    async with ScriptedServer.local() as server:
        runtime = Runtime(config_of(kit=server))
        await elsewhere(runtime.connect)

        def watch() -> list[Event]:
            with runtime.stream("kit.slow", LONG) as call:
                events = list[Event](call)
                with pytest.raises(CallOutcomeUnknown):
                    call.result()
            with pytest.raises(CallOutcomeUnknown):
                call.result()
            return events

        def call() -> None:
            with pytest.raises(CallOutcomeUnknown):
                runtime.call("kit.slow", LONG)

        work = asyncio.create_task(asyncio.to_thread(watch if watched else call))
        await server.requests(tool="slow", at_least=1)
        await elsewhere(runtime.close)
        async with asyncio.timeout(PATIENCE):
            events = await work
        if events is not None:
            assert [type(event) for event in events] == [Started, Failed]
        assert await server.executions("long") == 1
        assert portals() == []


@pytest.mark.requirement("A6", "L1")
async def test_a_call_is_watched_step_by_step():
    async with ScriptedServer.local(encoding="sse") as server:

        def work() -> tuple[list[Event], str, list[float]]:
            with Runtime.open(config_of(kit=server)) as runtime:
                with runtime.stream("kit.steps", {"count": 3}) as call:
                    events = list[Event](call)
                    assert list(call) == []
                (steps,) = runtime.resolve(["steps"])
                with steps.stream({"count": 2}) as again:
                    more = [one.fraction or 0 for one in again if isinstance(one, Progress)]
            return events, call.result().text, more

        events, text, more = await elsewhere(work)
    assert [type(event) for event in events] == [Started, *[Progress] * 3, Completed]
    assert text == "3 steps"
    assert more == [0.5, 1.0]


@pytest.mark.requirement("A6", "L3")
async def test_leaving_a_watched_call_early_cancels_it():
    async with ScriptedServer.local(era="legacy", encoding="sse") as server:

        def work() -> None:
            with Runtime.open(config_of(kit=server)) as runtime:
                with runtime.stream("kit.steps", {"count": 1000, "gap": 0.05}) as call:
                    for event in call:
                        if isinstance(event, Progress):
                            break
                with pytest.raises(ToolkeepError) as caught:
                    call.result()
                assert caught.value.delivery is Delivery.UNKNOWN
                assert runtime.call("kit.echo", {"text": "a"}).text == "a"

        await elsewhere(work)
        assert {gone.tool for gone in await server.cancelled(at_least=1)} == {"steps"}


async def test_a_watched_call_is_used_as_it_is_meant():
    async with ScriptedServer.local() as server:

        def work() -> None:
            with Runtime.open(config_of(kit=server)) as runtime:
                call = runtime.stream("kit.echo", {"text": "a"})
                with pytest.raises(RuntimeError):
                    call.result()
                with pytest.raises(RuntimeError):
                    next(iter(call))
                with call:
                    with pytest.raises(RuntimeError):
                        call.__enter__()
                    assert call.result().text == "a"

        await elsewhere(work)


async def test_questions_are_answered_by_whoever_watches_in_its_own_thread():
    async with ScriptedServer.local(era="modern") as server:

        def work() -> Any:
            asking = {"requests": {"who": ELICIT}}
            with (
                Runtime.open(config_of(kit=server), elicitation="caller") as runtime,
                runtime.stream("kit.ask", asking) as call,
            ):
                for event in call:
                    if isinstance(event, InputNeeded):
                        event.accept(ADA["content"])
                return call.result().data

        assert (await elsewhere(work))["answers"] == [{"who": ADA}]


async def test_what_is_called_back_sees_the_context_of_the_thread_that_calls():
    async with ScriptedServer.local(encoding="sse") as server:
        seen = list[str]()

        def work() -> None:
            asker.set("ada")
            with Runtime.open(config_of(kit=server)) as runtime:
                runtime.call(
                    "kit.steps", {"count": 1}, on_progress=lambda *_: seen.append(asker.get())
                )

        await elsewhere(work)
        assert seen == ["ada"]


# -- programs -------------------------------------------------------------------------------------

INTERRUPTED = {
    "call": """
with Runtime.open(config) as runtime:
    try:
        runtime.call("kit.slow", {"seconds": 30})
    except KeyboardInterrupt:
        assert runtime.stats.tool("kit", "slow").cancelled == 1
        print(runtime.call("kit.echo", {"text": "after"}).text)
""",
    "stream": """
with Runtime.open(config) as runtime:
    try:
        with runtime.stream("kit.slow", {"seconds": 30}) as call:
            for event in call:
                pass
    except KeyboardInterrupt:
        assert runtime.stats.tool("kit", "slow").cancelled == 1
        print(runtime.call("kit.echo", {"text": "after"}).text)
""",
    "opening": """
try:
    Runtime(config).connect()
except KeyboardInterrupt:
    import threading
    assert threading.active_count() == 1, threading.enumerate()
    print("after")
""",
}


@pytest.mark.requirement("A6", "P5")
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", INTERRUPTED)
async def test_an_interrupt_cancels_the_call_at_the_server_and_leaves_nothing_behind(how: str):
    async with ScriptedServer.local(era="legacy") as server:
        if how == "opening":
            await server.script(Rule(do=Behaviour(hang=True), method="tools/list"))
        running = await program(INTERRUPTED[how], config_of(kit=server))
        sought = {"method": "tools/list"} if how == "opening" else {"tool": "slow"}
        await server.requests(**sought, at_least=1, within=PATIENCE)
        running.send_signal(signal.SIGINT)
        assert await said(running) == (0, "after", "")
        if how != "opening":
            assert {gone.tool for gone in await server.cancelled(at_least=1)} == {"slow"}


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_runtime_that_was_not_closed_keeps_no_interpreter_from_exiting(transport: str):
    kit = ScriptedServer.stdio() if transport == "stdio" else ScriptedServer.local()
    async with kit as server:
        text = """
runtime = Runtime(config)
runtime.connect()
print(runtime.call("kit.echo", {"text": "a"}).text)
call = runtime.stream("kit.slow", {"seconds": 30}).__enter__()
next(call)
"""
        assert await said(await program(text, config_of(kit=server))) == (0, "a", "")
        if transport == "stdio":
            async with asyncio.timeout(PATIENCE):
                while await server.processes():  # pyright: ignore
                    await asyncio.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
async def test_a_forked_process_may_not_use_the_runtime_and_may_let_go_of_it():
    async with ScriptedServer.local() as server:
        text = """
import warnings
warnings.simplefilter("ignore")
from toolkeep import WrongLoop
with Runtime.open(config) as runtime:
    if (child := os.fork()) == 0:
        refused = 0
        for use in (lambda: runtime.call("kit.echo", {"text": "a"}), runtime.connect):
            try:
                use()
            except WrongLoop:
                refused += 1
        runtime.close()
        with runtime:
            again = runtime.call("kit.echo", {"text": "child"}).text
        os._exit(7 if (refused, again) == (2, "child") else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(runtime.call("kit.echo", {"text": "parent"}).text)
"""
        assert await said(await program(text, config_of(kit=server))) == (0, "7\nparent", "")


@pytest.mark.requirement("F5")
async def test_unread_events_of_a_blocking_call_are_bounded_too():
    said = {"level": "info", "data": "x" * 20_000}
    line = {"jsonrpc": "2.0", "method": "notifications/message", "params": said}
    prefix = f"data: {json.dumps(line)}\n\n" * 1_000
    async with ScriptedServer.local(encoding="sse") as server:
        await server.script(Rule(do=Behaviour(sse_prefix=prefix), tool="echo"))

        def watch() -> tuple[list[Event], int]:
            with (
                Runtime(config_of(kit=server)) as runtime,
                runtime.stream("kit.echo", {"text": "hi"}) as call,
            ):
                call.result()
                return list(call), call.dropped

        events, dropped = await elsewhere(watch)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "completed")
    assert 0 < kinds.count("log") <= 430
    assert kinds.count("log") + dropped == 1_000
