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


async def count_processes(program: ScriptedProgram, seen: set[int]) -> None:
    while True:
        seen.add(len(await program.processes()))
        await asyncio.sleep(0.01)


@pytest.mark.requirement("W8")
async def test_a_rolling_restart_loses_no_call_no_session_and_no_program(tmp_path: Path):
    """Clients of both eras call a server, and a program that one replica runs for all. The one
    replica is restarted, and the other one stopped."""
    shared = {"state": f"sqlite://{tmp_path}/state.db", "state_keys": [secrets.token_hex(32)]}
    words = "-c", "toolkeep.toml"
    done: dict[str, list[str]] = {"kit": [], "own": []}
    stopping = asyncio.Event()
    running: set[int] = set()
    async with (
        ScriptedServer.local(encoding="sse") as kit,
        ScriptedServer.stdio() as own,
        Balancer() as balancer,
    ):
        configure(tmp_path, {"kit": kit.spec, "own": {**own.spec, "replicas": "owner"}}, **shared)
        # A connection for each request, so that each goes to another replica.
        url = f"http://127.0.0.1:{balancer.port}/mcp"

        async def call(number: int) -> None:
            mode: Any = ("legacy", "modern")[number % 2]
            async with Client({"url": url, "keep_alive": 0.001, "mode": mode}) as client:
                await client.call_tool("kit__echo", {"text": "first"})
                session = client.session_id
                while not stopping.is_set():
                    for name, keys in done.items():
                        key = f"{number}/{len(keys)}"
                        result = await client.call_tool(f"{name}__record", {"key": key})
                        assert (result.attempts, result.success) == (1, True), result.text
                        keys.append(key)
                assert client.session_id == session

        async def go_on(calls: list[asyncio.Task[None]]) -> None:
            """Wait until more calls were made at each server."""
            made = {name: len(keys) for name, keys in done.items()}
            while any(len(keys) < made[name] + 10 for name, keys in done.items()):
                assert not [one.exception() for one in calls if one.done()]
                await asyncio.sleep(0.02)

        replicas = list(await asyncio.gather(*(start(tmp_path, *words) for _ in range(2))))
        balancer.ports = [one.port for one in replicas]
        counting = asyncio.create_task(count_processes(own, running))
        try:
            async with asyncio.timeout(BOUND * 2):
                calls = [asyncio.create_task(call(number)) for number in range(CALLERS)]
                await go_on(calls)
                assert await replicas[0].stop() == 0
                replicas[0] = await start(tmp_path, *words)
                balancer.ports[0] = replicas[0].port
                await go_on(calls)
                assert await replicas[1].stop() == 0
                await go_on(calls)
                stopping.set()
                await asyncio.gather(*calls)
        finally:
            stopping.set()
            counting.cancel()
            await asyncio.gather(*(one.stop() for one in replicas))
            await asyncio.wait((counting,))
        for server, keys in ((kit, done["kit"]), (own, done["own"])):
            ledger = await server.ledger()
            assert {key: ledger[key] for key in keys} == dict.fromkeys(keys, 1)
        assert max(running) == 1
        assert await own.starts() >= 2


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
