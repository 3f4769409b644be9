"""Searching the catalogue: what is found, in which order, and that odd text does no harm."""

from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep import Tool
from toolkeep._catalogue.catalogue import ListingContent
from toolkeep._catalogue.search import MAX_OCCURRENCES_READ, SearchIndex, raw_words, terms_of
from toolkeep.runtime import Catalogue


def tool(name: str, description: str = "", server: str = "s", **more: Any) -> Tool:
    schema = more.pop("schema", {"type": "object"})
    title = more.pop("title", None)
    said = mcp_types.Tool(name=name, description=description, title=title, input_schema=schema)
    return Tool(server, said, **more)


def found(tools: list[Tool], query: str, limit: int = 10) -> list[str]:
    return [hit.tool.name for hit in SearchIndex(tools).search(query, limit)]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("search_issues", ["search", "issue"]),
        ("users.list-all", ["user", "list", "all"]),
        ("parseHTTPAnswer", ["parsehttpanswer", "parse", "http", "answer"]),
        ("GitHub", ["github", "git", "hub"]),
        ("queries", ["query"]),
        ("class is", ["class", "is"]),
        ("ÉtatCivil", ["étatcivil", "état", "civil"]),
        ("STRASSE straße", ["strasse"]),
        ("\uff26\uff49\uff4c\uff45", ["file"]),
        ("研究資料", ["研究資料", "研究", "究資", "資料"]),
        ("研", ["研"]),
        ("v2", ["v2"]),
        ("\u202eevil\u202c", ["evil"]),
        ("__proto__", ["proto"]),
        ("¿? — …", []),
        ("", []),
    ],
)
def test_text_becomes_words(text, terms):
    assert list(dict.fromkeys(t for word in raw_words(text) for t in terms_of(word))) == terms


def test_a_name_counts_more_than_a_description_and_a_parameter_is_found():
    schema = {
        "type": "object",
        "properties": {
            "invoice": {"type": "string", "description": "which one to look at"},
            "lines": {"type": "array", "items": {"properties": {"voucher": {}}}},
        },
    }
    tools = [
        tool("look", "Looks at an invoice or so, and at other things."),
        tool("find_invoice", "Finds."),
        tool("show", schema=schema),
        tool("other", "Nothing of it."),
    ]
    assert found(tools, "invoices") == ["s.find_invoice", "s.show", "s.look"]
    assert found(tools, "voucher") == ["s.show"]
    assert found(tools, "which") == ["s.show"]


@pytest.mark.parametrize("query", ["Mailbox", "billing", "gently", "crm"])
def test_titles_tags_guides_and_servers_are_searched(query):
    wanted = tool("x", title="Mailbox", tags=frozenset({"billing"}), guide="gently", server="crm")
    assert found([tool("y"), wanted], query) == ["crm.x"]


def test_a_rare_word_decides_over_common_ones():
    tools = [tool(f"get_{n}", "get the thing") for n in range(50)] + [tool("zebra", "stripes")]
    assert found(tools, "get the zebra", 1) == ["s.zebra"]


def test_equal_scores_are_in_the_order_of_the_names_however_they_were_listed():
    tools = [tool("same", server=server) for server in ("c", "a", "b")]
    assert found(tools, "same") == ["a.same", "b.same", "c.same"]
    assert found(tools[::-1], "same", 2) == ["a.same", "b.same"]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (-1, 0), (1, 1), (3, 3), (99, 5)])
def test_at_most_as_many_as_asked_for_are_found(limit, count):
    assert len(found([tool(f"same_{n}") for n in range(5)], "same", limit)) == count


@pytest.mark.parametrize("query", ["", "   ", "unheard", "¿?", "\ud800"])
def test_a_query_that_nothing_speaks_of_finds_nothing(query):
    assert found([tool("search", "Finds.")], query) == []
    assert found([], query) == []


def test_scores_fall_and_are_positive():
    hits = SearchIndex([tool(f"t{n}", "apple " * n + "pear") for n in range(8)]).search(
        "apple pear"
    )
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0


def test_a_catalogue_searches_among_tags():
    tools = (
        tool("read", tags=frozenset({"web"})),
        tool("read_all", tags=frozenset({"pay", "x"})),
        tool("read_none"),
    )
    catalogue = Catalogue.of([ListingContent(server="s", tools=tools)], 1)
    assert len(catalogue.search("read")) == 3
    assert [one.name for one in catalogue.search("read", tags=["pay", "other"])] == ["s.read_all"]
    assert [one.name for one in catalogue.search("read", tags={"web", "pay"}, limit=1)] == [
        "s.read"
    ]
    assert catalogue.search("read", tags=[]) == []


def test_the_commonest_words_of_a_long_query_are_left_out():
    common = [f"w{n}" for n in range(9)]
    tools = [tool(f"t{n}", " ".join(common)) for n in range(MAX_OCCURRENCES_READ // 8)]
    tools.append(tool("rare"))
    assert found(tools, " ".join([*common, "rare"]), 1) == ["s.rare"]


def test_a_word_that_all_have_is_read_however_many_they_are():
    tools = [tool("same", server=f"s{n:05}") for n in range(MAX_OCCURRENCES_READ + 10)]
    assert found(tools, "same", 2) == ["s00000.same", "s00001.same"]


def holds_itself() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["properties"] = {"apple": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        holds_itself(),
        {"properties": {f"p{n}": {"description": "apple"} for n in range(50_000)}},
        {"properties": ["apple"]},
        {"properties": {"apple": True, "pear": {"description": ["apple"]}}},
        {"properties": {"apple": {"items": 5, "properties": None}}},
    ],
)
def test_an_odd_schema_is_read_as_far_as_it_goes(schema):
    odd = Tool("s", tool("x").definition.model_copy(update={"input_schema": schema}))
    assert len(SearchIndex([odd, tool("y")]).search("apple y")) >= 1


def test_megabytes_of_description_are_read_in_part():
    hostile = tool("hostile", "apple " * 900_000)
    assert found([hostile, tool("apple", "A fruit.")], "apple") == ["s.apple", "s.hostile"]
    assert found([tool("x" * 5_000_000)], "x" * 5_000_000) == ["s." + "x" * 5_000_000]


@given(
    texts=st.lists(st.text(max_size=30) | st.text("ab cD_", max_size=12), max_size=6),
    query=st.text(max_size=20) | st.text("ab cD_", max_size=8),
)
def test_whatever_is_found_shares_a_word_with_the_query(texts, query):
    tools = [tool(text, text[::-1], server=f"s{n}") for n, text in enumerate(texts)]
    asked = words_of(query)
    hits = SearchIndex(tools).search(query, 100)
    said = {one: words_of(f"{one.tool} {one.description} {one.server}") for one in tools}
    assert {hit.tool for hit in hits} == {one for one in tools if said[one] & asked}
    assert hits == SearchIndex(tools[::-1]).search(query, 100)


def words_of(text: str) -> set[str]:
    return {term for word in raw_words(text) for term in terms_of(word)}
