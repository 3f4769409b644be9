"""The pages that are drawn from the code are what the code draws."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.test_public_api import public_modules
from toolkeep import errors
from toolkeep._rules.health import MEMBER_TRANSITIONS
from toolkeep._rules.states import CLIENT_TRANSITIONS, CONNECTION_TRANSITIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["reference/recovery.md", "reference/lifecycle.md", "reference/configuration.md"]
"""Those that are drawn fast; the others go the same way."""


def generate(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(folder / "generate.py"), *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"},
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copy(DOCS / "generate.py", tmp_path)
    shutil.copytree(DOCS / "drawing", tmp_path / "drawing")
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS / name, tmp_path / name)
    return tmp_path


def test_no_committed_page_is_stale():
    done = generate(DOCS, "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_was_changed_by_hand_is_named(copied: Path, name: str):
    (copied / name).write_text("something else\n", encoding="utf-8")
    done = generate(copied, "--check", *PAGES)
    assert done.returncode == 1
    assert [page for page in PAGES if page in done.stderr] == [name]


@pytest.mark.parametrize("name", PAGES)
def test_a_missing_page_is_stale_and_written_again(copied: Path, name: str):
    (copied / name).unlink()
    assert generate(copied, "--check", name).returncode == 1
    assert generate(copied, name).returncode == 0
    assert (copied / name).read_bytes() == (DOCS / name).read_bytes()
    assert generate(copied, "--check", name).returncode == 0


@pytest.mark.parametrize("argument", ["--chek", "reference/recovery", "../README.md"])
def test_an_unknown_argument_changes_nothing(copied: Path, argument: str):
    before = {name: (copied / name).stat().st_mtime_ns for name in PAGES}
    assert generate(copied, argument).returncode == 2
    assert {name: (copied / name).stat().st_mtime_ns for name in PAGES} == before


@pytest.mark.parametrize(
    ("picture", "legal"),
    [
        ("connection", CONNECTION_TRANSITIONS),
        ("client", CLIENT_TRANSITIONS),
        ("member", MEMBER_TRANSITIONS),
    ],
)
def test_a_picture_of_states_has_every_state_and_every_legal_move(
    picture: str, legal: Mapping[Any, frozenset[Any]]
):
    drawn = (DOCS / "pictures" / f"{picture}.svg").read_text(encoding="utf-8")
    named = re.findall(r"<text [^>]*>(\w+)</text>", drawn)
    assert sorted(named) == sorted(state.value for state in legal)
    assert drawn.count('class="way"') == 1 + sum(len(after) for after in legal.values())


API = sorted((DOCS / "reference" / "api").glob("*.md"))


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_every_public_name_says_what_it_is(page: Path):
    rows = re.findall(r"^\| (.+?) \| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    silent = [name for name, said in rows if not said.strip()]
    assert silent == []
    assert rows or page.stem == "toolkeep.adapters"


def test_every_public_module_has_its_page_and_no_other():
    pages = {page.stem for page in API}
    listed = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^- \[([\w.]+)\]", listed, re.MULTILINE)) == pages
    assert {"toolkeep", *public_modules()} <= pages


# --- a page that is written by hand, and held to the code all the same -----------------------

ERRORS_PAGE = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")


def tree(text: str) -> list[str]:
    """The lines of a drawn tree without what is said about each class."""
    drawn = re.findall(r"^ *[A-Z]\w+(?:\(\w+\))?(?=$| {2,})", dedent(text), re.MULTILINE)
    return drawn[drawn.index("ToolkeepError") :]


def test_the_page_of_errors_draws_the_tree_as_the_module_does():
    drawn = ERRORS_PAGE.partition("```text tree\n")[2].partition("```")[0]
    module = (errors.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]
    assert tree(drawn) == tree(module)


def test_the_page_of_errors_says_of_each_what_to_do():
    rows = set(re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", ERRORS_PAGE, re.MULTILINE))
    public = [getattr(errors, name) for name in errors.__all__]
    raised = {c.__name__ for c in public if isinstance(c, type) and issubclass(c, Exception)}
    assert raised - {"ToolkeepError", "CallError"} <= rows
