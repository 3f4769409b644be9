"""Schemas for strict mode: what becomes of each keyword, and that odd ones do no harm."""

import copy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.strict_schema import is_strict, to_strict

NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
TEXT = {"type": "string"}
NULL = {"type": "null"}


def one(part: Any, **beside: Any) -> dict[str, Any]:
    """A tool with one required parameter."""
    return {"type": "object", "properties": {"x": part}, "required": ["x"], **beside}


def written(part: Any, **beside: Any) -> Any:
    return to_strict(one(part, **beside))["properties"]["x"]


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": "object", "properties": {}}, None, 5, [], {5: 6}]
)
def test_a_tool_without_parameters_is_closed(schema):
    assert to_strict(schema) == NOTHING
    assert is_strict(to_strict(schema))


def test_optional_parameters_become_nullable_and_all_are_required():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 2, "description": "what", "default": "x"},
            "limit": {"type": "integer", "minimum": 1, "default": 10},
            "order": {"enum": ["up", "down"]},
            "where": {"type": "object", "properties": {"city": TEXT}},
            "tags": {"type": "array", "items": TEXT, "minItems": 1, "uniqueItems": True},
            "maybe": {"type": ["string", "null"]},
            "fixed": {"const": "v1"},
            "ref": {"$ref": "#/$defs/R"},
            "either": {"anyOf": [TEXT, NULL]},
            "other": {"anyOf": [TEXT, {"type": "integer"}]},
        },
        "required": ["query"],
        "$defs": {"R": TEXT},
    }
    before = copy.deepcopy(schema)
    result = to_strict(schema)
    assert schema == before
    assert is_strict(result)
    assert "$schema" not in result
    assert result["required"] == list(schema["properties"])
    assert result["properties"] == {
        "query": {"description": "what", "type": "string"},
        "limit": {"minimum": 1, "type": ["integer", "null"]},
        "order": {"enum": ["up", "down", None], "type": ["string", "null"]},
        "where": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"city": {"type": ["string", "null"]}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
                NULL,
            ]
        },
        "tags": {"anyOf": [{"minItems": 1, "type": "array", "items": TEXT}, NULL]},
        "maybe": {"type": ["string", "null"]},
        "fixed": {"anyOf": [{"const": "v1", "type": "string"}, NULL]},
        "ref": {"anyOf": [{"$ref": "#/$defs/R"}, NULL]},
        "either": {"anyOf": [TEXT, NULL]},
        "other": {"anyOf": [TEXT, {"type": "integer"}, NULL]},
    }


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"oneOf": [TEXT, {"type": "integer"}]}, {"anyOf": [TEXT, {"type": "integer"}]}),
        ({"type": "string", "anyOf": [TEXT]}, {"anyOf": [TEXT]}),
        ({"allOf": [TEXT]}, TEXT),
        ({"allOf": [TEXT, {"description": "d"}]}, {**TEXT, "description": "d"}),
        ({"allOf": [TEXT, {"title": "no"}], "title": "t"}, {**TEXT, "title": "t"}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "uri"}, TEXT),
        ({"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}),
        ({"type": "string", "pattern": "(?=a)"}, TEXT),
        ({"const": None}, {"const": None, "type": "null"}),
        ({"enum": [1, True]}, {"enum": [1, True], "type": ["integer", "boolean"]}),
        ({"enum": [1.5, "a"]}, {"enum": [1.5, "a"], "type": ["number", "string"]}),
        ({"items": TEXT}, {"type": "array", "items": TEXT}),
        ({"prefixItems": [TEXT, NULL]}, {"type": "array", "items": {"anyOf": [TEXT, NULL]}}),
        ({"type": "array", "items": [TEXT]}, {"type": "array", "items": {"anyOf": [TEXT]}}),
        ({"properties": {}, "additionalProperties": False}, NOTHING),
        ({"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}),
        ({"$ref": "#/$defs/R", "default": "x"}, {"$ref": "#/$defs/R"}),
        ({"$ref": "#/$defs/R", "description": "d"}, {"description": "d", "type": "string"}),
        ({"allOf": [{"$ref": "#/$defs/R"}]}, {"$ref": "#/$defs/R"}),
        ({"allOf": [{"$ref": "#/$defs/R"}], "title": "t"}, {"title": "t", "type": "string"}),
        ({"$ref": "#"}, {"$ref": "#"}),
        ({"type": "string", "not": {"const": "x"}, "if": {}, "then": {}, "x-own": 1}, TEXT),
    ],
)  # fmt: skip
def test_what_the_mode_does_not_know_is_said_otherwise_or_dropped(part, expected):
    result = to_strict(one(part, **{"$defs": {"R": TEXT}}))
    assert result["properties"]["x"] == expected
    assert is_strict(result)


def test_the_parts_of_an_all_of_become_one_object():
    base = {"properties": {"a": {"type": "string"}, "b": TEXT}, "required": ["a"]}
    more = {"properties": {"a": {"description": "d"}, "c": TEXT}, "required": ["c"]}
    part = written({"allOf": [{"$ref": "#/$defs/Base"}, more]}, **{"$defs": {"Base": base}})
    assert part["properties"] == {
        "a": {"description": "d", "type": "string"},
        "b": {"type": ["string", "null"]},
        "c": TEXT,
    }


def test_a_root_that_is_a_reference_is_written_out():
    result = to_strict({"$ref": "#/$defs/In", "$defs": {"In": one(TEXT)}})
    assert result["properties"] == {"x": TEXT}
    assert is_strict(result)


def test_branches_that_only_require_are_dropped_and_so_are_those_of_the_root():
    only = one(TEXT, anyOf=[{"required": ["x"]}, {"required": []}])
    assert to_strict(only) == to_strict(one(TEXT))
    assert to_strict(one(TEXT, oneOf=[{"title": "t"}])) == to_strict(one(TEXT))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "additionalProperties": TEXT},
        {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False},
        {"type": "object", "properties": {"a": TEXT}, "anyOf": [{"title": "t"}]},
        {"type": "array"},
        {},
        True,
        {"description": "anything"},
        {"enum": []},
        {"enum": [{"a": 1}]},
        {"type": "tuple"},
        {"anyOf": [TEXT, {}]},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema.json", "description": "d"},
    ],
)
def test_what_cannot_be_said_is_left_and_not_called_strict(part):
    assert not is_strict(to_strict(one(part)))


def test_a_free_object_stays_free():
    part = written({"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT})
    assert part == {
        "type": "object",
        "properties": {"a": TEXT},
        "required": [],
        "additionalProperties": TEXT,
    }


@pytest.mark.parametrize("schema", [{"type": "string"}, {"anyOf": [one(TEXT)]}, {"type": "array"}])
def test_a_root_that_is_no_plain_object_is_not_strict(schema):
    assert not is_strict(to_strict(schema))


@pytest.mark.parametrize("schema", [None, 5, {}, one(TEXT), {**NOTHING, "anyOf": 5}])
def test_what_was_not_converted_is_not_called_strict(schema):
    assert not is_strict(schema)


@pytest.mark.parametrize(("levels", "fits"), [(10, True), (11, False)])
def test_nesting_is_bounded_as_the_provider_bounds_it(levels, fits):
    schema: dict[str, Any] = TEXT
    for _ in range(levels):
        schema = one(schema)
    assert is_strict(to_strict(schema)) is fits


def recursive_by_reference() -> dict[str, Any]:
    node = {"properties": {"next": {"$ref": "#/$defs/N", "description": "the next"}}}
    return {"$ref": "#/$defs/N", "$defs": {"N": node}}


def test_a_schema_that_refers_to_itself_stays_finite_and_strict():
    result = to_strict(recursive_by_reference())
    assert is_strict(result)
    assert result["properties"]["next"] == {"anyOf": [{"$ref": "#/$defs/N"}, NULL]}


def holds_itself() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    schema["allOf"] = [schema, schema]
    return schema


def all_of_itself() -> dict[str, Any]:
    return {"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}], "title": "t"}}}


def deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = one(schema)
    return schema


def doubling() -> dict[str, Any]:
    parts = {
        f"d{n}": {
            "properties": {
                name: {"$ref": f"#/$defs/d{n + 1}", "description": "x"} for name in ("a", "b")
            }
        }
        for n in range(30)
    }
    return {"$ref": "#/$defs/d0", "$defs": parts}


def broad() -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": TEXT for n in range(20_000)}}


@pytest.mark.parametrize("make", [holds_itself, all_of_itself, deep, doubling, broad])
def test_a_hostile_schema_costs_little_and_is_not_strict(make):
    assert not is_strict(to_strict(make()))


def test_a_schema_of_too_many_parts_is_not_looked_at_to_the_end():
    parts = {f"p{n}": TEXT for n in range(10_001)}
    assert not is_strict({**NOTHING, "properties": parts, "required": list(parts)})


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab#/", max_size=3)
keywords = st.sampled_from(
    [
        *("type", "properties", "items", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"),
        *("$defs", "required", "additionalProperties", "default", "description", "prefixItems"),
        *("nullable", "patternProperties", "format", "pattern", "minimum", "x"),
    ]
)
values = scalars | st.sampled_from(["object", "array", "string", "#", "#/$defs/x", "#/properties"])
junk = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=4),
    max_leaves=20,
)


@given(schema=st.dictionaries(keywords, junk, max_size=6))
def test_no_schema_raises_is_altered_or_shared(schema):
    before = copy.deepcopy(schema)
    result = to_strict(schema)
    is_strict(schema)
    assert schema == before
    assert to_strict(schema) == result
    if is_strict(result):
        assert is_strict(to_strict(result))
    assert not containers(result) & containers(schema)


def containers(value: Any) -> set[int]:
    if isinstance(value, dict):
        return {id(value)}.union(*map(containers, value.values()))
    return {id(value)}.union(*map(containers, value)) if isinstance(value, list) else set()


kinds = st.sampled_from([TEXT, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "b"]}])
shapes = st.recursive(
    kinds,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda parts, n: {"type": "object", "properties": parts, "required": list(parts)[:n]},
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
            st.integers(0, 3),
        )
    ),
    max_leaves=6,
)


@given(part=shapes)
def test_honest_schemas_become_strict_and_valid(part):
    result = to_strict(one(part))
    jsonschema_rs.Draft202012Validator(result)
    assert is_strict(result)
    assert to_strict(result) == result
