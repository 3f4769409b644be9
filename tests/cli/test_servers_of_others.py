"""The command line with servers that other people wrote, over pipes and HTTP."""

import asyncio
import json
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.cli.helpers_running import Home
from tests.interop.programs import EVERYTHING, listening, node

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@pytest.mark.requirement("O2", "O3")
@needs_git
async def test_the_time_and_git_servers_are_listed_and_called(home: Home):
    repository = home.path / "repository"
    git = ["git", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", str(repository)], check=True, timeout=20)
    commit = [*git, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "the first one"]
    subprocess.run(commit, check=True, timeout=20)
    zone = ["--local-timezone", "UTC"]
    named = home.configure(
        {
            "time": {"command": sys.executable, "args": ["-m", "mcp_server_time", *zone]},
            "git": {"command": sys.executable, "args": ["-m", "mcp_server_git"]},
        }
    )
    servers = await home.run("servers", "-c", named, "--json")
    noon = ("source_timezone=UTC", "time=12:00", "target_timezone=Asia/Tokyo")
    tokyo = await home.run("call", "-c", named, "time.convert_time", *noon)
    log = ("git.git_log", f"repo_path={repository}", "max_count=1")
    first = await home.run("call", "-c", named, *log)
    nowhere = await home.run("call", "-c", named, "get_current_time", "timezone=Nowhere/Land")
    assert [one["health"] for one in servers.document["servers"]] == ["healthy", "healthy"]
    assert servers.document["summary"].startswith("2/2 servers healthy, ")
    assert json.loads(tokyo.out)["target"]["datetime"].endswith("T21:00:00+09:00")
    assert "the first one" in first.out
    assert nowhere.code == 1


@pytest.mark.requirement("O2")
async def test_server_everything_is_used_over_a_pipe(home: Home):
    command = ("--command", shlex.join([*node(EVERYTHING), "stdio"]))
    work = ("call", "trigger-long-running-operation", "duration=1", "steps=2", "--watch")
    listed, summed, image, watched = await asyncio.gather(
        home.run("tools", "get-*", "--json", *command),
        home.run("call", "get-sum", "a=2", "b=3", *command),
        home.run("call", "get-tiny-image", "-o", "saved", *command),
        home.run(*work, *command),
    )
    names = {tool["tool"] for tool in listed.document["tools"]}
    assert {"get-sum", "get-tiny-image"} <= names
    assert "is 5" in summed.out
    assert (home.path / "saved" / "get-tiny-image-1.png").read_bytes().startswith(b"\x89PNG")
    assert "[image image/png" in image.out
    assert [line.split()[0] for line in watched.err.splitlines()][-2:] == ["50%", "100%"]
    assert watched.code == 0


@pytest.mark.requirement("O2")
async def test_server_everything_is_used_over_http_and_told_of_ctrl_c(home: Home):
    async with listening(node(EVERYTHING, "streamableHttp")) as port:
        url = ("--url", f"http://127.0.0.1:{port}/mcp")
        uri = "demo://resource/dynamic/text/1"
        text = await home.run("read", uri, *url)
        prompts = await home.run("prompts", *url)
        work = ("call", "trigger-long-running-operation", "duration=60", "steps=120", "--watch")
        async with home.terminal(*work, *url) as terminal:
            await terminal.until("1%")
            terminal.interrupt()
            ran = await terminal.ended()
        after = await home.run("servers", *url)
    assert uri.rpartition("/")[2] in text.out
    assert "simple-prompt" in prompts.out
    assert (ran.code, terminal.has_cursor) == (130, True)
    assert "Traceback" not in ran.out
    assert after.code == 0
