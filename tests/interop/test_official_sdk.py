"""A client of ours and a server on the official SDK, each in its own process."""

import asyncio
import itertools
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.ports import free_port
from toolkeep import CallTimedOut, Client
from toolkeep.events import Progress

PROGRAM = Path(__file__).with_name("official_server.py")
BOUND = 50.0
"""Starting Python with the SDK takes a second or two, on a busy machine several."""

encodings = pytest.mark.parametrize("encoding", ["json", "sse"])
modes = pytest.mark.parametrize(("mode", "era"), [("auto", "modern"), ("legacy", "legacy")])


@asynccontextmanager
async def official(encoding: str, port: int) -> AsyncIterator[Process]:
    command = (sys.executable, str(PROGRAM), str(port), encoding)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(BOUND):
            while b"running on" not in (line := await process.stderr.readline()):
                assert line, "the server ended before it was ready"
        yield process
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def client_of(port: int, **spec: Any) -> AsyncIterator[Client]:
    client = Client({"name": "official", "url": f"http://127.0.0.1:{port}/mcp", **spec})
    try:
        async with asyncio.timeout(BOUND):
            yield client
    finally:
        await client.aclose()


@encodings
@modes
async def test_everything_a_server_offers_can_be_used(
    encoding: str, mode: Literal["auto", "legacy"], era: str
):
    port = free_port()
    async with official(encoding, port), client_of(port, mode=mode) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add", "steps", "wait", "fail"]
        assert client.era == era
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}
        failed = await client.call_tool("fail", {"why": "no reason"})
        assert failed.is_error
        assert [prompt.name for prompt in await client.list_prompts()] == ["greet"]
        assert (await client.get_prompt("greet", {"name": "Ada"})).messages
        assert (await client.read_resource("note://one")).contents
        assert await client.ping() > 0


@modes
@pytest.mark.requirement("L2")
async def test_progress_comes_as_it_happens(mode: Literal["auto", "legacy"], era: str):
    port = free_port()
    async with official("sse", port), client_of(port, mode=mode) as client:
        async with client.stream("steps", {"count": 3}) as call:
            seen = [event async for event in call if isinstance(event, Progress)]
        assert [event.message for event in seen] == ["step 1", "step 2", "step 3"]
        gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(seen)]
        assert min(gaps) >= 0.05
        assert client.era == era


@modes
@pytest.mark.requirement("P5")
async def test_a_call_that_is_given_up_ends_at_the_server(
    mode: Literal["auto", "legacy"], era: str
):
    port = free_port()
    async with official("sse", port) as process, client_of(port, mode=mode) as client:
        await client.connect()
        with pytest.raises(CallTimedOut):
            await client.call_tool("wait", {"seconds": 60}, timeout=0.5)
        assert process.stdout is not None
        while b"cancelled" not in (line := await process.stdout.readline()):
            assert line, "the server ended without a word"


@encodings
@modes
@pytest.mark.requirement("S4")
async def test_a_restart_costs_the_caller_nothing(
    encoding: str, mode: Literal["auto", "legacy"], era: str
):
    port = free_port()
    async with client_of(port, mode=mode) as client:
        async with official(encoding, port):
            assert (await client.call_tool("add", {"a": 1, "b": 1})).data == {"result": 2}
            before = client.session_id
        async with official(encoding, port):
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == {"result": 3}
            assert client.era == era
            assert (client.session_id != before) == (era == "legacy")
