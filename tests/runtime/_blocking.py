"""What the tests of the blocking runtime share: threads to use it in, and programs that do."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from toolkeep.testing import ScriptedServer

T = TypeVar("T")
PATIENCE = 20.0
LONG = {"seconds": 30, "key": "long"}

PROGRAM = """
import json, os, sys
from toolkeep.blocking import Runtime

config = json.loads(sys.argv[1])
"""


async def elsewhere(work: Callable[..., T], *args: Any) -> T:
    """In another thread, while the server goes on in this one."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.to_thread(work, *args)


def portals() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "toolkeep-runtime"]


def config_of(**servers: ScriptedServer) -> dict[str, Any]:
    return {"mcpServers": {name: server.spec for name, server in servers.items()}}


async def program(text: str, config: dict[str, Any]) -> asyncio.subprocess.Process:
    """A program of its own, for which warnings are errors, too."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", PROGRAM + text, json.dumps(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def said(running: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """How it ended, and what it printed."""
    async with asyncio.timeout(PATIENCE):
        out, err = await running.communicate()
    return running.returncode, out.decode().strip(), err.decode().strip()
