"""The headers that mirror a modern request. tests/tripwires/test_sdk_headers.py compares them with
the SDK's."""

import base64
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from toolkeep._rules.protocol_headers import (
    ANNOTATION,
    annotated_paths,
    annotation_problem,
    encode_header_value,
    param_headers,
)

DEEP = 5_000
"""Levels of a schema; more than Python's stack has."""


def annotated(header: Any = "Region", kind: Any = "string") -> dict[str, Any]:
    return {"type": kind, ANNOTATION: header}


def decoded(value: str) -> str:
    assert value.startswith("=?base64?")
    assert value.endswith("?=")
    return base64.b64decode(value[9:-2], validate=True).decode()


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


# -- header values ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "eu", "a b", "!~", "=?base64?", "?=", "=?BASE64?YQ==?="])
def test_a_value_that_a_header_can_carry_is_not_encoded(value: str) -> None:
    assert encode_header_value(value) == value


@pytest.mark.parametrize(
    "value",
    [" ", " a", "a ", "a\tb", "\t", "a\r\nx-evil: 1", "a\nb", "\x00", "\x7f", "Köln", "日本"],
)
def test_any_other_value_is_encoded_so_that_the_server_can_decode_it(value: str) -> None:
    encoded = encode_header_value(value)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert decoded(encoded) == value


def test_a_value_that_looks_encoded_is_encoded_again() -> None:
    assert decoded(encode_header_value("=?base64?YQ==?=")) == "=?base64?YQ==?="


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert decoded(encode_header_value("a\ud800")) == "a?"


# -- annotations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "valid",
    [
        {},
        schema(),
        schema(region={"type": "string"}),
        schema(region=annotated()),
        schema(region=annotated("A", "integer"), more=annotated("b", "boolean")),
        schema(outer=schema(inner=annotated())),
        schema(region=annotated("!#$%&'*+.^_`|~09AZaz-")),
        {"default": annotated(), "enum": [annotated()], "const": annotated()},
        {"examples": [schema(region=annotated("no header"))]},
        {"properties": [annotated()], "allOf": annotated(), "$defs": [annotated()]},
        {"items": True, "not": "text", "anyOf": [True, None], "properties": {"a": True}},
    ],
)
def test_valid_annotations_have_no_problem(valid: Mapping[str, Any]) -> None:
    assert annotation_problem(valid) == ""


@pytest.mark.parametrize(
    "part",
    [
        annotated(),
        {"items": annotated()},
        {"if": schema(region=annotated())},
        {"anyOf": [{}, annotated()]},
        {"prefixItems": (annotated(),)},
        {"$defs": {"region": annotated()}},
        {"patternProperties": {"^a": schema(region=annotated())}},
        schema(rows={"type": "array", "items": schema(region=annotated())}),
    ],
)
def test_an_annotation_that_no_chain_of_properties_reaches_is_invalid(
    part: Mapping[str, Any],
) -> None:
    assert "no chain of properties" in annotation_problem(part)


@pytest.mark.parametrize("header", ["", "a b", "a:b", "a\r\n", "é", None, 7, [], {}])
def test_an_annotation_must_be_a_header_name(header: Any) -> None:
    problem = annotation_problem(schema(outer=schema(region=annotated(header))))
    assert problem == f"the {ANNOTATION} of 'outer.region' is not a header name"


@pytest.mark.parametrize("kind", ["number", "object", "array", "null", None, ["string"], {}])
def test_an_annotated_property_must_be_of_a_type_with_one_text(kind: Any) -> None:
    assert "is not of type" in annotation_problem(schema(region=annotated(kind=kind)))


def test_two_properties_must_not_share_a_header_in_any_spelling() -> None:
    problem = annotation_problem(schema(one=annotated("Region"), two=annotated("REGION")))
    assert "is that of" in problem
    assert "'one'" in problem
    assert "'two'" in problem


def test_two_paths_that_read_the_same_are_still_two_properties() -> None:
    both = {"a": schema(b=annotated()), "a.b": annotated()}
    assert "is that of" in annotation_problem(schema(**both))


def test_a_schema_of_any_depth_is_read() -> None:
    deep = annotated()
    for _ in range(DEEP):
        deep = schema(a=deep)
    assert annotation_problem(deep) == ""
    ((path, header),) = annotated_paths(deep).items()
    assert (len(path), header) == (DEEP, "mcp-param-region")
    assert annotation_problem({"not": deep}) != ""


def test_the_paths_of_annotated_properties_come_with_their_headers() -> None:
    found = annotated_paths(schema(plain={}, a=annotated("A"), b=schema(c=annotated("Bc"))))
    assert found == {("a",): "mcp-param-a", ("b", "c"): "mcp-param-bc"}
    assert annotated_paths({ANNOTATION: "root", "items": annotated()}) == {}


# -- arguments ----------------------------------------------------------------------------------

PATHS = {("a",): "mcp-param-a", ("b", "c"): "mcp-param-bc"}


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({}, {}),
        ({"a": None, "b": None}, {}),
        ({"a": "eu"}, {"mcp-param-a": "eu"}),
        ({"a": ""}, {"mcp-param-a": ""}),
        ({"a": True, "b": {"c": False}}, {"mcp-param-a": "true", "mcp-param-bc": "false"}),
        ({"a": 7, "b": {"c": -1}}, {"mcp-param-a": "7", "mcp-param-bc": "-1"}),
        ({"a": 1.5}, {"mcp-param-a": "1.5"}),
        ({"a": " x"}, {"mcp-param-a": "=?base64?IHg=?="}),
        ({"a": ["eu"], "b": ["c"]}, {}),
        ({"a": {"x": 1}, "b": "c"}, {}),
        ({"a": 10 ** (sys.get_int_max_str_digits() + 1)}, {}),
    ],
)
def test_arguments_become_headers(arguments: dict[str, Any], headers: dict[str, str]) -> None:
    assert param_headers(PATHS, arguments) == headers
