"""Calls through a runtime: their deadline, their cancellation, what is refused without a server.

The same promises as those of a client, and now finding the tool and waiting for a session are part
of the call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime._life import (
    LONG,
    PATIENCE,
    QUICK,
    config_of,
    ended,
    eras,
    failure_of,
)
from toolkeep import (
    AmbiguousTool,
    CallContext,
    CallResult,
    CallTimedOut,
    InvalidArguments,
    InvalidResult,
    Runtime,
    ServerUnavailable,
    UnknownTool,
)
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

ADA, BOB = CallContext(principal="ada"), CallContext(principal="bob")
contexts = pytest.mark.parametrize("context", [None, ADA], ids=["nobody", "ada"])


def doing(work: Awaitable[CallResult]) -> "asyncio.Task[CallResult]":
    return asyncio.ensure_future(work)


# -- one deadline (P3) ----------------------------------------------------------------------------


@pytest.mark.requirement("P3")
@eras
async def test_the_deadline_covers_listing_for_a_principal(era: Any):
    async with ScriptedServer.local(era=era) as kit:
        await kit.set_cache(60_000, "private")
        async with Runtime.open(config_of(kit=kit)) as runtime:
            await kit.script(Rule(do=Behaviour(hang=True), method="tools/list"))
            async with asyncio.timeout(PATIENCE):
                error = await failure_of(runtime.call("kit.record", context=ADA, timeout=0.3))
            assert error.delivery is Delivery.NOT_SENT
            assert isinstance(error, ServerUnavailable | TimeoutError)
            assert await kit.executions("record") == 0


@pytest.mark.requirement("P3")
async def test_the_deadline_covers_waiting_for_a_place():
    async with ScriptedServer.local(era="legacy") as kit:
        config = config_of(kit={**kit.spec, "max_sessions": 1})
        async with Runtime.open(config) as runtime:
            held = doing(runtime.call("kit.slow", {"seconds": LONG}, context=ADA))
            await kit.requests(tool="slow", at_least=1)
            error = await failure_of(runtime.call("kit.record", context=BOB, timeout=0.2))
            assert error.delivery is Delivery.NOT_SENT
            assert await kit.executions("record") == 0
            held.cancel()
            await ended(held)
            assert (await runtime.call("kit.record", context=BOB)).success


@pytest.mark.requirement("P3")
async def test_what_finding_and_waiting_took_is_not_given_again():
    """Half of the time goes by in the queue for a place: the other is too short for it."""
    async with ScriptedServer.local(era="legacy") as kit:
        config = config_of(kit={**kit.spec, "max_sessions": 1})
        async with Runtime.open(config) as runtime:
            held = doing(runtime.call("kit.slow", {"seconds": 0.5}, context=ADA))
            await kit.requests(tool="slow", at_least=1)
            work = runtime.call("kit.slow", {"seconds": 0.8}, context=BOB, timeout=1.0)
            assert isinstance(await failure_of(work), CallTimedOut | ServerUnavailable)
            await ended(held)


@pytest.mark.requirement("P3", "P1")
@contexts
async def test_a_call_that_takes_too_long_says_that_it_may_have_run(context: Any):
    async with (
        ScriptedServer.local() as kit,
        ScriptedServer.stdio() as program,
        Runtime.open(config_of(kit=kit, program=program)) as runtime,
    ):
        for name in ("kit", "program"):
            work = runtime.call(f"{name}.slow", {"seconds": LONG}, context=context, timeout=0.3)
            error = await failure_of(work)
            assert isinstance(error, CallTimedOut)
            assert (error.server, error.tool) == (name, "slow")
            assert error.delivery is Delivery.UNKNOWN


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("nan")])
async def test_a_deadline_that_is_none_is_refused(timeout: Any):
    async with ScriptedServer.local() as kit, Runtime.open(config_of(kit=kit)) as runtime:
        error = await failure_of(runtime.call("kit.record", timeout=timeout))
        assert isinstance(error, InvalidArguments)
        assert await kit.ledger() == {}


# -- cancellation (P5) ----------------------------------------------------------------------------


@pytest.mark.requirement("P5")
async def test_cancelled_while_its_tools_are_listed():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        await kit.script(Rule(do=Behaviour(delay=0.5), method="tools/list", times=1))
        call = doing(runtime.call("kit.record", {"key": "given up"}, context=ADA))
        other = doing(runtime.call("kit.record", {"key": "waits"}, context=ADA))
        await kit.requests("tools/list", at_least=2)
        call.cancel()
        await asyncio.wait((call,), timeout=PATIENCE)
        assert call.cancelled()
        assert (await other).success, "who waits for the same listing is not disturbed"
        assert await kit.ledger() == {"waits": 1}
        assert runtime.stats.server("kit").in_flight == 0


@pytest.mark.requirement("P5")
async def test_cancelled_while_waiting_for_a_place():
    async with ScriptedServer.local(era="legacy") as kit:
        config = config_of(kit={**kit.spec, "max_sessions": 1})
        async with Runtime.open(config) as runtime:
            held = doing(runtime.call("kit.slow", {"seconds": LONG}, context=ADA))
            await kit.requests(tool="slow", at_least=1)
            waiting = [doing(runtime.call("kit.record", context=BOB)) for _ in range(3)]
            await asyncio.sleep(0)
            for call in waiting[:2]:
                call.cancel()
            await asyncio.wait(waiting[:2], timeout=PATIENCE)
            assert all(call.cancelled() for call in waiting[:2])
            held.cancel()
            await ended(held)
            async with asyncio.timeout(PATIENCE):
                assert (await waiting[2]).success, "the place goes to who still waits"
            assert await kit.executions("record") == 1


@pytest.mark.requirement("P5")
@eras
@contexts
async def test_cancelled_in_flight_the_server_is_told(era: Any, context: Any):
    async with (
        ScriptedServer.local(era=era) as kit,
        ScriptedServer.stdio(era=era) as program,
        Runtime.open(config_of(kit=kit, program=program)) as runtime,
    ):
        for name, server in (("kit", kit), ("program", program)):
            call = doing(runtime.call(f"{name}.slow", {"seconds": LONG}, context=context))
            await server.requests(tool="slow", at_least=1)
            call.cancel()
            await asyncio.wait((call,), timeout=PATIENCE)
            assert call.cancelled()
            assert {one.tool for one in await server.cancelled(at_least=1)} == {"slow"}
            assert (await runtime.call(f"{name}.echo", {"text": "a"}, context=context)).success
            assert runtime.stats.tool(name, "slow").cancelled == 1


# -- refused without a request (P6) ---------------------------------------------------------------

REFUSED: dict[str, Callable[[Runtime, Any], Awaitable[Any]]] = {
    "no argument": lambda runtime, who: runtime.call("kit.echo", {}, context=who),
    "wrong type": lambda runtime, who: runtime.call("kit.add", {"a": "x", "b": 1}, context=who),
    "no mapping": lambda runtime, who: runtime.call("kit.echo", ["a"], context=who),  # pyright: ignore
    "bad header": lambda runtime, who: runtime.call(
        "kit.echo", {"text": "a"}, headers={"x-a": "1\r\nx-b: 2"}, context=who
    ),
    "no name": lambda runtime, who: runtime.call(None, {}, context=who),  # pyright: ignore
}


@pytest.mark.requirement("P6")
@contexts
@pytest.mark.parametrize("why", REFUSED)
async def test_what_cannot_be_right_costs_no_request(why: str, context: Any):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        await runtime.call("kit.record", context=context)
        before = len(await kit.requests())
        error = await failure_of(REFUSED[why](runtime, context))
        assert isinstance(error, InvalidArguments)
        assert error.delivery is Delivery.NOT_SENT
        assert len(await kit.requests()) == before


@pytest.mark.requirement("P6")
async def test_a_principal_s_first_call_is_checked_with_its_own_schema():
    """What it may send is what it was told, not what somebody else was."""
    strict = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        await kit.set_tools([{"name": "mine", "inputSchema": strict}])
        error = await failure_of(runtime.call("kit.mine", {"n": "x"}, context=ADA))
        assert isinstance(error, InvalidArguments)
        assert (await runtime.call("kit.mine", {"n": 1}, context=ADA)).success
        assert await kit.executions("mine") == 1


@contexts
async def test_names_that_mean_nothing_or_too_much(context: Any):
    async with (
        ScriptedServer.local() as one,
        ScriptedServer.local() as two,
        Runtime.open(config_of(one=one, two=two)) as runtime,
    ):
        unknown = await failure_of(runtime.call("one.ecko", {"text": "a"}, context=context))
        assert isinstance(unknown, UnknownTool)
        assert "one.echo" in unknown.suggestions
        several = await failure_of(runtime.call("echo", {"text": "a"}, context=context))
        assert isinstance(several, AmbiguousTool)
        assert set(several.candidates) == {"one.echo", "two.echo"}
        model_name = runtime.catalogue.tool("two.echo").model_name
        called = await runtime.call(model_name, {"text": "a"}, context=context)
        assert (called.server, called.tool, called.text) == ("two", "echo", "a")


@pytest.mark.requirement("P1")
async def test_a_tool_s_own_failure_is_a_result_and_a_broken_promise_is_not():
    async with ScriptedServer.local() as kit, Runtime.open(config_of(kit=kit)) as runtime:
        assert (await runtime.call("kit.fail", {"message": "no"})).is_error
        broken = await failure_of(runtime.call("kit.bad_output"))
        assert isinstance(broken, InvalidResult)
        assert broken.delivery is Delivery.ANSWERED


@pytest.mark.requirement("P1", "P2")
@contexts
async def test_a_server_that_breaks_off_is_replayed_only_where_that_is_harmless(context: Any):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        FaultProxy.to("127.0.0.1", kit.port) as proxy,
    ):
        config = config_of(kit={"url": proxy.url()})
        async with Runtime.open(config, backoff=QUICK) as runtime:
            await runtime.call("kit.echo", {"text": "a"}, context=context)
            drop = Behaviour(drop="after_run")
            await kit.script(Rule(do=drop, tool="record", times=1))
            await kit.script(Rule(do=drop, tool="record_idempotent", times=1))
            error = await failure_of(runtime.call("kit.record", {"key": "once"}, context=context))
            assert error.delivery is Delivery.UNKNOWN
            again = await runtime.call("kit.record_idempotent", {"key": "twice"}, context=context)
            assert again.attempts == 2
            assert {k: v for k, v in (await kit.ledger()).items() if k != "echo"} == {
                "once": 1,
                "twice": 2,
            }
