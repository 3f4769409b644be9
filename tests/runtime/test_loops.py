"""A runtime belongs to one event loop and one process, from its opening until it is closed."""

import asyncio
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime._life import PATIENCE, config_of
from toolkeep import Runtime, WrongLoop
from toolkeep.testing import ScriptedServer

BEGINNING = """
    import asyncio, os, signal, sys
    from toolkeep import Runtime, WrongLoop

    signal.alarm(20)
    runtime = Runtime({"mcpServers": {"kit": {"url": sys.argv[1]}}})

    async def use(text):
        async with runtime:
            return (await runtime.call("kit.echo", {"text": text})).text
"""
LOST = """
    async def lose():
        await runtime.connect()
        assert (await runtime.call("kit.echo", {"text": "lost"})).text == "lost"

    asyncio.run(lose())
    assert asyncio.run(use("found")) == "found"
    asyncio.run(lose())
    asyncio.run(runtime.aclose())
    assert asyncio.run(use("again")) == "again"
"""
FORKED = """
    async def stolen(work):
        try:
            await work
        except WrongLoop:
            return True
        return False

    loop = asyncio.new_event_loop()
    loop.run_until_complete(runtime.connect())
    child = os.fork()
    if not child:
        refused = asyncio.run(stolen(runtime.call("kit.echo", {"text": "stolen"})))
        asyncio.run(runtime.aclose())
        asyncio.run(use("child"))
        os._exit(3 if refused else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    called = loop.run_until_complete(runtime.call("kit.echo", {"text": "parent"}))
    loop.run_until_complete(runtime.aclose())
    loop.close()
"""


async def run(program: str, url: str) -> tuple[int | None, str]:
    text = textwrap.dedent(BEGINNING) + textwrap.dedent(program)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", text, url),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    return process.returncode, said.decode()


@pytest.mark.requirement("S17")
async def test_what_was_lost_with_its_loop_is_made_anew():
    async with ScriptedServer.local(era="legacy") as kit:
        assert await run(LOST, kit.url) == (0, "")


@pytest.mark.requirement("S17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_forked_child_may_neither_use_nor_disturb_its_parents_runtime():
    async with ScriptedServer.local(era="legacy") as kit:
        code, said = await run(FORKED, kit.url)
        assert (code, said) == (0, "")
        calls = [one.body["params"] for one in await kit.requests(tool="echo")]
        assert [call["arguments"]["text"] for call in calls] == ["child", "parent"]
        assert len(await kit.requests("initialize")) == 2


def in_another_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await work()

    return asyncio.run(bounded())


@pytest.mark.requirement("S17")
async def test_once_closed_it_opens_in_another_loop():
    async with ScriptedServer.local(era="legacy") as kit:
        runtime = Runtime(config_of(kit=kit))

        async def use() -> str:
            async with runtime:
                return (await runtime.call("kit.echo", {"text": "a"})).text

        for _ in range(2):
            assert await asyncio.to_thread(in_another_loop, use) == "a"
        assert await use() == "a"


STRANGE: dict[str, Callable[[Runtime, Any], Awaitable[Any]]] = {
    "call": lambda runtime, _: runtime.call("kit.echo", {"text": "a"}),
    "catalogue_for": lambda runtime, _: runtime.catalogue_for(),
    "resolve": lambda runtime, _: runtime.resolve(["kit.echo"]),
    "refresh": lambda runtime, _: runtime.refresh(),
    "reload": lambda runtime, config: runtime.reload(config),
    "add": lambda runtime, _: runtime.add({"name": "more", "url": "http://127.0.0.1:1/mcp"}),
    "remove": lambda runtime, _: runtime.remove("kit"),
    "reconnect": lambda runtime, _: runtime.reconnect(failed_only=False),
    "forget": lambda runtime, _: runtime.forget("ada"),
    "connect": lambda runtime, _: runtime.connect(),
    "aclose": lambda runtime, _: runtime.aclose(),
}


@pytest.mark.requirement("S17")
@pytest.mark.parametrize("what", STRANGE)
async def test_used_from_another_loop_it_says_so_and_is_not_disturbed(what: str):
    async with ScriptedServer.local(era="legacy") as kit:
        async with Runtime.open(config_of(kit=kit)) as runtime:

            def work() -> Awaitable[Any]:
                return STRANGE[what](runtime, config_of(other=kit))

            with pytest.raises(WrongLoop):
                await asyncio.to_thread(in_another_loop, work)
            assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
            assert len(await kit.requests("initialize")) == 1
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert len(ends) == 1
