"""`toolkeep config import`: servers of other products, without touching what is there."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers_running import Home
from toolkeep import load
from toolkeep.cli.config_import import product_files

SECRET = "ghp-0123456789"
CLAUDE = {
    "mcpServers": {
        "git hub": {"command": "hub", "args": ["--api-key", SECRET], "env": {"HUB_TOKEN": SECRET}},
        "docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${DOCS}"}},
    }
}
CURSOR = {"mcpServers": {"docs": {"url": "https://other.example/mcp"}, "time": {"command": "time"}}}
CODE = """{
  // what VS Code allows
  "inputs": [{"type": "promptString", "id": "key", "password": true}],
  "servers": {"search": {"type": "http", "url": "https://s.example/mcp",
    "headers": {"X-Key": "${input:key}"}},},
}"""


def put(home: Home, place: str, content: Any) -> Path:
    path = home.path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def written(home: Home, name: str = "mcp.json") -> Any:
    return json.loads((home.path / name).read_text())


async def test_all_that_is_found_is_taken_the_nearest_first_and_secrets_are_named(home: Home):
    put(home, "config/Claude/claude_desktop_config.json", CLAUDE)
    put(home, ".cursor/mcp.json", CURSOR)
    dry = await home.run("config", "import", "--dry-run", "--json")
    assert dry.code == 0, dry.said
    assert not (home.path / "mcp.json").exists()
    ran = await home.run("config", "import")
    assert ran.code == 0, ran.said
    assert SECRET not in ran.said + dry.said
    servers = written(home)["mcpServers"]
    assert servers["docs"] == CURSOR["mcpServers"]["docs"], "the project's comes before the user's"
    assert servers["git-hub"] == CLAUDE["mcpServers"]["git hub"]
    (hub,) = [one for one in dry.document["servers"] if one["name"] == "git-hub"]
    assert hub["secrets"] == ["env.HUB_TOKEN", "args"]
    assert "${HUB_TOKEN}" in ran.err, "the remedy"
    if os.name == "posix":
        assert stat.S_IMODE((home.path / "mcp.json").stat().st_mode) == 0o600
    assert set(load(home.path / "mcp.json").order) == {"docs", "time", "git-hub"}


async def test_references_are_copied_as_they_are_written(home: Home):
    put(home, "claude.json", CLAUDE)
    ran = await home.run("config", "import", "claude.json", env={"DOCS": "value-of-docs"})
    assert ran.code == 0, ran.said
    assert written(home)["mcpServers"]["docs"]["headers"] == {"Authorization": "Bearer ${DOCS}"}
    assert "value-of-docs" not in ran.said + (home.path / "mcp.json").read_text()


async def test_nothing_that_is_there_is_touched_unless_it_is_forced(home: Home):
    mine = {"mcpServers": {"docs": {"url": "https://mine.example"}, "own": {"command": "own"}}}
    put(home, "mcp.json", {**mine, "$schema": "kept"})
    put(home, "claude.json", CLAUDE)
    ran = await home.run("config", "import", "claude.json", "--json")
    states = {one["name"]: one["status"] for one in ran.document["servers"]}
    assert states == {"git-hub": "new", "docs": "kept"}
    assert written(home)["mcpServers"]["docs"] == mine["mcpServers"]["docs"]
    forced = await home.run("config", "import", "claude.json", "--force")
    assert forced.code == 0, forced.said
    after = written(home)
    assert after["mcpServers"]["docs"] == CLAUDE["mcpServers"]["docs"]
    assert after["mcpServers"]["own"] == mine["mcpServers"]["own"]
    assert after["$schema"] == "kept"
    again = await home.run("config", "import", "claude.json", "--json")
    assert {one["status"] for one in again.document["servers"]} == {"same"}
    assert again.document["written"] is False


async def test_what_vs_code_asks_for_is_declared_where_it_can_be(home: Home):
    put(home, "config/Code/User/mcp.json", CODE)
    ran = await home.run("config", "import", "vscode", "--to", "new.json")
    assert ran.code == 0, ran.said
    assert load(home.path / "new.json", inputs={"key": "k"})["search"].headers == {"X-Key": "k"}
    put(home, "mcp.json", CURSOR)
    other = await home.run("config", "import", "vscode")
    assert "${input:…}" in other.err
    assert written(home)["mcpServers"]["search"]["headers"] == {"X-Key": "${input:key}"}


async def test_claude_code_has_servers_of_the_user_and_of_this_project(home: Home):
    here, elsewhere = str(home.path.resolve()), "/elsewhere"
    kept = {
        "mcpServers": {"mine": {"command": "mine"}},
        "projects": {
            here: {"mcpServers": {"ours": {"command": "ours"}}},
            elsewhere: {"mcpServers": {"theirs": {"command": "theirs"}}},
        },
    }
    put(home, ".claude.json", kept)
    ran = await home.run("config", "import", "claude-code", "--json")
    assert ran.code == 0, ran.said
    assert [one["name"] for one in ran.document["servers"]] == ["ours", "mine"]


@pytest.mark.parametrize(
    ("files", "words", "code"),
    [
        ({}, (), 1),
        ({}, ("netscape",), 2),
        ({"c.json": "{"}, ("c.json",), 2),
        ({"c.json": CLAUDE}, ("c.json", "--to", "toolkeep.toml"), 2),
        ({"c.json": CLAUDE, "mcp.json": '{"a": {"command": "a"}}'}, ("c.json",), 2),
        ({"c.json": CLAUDE, "mcp.json": "// mine\n{}"}, ("c.json",), 2),
    ],
    ids=["nothing", "unknown", "broken", "toml", "no frame", "comments"],
)
async def test_what_cannot_be_taken_over_changes_nothing(
    home: Home, files: dict[str, Any], words: tuple[str, ...], code: int
):
    paths = [put(home, name, content) for name, content in files.items()]
    before = [path.read_text() for path in paths]
    ran = await home.run("config", "import", *words)
    assert (ran.code, ran.out) == (code, ""), ran.said
    assert [path.read_text() for path in paths] == before
    assert sorted(path.name for path in home.path.iterdir() if path.is_file()) == sorted(files)


@pytest.mark.parametrize(
    ("platform", "programs"),
    [
        ("linux", Path("/h/.config")),
        ("darwin", Path("/h/Library/Application Support")),
        ("win32", Path("/h/Roaming")),
    ],
)
def test_each_system_has_its_places(platform: str, programs: Path):
    env = {"HOME": "/h"} | ({"APPDATA": "/h/Roaming"} if platform == "win32" else {})
    places = [file.path for file in product_files(platform, env, Path("/p"))]
    assert programs / "Claude" / "claude_desktop_config.json" in places
    assert programs / "Code" / "User" / "mcp.json" in places
    assert {Path("/h/.claude.json"), Path("/h/.cursor/mcp.json"), Path("/p/.mcp.json")} <= {*places}
