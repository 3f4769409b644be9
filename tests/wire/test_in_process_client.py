"""Clients of servers in this process: the SDK's own, and plain functions."""

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal

import anyio
import pytest
from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import INTERNAL_ERROR

from toolkeep import (
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    Client,
    Runtime,
    ServerUnavailable,
)
from toolkeep.errors import Delivery
from toolkeep.events import Progress

BOUND = 10.0
"""Nothing here takes as long; a wait that does is a hang."""
modes = pytest.mark.parametrize(("mode", "era"), [("auto", "modern"), ("legacy", "legacy")])
caller: ContextVar[str] = ContextVar("caller", default="nobody")


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


async def steps(ctx: Context, count: int) -> str:
    for step in range(1, count + 1):
        await ctx.report_progress(step, count)
    return "done"


def fail() -> str:
    raise LookupError("nothing there")


async def cancel_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.sleep_forever()
    return "never"


async def await_the_cancelled() -> str:
    other = asyncio.ensure_future(anyio.sleep_forever())
    other.cancel()
    await other
    return "never"


class Life:
    """A lifespan that tells where it is."""

    def __init__(self) -> None:
        self.entered, self.left, self.caller = 0, 0, ""

    @asynccontextmanager
    async def __call__(self, server: Any) -> AsyncIterator[None]:
        self.entered, self.caller = self.entered + 1, caller.get()
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            self.left += 1


@asynccontextmanager
async def client_of(server: Any, **spec: Any) -> AsyncIterator[Client]:
    client = Client({"name": "local", "server": server, **spec})
    try:
        async with asyncio.timeout(BOUND):
            yield client
    finally:
        await client.aclose()


@modes
@pytest.mark.requirement("S13")
async def test_functions_are_a_server_in_both_eras(mode: Literal["auto", "legacy"], era: str):
    async with client_of([add, steps, fail], mode=mode) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add", "steps", "fail"]
        assert client.era == era
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}
        async with client.stream("steps", {"count": 3}) as call:
            seen = [event.progress async for event in call if isinstance(event, Progress)]
        assert seen == [1, 2, 3]
        assert (await client.call_tool("fail")).is_error


@modes
async def test_a_low_level_server_is_a_server(mode: Literal["auto", "legacy"], era: str):
    low: Server[Any] = MCPServer("low")._lowlevel_server
    async with client_of(low, mode=mode) as client:
        assert await client.list_tools() == []


@modes
@pytest.mark.requirement("S13")
async def test_a_server_of_fastmcp_is_a_server(mode: Literal["auto", "legacy"], era: str):
    from fastmcp import Context as FastMCPContext  # `make test-lowest` is without it
    from fastmcp import FastMCP

    life, asked = Life(), asyncio.Event()
    server = FastMCP("notes", lifespan=life)

    @server.tool
    async def steps(count: int, ctx: FastMCPContext) -> list[int]:
        for step in range(count):
            await ctx.report_progress(step, count)
        return [count]

    @server.tool
    async def wait() -> None:
        asked.set()
        await anyio.sleep_forever()

    async with client_of(server, mode=mode) as client:
        assert [tool.name for tool in await client.list_tools()] == ["steps", "wait"]
        assert client.era == era
        async with client.stream("steps", {"count": 2}) as call:
            seen = [event.progress async for event in call if isinstance(event, Progress)]
            assert (await call.result()).data == {"result": [2]}
        assert seen == [0, 1]
        waiting = asyncio.ensure_future(client.call_tool("wait"))
        await asked.wait()
        assert (life.entered, life.left) == (1, 0)
        await client.aclose()
        assert (life.entered, life.left) == (1, 1)
        with pytest.raises(CallOutcomeUnknown):
            await waiting
        assert len(await client.list_tools()) == 2
    assert (life.entered, life.left) == (2, 2)


async def test_a_runtime_and_a_mapping_take_a_server_of_fastmcp():
    from fastmcp import FastMCP

    server = FastMCP("Notes of all")
    server.tool(add)
    assert Client(server).name == "Notes-of-all"
    async with Runtime.open({"notes": {"server": server}}) as runtime:
        assert (await runtime.call("notes.add", {"a": 2, "b": 3})).data == {"result": 5}
    async with Runtime.open(server) as runtime:
        assert [tool.tool for tool in runtime.catalogue.tools] == ["add"]


async def test_sync_functions_run_side_by_side_and_do_not_block_the_loop():
    together = threading.Barrier(8, timeout=BOUND)

    def meet() -> int:
        return together.wait()

    async with client_of(meet) as client, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(client.call_tool("meet")) for _ in range(8)]
    assert sorted(call.result().data["result"] for call in calls) == list(range(8))


@modes
@pytest.mark.requirement("S14")
@pytest.mark.parametrize("wreck", [cancel_itself, await_the_cancelled])
async def test_a_tool_that_is_cancelled_harms_neither_its_caller_nor_its_siblings(
    wreck: Callable[[], Any], mode: Literal["auto", "legacy"], era: str
):
    running, over = anyio.Event(), anyio.Event()

    async def sibling() -> str:
        running.set()
        await over.wait()
        return "unharmed"

    async with client_of([wreck, sibling], mode=mode) as client:
        beside = asyncio.ensure_future(client.call_tool("sibling"))
        await running.wait()
        with pytest.raises(CallRejected) as caught:
            await client.call_tool(wreck.__name__)
        assert caught.value.code == INTERNAL_ERROR
        over.set()
        assert (await beside).data == {"result": "unharmed"}


@pytest.mark.requirement("S17")
async def test_a_tool_sees_its_callers_context_and_the_server_nobodys():
    life = Life()
    server = MCPServer("who", lifespan=life)

    @server.tool()
    async def who() -> str:
        return caller.get()

    caller.set("Ada")
    async with client_of(server) as client:
        assert (await client.call_tool("who")).data == {"result": "Ada"}
        caller.set("Bob")
        assert (await client.call_tool("who")).data == {"result": "Bob"}
    assert life.caller == "nobody"


async def test_one_server_serves_two_clients_at_once_and_one_after_the_other():
    life = Life()
    server = MCPServer("shared", lifespan=life)
    server.add_tool(add)
    async with client_of(server) as first:
        async with client_of(server) as second:
            await first.call_tool("add", {"a": 1, "b": 1})
            await second.call_tool("add", {"a": 1, "b": 1})
            assert (life.entered, life.left) == (2, 0)
        assert life.left == 1
        assert (await first.call_tool("add", {"a": 1, "b": 1})).data == {"result": 2}
    async with client_of(server) as third:
        assert (await third.call_tool("add", {"a": 1, "b": 1})).data == {"result": 2}
    assert (life.entered, life.left) == (3, 3)


@pytest.mark.parametrize("blocking", [False, True])
async def test_closing_does_not_wait_for_a_tool(blocking: bool):
    running, over, told = threading.Event(), threading.Event(), anyio.Event()

    async def wait() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            told.set()

    def block() -> None:
        running.set()
        over.wait(BOUND)

    try:
        async with client_of(block if blocking else wait) as client:
            call = asyncio.ensure_future(client.call_tool("block" if blocking else "wait"))
            await asyncio.to_thread(running.wait, BOUND)
            async with asyncio.timeout(2.0):
                await client.aclose()
            with pytest.raises(CallOutcomeUnknown):
                await call
    finally:
        over.set()
    assert blocking or told.is_set()


async def test_a_call_given_up_by_its_caller_is_cancelled_in_the_tool():
    running, told = anyio.Event(), anyio.Event()

    async def wait() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            told.set()

    async with client_of([wait, add]) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await running.wait()
        call.cancel()
        await told.wait()
        assert (await client.call_tool("add", {"a": 1, "b": 1})).data == {"result": 2}
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.requirement("S14")
async def test_a_server_that_crashes_under_a_call_leaves_it_unknown_and_the_next_call_works():
    running, crash = anyio.Event(), asyncio.Event()

    async def fail_when_told() -> None:
        await crash.wait()
        crash.clear()
        raise ZeroDivisionError

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_when_told)
            yield
            tasks.cancel_scope.cancel()

    async def wait() -> None:
        running.set()
        await anyio.sleep_forever()

    server = MCPServer("crash", lifespan=lifespan)
    for function in (wait, add):
        server.add_tool(function)
    async with client_of(server) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await running.wait()
        crash.set()
        with pytest.raises(CallOutcomeUnknown):
            await call
        assert (await client.call_tool("add", {"a": 1, "b": 1})).data == {"result": 2}


async def test_a_server_that_cannot_start_is_unavailable():
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        raise ZeroDivisionError
        yield

    server = MCPServer("crash", lifespan=lifespan)
    async with client_of(server, timeouts={"call": 0.5}) as client:
        with pytest.raises((ServerUnavailable, CallNotSentInTime)) as caught:
            await client.call_tool("add", {"a": 1, "b": 1})
    assert caught.value.delivery is Delivery.NOT_SENT


async def test_a_tool_may_be_a_client_itself():
    async with client_of(add) as inner:

        async def double(n: int) -> int:
            return (await inner.call_tool("add", {"a": n, "b": n})).data["result"]

        async with client_of(double) as outer:
            assert (await outer.call_tool("double", {"n": 4})).data == {"result": 8}


@modes
@pytest.mark.requirement("S17")
def test_a_client_whose_loop_is_gone_lets_go_of_its_server(
    mode: Literal["auto", "legacy"], era: str
):
    client = Client({"name": "local", "server": add, "mode": mode})

    async def use_again() -> Any:
        await client.aclose()
        gc.collect()  # tasks of the closed loop may be collected while another loop runs
        async with client:
            return (await client.call_tool("add", {"a": 2, "b": 3})).data

    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.connect())
    loop.close()
    assert asyncio.run(use_again()) == {"result": 5}
    gc.collect()  # what was not let go warns now


def quits() -> str:
    """As command lines do that are made into tools."""
    sys.exit(2)


async def quits_too() -> str:
    sys.exit(2)


@modes
@pytest.mark.parametrize("tool", [quits, quits_too])
async def test_a_tool_that_exits_ends_its_call_alone(
    tool: Callable[[], Any], mode: Literal["auto", "legacy"], era: str
):
    async with client_of([tool, add], mode=mode) as client:
        with pytest.raises(CallRejected) as caught:
            await client.call_tool(tool.__name__)
        assert caught.value.code == INTERNAL_ERROR
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}
