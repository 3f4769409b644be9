"""`toolkeep config add`: a server that is typed becomes an entry that works."""

import json
import sys
from typing import Any

import pytest

from tests.cli.helpers_running import Home, Ran
from toolkeep import load
from toolkeep.testing import ScriptedServer


def entries(home: Home, name: str = "mcp.json") -> dict[str, Any]:
    return json.loads((home.path / name).read_text())["mcpServers"]


async def add(home: Home, *words: str) -> Ran:
    ran = await home.run("config", "add", *words)
    assert ran.code == 0, ran.said
    return ran


async def test_a_url_is_added_to_the_others_and_can_be_called(home: Home):
    home.configure({"other": {"command": "x"}}, "mcp.json")
    async with ScriptedServer.local() as server:
        await add(home, "-H", "Authorization: Bearer ${TOKEN}", "kit", server.url)
        called = await home.run("call", "kit.echo", "text=hi", env={"TOKEN": "t"})
        headers = [one.headers for one in await server.requests()]
    assert entries(home)["kit"]["headers"] == {"Authorization": "Bearer ${TOKEN}"}
    assert list(entries(home)) == ["other", "kit"]
    assert called.out == "hi\n", called.said
    assert headers[-1]["authorization"] == "Bearer t"


async def test_a_command_keeps_its_options_and_needs_no_approval(home: Home):
    ran = await add(home, "--env", "LEVEL=debug", "files", "npx", "-y", "some server", "--force")
    assert entries(home)["files"] == {
        "command": "npx",
        "args": ["-y", "some server", "--force"],
        "env": {"LEVEL": "debug"},
    }
    assert ran.out == "added: files in mcp.json. Next: toolkeep check files\n"
    assert not load(cwd=home.path, env=home.env()).needs_approval


async def test_only_what_was_typed_is_approved(home: Home):
    home.configure({"found": {"command": "x"}}, "mcp.json")
    await add(home, "typed", "y")
    pending = load(cwd=home.path, env=home.env()).needs_approval
    assert [one.name for one in pending] == ["found"]


async def test_a_script_is_started_with_this_python_wherever_the_client_is(home: Home):
    script = home.path / "server.py"
    script.touch()
    await add(home, "mine", "server.py", "--fast")
    args = [str(script), "--fast"]
    assert entries(home)["mine"] == {"command": sys.executable, "args": args}


async def test_another_of_this_name_is_replaced_only_with_force(home: Home):
    await add(home, "--to", "team.json", "one", "first")
    refused = await home.run("config", "add", "--to", "team.json", "one", "second")
    assert (refused.code, entries(home, "team.json")["one"]["command"]) == (2, "first")
    assert "give --force" in refused.err
    await add(home, "--force", "--to", "team.json", "one", "second")
    assert entries(home, "team.json")["one"]["command"] == "second"


@pytest.mark.parametrize(
    "words",
    [
        ("no name!", "x"),
        ("one", "http://"),
        ("one", "http://127.0.0.1/mcp", "more"),
        ("one", "missing.py"),
        ("-H", "A: b", "one", "program"),
        ("-e", "A", "one", "program"),
    ],
)
async def test_what_could_not_work_is_not_written(home: Home, words: tuple[str, ...]):
    ran = await home.run("config", "add", *words)
    assert ran.code == 2, ran.said
    assert not (home.path / "mcp.json").exists()


async def test_a_secret_that_is_written_out_is_warned_of_and_the_file_is_private(home: Home):
    ran = await add(home, "--env", "API_TOKEN=s3cret", "one", "program")
    assert "env.API_TOKEN holds a secret" in ran.err
    assert "s3cret" not in ran.said
    assert (home.path / "mcp.json").stat().st_mode & 0o077 == 0


async def test_an_option_behind_a_url_is_refused_with_its_place(home: Home):
    ran = await home.run("config", "add", "notes", "https://notes.example/mcp", "--to", "x.json")
    assert ran.code == 2
    assert "options stand before the name: --to x.json" in ran.said
    assert not (home.path / "x.json").exists()
