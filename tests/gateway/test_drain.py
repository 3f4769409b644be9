"""Replicas that are restarted, one after the other, behind plain round robin: no call is lost."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.serving import BOUND, Balancer, Served, configure, start
from toolkeep import Client
from toolkeep.testing import ScriptedServer

pytestmark = [pytest.mark.requirement("W7"), pytest.mark.timeout(90)]

CALLERS = 4


async def test_a_rolling_restart_loses_no_call_and_no_session(tmp_path: Path):
    async with ScriptedServer.local(encoding="sse") as kit, Balancer() as balancer:
        shared = {"state": f"sqlite://{tmp_path}/state.db", "state_keys": [secrets.token_hex(32)]}
        configure(tmp_path, {"kit": kit.spec}, **shared)
        words = "-c", "toolkeep.toml"
        replicas = list(await asyncio.gather(*(start(tmp_path, *words) for _ in range(2))))
        balancer.ports = [one.port for one in replicas]
        done: list[str] = []
        stopping = asyncio.Event()
        # A connection for each request, so that each goes to another replica.
        spec: dict[str, Any] = {"url": f"http://127.0.0.1:{balancer.port}/mcp", "keep_alive": 0.001}

        async def call(number: int) -> str | None:
            mode = ("legacy", "modern")[number % 2]
            async with Client({**spec, "mode": mode}) as client:
                await client.call_tool("kit__echo", {"text": "first"})
                session = client.session_id
                while not stopping.is_set():
                    key = f"{number}/{len(done)}"
                    result = await client.call_tool("kit__record", {"key": key})
                    assert result.attempts == 1
                    done.append(key)
                assert client.session_id == session
                return session

        try:
            async with asyncio.timeout(BOUND * 2):
                calls = [asyncio.create_task(call(number)) for number in range(CALLERS)]
                for place in range(2):
                    made = len(done)
                    while len(done) < made + 40:
                        assert not any(one.done() for one in calls), [
                            one.exception() for one in calls
                        ]
                        await asyncio.sleep(0.02)
                    assert await replicas[place].stop() == 0
                    replicas[place] = await start(tmp_path, *words)
                    balancer.ports[place] = replicas[place].port
                stopping.set()
                await asyncio.gather(*calls)
        finally:
            stopping.set()
            await asyncio.gather(*(one.stop() for one in replicas))
        assert len(done) > 80
        ledger = await kit.ledger()
        assert {key: ledger[key] for key in done} == dict.fromkeys(done, 1)


async def test_a_running_call_ends_and_its_client_is_sent_elsewhere(tmp_path: Path):
    async with ScriptedServer.local(encoding="sse") as kit:
        configure(tmp_path, {"kit": kit.spec})
        served: Served = await start(tmp_path, "-c", "toolkeep.toml")
        try:
            async with Client(served.url) as client:
                call = asyncio.create_task(client.call_tool("kit__slow", {"seconds": 1.0}))
                while not await kit.executions("slow"):
                    await asyncio.sleep(0.01)
                ending = asyncio.create_task(served.stop())
                assert (await call).success
                assert await ending == 0
        finally:
            await served.stop()
