"""Over stdio, HTTP+SSE and in-process, too: a cancellation that nobody asked of the caller is a
failure, never a cancellation."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.engine.helpers_tasks import BOUND, PROMPT, Took, closing, outcome
from tests.engine.helpers_transports import IN_PROCESS, SSE, Way, every_way, served, serving
from toolkeep import CallNotDelivered, CallOutcomeUnknown, Client, ToolkeepError
from toolkeep.auth import AuthRequest, Challenge

pytestmark = pytest.mark.requirement("P5")


class SelfCancelling:
    """An authorizer that raises a cancellation of its own, as a library with a bug does."""

    def __init__(self) -> None:
        self.armed = False

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.armed:
            raise asyncio.CancelledError("by itself")
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.mark.parametrize("opened", [False, True], ids=["handshake", "call"])
async def test_a_cancellation_that_an_authorizer_over_sse_made_by_itself_is_a_failure(opened: bool):
    auth = SelfCancelling()
    async with served(SSE) as server:
        spec = {"name": "kit", **server.spec, "max_retries": 0, "timeouts": {"call": 3.0}}
        async with closing(Client(spec, auth=auth)) as client:
            if opened:
                await client.connect()
            auth.armed = True
            caller = asyncio.create_task(client.call_tool("record"))
            with Took() as took:
                await asyncio.wait((caller,), timeout=BOUND)
            assert caller.done()
            assert not caller.cancelled()
            assert isinstance(caller.exception(), ToolkeepError)
            assert took.seconds < PROMPT
            assert await server.executions("record") == 0
            auth.armed = False
            assert (await client.call_tool("echo", {"text": "next"})).text == "next"


@every_way
async def test_a_cancellation_that_a_progress_callback_made_by_itself_is_a_failure(way: Way):
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        raise asyncio.CancelledError("by itself")

    async with serving(way) as (server, client):
        call = client.call_tool("steps", {"count": 3, "gap": 0.01}, on_progress=on_progress)
        error = await outcome(asyncio.create_task(call))
        assert type(error) is CallOutcomeUnknown
        assert await server.executions("steps") == 1
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"


async def cancel_itself() -> str:
    raise asyncio.CancelledError("by itself")


async def await_the_cancelled() -> str:
    other = asyncio.ensure_future(anyio.sleep_forever())
    other.cancel()
    await other
    return "never"


@asynccontextmanager
async def local_client(*functions: Any, mode: str) -> AsyncIterator[Client]:
    async with closing(Client({"name": "local", "server": functions, "mode": mode})) as client:
        yield client


@pytest.mark.parametrize("way", IN_PROCESS, ids=str)
@pytest.mark.parametrize("tool", [cancel_itself, await_the_cancelled])
async def test_a_cancellation_that_a_tool_made_by_itself_is_a_failure_of_its_call(
    way: Way, tool: Any
):
    async def slow() -> str:
        await anyio.sleep(0.2)
        return "done"

    async with local_client(tool, slow, mode=way.era) as client:
        sibling = asyncio.create_task(client.call_tool("slow"))
        caller = asyncio.create_task(client.call_tool(tool.__name__))
        await asyncio.wait((caller,), timeout=BOUND)
        assert not caller.cancelled()
        assert isinstance(caller.exception(), ToolkeepError)
        assert not isinstance(caller.exception(), CallNotDelivered)
        assert (await outcome(sibling)).text == "done"
