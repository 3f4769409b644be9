"""Rates of calls: of a server, of each principal, of each tool; of one process and of a fleet."""

import asyncio
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.runtime._identity import failure_of, named
from tests.runtime._life import config_of
from tests.runtime.test_shared_state import PROGRAM, needs_redis
from tests.state.servers import Server, running
from toolkeep import CallNotDelivered, CallNotSentInTime, Client, ConfigError, Runtime
from toolkeep.config import ServerSpec
from toolkeep.config.fields import Rate
from toolkeep.errors import Delivery, FailureKind
from toolkeep.state import MemoryStore
from toolkeep.testing import ScriptedServer


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as server:
        yield server


@pytest.mark.parametrize(
    ("text", "per_second", "burst"),
    [("10/s", 10, 1), ("100/min", 100 / 60, 5), ("3600/h", 1, 180), ("1/day", 1 / 86_400, 1)],
)
def test_a_rate_is_spread_evenly(text: str, per_second: float, burst: float) -> None:
    rate = Rate.parse(text)
    assert (rate.per_second, rate.burst, str(rate)) == (pytest.approx(per_second), burst, text)


@pytest.mark.parametrize(
    "rate", ["", "fast", "0/s", "1/fortnight", "-1/s", {"tools": "1/s"}, {"server": "x"}, 7]
)
def test_what_is_no_rate_is_a_mistake(rate: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"url": "http://[::1]/mcp", "rate": rate})
    assert str(caught.value.key).startswith("rate")


async def test_a_call_beyond_the_rate_is_not_sent_if_its_turn_is_too_late() -> None:
    async with ScriptedServer.local() as server:
        async with Client({"url": server.url, "rate": "1/min"}) as client:
            await client.call_tool("echo", {"text": "first"})
            began = monotonic()
            error = await failure_of(client.call_tool("echo", {"text": "second"}, timeout=20))
            assert monotonic() - began < 10, "it is known at once"
        assert isinstance(error, CallNotSentInTime)
        assert error.delivery is Delivery.NOT_SENT
        assert error.failure is not None
        assert error.failure.kind is FailureKind.THROTTLED
        assert 40 < (error.retry_after or 0) <= 60
        assert "1/min" in str(error)
        assert await server.executions("echo") == 1


async def test_calls_wait_for_their_turn_in_the_order_in_which_they_came() -> None:
    async with ScriptedServer.local() as server:
        async with Client({"url": server.url, "rate": "20/s"}) as client:
            began = monotonic()
            calls = [client.call_tool("echo", {"text": str(number)}) for number in range(5)]
            await asyncio.gather(*calls)
            assert monotonic() - began > 0.19, "four of them waited a twentieth of a second each"
        order = [one.body["params"]["arguments"]["text"] for one in await _calls(server)]
        assert order == ["0", "1", "2", "3", "4"]


async def _calls(server: ScriptedServer) -> Any:
    return await server.requests("tools/call")


async def test_each_principal_and_each_tool_has_a_rate_of_its_own() -> None:
    rates = {"principal": "1/h", "tool:rec*": "1/day"}
    async with ScriptedServer.local() as server:
        config = config_of(kit={"url": server.url, "rate": rates})
        async with Runtime.open(config) as runtime:

            async def call(tool: str, who: str) -> bool:
                arguments = {"text": "x"} if tool == "echo" else {"key": "x"}
                try:
                    await runtime.call(f"kit.{tool}", arguments, context=named(who), timeout=20)
                except CallNotSentInTime:
                    return False
                return True

            assert await call("record", "ann")
            assert not await call("echo", "ann"), "ann had hers"
            assert not await call("record", "bob"), "nobody may record again"
            assert await call("echo", "bob"), "and it cost bob nothing"


# -- of a fleet -----------------------------------------------------------------------------------

REPLICA = """
import asyncio, json, sys, time
from toolkeep import Client, CallNotSentInTime

async def main(url, state, rate, seconds):
    spec = {"name": "kit", "url": url, "rate": rate}
    made = 0
    async with Client(spec, state=state) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        end = time.monotonic() + float(seconds)

        async def one():
            nonlocal made
            while time.monotonic() < end:
                try:
                    left = max(end - time.monotonic(), 0.001)
                    await client.call_tool("echo", {"text": "x"}, timeout=left + 5)
                    made += time.monotonic() < end
                except CallNotSentInTime:
                    return

        await asyncio.gather(*(one() for _ in range(4)))
    print(json.dumps(made), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@needs_redis
async def test_three_processes_together_keep_to_one_rate(redis: Server) -> None:
    seconds, rate = 4.0, 60
    async with ScriptedServer.local(era="modern") as server:
        command = [sys.executable, "-c", REPLICA, server.url, redis.url, f"{rate}/s", str(seconds)]
        pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        replicas = [await asyncio.create_subprocess_exec(*command, **pipes) for _ in range(3)]
        async with asyncio.timeout(50):
            for replica in replicas:
                assert replica.stdout is not None
                assert await replica.stdout.readline() == b"ready\n"
            made = await asyncio.gather(*(replica.communicate(b"go\n") for replica in replicas))
        total = sum(json.loads(out) for out, _ in made)
    # Processes do not begin at the same instant, and a slow machine makes fewer calls.
    assert total <= seconds * rate * 1.05 + rate * 0.5
    assert total > 20


@needs_redis
@pytest.mark.parametrize("on_loss", ["open", "closed"])
async def test_when_the_store_is_lost_calls_go_on_or_are_refused_as_configured(
    redis: Server, on_loss: str
) -> None:
    async with ScriptedServer.local(era="modern") as server:
        spec = {"name": "kit", "url": server.url, "rate": "1000/s", "on_store_loss": on_loss}
        async with Client(spec, state=redis.url) as client:
            await client.call_tool("echo", {"text": "x"})
            redis.stop()
            if on_loss == "open":
                await client.call_tool("echo", {"text": "x"})
            else:
                error = await failure_of(client.call_tool("echo", {"text": "x"}))
                assert isinstance(error, CallNotDelivered)
                assert "on_store_loss" in str(error)
        assert await server.executions("echo") == (2 if on_loss == "open" else 1)


async def test_a_call_with_a_rate_asks_the_store_once_and_one_without_never() -> None:
    class Counting(MemoryStore):
        asked = 0

        def __getattribute__(self, name: str) -> Any:
            if name in ("get", "put", "take", "lease", "append", "publish", "read", "delete"):
                Counting.asked += 1
            return super().__getattribute__(name)

    async with ScriptedServer.local(era="legacy") as server:
        for rate, expected in (({}, 0), ({"rate": "1000/s"}, 1)):
            spec = {"name": "kit", "url": server.url, **rate}
            async with Client(spec, state=Counting()) as client:
                await client.call_tool("echo", {"text": "warm"})
                before = Counting.asked
                await client.call_tool("echo", {"text": "x"})
                assert Counting.asked - before == expected
