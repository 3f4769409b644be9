"""`toolkeep new-server`: what it writes can be called and watched, and passes its own test."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.cli.helpers_running import BOUND, Home

FILES = {"server.py", "mcp.json", "test_server.py", "README.md"}


async def its_own_test(folder: Path, env: dict[str, str]) -> tuple[int | None, str]:
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.")
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(BOUND):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.mark.requirement("O2")
async def test_a_new_server_is_listed_called_watched_and_tested_without_further_ado(home: Home):
    ran = await home.run("new-server", "first one")
    assert ran.code == 0, ran.said
    folder = home.path / "first one"
    assert {path.name for path in folder.iterdir()} == FILES
    assert len((folder / "server.py").read_text().splitlines()) < 50
    there = Home(folder)
    env = home.env()
    listed = await there.run("tools", "--json", env=env)
    assert listed.code == 0, listed.said
    assert "first-one.count" in listed.out
    words = ("call", "first-one.count", "to=3", "pause=0.01", "--watch")
    async with there.terminal(*words, **env) as terminal:
        watched = await terminal.ended()
    assert watched.code == 0, watched.out
    assert "counted to 3" in watched.out
    code, said = await its_own_test(folder, env)
    assert code == 0, said


@pytest.mark.requirement("O2")
async def test_its_entry_is_understood_by_others_wherever_they_are(home: Home):
    await home.run("new-server", "shop")
    written = json.loads((home.path / "shop" / "mcp.json").read_text())
    entry = written["mcpServers"]["shop"]
    assert set(entry) == {"command", "args"}, "words that all products know"
    elsewhere = stdio_client(StdioServerParameters(**entry, cwd=home.path.anchor))
    async with asyncio.timeout(BOUND), Client(elsewhere) as client:
        listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == ["add", "count"]


async def test_it_also_listens_on_a_port(home: Home):
    await home.run("new-server", ".", "--name", "shop")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = (sys.executable, "server.py", "--http", str(port))
    server = await asyncio.create_subprocess_exec(
        *words, cwd=home.path, env=home.env(), stderr=PIPE
    )
    try:
        assert server.stderr is not None
        async with asyncio.timeout(BOUND):
            while b"running on" not in await server.stderr.readline():
                assert server.returncode is None
        called = await home.run(
            "call", "add", "a=2", "b=3", "--url", f"http://127.0.0.1:{port}/mcp", "--json"
        )
    finally:
        server.terminate()
        await server.communicate()
    assert called.code == 0, called.said
    assert called.document["structured_content"] == {"result": 5}


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_it_ends_quietly_on_ctrl_c(home: Home, over: str):
    await home.run("new-server", ".", "--name", "shop")
    words = ["server.py", *(("--http", "0") if over == "http" else ())]
    async with home.terminal(*words, program=sys.executable) as terminal:
        if over == "http":
            await terminal.until("running on")
        else:
            # Answered, so it runs. The terminal echoes what is typed.
            terminal.type('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            await terminal.until('"result"')
        terminal.interrupt()
        ran = await terminal.ended()
    assert "Traceback" not in ran.out
    assert ran.code == (130 if over == "stdio" else 0)


async def test_nothing_that_is_there_is_overwritten(home: Home):
    kept = home.path / "shop" / "README.md"
    kept.parent.mkdir()
    kept.write_text("mine")
    ran = await home.run("new-server", "shop")
    assert (ran.code, kept.read_text()) == (2, "mine")
    assert [path.name for path in kept.parent.iterdir()] == ["README.md"]


async def test_a_name_that_no_server_can_have_is_refused(home: Home):
    ran = await home.run("new-server", "shop", "--name", "-no-")
    assert ran.code == 2
    assert not (home.path / "shop").exists()
