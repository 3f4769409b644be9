"""What belongs to a server holds over all of its users: sockets, calls in flight, the breaker."""

import asyncio
import itertools
from contextvars import ContextVar

import anyio
import pytest

from tests.engine.helpers_wire import Asked, RawServer, handshake, http, result_for
from tests.runtime._identity import (
    BOUND,
    Era,
    busy,
    every_era,
    failure_of,
    house,
    kinds,
    named,
    runtime_for,
    seen,
    sessions_of,
    together,
    until,
)
from toolkeep import CallContext, Runtime, ServerUnavailable
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.events import Event
from toolkeep.testing import Behaviour, Rule, ScriptedServer


@pytest.mark.requirement("H3")
async def test_a_modern_server_is_discovered_once_for_all():
    async with house("modern", {"max_sessions": 5}, health_interval=None) as (server, runtime):
        for number in range(20):
            await seen(runtime, named(f"user-{number}", f"token-{number}"))
        found = kinds(await server.requests())
        assert found.count("server/discover") == 1
        assert found.count("tools/list") == 1
        assert found.count("tools/call") == 20
        assert [r.headers["authorization"] for r in await server.requests("tools/call")] == [
            f"token-{number}" for number in range(20)
        ]


@pytest.mark.requirement("H3")
@every_era
async def test_users_who_come_one_after_the_other_share_a_socket(era: Era):
    async with house(era, {"max_sessions": 3}) as (server, runtime):
        before = await server.connections()
        for number in range(20):
            await seen(runtime, named(f"user-{number}", f"token-{number}"))
        assert await server.connections() <= before + 2


@pytest.mark.requirement("H4")
@every_era
async def test_the_limit_of_calls_in_flight_counts_everybodys(era: Era):
    async with house(era, {"max_in_flight": 3}) as (server, runtime):
        everybody = [named(f"user-{number}") for number in range(6)]
        await together(*(seen(runtime, context) for context in everybody))
        async with busy(server, runtime, *everybody[:3]) as calls:
            others = [
                asyncio.create_task(runtime.call("kit.record", context=context))
                for context in everybody
            ]
            await anyio.wait_all_tasks_blocked()
            assert await server.requests(tool="record") == []
            calls[0].cancel()
            await together(*others)
            assert not any(call.done() for call in calls[1:])


@pytest.mark.requirement("H4")
@every_era
async def test_a_server_that_is_down_for_one_principal_is_down_for_all(era: Era):
    spec = {"breaker_threshold": 3, "breaker_cooldown": 30, "max_retries": 0}
    async with house(era, spec) as (server, runtime):
        await seen(runtime, named("ann"))
        await seen(runtime, named("ben"))
        await server.script(Rule(tool="headers", do=Behaviour(drop="after_body")))
        for _ in range(3):
            await failure_of(seen(runtime, named("ann")))
        before = len(await server.requests())
        for who in ("ann", "ben", "new"):
            error = await failure_of(runtime.call("kit.record", context=named(who)))
            assert isinstance(error, ServerUnavailable)
        assert len(await server.requests(tool="record")) == 0
        assert len(await server.requests(tool="headers")) == 5
        assert len(await server.requests()) == before


async def test_one_request_at_a_time_is_one_for_all_users():
    async with house("legacy", {"serialize": True}) as (server, runtime):
        who = [named(f"user-{number}") for number in range(4)]
        await together(*(seen(runtime, context) for context in who))
        async with busy(server, runtime, who[0]) as (call,):
            other = asyncio.create_task(runtime.call("kit.record", context=who[1]))
            await anyio.wait_all_tasks_blocked()
            await asyncio.wait((other,), timeout=0.1)  # what must not happen tells nobody
            alone = not await server.requests(tool="record")
            call.cancel()
            async with asyncio.timeout(BOUND):
                await other
        assert alone


# -- context variables --------------------------------------------------------------------------

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Listener:
    """An authorizer that notes in whose context it is asked for whom."""

    def __init__(self) -> None:
        self.heard: set[tuple[str | None, str]] = set()

    async def headers(self, request: AuthRequest) -> dict[str, str]:
        self.heard.add((request.principal, WHO.get()))
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.mark.requirement("H4")
@every_era
async def test_a_callers_context_variables_reach_nothing_that_is_done_for_another(era: Era):
    auth, told = Listener(), set[tuple[str, str]]()

    def observer(event: Event) -> None:
        told.add((type(event).__name__, WHO.get()))

    def provider(context: CallContext, server: str) -> dict[str, str]:
        return {"x-who": WHO.get(), "x-principal": str(context.principal)}

    async with house(era, {"max_sessions": 3}, auth=auth, header_provider=provider) as (
        server,
        runtime,
    ):
        runtime.observe(observer)

        async def user(name: str) -> None:
            WHO.set(name)
            for _ in range(3):
                found = await seen(runtime, named(name))
                assert found["x-who"] == name

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(user(f"user-{number}"))
        await server.forget_sessions()
        await together(*(seen(runtime, named(f"user-{number}")) for number in range(3)))
    for principal, context in auth.heard:
        assert context in ("nobody", principal)
    for kind, context in told:
        if kind in ("Connected", "Disconnected", "Changed", "CatalogueChanged"):
            assert context == "nobody"
    for record in await server.requests():
        if "x-principal" in record.headers:
            assert record.headers["x-who"] in ("nobody", record.headers["x-principal"])


@pytest.mark.requirement("H4")
async def test_what_a_principal_was_shown_and_where_it_spoke_ends_with_the_runtime():
    async with ScriptedServer.local(era="legacy") as server:
        runtime = runtime_for(server)
        for _ in range(2):
            async with runtime:
                await seen(runtime, named("ann", x_who="ann"))
                assert runtime.servers[0].sessions == 1
        await until(lambda: runtime.servers == ())
        assert len(sessions_of(await server.requests(), "x-who", "ann")) == 2


# -- closing many sessions ----------------------------------------------------------------------


class Farewells:
    """A legacy server that takes its time to end a session."""

    def __init__(self, takes: float) -> None:
        self._takes, self._numbers = takes, itertools.count(1)
        self.under_way = self.most = self.ended = 0

    async def answer(self, asked: Asked) -> bytes:
        if asked.verb == "DELETE":
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(self._takes)
            self.under_way -= 1
            self.ended += 1
            return http(b"", status="204 No Content")
        if asked.verb == "GET":
            return http(b"", status="405 Method Not Allowed")
        if asked.message.get("method") == "tools/list":
            return http(result_for(asked, {"tools": [{"name": "t", "inputSchema": {}}]}))
        if asked.message.get("method") == "tools/call":
            return http(result_for(asked))
        found = handshake(asked)
        if asked.message.get("method") != "initialize":
            return found
        session = f"mcp-session-id: {next(self._numbers)}\r\n".encode()
        return found.replace(b"content-type", session + b"content-type", 1)


@pytest.mark.requirement("H4", "S9")
@pytest.mark.parametrize(("takes", "all_ended"), [(0.0, True), (0.2, False)], ids=["fast", "slow"])
async def test_closing_many_sessions_ends_a_few_at_a_time_and_cuts_what_is_left(
    takes: float, all_ended: bool, caplog: pytest.LogCaptureFixture
):
    farewells, count = Farewells(takes), 200
    async with RawServer(farewells.answer, only=True) as server:
        close = 30.0 if all_ended else 0.5
        spec = {"name": "kit", "url": server.url, "mode": "legacy", "max_sessions": count}
        runtime = Runtime([{**spec, "timeouts": {"close": close}}], health_interval=None)
        async with runtime:
            await asyncio.gather(
                *(
                    runtime.call("kit.t", context=CallContext(principal=f"p{n}"))
                    for n in range(count)
                )
            )
            assert runtime.servers[0].sessions == count
            before = server.accepted
        most = 16 if all_ended else 32  # 16 that were given up may still be under way at the server
        assert farewells.most <= most
        assert server.accepted - before <= most  # sockets that were opened to close
        assert (farewells.ended == count + 1) is all_ended
        await until(lambda: not server.open_connections)
    assert "not closed" not in caplog.text


@pytest.mark.requirement("H4", "S9")
async def test_closing_that_is_out_of_time_leaves_no_socket_open():
    """The group gives up before the sessions have had their time."""
    farewells, count = Farewells(2.0), 20
    async with RawServer(farewells.answer, only=True) as server:
        spec = {"name": "kit", "url": server.url, "mode": "legacy", "max_sessions": count}
        runtime = Runtime(
            [{**spec, "timeouts": {"close": 60.0}}], health_interval=None, cleanup_timeout=0.5
        )
        async with runtime:
            await asyncio.gather(
                *(
                    runtime.call("kit.t", context=CallContext(principal=f"p{n}"))
                    for n in range(count)
                )
            )
        await until(lambda: not server.open_connections)
