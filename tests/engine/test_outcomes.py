"""Every failed call says whether it ran, and over several attempts the worst counts."""

import asyncio
import inspect
from contextlib import aclosing
from typing import Any

import pytest

import toolkeep
from tests.engine.support import client_for, encodings, eras, failure_of, talking
from toolkeep import (
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.errors import Delivery, FailureKind
from toolkeep.events import Event, Retrying
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P1")

KEY = "the one call"
TOOL = "record_read_only"
LOST_ANSWER = Behaviour(drop="after_run")


def first_lost_then(later: Behaviour) -> tuple[Rule, Rule]:
    return Rule(tool=TOOL, times=1, do=LOST_ANSWER), Rule(tool=TOOL, do=later)


def is_unknown(error: ToolkeepError) -> bool:
    return isinstance(error, CallOutcomeUnknown) and error.delivery is Delivery.UNKNOWN


ERRORS = [
    kind
    for kind in vars(toolkeep.errors).values()
    if inspect.isclass(kind) and issubclass(kind, ToolkeepError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_asked_whether_the_call_ran(kind: type[ToolkeepError]):
    given = {"server": "kit", "delivery": Delivery.REFUSED, "result": {}, "tool": "record"}
    given |= {
        "attempts": 1,
        "requests": {},
        "store": "memory:",
        "candidates": ("a.record", "b.record"),
    }
    wanted = inspect.signature(kind.__init__).parameters
    error = kind("trouble", **{name: value for name, value in given.items() if name in wanted})
    assert isinstance(error.delivery, Delivery)


# -- the worst counts -------------------------------------------------------------------------


@eras
@encodings
@pytest.mark.parametrize(
    "later",
    [
        Behaviour(status=400, body="bad"),
        Behaviour(status=401),
        Behaviour(status=403),
        Behaviour(status=429),
        Behaviour(status=503, headers={"retry-after": "3600"}),
        Behaviour(status=404),
        Behaviour(error={"code": -32000, "message": "no"}),
    ],
    ids=["400", "401", "403", "429", "503 with Retry-After", "404", "an error"],
)
async def test_a_later_refusal_never_hides_an_earlier_doubt(
    era: Any, encoding: Any, later: Behaviour
):
    async with talking({"max_retries": 1}, era=era, encoding=encoding) as (server, client):
        await client.list_tools()
        await server.script(*first_lost_then(later))
        error = await failure_of(client.call_tool(TOOL, {"key": KEY}))
        assert is_unknown(error)
        assert error.failure is not None
        assert error.failure.delivery is not Delivery.UNKNOWN
        assert len(await server.requests("tools/call")) == 2
        assert await server.executions(KEY) == 1


@eras
async def test_a_server_that_is_gone_at_the_replay_does_not_hide_an_earlier_doubt(era: Any):
    async with (
        ScriptedServer.local(era=era) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        client_for(proxy.url(), {"max_retries": 1}) as client,
    ):
        await client.list_tools()
        await server.script(Rule(tool=TOOL, do=LOST_ANSWER))
        client.observe(lambda event: go_away(event, proxy), listen=False)
        error = await failure_of(client.call_tool(TOOL, {"key": KEY}))
        assert is_unknown(error)
        assert error.failure is not None
        assert error.failure.kind is FailureKind.UNREACHABLE
        assert await server.executions(KEY) == 1


def go_away(event: Event, proxy: FaultProxy) -> None:
    if isinstance(event, Retrying):
        proxy.refuse()


async def test_a_failed_replacement_does_not_hide_an_earlier_doubt():
    async with talking({"max_retries": 2}, era="legacy") as (server, client):
        await client.list_tools()
        gone = Rule(method="initialize", do=Behaviour(status=400, body="bad"))
        await server.script(*first_lost_then(Behaviour(status=404)), gone)
        error = await failure_of(client.call_tool(TOOL, {"key": KEY}))
        assert is_unknown(error)
        assert not client.is_initialized
        assert await server.executions(KEY) == 1


async def test_an_open_breaker_does_not_hide_an_earlier_doubt():
    async with talking({"breaker_threshold": 1, "breaker_cooldown": 30.0}) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool=TOOL, do=LOST_ANSWER))
        error = await failure_of(client.call_tool(TOOL, {"key": KEY}))
        assert is_unknown(error)
        assert await server.executions(KEY) == 1


class Forgetful:
    """An authorizer that fails once it was told to."""

    fails = False

    async def headers(self, request: AuthRequest) -> Any:
        if self.fails:
            raise LookupError("no token today")
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


async def test_an_authorizer_that_fails_at_the_replay_does_not_hide_an_earlier_doubt():
    auth = Forgetful()
    async with talking(auth=auth) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool=TOOL, do=LOST_ANSWER))
        client.observe(lambda event: forget(event, auth), listen=False)
        assert is_unknown(await failure_of(client.call_tool(TOOL, {"key": KEY})))
        assert await server.executions(KEY) == 1


def forget(event: Event, auth: Forgetful) -> None:
    auth.fails = isinstance(event, Retrying)


async def test_a_deadline_that_passes_before_the_replay_does_not_hide_an_earlier_doubt():
    settings = {"max_in_flight": 1}
    async with talking(settings) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool=TOOL, do=LOST_ANSWER))
        crowd: set[asyncio.Task[Any]] = set()

        def take_the_only_place(event: Event) -> None:
            if isinstance(event, Retrying) and not crowd:
                crowd.add(asyncio.create_task(client.call_tool("slow", {"seconds": 60})))

        client.observe(take_the_only_place, listen=False)
        error = await failure_of(client.call_tool(TOOL, {"key": KEY}, timeout=0.6))
        assert isinstance(error, CallTimedOut)
        assert error.delivery is Delivery.UNKNOWN
        assert await server.executions(KEY) == 1
        await server.skip_delays()
        await asyncio.wait_for(crowd.pop(), 5.0)


# -- deadlines --------------------------------------------------------------------------------


@pytest.mark.requirement("P3")
@pytest.mark.parametrize(
    ("step", "slowly"),
    [
        ("server/discover", Behaviour(delay=1.0, status=404)),
        ("initialize", Behaviour(delay=1.0)),
        ("notifications/initialized", Behaviour(delay=1.0)),
    ],
)
async def test_a_deadline_that_passes_while_connecting_is_not_delivered(
    step: str, slowly: Behaviour
):
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(method=step, times=1, do=slowly))
        async with asyncio.timeout(0.9):
            error = await failure_of(client.call_tool("record", {"key": KEY}, timeout=0.2))
        assert isinstance(error, CallNotSentInTime)
        assert isinstance(error, TimeoutError)
        assert error.delivery is Delivery.NOT_SENT
        assert await server.requests("tools/call") == []
        await client.call_tool("record", {"key": KEY})
        assert await server.executions(KEY) == 1


@pytest.mark.requirement("P3", "P9")
async def test_a_deadline_that_passes_while_waiting_for_a_place_is_not_delivered():
    async with talking({"max_in_flight": 1}) as (server, client):
        first = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", at_least=1)
        error = await failure_of(client.call_tool("record", {"key": KEY}, timeout=0.2))
        assert isinstance(error, CallNotSentInTime)
        assert error.delivery is Delivery.NOT_SENT
        assert not first.done()
        await server.skip_delays()
        await asyncio.wait_for(first, 5.0)
        assert await server.executions(KEY) == 0


@pytest.mark.requirement("P3")
async def test_a_deadline_that_passes_on_an_address_that_never_answers_is_not_delivered():
    async with ScriptedServer.local() as server, FaultProxy.to("127.0.0.1", server.port) as proxy:
        proxy.stall()
        client = client_for(proxy.url())
        error = await failure_of(client.call_tool("record", {"key": KEY}, timeout=0.3))
        assert isinstance(error, CallNotSentInTime)
        await client.aclose()
        assert await server.executions(KEY) == 0


@eras
@encodings
@pytest.mark.parametrize("tool", ["record", TOOL])
async def test_a_deadline_that_passes_at_the_server_is_unknown_and_never_replayed(
    era: Any, encoding: Any, tool: str
):
    async with talking(era=era, encoding=encoding) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool=tool, do=Behaviour(hang=True)))
        error = await failure_of(client.call_tool(tool, {"key": KEY}, timeout=0.2))
        assert isinstance(error, CallTimedOut)
        assert (error.delivery, error.attempts) == (Delivery.UNKNOWN, 1)
        assert await server.executions(KEY) == 1


# -- plain truths -----------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_delivered():
    async with ScriptedServer.local() as server, FaultProxy.to("127.0.0.1", server.port) as proxy:
        proxy.refuse()
        async with aclosing(client_for(proxy.url(), {"max_retries": 1})) as client:
            error = await failure_of(client.call_tool("record", {"key": KEY}))
            assert isinstance(error, ServerUnavailable)
            assert error.delivery is Delivery.NOT_SENT
            await proxy.heal()
            await client.call_tool("record", {"key": KEY})
        assert await server.executions(KEY) == 1


@eras
@encodings
async def test_a_tool_that_fails_has_answered(era: Any, encoding: Any):
    async with talking(era=era, encoding=encoding) as (server, client):
        result = await client.call_tool("fail", {"message": "sorry", "key": KEY})
        assert (result.is_error, result.attempts) == (True, 1)
        assert await server.executions(KEY) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "delivery"),
    [
        (Behaviour(status=400, body="bad"), CallNotDelivered, Delivery.REFUSED),
        (Behaviour(error={"code": 7, "message": "no"}), CallRejected, Delivery.ANSWERED),
        (Behaviour(status=500), CallOutcomeUnknown, Delivery.UNKNOWN),
    ],
    ids=["refused", "rejected", "unknown"],
)
@pytest.mark.parametrize("method", ["tools/list", "resources/list"])
async def test_other_requests_tell_the_truth_as_well(
    answer: Behaviour, kind: type[ToolkeepError], delivery: Delivery, method: str
):
    async with talking({"max_retries": 0}) as (server, client):
        await client.connect()
        await server.script(Rule(method=method, do=answer))
        error = await failure_of(client.request(method))
        assert isinstance(error, kind)
        assert error.delivery is delivery


@eras
async def test_what_a_server_of_the_python_sdk_cuts_off_at_its_end_may_have_run(era: Any):
    cut_off = Behaviour(error={"code": -32000, "message": "Connection closed"})
    async with talking(era=era) as (server, client):
        await server.script(Rule(tool="record", do=cut_off))
        assert is_unknown(await failure_of(client.call_tool("record")))
