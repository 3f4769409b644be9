"""A lost session: what it costs, what counts as one, and what it must not spoil."""

import asyncio
from typing import Any

import pytest

from tests.engine.support import (
    PATIENCE,
    client_for,
    encodings,
    failure_of,
    methods,
    talking,
    together,
)
from toolkeep import (
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.client import SessionLostRule
from toolkeep.errors import Delivery, FailureKind
from toolkeep.testing import ALL_LOSSES, Behaviour, Rule, ScriptedServer, SessionLoss

REPLACEMENT = ["initialize", "notifications/initialized"]
GONE_FISHING = SessionLoss(status=410, body="gone fishing", content_type="text/plain")


def record(client: Client, key: str) -> Any:
    return client.call_tool("record", {"key": key})


async def opened(server: ScriptedServer, client: Client) -> str | None:
    """Open, forget what it took, and say which session it was."""
    await record(client, "opening")
    await server.clear()
    return client.session_id


# -- what it costs ----------------------------------------------------------------------------


@pytest.mark.requirement("S4", "S5", "S8")
@pytest.mark.parametrize("loss", ALL_LOSSES)
@encodings
async def test_a_lost_session_costs_two_requests_on_the_same_connection(loss: str, encoding: Any):
    known = ALL_LOSSES[loss]
    async with talking(era="legacy", encoding=encoding, session_loss=known) as (server, client):
        old = await opened(server, client)
        await server.forget_sessions()
        result = await record(client, "lost")
        seen = await server.requests()
        assert methods(seen) == ["tools/call", *REPLACEMENT, "tools/call"]
        assert len({request.socket for request in seen}) == 1
        assert await server.connections() == 1
        sessions = [request.session_id for request in seen]
        assert sessions == [old, None, client.session_id, client.session_id]
        assert old != client.session_id is not None
        assert result.attempts == 2
        assert await server.executions("lost") == 1


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "ping"])
async def test_every_request_survives_a_lost_session(method: str):
    async with talking(era="legacy") as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        await client.request(method)
        assert methods(await server.requests()) == [method, *REPLACEMENT, method]


@pytest.mark.requirement("S4", "S6")
async def test_those_who_only_listen_get_the_next_session_too():
    async with talking({"listen": True}, era="legacy") as (server, client):
        old = await opened(server, client)
        await server.notify("notifications/tools/list_changed", listeners=1)
        await server.restart()
        assert await server.notify("notifications/tools/list_changed", listeners=1) == 1
        assert client.session_id not in (None, old)
        assert methods(await server.requests()).count("initialize") == 1


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("era", ["legacy", "modern", "both"])
async def test_the_next_call_after_a_restart_of_the_server_succeeds(era: Any):
    async with ScriptedServer.spawn(era=era) as server, client_for(server.url) as client:
        await record(client, "before")
        await server.restart()
        async with asyncio.timeout(PATIENCE):
            await record(client, "after")
        assert await server.ledger() == {"before": 1, "after": 1}
        assert len(await server.requests("initialize")) == (2 if era == "legacy" else 0)
        assert len(await server.requests("server/discover")) == 1


# -- what counts as one -----------------------------------------------------------------------


@pytest.mark.requirement("S5")
async def test_a_404_that_answers_this_very_request_is_an_answer():
    async with talking(era="legacy") as (server, client):
        session = await opened(server, client)
        unknown = Behaviour(status=404, error={"code": -32601, "message": "Method not found"})
        await server.script(Rule(method="tools/call", do=unknown))
        error = await failure_of(record(client, "no"))
        assert isinstance(error, CallRejected)
        assert (error.code, error.status, error.delivery) == (-32601, 404, Delivery.ANSWERED)
        assert methods(await server.requests()) == ["tools/call"]
        assert client.session_id == session


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("about", ["null", "other"])
async def test_a_404_that_answers_nobody_is_a_lost_session(about: Any):
    async with talking(era="legacy") as (server, client):
        await opened(server, client)
        error = {"code": -32601, "message": "Method not found"}
        gone = Behaviour(status=404, error=error, error_id=about)
        await server.script(Rule(method="tools/call", times=1, do=gone))
        await record(client, "again")
        assert methods(await server.requests()) == ["tools/call", *REPLACEMENT, "tools/call"]


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("known", [True, False])
async def test_a_user_can_say_what_else_means_that_the_session_is_gone(known: bool):
    rows = [SessionLostRule("our gateway", status=410, pattern="fishing")] if known else []
    options: dict[str, Any] = {"era": "legacy", "session_loss": GONE_FISHING}
    async with talking(session_lost_rules=rows, **options) as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        (outcome,) = await together(record(client, "fish"))
        assert isinstance(outcome, CallNotDelivered) != known
        replaced = [*REPLACEMENT, "tools/call"] if known else []
        assert methods(await server.requests()) == ["tools/call", *replaced]
        assert await server.executions("fish") == known


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("options", [{"era": "legacy", "sessions": False}, {"era": "modern"}])
@pytest.mark.parametrize("loss", ["BARE_404", "GO_SDK", "PYTHON_SDK", "TYPESCRIPT_400"])
async def test_a_request_that_carried_no_session_has_lost_none(options: Any, loss: str):
    known = ALL_LOSSES[loss]
    async with talking(**options) as (server, client):
        await opened(server, client)
        answer = Behaviour(status=known.status, body=known.body, content_type=known.content_type)
        await server.script(Rule(method="tools/call", do=answer))
        error = await failure_of(record(client, "no"))
        assert error.failure is not None
        assert error.failure.kind is not FailureKind.SESSION_LOST
        assert methods(await server.requests()) == ["tools/call"]
        assert client.is_initialized


# -- our id is answered in other words ---------------------------------------------------------

CHARGED = "card declined after checkout session cs_12 was charged"
ANSWERED_OTHERWISE = [
    (400, -32000, CHARGED),
    (400, -32602, CHARGED),
    (400, 32600, CHARGED),
    (404, -32000, "no such order"),
    (404, -32001, "Session not found in the booking system"),
    (200, 32600, CHARGED),
    (200, 32600, "Session terminated after the payment"),
]
otherwise = pytest.mark.parametrize(("status", "code", "text"), ANSWERED_OTHERWISE)


def ran(status: int, code: int, text: str, **more: Any) -> Behaviour:
    return Behaviour(run=True, status=status, error={"code": code, "message": text}, **more)


@pytest.mark.requirement("S5", "P1", "P2")
@pytest.mark.parametrize("replay", ["safe", "never"])
@otherwise
async def test_a_call_answered_in_words_about_a_session_runs_once(
    replay: str, status: int, code: int, text: str
):
    async with talking({"retry": replay}, era="legacy") as (server, client):
        session = await opened(server, client)
        await server.script(Rule(tool="record", do=ran(status, code, text)))
        error = await failure_of(record(client, "pay"))
        assert isinstance(error, CallRejected)
        assert (error.code, error.delivery, error.attempts) == (code, Delivery.ANSWERED, 1)
        assert error.failure is not None
        assert error.failure.kind is FailureKind.REJECTED
        assert methods(await server.requests()) == ["tools/call", "ping"]
        assert client.session_id == session
        assert await server.executions("pay") == 1


@pytest.mark.requirement("P2")
@pytest.mark.parametrize("code", [-32020, -32022])
@pytest.mark.parametrize("status", [200, 400])
async def test_a_legacy_servers_own_code_sends_nothing_again(code: int, status: int):
    async with talking({"retry": "never"}, era="legacy") as (server, client):
        session = await opened(server, client)
        await server.script(Rule(tool="record", do=ran(status, code, "a meaning of its own")))
        error = await failure_of(record(client, "pay"))
        assert isinstance(error, CallRejected)
        assert methods(await server.requests()) == ["tools/call"]
        assert (client.session_id, await server.executions("pay")) == (session, 1)


UNHEARD_OF = SessionLoss(
    status=400,
    body='{"jsonrpc":"2.0","id":{id},"error":{"code":-32055,"message":"session {session}?"}}',
)


@pytest.mark.requirement("S5", "S6")
@pytest.mark.parametrize("count", [1, 20])
async def test_a_session_that_its_check_finds_gone_is_replaced_and_the_call_is_not_sent_again(
    count: int,
):
    async with talking(era="legacy", session_loss=UNHEARD_OF) as (server, client):
        old = await opened(server, client)
        await server.forget_sessions()
        outcomes = await together(*(record(client, f"call {n}") for n in range(count)))
        assert {type(outcome) for outcome in outcomes} == {CallRejected}
        assert {outcome.delivery for outcome in outcomes} == {Delivery.ANSWERED}
        assert (await record(client, "next")).attempts == 1
        assert client.session_id not in (None, old)
        asked = methods(await server.requests())
        assert (asked.count("ping"), asked.count("initialize")) == (1, 1)
        assert await server.ledger() == {"opening": 1, "next": 1}


@pytest.mark.requirement("S5", "P2")
@pytest.mark.parametrize("policy", [{"retry": "safe"}, {"retry_tools": {"record": "always"}}])
async def test_a_call_that_may_be_repeated_goes_again_once_the_session_is_found_gone(policy: Any):
    tool = "record_read_only" if "retry" in policy else "record"
    async with talking(policy, era="legacy", session_loss=UNHEARD_OF) as (server, client):
        await client.list_tools()
        await opened(server, client)
        await server.forget_sessions()
        assert (await client.call_tool(tool, {"key": "again"})).attempts == 2
        assert methods(await server.requests())[:2] == ["tools/call", "ping"]


@pytest.mark.requirement("S5", "P1")
async def test_a_doubted_call_that_was_sent_again_and_lost_has_an_unknown_outcome():
    settings = {"retry": "always", "max_retries": 1}
    async with talking(settings, era="legacy", session_loss=UNHEARD_OF) as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        await server.script(Rule(method="tools/call", skip=1, do=Behaviour(status=422)))
        error = await failure_of(record(client, "pay"))
        assert isinstance(error, CallOutcomeUnknown)
        assert (error.delivery, error.attempts) == (Delivery.UNKNOWN, 2)


@pytest.mark.requirement("S5", "P3")
async def test_a_check_that_hangs_ends_with_the_calls_own_deadline_and_its_answer_is_told():
    async with talking(era="legacy") as (server, client):
        await opened(server, client)
        await server.script(
            Rule(tool="record", times=1, do=ran(400, -32000, CHARGED)),
            Rule(method="ping", do=Behaviour(hang=True)),
        )
        error = await failure_of(client.call_tool("record", {"key": "pay"}, timeout=0.5))
        assert isinstance(error, CallRejected)
        assert error.delivery is Delivery.ANSWERED


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("status", [500, 404])
async def test_a_session_whose_check_fails_is_replaced(status: int):
    async with talking(era="legacy") as (server, client):
        old = await opened(server, client)
        await server.script(
            Rule(tool="record", times=1, do=ran(400, -32000, CHARGED)),
            Rule(method="ping", do=Behaviour(status=status)),
        )
        assert isinstance(await failure_of(record(client, "pay")), CallRejected)
        assert (await record(client, "next")).attempts == 1
        assert client.session_id not in (None, old)
        assert await server.executions("pay") == 1


@pytest.mark.requirement("P10")
async def test_a_check_waits_for_its_place_in_line():
    async with talking({"serialize": True}, era="legacy") as (server, client):
        await opened(server, client)
        await server.script(Rule(tool="record", times=1, do=ran(400, -32000, CHARGED)))
        first = asyncio.create_task(record(client, "pay"))
        second = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", "slow", at_least=1)
        assert "ping" not in methods(await server.requests())
        await server.skip_delays()
        paid, slept = await together(first, second)
        assert isinstance(paid, CallRejected)
        assert slept.text == "done"


# -- many at once -----------------------------------------------------------------------------


@pytest.mark.requirement("S6")
@encodings
async def test_a_hundred_losers_of_one_session_replace_it_once(encoding: Any):
    async with talking(era="legacy", encoding=encoding) as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        results = await together(*(record(client, f"call {n}") for n in range(100)))
        assert [getattr(result, "text", result) for result in results] == ["recorded"] * 100
        asked = methods(await server.requests())
        assert [asked.count(method) for method in REPLACEMENT] == [1, 1]
        ran = await server.ledger()
        assert [ran[f"call {n}"] for n in range(100)] == [1] * 100


@pytest.mark.requirement("S6")
async def test_one_who_learns_late_of_the_loss_does_not_replace_the_replacement():
    async with talking(era="legacy") as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        late = Behaviour(status=404, delay=0.3)
        await server.script(Rule(tool="record", times=1, do=late))
        straggler = asyncio.create_task(record(client, "late"))
        await server.requests("tools/call", at_least=1)
        await record(client, "early")
        new = client.session_id
        async with asyncio.timeout(PATIENCE):
            assert (await straggler).attempts == 2
        assert client.session_id == new
        assert len(await server.requests("initialize")) == 1
        assert (await server.executions("late"), await server.executions("early")) == (1, 1)


@pytest.mark.requirement("S6")
@encodings
async def test_calls_that_run_on_the_old_session_finish_there(encoding: Any):
    async with talking(era="legacy", encoding=encoding) as (server, client):
        old = await opened(server, client)
        keys = [f"slow {n}" for n in range(3)]
        slow = [
            asyncio.create_task(client.call_tool("slow", {"seconds": 60, "key": key}))
            for key in keys
        ]
        await server.requests("tools/call", "slow", at_least=3)
        await server.forget_sessions()
        await record(client, "new")
        assert not any(call.done() for call in slow)
        assert client.session_id != old
        await server.skip_delays()
        results = await together(*slow)
        assert [(result.text, result.attempts) for result in results] == [("done", 1)] * 3
        assert [await server.executions(key) for key in keys] == [1, 1, 1]
        assert {r.session_id for r in await server.requests("tools/call", "slow")} == {old}
        new = client.session_id
        await client.aclose()
        ended = [r.session_id for r in await server.requests() if r.http_method == "DELETE"]
        assert ended == [new]


@pytest.mark.requirement("S6")
async def test_a_session_that_is_given_up_is_ended_only_after_its_last_call():
    async with talking(era="legacy") as (server, client):
        old = await opened(server, client)
        slow = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", "slow", at_least=1)
        error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
        other_version = Behaviour(status=400, error=error)
        await server.script(Rule(tool="record", times=1, do=other_version))
        await record(client, "new")
        assert client.session_id not in (None, old)
        assert not slow.done()
        assert "DELETE" not in methods(await server.requests())
        await server.skip_delays()
        assert [result.text for result in await together(slow)] == ["done"]
        new = client.session_id
        await client.aclose()
        ended = [r.session_id for r in await server.requests() if r.http_method == "DELETE"]
        assert sorted(ended, key=str) == sorted([old, new], key=str)


# -- what it must not spoil -------------------------------------------------------------------


@pytest.mark.requirement("S7", "S8")
@pytest.mark.parametrize(
    ("step", "trouble"),
    [
        # A 500 on notifications/initialized fails no opening.
        pytest.param("initialize", Behaviour(status=500), id="initialize-500"),
        *(
            pytest.param(step, trouble, id=f"{step}-{name}")
            for step in REPLACEMENT
            for name, trouble in {
                "reset": Behaviour(drop="after_body", reset=True),
                "429": Behaviour(status=429),
            }.items()
        ),
    ],
)
async def test_a_failed_replacement_leaves_the_client_usable(step: str, trouble: Behaviour):
    async with talking({"max_retries": 1}, era="legacy") as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        await server.script(Rule(method=step, times=1, do=trouble))
        error = await failure_of(record(client, "first"))
        assert isinstance(error, ServerUnavailable)
        assert (error.delivery, error.status) == (Delivery.NOT_SENT, trouble.status)
        assert (client.is_initialized, client.session_id) == (False, None)
        assert (await record(client, "second")).attempts == 1
        assert client.is_initialized
        assert (await server.executions("first"), await server.executions("second")) == (0, 1)


@pytest.mark.requirement("S7")
async def test_a_replacement_that_fails_once_costs_the_call_nothing_but_a_replay():
    async with talking({"max_retries": 2}, era="legacy") as (server, client):
        await opened(server, client)
        await server.forget_sessions()
        await server.script(Rule(method="initialize", times=1, do=Behaviour(status=503)))
        assert (await record(client, "patient")).attempts == 3
        assert await server.executions("patient") == 1


@pytest.mark.requirement("S7")
async def test_a_session_that_is_lost_during_its_own_handshake_is_replaced_as_well():
    async with talking({"max_retries": 1}, era="legacy") as (server, client):
        elsewhere = Rule(method="notifications/initialized", times=1, do=Behaviour(status=404))
        await server.script(elsewhere)
        assert (await record(client, "patient")).attempts == 2
        assert len(await server.requests("initialize")) == 2


@pytest.mark.requirement("S7")
@pytest.mark.parametrize("replays", [0, 1, 2, 3])
@pytest.mark.parametrize("status", [404, 429])
async def test_max_replays_is_honoured_exactly(replays: int, status: int):
    async with talking({"max_retries": replays}, era="legacy") as (server, client):
        await opened(server, client)
        wait = {"retry-after": "0"} if status == 429 else None
        gone = Behaviour(status=status, headers=wait)
        await server.script(Rule(method="tools/call", times=replays + 1, do=gone))
        error = await failure_of(record(client, "never"))
        assert isinstance(error, CallNotDelivered)
        assert (error.attempts, error.status) == (replays + 1, status)
        assert error.delivery is Delivery.REFUSED
        assert len(await server.requests("tools/call")) == replays + 1
        assert (await record(client, "then")).attempts == 1
        assert (await server.executions("never"), await server.executions("then")) == (0, 1)


@pytest.mark.requirement("S7")
@encodings
async def test_an_error_outside_of_the_table_reaches_the_caller_unchanged(encoding: Any):
    async with talking(era="legacy", encoding=encoding) as (server, client):
        session = await opened(server, client)
        said = {"code": -32050, "message": "no session of parliament today", "data": {"why": [1]}}
        await server.script(Rule(method="tools/call", do=Behaviour(error=said)))
        error: ToolkeepError = await failure_of(record(client, "no"))
        assert isinstance(error, CallRejected)
        assert error.failure is not None
        told = (error.code, error.failure.message, error.data)
        assert told == (said["code"], said["message"], said["data"])
        assert (error.attempts, error.delivery) == (1, Delivery.ANSWERED)
        assert methods(await server.requests()) == ["tools/call"]
        assert client.session_id == session


@pytest.mark.requirement("S4", "P9")
async def test_stranded_sessions_are_left_and_new_ones_are_served():
    async with talking({"max_retries": 0}, era="legacy") as (server, client):
        old = await opened(server, client)
        await server.strand_sessions()
        error = await failure_of(record(client, "lost"))
        assert (error.status, error.delivery) == (502, Delivery.UNKNOWN)
        await failure_of(client.ping())
        assert (await record(client, "next")).attempts == 1
        assert client.session_id not in (None, old)
        assert await server.executions("lost") == 0


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("after", [0.0, 0.01])
async def test_an_answer_that_comes_twice_answers_one_call(after: float):
    async with talking(era="legacy") as (server, client):
        await opened(server, client)
        twice = Behaviour(encoding="json", repeat_after=after)
        await server.script(Rule(tool="echo", times=1, do=twice))
        assert (await client.call_tool("echo", {"text": "one"})).text == "one"
        (second,) = await together(client.call_tool("echo", {"text": "two"}))
        assert isinstance(second, CallOutcomeUnknown) or second.text == "two"
        assert (await client.call_tool("echo", {"text": "three"})).text == "three"
