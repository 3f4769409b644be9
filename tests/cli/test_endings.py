"""How commands end: usage, closed pipes, signals, colours, and what they cost to start."""

import asyncio
import json
import subprocess
import sys

import pytest

from tests.cli.helpers_running import BOUND, TOOLKEEP, Home
from toolkeep import __version__
from toolkeep.testing import ScriptedServer

HEAVY = ("aiohttp", "jsonschema_rs", "mcp", "mcp_types", "pydantic", "rich")
LOADED = """
import json, sys
from toolkeep.cli import main
try:
    main()
except SystemExit as ended:
    print(json.dumps([ended.code, [name for name in sys.modules if "." not in name]]))
"""


@pytest.mark.requirement("O2")
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_nothing_heavy_is_loaded_to_say_what_there_is(home: Home, word: str):
    command = [sys.executable, "-c", LOADED, word]
    told = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=home.env())
    *said, loaded = told.stdout.splitlines()
    code, modules = json.loads(loaded)
    assert code == 0
    assert said[0] == (f"toolkeep {__version__}" if word == "--version" else said[0])
    assert not set(HEAVY) & set(modules)


@pytest.mark.requirement("O2")
def test_python_runs_it_as_a_module_and_says_what_is_missing_without_typer(home: Home):
    module = [sys.executable, "-m", "toolkeep", "call"]
    usage = subprocess.run(module, capture_output=True, text=True, timeout=BOUND, env=home.env())
    assert usage.returncode == 2
    assert "NAME" in usage.stderr
    # An entry of None makes Python take the module for one that is not there.
    without = "import sys; sys.modules['typer'] = None; from toolkeep.cli import main; main()"
    bare = [sys.executable, "-c", without]
    told = subprocess.run(bare, capture_output=True, text=True, timeout=BOUND, env=home.env())
    assert told.returncode == 2
    assert "its extra `cli`" in told.stderr
    assert "pip install" not in told.stderr, "nobody knows from where it was installed"
    assert "Traceback" not in told.stderr


@pytest.mark.requirement("O2")
@pytest.mark.parametrize("words", [("--help",), ("config", "--help")])
async def test_no_command_is_described_by_half_a_sentence(home: Home, words: tuple[str, ...]):
    ran = await home.run(*words)
    listed = ran.out.partition("Commands:")[2].splitlines()
    assert len(listed) > 5
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.requirement("O2")
async def test_what_is_no_address_is_not_repeated_with_its_key(home: Home):
    ran = await home.run("tools", "--url", "host/mcp?api_key=sk-123456789&team=blue")
    assert ran.code == 2
    assert "host/mcp" in ran.err
    assert "sk-123456789" not in ran.said


@pytest.mark.requirement("O2")
async def test_what_was_not_understood_is_usage_and_nothing_is_opened(home: Home):
    nothing, twice, no_file = await asyncio.gather(
        home.run("tools", "--json"),
        home.run("tools", "--url", "http://127.0.0.1:9/mcp", "--command", "x"),
        home.run("tools", "-c", "none.json"),
    )
    assert nothing.code == 2
    assert "mcp.json" in nothing.document["error"]["message"]
    assert nothing.err == "", "said once"
    assert twice.code == 2
    assert no_file.code == 2
    assert "none.json" in no_file.err


@pytest.mark.requirement("O2")
async def test_a_reader_who_has_had_enough_ends_it_quietly(home: Home):
    many = [{"name": f"tool_{n:04}", "inputSchema": {"type": "object"}} for n in range(3000)]
    async with ScriptedServer.local(tools=many) as server:
        command = f"'{TOOLKEEP}' tools --url {server.url} --json | head -1"
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=home.env(),
            cwd=home.path,
        )
        async with asyncio.timeout(BOUND):
            out, err = await shell.communicate()
    assert (out, err, shell.returncode) == (b"{\n", b"", 0)


@pytest.mark.requirement("O2")
async def test_a_bug_of_ours_is_called_one_and_has_no_traceback(home: Home):
    bug = "from toolkeep.cli.errors import run; import typer\ntry: run(lambda output: 1 // 0)\n"
    bug += "except typer.Exit as ended: raise SystemExit(ended.exit_code)"
    command = [sys.executable, "-c", bug]
    told = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=home.env())
    assert told.returncode == 1
    assert "bug in toolkeep" in told.stderr
    assert "Traceback" not in told.stderr
    shown = home.env(TOOLKEEP_DEBUG="1")
    told = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=shown)
    assert "Traceback" in told.stderr
