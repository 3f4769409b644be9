"""Questions may be answered by plain functions, which block: `input()` is one."""

import asyncio
import os
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from tests.engine.helpers_rounds import ADA, BOUND, ELICIT, Way, both_eras, eventually, meeting
from toolkeep.events import InputNeeded

ASK = {"requests": {"name": ELICIT}}
POOL = min(32, (os.cpu_count() or 1) + 4)
"""Threads that an event loop has for what blocks, name lookups among them."""

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Person:
    """Answers when told to; not before, and not for ever."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, threading.Thread]] = []
        self.go = threading.Event()

    def __call__(self, needed: InputNeeded) -> Any:
        self.asked.append((caller.get(), threading.current_thread()))
        return ADA if self.go.wait(BOUND) else None

    async def until(self, asked: int) -> None:
        async def look() -> bool:
            return len(self.asked) >= asked

        await eventually(look)


@both_eras
@pytest.mark.requirement("F3", "P5")
async def test_a_function_that_blocks_holds_up_nobody_but_its_call(way: Way) -> None:
    person = Person()
    async with meeting(way, elicitation=person) as (_, client):
        caller.set("ada")
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await person.until(asked=1)
        assert (await client.call_tool("echo", {"text": "meanwhile"})).text == "meanwhile"
        assert not asking.done()
        person.go.set()
        assert (await asking).data["answers"] == [{"name": ADA}]
    [(who, thread)] = person.asked
    assert who == "ada"
    assert thread is not threading.main_thread()
    assert thread.daemon, "a program may end though nobody answers"


async def test_functions_that_block_leave_the_loop_its_threads() -> None:
    person = Person()
    async with meeting(Way("json", "modern"), elicitation=person) as (_, client):
        asking = [asyncio.create_task(client.call_tool("ask", ASK)) for _ in range(POOL + 1)]
        try:
            await person.until(asked=POOL + 1)
            async with asyncio.timeout(BOUND / 2):
                await asyncio.to_thread(person.go.is_set)
        finally:
            person.go.set()
        results = await asyncio.gather(*asking)
        assert all(result.data["answers"] == [{"name": ADA}] for result in results)


async def test_a_plain_function_that_fails_declines() -> None:
    def fail(needed: InputNeeded) -> Any:
        raise LookupError("nobody there")

    async with meeting(Way("json", "modern"), elicitation=fail) as (_, client):
        result = await client.call_tool("ask", ASK)
        assert result.data["answers"] == [{"name": {"action": "decline"}}]
