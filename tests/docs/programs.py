"""The complete programs of a page: run as they stand, each in a fresh interpreter.

A block of Python is a program if it is the first of its page, or if a block `text output` follows
it, which is what it prints. It runs in a new folder with the files that its page shows: those are
the blocks with a name (`python server.py`, `json mcp.json`). A program that names port 8000 of this
machine finds a practice server there.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from tests.docs.markdown import EXAMPLES, PAGES, ROOT, Block, blocks, is_a_part_of
from tests.docs.terminal import fits

PATIENCE = 60.0
PRACTICE = "127.0.0.1:8000"
NAMED = {"ini", "json", "markdown", "python", "toml"}
REPLACED = ("MCP_", "TOOLKEEP_", "XDG_", "PYTEST_", "COVERAGE_")
TEXTS = [example.read_text(encoding="utf-8") for example in EXAMPLES]
WHOLE_EXAMPLES = {*TEXTS, *(text.partition('"""\n\n')[2] for text in TEXTS)}


@dataclass(frozen=True)
class PageProgram:
    """A program with what it prints, and the files that lie beside it."""

    block: Block
    output: str | None
    files: dict[str, str]

    def __str__(self) -> str:
        return str(self.block)

    @property
    def is_test(self) -> bool:
        return "def test_" in self.block.text

    @property
    def needs_a_server(self) -> bool:
        return PRACTICE in self.block.text

    @property
    def does_something(self) -> bool:
        return self.is_test or self.output is not None or "asyncio.run(" in self.block.text

    def run(self, folder: Path, address: str = PRACTICE) -> None:
        assert self.does_something, f"{self}: it only defines functions"
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        script = folder / "program.py"
        script.write_text(self.block.text.replace(PRACTICE, address), encoding="utf-8")
        tests = ["-m", "pytest", "-q", "-o", "anyio_mode=auto"] if self.is_test else []
        done = subprocess.run(
            [sys.executable, *tests, str(script)],
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            env=environment(folder, checkout="from benchmarks" in self.block.text),
            cwd=folder,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        if self.is_test:
            assert " passed" in done.stdout
        elif self.output is not None:
            assert fits(done.stdout, self.output), f"{self}: it printed\n{done.stdout}"


def environment(home: Path, *, checkout: bool) -> dict[str, str]:
    """That of a reader, whose `python` is the interpreter of the tests."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(REPLACED)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(home), "PATH": path, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}
    return {**others, **own, **({"PYTHONPATH": str(ROOT)} if checkout else {})}


def programs(page: Path) -> list[PageProgram]:
    shown = list(blocks(page))
    files = {one.about: one.text for one in reversed(shown) if one.about and one.language in NAMED}
    first = next((one for one in shown if one.language == "python" and not one.about), None)
    return [
        PageProgram(block, output, files)
        for place, block in enumerate(shown)
        if block.language == "python" and not block.about and block.text not in WHOLE_EXAMPLES
        for output in [output_below(shown[place + 1 :])]
        if output is not None or block is first
    ]


def is_in_an_example(block: Block) -> bool:
    return any(is_a_part_of(block.text, example) for example in EXAMPLES)


def output_below(following: list[Block]) -> str | None:
    """What a block prints, if that is shown; only files may stand between the two."""
    unnamed = dropwhile(lambda one: one.about and one.language in NAMED, following)
    return next((one.text if one.about == "output" else None for one in unnamed), None)


ALL = [program for page in PAGES for program in programs(page)]
