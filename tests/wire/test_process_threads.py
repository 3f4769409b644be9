"""Pipes with a thread each, as Windows needs them; they work everywhere."""

import asyncio
import os
import threading

import pytest

from tests.wire.helpers_stdio import BOUND
from toolkeep._transport.base import Attempt, WireFault
from toolkeep._transport.subprocess import ThreadedPipeReader, ThreadedPipeWriter

BIG = b"x" * 1_000_000


class Heard:
    """What came out of a pipe, and whether it ended."""

    def __init__(self) -> None:
        self.chunks = bytearray()
        self.news, self.ended = asyncio.Event(), asyncio.Event()

    def take(self, chunk: bytes) -> None:
        self.chunks += chunk
        self.news.set()


async def no_threads() -> None:
    async with asyncio.timeout(BOUND):
        while any(thread.name.startswith("toolkeep-") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


async def test_lines_go_through_whole_and_in_order():
    read, write = os.pipe()
    heard, out = Heard(), ThreadedPipeWriter(write)
    inflow = ThreadedPipeReader(read, heard.take, heard.ended.set)
    lines = [BIG + b"1\n", b"2\n", BIG + b"3\n"]
    attempts = [Attempt() for _ in lines]
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*map(out.send, lines, attempts))
        out.finish()
        await heard.ended.wait()
    assert heard.chunks == b"".join(lines)
    assert all(attempt.sent for attempt in attempts)
    assert inflow.closed
    await no_threads()


async def test_what_waits_when_the_pipe_closes_was_not_sent():
    read, write = os.pipe()
    out, attempts = ThreadedPipeWriter(write), [Attempt(), Attempt()]
    await out.send(BIG, attempts[0])
    waiting = asyncio.create_task(out.send(b"second", attempts[1]))
    await asyncio.sleep(0)
    os.close(read)
    with pytest.raises(WireFault):
        await asyncio.wait_for(waiting, BOUND)
    assert [attempt.sent for attempt in attempts] == [True, False]
    await no_threads()


async def test_a_paused_pipe_is_read_on_when_it_is_resumed():
    read, write = os.pipe()
    heard = Heard()
    inflow = ThreadedPipeReader(read, heard.take, heard.ended.set)
    os.write(write, b"first")
    async with asyncio.timeout(BOUND):
        await heard.news.wait()
        inflow.pause()
        os.write(write, b"second")
        os.close(write)
        inflow.resume()
        await heard.ended.wait()
    assert heard.chunks == b"firstsecond"
    await no_threads()


async def test_nothing_is_heard_from_a_closed_pipe():
    read, write = os.pipe()
    heard = Heard()
    inflow = ThreadedPipeReader(read, heard.take, heard.ended.set)
    inflow.close()
    os.write(write, b"too late")
    os.close(write)
    await no_threads()
    await asyncio.sleep(0)
    assert heard.chunks == b""
    assert not heard.ended.is_set()
