"""What `new-server` writes, and where. All of it or nothing: what is there already stays."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from string import Template

from toolkeep.cli.ending import Misused
from toolkeep.cli.place import loaded
from toolkeep.cli.screen import Screen
from toolkeep.config import approve
from toolkeep.errors import ConfigError

SERVER = '''\
"""$name: an MCP server with two tools.

    python server.py               speaks over its standard streams, for whoever starts it
    python server.py --http 8000   listens on http://127.0.0.1:8000/mcp
"""

import argparse

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("$name")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def count(ctx: Context, to: int = 5, pause: float = 0.5) -> str:
    """Count slowly, and say at every step how far it is."""
    for step in range(1, to + 1):
        await anyio.sleep(pause)
        await ctx.report_progress(step, to, f"{step} of {to}")
    return f"counted to {to}"


def main() -> None:
    parser = argparse.ArgumentParser(description="An MCP server with two tools.")
    parser.add_argument("--http", type=int, metavar="PORT", help="listen on this port")
    port = parser.parse_args().http
    if port is None:
        server.run()
    else:
        server.run("streamable-http", port=port)


if __name__ == "__main__":
    main()
'''

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
"""With whole paths: what `${workspaceFolder}` is, or where a program starts, not all agree on."""

TEST = '''\
"""$name, as a client sees it: `python -m pytest`."""

from pathlib import Path

import pytest

from toolkeep import Progress
from toolkeep.blocking import Runtime


@pytest.fixture(scope="module")
def runtime():
    with Runtime.open(Path(__file__).with_name("mcp.json")) as runtime:
        yield runtime


def test_it_adds(runtime):
    assert runtime.call("$name.add", {"a": 2, "b": 3}).data == {"result": 5}


def test_it_says_how_far_it_is(runtime):
    with runtime.stream("$name.count", {"to": 3, "pause": 0.01}) as call:
        events = list(call)
    steps = [event.message for event in events if isinstance(event, Progress)]
    assert steps == ["1 of 3", "2 of 3", "3 of 3"]
    assert events[-1].result.text == "counted to 3"
'''

README = """\
# $name

An MCP server with two tools: `add`, and `count`, which reports its progress.

    toolkeep tools                          # what it offers
    toolkeep call $name.add a=2 b=3
    toolkeep call $name.count to=5 --watch  # with a bar that moves
    toolkeep check                          # when something is wrong
    python -m pytest                        # its test

`mcp.json` says how it is started, with whole paths: its entry can be copied to other products'
configurations, and has to be corrected when the folder moves. To have it listen on a port instead:

    python server.py --http 8000
    toolkeep tools --url http://127.0.0.1:8000/mcp
"""

FILES = {
    "server.py": SERVER,
    "mcp.json": CONFIGURATION,
    "test_server.py": TEST,
    "README.md": README,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def write(folder: Path, name: str | None) -> int:
    screen, name = Screen(), _checked(folder, name)
    there = [file for file in FILES if os.path.lexists(folder / file)]
    if there:
        raise Misused(f"{folder} has {', '.join(there)} already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    server = json.dumps(str(folder.resolve() / "server.py"), ensure_ascii=False)
    python = json.dumps(sys.executable, ensure_ascii=False)
    for file, text in FILES.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(Template(text).substitute(name=name, python=python, server=server))
    _approve(folder, screen)
    screen.say(f"Wrote {folder}/: {', '.join(FILES)}")
    screen.say("Next:")
    if folder.resolve() != Path.cwd().resolve():
        screen.say(f"  cd {shlex.quote(str(folder))}")
    screen.say("  toolkeep tools")
    screen.say(f"  toolkeep call {name}.count to=5 --watch")
    return 0


def _checked(folder: Path, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-_") or "my-server"
    if not _NAME.fullmatch(name):
        letters = "letters, digits, '-' and '_', beginning with a letter or a digit"
        raise Misused(f"{name!r} is no name of a server: 1 to 64 {letters}; give --name")
    return name


def _approve(folder: Path, screen: Screen) -> None:
    """Who had it written may start it there without being asked."""
    try:
        found = loaded(cwd=folder.resolve(), env=_unnamed())
        for pending in found.needs_approval:
            approve(found, pending.name)
    except ConfigError as error:
        screen.note(f"warning: {error}")


def _unnamed() -> dict[str, str]:
    """The folder's own configuration is meant, whatever TOOLKEEP_CONFIG says."""
    return {name: value for name, value in os.environ.items() if name != "TOOLKEEP_CONFIG"}
