"""`toolkeep console`, as a shell runs it."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers_running import TOOLKEEP, Home
from tests.console.viewer import Viewer, browser, following
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.timeout(60)


async def link_of(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """The URL and the token that the command prints."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            if found := re.search(r"console: (http://127\.0\.0\.1:\d+)/#token=([\w-]+)", line):
                return found[1], found[2]
    raise AssertionError("the command ended without a link")


async def test_the_command_serves_the_page_until_it_is_interrupted(tmp_path: Path):
    home = Home(tmp_path)
    async with ScriptedServer.local(era="legacy") as server, browser() as session:
        file = home.configure({"kit": {"url": server.url}})
        options: dict[str, Any] = {"cwd": tmp_path, "env": home.env()}
        process = await asyncio.create_subprocess_exec(
            *(TOOLKEEP, "console", "-c", file, "--no-browser", "--allow-calls"),
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        try:
            viewer = Viewer(session, *await link_of(process))
            await viewer.log_in()
            state = (await viewer.get("state")).json
            body = {"name": "kit.add", "arguments": {"a": 2, "b": 3}}
            async with following(viewer) as follower:
                await viewer.post("call", body)
                call = await follower.ended("add")
                process.send_signal(signal.SIGINT)
                await follower.until(lambda: follower.told[-1].kind == "end")
            async with asyncio.timeout(20):
                code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (state["process"]["pid"], state["allowed"]) == (process.pid, True)
    assert (call["verdict"], call["console"]) == ("ran", True)
    assert code == 0


async def test_a_port_that_is_taken_ends_the_command_with_a_usage_error(tmp_path: Path):
    home = Home(tmp_path)
    async with ScriptedServer.local() as server:
        file = home.configure({"kit": {"url": server.url}})
        words = ("console", "-c", file, "--no-browser", "--port", str(server.port))
        ran = await home.run(*words)
    assert ran.code == 2
    assert f"cannot listen at 127.0.0.1:{server.port}" in ran.err
