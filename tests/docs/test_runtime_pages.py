"""The pages about the runtime, which are written by hand, leave out nothing that there is."""

import dataclasses
import re
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from toolkeep import CallContext, Runtime, Tool
from toolkeep._runtime.options import RuntimeOptions
from toolkeep.config.fields import CONTEXT_HEADER_NAMES
from toolkeep.events import CatalogueChanged, Reloaded, ReloadFailed
from toolkeep.runtime import Catalogue, ServerStatus

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "toolkeep"
INTERNAL = {"tools_with_progress", "caller", "context", "of", "open"}
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
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(RuntimeOptions.__optional_keys__)


@pytest.mark.parametrize(
    ("model", "heading"),
    [(Runtime, None), (Catalogue, "Catalogue"), (Tool, "Tool"), (ServerStatus, "ServerStatus")],
)
def test_the_page_of_the_runtime_names_every_member(model: type[Any], heading: str | None):
    page = "reference/runtime.md"
    said = text_of(page) if heading is None else section(page, heading)
    assert [name for name in sorted(members(model)) if not re.search(rf"`{name}\b", said)] == []


@pytest.mark.parametrize(
    "package", ["_runtime", "_catalogue", "_client", "_transport", "_rules", "config", "auth"]
)
def test_the_page_about_architecture_has_every_module_and_no_other(package: str):
    said = section("explanation/architecture.md", "Where to look")
    table = said.partition(f"| in `{package}` | |\n|---|---|\n")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))
    found = {one.stem for one in (SOURCE / package).iterdir() if not one.name.startswith("_")}
    assert sorted(named) == sorted(found)


def test_the_page_about_users_has_every_field_of_a_context_and_every_derived_header():
    page = text_of("how-to/many-users.md")
    fields = [one.name for one in dataclasses.fields(CallContext)]
    assert [name for name in (*fields, *CONTEXT_HEADER_NAMES) if f"`{name}`" not in page] == []


def test_the_page_of_events_has_those_of_a_runtime_with_their_fields():
    said = section("reference/events.md", "Of a runtime")
    own = [CatalogueChanged, Reloaded, ReloadFailed]
    for kind in own:
        row = next(line for line in said.splitlines() if line.startswith(f"| `{kind.__name__}` |"))
        fields = {one.name for one in dataclasses.fields(kind)} - {"server", "at"}
        assert [name for name in fields if f"`{name}`" not in row] == []
