"""Somebody who follows a page word for word: types its commands, writes its files, compares.

A command is a line that begins with `$ ` in a block of `console`; what is below it has to be what
it prints, on both streams. `…` stands for anything in its line, and alone for any lines; times and
the width of columns do not count. A block with the name of a file is that file, and `…` in it the
entry that is there already. `pycon` is typed into the prompt that `python -m asyncio` opened. A
comment before a block says what to do meanwhile.
"""

import asyncio
import contextlib
import doctest
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.docs.markdown import ROOT, Block, blocks
from tests.ports import free_port
from toolkeep.testing import ScriptedServer

PATIENCE = 60.0
SHOWN_PORT = "8000"
DONE_ALREADY = {"make install", ". .venv/bin/activate"}
PROMPT = "python -m asyncio"
LISTENS = "Uvicorn running on"
END = "\x1e"

TIME = re.compile(r"\b\d+(?:\.\d+)? m?s\b")
PROMPTED = re.compile(r"^(?:>>> |\.\.\. )+", re.MULTILINE)
KEPT = re.compile(r'"(\w+)": ({"command": "…"[^}]*})')
TAKEN = re.compile(r'"POST /mcp HTTP/1\.1" 200')


def shape(text: str) -> str:
    """Without what differs from run to run."""
    lines = (" ".join(TIME.sub("(time)", line).split()) for line in text.splitlines())
    return "\n".join(lines).strip()


def fits(printed: str, shown: str) -> bool:
    wanted = re.escape(shape(shown)).replace("…\\\n", "(?:.*\\\n)*?").replace("…", ".*")
    return re.fullmatch(wanted, shape(printed)) is not None


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a block with what is shown below it."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"{block}: something is shown that no command printed"
    return list(zip(parts[1::2], parts[2::2], strict=True))


class Started:
    """A program that goes on while its page does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.said = process, ""
        self._heard = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: str, folder: Path, env: dict[str, str]) -> "Started":
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"exec {command}"),
            cwd=folder,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while read := await self._process.stdout.read(65536):
            self.said += read.decode()
            self._heard.set()

    async def until(self, wanted: str, *, times: int = 1) -> str:
        """What it has said when this pattern is in it so often."""
        async with asyncio.timeout(PATIENCE):
            while len(re.findall(wanted, self.said)) < times:
                assert not self._listening.done(), f"it ended without {wanted!r}:\n{self.said}"
                self._heard.clear()
                done = asyncio.create_task(self._heard.wait())
                await asyncio.wait((done, self._listening), return_when="FIRST_COMPLETED")
                done.cancel()
        return self.said

    async def answer(self, source: str) -> str:
        """What a Python prompt prints when this is typed."""
        assert self._process.stdin is not None
        more = "\n" if source.count("\n") > 1 else ""
        self._process.stdin.write(f"{source}{more}print(chr({ord(END)}))\n".encode())
        said, _, self.said = (await self.until(f"{END}\n")).partition(f"{END}\n")
        return PROMPTED.sub("", said)

    async def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"exit()\n")
        async with asyncio.timeout(PATIENCE):
            await self._listening
            assert await self._process.wait() == 0, self.said

    async def end(self) -> None:
        """Ctrl-C."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await self._process.wait()
            await self._listening

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening


class Reader:
    """Follows one page, in a new folder and with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "checkout"
        self.here.mkdir()
        self._home = folder
        self._port = str(free_port())
        self._server: Started | None = None
        self._prompt: Started | None = None
        self._serving = ""
        self._stack = contextlib.AsyncExitStack()
        self.answered = 0

    @property
    def env(self) -> dict[str, str]:
        others = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MCP_", "TOOLKEEP_", "XDG_", "PYTEST_")) and name != "COLUMNS"
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"HOME": str(self._home), "PATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        return {**others, **own}

    async def follow(self, page: Path) -> None:
        for block in blocks(page):
            await self._take(block, block.text.replace(SHOWN_PORT, self._port))

    async def _take(self, block: Block, text: str) -> None:
        block = Block(block.page, block.line, block.language, block.about, text, block.mark)
        match block.language, block.mark:
            case "console", "not typed: the tests have an environment":
                assert {command for command, _ in commands(block)} <= DONE_ALREADY
                assert "\ninstall:" in (ROOT / "Makefile").read_text(encoding="utf-8")
            case "console", "second terminal":
                ((self._serving, shown),) = commands(block)
                assert fits(await self._serve(), shown), f"{block}:\n{self._said}"
            case "console", "a server listens":
                await self._stack.enter_async_context(ScriptedServer.local(port=int(self._port)))
                await self._type(block)
            case "console", "":
                await self._type(block)
            case "pycon", mark:
                await self._meanwhile(mark, text)
            case "python", "" if not block.about:
                pass  # test_blocks runs it
            case _, "" if block.about:
                self._write(self.here / block.about, text)
            case unknown:
                raise AssertionError(f"{block}: nobody can {unknown}")

    def _write(self, file: Path, text: str) -> None:
        for name, shown in KEPT.findall(text):
            entry = json.loads(file.read_text(encoding="utf-8"))["mcpServers"][name]
            text = text.replace(shown, json.dumps(entry))
        file.write_text(text, encoding="utf-8")

    async def _type(self, block: Block) -> None:
        for command, shown in commands(block):
            if command == PROMPT:
                self._prompt = await Started.start(command, self.here, self.env)
                await self._prompt.answer("0\n")
                continue
            printed = await self._run(command)
            assert fits(printed, shown), f"{block}: {command}\nprinted\n{printed}\nnot\n{shown}"
            self.answered += 1

    async def _run(self, command: str) -> str:
        """One line at the shell, which is then where, and as, the line has left it."""
        kept, exported = self._home / "where", self._home / "exported"
        script = 'touch "$3"; . "$3"; eval "$1"; code=$?; pwd > "$2"; export -p > "$3"; exit $code'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script, "page", command, str(kept), str(exported)),
            cwd=self.here,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.here = Path(kept.read_text(encoding="utf-8").strip())
        return printed.decode()

    # -- the server and the prompt --------------------------------------------------------------

    @property
    def _said(self) -> str:
        return self._server.said if self._server else ""

    async def _serve(self) -> str:
        self._server = await Started.start(self._serving, self.here, self.env)
        return (await self._server.until(f"{LISTENS}[^\n]*\n")).rpartition("\n")[0]

    async def _meanwhile(self, mark: str, text: str) -> None:
        server = self._server
        match mark:
            case "":
                await self._ask(text)
            case "start the server":
                await self._serve()
                await self._ask(text)
            case "restart the server" if server:
                await server.end()
                await self._serve()
                await self._ask(text)
            case "stop the server during the call" if server:
                before = len(TAKEN.findall(server.said))
                asking = asyncio.create_task(self._ask(text))
                try:
                    await server.until(TAKEN.pattern, times=before + 1)
                    await server.end()
                    await asyncio.wait_for(asking, PATIENCE)
                finally:
                    asking.cancel()
            case unknown:
                raise AssertionError(f"nobody can {unknown!r} here")

    async def _ask(self, session: str) -> None:
        assert self._prompt is not None, "no prompt is open"
        for example in doctest.DocTestParser().get_examples(session):
            if example.source.strip() == "exit()":
                await self._prompt.leave()
                continue
            shown = await self._prompt.answer(example.source)
            assert shown == example.want, f"{example.source}printed\n{shown}not\n{example.want}"
            self.answered += 1

    async def leave(self) -> None:
        for started in (self._prompt, self._server):
            if started is not None:
                await started.kill()
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def reader(folder: Path) -> AsyncIterator[Reader]:
    somebody = Reader(folder)
    try:
        yield somebody
    finally:
        await somebody.leave()
