"""On whose behalf a plan runs, and that it calls nothing which that one may not."""

import asyncio
from typing import Any

import pytest

from tests.compose._plans import PATIENCE, echo, ledger_of, opened, record, slow, states
from tests.runtime._life import quiet_port
from toolkeep import CallContext, InvalidArguments, NotPermitted, Runtime, UnknownTool
from toolkeep.compose import ForEach, Parallel, Plan, PlanRefused, State, Step, check, ref, run
from toolkeep.testing import ScriptedServer

ALICE, BOB = CallContext(principal="alice"), CallContext(principal="bob")
MAY: dict[str, Any] = {
    "alice": ["*"],
    "bob": {"see": ["*", "!*.add"], "call": ["*.record", "*.echo"]},
}


@pytest.mark.requirement("F2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_every_call_of_a_plan_speaks_for_its_context(era: Any) -> None:
    each = ForEach("each", [1, 2], Step("c", "one.headers"), limit=2)
    plan = Plan(record("a"), Parallel(record("b"), each))
    async with opened({"era": era}) as (runtime, (one,)):
        for name in ("ada", "grace"):
            headers = {"x-user": name}
            context = CallContext(principal=name, headers=headers)
            assert (await run(runtime, plan, context=context)).ok
        calls = await one.requests("tools/call")
    users = [call.headers.get("x-user") for call in calls]
    assert users == ["ada"] * 4 + ["grace"] * 4
    if era == "legacy":
        sessions = [call.session_id for call in calls]
        assert len(set(sessions[:4])) == len(set(sessions[4:])) == 1
        assert sessions[0] != sessions[4]


@pytest.mark.requirement("F2", "T7")
async def test_a_plan_with_a_tool_that_its_context_may_not_see_is_not_started() -> None:
    plan = Plan(record("a"), Step("sum", "one.add", {"a": 1, "b": 2}))
    async with opened(permissions=MAY) as (runtime, servers):
        with pytest.raises(PlanRefused) as refused:
            await run(runtime, plan, context=BOB)
        assert [one.place for one in refused.value.problems] == ["steps[1].tool"]
        assert "one.add" not in str(refused.value).replace("no single tool is 'one.add'", "")
        with pytest.raises(PlanRefused):
            await run(runtime, plan)
        assert await ledger_of(servers) == {}
        assert (await run(runtime, plan, context=ALICE)).ok


async def test_a_tool_that_may_be_seen_and_not_called_is_not_called() -> None:
    plan = Plan(record("a"), slow("b", 0), record("c"))
    async with opened(permissions=MAY) as (runtime, servers):
        account = await run(runtime, plan, context=BOB)
        assert await ledger_of(servers) == {"a": 1}
    assert isinstance(account["b"].error, NotPermitted)
    assert account["b"].state is State.NOT_DELIVERED


async def test_a_permission_that_fails_is_a_refusal() -> None:
    def broken(tool: Any, context: Any) -> bool:
        raise RuntimeError("no idea")

    async with ScriptedServer.local() as one:
        config = {"mcpServers": {"one": one.spec}}
        async with Runtime.open(config, filter=broken) as runtime:
            with pytest.raises(PlanRefused):
                await run(runtime, Plan(record("a")), context=ALICE)
        assert await one.ledger() == {}


EXTRA = {"name": "extra", "inputSchema": {"type": "object"}}
CHANGE = Step("change", "builtin.change")


async def test_a_tool_that_goes_while_the_plan_runs_is_not_delivered() -> None:
    async def change() -> None:
        """The tool is offered no more."""
        await one.set_tools([])
        await runtime.refresh("one")

    plan = Plan(CHANGE, Step("extra", "one.extra"), record("after"))
    async with opened({"tools": [EXTRA]}, functions=[change]) as (runtime, (one,)):
        account = await run(runtime, plan, timeout=PATIENCE)
        assert await ledger_of([one]) == {}
    assert isinstance(account["extra"].error, UnknownTool)
    assert states(account)["extra"] is State.NOT_DELIVERED


async def test_a_tool_that_takes_something_else_by_then_is_not_sent_what_no_longer_fits() -> None:
    async def change() -> None:
        """The tool wants something more."""
        await one.set_tools([{**EXTRA, "inputSchema": {"type": "object", "required": ["reason"]}}])
        await runtime.refresh("one")

    plan = Plan(CHANGE, Step("extra", "one.extra"))
    async with opened({"tools": [EXTRA]}, functions=[change]) as (runtime, (one,)):
        account = await run(runtime, plan, timeout=PATIENCE)
        assert await ledger_of([one]) == {}
    assert isinstance(account["extra"].error, InvalidArguments)


async def test_a_server_that_is_removed_while_the_plan_runs_is_not_replaced_by_another() -> None:
    async def change() -> None:
        """The server is no longer there."""
        await runtime.remove("two")

    plan = Plan(CHANGE, record("b", "two"))
    async with opened({}, {}, functions=[change]) as (runtime, servers):
        account = await run(runtime, plan, timeout=PATIENCE)
        assert await ledger_of(servers) == {}
    assert account["b"].state is State.NOT_DELIVERED


async def test_a_server_that_the_plan_does_not_need_holds_nothing_up() -> None:
    dead = {"url": f"http://127.0.0.1:{quiet_port()}/mcp", "timeouts": {"connect": 30}}
    async with ScriptedServer.local() as one, asyncio.timeout(PATIENCE):
        config = {"mcpServers": {"one": one.spec, "dead": dead}}
        async with Runtime.open(config, connect_timeout=0.2) as runtime:
            assert (await run(runtime, Plan(record("a")), context=ALICE)).ok


async def test_names_for_models_and_short_names_are_names_of_tools() -> None:
    plan = Plan(
        Step("a", "one__record", {"key": "a"}),
        Step("b", "unique", {"key": "b"}),
        echo("c", "hi", "two"),
    )
    async with opened({}, {"tools": [{"name": "unique", "inputSchema": {"type": "object"}}]}) as (
        runtime,
        _,
    ):
        account = await run(runtime, plan)
        assert [one.tool for one in account.steps] == ["one.record", "two.unique", "two.echo"]
        with pytest.raises(PlanRefused) as refused:
            await run(runtime, Plan(Step("a", "record")))
        assert "one.record or two.record" in str(refused.value)
        checked = check(plan, runtime.catalogue)
        assert checked.most_calls == 3
        assert checked.tools["b"].name == "two.unique"


async def test_what_was_checked_is_what_is_called_even_if_inputs_change_meanwhile() -> None:
    inputs = {"text": "before"}
    async with opened() as (runtime, (one,)), asyncio.timeout(PATIENCE):
        plan = Plan(slow("wait", 0.3), echo("say", ref("inputs.text")))
        running = asyncio.create_task(run(runtime, plan, inputs=inputs))
        await one.requests("tools/call", at_least=1, within=PATIENCE)
        inputs["text"] = "after"
        assert (await running).values["say"]["text"] == "before"
