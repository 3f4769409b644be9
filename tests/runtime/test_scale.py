"""Fifty servers with two hundred tools each: opened, searched, kept true, in little memory.

The servers live here; the runtime is alone in a process of its own, so that its memory is its own.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runtime._catalogue import TOOLS_CHANGED, listings, server
from toolkeep.testing import ScriptedServer

SERVERS, TOOLS = 50, 200
MEGABYTES = 60
PATIENCE = 40.0
ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    *("invoice", "customer", "order", "parcel", "ticket"),
    *("branch", "commit", "table", "mailbox", "calendar"),
)


def wordy(of: int, number: int) -> dict[str, Any]:
    """A tool as large servers have them: about a kilobyte."""
    subject = WORDS[(of + number) % len(WORDS)]
    rare = " Knows the unusual nightingale." if (of, number) == (17, 123) else ""
    properties = {
        f"{word}": {"type": "string", "description": f"The {word} that the {subject} belongs to."}
        for word in WORDS[:6]
    }
    return {
        "name": f"{subject}_{number:03}",
        "description": f"Finds each {subject} of area {number} and says what is known of it.{rare}",
        "inputSchema": {"type": "object", "properties": properties, "required": ["customer"]},
    }


class Alone:
    """The process of a runtime, and a way to give it orders."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def ask(self, *order: Any) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        assert self._child.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._child.stdout.readline()
        assert line, "the runtime's process has ended"
        return json.loads(line)


@asynccontextmanager
async def alone(servers: list[dict[str, Any]]) -> AsyncIterator[Alone]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(Path(__file__).with_name("_client_process.py"))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(servers).encode() + b"\n")
        yield Alone(child)
        child.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory there")
@pytest.mark.requirement("T1", "T5", "T8", "T11", "O3")
async def test_ten_thousand_tools_of_fifty_servers() -> None:
    async with AsyncExitStack() as stack:
        kits: list[ScriptedServer] = []
        for of in range(SERVERS):
            tools = [wordy(of, number) for number in range(TOOLS)]
            kit = ScriptedServer.local(era="legacy" if of % 2 else "modern")
            kits.append(await stack.enter_async_context(kit))
            await kit.set_tools(tools, built_in=False)
        specs = [server(kit, f"s{of}") for of, kit in enumerate(kits)]
        process = await stack.enter_async_context(alone(specs))
        found = await process.answer()
        assert found["summary"] == f"{SERVERS}/{SERVERS} servers healthy, {SERVERS * TOOLS} tools"
        assert found["stale"] == []
        assert found["models"] == SERVERS * TOOLS
        assert found["hits"][0] == f"s17.{wordy(17, 123)['name']}"
        assert found["limited"] == 7
        assert found["opened"] < found["searched"] < MEGABYTES, found
        await one_changes(kits, process)


async def one_changes(kits: list[ScriptedServer], process: Alone) -> None:
    """A change at one server is listed there, and nowhere else."""
    before = [await listings(kit) for kit in kits]
    assert before == [1] * SERVERS
    await kits[3].set_tools([wordy(3, 0), {**wordy(3, 1), "name": "new"}], built_in=False)
    await kits[3].notify(TOOLS_CHANGED)
    revision = await process.ask("await_tool", "s3.new")
    await kits[4].set_tools([{**wordy(4, 1), "name": "new"}], built_in=False)
    await kits[4].notify(TOOLS_CHANGED)
    assert await process.ask("await_tool", "s4.new") == revision + 1
    after = [await listings(kit) for kit in kits]
    assert after == [2 if of in (3, 4) else 1 for of in range(SERVERS)]
    names = ["s49." + str(wordy(49, 199)["name"]), "s3.new", "s0." + str(wordy(0, 0)["name"])]
    assert await process.ask("resolve", names) == names
    assert await process.ask("call", "s3.new") == '{"customer": "1"}'


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory there")
@pytest.mark.requirement("T14")
async def test_principals_who_are_told_the_same_share_it() -> None:
    tools, principals = [wordy(0, number) for number in range(1000)], 20
    async with ScriptedServer.local(era="legacy") as kit:
        await kit.set_tools(tools, built_in=False)
        async with alone([server(kit)]) as process:
            await process.answer()
            taken = await process.ask("views", principals)
            assert await listings(kit) == 1 + principals
    assert taken < 15  # as copies they take 60
