"""Checking values against JSON Schemas. Over real transports P6 and P7 are proved elsewhere."""

import json
import socket
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.json_schema import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_NODES,
    MAX_PROBLEM_LENGTH,
    MAX_PROBLEMS,
    SchemaValidator,
    compile_schema,
    states_of,
    strip_none,
)

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "lang": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def checker(schema: Any) -> SchemaValidator:
    made = compile_schema(schema, what="input of research.search")
    assert made.usable, made.reason
    return made


def one(schema: Any, value: Any) -> str:
    (problem,) = checker(schema).problems(value)
    return problem


# --- what is wrong, and where ------------------------------------------------------------------


@pytest.mark.requirement("P6")
def test_good_arguments_have_no_problems():
    assert checker(SEARCH).problems({"query": "pricing", "limit": 5, "lang": None}) == ()


@pytest.mark.requirement("P6")
def test_each_problem_names_its_place_and_its_fault():
    missing, unexpected = checker(SEARCH).problems({"nope": 1, "never": 2})
    assert '"query"' in missing + unexpected
    assert "'nope'" in missing + unexpected
    assert "'never'" in missing + unexpected
    assert one(SEARCH, {"query": 5}) == 'query: 5 is not of type "string"'
    assert one(SEARCH, {"query": "x", "limit": 0}).startswith("limit: 0 ")


def test_a_failed_choice_tells_what_each_branch_wanted():
    problem = one(SEARCH, {"query": "x", "lang": 7})
    assert problem.startswith("lang: 7 ")
    assert '"string"' in problem
    assert '"null"' in problem


def test_places_lead_through_arrays_and_odd_names():
    schema = {"properties": {"x-a": {"items": {"properties": {"b": {"type": "string"}}}}}}
    assert one(schema, {"x-a": [{}, {"b": 1}]}).startswith("['x-a'][1].b: 1 ")


def test_a_value_of_any_size_makes_a_short_problem():
    problem = one(SEARCH, {"query": ["long" * 10_000]})
    assert len(problem) <= MAX_PROBLEM_LENGTH + len("query: …")
    assert problem.endswith('is not of type "string"')
    schema = {"enum": ["x" * 50] * 100}
    assert len(one(schema, "y")) <= MAX_PROBLEM_LENGTH


def test_there_are_at_most_five_problems():
    schema = {"items": {"type": "string"}}
    assert len(checker(schema).problems(list(range(100)))) == MAX_PROBLEMS


def test_a_false_schema_allows_nothing():
    assert one({"properties": {"a": False}}, {"a": 1})


# --- dialects and references -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}, [1], ["x"]),
        (
            {"$defs": {"n": {"$anchor": "n", "type": "integer"}}, "items": {"$ref": "#n"}},
            [1],
            ["x"],
        ),
        (
            {
                "$id": "urn:tree",
                "$dynamicAnchor": "node",
                "properties": {"kids": {"type": "array", "items": {"$dynamicRef": "#node"}}},
                "unevaluatedProperties": False,
            },
            {"kids": [{"kids": []}]},
            {"kids": [{"kids": 1}]},
        ),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "null"}, 5),
        ({"properties": {"a": {"$ref": "#"}}, "type": "object"}, {"a": {"a": {}}}, {"a": {"a": 1}}),
        ({"prefixItems": [{"type": "integer"}], "unevaluatedItems": False}, [1], [1, 2]),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"x-a": 1}, {"y": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 2}, 1, True], [{"a": 1}, {"a": 1}]),
        ({"uniqueItems": True}, ["a", "b"], ["a", "a"]),
        ({"pattern": "^[a-z]+$"}, "abc", "ABC"),
        ({"type": "array", "items": {"type": "integer"}}, (1, 2), (1, "x")),
        ({"type": "object", "format": "email"}, {}, []),
    ],
)
def test_the_standard_is_kept(schema, good, bad):
    made = checker(schema)
    assert made.problems(good) == ()
    assert made.problems(bad)


def test_keywords_pass_over_values_of_other_types():
    schema = {
        "pattern": "a",
        "uniqueItems": True,
        "patternProperties": {"a": {}},
        "additionalProperties": False,
    }
    assert checker(schema).problems(5) == ()


@pytest.mark.parametrize(
    ("dialect", "good", "bad"),
    [
        ("http://json-schema.org/draft-07/schema#", [1, "x"], ["x"]),
        ("https://json-schema.org/draft/2019-09/schema", [1, "x"], ["x"]),
    ],
)
def test_a_schema_may_name_an_older_dialect(dialect, good, bad):
    made = checker({"$schema": dialect, "items": [{"type": "integer"}]})
    assert made.problems(good) == ()
    assert made.problems(bad)


def test_an_unknown_dialect_is_read_as_the_newest():
    made = checker({"$schema": "https://example.com/own", "prefixItems": [{"type": "integer"}]})
    assert made.problems(["x"])


def test_a_property_may_be_called_like_a_keyword():
    schema = {"properties": {"$schema": {"type": "string"}, "$ref": {"type": "string"}}}
    assert one(schema, {"$schema": 5}).startswith("['$schema']: ")


# --- schemas that cannot be used ---------------------------------------------------------------


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


LOOP: dict[str, Any] = {}
LOOP["not"] = LOOP


@pytest.mark.requirement("P6")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"},
        {"required": "query"},
        {"properties": []},
        {"$ref": 5},
        {"$ref": "https://example.com/other.json"},
        {"$ref": "http://[broken"},
        {"$ref": "file:///etc/passwd"},
        {"items": {"$ref": "#/$defs/absent"}},
        {"allOf": [{"$ref": "#/allOf/x"}]},
        {"$ref": "#nowhere"},
        {"enum": [[]] * (MAX_NODES + 1)},
        deep(MAX_DEPTH + 1),
        deep(100_000),
        LOOP,
    ],
)
def test_a_schema_that_cannot_be_used_says_why_and_finds_nothing(schema):
    made = compile_schema(schema, what="input of research.search")
    assert not made.usable
    assert "research.search" in made.reason
    assert len(made.reason) < 500
    assert made.problems({"any": "thing"}) == ()


def test_the_deepest_schema_that_is_allowed_works():
    assert checker(deep(MAX_DEPTH)).usable


def test_a_usable_checker_has_no_reason_and_shows_no_schema():
    assert (
        repr(checker({}))
        == "SchemaValidator(subject='input of research.search', usable=True, reason='')"
    )


@pytest.mark.requirement("P6")
def test_nothing_is_fetched():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        made = compile_schema({"$ref": f"http://127.0.0.1:{port}/x"}, what="x")
        assert not made.usable
        with pytest.raises(BlockingIOError):
            listener.accept()


# --- hostile schemas ---------------------------------------------------------------------------

LAUGHS = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
DOUBLING = {"$defs": {**LAUGHS, "d40": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"unevaluatedProperties": False, "$ref": "#"}, {"a": 1}),
        (DOUBLING, "x"),
        ({"unevaluatedProperties": False, **DOUBLING}, {"a": 1}),
        ({"unevaluatedItems": False, **DOUBLING}, [1]),
        ({"pattern": "(a+)+$"}, "a" * 50 + "!"),
        ({"not": {"pattern": "(a+)+$"}}, "a" * 50 + "!"),
        ({"pattern": r"\p{L}"}, "x"),
        ({"patternProperties": {"(a+)+$": {}}}, {"a" * 50 + "!": 1}),
        ({"additionalProperties": False, "patternProperties": {"(a+)+$": {}}}, {"a" * 50 + "!": 1}),
        (
            {
                "unevaluatedProperties": False,
                "$ref": "#/$defs/p",
                "$defs": {"p": {"patternProperties": {"(a+)+$": {}}}},
            },
            {"a" * 50 + "!": 1},
        ),
        ({"propertyNames": {"pattern": "(a+)+$"}}, {"a" * 50 + "!": 1}),
        ({"uniqueItems": True}, [{"a": n} for n in range(20_000)]),
        ({"description": "", "$ref": "#/description"}, 1),
        ({"properties": {"a": {"$ref": "#/properties"}}}, {"a": 1}),
        ({"multipleOf": 0.1}, 10**400),
    ],
    ids=lambda _: None,
)
def test_a_hostile_schema_neither_hangs_nor_raises(schema, value):
    """The suite's time limit is the bound: left alone, each of these takes minutes or the stack."""
    problems = compile_schema(schema, what="hostile").problems(value)
    assert len(problems) <= MAX_PROBLEMS


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"additionalProperties": {"$ref": "#"}}])
def test_a_deep_value_under_a_circular_schema_is_no_problem(schema):
    tree: dict[str, Any] = {}
    for _ in range(5_000):
        tree = {"a": tree}
    assert compile_schema(schema, what="circle").problems(tree) == ()


# --- what a check costs ------------------------------------------------------------------------


def nested(levels: int, leaf: Any, *, in_lists: bool = False) -> Any:
    for _ in range(levels):
        leaf = [leaf] if in_lists else {"a": leaf}
    return leaf


AGAIN = {"properties": {"a": {"$ref": "#/$defs/n"}}}
MORE = {**AGAIN, "minProperties": 1}


def recursive(node: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": {"n": node}, "$ref": "#/$defs/n"}


def spelled(reference: dict[str, str], node: dict[str, Any]) -> dict[str, Any]:
    """A node that refers to itself in two branches, in another spelling."""
    again = {"properties": {"a": reference}}
    return {**node, "type": "object", "anyOf": [again, {**again, "minProperties": 1}]}


def unevaluated(steps: int) -> dict[str, Any]:
    links = {
        f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}], "unevaluatedProperties": False}
        for i in range(steps)
    }
    return {"$defs": {**links, f"n{steps}": {}}, "$ref": "#/$defs/n0"}


COSTLY: dict[str, tuple[dict[str, Any], Any]] = {
    "anyOf": (recursive({"type": "object", "anyOf": [AGAIN, MORE]}), nested(40, 1)),
    "oneOf": (recursive({"type": "object", "oneOf": [AGAIN, MORE]}), nested(40, 1)),
    "allOf": (recursive({"type": "object", "allOf": [AGAIN, MORE]}), nested(40, 1)),
    "if": (recursive({"type": "object", "if": AGAIN, "then": MORE, "else": MORE}), nested(40, 1)),
    "not": (recursive({"type": "object", **AGAIN, "not": {"not": AGAIN}}), nested(40, 1)),
    "dependentSchemas": (recursive({**MORE, "dependentSchemas": {"a": AGAIN}}), nested(40, 1)),
    "items": (
        recursive(
            {
                "anyOf": [
                    {"items": {"$ref": "#/$defs/n"}},
                    {"prefixItems": [AGAIN["properties"]["a"]]},
                ],
                "type": "array",
            }
        ),
        nested(40, 1, in_lists=True),
    ),
    "names": (
        recursive(
            {
                "additionalProperties": {"$ref": "#/$defs/n"},
                "patternProperties": AGAIN["properties"],
                "type": "object",
            }
        ),
        nested(40, 1),
    ),
    "dynamic": (spelled({"$dynamicRef": "#n"}, {"$dynamicAnchor": "n"}), nested(40, 1)),
    "anchor": (
        {"$defs": {"n": spelled({"$ref": "#n"}, {"$anchor": "n"})}, "$ref": "#n"},
        nested(40, 1),
    ),
    "percent": (
        {"$defs": {"n n": spelled({"$ref": "#/$defs/n%20n"}, {})}, "$ref": "#/$defs/n%20n"},
        nested(40, 1),
    ),
    "id": (
        {"$id": "http://x/y", "$defs": {"n": spelled({"$ref": "n"}, {"$id": "n"})}, "$ref": "n"},
        nested(40, 1),
    ),
    "draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"n": spelled({"$ref": "#n"}, {"$id": "#n"})},
            "allOf": [{"$ref": "#n"}],
        },
        nested(40, 1),
    ),
    "2019-09": (
        spelled(
            {"$recursiveRef": "#"},
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True},
        ),
        nested(40, 1),
    ),
    "in place": (
        {
            "$defs": {
                f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{j}"} for j in range(7) if j != i]}
                for i in range(7)
            },
            "$ref": "#/$defs/n0",
        },
        1,
    ),
    "enum": ({"items": {"enum": list(range(100_000))}}, list(range(100_000))),
    "smaller enum": ({"items": {"enum": [str(n) for n in range(20_000)]}}, ["x"] * 20_000),
    "enum of fractions": (
        {"items": {"enum": ["a", *(n + 0.5 for n in range(1000))]}},
        [999.5] * 1000,
    ),
    "enum of lists": ({"items": {"enum": [[n] for n in range(2000)]}}, [[1999]] * 1000),
    "const": ({"items": {"anyOf": [{"const": n} for n in range(300)]}}, [299] * 10_000),
    "uniqueItems": ({"uniqueItems": True}, list(range(100_000))),
    "contains": ({"contains": {"const": -1}}, list(range(100_000))),
    "patternProperties": (
        {"patternProperties": {f"^a{n}[0-9]+x$": {} for n in range(200)}},
        {f"a{n}": n for n in range(10_000)},
    ),
    "unevaluated": (unevaluated(16), {"a": 1}),
    "unevaluatedItems": (
        {"anyOf": [{"contains": {"const": n}} for n in range(400)], "unevaluatedItems": False},
        list(range(400)),
    ),
    "counted groups": ({"pattern": "(a{1,500}){1,20}c"}, "a" * 1000),
    "fewer of them": ({"pattern": "(a{1,100}){1,20}c"}, "a" * 10_000),
    "look-ahead": ({"pattern": "(?:a(?=a*b?$))+c"}, "a" * 10_000),
    "10 MB": ({"pattern": "^a*$"}, "a" * 10_000_000),
    "classes": ({"pattern": r"^\p{L}{1,2000}$"}, "a"),
    "large value": ({"type": "array"}, [{"a": 1}] * 200_000),
    "shared value": ({}, [[[["a"] * 50] * 50] * 50] * 50),
    "deep value": ({"additionalProperties": {"$ref": "#"}}, nested(5000, 1)),
    "texts": ({"description": "x" * 10_000_000}, {}),
    "too many links": (
        {
            "allOf": [
                {"properties": {f"p{m}n{n}": {} for n in range(15)}, "additionalProperties": {}}
                for m in range(200)
            ]
        },
        {},
    ),
}


@pytest.mark.requirement("F5")
@pytest.mark.parametrize("what", COSTLY)
def test_a_check_that_would_take_long_is_not_made_and_says_so(what: str):
    """Left alone, each takes from 100 ms to years, or all memory."""
    schema, value = COSTLY[what]
    made = compile_schema(schema, what="arguments")
    found = made.check(value)
    assert found.problems == ()
    assert bool(found.skipped_because) != bool(made.reason)
    assert "arguments" in found.skipped_because + made.reason


NOT_TOLD = "it does not match the schema (too large to show where)"
ROWS: dict[str, Any] = {
    "items": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(10)},
        "required": [f"p{n}" for n in range(10)],
        "additionalProperties": False,
    }
}


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("schema", "value", "first"),
    [
        (recursive({"type": "object", "anyOf": [AGAIN, MORE]}), nested(3, 1), "is not valid under"),
        (recursive({"type": "object", "anyOf": [AGAIN, MORE]}), nested(9, 1), NOT_TOLD),
        ({"items": {"enum": [str(n) for n in range(1000)]}}, ["x"] * 100, "998 other candidates"),
        ({"propertyNames": {"maxLength": 1}}, {f"k{n}": 1 for n in range(20_000)}, "is longer"),
        ({"required": [f"p{n}" for n in range(5000)]}, {f"q{n}": 1 for n in range(5000)}, "p0"),
        (ROWS, [{f"p{n}": "x" for n in range(9)}] * 5000, '[0]: "p9" is a required property'),
        (ROWS, [{f"p{n}": 1 for n in range(10)}] * 10, '[0].p0: 1 is not of type "string"'),
        ({"maxLength": 3}, "é" * 10_000_000, NOT_TOLD),
        ({"maxLength": 3, "pattern": "(?=x)"}, "é" * 20, "is longer than 3"),
        ({"items": {"type": "string", "pattern": "^(?=x)"}}, [1, *"x" * 300], "1 is not of type"),
        ({"pattern": "(a{1,100}){1,20}c"}, "a" * 50, "does not match"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "strng"}, "strng"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
            {"a": 1},
            "b",
        ),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, [1, 2], "[1]: 2"),
    ],
    ids=lambda _: None,
)
def test_what_can_be_told_in_time_is_told(schema: dict[str, Any], value: Any, first: str):
    """Errors copy what they are about: of a large value the first is told, or that there is one."""
    problems = checker(schema).problems(value)
    assert problems
    assert first in problems[0]


def test_what_may_be_a_pattern_that_was_given_up_is_no_problem():
    schema = {"items": {"anyOf": [{"type": "string", "pattern": "^(?=x)"}, {"type": "integer"}]}}
    found = checker(schema).check([1.5] * 1000)
    assert (found.problems, found.skipped_because) == ((), "")


@pytest.mark.parametrize(
    "value",
    [
        [{f"p{n}": "x" for n in range(10)}] * 5000,
        [],
    ],
    ids=["5,000 rows", "none"],
)
def test_an_honest_table_is_checked(value: Any):
    found = checker(ROWS).check(value)
    assert (found.problems, found.skipped_because) == ((), "")


def test_an_honest_schema_that_refers_to_itself_checks_a_large_tree():
    tree = {"type": "object", "properties": {"kids": {"items": {"$ref": "#"}}}}
    value = {"kids": [{"kids": [{"kids": []}] * 20}] * 100}
    assert checker(tree).check(value).skipped_because == ""
    json_value = {
        "anyOf": [
            {"type": ["string", "number"]},
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "object", "additionalProperties": {"$ref": "#"}},
        ]
    }
    assert checker(json_value).check(nested(50, [1, "x"])).skipped_because == ""
    assert checker(json_value).problems(nested(3, None))


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,}", 2),
        ("a{1,5}b", 6),
        ("(ab){1,10}", 40),
        ("((a{10}){10}){10}", 1220),
        ("[a-z]{2}", 2),
        (r"\d{4}", 4),
        ("(a", 2),
        ("a)", 2),
        ("a{0}", 1),
    ],
)
def test_the_states_of_a_pattern_are_counted_with_repetitions_written_out(
    pattern: str, states: int
):
    assert states_of(pattern)[0] == states


def test_a_value_that_is_not_json_is_left_to_the_wire():
    assert checker({}).problems({1, 2}) == ()
    assert checker({}).problems("\ud800") == ()


def test_many_anchors_are_not_unfolded():
    schema = {"$defs": {"n": {"$anchor": "n"}}, "allOf": [{"$ref": "#n"}] * 200}
    assert not compile_schema(schema, what="anchors").usable


scraps = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "#", "string", "a", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "$ref", "items", "allOf", "not", "properties", "pattern", "enum"),
                    *("$id", "required", "$defs", "a", "anyOf", "if", "then", "$anchor"),
                    *("uniqueItems", "unevaluatedProperties"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    schema=st.dictionaries(st.sampled_from(["type", "$ref", "items", "allOf"]), scraps),
    value=scraps,
)
def test_no_schema_and_no_value_make_it_raise(schema, value):
    before = json.dumps([schema, value])
    made = compile_schema(schema, what="scraps")
    assert isinstance(made.problems(value), tuple)
    assert made.usable or (made.reason and made.problems(value) == ())
    assert json.dumps([schema, value]) == before


@given(value=scraps)
def test_a_check_agrees_with_jsonschema(value):
    from jsonschema import Draft202012Validator

    plain = Draft202012Validator(SEARCH)
    assert (checker_of_search.problems(value) == ()) == plain.is_valid(value)


checker_of_search = checker(SEARCH)


def test_importing_the_rules_does_not_load_the_validator():
    code = "import sys, toolkeep._rules.json_schema; sys.exit('jsonschema_rs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


# --- arguments that are None -------------------------------------------------------------------

NULLS: dict[str, Any] = {
    "$defs": {
        "Color": {"enum": ["red"]},
        "Maybe": {"type": ["string", "null"]},
        "a/b": {"const": 1},
    },
    "properties": {
        "plain": {"type": "string"},
        "listed": {"type": ["string", "null"]},
        "null": {"type": "null"},
        "several": {"type": ["string", "integer"]},
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "all": {"allOf": [{}, {"type": "string"}]},
        "any": {},
        "always": True,
        "never": False,
        "enum": {"enum": ["a", None]},
        "closed": {"enum": ["a"]},
        "const": {"const": 5},
        "color": {"$ref": "#/$defs/Color"},
        "maybe": {"$ref": "#/$defs/Maybe"},
        "escaped": {"$ref": "#/$defs/a~1b"},
        "foreign": {"$ref": "https://example.com/x"},
        "absent": {"$ref": "#/$defs/Absent"},
        "through": {"$ref": "#/properties/plain/type/deeper"},
        "loop": {"$ref": "#/properties/loop"},
        "odd": 7,
        "needed": {"type": "string"},
    },
    "required": ["needed"],
}
DROPPED = {"plain", "several", "either", "all", "never", "closed", "const", "color", "escaped"}


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("name", sorted(NULLS["properties"]))
def test_none_is_dropped_where_it_is_optional_and_null_is_not_allowed(name: str):
    given_arguments = {name: None, "other": 1}
    stripped = strip_none(given_arguments, NULLS)
    assert (name not in stripped) == (name in DROPPED)
    assert given_arguments == {name: None, "other": 1}


def test_only_none_is_dropped_and_only_where_the_schema_says_what_is_there():
    arguments = {"plain": "", "several": 0, "unknown": None, "any": {"plain": None}}
    assert strip_none(arguments, NULLS) == arguments


INNER = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
NESTED: dict[str, Any] = {
    "type": "object",
    "$defs": {"Inner": {**INNER, "required": ["b"]}, "Round": {"$ref": "#/$defs/Round"}},
    "properties": {
        "one": {"$ref": "#/$defs/Inner"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
        "loose": {"type": "array"},
        "round": {"$ref": "#/$defs/Round"},
        "elsewhere": {"$ref": "other.json"},
    },
}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"one": {"a": None, "b": None}}, {"one": {"b": None}}),
        ({"many": [{"a": None}, {"a": "x"}, None]}, {"many": [{}, {"a": "x"}, None]}),
        ({"loose": [{"a": None}]}, {"loose": [{"a": None}]}),
        ({"round": {"a": None}}, {"round": {"a": None}}),
        ({"elsewhere": {"a": None}}, {"elsewhere": {"a": None}}),
    ],
)
def test_none_is_dropped_within_objects_and_lists_too(given: Any, left: Any):
    assert strip_none(given, NESTED) == left


def test_a_value_as_deep_as_can_be_is_left_as_it_is():
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    schema["properties"]["inner"] = {"$ref": "#"}
    value: dict[str, Any] = {"x": None}
    for _ in range(200):
        value = {"inner": value}
    assert strip_none(value, schema) == value


def test_without_a_usable_schema_nothing_is_dropped():
    assert strip_none({"a": None}, {}) == {"a": None}
    assert strip_none({"a": None}, {"properties": None, "required": None}) == {"a": None}


def circular(keyword: str) -> dict[str, Any]:
    both = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    return {
        "$defs": {"a": {keyword: both}, "b": {keyword: both}},
        "properties": {"x": {keyword: both}},
    }


@pytest.mark.requirement("F5")
@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_none_under_a_schema_that_refers_to_itself_is_decided_at_once(keyword: str):
    """Followed along all ways, 2^100 of them."""
    assert strip_none({"x": None}, circular(keyword)) == {"x": None}


def test_none_under_a_schema_of_any_size_is_decided_soon():
    wide = {"anyOf": [{"type": "string"}] * (MAX_ENTRIES + 1)}
    names = [f"p{n}" for n in range(1000)]
    schema = {"properties": dict.fromkeys(names, wide), "required": ["x"] * 10}
    assert strip_none(dict.fromkeys(names), schema) == dict.fromkeys(names)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["x"]},
        {"properties": {"x": {"allOf": 5, "anyOf": {}, "enum": None, "type": "null"}}},
        {"properties": {"x": {"type": "null"}}, "required": 5},
    ],
)
def test_none_under_a_malformed_schema_is_sent_as_it_was_given(schema: dict[str, Any]):
    assert strip_none({"x": None}, schema) in ({"x": None}, {})
