"""The short form of `make fleet-gateways`, and what replicas do while their store is away."""

import asyncio
from pathlib import Path

import pytest

from chaos.gateway_fleet import Report, Told, run
from tests.gateway.front import front, next_message, wire
from tests.gateway.test_gateway_questions import NAME
from tests.state.servers import programs, running
from toolkeep.testing import ScriptedServer

PROGRAM = next(iter(programs().values()), None)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no wheel with a Redis is installed")


@pytest.mark.timeout(120)
async def test_replicas_that_are_killed_and_restarted_keep_what_is_promised(tmp_path: Path):
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as redis:
        report = await run(redis.url, clients=12, rounds=1, seconds=0.5)
    assert report.findings() == []
    phases = {told.phase for told in report.told.values()}
    assert {"between calls", "during calls", "rolling restart"} <= phases
    assert report.exits == [0, 0, 0]
    assert report.answers > 0
    assert len(report.served) == 3


async def test_an_answer_waits_for_a_store_that_is_away(tmp_path: Path):
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as redis:
        async with (
            ScriptedServer.local(era="legacy") as kit,
            front({"kit": kit.url}, replicas=2, store=redis.url) as gateway,
            wire(gateway.hosts[0]) as here,
            wire(gateway.hosts[1]) as there,
        ):
            await here.initialize(elicitation={})
            there.headers |= here.headers
            asked = {"name": "kit__ask", "arguments": {"requests": {"who": NAME}}}
            response = await here.open(here.request("tools/call", **asked))
            question = await next_message(response)
            result = {"action": "accept", "content": {"name": "Ada"}}
            redis.pause()
            try:
                answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
                answering = asyncio.create_task(there.send(answer))
                await asyncio.sleep(1.0)  # longer than the store is waited for
                assert not answering.done()
            finally:
                redis.resume()
            assert (await answering).status == 202
            told = await next_message(response)
            assert told["result"]["structuredContent"]["answers"] == [{"who": result}]
            response.close()


def test_a_report_finds_what_broke_a_promise() -> None:
    report = Report(clients=1, handshakes=2, exits=[0, 1])
    report.refused["tools/call 404"] = 1
    report.killed["during calls"].add("replica 1")
    report.told = {
        "twice": Told("calm", asks=False),
        "resent": Told("calm", asks=False, attempts=2),
        "refused": Told("rolling restart", asks=False, delivery="NOT_SENT"),
        "elsewhere": Told("during calls", asks=False, delivery="UNKNOWN"),
        "untold": Told("during calls", asks=False, delivery="ANSWERED"),
        "lost": Told("during calls", asks=True, delivery="UNKNOWN"),
    }
    report.ran = {"twice": 2, "resent": 1}
    report.worked_on = {
        "lost": {"replica 1"},
        "untold": {"replica 1", "replica 2"},
        "elsewhere": {"replica 2"},
    }
    found = report.findings()
    assert len(found) == 8
    assert not any("lost" in one for one in found)
