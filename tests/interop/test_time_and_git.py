"""`mcp-server-time` and `mcp-server-git`, as their users start them, in both eras."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.interop.matrix import Feature, at, lacks, proves
from tests.interop.programs import BOUND, Heard, Mode, Person, assert_lacks
from toolkeep import CallRejected, Client, InvalidArguments

LACKING: tuple[Feature, ...] = (
    *("prompts", "resources", "completion", "progress", "logging", "list changes"),
    *("cancellation", "sampling", "elicitation", "roots"),
)


def modes(server: str) -> Any:
    chosen: list[tuple[Mode, str]] = [
        ("legacy", "legacy"),
        ("modern", "modern"),
        ("auto", "modern"),
    ]
    marked = [pytest.param(*each, marks=at(server, "stdio", each[1])) for each in chosen]
    return pytest.mark.parametrize(("mode", "era"), marked)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@asynccontextmanager
async def client_of(module: str, *arguments: str, mode: Mode) -> AsyncIterator[Client]:
    args = ["-m", module, *arguments]
    spec: dict[str, Any] = {"name": module, "command": sys.executable, "args": args, "mode": mode}
    heard = Heard()
    async with asyncio.timeout(BOUND), Client(spec, **Person().answers()) as client:
        with closing(client.observe(heard)):
            yield client
            await assert_lacks(client, heard, LACKING)


@modes("mcp-server-time")
@pytest.mark.requirement("S12", "S13")
@proves("tools")
@lacks(*LACKING)
async def test_the_time_server_is_used_in_the_era_that_was_asked_for(mode: Mode, era: str):
    async with client_of("mcp_server_time", "--local-timezone", "UTC", mode=mode) as client:
        assert client.era == era
        tools = [tool.name for tool in await client.list_tools()]
        assert tools == ["get_current_time", "convert_time"]
        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        converted = await client.call_tool("convert_time", noon)
        assert converted.data["target"]["datetime"].endswith("T21:00:00+09:00")
        assert (await client.call_tool("get_current_time", {"timezone": "Nowhere/Land"})).is_error
        with pytest.raises(InvalidArguments):
            await client.call_tool("get_current_time", {"timezone": 7})
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("no_such_tool")
        assert caught.value.code == -32602
        assert await client.ping() > 0


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With one commit, and an author of its own."""
    where = tmp_path / "repository"
    where.mkdir()
    (where / "poem.txt").write_text("one line\n")
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("config", "user.name", "Ada"),
        ("config", "user.email", "ada@example.test"),
        ("add", "poem.txt"),
        ("commit", "--quiet", "--message=The first line"),
    ):
        subprocess.run(["git", *arguments], cwd=where, check=True, timeout=BOUND)
    return where


@needs_git
@modes("mcp-server-git")
@pytest.mark.requirement("S12", "S13")
@proves("tools")
@lacks(*LACKING)
async def test_the_git_server_is_used_in_the_era_that_was_asked_for(
    mode: Mode, era: str, repository: Path
):
    here = {"repo_path": str(repository)}
    async with client_of("mcp_server_git", "--repository", str(repository), mode=mode) as client:
        assert client.era == era
        assert {"git_status", "git_commit"} <= {tool.name for tool in await client.list_tools()}
        (repository / "poem.txt").write_text("one line\nand another\n")
        assert "+and another" in (await client.call_tool("git_diff_unstaged", here)).text
        assert (await client.call_tool("git_add", {**here, "files": ["poem.txt"]})).success
        said = {**here, "message": "The second line"}
        assert (await client.call_tool("git_commit", said)).success
        assert "The second line" in (await client.call_tool("git_log", here)).text
        assert (await client.call_tool("git_checkout", {**here, "branch_name": "none"})).is_error
        assert (await client.call_tool("git_status", {"repo_path": "/"})).is_error
        with pytest.raises(InvalidArguments):
            await client.call_tool("git_log", {**here, "max_count": "many"})
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=repository, capture_output=True, text=True, timeout=BOUND
    )
    assert log.stdout.split("\n") == ["The second line", "The first line", ""]
