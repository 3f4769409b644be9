"""From what was typed to arguments: pure, so that the corners cost no process."""

from typing import Any

import mcp_types
import pytest

from toolkeep import InvalidArguments, Tool
from toolkeep.cli import arguments
from toolkeep.cli.errors import UsageError


def tool(properties: dict[str, Any], **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties, **more}
    return Tool("kit", mcp_types.Tool(name="it", input_schema=schema))


def built(given: Tool, *words: str) -> dict[str, Any]:
    return arguments.build(arguments.parse(words), given)


@pytest.mark.parametrize(
    ("part", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "integer"}, "12", 12),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "false", False),
        ({"type": ["integer", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "seven", "seven"),
        ({"enum": ["a", "b"]}, "b", "b"),
        ({"enum": [1, 2]}, "2", 2),
        ({"$ref": "#/$defs/whole"}, "3", 3),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, "1", [1]),
        ({}, "true", True),
        ({}, "plain", "plain"),
        (True, "[]", []),
        ({"type": "string"}, "a=b", "a=b"),
        ({"type": "string"}, "", ""),
    ],
)
def test_a_text_becomes_what_the_schema_asks_for(part: Any, text: str, value: Any):
    whole = {"$defs": {"whole": {"type": "integer"}}}
    assert built(tool({"x": part}, **whole), f"x={text}") == {"x": value}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, "true"),
        ({"type": "boolean"}, "yes"),
        ({"type": "number"}, "NaN"),
        ({"type": "object"}, "[1]"),
        ({"enum": ["a", "b"]}, "c"),
        ({"type": "array", "items": {"type": "integer"}}, "x"),
    ],
)
def test_a_text_that_the_schema_does_not_allow_names_its_argument(part: Any, text: str):
    with pytest.raises(InvalidArguments) as caught:
        built(tool({"x": part}), f"x={text}")
    (problem,) = caught.value.problems
    assert problem.startswith("x")


def test_an_error_shows_which_arguments_of_which_types_the_tool_takes():
    """Descriptions are quoted. Titles are not: SDKs generate them from the name."""
    whole = {"type": "integer", "title": "A", "description": "How many\nrows"}
    either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    given = tool({"a": whole, "b": either, "c": {"title": "C"}}, required=["a"])
    with pytest.raises(InvalidArguments) as caught:
        built(given, "a=two")
    assert caught.value.problems == ("a: 'two' is not a whole number (\"How many\")",)
    assert str(caught.value).endswith("\n  kit.it takes a=INTEGER [b=NULL|STRING] [c=VALUE]")
    with pytest.raises(InvalidArguments) as caught:
        built(tool({"a": {"type": "integer", "title": "A"}}), "a=two")
    assert caught.value.problems == ("a: 'two' is not a whole number",)


def test_keys_reach_inside_and_are_never_given_twice():
    inner = {"type": "object", "properties": {"b": {"type": "integer"}, "c": {"type": "string"}}}
    given = tool({"a": inner, "d.e": {"type": "integer"}})
    assert built(given, "a.b=1", "a.c=2", "d.e=3") == {"a": {"b": 1, "c": "2"}, "d.e": 3}
    for words in (("a.b=1", "a.b=2"), ("a={}", "a.b=1"), ("a.b=1", "a={}")):
        with pytest.raises(InvalidArguments):
            built(given, *words)


def test_json_may_say_more_than_a_schema_that_does_not_forbid_it():
    assert built(tool({"a": {}}), '{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    for given, words in (
        (tool({"a": {}}, additionalProperties=False), ('{"b": 2}',)),
        (tool({"a": {}}), ("b=2",)),
    ):
        with pytest.raises(InvalidArguments):
            built(given, *words)
    assert built(tool({"a": {}}, additionalProperties=True), "b=2") == {"b": 2}
    assert built(tool({}), "b=2") == {"b": 2}


@pytest.mark.parametrize(
    "words",
    [("[1]",), ("{",), ('{"a": NaN}',), ("{}", "a=1"), ("a",), ("=1",), ("@none",), ("[" * 9999,)],
)
def test_what_no_tool_takes_is_refused_before_anything_is_opened(words: tuple[str, ...]):
    with pytest.raises(UsageError):
        arguments.parse(words)


def test_the_place_of_a_mistake_is_pointed_at_in_a_long_line_too():
    text = '{"a": "' + "x" * 500 + '", "b" 1}'
    with pytest.raises(UsageError) as caught:
        arguments.parse((text,))
    *_, line, caret = str(caught.value).splitlines()
    assert line[caret.index("^")] == "1"
    assert len(line) < 80


@pytest.mark.parametrize("schema", [{}, {"properties": 3}, {"properties": {"x": 7}}])
def test_a_schema_that_says_nothing_plain_lets_everything_pass(schema: Any):
    assert arguments.convert("1", arguments.properties(schema).get("x"), schema) == 1
    circle = {"$ref": "#/x", "x": {"$ref": "#/x"}}
    assert arguments.json_types(circle, circle) == set()


def test_a_text_that_breaks_off_is_pointed_at_where_it_ends():
    with pytest.raises(UsageError) as caught:
        arguments.parse(('{"a": 1\n\n',))
    *_, line, caret = str(caught.value).splitlines()
    assert line == '  {"a": 1'
    assert caret.index("^") == len(line)
