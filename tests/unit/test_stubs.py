"""Stubs of tools: what each keyword of a schema becomes, and that odd schemas do no harm."""

import ast
import asyncio
import keyword
from typing import Any

import pydantic_monty
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkeep._rules.names import model_name, python_names
from toolkeep.code_mode._stubs import HEADER, MAX_STUB, write_stub

pytestmark = pytest.mark.requirement("X1")

TEXT = {"type": "string"}


def tool(part: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": part}, "required": ["x"], **beside}


def parameter(part: Any, **beside: Any) -> str:
    """The type of the one parameter."""
    written = write_stub("s__t", tool(part, **beside))
    ast.parse(HEADER + written)
    return written.partition("x: ")[2].partition(") -> Any")[0]


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (TEXT, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": "array", "items": TEXT}, "list[str]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": TEXT}, "dict[str, str]"),
        ({"type": "object", "additionalProperties": True}, "dict[str, Any]"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"enum": ["it's", 3, None, True]}, 'Literal["it\'s", 3, None, True]'),
        ({"type": "string", "enum": [1.5]}, "str"),
        ({"type": "string", "enum": [str(n) for n in range(51)]}, "str"),
        ({"const": "only"}, "Literal['only']"),
        ({"const": 1.5}, "Any"),
        ({"anyOf": [TEXT, {"type": "integer"}]}, "str | int"),
        ({"oneOf": [TEXT, TEXT]}, "str"),
        ({"anyOf": [TEXT, {}]}, "Any"),
        ({"anyOf": [{"const": n} for n in range(21)]}, "Any"),
        ({"allOf": [TEXT]}, "str"),
        ({}, "Any"),
        (True, "Any"),
        (5, "Any"),
    ],
)
def test_a_part_of_a_schema_becomes_a_type(part, written):
    assert parameter(part) == written


def test_objects_become_typed_dicts_with_optional_fields():
    inner = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
    assert write_stub("shop__find", tool(inner)) == (
        "class ShopFindX(TypedDict):\n    a: str\n    b: NotRequired[str]\n\n"
        "async def shop__find(*, x: ShopFindX) -> Any: ...\n"
    )


def test_an_output_schema_is_the_return_type():
    written = write_stub("s__t", {"type": "object", "properties": {}}, tool(TEXT))
    assert written.endswith("async def s__t() -> STResult: ...\n")
    assert "class STResult(TypedDict):\n    x: str\n" in written


def test_optional_parameters_show_their_default_if_python_can_say_it():
    properties = {
        "a": {"type": "integer", "default": 10},
        "b": {"type": "string", "default": "x" * 50},
        "c": {"type": "string", "default": None},
        "d": {"type": "array", "items": TEXT, "default": []},
    }
    written = write_stub("s__t", {"type": "object", "properties": properties})
    assert "(*, a: int = 10, b: str = ..., c: str = ..., d: list[str] = ...)" in written


def test_names_that_are_no_python_names_are_passed_in_a_dict():
    properties = {"from": TEXT, "x-y": TEXT, "ok": TEXT}
    written = write_stub("s__t", {"type": "object", "properties": properties})
    assert "ok: str = ...," in written
    assert "**arguments: Any,  # pass as **{\"name\": value}: 'from', 'x-y'" in written
    inner = {"type": "object", "properties": properties}
    assert "'x-y': NotRequired[str]," in write_stub("s__t", tool(inner))


@pytest.mark.parametrize(
    ("schema", "parameters"),
    [
        ({}, "**arguments: Any"),
        (None, "**arguments: Any"),
        ({"type": "object", "properties": {}}, ""),
        ({"type": "object", "properties": {}, "additionalProperties": True}, "**arguments: Any"),
        ({"type": "object", "patternProperties": {"x": TEXT}}, "**arguments: Any"),
    ],
)
def test_a_tool_takes_anything_only_where_its_schema_says_so(schema, parameters):
    assert write_stub("s__t", schema) == f"async def s__t({parameters}) -> Any: ...\n"


def test_references_become_one_class_also_where_they_refer_to_themselves():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "n": TEXT}}
    schema = tool({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}})
    written = write_stub("s__t", schema)
    assert "x: STNode" in written
    assert "    next: NotRequired[STNode]\n" in written
    odd = {"type": "object", "properties": {"a-b": {"$ref": "#/$defs/Node"}}}
    odd["properties"]["l"] = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    odd["required"] = ["l"]
    written = write_stub("s__t", tool({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": odd}}))
    assert "'a-b': NotRequired['STNode'],\n    'l': 'list[STNode]',\n" in written


def test_a_quoted_type_has_no_escapes():
    union = {"anyOf": [{"$ref": "#/$defs/N"}, {"enum": ["'", '"']}]}
    node = {"type": "object", "properties": {"a-b": union}}
    assert "'a-b': NotRequired[Any]," in write_stub(
        "s__t", tool({"$ref": "#/$defs/N"}, **{"$defs": {"N": node}})
    )


def test_a_reference_that_leads_in_a_circle_is_any():
    defs = {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}, TEXT]}}
    assert parameter({"$ref": "#/$defs/A"}, **{"$defs": defs}) == "Any"
    assert parameter({"$ref": "#/$defs/gone"}) == "Any"
    assert parameter({"$ref": "https://example.org/x"}) == "Any"


def test_classes_of_several_tools_have_several_names():
    taken = {"STX"}
    inner = {"type": "object", "properties": {"a": TEXT}}
    assert "class STX_2(TypedDict)" in write_stub("s__t", tool(inner), taken=taken)
    assert taken == {"STX", "STX_2"}
    assert "class T1TX(TypedDict)" in write_stub("_1__t", tool(inner))


def test_a_description_makes_a_docstring_and_comments():
    schema = tool({"type": "string", "description": "What\nto find"})
    written = write_stub("s__t", schema, description='Finds.\n\nWith """care""" \\ and "quotes"')
    assert "    x: str,  # What to find\n" in written
    function = ast.parse(written).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert ast.get_docstring(function) == "Finds.\nWith '''care''' / and \"quotes"


def test_long_texts_are_cut():
    schema = tool({"type": "string", "description": "y" * 500})
    written = write_stub("s__t", schema, description="z" * 2_000)
    assert "y" * 120 + "…" in written
    assert "z" * 500 + "…" in written
    assert len(written) < 900


def test_a_schema_that_is_too_large_is_written_with_less():
    wide = {f"p{n}": {"type": "string", "description": "d" * 100} for n in range(60)}
    written = write_stub("s__t", {"type": "object", "properties": wide}, description="About it.")
    assert "p59: str = ..." in written
    assert "ddd" not in written
    deep = {f"p{n}": {"type": "object", "properties": wide} for n in range(10)}
    assert "p9: dict[str, Any] = ..." in write_stub("s__t", {"properties": deep})
    huge = {f"p{n}": TEXT for n in range(5_000)}
    assert (
        write_stub("s__t", {"properties": huge}) == "async def s__t(**arguments: Any) -> Any: ...\n"
    )


def test_what_is_nested_too_deep_is_any():
    part: dict[str, Any] = TEXT
    for _ in range(20):
        part = {"type": "array", "items": part}
    assert parameter(part) == "list[" * 9 + "Any" + "]" * 9
    for _ in range(3_000):
        part = {"anyOf": [part]}
    assert parameter(part) == "Any"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
WORDS = st.sampled_from(["type", "properties", "items", "enum", "anyOf", "allOf", "$ref", "const"])
SCHEMAS = st.recursive(
    JSON,
    lambda inner: st.dictionaries(
        WORDS,
        inner
        | st.sampled_from(["object", "array", "string", "#", "#/properties/x"])
        | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_size=4,
    ),
    max_leaves=12,
)


@given(SCHEMAS, SCHEMAS, st.text(max_size=60))
@settings(max_examples=300)
def test_whatever_a_schema_says_its_stub_is_one_function(schema, output, about):
    written = write_stub("s__t", tool(schema, description=about), output, description=about)
    *classes, function = ast.parse(HEADER + written).body[1:]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert function.name == "s__t"
    assert all(isinstance(one, ast.ClassDef | ast.Assign) for one in classes)
    assert len(written) <= MAX_STUB


HOSTILE = [
    {"enum": ['"]\nimport os\n', "\\", "\u2028", "\x00"]},
    {"type": "object", "properties": {"a\n    evil: int": TEXT, "class": TEXT, "ﬁ": TEXT}},
    {"type": "object", "properties": {'"): ...\nx = 1': TEXT}},
    {"type": "string", "description": "x\nimport os\r\fimport os\u2028import os\x85import os"},
    {"$ref": "#/$defs/a\nb"},
]


@pytest.mark.usefixtures("sandbox")
async def test_the_type_checker_accepts_stubs_of_hostile_schemas():
    stubs = HEADER + "".join(
        write_stub(f"s__t{n}", tool(part), tool(part), description='"""\nimport os\\')
        for n, part in enumerate(HOSTILE)
    )
    async with (
        asyncio.timeout(30),
        pydantic_monty.AsyncMonty() as pool,
        pool.checkout(type_check=True, type_check_stubs=stubs) as session,
    ):
        assert await session.feed_run("1 + 1") == 2
        with pytest.raises(pydantic_monty.MontyTypingError, match="os"):
            await session.feed_run("os")


def test_names_in_programs_are_identifiers_and_no_two_are_alike():
    pairs = [("a-b", "c"), ("a_b", "c"), ("a", "b-c"), ("1st", "x"), ("né", "x"), ("a-b", "c.d")]
    names = python_names(model_name(*pair) for pair in pairs)
    assert names["a_b__c"] == "a_b__c"
    assert names["a-b__c"].startswith("a_b__c__")
    assert names["a__b-c"] == "a__b_c"
    assert names["1st__x"] == "_1st__x"
    assert len(set(names.values())) == len(pairs)


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=6))
def test_any_tool_has_a_name_in_programs(pairs):
    names = python_names(model_name(*pair) for pair in pairs)
    assert all(name.isidentifier() and name.isascii() for name in names.values())
    assert not any(map(keyword.iskeyword, names.values()))
    assert len(set(names.values())) == len(names)
