"""Finding a tool by what somebody wrote, and what is said when there is none."""

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep import AmbiguousTool, Tool, UnknownPrompt, UnknownTool
from toolkeep._catalogue.catalogue import ListingContent
from toolkeep.runtime import Catalogue


def catalogue(**servers: list[str]) -> Catalogue:
    return Catalogue.of([offer(server, names) for server, names in servers.items()], 1)


def offer(server: str, names: list[str]) -> ListingContent:
    schema = {"type": "object"}
    tools = tuple(Tool(server, mcp_types.Tool(name=name, input_schema=schema)) for name in names)
    return ListingContent(
        server=server, tools=tools, prompts=tuple(mcp_types.Prompt(name=name) for name in names)
    )


SERVERS = catalogue(
    docs=["search", "read", "users.list", "a__b", ""],
    code=["search", "run", "users.list", "docs.delete", "docs__delete"],
    fs=["fs.read", "x" * 70, "研究資料", "\u202eevil", "__proto__"],
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("docs.search", "docs.search"),
        ("read", "docs.read"),
        ("run", "code.run"),
        ("docs.users.list", "docs.users.list"),
        ("fs.fs.read", "fs.fs.read"),
        ("fs.read", "fs.fs.read"),
        ("a__b", "docs.a__b"),
        ("docs__read", "docs.read"),
        ("code.docs.delete", "code.docs.delete"),
        ("code.docs__delete", "code.docs__delete"),
        ("docs.", "docs."),
        ("", "docs."),
        ("研究資料", "fs.研究資料"),
        ("__proto__", "fs.__proto__"),
    ],
)
def test_a_tool_is_found_by_full_short_and_model_name(name, found):
    assert SERVERS.tool(name).name == found


def test_every_tool_is_found_by_its_full_name_and_by_its_name_for_models():
    for tool in SERVERS:
        assert SERVERS.tool(tool.name) is tool
        assert SERVERS.tool(tool.model_name) is tool


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("search", ("docs.search", "code.search")),
        ("users.list", ("docs.users.list", "code.users.list")),
    ],
)
def test_a_short_name_of_several_tools_lists_the_candidates(name, candidates):
    with pytest.raises(AmbiguousTool) as caught:
        SERVERS.tool(name)
    assert caught.value.candidates == candidates
    assert caught.value.suggestions == candidates


def test_a_name_of_very_many_tools_is_told_in_few_words():
    many = catalogue(**{f"s{n}": ["search"] for n in range(500)})
    with pytest.raises(AmbiguousTool) as caught:
        many.tool("search")
    assert len(caught.value.candidates) == 500
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["docs.delete", "docs__delete"])
def test_no_server_can_pass_for_another_by_the_names_of_its_tools(name):
    with pytest.raises(UnknownTool):
        SERVERS.tool(name)
    unclaimed = Catalogue.of([one for one in SERVERS.listings if one.server != "docs"], 1)
    assert unclaimed.tool(name).name == f"code.{name}"


def test_a_server_that_offers_nothing_keeps_its_names():
    with pytest.raises(UnknownTool) as caught:
        catalogue(pay=[], other=["pay.send"]).tool("pay.send")
    assert caught.value.suggestions == ()


def test_the_full_name_goes_before_everything():
    mixed = catalogue(a=["b"], x=["a.b", "a__b"])
    assert mixed.tool("a.b").name == "a.b"
    assert mixed.tool("a__b").name == "a.b"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("docs.serch", "docs.search"),
        ("raed", "docs.read"),
        ("DOCS.READ", "docs.read"),
        ("doc.read", "docs.read"),
        ("user.list", "docs.users.list"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(UnknownTool) as caught:
        SERVERS.tool(name)
    assert not isinstance(caught.value, AmbiguousTool)
    assert nearest in caught.value.suggestions
    assert len(caught.value.suggestions) <= 3


@pytest.mark.parametrize("name", ["zzzz", "?", "x" * 5_000_000, "\ud800"])
def test_a_name_like_no_other_suggests_nothing_and_is_told_briefly(name):
    with pytest.raises(UnknownTool) as caught:
        catalogue(docs=["search"]).tool(name)
    assert caught.value.suggestions == ()
    assert len(str(caught.value)) < 1000


def test_an_empty_catalogue_knows_nothing():
    with pytest.raises(UnknownTool):
        Catalogue().tool("search")


def test_only_what_is_kept_is_suggested():
    kept = SERVERS.filtered(lambda tool: tool.server != "docs")
    with pytest.raises(UnknownTool) as caught:
        kept.tool("docs.reed")
    assert not any(name.startswith("docs.") for name in caught.value.suggestions)


def test_prompts_are_found_alike():
    assert SERVERS.prompt("docs.read").name == "docs.read"
    assert SERVERS.prompt("run").name == "code.run"
    with pytest.raises(UnknownPrompt) as caught:
        SERVERS.prompt("search")
    assert set(caught.value.suggestions) == {"docs.search", "code.search"}
    with pytest.raises(UnknownPrompt) as caught:
        SERVERS.prompt("raed")
    assert "docs.read" in caught.value.suggestions


names = st.text(st.characters(), max_size=6) | st.text("ab._", max_size=4)
offered = st.dictionaries(
    st.sampled_from(["a", "b", "a_", "ab"]), st.lists(names, max_size=5, unique=True), min_size=1
)


@given(servers=offered, wanted=names)
def test_a_name_gives_its_tool_or_a_clear_error_whatever_the_names(servers, wanted):
    snapshot = catalogue(**servers)
    for tool in snapshot:
        assert snapshot.tool(tool.name) is tool
    match outcome(snapshot, wanted):
        case Tool() as found:
            assert wanted in (found.name, found.tool, found.model_name)
        case AmbiguousTool(candidates=candidates):
            assert len(candidates) > 1
            assert all(snapshot.tool(name).tool == wanted for name in candidates)
        case UnknownTool(suggestions=suggestions):
            assert all(name in snapshot for name in suggestions)


def outcome(snapshot: Catalogue, name: str) -> Tool | UnknownTool:
    try:
        return snapshot.tool(name)
    except UnknownTool as error:
        return error
