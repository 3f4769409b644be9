"""A tool that was found is found again at once, for as long as it is the same."""

import pytest

from tests.runtime._life import config_of
from toolkeep import Runtime, UnknownTool
from toolkeep._runtime.resolve import ResolvedToolCache
from toolkeep.testing import ScriptedServer

SLIM = {"name": "passing", "description": "Is gone soon.", "inputSchema": {"type": "object"}}


@pytest.mark.requirement("T5")
async def test_a_tool_that_the_server_took_back_is_not_called_by_its_old_name():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        await kit.set_tools([SLIM])
        await runtime.refresh("kit")
        for _ in range(2):
            assert (await runtime.call("kit.passing")).success
        await kit.set_tools([])
        await runtime.refresh("kit")
        asked = len(await kit.requests("tools/call"))
        with pytest.raises(UnknownTool):
            await runtime.call("kit.passing")
        assert len(await kit.requests("tools/call")) == asked


@pytest.mark.requirement("G6")
async def test_a_server_in_the_place_of_another_is_called_in_its_place():
    async with (
        ScriptedServer.local(era="legacy") as one,
        ScriptedServer.local(era="legacy") as other,
        Runtime.open(config_of(kit=one)) as runtime,
    ):
        await runtime.call("kit.record", {"key": "first"})
        await runtime.reload(config_of(kit=other))
        assert len(runtime._resolver.cache) == 0, "nothing of a server that is gone is kept"
        await runtime.call("kit.record", {"key": "second"})
        assert (await one.ledger(), await other.ledger()) == ({"first": 1}, {"second": 1})


async def test_what_is_at_hand_is_bounded():
    async with (
        ScriptedServer.local() as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        runtime._resolver.cache = ResolvedToolCache(max_size=2)
        for _ in range(2):
            for name, arguments in (
                ("echo", {"text": "a"}),
                ("record", {}),
                ("fail", {"message": "no"}),
            ):
                await runtime.call(f"kit.{name}", arguments)
        assert 0 < len(runtime._resolver.cache) <= 2
