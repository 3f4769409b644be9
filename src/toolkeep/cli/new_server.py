"""`new-server`: write a starter server. All of its files are written, or none."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from toolkeep.cli.config_import import approve_typed
from toolkeep.cli.errors import OK, UsageError
from toolkeep.cli.output import Output

SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

SERVER = '''\
"""$name: an MCP server with two tools.

    python server.py               serves over standard input and output
    python server.py --http 8000   listens on http://127.0.0.1:8000/mcp
"""

import argparse
import contextlib
import os
import signal

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("$name")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def count(ctx: Context, to: int = 5, pause: float = 0.5) -> str:
    """Count slowly, and report progress at every step."""
    for step in range(1, to + 1):
        await anyio.sleep(pause)
        await ctx.report_progress(step, to, f"{step} of {to}")
    return f"counted to {to}"


def main() -> None:
    parser = argparse.ArgumentParser(description="An MCP server with two tools.")
    parser.add_argument("--http", type=int, metavar="PORT", help="listen on this port")
    port = parser.parse_args().http
    if port is None:
        # Ctrl-C ends it at once, although a thread waits for standard input.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        server.run()
    else:
        with contextlib.suppress(KeyboardInterrupt):
            server.run("streamable-http", port=port)


if __name__ == "__main__":
    main()
'''

# With absolute paths: products differ in what ${workspaceFolder} means and where programs start.
CONFIGURATION = """\
{
  "mcpServers": {
    "$name": {
      "command": $python,
      "args": [$server]
    }
  }
}
"""

TEST = '''\
"""Tests of $name through a client: `python -m pytest`."""

from pathlib import Path

import pytest

from toolkeep.blocking import Runtime
from toolkeep.events import Progress


@pytest.fixture(scope="module")
def runtime():
    with Runtime.open(Path(__file__).with_name("mcp.json")) as runtime:
        yield runtime


def test_add_returns_the_sum(runtime):
    assert runtime.call("$name.add", {"a": 2, "b": 3}).data == {"result": 5}


def test_count_reports_progress(runtime):
    with runtime.stream("$name.count", {"to": 3, "pause": 0.01}) as call:
        events = list(call)
    steps = [event.message for event in events if isinstance(event, Progress)]
    assert steps == ["1 of 3", "2 of 3", "3 of 3"]
    assert events[-1].result.text == "counted to 3"
'''

README = """\
# $name

An MCP server with two tools: `add`, and `count`, which reports its progress.

    toolkeep tools                          # list the tools
    toolkeep call $name.add a=2 b=3
    toolkeep call $name.count to=5 --watch  # with a progress bar
    toolkeep check                          # find out what is wrong
    python -m pytest                        # run the tests

`mcp.json` says how the server is started, with absolute paths. Its entry can be copied to the
configurations of other products. Correct the paths when you move the folder.

To listen on a port instead:

    python server.py --http 8000
    toolkeep tools --url http://127.0.0.1:8000/mcp
"""

FILES = {
    "server.py": SERVER,
    "mcp.json": CONFIGURATION,
    "test_server.py": TEST,
    "README.md": README,
}


def new_server(
    output: Output,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write to; created if missing.")
    ] = Path("my-server"),
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of the server. Default: the name of the folder.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Write a starter server, with a tool that reports its progress.

    Also writes a test, an mcp.json that starts it, and a README. Existing files are kept.
    """
    name = _server_name(folder, name)
    existing = [file for file in FILES if os.path.lexists(folder / file)]
    if existing:
        raise UsageError(f"{folder} already has {', '.join(existing)}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    server = json.dumps(str(folder.resolve() / "server.py"), ensure_ascii=False)
    python = json.dumps(sys.executable, ensure_ascii=False)
    for file, text in FILES.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(Template(text).substitute(name=name, python=python, server=server))
    approve_typed(folder / "mcp.json", None, output)
    output.print(f"Wrote {folder}/: {', '.join(FILES)}")
    output.print("Next:")
    if importlib.util.find_spec("mcp") is None:
        output.print("  pip install 'toolkeep[mcp]'  # server.py needs the MCP SDK")
    if folder.resolve() != Path.cwd().resolve():
        output.print(f"  cd {shlex.quote(str(folder))}")
    output.print("  toolkeep tools")
    output.print(f"  toolkeep call {name}.count to=5 --watch")
    return OK


def _server_name(folder: Path, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-_") or "my-server"
    if not SERVER_NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, '-' and '_', beginning with a letter or a digit"
        raise UsageError(f"{name!r} is not a valid server name: give --name with {rule}")
    return name
