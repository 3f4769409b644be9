"""A crowd in trouble: sessions are lost, callers give up, the server restarts, and still nobody
speaks in another's session and no place is lost."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_wire import Asked, handshake, http, read_request, result_for
from tests.runtime._identity import (
    BOUND,
    Era,
    ended,
    every_era,
    house,
    kinds,
    most_alive,
    named,
    runtime_for,
    seen,
    together,
    until,
    users,
)
from toolkeep import InvalidResult, Runtime, ToolkeepError
from toolkeep.events import Health
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PLACES = 3
SEEDS = pytest.mark.parametrize("seed", range(3))


async def loyal(runtime: Runtime, who: str, calls: int) -> None:
    """Calls one after the other, which must all succeed."""
    for number in range(calls):
        mine = f"{who}/{number}"
        found = await seen(runtime, named(who, who), headers={"x-call": mine})
        assert (found["authorization"], found["x-call"]) == (who, mine)


async def fickle(runtime: Runtime, who: str, chance: random.Random) -> None:
    """Calls that are given up sooner or later, whatever they are waiting for."""
    for _ in range(6):
        call = asyncio.create_task(
            runtime.call("kit.slow", {"seconds": 0.01}, context=named(who, who))
        )
        await asyncio.wait((call,), timeout=chance.choice([0, 0.001, 0.005, 0.01, 0.03]))
        call.cancel()
        await asyncio.wait((call,))


async def assert_order(server: ScriptedServer, runtime: Runtime) -> None:
    """All places can be had again, and none was anybody's but its own."""
    await until(lambda: runtime.servers[0].in_flight == 0, "everybody has gone")
    crowd = [f"late-{number}" for number in range(2 * PLACES)]
    await together(*(loyal(runtime, who, 1) for who in crowd))
    assert runtime.servers[0].sessions <= PLACES
    assert all(len(found) == 1 for found in users(await server.requests()).values())


@pytest.mark.requirement("H4")
@SEEDS
async def test_callers_who_give_up_at_any_moment_lose_no_place_and_disturb_nobody(seed: int):
    chance = random.Random(seed)
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        await together(
            *(loyal(runtime, f"loyal-{number}", 5) for number in range(5)),
            *(fickle(runtime, f"fickle-{number}", chance) for number in range(10)),
        )
        await assert_order(server, runtime)
        assert most_alive(await server.requests()) <= PLACES + 1
    records = await server.requests()
    assert set(users(records)) == ended(records)
    assert kinds(records).count("initialize") == kinds(records).count("DELETE")


@pytest.mark.requirement("H4")
@SEEDS
async def test_lost_sessions_are_replaced_for_each_and_mixed_up_for_nobody(seed: int):
    chance = random.Random(seed)
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        crowd = [asyncio.create_task(loyal(runtime, f"user-{n}", 10)) for n in range(10)]
        while not all(task.done() for task in crowd):
            await server.forget_sessions()
            await asyncio.sleep(chance.choice([0.02, 0.05]))
        await together(*crowd)
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
@every_era
async def test_a_server_that_restarts_serves_everybody_again(era: Era):
    async with house(era, {"max_sessions": PLACES}, health_interval=0.1) as (server, runtime):
        await together(*(loyal(runtime, f"user-{n}", 1) for n in range(6)))
        await server.restart()
        await together(*(loyal(runtime, f"user-{n}", 2) for n in range(6)))
        await until(lambda: runtime.servers[0].health is Health.HEALTHY)
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
async def test_handshakes_that_fail_now_and_then_lose_no_place():
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        fault = Behaviour(status=503, headers={"retry-after": "0"})
        for skip in range(0, 20, 3):
            await server.script(Rule(method="initialize", do=fault, times=1, skip=skip))
        await together(*(loyal(runtime, f"user-{n}", 3) for n in range(12)))
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
async def test_a_crowd_that_is_cut_off_by_closing_leaves_nothing_at_the_server():
    async with ScriptedServer.local(era="legacy") as server:
        runtime = runtime_for(server, {"max_sessions": PLACES})
        await runtime.connect()
        crowd = [
            asyncio.create_task(
                runtime.call("kit.slow", {"seconds": 20}, context=named(f"user-{n}"))
            )
            for n in range(10)
        ]
        await server.requests(tool="slow", at_least=PLACES)
        async with asyncio.timeout(BOUND):
            await runtime.aclose()
            await asyncio.wait(crowd)
        assert all(task.exception() is not None for task in crowd)
        records = await server.requests()
        assert set(users(records)) == ended(records)
        assert len(await server.requests(tool="slow")) == PLACES


# -- HTTP+SSE -----------------------------------------------------------------------------------


@pytest.mark.requirement("H3", "H4")
async def test_a_crowd_on_an_older_server_has_a_stream_each_within_the_bound():
    older = {"transport": "sse"}
    async with house("legacy", {"max_sessions": PLACES}, server=older) as (server, runtime):
        await together(*(loyal(runtime, f"user-{n}", 3) for n in range(10)))
        records = await server.requests()
        calls = [record for record in records if record.rpc_method == "tools/call"]
        assert len(calls) == 30
        for call in calls:
            assert call.headers["x-call"].split("/")[0] == call.headers["authorization"]
        streams: dict[str, set[str | None]] = users(calls)
        assert len(streams) >= 10
        assert all(len(found) == 1 for found in streams.values())
        opened = [r.headers.get("authorization") for r in records if r.http_method == "GET"]
        assert set(opened) == {None, *(f"user-{n}" for n in range(10))}
        assert runtime.servers[0].sessions <= PLACES


# -- servers that answer twice ------------------------------------------------------------------

WHOAMI = {"name": "whoami", "inputSchema": {"type": "object"}}


class Twice:
    """A server, or a gateway in front of it, that sends the answer of every call twice.

    The copy comes together with the answer, right after it, or late: when the next request on the
    connection has been read, before that one's own answer.
    """

    def __init__(self, moment: str, encoding: str) -> None:
        self._moment, self._encoding = moment, encoding
        self.ids: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait_for(server.wait_closed(), BOUND)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late = b""
        try:
            while True:
                asked = await read_request(reader)
                self.ids += [asked.id] if asked.id is not None else []
                answer = self._answer(asked)
                called = asked.message.get("method") == "tools/call"
                copy = answer if called else b""
                if self._moment == "together":
                    writer.write(answer + copy)
                elif self._moment == "after":
                    writer.write(answer)
                    await writer.drain()
                    writer.write(copy)
                else:
                    writer.write(late + answer)
                    late = copy
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, asked: Asked) -> bytes:
        method = asked.message.get("method")
        if method == "tools/list":
            return http(result_for(asked, {"tools": [WHOAMI]}))
        if method != "tools/call":
            return handshake(asked)
        said = {"content": [{"type": "text", "text": asked.headers["x-who"]}]}
        body = result_for(asked, said)
        if self._encoding == "json":
            return http(body)
        return http(b"data: " + body + b"\n\n", kind="text/event-stream")


@pytest.mark.requirement("H4", "P1")
@pytest.mark.parametrize("encoding", ["json", "sse"])
@pytest.mark.parametrize("moment", ["together", "after", "late"])
@pytest.mark.parametrize("at_once", [1, 4])
async def test_no_principal_gets_the_copy_of_anothers_answer(
    moment: str, encoding: str, at_once: int
):
    twice = Twice(moment, encoding)

    async def ask(who: str) -> bool:
        try:
            result = await runtime.call("kit.whoami", context=named(who, x_who=who), timeout=5)
        except InvalidResult:
            raise
        except ToolkeepError:
            return False  # it says that the outcome is unknown, or that nothing was sent
        assert result.text == who
        return True

    async with twice.serving() as url, asyncio.timeout(3 * BOUND):
        server = {"url": url, "mode": "legacy", "breaker_threshold": 0}
        async with Runtime({"mcpServers": {"kit": server}}) as runtime:
            answered = 0
            for number in range(0, 40, at_once):
                whose = [f"user {(number + each) % 5}" for each in range(at_once)]
                answered += sum(await asyncio.gather(*(ask(who) for who in whose)))
    assert answered >= 10
    assert len(set(twice.ids)) == len(twice.ids)


@pytest.mark.requirement("H4")
async def test_request_ids_begin_at_random_and_are_never_reused_on_one_http_client():
    begun: list[int] = []
    for _ in range(2):
        twice = Twice("together", "json")
        async with twice.serving() as url:
            server = {"url": url, "mode": "legacy"}
            async with Runtime({"mcpServers": {"kit": server}}) as runtime:
                for who in ("ann", "ben", "ann"):
                    await runtime.call("kit.whoami", context=named(who, x_who=who))
        assert len(set(twice.ids)) == len(twice.ids)
        assert all(0 < each < 2**31 for each in twice.ids)
        begun.append(min(twice.ids))
    assert abs(begun[0] - begun[1]) > 1000  # once in a million runs they begin near each other
