"""How a plan runs: in sequence, at once, by conditions, over lists, with what was given before."""

import asyncio
from typing import Any

import pytest

from tests.compose._plans import (
    PATIENCE,
    echo,
    fail,
    given_up,
    ledger_of,
    opened,
    record,
    slow,
    states,
)
from toolkeep import InvalidArguments
from toolkeep.compose import (
    AllOf,
    AnyOf,
    Equals,
    Exists,
    Fallback,
    ForEach,
    Less,
    Not,
    OneOf,
    Parallel,
    Plan,
    PlanEvent,
    Sequence,
    State,
    Step,
    StepEnded,
    StepStarted,
    ref,
    run,
)
from toolkeep.testing import Behaviour, Rule

GIVE = {"name": "give", "inputSchema": {"type": "object"}}
"""A tool that answers with its arguments, as JSON in a text."""


def give(name: str, **arguments: Any) -> Step:
    return Step(name, "one.give", arguments)


def at_the_same_time(events: list[PlanEvent]) -> int:
    """The most calls that were under way at once."""
    most = now = 0
    for event in events:
        now += isinstance(event, StepStarted)
        now -= isinstance(event, StepEnded) and bool(event.record.tool)
        most = max(most, now)
    return most


# -- one after the other, and at once ------------------------------------------------------------


@pytest.mark.requirement("F2")
async def test_a_sequence_hands_on_what_its_steps_gave() -> None:
    plan = Plan(
        Step("sum", "one.add", {"a": ref("inputs.numbers[0]"), "b": ref("inputs.numbers[1]")}),
        Step("more", "two.add", {"a": ref("sum.data.sum"), "b": 10}),
        echo("say", ref("more.text"), "two"),
        Step("deep", "one.give", {"list": [{"in": ref("say.content[0].type")}, ref("sum.data")]}),
        echo("last", ref("deep.data.list[0].in")),
    )
    async with opened({"tools": [GIVE], "era": "legacy"}, {"era": "modern"}) as (runtime, _):
        account = await run(runtime, plan, inputs={"numbers": [1, 2]})
    assert account.ok
    assert account.values["more"]["data"] == {"sum": 13}
    assert account.values["say"]["text"] == '{"sum": 13}'
    assert account.values["deep"]["data"]["list"] == [{"in": "text"}, {"sum": 3}]
    assert account.values["last"]["text"] == "text"
    assert "inputs" not in account.values


async def test_what_is_parallel_is_under_way_at_once_within_the_plans_limit() -> None:
    many = [slow(f"s{n}", 0.05) for n in range(6)]
    async with opened() as (runtime, _):
        for limit in (16, 2, 1):
            events: list[PlanEvent] = []
            plan = Plan(Parallel(*many), at_once=limit)
            account = await run(runtime, plan, on_event=events.append)
            assert account.ok
            assert at_the_same_time(events) == min(limit, 6)


async def test_a_step_that_fails_lets_its_siblings_finish_and_nothing_new_begin() -> None:
    plan = Plan(
        Parallel(
            fail("bad"),
            slow("sibling", 0.3),
            Sequence(slow("before", 0.3), record("new")),
        ),
        record("after"),
    )
    async with opened() as (runtime, servers):
        account = await run(runtime, plan)
        ran = await ledger_of(servers)
    assert states(account) == {
        "bad": State.TOOL_ERROR,
        "sibling": State.COMPLETED,
        "before": State.COMPLETED,
        "new": State.NOT_REACHED,
        "after": State.NOT_REACHED,
    }
    assert sorted(ran) == ["bad", "before", "sibling"]
    assert account["after"].why == account.ended


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_step_that_fails_cancels_its_siblings_if_the_plan_says_so(era: Any) -> None:
    plan = Plan(Parallel(slow("sibling"), slow("other"), Sequence(slow("wait", 0.2), fail("bad"))))
    async with opened({"era": era}) as (runtime, (one,)), asyncio.timeout(PATIENCE):
        account = await run(runtime, Plan(*plan.steps, siblings="cancel"))
        assert await given_up(one, 2) == {"slow"}
    assert states(account) == {
        "sibling": State.CANCELLED,
        "other": State.CANCELLED,
        "wait": State.COMPLETED,
        "bad": State.TOOL_ERROR,
    }
    assert account["other"].state.may_have_run
    assert not account.cancelled
    assert len(account.unknown) == 2


# -- when a step fails ---------------------------------------------------------------------------


@pytest.mark.requirement("F2")
async def test_a_fallback_takes_the_place_of_what_a_failed_step_would_have_given() -> None:
    plan = Plan(
        fail("bad", on_failure=Fallback({"id": 7})),
        Step("sum", "one.add", {"a": ref("bad.data.id"), "b": 1}),
        fail("worse", on_failure=Fallback("words")),
        echo("say", ref("worse.text")),
        echo("raw", ref("bad.text")),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    assert account.ok
    assert account["bad"].state is State.TOOL_ERROR
    assert account.values["sum"]["data"] == {"sum": 8}
    assert account.values["say"]["text"] == "words"
    assert account.values["raw"]["text"] == '{"id": 7}'


async def test_a_plan_goes_on_from_a_step_whose_policy_says_so() -> None:
    plan = Plan(
        fail("bad", on_failure="go_on"),
        echo("default", ref("bad.text", "nothing")),
        echo("guarded", ref("bad.text"), when=Exists(ref("bad"))),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    assert account.ok
    assert account.values["default"]["text"] == "nothing"
    assert account["guarded"].state is State.SKIPPED


async def test_a_reference_that_leads_nowhere_when_it_comes_to_it_is_a_step_not_delivered() -> None:
    lost = {"text": ref("gave.data.missing"), "key": "lost"}
    plan = Plan(
        give("gave", present=1),
        Step("lost", "one.echo", lost, on_failure=Fallback("instead")),
        echo("used", ref("lost.text")),
        Step("stop", "one.echo", {"text": ref("gave.data.present[0]")}),
        record("after"),
    )
    async with opened({"tools": [GIVE]}) as (runtime, servers):
        account = await run(runtime, plan)
        ran = await ledger_of(servers)
    assert isinstance(account["lost"].error, InvalidArguments)
    assert account["lost"].state is account["stop"].state is State.NOT_DELIVERED
    assert account.values["used"]["text"] == "instead"
    assert account["after"].state is State.NOT_REACHED
    assert sorted(ran) == ["give", "used"]


async def test_a_text_that_only_looks_like_json_is_a_text() -> None:
    plan = Plan(
        echo("a", "{not json"),
        echo("b", "12"),
        record("c", when=Exists(ref("a.data"))),
        record("d", when=Exists(ref("b.data"))),
        record("e", when=Exists(ref("a.content[0].text[*].x", 1))),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    assert [one.name for one in account.completed] == ["a", "b", "e"]


async def test_arguments_that_turn_out_not_to_fit_are_not_sent() -> None:
    plan = Plan(give("gave", number="ten"), Step("sum", "one.add", {"a": ref(PATH), "b": 1}))
    async with opened({"tools": [GIVE]}) as (runtime, servers):
        account = await run(runtime, plan)
        assert sorted(await ledger_of(servers)) == ["give"]
    assert account["sum"].state is State.NOT_DELIVERED


PATH = "gave.data.number"


# -- conditions ----------------------------------------------------------------------------------

YES, NO, NOWHERE = ref("inputs.yes"), ref("inputs.no"), ref("inputs.nowhere")
NUMBER, LIST, NULL = ref("inputs.number"), ref("inputs.list"), ref("inputs.null")

HOLD = [
    Exists(YES),
    Exists(NULL),
    Not(Exists(NOWHERE)),
    Equals(NUMBER, 3),
    Equals(NUMBER, 3.0),
    Not(Equals(YES, 1)),
    Not(Equals(1, True)),
    Equals(YES, True),
    Equals(LIST, [1, 2, {"a": None}]),
    Not(Equals(LIST, [1, 2])),
    Not(Equals(LIST, [1, 2, {"b": None}])),
    Not(Equals(LIST, [1, 2, {"a": 0}])),
    Not(Equals(NOWHERE, NOWHERE)),
    Not(Equals(NOWHERE, None)),
    Equals(NULL, None),
    Not(Equals("3", NUMBER)),
    Less(2, NUMBER),
    Less("a", "b"),
    Not(Less("b", "a")),
    Not(Less(NUMBER, 3)),
    Not(Less(NUMBER, "4")),
    Not(Less(NO, YES)),
    Not(Less(NOWHERE, 1)),
    Not(Less(1, NOWHERE)),
    Not(Less(NULL, 1)),
    OneOf(2, LIST),
    OneOf(NUMBER, [1, 2, 3]),
    Not(OneOf(NOWHERE, [1, None])),
    Not(OneOf(1, NOWHERE)),
    Not(OneOf("a", "abc")),
    Not(OneOf(True, [1])),
    AllOf(),
    Not(AnyOf()),
    AllOf(Equals(1, 1), Less(1, 2)),
    Not(AllOf(Equals(1, 1), Less(2, 1))),
    AnyOf(Less(2, 1), Equals(1, 1)),
    Equals({"a": [YES]}, {"a": [True]}),
]


@pytest.mark.requirement("F2")
async def test_conditions_mean_what_they_say_and_are_always_decided() -> None:
    inputs = {"yes": True, "no": False, "number": 3, "null": None, "list": [1, 2, {"a": None}]}
    hold = [record(f"yes{at}", when=one) for at, one in enumerate(HOLD)]
    fail = [record(f"no{at}", when=Not(one)) for at, one in enumerate(HOLD)]
    async with opened() as (runtime, servers):
        account = await run(runtime, Plan(*hold, *fail), inputs=inputs)
        ran = await ledger_of(servers)
    assert account.ok
    assert [HOLD[at] for at in range(len(HOLD)) if not ran[f"yes{at}"]] == []
    assert [HOLD[at] for at in range(len(HOLD)) if ran[f"no{at}"]] == []
    skipped = {path for path, state in states(account).items() if state is State.SKIPPED}
    assert skipped == {one.name for one in fail}


async def test_a_value_nested_deeper_than_python_goes_is_compared_and_nothing_breaks() -> None:
    deep = "[" * 900 + "]" * 900
    plan = Plan(
        echo("one", deep),
        echo("two", deep),
        record("same", when=Equals(ref("one.data"), ref("two.data"))),
        record("sure"),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    assert account.ok
    assert account["sure"].state is State.COMPLETED


async def test_a_condition_of_a_group_is_one_of_all_its_steps() -> None:
    group = Sequence(
        record("a"),
        Parallel(record("b")),
        ForEach("each", [1], record("c"), limit=1),
        when=Equals(1, 2),
    )
    async with opened() as (runtime, servers):
        account = await run(runtime, Plan(group, record("d")))
        assert await ledger_of(servers) == {"d": 1}
    assert states(account) == {
        **dict.fromkeys(["a", "b", "each"], State.SKIPPED),
        "d": State.COMPLETED,
    }


# -- over a list ---------------------------------------------------------------------------------


@pytest.mark.requirement("F2")
async def test_a_fan_out_does_its_part_for_every_element_and_gives_a_list() -> None:
    add = Step("sum", "one.add", {"a": ref("item.n"), "b": ref("base.data.sum")})
    plan = Plan(
        Step("base", "one.add", {"a": 1, "b": 0}),
        give("gave", hits=[{"n": 1}, {"n": 2}, {"n": 3}]),
        ForEach("each", ref("gave.data.hits"), add, limit=3),
        give("all", sums=ref("each[*].sum.data.sum"), first=ref("each[0].sum.data")),
    )
    async with opened({"tools": [GIVE]}) as (runtime, _):
        account = await run(runtime, plan)
    assert account.ok
    assert account.values["all"]["data"] == {"sums": [2, 3, 4], "first": {"sum": 2}}


async def test_fan_outs_nest_and_see_the_elements_around_them() -> None:
    text = {"text": ref("row[0]"), "key": ref("cell")}
    inner = ForEach("cells", ref("row"), Step("say", "one.echo", text), limit=3, item="cell")
    plan = Plan(ForEach("rows", [["a", "b"], ["c"]], inner, limit=2, item="row"))
    seen: list[tuple[str, tuple[int, ...]]] = []

    def hear(event: PlanEvent) -> None:
        if isinstance(event, StepStarted):
            seen.append((event.step, event.items))

    async with opened() as (runtime, servers):
        account = await run(runtime, plan, on_event=hear)
        assert await ledger_of(servers) == {"a": 1, "b": 1, "c": 1}
    assert sorted(seen) == [("say", (0, 0)), ("say", (0, 1)), ("say", (1, 0))]
    assert sorted(states(account)) == [
        "rows[0].cells[0].say",
        "rows[0].cells[1].say",
        "rows[1].cells[0].say",
    ]
    assert account.values["rows"][0]["cells"][1]["say"]["text"] == "a"


async def test_a_fan_out_keeps_to_its_own_number_at_once() -> None:
    async with opened() as (runtime, _):
        for at_once, limit, expected in ((1, 16, 1), (3, 16, 3), (8, 2, 2)):
            events: list[PlanEvent] = []
            do = Step("s", "one.slow", {"seconds": 0.03})
            each = ForEach("each", list(range(8)), do, limit=8, at_once=at_once)
            account = await run(runtime, Plan(each, at_once=limit), on_event=events.append)
            assert account.ok
            assert at_the_same_time(events) == expected


async def test_a_list_longer_than_the_limit_is_refused_and_nothing_is_done_for_any_of_it() -> None:
    plan = Plan(
        give("gave", hits=[1, 2, 3]),
        ForEach("each", ref("gave.data.hits"), record("send"), limit=2),
        record("after"),
    )
    async with opened({"tools": [GIVE]}) as (runtime, servers):
        account = await run(runtime, plan)
        assert sorted(await ledger_of(servers)) == ["give"]
    assert states(account) == {
        "gave": State.COMPLETED,
        "each": State.NOT_DELIVERED,
        "after": State.NOT_REACHED,
    }
    assert [one.name for one in account.failures] == ["each"]
    assert "each" in account.text()


@pytest.mark.parametrize("path", ["gave.data.nowhere", "gave.data.hits"])
async def test_a_fan_out_over_what_is_no_list_is_not_begun(path: str) -> None:
    plan = Plan(give("gave", hits="no list"), ForEach("each", ref(path), record("s"), limit=2))
    async with opened({"tools": [GIVE]}) as (runtime, _):
        account = await run(runtime, plan)
    assert account["each"].state is State.NOT_DELIVERED
    assert path in account.ended


async def test_a_fan_out_over_nothing_is_done_at_once() -> None:
    plan = Plan(
        ForEach("each", [], record("s"), limit=2),
        Step("all", "one.give", {"all": ref("each[*].s.text")}),
    )
    async with opened({"tools": [GIVE]}) as (runtime, _):
        account = await run(runtime, plan)
    assert account.ok
    assert account["each"].state is State.COMPLETED
    assert account.values["each"] == account.values["all"]["data"]["all"] == []
    assert account.text() == "The plan got to its end. 1 of 1 calls completed."


async def test_an_element_that_fails_ends_the_plan_or_only_itself() -> None:
    first = Step("first", "one.echo", {"text": ref("item")})
    do = Sequence(first, Step("send", "one.record", {"key": ref("item")}))
    async with opened({"era": "modern"}) as (runtime, (one,)):
        for policy, expected in (("go_on", ["a", "c"]), ("stop", ["a"])):
            await one.clear()
            await one.script(Rule(tool="echo", skip=1, times=1, do=Behaviour(status=400)))
            before = await one.ledger()
            terms: Any = {"limit": 3, "at_once": 1, "on_failure": policy}
            plan = Plan(ForEach("each", ["a", "b", "c"], do, **terms), record("after"))
            account = await run(runtime, plan)
            ran = {key: n - before.get(key, 0) for key, n in (await one.ledger()).items()}
            assert [key for key in "abc" if ran.get(key)] == expected
            assert account["each[1].first"].state is State.NOT_DELIVERED
            assert account["each[1].send"].state is State.NOT_REACHED
            assert account["each"].state is State.NOT_DELIVERED
            assert account.ok is (policy == "go_on")
            assert (ran.get("after", 0) == 1) is (policy == "go_on")


async def test_an_element_that_fails_cancels_its_own_siblings_and_no_others() -> None:
    do = Parallel(
        Step("wait", "one.slow", {"seconds": ref("item")}),
        Sequence(
            Step("pause", "one.slow", {"seconds": 0.1}),
            fail("bad", when=Less(1, ref("item"))),
        ),
    )
    each = ForEach("each", [30, 0.5], do, limit=2, on_failure="go_on")
    async with opened() as (runtime, (one,)), asyncio.timeout(PATIENCE):
        account = await run(runtime, Plan(each, siblings="cancel"))
        await one.cancelled(at_least=1, within=PATIENCE)
    assert account["each[0].wait"].state is State.CANCELLED
    assert account["each[1].wait"].state is State.COMPLETED
    assert account["each"].state is State.CANCELLED
    assert not account.ended
