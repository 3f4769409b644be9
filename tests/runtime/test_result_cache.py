"""Results that are used again: for whom, of what, for how long. The server's ledger counts what
really ran."""

import asyncio
from typing import Any

import pytest

from tests.runtime._identity import BOUND, house, named, nameless
from tests.runtime._life import Ear, config_of
from toolkeep import CallContext, CallNotSentInTime, CallRejected, NotPermitted, Runtime
from toolkeep.events import Completed, Failed, Started
from toolkeep.testing import Behaviour, Rule, ScriptedServer

READ = {
    "name": "read",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
KEPT: dict[str, Any] = {"cache_results": 60}
TOOLS: dict[str, Any] = {"tools": [READ]}


async def ran(server: ScriptedServer) -> int:
    return sum((await server.ledger()).values())


@pytest.mark.requirement("F1")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_equal_call_is_answered_by_what_the_first_one_brought(era: Any) -> None:
    async with house(era, KEPT, server=TOOLS) as (server, runtime):
        first = await runtime.call("kit.read", {"a": 1, "b": [2]})
        second = await runtime.call("kit.read", {"b": [2], "a": 1})
        assert await ran(server) == 1
        assert (first.cached, second.cached) == (False, True)
        assert second.raw == first.raw
        assert (second.attempts, second.server, second.tool) == (0, "kit", "read")
        figures = runtime.stats.tool("kit", "read")
        assert (figures.calls, figures.cached, figures.attempts) == (1, 1, 1)


@pytest.mark.requirement("F1")
async def test_nothing_is_used_again_that_nobody_asked_for() -> None:
    async with house("modern", server=TOOLS) as (server, runtime):
        for _ in range(3):
            assert not (await runtime.call("kit.read", {"a": 1})).cached
        assert await ran(server) == 3


@pytest.mark.requirement("F1")
@pytest.mark.parametrize("tool", ["record", "record_idempotent"])
async def test_only_what_is_marked_read_only_is_used_again(tool: str) -> None:
    async with house("modern", KEPT) as (server, runtime):
        for _ in range(3):
            assert not (await runtime.call(f"kit.{tool}", {"key": "x"})).cached
        assert await ran(server) == 3


async def test_each_tool_is_kept_for_the_shortest_time_that_is_said_for_it() -> None:
    tools = [{**READ, "name": name} for name in ("read_a", "read_b", "other")]
    kept = {"cache_results": {"read_*": 60, "*_b": 0.001}}
    async with house("modern", kept, server={"tools": tools}) as (server, runtime):
        for name in ("read_a", "read_b", "other"):
            await runtime.call(f"kit.{name}")
            await asyncio.sleep(0.002)  # the time that one of them is kept for
            await runtime.call(f"kit.{name}")
        assert await server.ledger() == {"read_a": 1, "read_b": 2, "other": 2}


@pytest.mark.parametrize("given", [1, 1.0, True, "1", [1], None])
async def test_arguments_are_equal_when_they_are_the_same_on_the_wire(given: Any) -> None:
    others = [each for each in (1, 1.0, True, "1", [1], None) if repr(each) != repr(given)]
    async with house("modern", KEPT, server=TOOLS) as (_, runtime):
        for each in others:
            await runtime.call("kit.read", {"x": each})
        assert not (await runtime.call("kit.read", {"x": given})).cached
        assert (await runtime.call("kit.read", {"x": given})).cached


async def test_a_result_that_somebody_alters_is_kept_as_it_was() -> None:
    async with house("modern", KEPT, server=TOOLS) as (_, runtime):
        for _ in range(3):
            result: Any = await runtime.call("kit.read", {"a": 1})
            assert len(result.raw["content"]) == 1
            result.raw["content"].clear()


# -- whose it is -------------------------------------------------------------------------------


@pytest.mark.requirement("F1")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_principals_never_share_a_result(era: Any) -> None:
    async with house(era, KEPT, server=TOOLS) as (server, runtime):
        for caller in (named("ada"), named("bob"), None, named("ada"), named("bob"), None):
            await runtime.call("kit.read", {"a": 1}, context=caller)
        assert await ran(server) == 3


@pytest.mark.requirement("F1")
async def test_without_a_name_every_header_of_identity_separates() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        callers = [nameless("Bearer a"), nameless("Bearer b"), nameless(x_user="a"), None]
        for caller in (*callers, *callers):
            await runtime.call("kit.read", {"a": 1}, context=caller)
        assert await ran(server) == len(callers)
        await runtime.call("kit.read", {"a": 1}, headers={"x-user": "z"})
        assert await ran(server) == len(callers) + 1


async def test_a_rotated_token_of_the_same_principal_changes_nothing() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        for token in ("Bearer old", "Bearer new"):
            await runtime.call("kit.read", {"a": 1}, context=named("ada", token))
        assert await ran(server) == 1
        await runtime.call("kit.read", {"a": 1}, context=named("ada", x_tenant="other"))
        assert await ran(server) == 2


async def test_a_neutral_header_changes_nothing() -> None:
    spec = {**KEPT, "non_identity_headers": ["x-request"]}
    async with house("modern", spec, server=TOOLS) as (server, runtime):
        for number in range(3):
            await runtime.call("kit.read", {"a": 1}, headers={"x-request": str(number)})
        assert await ran(server) == 1


async def test_who_may_not_call_a_tool_is_not_shown_what_it_brought() -> None:
    permissions = {"ada": ["kit.*"], "*": []}
    async with house("modern", KEPT, server=TOOLS, permissions=permissions) as (_, runtime):
        await runtime.call("kit.read", {"a": 1}, context=named("ada"))
        with pytest.raises((NotPermitted, LookupError)):
            await runtime.call("kit.read", {"a": 1}, context=named("bob"))


async def test_a_forgotten_principal_is_shown_nothing_that_was_kept() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read", {"a": 1}, context=named("ada"))
        await runtime.forget("ada")
        await runtime.call("kit.read", {"a": 1}, context=named("ada"))
        assert await ran(server) == 2


# -- equal calls at the same time --------------------------------------------------------------


async def started(
    server: ScriptedServer, runtime: Runtime, waiting: int, **call: Any
) -> list["asyncio.Task[Any]"]:
    """A call that has arrived, and others like it that wait for it."""
    first = asyncio.create_task(runtime.call("kit.read", {"a": 1}))
    await server.requests(tool="read", at_least=1)
    rest = [asyncio.create_task(runtime.call("kit.read", {"a": 1}, **call)) for _ in range(waiting)]
    for _ in range(20):  # each of them comes to its wait without one of ours
        await asyncio.sleep(0)
    return [first, *rest]


@pytest.mark.requirement("F1")
async def test_equal_calls_at_the_same_time_are_one() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(delay=0.1)))
        ends = await asyncio.gather(*await started(server, runtime, 20))
        assert await ran(server) == 1
        assert [end.cached for end in ends] == [False] + [True] * 20
        figures = runtime.stats.tool("kit", "read")
        assert (figures.calls, figures.cached) == (1, 20)


async def test_when_the_one_that_calls_goes_away_one_of_the_others_takes_over() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(hang=True, run=False), times=1))
        first, *rest = await started(server, runtime, 10)
        first.cancel()
        async with asyncio.timeout(BOUND):
            ends = await asyncio.gather(*rest)
        assert await ran(server) == 1
        assert sorted(end.cached for end in ends) == [False] + [True] * 9
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_failure_is_nobody_elses() -> None:
    async with house("modern", {**KEPT, "max_retries": 0}, server=TOOLS) as (server, runtime):
        broken = Behaviour(error={"code": -32603, "message": "no"}, delay=0.1)
        await server.script(Rule(tool="read", do=broken, times=1))
        first, *rest = await started(server, runtime, 5)
        ends = await asyncio.gather(*rest)
        assert all(end.success for end in ends)
        with pytest.raises(CallRejected):
            await first
        assert (await runtime.call("kit.read", {"a": 1})).cached


async def test_who_waits_for_another_call_has_a_deadline_of_its_own() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(hang=True)))
        first, late = await started(server, runtime, 1, timeout=0.05)
        with pytest.raises(CallNotSentInTime):
            await asyncio.wait_for(late, BOUND)
        assert not first.done()
        figures = runtime.stats.tool("kit", "read")
        assert figures.errors == {"CallNotSentInTime/not sent": 1}
        first.cancel()
        await asyncio.wait([first])


async def test_who_waits_for_another_call_can_go_away() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(delay=0.1)))
        ear = Ear(runtime)
        first, second, third = await started(server, runtime, 2)
        second.cancel()
        assert (await third).cached
        assert not (await first).cached
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (len(ear.of(Started)), len(ear.of(Completed))) == (3, 2)
        assert [type(event.error) for event in ear.of(Failed)] == [asyncio.CancelledError]
        figures = runtime.stats.tool("kit", "read")
        assert (figures.calls, figures.cached, figures.cancelled) == (2, 1, 1)
        assert figures.in_flight == 0


async def test_callers_of_different_identity_wait_for_nobody_else() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(delay=0.05)))
        callers = [named("ada"), named("bob"), None]
        calls = (runtime.call("kit.read", {"a": 1}, context=caller) for caller in callers)
        ends = await asyncio.gather(*calls)
        assert await ran(server) == 3
        assert not any(end.cached for end in ends)


# -- what is never kept ------------------------------------------------------------------------


@pytest.mark.requirement("F1")
async def test_a_tools_own_error_is_never_used_again() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        said = {"content": [{"type": "text", "text": "no"}], "isError": True}
        result = {"resultType": "complete", **said}
        await server.script(Rule(tool="read", do=Behaviour(result=result), times=2))
        assert (await runtime.call("kit.read")).is_error
        assert (await runtime.call("kit.read")).is_error
        assert not (await runtime.call("kit.read")).is_error
        assert len(await server.requests(tool="read")) == 3


async def test_a_result_that_breaks_its_schema_is_never_used_again() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{**READ, "outputSchema": schema}]
    async with house("modern", KEPT, server={"tools": tools}) as (server, runtime):
        for _ in range(2):
            with pytest.raises(Exception, match="structured content"):
                await runtime.call("kit.read")
        assert await ran(server) == 2


@pytest.mark.parametrize("special", [{"meta": {"x": 1}}, {"input": "return"}])
async def test_a_call_that_says_more_than_its_arguments_is_made(special: Any) -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read")
        assert not (await runtime.call("kit.read", **special)).cached
        assert await ran(server) == 2


# -- what ends it ------------------------------------------------------------------------------


async def test_whatever_is_written_to_a_server_ends_what_was_kept_of_it() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read", context=named("ada"))
        await runtime.call("kit.record", {"key": "w"}, context=named("bob"))
        assert not (await runtime.call("kit.read", context=named("ada"))).cached
        assert await server.executions("read") == 2


async def test_what_is_read_while_something_is_written_is_not_used_after_it() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="record", do=Behaviour(delay=0.1)))
        writing = asyncio.create_task(runtime.call("kit.record", {"key": "w"}))
        await server.requests(tool="record", at_least=1)
        await runtime.call("kit.read")
        assert (await runtime.call("kit.read")).cached
        await writing
        assert not (await runtime.call("kit.read")).cached


async def test_a_tool_that_is_no_longer_read_only_is_called() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read")
        await server.set_tools([{"name": "read", "inputSchema": {"type": "object"}}])
        await runtime.refresh("kit")
        assert not (await runtime.call("kit.read")).cached
        await server.set_tools([READ])
        await runtime.refresh("kit")
        assert not (await runtime.call("kit.read")).cached
        assert await ran(server) == 3


async def test_a_tool_that_is_another_one_by_now_is_called() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read")
        await server.set_tools([{**READ, "description": "Reads something else."}])
        await runtime.refresh("kit")
        assert not (await runtime.call("kit.read")).cached


@pytest.mark.parametrize(
    "changed", [{"headers": {"x-account": "other"}}, {"api_key": "another"}, {"timeouts": {}}]
)
async def test_a_server_that_is_asked_as_somebody_else_is_called(changed: Any) -> None:
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        before = {**server.spec, **KEPT}
        async with Runtime.open(config_of(kit=before)) as runtime:
            await runtime.call("kit.read")
            await runtime.reload(config_of(kit={**before, **changed}))
            again = await runtime.call("kit.read")
            assert again.cached is ("timeouts" in changed)


# -- watched calls -----------------------------------------------------------------------------


async def test_a_watched_call_has_its_two_events_and_the_observers_have_them() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await runtime.call("kit.read", {"a": 1})
        ear = Ear(runtime)
        async with runtime.stream("kit.read", {"a": 1}) as call:
            events = [event async for event in call]
            result = await call.result()
        assert result.cached
        assert [type(event) for event in events] == [Started, Completed]
        assert events[-1].is_final
        assert [type(event) for event in ear.events] == [Started, Completed]
        assert len({event.call_id for event in events}) == 1
        assert await ran(server) == 1


async def test_a_watched_call_waits_for_nobody_because_there_would_be_nothing_to_see() -> None:
    async with house("modern", KEPT, server=TOOLS) as (server, runtime):
        await server.script(Rule(tool="read", do=Behaviour(delay=0.1)))

        async def watched() -> Any:
            async with runtime.stream("kit.read", {"a": 1}) as call:
                return await call.result()

        ends = await asyncio.gather(runtime.call("kit.read", {"a": 1}), watched())
        assert not any(end.cached for end in ends)
        assert await ran(server) == 2
        context = CallContext()
        assert (await runtime.call("kit.read", {"a": 1}, context=context)).cached
