"""One tool of the catalogue: what it says of itself, and what copies of it change."""

import copy
import pickle

import mcp_types
import pytest

from toolkeep import InvalidArguments, Tool
from toolkeep._catalogue.listing import ListingContent, Prompt, Resource, Template

SECRET = "hunter2"


def definition(name: str = "search", **more) -> mcp_types.Tool:
    return mcp_types.Tool(name=name, input_schema={"type": "object"}, **more)


def tool(name: str = "search", server: str = "docs", **more) -> Tool:
    return Tool(server, definition(name), **more)


def test_a_tool_has_its_names():
    found = tool("users.list")
    assert found.name == "docs.users.list"
    assert found.tool == "users.list"
    assert found.key == ("docs", "users.list")
    assert found.model_name.startswith("docs__users_list__")


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (None, (False, True, False, True)),
        ({}, (False, True, False, True)),
        ({"readOnlyHint": True}, (True, False, True, True)),
        ({"readOnlyHint": True, "destructiveHint": True}, (True, False, True, True)),
        ({"destructiveHint": False}, (False, False, False, True)),
        ({"idempotentHint": True}, (False, True, True, True)),
        ({"openWorldHint": False}, (False, True, False, False)),
    ],
)
def test_hints_have_the_defaults_of_the_specification(hints, expected):
    marks = None if hints is None else mcp_types.ToolAnnotations.model_validate(hints)
    found = Tool("docs", definition(annotations=marks))
    shown = (found.read_only, found.destructive, found.idempotent, found.open_world)
    assert shown == expected


@pytest.mark.parametrize(
    ("title", "older", "expected"),
    [(None, None, "search"), ("New", "Old", "New"), (None, "Old", "Old"), ("", "", "search")],
)
def test_the_title_falls_back_to_the_older_one_and_to_the_name(title, older, expected):
    marks = mcp_types.ToolAnnotations(title=older)
    assert Tool("docs", definition(title=title, annotations=marks)).title == expected


@pytest.mark.parametrize(
    ("said", "guide", "expected"),
    [
        (None, "", ""),
        ("Finds.", "", "Finds."),
        (None, "Ask once.", "Ask once."),
        ("Finds.", "Ask once.", "Finds.\n\nAsk once."),
    ],
)
def test_the_guide_follows_the_description(said, guide, expected):
    assert Tool("docs", definition(description=said), guide=guide).description == expected


def test_schemas_and_meta_are_the_servers():
    said = definition(output_schema={"type": "object"}, _meta={"a": 1})
    found = Tool("docs", said)
    assert found.input_schema == {"type": "object"}
    assert found.output_schema == {"type": "object"}
    assert found.meta == {"a": 1}
    assert tool().output_schema is None
    assert tool().meta == {}


def test_a_strict_schema_is_a_copy():
    found = tool()
    before = copy.deepcopy(found.input_schema)
    found.strict_schema()["properties"]["x"] = 1
    assert found.input_schema == before


def test_it_streams_once_it_has_reported_progress():
    progressed: set[tuple[str, str]] = set()
    found = tool(tools_with_progress=progressed)
    assert not found.supports_streaming
    progressed.add(("docs", "search"))
    assert found.supports_streaming


def test_headers_are_merged_on_a_copy_whatever_their_case():
    first = tool(headers={"x-a": "1"}).with_headers({"X-B": "1", "x-c": "1"})
    second = first.with_headers({"X-B": "2"})
    assert dict(second.own_headers) == {"x-b": "2", "x-c": "1"}
    assert dict(first.own_headers) == {"x-b": "1", "x-c": "1"}
    assert dict(second.headers) == {"x-a": "1"}
    with pytest.raises(TypeError):
        second.own_headers["x-a"] = "3"  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("headers", [{"host": "x"}, {"mcp-session-id": "x"}, {"a": f"{SECRET}\n"}])
def test_headers_that_may_not_be_sent_are_refused_without_their_value(headers):
    with pytest.raises(InvalidArguments) as caught:
        tool().with_headers(headers)
    assert (caught.value.server, caught.value.tool) == ("docs", "search")
    assert SECRET not in str(caught.value)


def test_a_description_of_ones_own_replaces_the_guide_too():
    first = Tool("docs", definition(description="Finds."), guide="Ask once.")
    assert first.with_description("Mine.").description == "Mine."
    assert first.description == "Finds.\n\nAsk once."


def test_a_repr_shows_no_secret_and_is_short():
    shown = repr(tool("x" * 5_000_000, headers={"authorization": SECRET}, stale=True))
    assert SECRET not in shown
    assert len(shown) < 500
    assert "stale" in shown


def test_tools_are_equal_by_value_and_hashed_by_identity():
    assert tool() == tool()
    assert hash(tool()) == hash(tool(guide="other"))
    assert len({tool(), tool(), tool(server="b")}) == 2
    assert tool() != "docs.search"
    others = [
        tool(guide="x"),
        tool(stale=True),
        tool(tags=frozenset({"x"})),
        tool(headers={"a": "b"}),
        tool("other"),
    ]
    assert all(tool() != other for other in others)


def test_schemas_deeper_than_the_stack_compare_as_different_without_an_error():
    def deep() -> mcp_types.Tool:
        nested: dict = {}
        for _ in range(200_000):
            nested = {"a": nested}
        return definition().model_copy(update={"input_schema": nested})

    assert (Tool("docs", deep()) == Tool("docs", deep())) is False


def test_a_tool_is_frozen_and_can_be_pickled():
    found = tool(tags=frozenset({"a"}), tools_with_progress=set())
    with pytest.raises(AttributeError):
        found.server = "other"  # pyright: ignore[reportAttributeAccessIssue]
    assert pickle.loads(pickle.dumps(found.with_description("x"))) == found.with_description("x")


def test_what_else_is_listed_has_a_server_and_a_name():
    prompt = Prompt("docs", mcp_types.Prompt(name="ask"))
    resource = Resource("docs", mcp_types.Resource(name="r", uri="file:///a.txt"))
    template = Template("docs", mcp_types.ResourceTemplate(name="t", uri_template="file:///{x}"))
    assert (prompt.name, prompt.prompt) == ("docs.ask", "ask")
    assert (resource.name, resource.uri) == ("docs.file:///a.txt", "file:///a.txt")
    assert (template.name, template.uri_template) == ("docs.file:///{x}", "file:///{x}")
    assert prompt == Prompt("docs", mcp_types.Prompt(name="ask"))
    assert prompt != Prompt("docs", mcp_types.Prompt(name="ask", description="d"))
    assert prompt != resource
    assert len({prompt, resource, template, Prompt("docs", prompt.definition)}) == 3
    assert repr(prompt) == "Prompt('docs.ask')"


def test_an_offer_tells_its_size():
    assert (
        repr(ListingContent(server="docs", tools=(tool(),), stale=True))
        == "ListingContent('docs', 1 tools, stale)"
    )
