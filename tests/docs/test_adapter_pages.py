"""The page of the adapters: each "yes" has its test, and models read what the page says."""

import ast
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from toolkeep import CallResult, errors
from toolkeep.adapters._common import error_message, model_can_fix, tool_error_message
from toolkeep.errors import CallError, Delivery, Failure, FailureKind, ToolkeepError

PAGE = ROOT / "docs" / "reference" / "adapters.md"
HOW_TO = ROOT / "docs" / "how-to"
TEXT = PAGE.read_text(encoding="utf-8")
FRAMEWORKS = ("langchain", "uipath", "adk", "openai-agents", "pydantic-ai")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    part = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[2:]]


# -- what each can do ---------------------------------------------------------------------------

CELLS = [cell for row in rows("What each can do") for cell in row[1:]]
USED = [found[1] for cell in CELLS if (found := re.fullmatch(r"\[yes[^\]]*\]\[([\w-]+)\]", cell))]
DEFINED = re.findall(r'^\[([\w-]+)\]: (\S+) "(\w+)"$', TEXT, re.MULTILINE)


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in tree.body if isinstance(one, kinds) and one.name.startswith("test")}


def test_every_yes_has_a_link_and_every_link_is_used_once():
    assert len(CELLS) == len(rows("What each can do")) * len(FRAMEWORKS)
    assert sum(cell.lstrip("[").startswith("yes") for cell in CELLS) == len(USED)
    assert sorted(USED) == sorted(name for name, _, _ in DEFINED)
    assert len(USED) == len(set(USED)) > 50


@pytest.mark.parametrize(("name", "file", "test"), DEFINED, ids=[one[0] for one in DEFINED])
def test_the_test_behind_a_yes_exists(name: str, file: str, test: str):
    assert test in functions_of(PAGE.parent / file)
    framework = next(one for one in FRAMEWORKS if name.startswith(f"{one}-"))
    own = Path(file).name.startswith(f"test_{framework.replace('-', '_')}")
    assert own or Path(file).name == "test_code_mode.py"  # which is about all of them


def test_every_framework_has_a_page_and_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for framework in FRAMEWORKS:
        page = (HOW_TO / f"use-in-{framework}.md").read_text(encoding="utf-8")
        assert f"`toolkeep[{framework}]`" in " ".join(page.split())
        assert framework in extras["optional-dependencies"]


# -- what a model is told -----------------------------------------------------------------------

TOLD = rows("What a model is told")
NAMED = [
    (kind, row[1], row[2]) for row in TOLD for kind in re.findall(r"`([A-Z]\w+[a-z])`", row[0])
]
TOOL, PROBLEMS, CODE = "notes__add", ("a: wrong", "b: missing"), -32000
OURS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ToolkeepError) and kind.__name__[0] != "_"
]


def made(kind: type[ToolkeepError], delivery: Delivery = Delivery.UNKNOWN) -> ToolkeepError:
    given: dict[str, Any] = {
        "server": "notes",
        "store": "memory:",
        "tool": "add",
        "delivery": delivery,
        "problems": PROBLEMS,
        "failure": Failure(FailureKind.REJECTED, delivery, "no", code=CODE),
        "candidates": (),
        "result": None,
        "requests": {},
        "attempts": 1,
    }
    wanted = inspect.signature(kind.__init__).parameters
    return kind("It failed", **{name: given[name] for name in given if name in wanted})


def shown(told: str) -> str:
    return told.format(tool=TOOL, problems="; ".join(PROBLEMS), code=CODE)


@pytest.mark.parametrize(("kind", "told", "move"), NAMED, ids=[one[0] for one in NAMED])
def test_a_model_reads_what_the_page_says(kind: str, told: str, move: str):
    error = made(getattr(errors, kind))
    assert error_message(error, TOOL) == shown(told)
    assert model_can_fix(error) == (move == "may mend it")


def test_the_page_has_every_sentence_of_the_code_and_no_other():
    others = [made(CallError, delivery) for delivery in Delivery]
    said = {error_message(error, TOOL) for error in (*map(made, OURS), *others)}
    assert said == {shown(row[1]) for row in TOLD}


def test_a_tool_without_a_word_is_told_as_the_page_says():
    silent = CallResult({"content": [], "isError": True}, "notes", "add")
    assert tool_error_message(silent, "{tool}") in " ".join(TEXT.split())


# -- beside each framework's own ----------------------------------------------------------------

QUOTED = dict(re.findall(r"^```text (benchmarks/peers/\w+\.py)\n(.*?)^```$", TEXT, re.M | re.S))
PEERS = sorted(ROOT.glob("benchmarks/peers/*.py"))


def test_every_script_of_a_peer_is_quoted_and_no_other():
    assert sorted(QUOTED) == [one.relative_to(ROOT).as_posix() for one in PEERS]
    assert len(PEERS) == len(FRAMEWORKS)


@pytest.mark.parametrize("script", QUOTED)
def test_a_peer_was_run_in_the_versions_that_are_pinned(script: str):
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    ran = QUOTED[script].partition("\n")[0].split(", ")
    assert len(ran) >= 2
    assert {one.replace(" ", "==") for one in ran} <= set(pinned)


def test_a_peer_is_quoted_with_sentences_of_today():
    errors_told = (errors.CallOutcomeUnknown, errors.ServerUnavailable)
    today = [
        error_message(made(kind), name)
        for kind in errors_told
        for name in ("kit__record", "record")
    ]
    ours = re.findall(r"^ +toolkeep .*?((?:Whether )?\w+ (?:ran is|did not run).*)$", TEXT, re.M)
    assert len(ours) > 5
    assert [
        one for one in ours if not any(said.startswith(one.strip("' ")) for said in today)
    ] == []
