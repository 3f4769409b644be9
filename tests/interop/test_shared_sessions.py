"""Processes that share one legacy session through a store, at servers on two SDKs."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import toolkeep
from tests.interop.programs import (
    BOUND,
    HERE,
    SESSIONS_SERVERS,
    both_sdks,
    listening,
    running,
    seen_at,
    sessions_in,
)
from tests.ports import free_port

pytestmark = pytest.mark.requirement("S11")

PROGRAM = HERE / "session_user.py"
SOURCE = str(Path(toolkeep.__file__).parents[1])
MANY = 30


class User:
    """A process that uses the session."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def tell(self, do: str, **details: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
        await self._process.stdin.drain()

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND):
            line = await self._process.stdout.readline()
        assert line, "the process ended without an answer"
        return json.loads(line)

    async def ask(self, do: str, **details: Any) -> dict[str, Any]:
        await self.tell(do, **details)
        return await self.answer()

    async def call(self, tag: str) -> dict[str, Any]:
        told = await self.ask("call", tags=[tag], seconds=0)
        assert told["answer"] == [tag]
        return told

    async def leave(self) -> None:
        """Close the client, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await asyncio.wait_for(self._process.wait(), BOUND) == 0

    async def kill(self) -> None:
        self._process.kill()
        await asyncio.wait_for(self._process.wait(), BOUND)


@asynccontextmanager
async def user(directory: Path, port: int) -> AsyncIterator[User]:
    url = f"http://127.0.0.1:{port}/mcp"
    command = [sys.executable, str(PROGRAM), str(directory), url]
    async with running(command, {"PYTHONPATH": SOURCE}, stdin=PIPE, stdout=PIPE) as process:
        yield User(process)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@both_sdks
async def test_a_second_process_goes_on_without_a_handshake(sdk: str, directory: Path):
    async with (
        listening(SESSIONS_SERVERS[sdk]) as port,
        user(directory, port) as first,
        user(directory, port) as second,
    ):
        session = (await first.call("one"))["session"]
        assert (await second.ask("connect"))["session"] == session
        assert len((await seen_at(port))["requests"]) == 1
        assert (await second.call("two"))["session"] == session
        seen = await seen_at(port)
        assert seen["initialize"] == 1
        assert [asked for asked, _ in seen["requests"]] == [session, session]
        assert seen["versions"] == ["2025-11-25"] * 2
        await second.leave()
        assert (await first.call("three"))["session"] == session
        await first.leave()
        assert (await seen_at(port))["delete"] == 0
    assert await sessions_in(directory) == [session]


@both_sdks
async def test_their_calls_at_the_same_time_are_not_mistaken_for_each_other(
    sdk: str, directory: Path
):
    async with (
        listening(SESSIONS_SERVERS[sdk]) as port,
        user(directory, port) as first,
        user(directory, port) as second,
    ):
        await first.ask("connect")
        await second.ask("connect")
        tags = {
            one: [f"{n}-{number}" for number in range(MANY)]
            for n, one in enumerate((first, second))
        }
        for one in tags:
            await one.tell("call", tags=tags[one], seconds=0.5)
        for one in tags:
            assert (await one.answer())["answer"] == tags[one]
        seen = await seen_at(port)
        assert seen["initialize"] == 1
        assert (
            len({tuple(asked) for asked in seen["requests"]}) == len(seen["requests"]) == 2 * MANY
        )


@both_sdks
async def test_when_one_is_killed_the_other_goes_on(sdk: str, directory: Path):
    async with (
        listening(SESSIONS_SERVERS[sdk]) as port,
        user(directory, port) as first,
        user(directory, port) as second,
    ):
        session = (await first.ask("connect"))["session"]
        await second.ask("connect")
        await first.tell("call", tags=["never told"], seconds=30)
        await second.tell("call", tags=["told"], seconds=1.0)
        async with asyncio.timeout(BOUND):
            while len((await seen_at(port))["requests"]) < 2:
                await asyncio.sleep(0.01)
        await first.kill()
        assert await second.answer() == {"session": session, "answer": ["told"]}
        assert (await second.call("after"))["session"] == session
        async with user(directory, port) as third:
            assert (await third.call("third"))["session"] == session
        assert (await seen_at(port))["initialize"] == 1


@both_sdks
async def test_after_a_restart_all_recover_and_one_session_is_kept(sdk: str, directory: Path):
    port = free_port()
    async with user(directory, port) as first, user(directory, port) as second:
        async with listening(SESSIONS_SERVERS[sdk], port):
            old = (await first.call("one"))["session"]
            assert (await second.call("two"))["session"] == old
        async with listening(SESSIONS_SERVERS[sdk], port):
            for one in (first, second):
                await one.tell("call", tags=[f"again-{n}" for n in range(5)], seconds=0.1)
            told = [await one.answer() for one in (first, second)]
            assert [each["answer"] for each in told] == [[f"again-{n}" for n in range(5)]] * 2
            (kept,) = await sessions_in(directory)
            assert kept in [each["session"] for each in told]
            before = await seen_at(port)
            assert 1 <= before["initialize"] <= 2
            for one in (first, second):
                await one.call("still there")
                await one.leave()
            after = await seen_at(port)
            assert after["initialize"] == before["initialize"]
            assert after["delete"] == before["initialize"] - 1  # whoever had one of its own
            async with user(directory, port) as third:
                assert (await third.call("third"))["session"] == kept
