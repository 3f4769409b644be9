"""The JSON form of a plan: the same plan, the same rules, whatever anybody writes."""

import copy
import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compose._plans import PATIENCE, opened
from toolkeep.compose import (
    EACH,
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
    PlanRefused,
    Ref,
    Sequence,
    Step,
    plan_schema,
    ref,
    run,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = TEXTS | st.sampled_from(["$from", "$$from", "$$", "$", "default", "$x", "$$x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
FINITE = SCALARS.filter(lambda one: not isinstance(one, float) or abs(one) != float("inf"))
LITERALS = st.recursive(
    FINITE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
WORDS = st.text("aZ09_-", min_size=1, max_size=4) | st.just("x" * 64)
PATHS = st.lists(TEXTS | st.integers(0, 10**9 - 1) | st.just(EACH), max_size=4).map(tuple)
REFS = st.builds(Ref, WORDS, PATHS) | st.builds(Ref, WORDS, PATHS, LITERALS)
VALUES = st.recursive(
    FINITE | REFS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
CONDITIONS = st.recursive(
    st.builds(Exists, REFS)
    | st.builds(Equals, VALUES, VALUES)
    | st.builds(Less, VALUES, VALUES)
    | st.builds(OneOf, VALUES, VALUES),
    lambda inner: (
        st.builds(Not, inner)
        | st.lists(inner, max_size=2).map(lambda many: AllOf(*many))
        | st.lists(inner, max_size=2).map(lambda many: AnyOf(*many))
    ),
    max_leaves=4,
)
WHENS = st.none() | CONDITIONS
PLAIN_POLICIES: Any = st.sampled_from(["stop", "go_on"])
STEPS = st.builds(
    Step,
    WORDS,
    TEXTS.filter(bool),
    st.dictionaries(KEYS, VALUES, max_size=3),
    when=WHENS,
    on_failure=PLAIN_POLICIES | st.builds(Fallback, LITERALS),
    timeout=st.none() | st.integers(1, 86_400) | st.floats(0.001, 86_400),
)
PARTS: Any = st.recursive(
    STEPS,
    lambda inner: (
        st.builds(
            lambda kind, many, when: kind(*many, when=when),
            st.sampled_from([Sequence, Parallel]),
            st.lists(inner, min_size=1, max_size=3),
            WHENS,
        )
        | st.builds(
            ForEach,
            WORDS,
            REFS | st.lists(VALUES, max_size=3),
            inner,
            limit=st.integers(1, 100_000),
            at_once=st.integers(1, 100),
            item=WORDS,
            when=WHENS,
            on_failure=PLAIN_POLICIES,
        )
    ),
    max_leaves=4,
)
PLANS = st.builds(
    lambda many, siblings, at_once: Plan(*many, siblings=siblings, at_once=at_once),
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["finish", "cancel"]),
    st.integers(1, 100),
)
SCHEMA = jsonschema_rs.Draft202012Validator(plan_schema())


@pytest.mark.requirement("F2")
@settings(max_examples=60)
@given(PLANS)
def test_a_plan_that_is_written_and_read_is_the_same_plan(plan: Plan) -> None:
    written = plan.to_json()
    assert Plan.from_json(written) == plan
    text = json.dumps(written)
    assert Plan.from_json(text) == Plan.from_json(text.encode()) == plan
    assert SCHEMA.is_valid(written)


# -- written wrongly -----------------------------------------------------------------------------

ODD = LITERALS | st.sampled_from(
    ["stop", {"fallback": 1}, {"$from": "a.b"}, {"$from": 5}, {"equals": [1]}, {"tool": "x"}, [{}]]
)


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    held = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        held = dict(enumerate(value))
    found = [at]
    for key, one in held.items():
        found += places_in(one, (*at, key))
    return found


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A plan in which something was left out, put in, or replaced."""
    whole: Any = {"plan": copy.deepcopy(draw(PLANS).to_json())}
    place = draw(st.sampled_from(places_in(whole["plan"])))
    within = whole
    for key in ("plan", *place)[:-1]:
        within = within[key]
    key = ("plan", *place)[-1]
    match draw(st.integers(0, 2)):
        case 0 if isinstance(within, dict) and within is not whole:
            del within[key]
        case 1 if isinstance(within[key], dict):
            within[key][draw(KEYS | st.sampled_from(["when", "limit", "name", "do"]))] = draw(ODD)
        case _:
            within[key] = draw(ODD)
    return whole["plan"]


def refused(given: Any) -> list[str]:
    """What is wrong with it, place by place."""
    try:
        Plan.from_json(given)
    except PlanRefused as error:
        return [f"{one.place}: {one.problem}" for one in error.problems]
    return []


ONLY_THE_READER = ("twice", "a bracket", "quoted key", "JSON has no")
"""What a schema cannot say."""


@settings(max_examples=80)
@given(spoilt())
def test_the_schema_refuses_what_the_reader_refuses_and_takes_what_it_takes(given: Any) -> None:
    problems = refused(given)
    if not problems:
        assert SCHEMA.is_valid(given)
    elif not any(word in problem for problem in problems for word in ONLY_THE_READER):
        assert not SCHEMA.is_valid(given), problems


def test_a_schema_may_name_the_tools_that_there_are() -> None:
    schema = jsonschema_rs.Draft202012Validator(plan_schema(["b.y", "a.x"]))
    assert schema.is_valid(Plan(Step("s", "a.x")).to_json())
    assert not schema.is_valid(Plan(Step("s", "a.z")).to_json())
    assert json.loads(json.dumps(plan_schema())) == plan_schema()


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], ""),
    "nothing": (None, ""),
    "no steps": ({}, "steps"),
    "empty": ({"steps": []}, "steps"),
    "unknown key": ({"steps": [{"name": "a", "tool": "x"}], "stpes": 1}, "stpes"),
    "siblings": ({"steps": [{"name": "a", "tool": "x"}], "siblings": "x"}, "siblings"),
    "no kind": ({"steps": [{"name": "a"}]}, "steps[0]"),
    "two kinds": ({"steps": [{"tool": "x", "parallel": []}]}, "steps[0]"),
    "no step": ({"steps": ["x"]}, "steps[0]"),
    "unknown key of a step": ({"steps": [{"name": "a", "tool": "x", "args": 1}]}, "steps[0].args"),
    "arguments by reference": (
        {"steps": [{"name": "a", "tool": "x", "arguments": {"$from": "b"}}]},
        "steps[0].arguments",
    ),
    "two conditions": (
        {"steps": [{"name": "a", "tool": "x", "when": {"all": [], "any": []}}]},
        "steps[0].when",
    ),
    "a pair of three": (
        {"steps": [{"name": "a", "tool": "x", "when": {"less": [1, 2, 3]}}]},
        "steps[0].when.less",
    ),
    "no limit": (
        {"steps": [{"name": "a", "for_each": [], "do": {"name": "b", "tool": "x"}}]},
        "steps[0]",
    ),
    "keys that are one": (
        {"steps": [{"name": "a", "tool": "x", "arguments": {"$a": 1, "$$a": 2}}]},
        "steps[0].arguments.$$a",
    ),
    "half a character": (
        {"steps": [{"name": "a", "tool": "x", "arguments": {"t": "\ud800"}}]},
        "steps[0].arguments.t",
    ),
    "a huge number": (
        {"steps": [{"name": "a", "tool": "x", "arguments": {"n": 10**2000}}]},
        "steps[0].arguments.n",
    ),
    "a huge limit": (
        {"steps": [{"name": "a", "for_each": [], "do": {"tool": "x", "name": "b"}, "limit": 1e99}]},
        "steps[0].limit",
    ),
    "a huge time": (
        {"steps": [{"name": "a", "tool": "x", "timeout": 10**400}]},
        "steps[0].timeout",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_where_it_stands(what: str) -> None:
    given, place = WRONG[what]
    with pytest.raises(PlanRefused) as error:
        Plan.from_json(given)
    assert [one.place for one in error.value.problems] == [place]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert Plan.from_json('{"steps": [{"name": "a", "tool": "x"}], "at_once": 2.0}').at_once == 2


def test_a_key_that_was_probably_meant_is_named() -> None:
    given = {"steps": [{"name": "a", "tool": "x", "argumnets": {}}]}
    with pytest.raises(PlanRefused, match="'arguments'"):
        Plan.from_json(given)


PATHS_THAT_ARE_NONE = [
    *("", ".a", "a.", "a..b", "a b", "a[", "a[]", "a[1", "a[x]", "a[1]b", "a[1.5]", "a[-1]"),
    *('a["b', 'a["b"', 'a["b"x', "a['b']", "a[9999999999]", "a[**]", "ä.b", "x" * 65),
]


@pytest.mark.parametrize("path", PATHS_THAT_ARE_NONE)
def test_a_path_that_cannot_be_read_is_told_in_python_and_in_json(path: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        ref(path)
    given = {"steps": [{"name": "a", "tool": "x", "arguments": {"v": {"$from": path}}}]}
    with pytest.raises(PlanRefused) as error:
        Plan.from_json(given)
    assert [one.place for one in error.value.problems] == ["steps[0].arguments.v"]
    assert not SCHEMA.is_valid(given)


def test_keys_that_are_no_words_are_written_in_quotes() -> None:
    keys = ("a b", 'say "so"', "", "x" * 65, "ä", "\n", "back\\slash")
    for key in keys:
        one = Ref("a", (key, 0, EACH))
        assert ref(str(one)) == one
    assert str(Ref("a", ("plain", "a b"))) == 'a.plain["a b"]'


# -- written by an enemy -------------------------------------------------------------------------

STEP = '{"name": "a", "tool": "x", "arguments": {"v": %s}}'


def nested(opening: str, inside: str, closing: str, levels: int) -> str:
    return opening * levels + inside + closing * levels


HOSTILE = {
    "not JSON": "{",
    "nothing": "",
    "not a number": '{"steps": [' + STEP % "NaN" + "]}",
    "infinity": '{"steps": [' + STEP % "-Infinity" + "]}",
    "too large a float": '{"steps": [' + STEP % "1e999" + "]}",
    "more digits than python reads": '{"steps": [' + STEP % ("9" * 5000) + "]}",
    "many digits": '{"steps": [' + STEP % ("9" * 4000) + "]}",
    "a limit of many digits": '{"steps": [{"name": "a", "for_each": [], "do": {}, "limit": '
    + "9" * 4000
    + "}]}",
    "keys twice": '{"steps": [], "steps": [' + STEP % "1" + "]}",
    "keys twice inside": '{"steps": [' + STEP % '{"a": 1, "a": 2}' + "]}",
    "many keys and one twice": '{"steps": [' + STEP % "{%s}" + "]}",
    "deep values": '{"steps": [' + STEP % nested("[", "", "]", 500) + "]}",
    "deeper values": '{"steps": [' + STEP % nested('{"a":', "1", "}", 100_000) + "]}",
    "deep parts": '{"steps": [' + nested('{"sequence": [', STEP % 1, "]}", 200) + "]}",
    "deep conditions": '{"steps": [{"name": "a", "tool": "x", "when": '
    + nested('{"not": ', "1", "}", 300)
    + "}]}",
    "deep fallback": '{"steps": [{"name": "a", "tool": "x", "on_failure": {"fallback": '
    + nested("[", "", "]", 300)
    + "}}]}",
    "many steps": '{"steps": [' + ",".join(["1"] * 300_000) + "]}",
    "many values": '{"steps": [' + STEP % ("[" + ",".join(["1"] * 400_000) + "]") + "]}",
    "long": '{"steps": [' + STEP % ('"' + "x" * 2_000_000 + '"') + "]}",
    "a long key": '{"steps": [], "' + "x" * 500_000 + '": 1}',
    "a long name": '{"steps": [{"tool": "x", "name": "' + "x" * 500_000 + '"}]}',
    "a long path": '{"steps": [' + STEP % ('{"$from": "a' + ".b" * 100_000 + '"}') + "]}",
    "an unclosed path": '{"steps": [' + STEP % r'{"$from": "a[\"b"}' + "]}",
    "a path that computes": '{"steps": [' + STEP % '{"$from": "a.b + 1"}' + "]}",
    "a path with a call": '{"steps": [' + STEP % '{"$from": "__import__(1).x"}' + "]}",
    "a path from behind": '{"steps": [' + STEP % '{"$from": "a[-1]"}' + "]}",
    "half a character": '{"steps": [' + STEP % r'"\ud800"' + "]}",
    "other texts": "\x00\xff" * 100,
}
HOSTILE["many keys and one twice"] %= ",".join(f'"k{n}": 1' for n in [*range(50_000), 49_999])


@pytest.mark.requirement("F2")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_json_is_refused_at_once_in_a_few_words(what: str) -> None:
    began = time.monotonic()
    for text in (HOSTILE[what], HOSTILE[what].encode(errors="surrogatepass")):
        with pytest.raises(PlanRefused) as error:
            Plan.from_json(text)
        assert len(str(error.value)) < 40_000
        assert error.value.__cause__ is None
    assert time.monotonic() - began < PATIENCE


@given(st.recursive(FINITE, lambda one: st.lists(one) | st.dictionaries(KEYS, one)) | st.binary())
def test_whatever_is_read_is_a_plan_or_is_refused(given: Any) -> None:
    for one in (given, json.dumps(given) if not isinstance(given, bytes) else given):
        assert refused(one)


async def test_the_longest_path_is_followed_in_the_deepest_value() -> None:
    """[F2] 300 times `[*]` over 300 lists in each other."""
    path = "a.data" + "[*]" * 300
    text = "[" * 300 + "]" * 300
    plan = Plan(
        Step("a", "one.echo", {"text": text}),
        Step("b", "one.ask", {"requests": {"x": ref(path)}}, on_failure="go_on"),
    )
    async with opened() as (runtime, _):
        account = await run(runtime, plan)
    assert account.completed[0].name == "a"


# -- read and run --------------------------------------------------------------------------------


@pytest.mark.requirement("F2")
async def test_a_plan_that_came_as_json_runs() -> None:
    text = """{
      "steps": [
        {"name": "sum", "tool": "one.add", "arguments": {"a": 1, "b": {"$from": "inputs.b"}}},
        {"parallel": [
          {"name": "say", "tool": "one.echo", "arguments": {"text": {"$from": "sum.text"}}},
          {"name": "no", "tool": "one.record", "when": {"less": [{"$from": "sum.data.sum"}, 3]}}
        ]},
        {"name": "each", "for_each": [1, 2], "limit": 2, "item": "n", "do":
          {"name": "more", "tool": "one.add",
           "arguments": {"a": {"$from": "n"}, "b": {"$from": "sum.data.sum"}}}},
        {"name": "bad", "tool": "one.fail", "arguments": {"message": "no"},
         "on_failure": {"fallback": "fine"}},
        {"name": "end", "tool": "one.echo", "arguments": {"text": {"$from": "bad.text"}}}
      ]
    }"""
    async with opened() as (runtime, (one,)):
        account = await run(runtime, Plan.from_json(text), inputs={"b": 2}, timeout=PATIENCE)
        assert await one.ledger() == {"add": 3, "echo": 2, "fail": 1}
    assert account.ok
    assert account.values["each"][1]["more"]["data"] == {"sum": 5}
    assert account.values["end"]["text"] == "fine"


async def test_keys_that_look_like_references_can_be_sent_as_they_are() -> None:
    own = {"$from": "a", "$$from": "b", "$": "c", "deep": [{"$from": 1, "default": 2}]}
    plan = Plan(Step("a", "one.give", own))
    assert Plan.from_json(plan.to_json()) == plan
    give = {"name": "give", "inputSchema": {"type": "object"}}
    async with opened({"tools": [give]}) as (runtime, _):
        account = await run(runtime, plan)
    assert account.values["a"]["data"] == own
