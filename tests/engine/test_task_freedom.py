"""Any task may open, use and close a client; another loop or process may not."""

import asyncio
import gc
import itertools
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    LONG,
    PROMPT,
    Era,
    Took,
    client_of,
    every_era,
    outcome,
    serving,
    until,
)
from toolkeep import WrongLoop
from toolkeep.testing import Behaviour, Rule, ScriptedServer

SOURCE = Path(__file__).resolve().parents[2] / "src"
Use = Callable[[], Awaitable[Any]]


async def in_a_task(use: Use) -> Any:
    """The result of using it in a task of its own, with a cancel scope of its own."""

    async def scoped() -> Any:
        with anyio.fail_after(BOUND):
            return await use()

    return await asyncio.create_task(scoped())


# -- tasks --------------------------------------------------------------------------------------


@pytest.mark.requirement("S9")
@every_era
async def test_a_client_opened_in_one_task_is_used_in_others_and_closed_in_a_third(era: Era):
    async with serving(era) as (server, client):
        await in_a_task(client.connect)
        for _ in range(3):
            await in_a_task(lambda: client.call_tool("echo", {"text": "x"}))
        await in_a_task(client.aclose)
        assert not client.is_initialized
        assert len(await server.requests(HANDSHAKE[era])) == 1
        assert len(await server.requests(tool="echo")) == 3


@pytest.mark.requirement("S9")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_clients_are_closed_in_any_order_from_any_task(order: tuple[int, ...]):
    async with ScriptedServer.local() as server:
        clients = [client_of(server.url, mode) for mode in ("legacy", "modern", "auto")]
        for client in clients:
            await in_a_task(client.connect)
        left = set(range(3))
        for number in order:
            await in_a_task(clients[number].aclose)
            left.discard(number)
            for other in left:
                result = await clients[other].call_tool("echo", {"text": "still open"})
                assert result.text == "still open"


@pytest.mark.requirement("S9")
@every_era
async def test_clients_are_closed_in_any_order_during_their_handshakes(era: Era):
    async with ScriptedServer.local(era=era) as server:
        await server.script(Rule(method=HANDSHAKE[era], do=Behaviour(delay=LONG)))
        clients = [client_of(server.url, era) for _ in range(4)]
        openers = [asyncio.create_task(client.connect()) for client in clients]
        await server.requests(HANDSHAKE[era], at_least=4)
        with Took() as took:
            for number in (2, 0, 3, 1):
                await in_a_task(clients[number].aclose)
            errors = [await outcome(opener) for opener in openers]
        assert took.seconds < PROMPT
        assert not any(opener.cancelled() for opener in openers)
        assert not any(isinstance(error, RuntimeError | BaseExceptionGroup) for error in errors)


@pytest.mark.requirement("S9")
@every_era
async def test_the_task_that_opened_may_end_or_be_cancelled_and_the_client_lives_on(era: Era):
    async with serving(era) as (server, client):

        async def open_and_wait() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(client.connect())
            await asyncio.sleep(LONG)

        opener = asyncio.create_task(open_and_wait())
        await until(lambda: client.is_initialized, "the opening")
        opener.cancel()
        await asyncio.wait((opener,), timeout=BOUND)
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert len(await server.requests(HANDSHAKE[era])) == 1


# -- loops and processes ------------------------------------------------------------------------


async def in_a_thread(*uses: Use) -> list[Any]:
    """Each use in an event loop of its own, one after the other, in one other thread."""

    def run() -> list[Any]:
        return [asyncio.run(_outcome(use)) for use in uses]

    async def _outcome(use: Use) -> Any:
        return await outcome(use())

    async with asyncio.timeout(BOUND * 2):
        return await asyncio.to_thread(run)


@pytest.mark.requirement("S17")
@every_era
async def test_use_from_another_loop_is_a_clear_error_and_costs_nothing(era: Era):
    async with serving(era) as (server, client):
        await client.connect()
        seen = len(await server.requests())
        errors = await in_a_thread(
            lambda: client.call_tool("record"), client.list_tools, client.connect, client.aclose
        )
        assert [type(error) for error in errors] == [WrongLoop] * 4
        assert len(await server.requests()) == seen
        assert (await client.call_tool("echo", {"text": "here"})).text == "here"


@pytest.mark.requirement("S9", "S17")
@every_era
async def test_after_closing_another_loop_may_use_it(era: Era):
    async with serving(era) as (server, client):

        async def use() -> str:
            async with client:
                return (await client.call_tool("echo", {"text": "x"})).text

        assert await use() == "x"
        assert await in_a_thread(use, use) == ["x", "x"]
        assert await use() == "x"
        assert len(await server.requests(HANDSHAKE[era])) == 4


@pytest.mark.requirement("S9", "S17")
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")  # asyncio's, in the end
@every_era
async def test_a_client_whose_loop_died_can_be_closed_and_used_again(era: Era):
    async with serving(era) as (server, client):

        async def leave_open() -> str:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(client.call_tool("echo", {"text": "x"}))
            return "left open"

        async def close_and_use() -> str:
            await client.aclose()
            assert not client.is_initialized
            async with client:
                return (await client.call_tool("echo", {"text": "again"})).text

        assert await in_a_thread(leave_open, close_and_use) == ["left open", "again"]
        async with asyncio.timeout(BOUND):
            while await server.open_connections():
                await asyncio.sleep(0.005)
        gc.collect()


FORKING = """
    import asyncio, gc, os, signal, sys
    from toolkeep import Client, WrongLoop

    signal.alarm(20)
    client = Client({"name": "kit", "url": sys.argv[1], "mode": sys.argv[2]})

    async def say(text):
        return (await client.call_tool("echo", {"text": text})).text

    async def child():
        try:
            await say("stolen")
        except WrongLoop:
            pass
        else:
            return 2
        await client.aclose()
        gc.collect()
        if await say("child") != "child":
            return 3
        await client.aclose()
        return 0

    def fork():
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = 1
        try:
            code = asyncio.run(child())
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    async def main():
        await say("parent")
        running = asyncio.create_task(client.call_tool("slow", {"seconds": 0.5}))
        await asyncio.sleep(0.2)
        session = client.session_id
        assert fork() == 0
        async with asyncio.timeout(5):
            assert (await running).text == "done"
            assert await say("parent") == "parent"
        assert client.session_id == session
        await client.aclose()

    asyncio.run(main())
"""


@pytest.mark.requirement("S17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@every_era
async def test_a_forked_child_may_neither_use_nor_disturb_its_parents_client(era: Era):
    async with ScriptedServer.local(era=era) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", textwrap.dedent(FORKING), server.url, era),
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, said.decode()) == (0, "")
        assert len(await server.requests(HANDSHAKE[era])) == 2
        echoes = [r.body["params"]["arguments"]["text"] for r in await server.requests(tool="echo")]
        assert echoes == ["parent", "child", "parent"]


INHERITING = """
    import asyncio, os, signal, sys
    from toolkeep import Client, WrongLoop

    signal.alarm(20)
    client = Client({"name": "kit", "url": sys.argv[1]})
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.connect())
    child = os.fork()
    if not child:
        try:
            loop.run_until_complete(client.call_tool("echo", {"text": "stolen"}))
        except WrongLoop:
            os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.run_until_complete(client.aclose())
    loop.close()
"""


@pytest.mark.requirement("S17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_forked_child_that_inherits_the_loop_may_not_use_the_client_either():
    async with ScriptedServer.local() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", textwrap.dedent(INHERITING), server.url),
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, said.decode()) == (0, "")
        assert await server.requests(tool="echo") == []
