"""What the page about composition shows is what happens."""

import json
import runpy
from typing import Any

import pytest

from tests.docs.markdown import ROOT, Block, blocks
from toolkeep import Runtime
from toolkeep.compose import Plan, PlanRefused, State, Step, __all__, ref, run
from toolkeep.testing import ScriptedServer

PAGE = ROOT / "docs" / "how-to" / "compose-calls.md"
SHOWN: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "compose.py"), run_name="shown")


def block(language: str, beginning: str) -> Block:
    found = [one for one in blocks(PAGE) if one.language == language]
    return next(one for one in found if one.text.startswith(beginning))


def test_the_json_on_the_page_is_the_plan_of_its_example() -> None:
    written = block("json", "{").text
    assert Plan.from_json(written) == SHOWN["PLAN"]
    assert json.loads(written) == SHOWN["PLAN"].to_json()


async def test_the_refusal_on_the_page_is_what_such_a_plan_is_told() -> None:
    plan = Plan(
        Step("find", "overdue", {"days": 30}),
        Step("note", "books.recrod"),
        Step("say", "books.echo", {"text": ref("find.txt")}),
        Step("sum", "books.add", {"a": "x", "b": 2}),
    )
    async with ScriptedServer.local() as books:
        functions = [SHOWN["overdue"], SHOWN["remind"]]
        async with Runtime.open({"books": books.spec}, functions=functions) as runtime:
            with pytest.raises(PlanRefused) as refused:
                await run(runtime, plan)
    assert block("text", "the plan was not started").text == f"{refused.value}\n"


def test_the_page_names_every_part_condition_and_state() -> None:
    said = PAGE.read_text(encoding="utf-8")
    for name in ("Step", "Sequence", "Parallel", "ForEach", "Fallback", "plan_schema"):
        assert name in __all__
        assert f"`{name}(" in said or f"={name}(" in said
    for name in ("Exists", "Equals", "Less", "OneOf", "Not", "AllOf", "AnyOf"):
        assert name in __all__
        assert f"`{name}`" in said
    assert [state for state in State if f"`{state.name}`" not in said] == []
