"""A program or a stream that says too much costs time of its own, and stalls no other task."""

import asyncio
import gc
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.helpers_wire import Asked, RawServer, client_of, handshake, http, result_for
from tests.wire.helpers_stdio import TOOLS, spec_of
from toolkeep import Client

LONGEST_STEP = 0.05
"""Seconds of processor time between two turns of the event loop."""
LONGEST_SHARE = 0.25
"""Of all the time that the flood takes; where tests are traced, a step is slower."""

FLOOD = TOOLS.replace(
    "text = str(os.getpid())",
    'params["arguments"] and flood(**params["arguments"])\n        text = str(os.getpid())',
).replace(
    "def answer",
    """
def flood(fd, text, size):
    data = text.encode() * (size // len(text))
    while data:
        data = data[os.write(fd, data):]

def answer""",
)
NOTE = (
    json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": "x"},
        }
    )
    + "\n"
)
LINES = {
    "blank lines": "\n",
    "short lines": "x\n",
    "braces": "{\n",
    "words": "a word or two on a line\n",
    "messages": NOTE,
    "answers to nobody": '{"jsonrpc":"2.0","id":77,"result":{}}\n',
    "batches": "[" + ",".join([NOTE.strip()] * 2000) + "]\n",
}


SIZE = 400_000
"""Bytes of a flood."""


class Steps:
    """The longest time that the loop's thread has worked between two turns of the loop."""

    def __init__(self) -> None:
        self.longest = self.total = 0.0

    @property
    def are_short(self) -> bool:
        return self.longest < max(LONGEST_STEP, LONGEST_SHARE * self.total)

    async def measure(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            self.total += now - before
            before = now


@contextmanager
def measured() -> Iterator[Steps]:
    """The garbage collector waits meanwhile: what it takes is owed to the size of the test run."""
    steps = Steps()
    task = asyncio.ensure_future(steps.measure())
    gc.disable()
    try:
        yield steps
    finally:
        gc.enable()
        task.cancel()


class Counter(logging.Handler):
    """Counts lines, and keeps none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@pytest.fixture
def logged() -> Iterator[Counter]:
    """What the logger of programs is told, at DEBUG."""
    logger, counter = logging.getLogger("toolkeep.server"), Counter()
    before = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(counter)
    try:
        yield counter
    finally:
        logger.removeHandler(counter)
        logger.level, logger.propagate = before


async def steps_in_a_flood(fd: int, text: str, logged: Counter | None = None) -> Steps:
    """`logged`: wait until it has been told all lines."""
    async with asyncio.timeout(60), Client(spec_of(FLOOD)) as client:
        with measured() as steps:
            told = {"fd": fd, "text": text, "size": SIZE}
            result = await client.call_tool("pid", told)
            while logged is not None and logged.count < (SIZE // len(text)) * bool(text.strip()):
                await asyncio.sleep(0)
        assert result.text.isdigit()
    return steps


@pytest.mark.requirement("S13")
@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
@pytest.mark.parametrize("fd", [1, 2], ids=["output", "stderr"])
async def test_a_program_that_floods_a_stream_stalls_no_other_task(fd: int, text: str) -> None:
    assert (await steps_in_a_flood(fd, text)).are_short


@pytest.mark.requirement("S13")
@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
async def test_a_flood_on_stderr_is_logged_whole_and_stalls_no_other_task(
    text: str, logged: Counter
) -> None:
    assert (await steps_in_a_flood(2, text, logged)).are_short
    assert logged.count == (SIZE // len(text) if text.strip() else 0)


EVENTS = {
    "blank lines": "\n",
    "comments": ":\n",
    "empty events": "data:\n\n",
    "carriage returns": "\r",
    "messages": f"data: {NOTE}\n",
    "batches": f"data: {LINES['batches']}\n",
}


@pytest.mark.requirement("S13")
@pytest.mark.parametrize("text", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_an_event_stream_that_floods_stalls_no_other_task(verb: str, text: str) -> None:
    flood = text.encode() * (SIZE // 2 // len(text))

    def answer(asked: Asked) -> bytes:
        if asked.verb == "GET":
            return http(flood if verb == "GET" else b"\n", kind="text/event-stream")
        if asked.message.get("method") == "tools/call":
            end = b"\n\ndata: " + result_for(asked) + b"\n\n"
            return http((flood if verb == "POST" else b"") + end, kind="text/event-stream")
        return handshake(asked)

    async with RawServer(answer, only=True) as server, client_of(server, mode="legacy") as client:
        if verb == "GET":
            client.observe(lambda event: None)
        await client.connect()
        with measured() as steps:
            for _ in range(2):
                assert (await client.call_tool("t")).text == "hello"
        assert steps.are_short
