"""The account of a plan says what ran, what did not and what is not known. The servers' ledgers are
the judges."""

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compose._plans import (
    PATIENCE,
    disagreements,
    echo,
    fail,
    ledger_of,
    opened,
    record,
    slow,
    states,
)
from toolkeep import CallOutcomeUnknown, CallRejected, Delivery, Runtime
from toolkeep.compose import (
    Account,
    Equals,
    Fallback,
    Finished,
    ForEach,
    Parallel,
    Part,
    Plan,
    PlanEvent,
    PlanFailed,
    Sequence,
    State,
    Step,
    StepStarted,
    ref,
    run,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer

NO = {"code": -32603, "message": "no"}

TWELVE = Plan(
    Step("find", "old.add", {"a": 1, "b": ref("inputs.more"), "key": "find"}),
    Parallel(record("left", "new"), record("right", "pipe")),
    Step("upset", "builtin.upset"),
    record("after-loss", "old"),
    fail("error", "new", on_failure="go_on"),
    record("lost", "pipe", on_failure=Fallback({"id": "none"})),
    echo("restarted", ref("lost.data.id"), "pipe"),
    Step("turned-away", "old.record_idempotent", {"key": "turned-away"}, on_failure="go_on"),
    record("skipped", "new", when=Equals(ref("find.data.sum"), 99)),
    slow("rejected", 0, "old", on_failure="go_on"),
    record("unknown", "new"),
    record("never", "pipe"),
)


@pytest.mark.requirement("F2")
async def test_twelve_steps_over_three_servers_with_every_trouble_in_the_middle() -> None:
    async with (
        ScriptedServer.spawn(era="legacy") as old,
        ScriptedServer.spawn(era="modern") as new,
        ScriptedServer.stdio() as pipe,
    ):

        async def upset() -> str:
            """Make the old server forget its sessions."""
            await old.forget_sessions()
            return "forgotten"

        specs = {"old": old.spec, "new": new.spec, "pipe": pipe.spec}
        async with Runtime.open({"mcpServers": specs}, functions=[upset]) as runtime:
            await pipe.script(Rule(tool="record", skip=1, times=1, do=Behaviour(drop="after_run")))
            await old.script(Rule(tool="record_idempotent", do=Behaviour(status=400)))
            await old.script(Rule(tool="slow", do=Behaviour(error=NO)))
            await new.script(Rule(tool="record", skip=1, do=Behaviour(drop="after_body")))
            handshakes = len(await old.requests("initialize"))
            account = await run(runtime, TWELVE, inputs={"more": 2}, timeout=2 * PATIENCE)
            handshakes = len(await old.requests("initialize")) - handshakes
        ran = await ledger_of([old, new, pipe])

    assert states(account) == {
        "find": State.COMPLETED,
        "left": State.COMPLETED,
        "right": State.COMPLETED,
        "upset": State.COMPLETED,
        "after-loss": State.COMPLETED,
        "error": State.TOOL_ERROR,
        "lost": State.UNKNOWN,
        "restarted": State.COMPLETED,
        "turned-away": State.NOT_DELIVERED,
        "skipped": State.SKIPPED,
        "rejected": State.FAILED,
        "unknown": State.UNKNOWN,
        "never": State.NOT_REACHED,
    }
    expected = ["find", "left", "right", "after-loss", "error", "lost", "restarted"]
    assert ran == dict.fromkeys(expected, 1)
    ran["upset"] = 1
    assert disagreements(account, ran) == []
    assert handshakes == 1
    result = account["after-loss"].result
    assert result is not None
    assert result.attempts == 2
    assert account.values["restarted"]["text"] == "none"
    assert isinstance(account["unknown"].error, CallOutcomeUnknown)
    assert isinstance(account["rejected"].error, CallRejected)
    assert account.ended
    assert not account.ok
    assert not account.cancelled
    told = account.text()
    assert all(name in told for name in states(account) if name not in ran or name == "error")
    with pytest.raises(PlanFailed) as failed:
        account.raise_for_failure()
    assert failed.value.account is account
    assert failed.value.delivery is Delivery.UNKNOWN


# -- whatever the plan, and whatever goes wrong --------------------------------------------------

FAULTS = {
    "lost session": Behaviour(status=404),
    "after the run": Behaviour(drop="after_run"),
    "before the run": Behaviour(drop="after_body"),
    "broken answer": Behaviour(drop="mid_answer"),
    "turned away": Behaviour(status=400),
    "no": Behaviour(error=NO),
    "broken server": Behaviour(status=500),
    "late no": Behaviour(error=NO, run=True),
    "tool error": Behaviour(result={"content": [], "isError": True, "resultType": "complete"}),
    "no result": Behaviour(result={"resultType": "nonsense"}),
}
POLICIES: Any = st.sampled_from(["stop", "go_on", Fallback(1)])
NUMBERS = itertools.count()
"""Whoever is given up may run later: no name is used again."""
WHENS = st.sampled_from([None, None, Equals(1, 1), Equals(1, 2)])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Steps in any nesting, each with its path in the account as its key."""
    names = (f"s{next(NUMBERS)}" for _ in range(1000))

    def step(name: str, key: Any) -> Step:
        tool, policy = draw(st.sampled_from(["one.record", "two.record"])), draw(POLICIES)
        return Step(name, tool, {"key": key}, when=draw(WHENS), on_failure=policy)

    def part(depth: int) -> Part:
        kind, name, when = draw(st.integers(0, 5 if depth else 2)), next(names), draw(WHENS)
        if kind < 3:
            return step(name, name)
        if kind == 3:
            return for_each(name, when)
        inside = [part(depth - 1) for _ in range(draw(st.integers(1, 3)))]
        return (Sequence if kind == 4 else Parallel)(*inside, when=when)

    def for_each(name: str, when: Any) -> ForEach:
        inner = [next(names) for _ in range(draw(st.integers(1, 2)))]
        count, policy = draw(st.integers(0, 4)), draw(st.sampled_from(["stop", "go_on"]))
        over = [{one: f"{name}[{at}].{one}" for one in inner} for at in range(count)]
        do = draw(st.sampled_from([Sequence, Parallel]))(
            *(step(one, ref(f"item.{one}")) for one in inner)
        )
        at_once = draw(st.integers(1, 4))
        terms: Any = {"limit": 4, "when": when, "on_failure": policy, "at_once": at_once}
        return ForEach(name, over, do, **terms)

    parts = [part(2) for _ in range(draw(st.integers(1, 4)))]
    siblings: Any = draw(st.sampled_from(["finish", "cancel"]))
    return Plan(*parts, siblings=siblings, at_once=draw(st.sampled_from([1, 3, 16])))


troubles = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(sorted(FAULTS)), st.integers(0, 2)), max_size=6
)


async def judged(
    runtime: Runtime,
    servers: list[ScriptedServer],
    plan: Plan,
    faults: list[tuple[int, str, int]],
    give_up: int | None,
) -> Account:
    before = await ledger_of(servers)
    for server in servers:
        await server.clear()
    for at, fault, skip in faults:
        await servers[at].script(Rule(tool="record", skip=skip, times=1, do=FAULTS[fault]))
    await servers[0].script(Rule(tool="record", do=Behaviour(delay=0.01)))
    events: list[PlanEvent] = []
    begun = itertools.count(1)

    def hear(event: PlanEvent) -> None:
        events.append(event)
        if isinstance(event, StepStarted) and next(begun) == give_up:
            asyncio.get_running_loop().call_later(0.003, running.cancel)

    running = asyncio.create_task(run(runtime, plan, timeout=PATIENCE, on_event=hear))
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert isinstance(events[-1], Finished)
    account = events[-1].account
    ran = await ledger_of(servers) - before
    told = {call.path for call in account.calls}
    assert disagreements(account, Counter({key: ran[key] for key in ran if key in told})) == []
    return account


@pytest.mark.requirement("F2")
def test_the_account_agrees_with_the_ledgers_whatever_goes_wrong() -> None:
    @settings(max_examples=150)
    @given(plan=plans(), faults=troubles, give_up=st.sampled_from([None, None, 1, 3]))
    def agrees(plan: Plan, faults: list[tuple[int, str, int]], give_up: int | None) -> None:
        account = runner.run(judged(runtime, servers, plan, faults, give_up))
        met.update(states(account).values())
        assert account.ok is (not account.ended and not account.unknown)
        said = account.to_json()
        assert json.loads(json.dumps(said)) == said
        if not faults and not give_up:
            assert account.ok
            assert set(states(account).values()) <= {State.COMPLETED, State.SKIPPED}

    met = set[State]()
    opening = opened({"era": "legacy"}, {"era": "modern"}, max_replays=1, breaker_threshold=1000)
    with asyncio.Runner() as runner:
        runtime, servers = runner.run(opening.__aenter__())
        try:
            agrees()
        finally:
            runner.run(opening.__aexit__(None, None, None))
    assert met == set(State)


# -- what can be asked of it ---------------------------------------------------------------------


async def test_a_plan_that_went_well_has_nothing_to_tell() -> None:
    async with opened() as (runtime, _):
        account = await run(runtime, Plan(record("a"), record("b")))
    account.raise_for_failure()
    assert account.ok
    assert not account.ended
    assert account.failures == account.unknown == account.not_run == ()
    assert [one.name for one in account.completed] == ["a", "b"]
    assert account.text() == "The plan got to its end. 2 of 2 calls completed."
    with pytest.raises(KeyError):
        account["c"]


async def test_what_failed_and_was_gone_on_from_is_a_failure_of_a_plan_that_is_ok() -> None:
    async with opened() as (runtime, _):
        account = await run(runtime, Plan(fail("a", on_failure="go_on"), record("b")))
    account.raise_for_failure()
    assert [one.name for one in account.failures] == ["a"]
    assert account["a"].state.is_failure
    assert not account["a"].state.may_have_run
    assert "a says no" in account.text()


async def test_an_outcome_that_is_not_known_is_told_even_if_the_plan_got_to_its_end() -> None:
    async with opened() as (runtime, (one,)):
        await one.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        account = await run(runtime, Plan(record("a", on_failure="go_on"), echo("b", "hi")))
    assert not account.ended
    assert not account.ok
    assert [one.name for one in account.unknown] == ["a"]
    with pytest.raises(PlanFailed) as failed:
        account.raise_for_failure()
    assert failed.value.delivery is Delivery.UNKNOWN


@pytest.mark.parametrize(("ran", "delivery"), [(True, "ANSWERED"), (False, "NOT_SENT")])
async def test_a_failed_plan_says_whether_anything_of_it_was_sent(ran: bool, delivery: str) -> None:
    async with opened({"era": "modern"}) as (runtime, (one,)):
        await one.script(Rule(tool="record", do=Behaviour(status=400)))
        steps = (echo("a", "hi"), record("b")) if ran else (record("b"), echo("a", "hi"))
        account = await run(runtime, Plan(*steps))
    with pytest.raises(PlanFailed) as failed:
        account.raise_for_failure()
    assert failed.value.delivery is Delivery[delivery]
    assert [one.name for one in account.not_run] == (["b"] if ran else ["b", "a"])


async def test_a_fan_out_is_told_element_by_element_and_a_long_list_is_cut() -> None:
    numbers = list(range(30))
    do = Step("say", "one.fail", {"message": "x" * 1000}, on_failure="go_on")
    async with opened() as (runtime, _):
        account = await run(runtime, Plan(ForEach("each", numbers, do, limit=30)))
    assert len(account.calls) == len(account.failures) == 30
    assert account["each"].is_fan_out
    assert account["each"].state is State.TOOL_ERROR
    assert account["each[7].say"].state is State.TOOL_ERROR
    assert len(account["each"].items) == 30
    told = account.text()
    assert "each[19].say" in told
    assert "each[20].say" not in told
    assert "10 more" in told
    assert len(told) < 10_000


async def test_an_account_as_json_has_everything_that_the_servers_said() -> None:
    plan = Plan(
        Step("sum", "one.add", {"a": 1, "b": 2}),
        ForEach("each", ["x"], echo("say", ref("item")), limit=1),
        record("no", when=Equals(ref("sum.data.sum"), 4)),
        Step("bad", "one.bad_output"),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    said = json.loads(json.dumps(account.to_json()))
    by_name = {step["name"]: step for step in said["steps"]}
    assert by_name["sum"]["result"]["structuredContent"] == {"sum": 3}
    assert by_name["each"]["items"][0][0]["path"] == "each[0].say"
    assert by_name["no"]["state"] == "skipped"
    assert by_name["no"]["why"]
    assert by_name["bad"]["error"]["type"] == "InvalidResult"
    assert said["ok"] is False
    assert said["text"] == account.text()


async def test_neither_inputs_nor_headers_are_in_what_is_told_of_a_plan() -> None:
    from toolkeep import CallContext

    async with opened({"era": "modern"}) as (runtime, (one,)):
        await one.script(Rule(tool="echo", do=Behaviour(drop="after_run")))
        context = CallContext(principal="ada", headers={"authorization": "Bearer hunter2"})
        plan = Plan(record("a"), echo("b", ref("inputs.password")), record("c"))
        account = await run(runtime, plan, inputs={"password": "hunter2"}, context=context)
        sent = await one.requests("tools/call")
    assert any("hunter2" in request.headers.get("authorization", "") for request in sent)
    said = json.dumps(account.to_json())
    told = [repr(account), account.text(), said, repr(PlanFailed(account)), repr(account["b"])]
    assert [text for text in told if "hunter2" in text] == []


@pytest.mark.parametrize("oversized", ["truncate", "spill", "error"])
async def test_a_part_of_a_result_is_never_passed_on_as_the_result(oversized: str) -> None:
    plan = Plan(
        Step("big", "one.echo", {"text": "x" * 3_000, "key": "big"}),
        echo("next", ref("big.text")),
    )
    async with opened(result_limit=1_000, oversized=oversized) as (runtime, servers):
        account = await run(runtime, plan)
        assert disagreements(account, await ledger_of(servers)) == []
    assert states(account) == {"big": State.FAILED, "next": State.NOT_REACHED}
    assert not account.ok
    assert "big" not in account.values
    assert "result_limit" in account.text()


async def test_a_plan_can_go_on_after_a_result_that_was_cut() -> None:
    big = Step("big", "one.echo", {"text": "x" * 3_000}, on_failure=Fallback("nothing"))
    async with opened(result_limit=1_000, oversized="truncate") as (runtime, _):
        account = await run(runtime, Plan(big, echo("next", ref("big.data"))))
    assert account["big"].state is State.FAILED
    assert account.values["next"]["text"] == "nothing"
