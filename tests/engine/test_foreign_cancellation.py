"""A cancellation that nobody asked of the caller is a failure, never a cancellation."""

import asyncio
from collections.abc import Mapping

import pytest

from tests.engine.helpers_tasks import BOUND, Era, closing, every_era, outcome, serving
from toolkeep import CallOutcomeUnknown, Client, ToolkeepError
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P5")


class SelfCancelling:
    """An authorizer that raises a cancellation of its own, as a library with a bug does."""

    def __init__(self, *, where: str) -> None:
        self.where, self.calls, self.armed = where, 0, where != "call"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        self.calls += 1
        if self.armed and self.where in ("handshake", "call"):
            raise asyncio.CancelledError("by itself")
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        if self.where == "challenge":
            raise asyncio.CancelledError("by itself")
        return False


@pytest.mark.parametrize("where", ["handshake", "call", "challenge"])
@every_era
async def test_a_cancellation_that_an_authorizer_made_by_itself_is_a_failure(era: Era, where: str):
    auth = SelfCancelling(where=where)
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "max_retries": 0}
        async with closing(Client(spec, mode=era, auth=auth)) as client:
            if where == "call":
                await client.connect()
            if where == "challenge":
                await server.script(Rule(tool="record", do=Behaviour(status=401)))
            auth.armed = True
            caller = asyncio.create_task(client.call_tool("record"))
            await asyncio.wait((caller,), timeout=BOUND)
            assert caller.done()
            assert not caller.cancelled()
            assert isinstance(caller.exception(), ToolkeepError)
            assert await server.executions("record") == 0
            auth.armed, auth.where = False, ""
            assert (await client.call_tool("echo", {"text": "next"})).text == "next"


@every_era
async def test_a_cancellation_that_a_progress_callback_made_by_itself_is_a_failure(era: Era):
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        raise asyncio.CancelledError("by itself")

    async with serving(era, "sse") as (server, client):
        call = client.call_tool("steps", {"count": 3, "gap": 0.01}, on_progress=on_progress)
        error = await outcome(asyncio.create_task(call))
        assert type(error) is CallOutcomeUnknown
        assert await server.executions("steps") == 1


@every_era
async def test_a_cancellation_that_was_swallowed_long_ago_says_nothing_about_this_one(era: Era):
    auth, swallowed = SelfCancelling(where="call"), asyncio.Event()
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "max_retries": 0}
        async with closing(Client(spec, mode=era, auth=auth)) as client:
            await client.connect()
            auth.armed = True

            async def clean_up() -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed.set()
                await client.call_tool("record")

            caller = asyncio.create_task(clean_up())
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait((caller,), timeout=BOUND)
            assert swallowed.is_set()
            assert not caller.cancelled()
            assert isinstance(caller.exception(), ToolkeepError)
            auth.armed = False
