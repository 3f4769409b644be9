"""A file that was found starts no program unasked; an approval is for one command, as it stands."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkeep.config.approval import FileApprovals, MemoryApprovals, approve, default_approvals_path
from toolkeep.config.loader import DEFAULT_PATHS, load
from toolkeep.config.spec import Configuration
from toolkeep.errors import ConfigError

pytestmark = pytest.mark.requirement("C4")

PROGRAM = {"command": "tools", "args": ["-v"], "env": {"A": "b"}}
TOML = """[servers.web]
url = "http://localhost:1/"
[servers.tools]
command = "tools"
[servers.last]
url = "http://localhost:2/"
"""
JSON = {
    "web": {"url": "http://localhost:1/"},
    "tools": {"command": "tools"},
    "last": {"url": "http://localhost:2/"},
}


def found_in(folder: Path, approvals: Any, **program: Any) -> Configuration:
    text = json.dumps({"mcpServers": {"tools": {**PROGRAM, **program}}})
    (folder / "mcp.json").write_text(text)
    return load(env={}, cwd=folder, approvals=approvals)


def waiting(found: Configuration) -> list[str]:
    return [one.name for one in found.needs_approval]


@pytest.fixture
def approvals(tmp_path: Path) -> FileApprovals:
    return FileApprovals(tmp_path / "state" / "approvals.json")


@pytest.mark.parametrize("place", DEFAULT_PATHS)
def test_a_program_of_a_found_file_waits_until_it_is_approved(
    place: str, tmp_path: Path, approvals: FileApprovals
):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    frame = "servers" if ".vscode" in place else "mcpServers"
    path.write_text(TOML if place.endswith("toml") else json.dumps({frame: JSON}))
    found = load(env={}, cwd=tmp_path, approvals=approvals)
    assert [spec.name for spec in found.servers] == ["web", "last"]
    assert waiting(found) == ["tools"]
    approved = approve(found, "tools", approvals)
    assert [spec.name for spec in approved.servers] == ["web", "tools", "last"]
    assert approved.needs_approval == ()
    again = load(env={}, cwd=tmp_path, approvals=FileApprovals(approvals.path))
    assert again.servers == approved.servers


def test_a_named_source_is_not_asked_about(tmp_path: Path):
    found_in(tmp_path, MemoryApprovals())
    path = tmp_path / "mcp.json"
    for source, env in [
        (path, {}),
        (str(path), {}),
        (None, {"TOOLKEEP_CONFIG": str(path)}),
        ({"tools": PROGRAM}, {}),
    ]:
        found = load(source, env=env, cwd=tmp_path, approvals=MemoryApprovals())
        assert ([spec.name for spec in found.servers], found.needs_approval) == (["tools"], ())


@pytest.mark.parametrize(
    "change",
    [
        {"command": "other"},
        {"args": []},
        {"args": ["-v", "-v"]},
        {"args": ["-", "v"]},
        {"cwd": "elsewhere"},
        {"env": {}},
        {"env": {"A": "c"}},
        {"env": {"B": "b"}},
        {"env": {"A": "b", "LD_PRELOAD": "x.so"}},
    ],
    ids=str,
)
def test_any_change_to_what_is_started_asks_again(
    change: dict[str, Any], tmp_path: Path, approvals: FileApprovals
):
    approve(found_in(tmp_path, approvals), "tools", approvals)
    assert waiting(found_in(tmp_path, approvals)) == []
    assert waiting(found_in(tmp_path, approvals, **change)) == ["tools"]


def test_what_is_not_started_may_change(tmp_path: Path, approvals: FileApprovals):
    approve(found_in(tmp_path, approvals), "tools", approvals)
    assert waiting(found_in(tmp_path, approvals, timeout=60_000, description="new")) == []


def test_the_same_words_in_another_folder_are_another_program(
    tmp_path: Path, approvals: FileApprovals
):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    approve(found_in(mine, approvals), "tools", approvals)
    assert waiting(found_in(other, approvals)) == ["tools"]


def test_who_approves_sees_what_would_be_started(tmp_path: Path):
    env = {"LD_PRELOAD": "hunter2"}
    args = ["-v", "--token=hunter2", "a b", "\x1b[2K\rharmless", "\u202etxt", "${S:-hunter3}"]
    (pending,) = found_in(tmp_path, MemoryApprovals(), env=env, args=args).needs_approval
    assert pending.command_line.startswith("LD_PRELOAD=*** tools -v --token=*** 'a b' ")
    assert pending.command_line.isprintable()
    assert pending.command_line.endswith("${S:-hunter3}")
    assert "hunter2" not in pending.command_line


def test_what_a_shell_would_obey_is_never_hidden(tmp_path: Path):
    script = "key=1; rm -rf ~"
    (pending,) = found_in(tmp_path, MemoryApprovals(), args=["-c", script, script]).needs_approval
    assert pending.command_line.count("rm -rf") == 2


@pytest.mark.parametrize("key", ["url", "command"])
def test_a_python_file_is_shown_with_its_python(key: str, tmp_path: Path):
    entry = {"type": "local", key: "./tools.py", "args": ["-v"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"tools": entry}}))
    (pending,) = load(env={}, cwd=tmp_path, approvals=MemoryApprovals()).needs_approval
    assert pending.command_line == f"{sys.executable} ./tools.py -v"


def test_the_file_is_its_owners_alone(tmp_path: Path, approvals: FileApprovals):
    approve(found_in(tmp_path, approvals, env={"KEY": "hunter2"}), "tools", approvals)
    assert approvals.path.stat().st_mode & 0o777 == 0o600
    assert approvals.path.parent.stat().st_mode & 0o777 == 0o700
    assert "hunter2" not in approvals.path.read_text()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"approved": []}', "{", "[" * 100_000])
def test_a_file_that_is_damaged_approves_nothing_and_is_not_overwritten(
    content: str, tmp_path: Path, approvals: FileApprovals
):
    approve(found_in(tmp_path, approvals), "tools", approvals)
    approvals.path.write_text(content)
    found = found_in(tmp_path, approvals)
    assert waiting(found) == ["tools"]
    with pytest.raises(ConfigError) as caught:
        approve(found, "tools", approvals)
    assert caught.value.file == str(approvals.path)
    assert approvals.path.read_text() == content


def test_a_file_that_others_could_write_approves_nothing(tmp_path: Path, approvals: FileApprovals):
    approve(found_in(tmp_path, approvals), "tools", approvals)
    approvals.path.chmod(0o666)
    assert waiting(found_in(tmp_path, approvals)) == ["tools"]


def test_approving_what_does_not_wait_is_an_error(tmp_path: Path, approvals: FileApprovals):
    found = found_in(tmp_path, approvals)
    for name in ("web", "", "tools2"):
        with pytest.raises(ConfigError):
            approve(found, name, approvals)
    assert not approvals.path.exists()


def test_by_default_approvals_lie_beside_the_users_other_state(tmp_path: Path):
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    kept = FileApprovals(default_approvals_path(env))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"tools": PROGRAM}}))
    approve(load(env=env, cwd=tmp_path), "tools", kept)
    assert waiting(load(env=env, cwd=tmp_path)) == []
