"""The first hour of a newcomer: ten steps, each as a page says it.

Commands and programs are taken out of the pages and run as they stand, by an installation of
toolkeep of their own, outside of the checkout. What the newcomer brings is in this file: an
mcp.json with six servers from npm and PyPI, and four that do not work.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.docs.markdown import EXAMPLES, ROOT, Block, blocks, is_a_part_of
from tests.docs.terminal import fits
from toolkeep.testing import ScriptedServer

HOW_TO = ROOT / "docs" / "how-to"
MODULES = ROOT / "tests" / "interop" / "node_modules" / "@modelcontextprotocol"
REAL = ("everything", "files", "memory", "thinking", "time", "fetch")
SHOWN_URL = "http://127.0.0.1:8000/mcp"
BOUND = 120.0
"""Seconds for one command. Ten servers are opened in one, on a busy machine."""
REPLACED = ("MCP_", "TOOLKEEP_", "XDG_", "PYTEST_", "COVERAGE_", "PYTHON", "VIRTUAL_ENV")

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the pages are written for a shell"),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Newcomer:
    """A person with a home, a project folder and an installation."""

    home: Path
    checkout: Path

    @property
    def folder(self) -> Path:
        return self.home / "project"

    @property
    def env(self) -> dict[str, str]:
        others = {key: value for key, value in os.environ.items() if not key.startswith(REPLACED)}
        places = (self.home / "venv" / "bin", Path(sys.executable).parent)
        path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
        return {**others, "HOME": str(self.home), "PATH": path, "PYTHONUTF8": "1"}

    def run(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Type a command at the shell, in the project's folder."""
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            encoding="utf-8",
            timeout=BOUND,
            env={**self.env, **env},
            cwd=self.folder,
            check=False,
        )

    def follow(self, page: Path) -> None:
        """Run the first program of a page; if it is a part of an example, run the example."""
        program, output = first_program(page)
        example = next((one for one in EXAMPLES if is_a_part_of(program.text, one)), None)
        text = program.text if example is None else example.read_text(encoding="utf-8")
        for block in blocks(page):
            if block.about and block.language != "text":
                (self.folder / block.about).write_text(block.text, encoding="utf-8")
        (self.folder / "first_program.py").write_text(text, encoding="utf-8")
        # Some examples show another library in trouble, with parts of the checkout.
        path = {} if example is None else {"PYTHONPATH": str(ROOT)}
        ran = self.run("python first_program.py", **path)
        assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
        assert fits(ran.stdout, output), f"{program}: it printed\n{ran.stdout}not\n{output}"


def first_program(page: Path) -> tuple[Block, str]:
    """The first block of Python without a name, and the first output that is shown after it."""
    shown = list(blocks(page))
    at = next(n for n, one in enumerate(shown) if one.language == "python" and not one.about)
    outputs = (
        one.text for one in shown[at:] if one.about == "output" or one.about.startswith("examples/")
    )
    output = next(outputs, None)
    assert output, f"{shown[at]}: the page does not show what its first program prints"
    return shown[at], output


def command_on(page: Path, pattern: str) -> str:
    """The first command of the page that matches, in a sentence or in a block."""
    found = re.search(rf"(?:`|\$ )({pattern})", page.read_text(encoding="utf-8"))
    assert found, f"{page.name} has no command like {pattern!r}"
    return found[1]


class WebPage(BaseHTTPRequestHandler):
    """A web site, whose address was taken for that of an MCP server."""

    def do_POST(self) -> None:
        body = b"<!doctype html><title>Our shop</title>"
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), WebPage) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, site: str) -> Newcomer:
    """With a virtual environment in which only toolkeep is missing: nothing is downloaded."""
    home = tmp_path_factory.mktemp("newcomer")
    one = Newcomer(home, home / "checkout")
    one.folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    ours = next((home / "venv").glob("lib/python*/site-packages"))
    # Python does not follow the .pth files in there, so the toolkeep of the tests stays out.
    (ours / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    ignored = shutil.ignore_patterns("node_modules", ".venv*", ".git", "build", "tests", ".*_cache")
    shutil.copytree(ROOT, one.checkout, ignore=ignored)
    (one.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers(one, site)}, indent=2))
    return one


def servers(newcomer: Newcomer, site: str) -> dict[str, Any]:
    """The newcomer's own: six that work, and four that do not."""

    def npm(name: str, *args: str) -> dict[str, Any]:
        return {"command": "node", "args": [str(MODULES / name / "dist" / "index.js"), *args]}

    def pypi(name: str, *args: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-m", name, *args]}

    memory = {"MEMORY_FILE_PATH": str(newcomer.home / "memory.json")}
    return {
        "everything": npm("server-everything"),
        "files": npm("server-filesystem", str(newcomer.folder)),
        "memory": {**npm("server-memory"), "env": memory},
        "thinking": npm("server-sequential-thinking"),
        "time": pypi("mcp_server_time", "--local-timezone", "UTC"),
        "fetch": pypi("mcp_server_fetch", "--ignore-robots-txt"),
        "absent": {"command": "a-program-that-is-not-there"},
        "stopped": {"url": "http://127.0.0.1:9/mcp"},
        "page": {"url": site},
        "keyless": {"url": "http://127.0.0.1:9/mcp", "api_key": "${KEY_THAT_IS_NOT_SET}"},
    }


def test_1_it_is_installed_from_a_path(newcomer: Newcomer):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"pip install '/path/to/checkout[^']*'", readme)
    assert command, "README.md does not say how"
    here = command[0].replace("/path/to/checkout", str(newcomer.checkout))
    ran = newcomer.run(here, PIP_NO_BUILD_ISOLATION="false", PIP_NO_INDEX="1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    where = newcomer.run("python -c 'import toolkeep; print(toolkeep.__file__)'; which toolkeep")
    assert [Path(line).is_relative_to(newcomer.home) for line in where.stdout.split()] == [True] * 2


def test_2_the_first_program_prints_what_the_readme_shows(newcomer: Newcomer):
    newcomer.follow(ROOT / "README.md")


def test_3_an_mcp_json_of_ones_own_is_understood(newcomer: Newcomer):
    """Nothing is started unasked; the wrong entry is named with its remedy."""
    ran = newcomer.run(command_on(HOW_TO / "add-a-server.md", "toolkeep config validate"))
    assert ran.returncode == 1
    assert "1 problem" in ran.stdout
    assert "KEY_THAT_IS_NOT_SET" in ran.stdout


def test_4_check_names_what_is_wrong_and_what_to_do(newcomer: Newcomer):
    command = command_on(HOW_TO / "add-a-server.md", "toolkeep check")
    ran = newcomer.run(f"{command} --json")
    assert ran.returncode == 1
    faults = {one["server"]: one["fault"] for one in json.loads(ran.stdout) if one["fault"]}
    waiting = dict.fromkeys((*REAL, "absent"), "not-approved")
    others = {"stopped": "port-closed", "page": "not-mcp", "keyless": "unset-variable"}
    assert faults == {**waiting, **others}
    assert all(one["remedy"] for one in json.loads(ran.stdout) if one["state"] == "failed")


def test_5_one_command_approves_all_programs(newcomer: Newcomer):
    page = HOW_TO / "approve-stdio-servers.md"
    ran = newcomer.run(command_on(page, "toolkeep config approve --all"))
    assert ran.returncode == 0, ran.stderr
    assert set(re.findall(r"[a-z]+", ran.stdout)) - {"approved"} == {*REAL, "absent"}
    assert newcomer.run(f"{command_on(page, 'toolkeep config approve')}").stdout == (
        "no server needs approval\n"
    )


def test_6_the_tools_of_the_six_can_be_called(newcomer: Newcomer):
    listed = newcomer.run("toolkeep tools --json")
    assert listed.returncode == 0, listed.stderr
    assert {one["server"] for one in json.loads(listed.stdout)["tools"]} == set(REAL)
    assert "3 of 9 servers are down (absent, stopped, page); see `toolkeep check`" in listed.stderr
    called = newcomer.run("toolkeep call time.get_current_time timezone=UTC")
    assert called.returncode == 0, called.stderr
    assert '"timezone": "UTC"' in called.stdout


STEPS = {
    "7_progress_is_streamed": "stream-progress.md",
    "8_an_agent_of_langchain_has_the_tools": "use-in-langchain.md",
    "9_each_user_of_a_web_application_has_a_session": "many-users.md",
}


@pytest.mark.parametrize("page", STEPS.values(), ids=STEPS)
def test_the_first_program_of_a_page_runs(newcomer: Newcomer, page: str):
    newcomer.follow(HOW_TO / page)


async def test_10_a_program_for_fastmcp_is_migrated(newcomer: Newcomer):
    """The page shows the same program for both libraries; each works with the same server."""
    shown = blocks(HOW_TO / "migrate-from-fastmcp.md")
    programs = [one.text for one in shown if one.language == "python" and not one.about][:2]
    assert ["fastmcp" in programs[0], "toolkeep" in programs[1]] == [True, True]
    async with ScriptedServer.local() as server:
        for program in programs:
            assert SHOWN_URL in program
            text = program.replace(SHOWN_URL, server.url)
            (newcomer.folder / "migrated.py").write_text(text, encoding="utf-8")
            ran = await asyncio.to_thread(newcomer.run, "python migrated.py")
            assert ran.returncode == 0, ran.stderr
            tools, result = ran.stdout.splitlines()
            assert "'add'" in tools
            assert "5" in result
