"""What the pages show is what runs: examples, code blocks, outputs, sessions at a prompt, links."""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mainstay import TLS, CallOutcomeUnknown, Client, MainstayError, ServerSpec, Timeouts
from mainstay._wire.process_program import environment as environment_of_a_program
from mainstay.testing import ScriptedServer
from tests.docs.markdown import (
    EXAMPLES,
    PAGES,
    PAPERS,
    ROOT,
    Block,
    blocks,
    blocks_in,
    headings,
    is_a_part_of,
    links,
    places,
)

PATIENCE = 30.0
SERVERS = ("serve.py", "notes_server.py")
PROGRAMS = [example for example in EXAMPLES if example.name not in SERVERS]
TUTORIAL = ROOT / "docs" / "tutorial" / "ten-minutes.md"
SHOWN_URL = "http://127.0.0.1:8000/mcp"


def name(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}


def output_of(example: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


# -- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", PROGRAMS, ids=name)
def test_an_example_runs_and_prints_what_its_page_shows(example: Path):
    printed = output_of(example)
    shown = [block for block in blocks_in("text") if block.about == f"examples/{example.name}"]
    assert shown, "no page shows what it prints"
    assert [block.text for block in shown] == [printed] * len(shown)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_fits_on_a_page(example: Path):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to a child")
async def test_the_server_to_play_with_serves_until_it_is_interrupted():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "examples" / "serve.py"), "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        async with Client(said.split()[4].rstrip(".")) as client:
            assert (await client.call_tool("echo", {"text": "hello"})).text == "hello"
        process.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert (process.returncode, rest) == (0, (b"", b""))


# -- blocks of code -----------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks_in("python"), ids=name)
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
        with contextlib.suppress(MainstayError):
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


# -- the tutorial, word for word ----------------------------------------------------------------


async def test_the_tutorial_can_be_followed_word_for_word():
    prompt = Prompt()
    async with ScriptedServer.spawn(encoding="sse") as server:
        for block in blocks(TUTORIAL):
            if block.language == "pycon":
                text = block.text.replace(SHOWN_URL, server.url)
                await follow(prompt, server, block, text)
    assert prompt.answered > 10


async def follow(prompt: "Prompt", server: ScriptedServer, block: Block, text: str) -> None:
    match block.mark:
        case "":
            await prompt.type(text)
        case "restart the server":
            await server.restart()
            await prompt.type(text)
        case "stop the server during the call":
            before = len(await server.requests("tools/call"))
            typing = asyncio.create_task(prompt.type(text))
            try:
                await server.requests("tools/call", at_least=before + 1)
                await server.restart()
                await asyncio.wait_for(typing, PATIENCE)
            finally:
                typing.cancel()
        case unknown:
            pytest.fail(f"{block}: the test cannot {unknown!r}")


class Prompt:
    """`python -m asyncio`, typed into by a test."""

    def __init__(self) -> None:
        self._space: dict[str, Any] = {}
        self.answered = 0

    async def type(self, session: str) -> None:
        for example in doctest.DocTestParser().get_examples(session):
            shown = await self._answer(example.source)
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            fits = doctest.OutputChecker().check_output(example.want, shown, flags)
            assert fits, f"{example.source}printed\n{shown}instead of\n{example.want}"
            self.answered += 1

    async def _answer(self, source: str) -> str:
        code = compile(source, "<stdin>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                waiting = types.FunctionType(code, self._space)()
                if inspect.iscoroutine(waiting):
                    await asyncio.wait_for(waiting, PATIENCE)
            except MainstayError as error:
                kind = f"{type(error).__module__}.{type(error).__qualname__}"
                print(f"Traceback (most recent call last):\n  ...\n{kind}: {error}")
        return printed.getvalue()


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "within"), [(ServerSpec, ""), (Timeouts, "timeouts."), (TLS, "tls.")], ids=name
)
def test_the_page_about_configuration_names_every_setting(model: type[Any], within: str):
    page = (ROOT / "docs" / "how-to" / "configure-one-server.md").read_text(encoding="utf-8")
    groups = {"timeouts", "tls"}
    settings = [f"`{within}{key}`" for key in model.model_fields if key not in groups]
    assert [setting for setting in settings if setting not in page] == []


def test_the_page_about_configuration_names_every_argument_of_a_client():
    page = (ROOT / "docs" / "how-to" / "configure-one-server.md").read_text(encoding="utf-8")
    arguments = list(inspect.signature(Client).parameters)
    assert [each for each in arguments if f"`{each}`" not in page] == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another list")
def test_the_page_about_programs_names_what_they_inherit(monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "how-to" / "run-a-program.md").read_text(encoding="utf-8")
    said = page.partition("it inherits")[2].partition("nothing else")[0]
    named = set(re.findall(r"`([A-Z_]+)`", said))
    for variable in named:
        monkeypatch.setenv(variable, "set")
    assert set(environment_of_a_program({})) == named


# -- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *PAPERS], ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    assert [link for link in links(page) if not (page.parent / link).exists()] == []
    assert [place for target, place in places(page) if place not in headings(target)] == []


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in links(index)}
    assert [page for page in PAGES if page != index and page not in linked] == []
