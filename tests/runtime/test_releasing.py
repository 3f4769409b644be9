"""Whatever ends a call, what was lent for it is given back; a cancellation is its owner's alone."""

import asyncio
from typing import Any

import pytest

from toolkeep import AuthNeeded, CallContext, InvalidArguments, Runtime, UnknownTool
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ANN, BEN = CallContext(principal="ann"), CallContext(principal="ben")


def spec(server: ScriptedServer, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "kit", "url": server.url, **more}]


@pytest.mark.requirement("H4", "P6")
@pytest.mark.parametrize(
    "wrong", [{"arguments": [1, 2]}, {"meta": [1]}, {"input": "x"}, {"timeout": -1}]
)
async def test_a_call_that_cannot_be_meant_so_keeps_no_place(wrong: dict[str, Any]):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(spec(kit, max_sessions=1)) as runtime,
    ):
        with pytest.raises(InvalidArguments):
            await runtime.call("kit.record", **wrong, context=ANN)
        assert (await runtime.call("kit.record", context=BEN, timeout=5)).success


@pytest.mark.requirement("H4")
async def test_a_name_that_its_server_does_not_have_keeps_no_session():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(spec(kit, max_sessions=1)) as runtime,
    ):
        with pytest.raises(UnknownTool):
            await runtime.call("kit.missing", context=ANN)
        assert (await runtime.call("kit.record", context=BEN, timeout=5)).success


@pytest.mark.requirement("H4")
async def test_a_listing_that_others_wait_for_goes_on_within_the_bound():
    async with ScriptedServer.local(era="legacy") as kit:
        async with Runtime.open(spec(kit, max_sessions=1), listen=False) as runtime:
            await kit.script(Rule(do=Behaviour(delay=0.3), method="tools/list", times=1))
            first = asyncio.create_task(runtime.call("kit.record", context=ANN))
            await kit.requests("tools/list", at_least=2)
            second = asyncio.create_task(runtime.resolve(["kit.record"], ANN))
            await asyncio.sleep(0)
            first.cancel()
            assert (await runtime.call("kit.record", context=BEN, timeout=5)).success
            assert len(await second) == 1
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert len(ends) == len(await kit.requests("initialize"))


async def lost(*_: Any) -> Any:
    """Awaits a task of its own that somebody has cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    return await task


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("option", "kind"),
    [("filter", UnknownTool), ("permissions", UnknownTool), ("header_provider", AuthNeeded)],
)
async def test_a_cancellation_that_a_function_met_by_itself_is_not_the_callers(
    option: str, kind: type[Exception]
):
    options: Any = {option: lost}
    async with ScriptedServer.local() as kit:
        async with Runtime.open(spec(kit), **options) as runtime:
            with pytest.raises(kind):
                await runtime.call("kit.record")
        assert await kit.ledger() == {}


@pytest.mark.requirement("O1")
async def test_an_observer_that_meets_a_cancellation_harms_nobody():
    def observer(event: Any) -> None:
        raise asyncio.CancelledError

    async with ScriptedServer.local() as kit, Runtime.open(spec(kit)) as runtime:
        runtime.observe(observer)
        assert (await runtime.call("kit.record")).success


@pytest.mark.requirement("T11", "H3")
async def test_a_tool_that_was_searched_for_speaks_for_whom_it_was_searched():
    context = CallContext(principal="ann", headers={"authorization": "Bearer ann"})
    async with ScriptedServer.local(era="legacy") as kit, Runtime.open(spec(kit)) as runtime:
        found = await runtime.search("headers", context=context)
        (tool,) = [one for one in found if one.tool == "headers"]
        assert (await tool.call()).data["authorization"] == "Bearer ann"


@pytest.mark.requirement("T9")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_subscription_outlives_its_server_s_reconnection(era: Any):
    async with ScriptedServer.local(era=era) as kit, Runtime.open(spec(kit)) as runtime:
        (resource,) = runtime.catalogue.resources
        await runtime.subscribe(resource.uri, server="kit")
        await runtime.reconnect(failed_only=False)
        heard = asyncio.Event()
        runtime.observe(lambda event: heard.set() if event.kind == "changed" else None)
        assert await kit.resource_updated(resource.uri) >= 1
        async with asyncio.timeout(5):
            await heard.wait()
