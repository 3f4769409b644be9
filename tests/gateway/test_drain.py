"""Replicas that are restarted, one after the other, behind plain round robin: no call is lost."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.serving import BOUND, Balancer, Served, configure, start
from toolkeep import Client
from toolkeep.testing import ScriptedServer
from toolkeep.testing.scripted import ScriptedProgram

pytestmark = [pytest.mark.requirement("W7"), pytest.mark.timeout(90)]

CALLERS = 4


async def restart_under_load(kit: ScriptedServer, spec: dict[str, Any], folder: Path) -> None:
    """Restart two replicas, one after the other, while clients of both eras call."""
    shared = {"state": f"sqlite://{folder}/state.db", "state_keys": [secrets.token_hex(32)]}
    configure(folder, {"kit": spec}, **shared)
    words = "-c", "toolkeep.toml"
    done: list[str] = []
    stopping = asyncio.Event()
    async with Balancer() as balancer:
        # A connection for each request, so that each goes to another replica.
        url = f"http://127.0.0.1:{balancer.port}/mcp"

        async def call(number: int) -> None:
            mode: Any = ("legacy", "modern")[number % 2]
            async with Client({"url": url, "keep_alive": 0.001, "mode": mode}) as client:
                await client.call_tool("kit__echo", {"text": "first"})
                session = client.session_id
                while not stopping.is_set():
                    key = f"{number}/{len(done)}"
                    result = await client.call_tool("kit__record", {"key": key})
                    assert (result.attempts, result.success) == (1, True), result.text
                    done.append(key)
                assert client.session_id == session

        replicas = list(await asyncio.gather(*(start(folder, *words) for _ in range(2))))
        balancer.ports = [one.port for one in replicas]
        try:
            async with asyncio.timeout(BOUND * 2):
                calls = [asyncio.create_task(call(number)) for number in range(CALLERS)]
                for place in range(2):
                    made = len(done)
                    while len(done) < made + 20:
                        assert not [one.exception() for one in calls if one.done()]
                        await asyncio.sleep(0.02)
                    assert await replicas[place].stop() == 0
                    replicas[place] = await start(folder, *words)
                    balancer.ports[place] = replicas[place].port
                stopping.set()
                await asyncio.gather(*calls)
        finally:
            stopping.set()
            await asyncio.gather(*(one.stop() for one in replicas))
    assert len(done) > 40
    ledger = await kit.ledger()
    assert {key: ledger[key] for key in done} == dict.fromkeys(done, 1)


async def test_a_rolling_restart_loses_no_call_and_no_session(tmp_path: Path):
    async with ScriptedServer.local(encoding="sse") as kit:
        await restart_under_load(kit, kit.spec, tmp_path)


@pytest.mark.requirement("W8")
async def test_a_rolling_restart_hands_over_a_program_without_losing_a_call(tmp_path: Path):
    most = 0

    async def count(kit: ScriptedProgram) -> None:
        nonlocal most
        while True:
            most = max(most, len(await kit.processes()))
            await asyncio.sleep(0.01)

    async with ScriptedServer.stdio() as kit:
        counting = asyncio.create_task(count(kit))
        await restart_under_load(kit, {**kit.spec, "replicas": "owner"}, tmp_path)
        counting.cancel()
        await asyncio.wait((counting,))
        assert await kit.starts() >= 2
    assert most == 1


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
