"""What the page about code mode shows is what happens."""

import re

import pytest

from benchmarks import code_mode as benchmark
from tests.docs.markdown import ROOT, Block, blocks
from toolkeep import Runtime
from toolkeep.code_mode import CodeLimits, CodeRefused, Outcome, code_tools, run_code
from toolkeep.testing import ScriptedServer

PAGE = ROOT / "docs" / "how-to" / "code-mode.md"


def shown(beginning: str) -> str:
    found: list[Block] = [one for one in blocks(PAGE) if one.text.startswith(beginning)]
    return found[0].text


async def test_the_refusal_on_the_page_is_what_such_a_program_is_told() -> None:
    program = "x = 1\nawait books__add(a='x', b=2)\nawait books__record()\nawait books__ecko()"
    async with ScriptedServer.local() as books, Runtime({"books": books.spec}) as runtime:
        with pytest.raises(CodeRefused) as refused:
            await run_code(runtime, program, allow=["add", "echo"])
    assert shown("The program was not started") == f"{refused.value}\n"


async def test_the_failure_on_the_page_is_what_such_a_program_is_told() -> None:
    program = "\n\n\nawait books__echo(text='hello')\nawait books__fail(message='no')"
    async with ScriptedServer.local() as books, Runtime({"books": books.spec}) as runtime:
        result = await run_code(runtime, program, allow=["*"])
    told = re.sub(r"\d\.\d\d s", "0.00 s", result.text())
    assert shown("The program failed") == f"{told}\n"


async def test_the_signature_on_the_page_is_what_a_search_shows() -> None:
    def overdue(days: int) -> list[dict[str, str]]:
        """Who has not paid for so long."""
        return []

    async with Runtime({}, functions=[overdue]) as runtime:
        search, _ = code_tools(runtime, allow=["overdue"])
        found = (await search.call({"query": "overdue"})).text
    assert shown("class BuiltinOverdueResult") == found


def test_the_page_names_every_limit_and_outcome() -> None:
    said = PAGE.read_text(encoding="utf-8")
    assert [name for name in CodeLimits.__slots__ if f"| `{name}` |" not in said] == []
    assert [one for one in Outcome if f"| `{one.name}` |" not in said] == []


@pytest.mark.requirement("X4")
async def test_the_page_shows_what_code_mode_saves_a_model() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = page.partition(benchmark.BEGIN)[2].partition(benchmark.END)[0].strip()
    found = await benchmark.measure()
    assert written == benchmark.table(found), "run python -m benchmarks.code_mode --write"
    assert found["code mode"].sent * 100 < found["classic loop"].sent
