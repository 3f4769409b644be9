"""Every fenced block of a page is run, loaded or compared: one that is not is a mistake."""

import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import (
    EXAMPLES,
    PAGES,
    PAPERS,
    ROOT,
    Block,
    anchors,
    blocks,
    fences,
    is_a_part_of,
)
from tests.docs.programs import ALL as PROGRAMS
from tests.docs.programs import WHOLE_EXAMPLES, PageProgram, is_in_an_example
from toolkeep import CallOutcomeUnknown, Client, ToolkeepError
from toolkeep.testing import ScriptedServer

PATIENCE = 30.0
BLOCKS = [block for page in (*PAGES, *PAPERS) for block in blocks(page)]
FOLLOWED = {block.page for block in BLOCKS if block.language == "console"}
"""By `test_tutorial`, from top to bottom."""
GENERATED = re.compile("^<!-- Written by ", re.MULTILINE)
ELSEWHERE = {
    "architecture.md": "runtime/test_ownership.py",
    "code-mode.md": "code_mode/test_page.py",
}
"""Pages whose own test, among those of what they are about, compares what they show."""
WITH_PROGRAMS = {program.block.page for program in PROGRAMS}
MADE = re.compile(r"make ([a-z]+)(?: [A-Z]+=\S+)*(?: +#.*)?")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def is_held_to_the_truth(block: Block) -> bool:
    """Whether a test looks at it. The comments say which."""
    match block.language, block.about:
        case _ if GENERATED.search(block.page.read_text(encoding="utf-8")):
            return True  # test_generated_pages, and make check
        case (("text" | "json"), "") if block.page.name in ELSEWHERE:
            test = (ROOT / "tests" / ELSEWHERE[block.page.name]).read_text(encoding="utf-8")
            return block.page.name in test
        case "console", "":
            return True  # test_tutorial
        case "pycon", "":
            return block.page in FOLLOWED  # test_tutorial
        case "python", "":
            return True  # below
        case "python", "theirs":
            return block.page.name.startswith("migrate-from-")  # test_migration_pages
        case "python", _:
            return block.page in FOLLOWED or block.page in WITH_PROGRAMS  # test_tutorial, or below
        case "markdown", about if about:
            return block.page in WITH_PROGRAMS  # below
        case "text", "output":
            return block.text in {program.output for program in PROGRAMS}  # below
        case (("json" | "toml" | "ini"), about) if about:
            return True  # test_configuration_pages
        case "text", "error":
            return True  # test_configuration_pages
        case "text", "tree":
            return block.page.name == "errors.md"  # test_generated_pages
        case "text", about if about.startswith("benchmarks/"):
            return (ROOT / about).is_file()  # test_adapter_pages
        case "text", about:
            return ROOT / about in EXAMPLES  # test_examples
        case "sh", "":
            return makes(block)
    return False


def makes(block: Block) -> bool:
    """Whether it has nothing but targets of the Makefile, which CI makes."""
    found = [MADE.fullmatch(line) for line in block.text.splitlines()]
    return all(line is not None and line[1] in TARGETS for line in found)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_loaded_or_compared(block: Block):
    assert is_held_to_the_truth(block)


@pytest.mark.parametrize("page", [*PAGES, *PAPERS], ids=lambda page: page.name)
def test_no_block_is_hidden_from_the_tests(page: Path):
    assert len(list(blocks(page))) * 2 == fences(page)


# -- commands in a sentence ---------------------------------------------------------------------

COMMAND = re.compile(
    r"`(?:\$ )?toolkeep ((?!-)[a-z-]+(?: (?:show|path|validate|schema|approve|add|import))?)"
)
COMMANDS = anchors(ROOT / "docs" / "reference" / "command-line.md")


@pytest.mark.parametrize("page", [*PAGES, *PAPERS], ids=lambda page: page.name)
def test_a_command_that_a_page_names_is_one(page: Path):
    named = COMMAND.findall(page.read_text(encoding="utf-8"))
    assert [one for one in named if f"toolkeep-{one.replace(' ', '-')}" not in COMMANDS] == []


def test_the_readme_has_some_rows_of_the_page_about_troubles():
    first = re.compile(r"^\| ([^|]+?)¹?²? \| .+ \| \[test", re.MULTILINE)
    readme = first.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    page = ROOT / "docs" / "reference" / "what-happens-when.md"
    assert len(readme) > 5
    assert set(readme) <= set(first.findall(page.read_text(encoding="utf-8")))


COLUMNS = ("toolkeep.Client", "SDK Client", "FastMCP Client", "langchain-mcp-adapters, default")
"""The first four clients of the README's table, as the page about performance calls them."""


CLIENTS = ("toolkeep.Client", "mcp.Client", "FastMCP")
"""And as the page about fault scenarios does."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def test_the_figures_of_the_readme_are_those_that_were_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = [cells(line) for line in readme.splitlines() if line[:2] == "| "]
    rows = {row[0].rstrip("¹²"): row[1:] for row in table}
    measured = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    names = (*COLUMNS, "mcp-use")

    def column(heading: str, place: int) -> dict[str, str]:
        part = measured.partition(f"### {heading}\n")[2].partition("\n### ")[0]
        found = [cells(line) for line in part.splitlines() if line.startswith("| ")]
        return {row[0]: row[place] for row in found if len(row) > place}

    calls = {**column("A call of 100 bytes", 1), **column("Through a framework", 1)}
    shown = [f"{calls[name].partition(' (')[0]} µs" for name in names]
    told = [cell.rstrip("¹²³") for cell in rows["CPU time of the client for one call"]]
    assert told == shown
    memory = column("Fifty servers", 3)
    assert rows["memory of the client for one more server"] == [memory[name] for name in names]

    scenarios = (ROOT / "docs" / "reference" / "scenarios.md").read_text(encoding="utf-8")
    table = [cells(line) for line in scenarios.splitlines() if line.startswith("| ")]
    head, passed = table[0], next(row for row in table if row[0] == "passed")
    places = [head.index(name) for name in (*CLIENTS, "langchain-mcp-adapters", "mcp-use")]
    wanted = [passed[place].replace("/", " of ") for place in places]
    assert rows["fault scenarios passed"] == wanted


# -- programs -----------------------------------------------------------------------------------

WHOLE = {program.block for program in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
async def test_a_program_on_a_page_runs_as_it_stands_and_prints_what_is_below_it(
    program: PageProgram, tmp_path: Path
):
    if program.needs_a_server:
        async with ScriptedServer.local() as server:
            await asyncio.to_thread(program.run, tmp_path, f"127.0.0.1:{server.port}")
    else:
        await asyncio.to_thread(program.run, tmp_path)


TABLES = {
    *("glossary.md", "names-from-other-systems.md", "supported-systems.md"),
    *("adapters.md", "what-happens-when.md"),
    "authorization.md",
}
"""Pages that explain or list what other pages show programs for, and so begin without one."""
WRITTEN = [
    page
    for page in PAGES
    if page.name not in TABLES and not GENERATED.search(page.read_text(encoding="utf-8"))
]


def is_complete(block: Block) -> bool:
    """Whether it is run as it stands, in an interpreter of its own, by a test."""
    match block.language, block.about:
        case "python", "":
            return block in WHOLE or block.text in WHOLE_EXAMPLES  # above, or test_examples
        case (("python" | "json" | "toml"), about) if about != "theirs":
            later = [one for one in blocks(block.page) if one.line > block.line]
            return any(one in WHOLE or one.language == "console" for one in later)
        case (("console" | "sh"), _):
            return True  # test_tutorial, or test_a_block_is_run_loaded_or_compared
    return False


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_begins_with_something_to_paste(page: Path):
    """A whole program, commands, or a file for the first of either; before it only what another
    library needs."""
    shown = [one for one in blocks(page) if one.language != "text" and one.about != "theirs"]
    assert shown, "no program and no command"
    assert is_complete(shown[0]), f"{shown[0]} is a fragment, or is not run"
    above = page.read_text(encoding="utf-8").splitlines()[: shown[0].line]
    prose = [line for line in above if line.strip() and not line.startswith("#")]
    assert len(prose) <= 10 or page.name.startswith("migrate-from-") or page.name == "README.md"


def test_what_begins_without_a_program_is_there():
    assert {page.name for page in PAGES} >= TABLES


def test_a_fragment_is_not_taken_for_a_program():
    page = ROOT / "docs" / "how-to" / "authorize.md"
    fragment = Block(page, 1, "python", "", "async with Client(url) as client:\n    ...\n")
    assert not is_complete(fragment)
    assert not is_complete(Block(page, 1, "text", "output", "5\n"))


# -- other blocks of Python ---------------------------------------------------------------------

PYTHON = [
    block
    for block in BLOCKS
    if block.language == "python" and not block.about and block not in WHOLE
]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("block", PYTHON, ids=str)
async def test_a_block_of_python_is_part_of_an_example_or_runs(block: Block):
    if is_in_an_example(block):
        return
    if any(is_a_part_of(block.text, program.block.text) for program in PROGRAMS):
        return
    space: dict[str, Any] = {"__name__": "shown"}
    exec(compile(block.text, str(block), "exec"), space)
    functions = [
        value
        for value in space.values()
        if inspect.iscoroutinefunction(value) and value.__module__ == "shown"
    ]
    assert functions, "neither part of a file in examples/ nor something that can be run"
    async with ScriptedServer.local() as server:
        for function in functions:
            wanted = inspect.signature(function).parameters
            given = {name: READER_HAS[name](server) for name in wanted}
            await asyncio.wait_for(function(**given), PATIENCE)


async def _call(url: str, tool: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(CallOutcomeUnknown):
        async with Client(url) as client:
            await client.call_tool(tool, arguments)


async def _use(url: str) -> None:
    client = Client({"url": url, "timeouts": {"connect": 0.2, "call": 0.2}})
    try:
        with contextlib.suppress(ToolkeepError):
            await client.call_tool("echo", {"text": "hello"})
    finally:
        await client.aclose()


READER_HAS: dict[str, Any] = {
    "call_through_your_agent": lambda server: _call,
    "host": lambda server: "127.0.0.1",
    "port": lambda server: server.port,
    "url": lambda server: server.url,
    "use": lambda server: _use,
}
"""What a page takes for granted: the agent, and a server of its reader's own."""
