"""One log line an event: who, what, how long, and what kind of failure; never what was said."""

import asyncio
import json
import logging
import timeit
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, Era, every_era, outcome, serving
from toolkeep import CallNotDelivered, CallTimedOut, Client, ServerGroup
from toolkeep.errors import Delivery, Failure, FailureKind
from toolkeep.events import (
    Changed,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    Health,
    HealthChanged,
    InputNeeded,
    Log,
    Progress,
    Retrying,
    ServerAdded,
    ServerLost,
    ServerNotification,
    ServerRemoved,
    Started,
)
from toolkeep.results import CallResult
from toolkeep.telemetry import LogObserver
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("O1")

NAME = "toolkeep.events"


class Lines:
    """What was logged, as records."""

    def __init__(self, caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> None:
        caplog.set_level(level, logger=NAME)
        self._caplog = caplog

    @property
    def records(self) -> list[Any]:
        return [record for record in self._caplog.records if record.name == NAME]

    def of(self, event: str) -> list[Any]:
        return [record for record in self.records if record.toolkeep["event"] == event]

    def levels(self) -> dict[str, int]:
        return {record.toolkeep["event"]: record.levelno for record in self.records}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


@every_era
async def test_a_call_is_told_from_its_start_to_its_end(era: Era, lines: Lines):
    async with serving(era, "sse") as (_, client):
        client.observe(LogObserver(), listen=False)
        async with client.stream("steps", {"count": 2}) as call:
            await call.result()
    assert lines.levels() == {
        "started": logging.DEBUG,
        "connected": logging.INFO,
        "progress": logging.DEBUG,
        "completed": logging.INFO,
        "disconnected": logging.INFO,
    }
    (started,), (completed,) = lines.of("started"), lines.of("completed")
    facts = completed.toolkeep
    assert (facts["server"], facts["tool"], facts["attempts"]) == ("kit", "steps", 1)
    assert facts["call_id"] == started.toolkeep["call_id"]
    line = completed.getMessage()
    assert all(part in line for part in ("kit", "steps", facts["call_id"][:8], "ms"))
    assert facts["call_id"] not in line
    assert [record.toolkeep["fraction"] for record in lines.of("progress")] == [0.5, 1.0]


@every_era
async def test_a_failure_is_a_warning_with_its_kind_and_its_effort(era: Era, lines: Lines):
    throttled = Behaviour(status=429, headers={"retry-after": "0"})
    async with serving(era, spec={"max_retries": 1}) as (server, client):
        client.observe(LogObserver(), listen=False)
        await client.connect()
        await server.script(Rule(tool="echo", do=throttled))
        assert isinstance(await outcome(client.call_tool("echo")), CallNotDelivered)
    (replaying,), (failed,) = lines.of("retrying"), lines.of("failed")
    assert (replaying.levelno, replaying.toolkeep["attempt"]) == (logging.INFO, 1)
    assert failed.levelno == logging.WARNING
    facts = failed.toolkeep
    assert 0 < facts["duration"] < BOUND
    assert {
        name: facts[name] for name in ("error", "delivery", "attempts", "failure", "status")
    } == {
        "error": "CallNotDelivered",
        "delivery": "refused",
        "attempts": 2,
        "failure": "throttled",
        "status": 429,
    }


async def test_a_cancelled_call_is_no_warning(lines: Lines):
    async with serving("modern") as (server, client):
        client.observe(LogObserver(), listen=False)
        caller = asyncio.ensure_future(client.call_tool("slow", {"seconds": 20}))
        await server.requests(tool="slow", at_least=1)
        caller.cancel()
        await asyncio.wait((caller,), timeout=BOUND)
    assert [record.levelno for record in lines.of("failed")] == [logging.INFO]


async def test_a_group_is_told(lines: Lines):
    async with serving("modern") as (_, client):
        gone = Client({"name": "gone", "url": "http://127.0.0.1:9/mcp", "max_retries": 0})
        group = ServerGroup([client, gone], backoff=None)
        group.observe(LogObserver())
        async with asyncio.timeout(BOUND), group:
            pass
    levels = lines.levels()
    assert (levels["server_added"], levels["server_removed"]) == (logging.INFO, logging.INFO)
    (dropped,) = lines.of("server_lost")
    assert (dropped.levelno, dropped.toolkeep["server"]) == (logging.WARNING, "gone")
    assert dropped.toolkeep["failure"] == "unreachable"


CALL: dict[str, Any] = {"server": "kit", "tool": "echo", "call_id": "0123456789abcdef"}
SAID = "sekret"
"""Whatever a caller or a server says."""
FAILURE = Failure(FailureKind.BROKEN, Delivery.UNKNOWN, SAID, status=502, stderr=SAID, data=SAID)
ERROR = CallTimedOut(SAID, server="kit", attempts=2, delivery=Delivery.UNKNOWN, failure=FAILURE)
RAW = {"content": [{"type": "text", "text": SAID}], "_meta": {SAID: SAID}}
EVERY: list[Event] = [
    Started(**CALL),
    Progress(progress=1, message=SAID, **CALL),
    Progress(progress=1, total=4, message=SAID, **CALL),
    Log(level="info", data=SAID, logger=SAID, **CALL),
    Retrying(attempt=1, delay=0.5, failure=FAILURE, **CALL),
    InputNeeded(method="elicitation/create", params={"message": SAID}, **CALL),
    InputNeeded(method="roots/list", params={}, server="kit", tool="", call_id=""),
    Completed(result=CallResult(RAW, "kit", "echo", 2, 0.5), **CALL),
    Completed(result=CallResult({**RAW, "isError": True}, "kit", "echo"), **CALL),
    Completed(result=CallResult({**RAW, "resultType": "input_required"}, "kit", "echo"), **CALL),
    Failed(error=ERROR, **CALL),
    Failed(error=OSError(SAID), **CALL),
    Failed(error=asyncio.CancelledError(SAID), **CALL),
    Connected(server="kit", generation=1, era="legacy", protocol_version="1", session_id=SAID),
    Disconnected(server="kit", generation=1, reason=f"its last words: {SAID}"),
    Changed(server="kit", what="resource", uri=f"file:///{SAID}"),
    ServerNotification(server="kit", method="notifications/message", params={"data": SAID}),
    ServerAdded(server="kit", attempt=1),
    ServerLost(server="kit", error=ERROR),
    ServerRemoved(server="kit"),
    ServerRemoved(server="kit", error=OSError(SAID)),
    HealthChanged(server="kit", health=Health.DOWN, before=Health.HEALTHY, error=ERROR),
    HealthChanged(server="kit", health=Health.HEALTHY, before=Health.DOWN, latency=0.1),
    Event(server="kit"),
]


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_every_event_is_one_line_without_what_anybody_said(event: Event, lines: Lines):
    LogObserver()(event)
    (record,) = lines.records
    line = record.getMessage()
    assert line.startswith("kit: ")
    assert "\n" not in line
    assert SAID not in line + json.dumps(record.toolkeep) + repr(record.args)
    assert record.exc_info is None


class Unheard(Event):
    """A kind that is newer than the observer."""

    words = SAID


def test_an_event_of_an_unknown_kind_is_told_by_its_name_alone(lines: Lines):
    LogObserver()(Unheard(server="kit"))
    (record,) = lines.records
    assert record.getMessage() == "kit: unheard"
    assert record.toolkeep.keys() == {"event", "server", "at"}


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "x" * 500])
def test_a_name_cannot_forge_a_line(name: str, lines: Lines):
    LogObserver()(Started(server="kit", tool=name, call_id="1"))
    (record,) = lines.records
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 200


def test_a_level_can_be_chosen(lines: Lines):
    observer = LogObserver(levels={Completed: logging.DEBUG, HealthChanged: logging.ERROR})
    for event in EVERY:
        observer(event)
    levels = lines.levels()
    assert (levels["completed"], levels["health_changed"]) == (logging.DEBUG, logging.ERROR)


def test_a_logger_can_be_chosen(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="mine")
    LogObserver(logging.getLogger("mine"))(Started(**CALL))
    assert [record.name for record in caplog.records] == ["mine"]


def test_below_its_level_an_event_is_not_even_looked_at(caplog: pytest.LogCaptureFixture):
    lines = Lines(caplog, logging.CRITICAL)
    observer = LogObserver()

    class Untouchable(Event):
        @property
        def kind(self) -> str:
            raise AssertionError("somebody looked")

    observer(Untouchable(server="kit"))
    assert lines.records == []
    events = [Started(**CALL), Failed(error=ERROR, **CALL)]
    took = min(timeit.repeat(lambda: [observer(event) for event in events], number=200, repeat=5))
    assert took / 200 < 0.0005, "fifty times what it should cost"


def test_beginnings_without_an_end_do_not_pile_up(lines: Lines):
    observer = LogObserver(levels={Started: 1})
    for number in range(10_001):
        observer(Started(server="kit", tool="echo", call_id=f"{number}"))
    for number in (0, 10_000):
        observer(Failed(server="kit", tool="echo", call_id=f"{number}", error=OSError()))
    first, last = lines.of("failed")
    assert "duration" not in first.toolkeep
    assert "duration" in last.toolkeep
