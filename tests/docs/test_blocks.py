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
from toolkeep import CallOutcomeUnknown, Client, ToolkeepError
from toolkeep.testing import ScriptedServer

PATIENCE = 30.0
BLOCKS = [block for page in (*PAGES, *PAPERS) for block in blocks(page)]
FOLLOWED = {block.page for block in BLOCKS if block.language == "console"}
"""By `test_tutorial`, from top to bottom."""
GENERATED = re.compile("^<!-- Written by ", re.MULTILINE)
ELSEWHERE = {"run-code.md": "code_mode/test_page.py"}
"""Pages whose own test, among those of what they are about, compares what they show."""
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
        case "python", _:
            return block.page in FOLLOWED  # test_tutorial
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
    r"`(?:\$ )?toolkeep ((?!-)[a-z-]+(?: (?:show|path|validate|schema|approve|import))?)"
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
    assert len(readme) > 8
    assert set(readme) <= set(first.findall(page.read_text(encoding="utf-8")))


# -- blocks of Python ---------------------------------------------------------------------------

PYTHON = [block for block in BLOCKS if block.language == "python" and not block.about]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("block", PYTHON, ids=str)
async def test_a_block_of_python_is_part_of_an_example_or_runs(block: Block):
    if any(is_a_part_of(block.text, example) for example in EXAMPLES):
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
