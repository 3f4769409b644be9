"""`aclose` frees everything, at once, whatever is going on; and the client can start again."""

import asyncio
import contextlib
import itertools

import anyio
import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    LONG,
    PROMPT,
    Encoding,
    Era,
    Took,
    assert_stays_closed,
    black_hole,
    client_of,
    closing,
    every_encoding,
    every_era,
    outcome,
    serving,
    until,
)
from tests.engine.helpers_wire import handshake, http, read_request, result_for
from toolkeep import (
    CallNotDelivered,
    CallOutcomeUnknown,
    CallResult,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.events import Event, Retrying
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("S9")


@every_encoding
@every_era
async def test_closing_frees_all_and_the_next_use_starts_from_scratch(era: Era, encoding: Encoding):
    async with serving(era, encoding) as (server, client):
        for round_ in (1, 2, 3):
            assert (await client.call_tool("echo", {"text": "x"})).text == "x"
            assert client.is_initialized
            await client.aclose()
            await assert_stays_closed(server, client)
            assert len(await server.requests(HANDSHAKE[era])) == round_
        sessions = {record.session_id for record in await server.requests(tool="echo")}
        assert len(sessions) == (3 if era == "legacy" else 1)


@every_era
async def test_closing_is_repeatable_also_at_the_same_time_and_when_never_opened(era: Era):
    async with serving(era) as (server, client):
        await client.aclose()
        assert await server.connections() == 0
        await client.connect()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(client.aclose() for _ in range(10)))
            await client.aclose()
        verbs = [record.http_method for record in await server.requests()]
        assert verbs.count("DELETE") == (1 if era == "legacy" else 0)
        await assert_stays_closed(server, client)


@every_era
async def test_closing_during_the_handshake_is_prompt_and_honest(era: Era):
    async with serving(era) as (server, client):
        await server.script(Rule(method=HANDSHAKE[era], do=Behaviour(delay=LONG)))
        callers = [asyncio.create_task(client.call_tool("record")) for _ in range(5)]
        await server.requests(HANDSHAKE[era], at_least=1)
        with Took() as took:
            await asyncio.create_task(client.aclose())
            errors = [await outcome(caller) for caller in callers]
        assert took.seconds < PROMPT
        assert {type(error) for error in errors} == {ServerUnavailable}
        assert len(await server.requests(HANDSHAKE[era])) == 1
        # "The initialize request MUST NOT be cancelled by clients" (2025-11-25).
        assert await server.requests("notifications/cancelled") == []
        await assert_stays_closed(server, client)


async def test_closing_during_the_probe_of_the_era_is_prompt():
    async with ScriptedServer.local() as server, closing(Client(server.url)) as client:
        await server.script(Rule(method="server/discover", do=Behaviour(hang=True)))
        caller = asyncio.create_task(client.call_tool("record"))
        await server.requests("server/discover", at_least=1)
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        assert type(await outcome(caller)) is ServerUnavailable
        assert await server.requests("initialize") == []
        await assert_stays_closed(server, client)


@every_era
async def test_closing_while_tcp_is_being_connected_is_prompt_and_honest(era: Era):
    with black_hole() as url:
        async with closing(client_of(url, era, timeouts={"connect": LONG})) as client:
            events: list[Event] = []
            client.observe(events.append, listen=False)
            caller = asyncio.create_task(client.call_tool("record"))
            await anyio.wait_all_tasks_blocked()
            assert not any(isinstance(event, Retrying) for event in events)
            with Took() as took:
                await client.aclose()
                error = await outcome(caller)
            assert took.seconds < PROMPT
            assert type(error) is ServerUnavailable


@every_encoding
@every_era
async def test_closing_while_calls_run_fails_them_at_once_and_replays_nothing(
    era: Era, encoding: Encoding
):
    async with serving(era, encoding, spec={"retry": "always"}) as (server, client):
        await client.connect()
        callers = [asyncio.create_task(client.call_tool("slow", {"seconds": LONG})) for _ in "abc"]
        await server.requests(tool="slow", at_least=3)
        with Took() as took:
            await asyncio.create_task(client.aclose())
            errors = [await outcome(caller) for caller in callers]
        assert took.seconds < PROMPT
        assert {type(error) for error in errors} == {CallOutcomeUnknown}
        assert all("the client was closed" in str(error) for error in errors)
        assert not any(caller.cancelled() for caller in callers)
        assert await server.executions("slow") == 3
        assert len(await server.requests(tool="slow")) == 3
        await assert_stays_closed(server, client)


async def test_closing_ends_a_replaced_session_with_the_calls_that_still_run_there():
    async with serving("legacy") as (server, client):
        await client.connect()
        old = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "on the new session"})
        assert not old.done()
        with Took() as took:
            await client.aclose()
            error = await outcome(old)
        assert type(error) is CallOutcomeUnknown
        assert "the client was closed" in str(error)
        assert took.seconds < PROMPT
        assert await server.executions("slow") == 1
        await assert_stays_closed(server, client)


async def deletions(server: ScriptedServer) -> list[str | None]:
    """The sessions that the client has ended."""
    return [seen.session_id for seen in await server.requests() if seen.http_method == "DELETE"]


@pytest.mark.requirement("S6")
async def test_a_replaced_session_ends_when_the_last_call_on_it_does():
    refusal = {"code": -32022, "message": "no", "data": {"supported": ["2025-06-18"]}}
    async with serving("legacy") as (server, client):
        await client.connect()
        old = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        (slow,) = await server.requests(tool="slow", at_least=1)
        renegotiate = Behaviour(status=400, error=refusal)
        await server.script(Rule(tool="record", times=1, do=renegotiate))
        await client.call_tool("record")
        assert not old.done()
        assert client.session_id != slow.session_id
        await server.skip_delays()
        assert (await outcome(old)).text == "done"
        async with asyncio.timeout(BOUND):
            while not (ended := await deletions(server)):
                await asyncio.sleep(0.005)
        assert ended == [slow.session_id]


async def test_closing_during_the_handshake_of_a_replacement_is_prompt_and_honest():
    async with serving("legacy") as (server, client):
        await client.connect()
        await server.forget_sessions()
        await server.script(Rule(method="initialize", do=Behaviour(delay=LONG)))
        caller = asyncio.create_task(client.call_tool("record"))
        await server.requests("initialize", at_least=2)
        with Took() as took:
            await client.aclose()
            error = await outcome(caller)
        assert took.seconds < PROMPT
        assert isinstance(error, CallNotDelivered | ServerUnavailable)
        assert await server.executions("record") == 0
        await assert_stays_closed(server, client)


async def test_a_server_that_hangs_on_delete_delays_closing_by_no_more_than_its_bound():
    spec = {"timeouts": {"close": 0.3}}
    async with serving("legacy", spec=spec) as (server, client):
        await server.script(Rule(http="DELETE", do=Behaviour(hang=True, run=False)))
        await client.connect()
        caller = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        with Took() as took:
            await client.aclose()
            assert type(await outcome(caller)) is CallOutcomeUnknown
        assert 0.2 < took.seconds < PROMPT
        await assert_stays_closed(server, client)


@every_era
async def test_a_call_made_while_the_client_closes_waits_and_starts_from_scratch(era: Era):
    async with serving(era) as (server, client):
        await client.connect()
        closer = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not closer.done()
        result = await outcome(client.call_tool("echo", {"text": "again"}))
        assert getattr(result, "text", result) == "again"
        assert closer.done()
        assert len(await server.requests(HANDSHAKE[era])) == 2


@every_era
async def test_a_closer_that_is_cancelled_does_not_stop_the_closing(era: Era):
    async with serving(era) as (server, client):
        await client.connect()
        closer = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        closer.cancel()
        await asyncio.wait((closer,), timeout=BOUND)
        assert closer.cancelled()
        await until(lambda: not client.is_initialized, "the closing")
        await client.aclose()
        await assert_stays_closed(server, client)


@every_era
async def test_closing_in_a_scope_that_is_already_cancelled_leaks_nothing(era: Era):
    async with serving(era) as (server, client):
        with anyio.CancelScope() as scope:
            async with client:
                scope.cancel()
                await anyio.sleep(LONG)
        assert scope.cancelled_caught
        await until(lambda: not client.is_initialized, "the closing")
        await client.aclose()
        await assert_stays_closed(server, client)


async def test_closing_ends_the_stream_of_notices_and_the_next_start_opens_it_again():
    async with serving("legacy") as (server, client):
        events: list[Event] = []
        client.observe(events.append)
        for notices in (1, 2):
            await client.connect()
            assert await server.notify("notifications/tools/list_changed") == 1
            await until(
                lambda: [e.kind for e in events].count("changed") == notices,  # noqa: B023
                "the notice",
            )
            with Took() as took:
                await client.aclose()
            assert took.seconds < PROMPT
            await assert_stays_closed(server, client)
        kinds = [event.kind for event in events]
        assert kinds == ["connected", "changed", "disconnected"] * 2


@every_encoding
@every_era
async def test_closing_again_and_again_under_traffic_ends_clean(era: Era, encoding: Encoding):
    async with serving(era, encoding) as (server, client):
        closed = asyncio.Event()
        outcomes: list[object] = []

        async def caller(number: int) -> None:
            for turn in itertools.count():
                if closed.is_set():
                    return
                key = {"text": f"{number}-{turn}", "key": f"{number}-{turn}"}
                outcomes.append(await outcome(client.call_tool("echo", key)))

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(caller(number))
            for _ in range(20):
                done = len(outcomes)
                await until(lambda: len(outcomes) > done + 5, "traffic")  # noqa: B023
                await client.aclose()
            closed.set()
        await client.aclose()
        strange = [o for o in outcomes if not isinstance(o, CallResult | ToolkeepError)]
        assert strange == []
        assert max((await server.ledger()).values()) == 1
        await assert_stays_closed(server, client)


@pytest.mark.requirement("P1")
async def test_closing_in_the_middle_of_an_answer_is_told_as_our_closing():
    """The head and half of the body have come: the server did not break anything off."""
    halfway = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while (asked := await read_request(reader)).message.get("method") != "tools/call":
                writer.write(handshake(asked))
            writer.write(http(result_for(asked))[:-5])
            await writer.drain()
            halfway.set()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, closing(client_of(url, "legacy")) as client:
        caller = asyncio.create_task(client.call_tool("any"))
        await asyncio.wait_for(halfway.wait(), BOUND)
        await client.aclose()
        error = await outcome(caller)
    assert type(error) is CallOutcomeUnknown
    assert "the client was closed" in str(error)
