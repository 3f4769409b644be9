"""What a call leaves behind: nothing that only the garbage collector could find."""

import gc
from typing import Any

import pytest

from toolkeep import Client, Runtime
from toolkeep.testing import ScriptedServer

CALLS = 10


@pytest.mark.parametrize("encoding", ["json", "sse"])
async def test_a_call_leaves_no_cycle(encoding: Any) -> None:
    async with (
        ScriptedServer.spawn(encoding=encoding, record=False) as server,
        Client(server.url) as client,
        Runtime.open([{"name": "kit", "url": server.url}]) as runtime,
    ):

        async def once() -> None:
            await client.call_tool("echo", {"text": "x"})
            await runtime.call("kit.echo", {"text": "x"})

        await once()
        left = await garbage_of(once)
    assert [type(one).__qualname__ for one in left] == []


async def garbage_of(work: Any) -> list[object]:
    """What of ours is found only by looking for cycles."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(CALLS):
            await work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [one for one in gc.garbage if type(one).__module__.startswith("toolkeep.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
