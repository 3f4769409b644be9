"""A plan is checked as a whole before anything runs: every problem at once, with place and remedy.

Most of this is a pure function of a plan and a catalogue; the catalogue is a shelf of schemas.
"""

import json
import time
from typing import Any

import pytest

from tests.compose._plans import PATIENCE, Shelf, ledger_of, opened, problems, record
from toolkeep.compose import (
    EACH,
    AllOf,
    AnyOf,
    Bounds,
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
    check,
    ref,
    run,
)

TEXT, NUMBER, ANY = {"type": "string"}, {"type": "number"}, {"type": "object"}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)}


PERSON = closed("name", name=TEXT, age={"type": "integer"}, email={"type": ["string", "null"]})
SHELF = Shelf(
    find=(
        closed("query", query=TEXT, limit={"type": "integer", "minimum": 1}),
        closed("hits", hits={"type": "array", "items": {"$ref": "#/$defs/person"}}, total=NUMBER)
        | {"$defs": {"person": PERSON}},
    ),
    mail=(closed("to", to=TEXT, copies={"type": "array", "items": TEXT}, more=PERSON), None),
    any=(ANY, None),
    open=({"type": "object", "properties": {"n": NUMBER}, "additionalProperties": TEXT}, ANY),
)
FIND = Step("find", "kit.find", {"query": "x"})


def wrong(*parts: Any, **more: Any) -> dict[str, str]:
    return problems(Plan(*parts), SHELF, **more)


def mail(to: Any, **more: Any) -> Step:
    return Step("mail", "kit.mail", {"to": to, **more})


# -- all at once, with places and remedies -------------------------------------------------------


@pytest.mark.requirement("F2")
async def test_all_that_is_wrong_is_told_at_once_and_nothing_runs() -> None:
    plan = Plan(
        record("a"),
        Step("b", "one.recrod"),
        Parallel(
            Step("c", "one.add", {"a": "one", "b": 2}),
            Step("d", "one.echo", {"text": ref("c.text")}),
        ),
        Step("e", "one.echo", {"text": ref("c.daat")}, when=Exists(ref("nobody"))),
        Step("e", "one.echo", {}),
    )
    async with opened() as (runtime, servers):
        with pytest.raises(PlanRefused) as refused:
            await run(runtime, plan)
        assert await ledger_of(servers) == {}
    found = {one.place: one for one in refused.value.problems}
    assert sorted(found) == [
        "steps[1].tool",
        "steps[2].parallel[0].arguments",
        "steps[2].parallel[1].arguments.text",
        "steps[3].arguments.text",
        "steps[3].when.exists",
        "steps[4].arguments",
        "steps[4].name",
    ]
    assert "one.record" in found["steps[1].tool"].remedy
    assert "'data'" in found["steps[3].arguments.text"].remedy
    told = str(refused.value)
    assert all(str(problem) in told for problem in refused.value.problems)
    assert isinstance(refused.value, ValueError)


def test_a_message_tells_the_first_and_the_error_holds_all() -> None:
    many = [Step(f"s{n}", "kit.nothing") for n in range(30)]
    with pytest.raises(PlanRefused) as refused:
        check(Plan(*many), SHELF)
    assert len(refused.value.problems) == 30
    assert len(str(refused.value).splitlines()) == 22


def test_one_problem_is_one() -> None:
    with pytest.raises(PlanRefused, match="1 problem\n"):
        check(Plan(Step("a", "kit.nothing")), SHELF)


def test_what_is_no_plan_is_refused() -> None:
    given: Any = {"steps": []}
    with pytest.raises(PlanRefused, match="from_json"):
        check(given, SHELF)


# -- references ----------------------------------------------------------------------------------

GOOD = [
    "find.data.hits[0].name",
    "find.data.hits[*].name",
    "find.data",
    "find.text",
    "find.content[0].text",
    'find.data["hits"][3]',
    "find",
]


@pytest.mark.parametrize("path", GOOD)
def test_a_path_that_can_lead_somewhere_is_taken(path: str) -> None:
    assert wrong(FIND, Step("use", "kit.any", {"value": ref(path)})) == {}


ASTRAY = {
    "find.daat": "data",
    "find.data.hist": "hits",
    "find.data.hits.name": "[0].name",
    "find.data.hits[0].nmae": "name",
    "find.data[0]": "",
    "find.data.total.x": "",
    "find.text.x": "",
    "find[0]": "content, data, text",
    "find.data.hits[*][0]": "",
    "fnid.data": "find",
}


@pytest.mark.parametrize("path", ASTRAY)
def test_a_path_that_leads_nowhere_is_told_with_the_nearest_name(path: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        check(Plan(FIND, Step("use", "kit.any", {"deep": [{"value": ref(path)}]})), SHELF)
    (problem,) = refused.value.problems
    assert problem.place == "steps[1].arguments.deep[0].value"
    assert ASTRAY[path] in problem.remedy


def test_a_reference_names_only_what_certainly_came_before() -> None:
    later = wrong(Step("use", "kit.any", {"value": ref("find.data")}), FIND)
    assert list(later) == ["steps[0].arguments.value"]
    beside = wrong(Parallel(FIND, Step("use", "kit.any", {"value": ref("find.data")})))
    assert list(beside) == ["steps[0].parallel[1].arguments.value"]
    itself = wrong(Step("use", "kit.any", {"value": ref("use.data")}))
    assert list(itself) == ["steps[0].arguments.value"]
    after = wrong(Parallel(Sequence(FIND)), Step("use", "kit.any", {"value": ref("find.data")}))
    assert after == {}


MAYBE = [
    Step("find", "kit.find", {"query": "x"}, when=Equals(1, ref("inputs.n"))),
    Step("find", "kit.find", {"query": "x"}, on_failure="go_on"),
    Sequence(FIND, when=Equals(1, ref("inputs.n"))),
]


@pytest.mark.parametrize("maybe", MAYBE, ids=["condition", "go on", "group"])
def test_of_what_may_not_have_run_a_reference_has_a_default_or_a_condition(maybe: Any) -> None:
    use: Any = {"value": ref("find.data")}
    assert list(wrong(maybe, Step("use", "kit.any", use))) == ["steps[1].arguments.value"]
    assert wrong(maybe, Step("use", "kit.any", {"value": ref("find.data", None)})) == {}
    exists = Exists(ref("find"))
    assert wrong(maybe, Step("use", "kit.any", use, when=exists)) == {}
    assert wrong(maybe, Step("use", "kit.any", use, when=AllOf(Less(1, 2), exists))) == {}
    assert wrong(maybe, Sequence(Step("use", "kit.any", use), when=exists)) == {}
    for no_proof in (AnyOf(exists, Less(1, 2)), Not(exists), Equals(1, 1)):
        assert wrong(maybe, Step("use", "kit.any", use, when=no_proof)) != {}


def test_conditions_may_ask_for_what_may_not_be_there_but_not_for_what_cannot() -> None:
    maybe = MAYBE[1]
    conditions = [
        Exists(ref("find.data.hits")),
        Equals(ref("find.text"), "x"),
        Less(1, ref("find.data.total")),
        OneOf("x", ref("find.data.hits[*].name")),
        Not(AnyOf(Exists(ref("find")))),
    ]
    assert wrong(maybe, Step("use", "kit.any", when=AllOf(*conditions))) == {}
    bad = [
        (Exists(ref("find.x")), "exists"),
        (Equals(1, [ref("find.x")]), "equals[1]"),
        (Less({"a": ref("find.x")}, 1), "less[0]"),
        (OneOf(ref("nobody"), []), "in[0]"),
        (Not(Exists(ref("find.x"))), "not.exists"),
        (AllOf(Exists(ref("find.x"))), "all[0].exists"),
        (AnyOf(Less(1, 2), Exists(ref("find.x"))), "any[1].exists"),
    ]
    for condition, place in bad:
        found = wrong(maybe, Step("use", "kit.any", when=condition))
        assert list(found) == [f"steps[1].when.{place}"]


def test_a_fallback_is_held_against_every_reference_to_its_step() -> None:
    def falling(value: Any) -> Step:
        return Step("find", "kit.find", {"query": "x"}, on_failure=Fallback(value))

    assert wrong(falling({"hits": []}), Step("u", "kit.any", {"v": ref("find.data.hits")})) == {}
    use = Step("u", "kit.any", {"v": ref("find.data.total")})
    assert list(wrong(falling({"hits": []}), use)) == ["steps[1].arguments.v"]
    with_default = Step("u", "kit.any", {"v": ref("find.data.total", 0)})
    assert wrong(falling({"hits": []}), with_default) == {}
    misfit = wrong(falling({"hits": [{"name": 5}]}), mail(ref("find.data.hits[0].name")))
    assert list(misfit) == ["steps[1].arguments.to"]


# -- arguments against schemas -------------------------------------------------------------------


def test_arguments_are_held_against_the_schema_as_far_as_they_are_known() -> None:
    assert wrong(FIND, mail(ref("find.data.hits[0].name"))) == {}
    assert wrong(FIND, mail("x", copies=ref("find.data.hits[*].name"))) == {}
    assert wrong(FIND, mail("x", copies=[ref("find.text"), "y"])) == {}
    assert wrong(FIND, mail("x", more={"name": ref("find.text")})) == {}
    assert wrong(FIND, mail(ref("find.data.hits[0].email"))) == {}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"to": ref("find.data.total")}, "arguments.to"),
        ({"to": ref("find.data")}, "arguments.to"),
        ({"to": ref("find.text"), "copies": ref("find.text")}, "arguments.copies"),
        ({"to": ref("find.text"), "copies": [ref("find.data.total")]}, "arguments.copies[0]"),
        ({"to": ref("find.text"), "copies": ["x", ref("find.text"), 5]}, "arguments.copies[2]"),
        ({"to": ref("find.text"), "copies": {"a": ref("find.text")}}, "arguments.copies"),
        ({"to": ref("find.text"), "more": [ref("find.text")]}, "arguments.more"),
        ({"to": ref("find.text"), "more": {"name": ref("find.data.hits")}}, "arguments.more.name"),
        ({"to": ref("find.text"), "more": {"age": ref("find.data.total")}}, "arguments.more"),
        ({"to": ref("find.text"), "mroe": 1}, "arguments.mroe"),
        ({"copies": [ref("find.text")]}, "arguments"),
        ({"to": ref("find.text", 5)}, "arguments.to"),
    ]
    for arguments, place in cases:
        assert list(wrong(FIND, Step("m", "kit.mail", arguments))) == [f"steps[1].{place}"]


def test_other_arguments_are_held_against_what_others_may_be() -> None:
    assert wrong(FIND, Step("o", "kit.open", {"n": 1, "x": ref("find.text")})) == {}
    found = wrong(FIND, Step("o", "kit.open", {"n": ref("find.text"), "x": ref("find.data")}))
    assert list(found) == ["steps[1].arguments.n", "steps[1].arguments.x"]


SCHEMAS: dict[str, tuple[Any, str]] = {
    "anyOf": ({"anyOf": [TEXT, {"type": "null"}]}, "find.data.total"),
    "oneOf": ({"oneOf": [TEXT, {"type": "boolean"}]}, "find.data.total"),
    "allOf": ({"allOf": [{}, TEXT]}, "find.data.total"),
    "$ref": ({"$ref": "#/$defs/text"}, "find.data.total"),
    "const": ({"const": 5}, "find.text"),
    "enum": ({"enum": [1, None, True, [], {}]}, "find.text"),
    "false": (False, "find.text"),
    "nested": ({"anyOf": [{"allOf": [TEXT]}, {"type": "array", "items": TEXT}]}, "find.data"),
}


@pytest.mark.parametrize("word", SCHEMAS)
def test_a_kind_that_can_never_fit_is_told_whatever_word_says_so(word: str) -> None:
    schema, path = SCHEMAS[word]
    whole = {"type": "object", "properties": {"v": schema}, "$defs": {"text": TEXT}}
    shelf = Shelf(find=(ANY, SHELF.tool("kit.find").output_schema), use=(whole, None))
    plan = Plan(Step("find", "kit.find"), Step("use", "kit.use", {"v": ref(path)}))
    found = problems(plan, shelf)
    if schema is False:
        assert found == {}  # left to the runtime
    else:
        assert list(found) == ["steps[1].arguments.v"]
    fits = Plan(Step("find", "kit.find"), Step("use", "kit.use", {"v": ref("find.content")}))
    if word in ("enum", "nested"):
        assert problems(fits, shelf) == {}


NASTY: dict[str, Any] = {
    "circle": {"$ref": "#"},
    "doubling circle": {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "anyOf": [{"$ref": "#"}] * 5},
    "everything refers to everything": {
        "type": "object",
        "properties": {"v": {"$ref": "#/$defs/d0"}},
        "$defs": {
            f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{m}"} for m in range(40)]} for n in range(40)
        },
    },
    "a long chain": {
        "properties": {"v": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(600)},
    },
    "a longer chain": {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)}},
    "not the words' types": {"type": 5, "required": 5, "properties": [], "allOf": 7, "enum": 3},
    "required of no texts": {"required": [[], {}, 5], "properties": {"v": 5}},
    "nothing of the kind": {"type": ["x", 5], "items": 5, "additionalProperties": "x"},
    "deep": {"properties": {"v": json.loads('{"allOf": [' * 90 + "{}" + "]}" * 90)}},
}


@pytest.mark.parametrize("what", NASTY)
def test_no_schema_of_a_server_makes_a_check_fail_or_take_long(what: str) -> None:
    shelf = Shelf(give=(NASTY[what], NASTY[what]), use=(NASTY[what], None))
    value = {"v": ref("give.data.v.w[0]"), "w": [ref("give.data.v[*].x"), {"x": ref("give.text")}]}
    plan = Plan(Step("give", "kit.give", {"v": 1}), Step("use", "kit.use", value))
    began = time.monotonic()
    problems(plan, shelf)
    assert time.monotonic() - began < PATIENCE


OUTPUTS: list[tuple[Any, str, bool]] = [
    ({"type": "object", "properties": {"a": ANY}}, "give.data.b", True),
    ({"type": "object", "additionalProperties": TEXT}, "give.data.b.c", False),
    ({"type": "object", "patternProperties": {"b": ANY}, **closed()}, "give.data.b", True),
    ({"allOf": [closed(a=TEXT)]}, "give.data.a", True),
    ({"properties": {"a": {"prefixItems": [TEXT], "items": NUMBER}}}, "give.data.a[0].x", True),
    ({"properties": {"a": {"items": NUMBER}}}, "give.data.a[0].x", False),
    ({"properties": {"a": {"$ref": "#/properties/b"}, "b": TEXT}}, "give.data.a.x", False),
    ({"properties": {"a": {"$ref": "#/properties/a"}}}, "give.data.a.x", True),
    ({"properties": {"a": {"$ref": "elsewhere"}}}, "give.data.a.x", True),
    ({"anyOf": [closed(a=TEXT), closed(b=TEXT)]}, "give.data.c", True),
]


@pytest.mark.parametrize(("schema", "path", "is_fine"), OUTPUTS)
def test_a_path_is_followed_through_the_output_schema_and_doubt_is_no_problem(
    schema: Any, path: str, is_fine: bool
) -> None:
    shelf = Shelf(give=(ANY, {"type": "object", **schema}), use=(ANY, None))
    plan = Plan(Step("give", "kit.give"), Step("use", "kit.use", {"v": ref(path)}))
    assert (problems(plan, shelf) == {}) is is_fine


# -- inputs --------------------------------------------------------------------------------------


def test_inputs_are_checked_if_they_are_given_and_may_be_anything_if_not() -> None:
    plan = Plan(mail(ref("inputs.to")), Step("f", "kit.any", {"x": ref("inputs.x[*].y", [])}))
    assert problems(plan, SHELF) == {}
    assert problems(plan, SHELF, inputs={"to": "me"}) == {}
    assert list(problems(plan, SHELF, inputs={"to": 5})) == ["steps[0].arguments"]
    assert list(problems(plan, SHELF, inputs={})) == ["steps[0].arguments.to"]


@pytest.mark.parametrize("inputs", [{"a": object()}, {5: 1}, {"a": float("inf")}, {"a": {1}}, [1]])
def test_inputs_that_are_no_json_are_refused(inputs: Any) -> None:
    places = list(problems(Plan(Step("a", "kit.any")), SHELF, inputs=inputs))
    assert len(places) == 1
    assert places[0].startswith("inputs")


# -- names, fan-outs, bounds ---------------------------------------------------------------------


def test_names_are_unique_also_over_levels_and_against_elements() -> None:
    def step(name: str) -> Step:
        return Step(name, "kit.any")

    assert list(wrong(step("a"), Parallel(step("b"), Sequence(step("a"))))) == [
        "steps[1].parallel[1].sequence[0].name"
    ]
    assert list(wrong(step("inputs"))) == ["steps[0].name"]
    each = ForEach("each", [1], step("a"), limit=1)
    assert list(wrong(each, step("a"))) == ["steps[1].name"]
    taken = ForEach("each", [1], step("a"), limit=1, item="a")
    assert list(wrong(taken)) == ["steps[0].item"]
    inner = ForEach("inner", [1], step("a"), limit=1)
    assert list(wrong(ForEach("outer", [1], inner, limit=1))) == ["steps[0].do.item"]


def test_what_is_inside_a_fan_out_is_known_inside_and_outside_by_element() -> None:
    use = Step("use", "kit.mail", {"to": ref("item.name")})
    each = ForEach("each", ref("find.data.hits"), use, limit=5)
    assert wrong(FIND, each, Step("u", "kit.any", {"v": ref("each[4].use.text")})) == {}
    outside = wrong(FIND, each, Step("u", "kit.any", {"v": ref("use.text")}))
    assert list(outside) == ["steps[2].arguments.v"]
    before = wrong(Step("u", "kit.any", {"v": ref("use.text")}), FIND, each)
    assert "belongs to each" in before["steps[0].arguments.v"]
    for path in ("each[5].use", "each.use", "each[0].find", "item"):
        found = wrong(FIND, each, Step("u", "kit.any", {"v": ref(path)}))
        assert list(found) == ["steps[2].arguments.v"]
    wrong_field = ForEach(
        "each",
        ref("find.data.hits"),
        Step("use", "kit.mail", {"to": ref("item.age")}),
        limit=5,
    )
    assert list(wrong(FIND, wrong_field)) == ["steps[1].do.arguments.to"]


def test_a_fan_out_is_over_a_list_no_longer_than_its_limit() -> None:
    do = Step("a", "kit.any", {"x": ref("item.y")})
    assert wrong(ForEach("e", [1, 2], do, limit=2)) == {}
    assert list(wrong(ForEach("e", [1, 2, 3], do, limit=2))) == ["steps[0].for_each"]
    assert list(wrong(FIND, ForEach("e", ref("find.text"), do, limit=2))) == ["steps[1].for_each"]
    over_input = ForEach("e", ref("inputs.many"), do, limit=2)
    assert wrong(over_input) == {}
    assert wrong(over_input, inputs={"many": [1]}) == {}
    assert list(wrong(over_input, inputs={"many": [1, 2, 3]})) == ["steps[0].for_each"]
    assert list(wrong(over_input, inputs={"many": "x"})) == ["steps[0].for_each"]
    assert list(wrong(over_input, inputs={})) == ["steps[0].for_each"]
    nobody = ForEach("e", ref("nobody.data"), do, limit=2)
    assert list(wrong(nobody)) == ["steps[0].for_each"]
    falling = Step("any", "kit.any", on_failure=Fallback([1]))
    assert wrong(falling, ForEach("e", ref("any.data"), do, limit=2)) == {}


@pytest.mark.requirement("F2")
def test_steps_levels_and_calls_are_bounded() -> None:
    step = Step("a", "kit.any")
    many = ForEach("e", [], ForEach("f", [], step, limit=40, item="g"), limit=40)
    assert "1600 calls" in wrong(many)[""]
    assert check(Plan(many), SHELF, bounds=Bounds(calls=1600)).most_calls == 1600
    assert "9 levels" in wrong(nested(9))[""]
    assert wrong(nested(8)) == {}
    steps = [Step(f"s{n}", "kit.any") for n in range(201)]
    assert "201 steps" in wrong(*steps)[""]
    assert wrong(*steps[:200]) == {}


def nested(levels: int) -> Any:
    part: Any = Step("a", "kit.any")
    for _ in range(levels - 1):
        part = Sequence(part)
    return part


def test_a_plan_far_too_large_is_refused_at_once() -> None:
    steps = [Step(f"s{n}", "kit.any") for n in range(20_000)]
    began = time.monotonic()
    assert "20000 steps" in wrong(*steps, bounds=Bounds(calls=20_000))[""]
    assert time.monotonic() - began < PATIENCE


# -- made by hand, and wrongly -------------------------------------------------------------------

ODD: list[tuple[Any, str]] = [
    (Step("a b", "kit.any"), "steps[0].name"),
    (Step("a", ""), "steps[0].tool"),
    (Step("a", "kit.any", {"x": object()}), "steps[0].arguments.x"),
    (Step("a", "kit.any", {5: 1}), "steps[0].arguments.5"),  # pyright: ignore
    (Step("a", "kit.any", None), "steps[0].arguments"),  # pyright: ignore
    (Step("a", "kit.any", {"x": Ref("in puts")}), "steps[0].arguments.x"),
    (Step("a", "kit.any", {"x": Ref("inputs", (None,))}), "steps[0].arguments.x"),  # pyright: ignore
    (Step("a", "kit.any", {"x": Ref("inputs", (-1,))}), "steps[0].arguments.x"),
    (Step("a", "kit.any", {"x": ref("inputs", {1, 2})}), "steps[0].arguments.x.default"),
    (Step("a", "kit.any", timeout=-1), "steps[0].timeout"),
    (Step("a", "kit.any", on_failure="retry"), "steps[0].on_failure"),  # pyright: ignore
    (Step("a", "kit.any", on_failure=Fallback(object())), "steps[0].on_failure.fallback"),
    (Step("a", "kit.any", when=True), "steps[0].when"),  # pyright: ignore
    (Step("a", "kit.any", when=Exists("a")), "steps[0].when.exists"),  # pyright: ignore
    ("a step", "steps[0]"),
    (Sequence(), "steps[0].sequence"),
    (ForEach("e", 5, Step("a", "kit.any"), limit=1), "steps[0].for_each"),  # pyright: ignore
    (ForEach("e", [], Step("a", "kit.any"), limit=0), "steps[0].limit"),
    (ForEach("e", [], Step("a", "kit.any"), limit=1, at_once=101), "steps[0].at_once"),
]


@pytest.mark.parametrize(("part", "place"), ODD)
def test_a_plan_made_in_python_is_held_to_the_rules_of_json(part: Any, place: str) -> None:
    assert list(wrong(part)) == [place]


def test_a_plan_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert wrong(Step("a", "kit.any", {"x": endless})) == {"": "it is nested too deeply"}


def test_an_empty_plan_is_refused() -> None:
    assert list(wrong()) == ["steps"]


def test_a_reference_may_be_made_of_parts() -> None:
    by_hand = Ref("find", ("data", "hits", EACH, "name"))
    assert by_hand == ref("find.data.hits[*].name")
    assert str(by_hand) == "find.data.hits[*].name"
    assert wrong(FIND, mail("x", copies=by_hand)) == {}
