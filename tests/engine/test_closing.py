"""`aclose` frees everything, at once, whatever is going on; and the client can start again."""

import asyncio
from collections.abc import Mapping

import anyio
import pytest

from mainstay import (
    CallError,
    CallNotDelivered,
    CallOutcomeUnknown,
    Client,
    Event,
    MainstayError,
    Replaying,
    ServerUnavailable,
)
from mainstay.testing import Behaviour, Rule, ScriptedServer
from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    LONG,
    PROMPT,
    Encoding,
    Era,
    Took,
    black_hole,
    client_of,
    closing,
    every_encoding,
    every_era,
    outcome,
    serving,
    until,
)

pytestmark = pytest.mark.requirement("S9")


async def assert_stays_closed(server: ScriptedServer, client: Client) -> None:
    """Nothing is open, nothing was opened again, and the client says so."""
    assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
    requests = len(await server.requests())
    async with asyncio.timeout(BOUND):
        while await server.open_connections():
            await asyncio.sleep(0.005)
    await anyio.wait_all_tasks_blocked()
    assert len(await server.requests()) == requests
    assert await server.open_connections() == 0


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
        assert took.seconds < 1.0
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
            assert not any(isinstance(event, Replaying) for event in events)
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
    async with serving(era, encoding, spec={"replay": "always"}) as (server, client):
        await client.connect()
        callers = [asyncio.create_task(client.call_tool("slow", {"seconds": LONG})) for _ in "abc"]
        await server.requests(tool="slow", at_least=3)
        with Took() as took:
            await asyncio.create_task(client.aclose())
            errors = [await outcome(caller) for caller in callers]
        assert took.seconds < PROMPT
        assert {type(error) for error in errors} == {CallOutcomeUnknown}
        assert not any(caller.cancelled() for caller in callers)
        assert await server.executions("slow") == 3
        assert len(await server.requests(tool="slow")) == 3
        await assert_stays_closed(server, client)


@every_era
async def test_a_call_that_waits_for_its_turn_does_not_open_a_closed_client(era: Era):
    async with serving(era, spec={"max_in_flight": 1}) as (server, client):
        await client.connect()
        first = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        waiting = [asyncio.create_task(client.call_tool("record")) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        assert type(await outcome(first)) is CallOutcomeUnknown
        for caller in waiting:
            error = await outcome(caller)
            assert isinstance(error, CallNotDelivered | ServerUnavailable)
        assert await server.executions("record") == 0
        assert len(await server.requests(HANDSHAKE[era])) == 1
        await assert_stays_closed(server, client)


@every_era
async def test_a_call_that_waits_to_be_replayed_does_not_open_a_closed_client(era: Era):
    async with serving(era) as (server, client):
        wait = Behaviour(status=429, headers={"retry-after": "0.3"})
        await server.script(Rule(tool="record", do=wait, times=1))
        events: list[Event] = []
        client.observe(events.append, listen=False)
        caller = asyncio.create_task(client.call_tool("record"))
        await until(lambda: any(isinstance(e, Replaying) for e in events), "the backoff")
        await client.aclose()
        error = await outcome(caller)
        assert isinstance(error, CallError | ServerUnavailable)
        assert await server.executions("record") == 0
        assert len(await server.requests(HANDSHAKE[era])) == 1
        await assert_stays_closed(server, client)


class Pensive:
    """An authorizer that takes its time, once it is told to."""

    def __init__(self) -> None:
        self.thinking, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def headers(
        self, server: str, principal: str | None, method: str, url: str
    ) -> Mapping[str, str]:
        if not self.go_on.is_set():
            self.thinking.set()
            await self.go_on.wait()
        return {}

    async def challenged(self, status: int, headers: Mapping[str, str]) -> bool:
        return False


@every_era
async def test_a_call_whose_authorizer_still_thinks_fails_honestly_when_the_client_closes(era: Era):
    auth = Pensive()
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "mode": era}
        client = Client(spec, auth=auth, terminate_on_close=False)
        await client.connect()
        auth.go_on.clear()
        caller = asyncio.create_task(client.call_tool("record"))
        await auth.thinking.wait()
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        auth.go_on.set()
        error = await outcome(caller)
        assert isinstance(error, MainstayError)
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
                lambda: [e.kind for e in events].count("notice") == notices,  # noqa: B023
                "the notice",
            )
            with Took() as took:
                await client.aclose()
            assert took.seconds < PROMPT
            await assert_stays_closed(server, client)
        kinds = [event.kind for event in events]
        assert kinds == ["connected", "notice", "disconnected"] * 2
