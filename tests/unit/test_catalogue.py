"""The snapshot: what it holds, in which order, filtered, and compared with the next one."""

import logging
from collections.abc import Iterator

import mcp_types
import pytest

from toolkeep import Tool
from toolkeep._catalogue.catalogue import ListingContent, compare_catalogues
from toolkeep.events import CatalogueChanges, NameChanges
from toolkeep.runtime import Catalogue

SECRET = "hunter2"


def definition(name: str, **more) -> mcp_types.Tool:
    return mcp_types.Tool(name=name, input_schema={"type": "object"}, **more)


def offer(server: str, *names: str, stale: bool = False, tags: str = "", **more) -> ListingContent:
    tools = tuple(
        Tool(server, definition(name), stale=stale, tags=frozenset(tags.split())) for name in names
    )
    return ListingContent(server=server, tools=tools, stale=stale, **more)


def names(catalogue: Catalogue) -> list[str]:
    return [tool.name for tool in catalogue]


def full_offer(server: str) -> ListingContent:
    return offer(
        server,
        "search",
        prompts=(mcp_types.Prompt(name="ask"),),
        resources=(mcp_types.Resource(name="r", uri="file:///a"),),
        templates=(mcp_types.ResourceTemplate(name="t", uri_template="file:///{x}"),),
        instructions="Be kind.",
    )


def test_a_snapshot_keeps_the_configured_order_and_counts_tools():
    catalogue = Catalogue.of([offer("z", "b", "a"), offer("m"), offer("a", "b")], 7)
    assert names(catalogue) == ["z.b", "z.a", "a.b"]
    assert (len(catalogue), catalogue.revision, catalogue.servers) == (3, 7, ("z", "m", "a"))
    assert "z.b" in catalogue
    assert catalogue.tools[0] in catalogue
    assert "b" not in catalogue
    assert 5 not in catalogue


def test_everything_listed_carries_its_server():
    catalogue = Catalogue.of([full_offer("a"), full_offer("b")], 1)
    assert [one.name for one in catalogue.prompts] == ["a.ask", "b.ask"]
    assert [one.name for one in catalogue.resources] == ["a.file:///a", "b.file:///a"]
    assert [one.name for one in catalogue.templates] == ["a.file:///{x}", "b.file:///{x}"]
    assert catalogue.listings[0].instructions == "Be kind."


def test_of_two_with_one_name_the_first_counts():
    first, second = full_offer("a"), full_offer("a")
    catalogue = Catalogue.of([first, second], 1)
    assert catalogue.tools == first.tools
    assert catalogue.tools[0] is first.tools[0]
    assert len(catalogue.prompts) == len(catalogue.resources) == len(catalogue.templates) == 1


def test_a_snapshot_does_not_change():
    catalogue = Catalogue.of([offer("a", "x")], 1)
    with pytest.raises(AttributeError):
        catalogue.revision = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_servers_out_of_reach_are_told():
    catalogue = Catalogue.of([offer("a", "x", stale=True), offer("b", "x")], 3)
    assert catalogue.stale == ("a",)
    assert repr(catalogue) == "<Catalogue, tools: 2, servers: 2 (1 stale), revision 3>"
    assert repr(Catalogue()) == "<Catalogue, tools: 0, servers: 0, revision 0>"


def test_tags_group_tools():
    catalogue = Catalogue.of(
        [offer("a", "x", tags="pay web"), offer("b", "y", tags="web"), offer("c", "z")], 1
    )
    groups = {tag: [tool.name for tool in tools] for tag, tools in catalogue.by_tag().items()}
    assert groups == {"pay": ["a.x"], "web": ["a.x", "b.y"]}
    assert [tool.name for tool in catalogue.with_tag("web")] == ["a.x", "b.y"]
    assert catalogue.with_tag("none") == ()


# --- filtering -----------------------------------------------------------------------------------


def test_filtering_makes_another_catalogue_and_leaves_this_one():
    catalogue = Catalogue.of([offer("a", "x", "y"), offer("b", "x")], 4)
    kept = catalogue.filtered(lambda tool: tool.tool == "y")
    assert names(kept) == ["a.y"]
    assert (kept.revision, kept.servers) == (4, ("a", "b"))
    assert names(catalogue) == ["a.x", "a.y", "b.x"]
    assert catalogue.filtered(lambda _: True).listings == catalogue.listings


def test_a_filter_that_raises_excludes_the_tool_and_is_logged_without_its_words(caplog):
    def keep(tool: Tool) -> bool:
        if tool.tool == "x":
            raise KeyError(SECRET)
        return True

    catalogue = Catalogue.of([offer("a", "x", "y"), offer("b", "x")], 1)
    with caplog.at_level(logging.WARNING, logger="toolkeep.catalogue"):
        assert names(catalogue.filtered(keep)) == ["a.y"]
    [record] = caplog.records
    assert "KeyError" in record.getMessage()
    assert SECRET not in caplog.text


class Later:
    def __await__(self) -> Iterator[None]:
        yield


async def asynchronous(_tool: Tool) -> bool:
    return True


@pytest.mark.parametrize("keep", [asynchronous, lambda _: Later()])
def test_a_verdict_that_nobody_awaited_keeps_nothing(keep):
    assert names(Catalogue.of([offer("a", "x")], 1).filtered(keep)) == []


def test_prompts_and_resources_can_be_filtered_too():
    catalogue = Catalogue.of([full_offer("a"), full_offer("b")], 1)
    kept = catalogue.filtered(lambda _: True, keep_other=lambda one: one.server == "b")
    others = (*kept.prompts, *kept.resources, *kept.templates)
    assert {one.server for one in others} == {"b"}
    assert len(others) == 3
    assert len(kept) == 2
    assert len(catalogue.filtered(lambda _: True).prompts) == 2


# --- differences ---------------------------------------------------------------------------------


def test_equal_snapshots_do_not_differ():
    old, new = Catalogue.of([full_offer("a")], 1), Catalogue.of([full_offer("a")], 2)
    assert compare_catalogues(old, new) == CatalogueChanges()
    assert not compare_catalogues(old, new)
    assert not compare_catalogues(old, old)


def test_what_came_went_and_changed_is_told_by_name():
    shared = offer("s", "x")
    old = Catalogue.of([shared, offer("a", "stays", "goes"), full_offer("b")], 1)
    other = ListingContent(
        server="a",
        tools=(
            Tool("a", definition("stays", description="now other")),
            Tool("a", definition("comes")),
        ),
        prompts=(mcp_types.Prompt(name="new"),),
    )
    changes = compare_catalogues(old, Catalogue.of([other, shared], 2))
    assert changes
    assert changes.tools == NameChanges(
        added=("a.comes",), removed=("a.goes", "b.search"), changed=("a.stays",)
    )
    assert changes.prompts == NameChanges(added=("a.new",), removed=("b.ask",))
    assert changes.resources == NameChanges(removed=("b.file:///a",))
    assert changes.templates == NameChanges(removed=("b.file:///{x}",))


@pytest.mark.parametrize(
    "later",
    [
        Tool("a", definition("x"), guide="Ask once."),
        Tool("a", definition("x"), tags=frozenset({"pay"})),
        Tool("a", definition("x", description="d")),
    ],
)
def test_a_tool_of_which_a_model_is_told_something_else_has_changed(later):
    old = Catalogue.of([offer("a", "x")], 1)
    new = Catalogue.of([ListingContent(server="a", tools=(later,))], 2)
    assert compare_catalogues(old, new) == CatalogueChanges(tools=NameChanges(changed=("a.x",)))


def test_a_server_that_went_out_of_reach_changed_no_tool():
    old, new = offer("a", "x"), offer("a", "x", stale=True)
    assert not compare_catalogues(Catalogue.of([old], 1), Catalogue.of([new], 2))


def test_a_changed_prompt_or_resource_is_told():
    old = Catalogue.of([full_offer("a")], 1)
    changed = ListingContent(
        server="a",
        tools=old.tools,
        prompts=(mcp_types.Prompt(name="ask", description="d"),),
        resources=(mcp_types.Resource(name="other", uri="file:///a"),),
        templates=(mcp_types.ResourceTemplate(name="o", uri_template="file:///{x}"),),
    )
    assert compare_catalogues(old, Catalogue.of([changed], 2)) == CatalogueChanges(
        prompts=NameChanges(changed=("a.ask",)),
        resources=NameChanges(changed=("a.file:///a",)),
        templates=NameChanges(changed=("a.file:///{x}",)),
    )
