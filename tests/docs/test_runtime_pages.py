"""The pages about the runtime, which are written by hand, leave out nothing that there is."""

import dataclasses
import re
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from toolkeep import CallContext, Catalogue, Runtime, ServerStatus, Tool
from toolkeep._runtime import events
from toolkeep._runtime.options import Options
from toolkeep.config.tools import DERIVED
from toolkeep.events import Event

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "toolkeep"
INTERNAL = {"progressed", "caller", "context", "of", "open"}
"""What a runtime tells its tools and snapshots; `open` has a line of its own."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    return text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def members(model: type[Any]) -> set[str]:
    named = {name for kind in model.__mro__[:-1] for name in vars(kind)}
    fields = (
        {one.name for one in dataclasses.fields(model)} if hasattr(model, "__slots__") else set()
    )
    return {name for name in named | fields if not name.startswith("_")} - INTERNAL


def test_the_page_of_the_runtime_has_every_option_and_no_other():
    rows = re.findall(r"^\| (`[^|]+`) \|", section("reference/runtime.md", "Options"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(Options.__optional_keys__)


@pytest.mark.parametrize(
    ("model", "heading"),
    [(Runtime, None), (Catalogue, "Catalogue"), (Tool, "Tool"), (ServerStatus, "ServerStatus")],
)
def test_the_page_of_the_runtime_names_every_member(model: type[Any], heading: str | None):
    page = "reference/runtime.md"
    said = text_of(page) if heading is None else section(page, heading)
    assert [name for name in sorted(members(model)) if not re.search(rf"`{name}\b", said)] == []


@pytest.mark.parametrize(
    "package", ["_runtime", "_catalogue", "_engine", "_wire", "_rules", "config"]
)
def test_the_page_about_architecture_has_every_module_and_no_other(package: str):
    said = section("explanation/architecture.md", "Where to look")
    table = said.partition(f"| in `{package}` | |\n|---|---|\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+…?)`", " ".join(row.split("|")[1] for row in table.splitlines())))
    families = tuple(name.removesuffix("…") for name in named if name.endswith("…"))
    found = {one.stem for one in (SOURCE / package).iterdir() if not one.name.startswith("_")}
    single = {name for name in found if not (families and name.startswith(families))}
    assert single == {name for name in named if not name.endswith("…")}


def test_the_page_about_users_has_every_field_of_a_context_and_every_derived_header():
    page = text_of("how-to/speak-for-users.md")
    fields = [one.name for one in dataclasses.fields(CallContext)]
    assert [name for name in (*fields, *DERIVED) if f"`{name}`" not in page] == []


def test_the_page_of_events_has_those_of_a_runtime_with_their_fields():
    said = section("reference/events.md", "Of a runtime")
    own = [kind for kind in vars(events).values() if _is_event(kind)]
    assert len(own) >= 3
    for kind in own:
        row = next(line for line in said.splitlines() if line.startswith(f"| `{kind.__name__}` |"))
        fields = {one.name for one in dataclasses.fields(kind)} - {"server", "at"}
        assert [name for name in fields if f"`{name}`" not in row] == []


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
