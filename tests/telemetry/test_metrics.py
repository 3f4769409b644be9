"""Metrics: how long calls and connections lasted, what was sent again, who came and went."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, Era, every_era, outcome
from tests.telemetry.helpers_otel import Telescope, Transport, every_transport, observed
from toolkeep import Client, ServerGroup
from toolkeep.events import Completed, Health, HealthChanged, Started
from toolkeep.results import CallResult
from toolkeep.telemetry import OpenTelemetry
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("O1")

OPERATION, SESSION = "mcp.client.operation.duration", "mcp.client.session.duration"
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
VERSIONS: dict[Era, str] = {"legacy": "2025-11-25", "modern": "2026-07-28"}


def told(points: list[Any], *names: str) -> dict[tuple[Any, ...], Any]:
    """Some attributes of each point, and how often it was measured."""
    return {
        tuple(point.attributes.get(name) for name in names): getattr(point, "count", None)
        or point.value
        for point in points
    }


@every_era
@every_transport
async def test_a_call_is_measured_in_the_recommended_buckets(
    era: Era, transport: Transport, telescope: Telescope
):
    async with observed(telescope, era, transport) as (server, client):
        for _ in range(3):
            await client.call_tool("slow", {"seconds": 0.02})
        (point,) = telescope.points(OPERATION)
        place: dict[str, Any] = {"network.transport": "pipe"}
        if transport == "http":
            place = {"server.address": "127.0.0.1", "server.port": server.port}
            place |= {"network.transport": "tcp", "network.protocol.name": "http"}
    assert (point.count, tuple(point.explicit_bounds)) == (3, BUCKETS)
    assert 0.06 <= point.sum < BOUND
    assert dict(point.attributes) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "slow",
        "mcp.protocol.version": VERSIONS[era],
        "toolkeep.server.name": "kit",
        **place,
    }


@every_era
async def test_failures_are_measured_apart_by_their_type(era: Era, telescope: Telescope):
    async with observed(telescope, era, max_retries=0) as (server, client):
        await client.call_tool("fail", {"message": "no"})
        rejected = Behaviour(error={"code": -32602, "message": "no"})
        await server.script(Rule(tool="echo", do=rejected, times=1))
        await outcome(client.call_tool("echo", {"text": "hello"}))
        await client.call_tool("echo", {"text": "hello"})
        await outcome(client.call_tool("slow", {"seconds": 20}, timeout=0.05))
    names = ("gen_ai.tool.name", "error.type", "rpc.response.status_code")
    assert told(telescope.points(OPERATION), *names) == {
        ("fail", "tool_error", None): 1,
        ("echo", "-32602", "-32602"): 1,
        ("echo", None, None): 1,
        ("slow", "CallTimedOut", None): 1,
    }


@every_era
async def test_replays_are_counted_by_what_caused_them(era: Era, telescope: Telescope):
    throttled = Behaviour(status=429, headers={"retry-after": "0"})
    async with observed(telescope, era) as (server, client):
        await client.connect()
        await server.script(Rule(tool="echo", do=throttled, times=2))
        await client.call_tool("echo", {"text": "hello"})
    points = telescope.points("toolkeep.client.retries")
    assert told(points, "gen_ai.tool.name", "error.type") == {("echo", "throttled"): 2}


@every_era
async def test_a_connection_is_measured_when_it_ends(era: Era, telescope: Telescope):
    async with observed(telescope, era) as (_, client):
        await client.connect()
        assert told(telescope.points("toolkeep.client.connections"), "toolkeep.server.name") == {
            ("kit",): 1
        }
        assert telescope.points(SESSION) == []
        await client.aclose()
        (point,) = telescope.points(SESSION)
        (still,) = telescope.points("toolkeep.client.connections")
    assert (point.count, tuple(point.explicit_bounds), still.value) == (1, BUCKETS, 0)
    assert point.attributes["mcp.protocol.version"] == VERSIONS[era]
    assert "error.type" not in point.attributes


async def test_a_lost_session_is_measured_with_its_cause(telescope: Telescope):
    async with observed(telescope, "legacy") as (server, client):
        await client.call_tool("echo", {"text": "hello"})
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "hello"})
    assert told(telescope.points(SESSION), "error.type") == {("session lost",): 1, (None,): 1}


async def test_two_clients_of_one_name_are_both_measured(telescope: Telescope):
    """As in a runtime, which has one for each principal."""
    async with observed(telescope, "legacy") as (server, client):
        observer = telescope.observer()
        others = [Client({"name": "pooled", **server.spec, "mode": "legacy"}) for _ in range(3)]
        async with asyncio.timeout(BOUND):
            for other in others:
                other.observe(observer, listen=False)
                await other.connect()
            for other in others:
                await other.aclose()
            await client.connect()
    points = told(telescope.points(SESSION), "toolkeep.server.name")
    assert points == {("pooled",): 3, ("kit",): 1}


async def test_a_group_is_counted_by_who_comes_and_goes(telescope: Telescope):
    async with observed(telescope, "modern") as (_, client):
        gone = Client({"name": "gone", "url": "http://127.0.0.1:9/mcp", "max_retries": 0})
        group = ServerGroup([client, gone], backoff=None)
        group.observe(telescope.observer())
        async with asyncio.timeout(BOUND), group:
            pass
        counted = told(
            telescope.points("toolkeep.server.events"), "toolkeep.server.name", "toolkeep.event"
        )
    assert counted[("kit", "server_added")] == 1
    assert counted[("kit", "server_removed")] == 1
    assert counted[("gone", "server_lost")] == 1


def test_a_change_of_health_is_counted_with_the_health(telescope: Telescope):
    observer = telescope.observer()
    observer(HealthChanged(server="kit", health=Health.DOWN, before=Health.HEALTHY))
    points = telescope.points("toolkeep.server.events")
    assert told(points, "toolkeep.event", "toolkeep.health") == {("health_changed", "down"): 1}


def test_invented_tool_names_do_not_grow_the_metrics_without_end(telescope: Telescope):
    observer = telescope.observer()
    result = CallResult({}, "kit", "any")
    for number in range(1_010):
        tool, call_id = f"invented {number}", f"{number}"
        observer(Started(server="kit", tool=tool, call_id=call_id))
        observer(Completed(server="kit", tool=tool, call_id=call_id, result=result))
    points = told(telescope.points(OPERATION), "gen_ai.tool.name")
    assert (len(points), points[("_OTHER",)]) == (1_001, 10)


async def test_an_observer_that_comes_late_measures_what_it_saw_begin(telescope: Telescope):
    async with observed(telescope, "modern") as (_, client):
        await client.connect()
        late = Telescope()
        client.observe(late.observer(), listen=False)
        await client.aclose()
    assert late.points(SESSION) == []
    assert len(telescope.points(SESSION)) == 1
    late.close()


async def test_without_providers_the_global_ones_are_used_which_may_do_nothing():
    async with observed(Telescope(), "modern") as (_, client):
        client.observe(OpenTelemetry(), listen=False)
        assert (await client.call_tool("echo", {"text": "hello"})).text == "hello"


def test_without_the_api_there_is_an_error_that_names_the_extra():
    code = """
import sys
sys.modules["opentelemetry"] = None
import toolkeep
from toolkeep.telemetry import LogObserver, OpenTelemetry
LogObserver()
try:
    OpenTelemetry()
except toolkeep.ConfigError as error:
    print(error.remedy)
"""
    assert "its extra `otel`" in python(code)


def test_importing_toolkeep_or_its_telemetry_does_not_import_opentelemetry():
    code = "import toolkeep, toolkeep.telemetry, sys; print('opentelemetry' in sys.modules)"
    assert python(code).split() == ["False"]


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
