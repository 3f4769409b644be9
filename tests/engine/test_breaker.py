"""A server in trouble is left alone, and a busy one is not overrun."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.engine.helpers_wire import Asked, RawServer, client_of, handshake, http, result_for
from tests.engine.support import (
    PATIENCE,
    client_for,
    encodings,
    eras,
    failure_of,
    talking,
    together,
)
from toolkeep import (
    CallContext,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallResult,
    Client,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P9")

LOST = Behaviour(drop="after_body")
FRAGILE = {"breaker_threshold": 3, "breaker_cooldown": 0.3, "max_retries": 0}


def record(client: Client) -> Any:
    return client.call_tool("record")


# -- the breaker ------------------------------------------------------------------------------


async def broken_open(server: ScriptedServer, client: Client, trouble: Behaviour) -> None:
    await client.connect()
    await server.script(Rule(tool="record", times=3, do=trouble))
    for _ in range(3):
        assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
    await server.clear()


@eras
@pytest.mark.parametrize("trouble", [LOST, Behaviour(status=502)], ids=["lost", "502"])
async def test_repeated_transport_faults_open_the_breaker_and_a_probe_closes_it(
    era: Any, trouble: Behaviour
):
    async with talking(FRAGILE, era=era) as (server, client):
        await broken_open(server, client, trouble)
        error = await failure_of(record(client))
        assert isinstance(error, ServerUnavailable)
        assert error.delivery is Delivery.NOT_SENT
        assert await server.requests() == []
        await asyncio.sleep(0.35)  # the cooldown itself: nothing announces its end
        probe = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", "slow", at_least=1)
        others = await together(*(record(client) for _ in range(10)))
        assert {type(other) for other in others} == {ServerUnavailable}
        await server.skip_delays()
        assert (await asyncio.wait_for(probe, 5.0)).text == "done"
        assert len(await server.requests("tools/call")) == 1
        results = await together(*(record(client) for _ in range(10)))
        assert [result.text for result in results] == ["recorded"] * 10


async def test_a_probe_that_is_cancelled_leaves_the_next_call_to_probe():
    async with talking(FRAGILE) as (server, client):
        await broken_open(server, client, LOST)
        await asyncio.sleep(0.35)  # the cooldown
        probe = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", "slow", at_least=1)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        assert (await record(client)).text == "recorded"


@eras
async def test_failed_openings_open_the_breaker_too(era: Any):
    step = "initialize" if era == "legacy" else "server/discover"
    async with talking({**FRAGILE, "mode": era}, era=era) as (server, client):
        await server.script(Rule(method=step, times=3, do=Behaviour(status=502)))
        for asked in (1, 2, 3, 3, 3):
            assert isinstance(await failure_of(record(client)), ServerUnavailable)
            assert len(await server.requests()) == asked


async def test_a_probe_that_fails_keeps_the_breaker_open_for_longer():
    async with talking(FRAGILE) as (server, client):
        await broken_open(server, client, LOST)
        await server.script(Rule(tool="record", times=1, do=LOST))
        await asyncio.sleep(0.35)  # the cooldown
        assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
        await asyncio.sleep(0.35)  # the first cooldown again, which is now too short
        assert isinstance(await failure_of(record(client)), ServerUnavailable)
        assert len(await server.requests("tools/call")) == 1


@eras
@encodings
@pytest.mark.parametrize(
    "answer",
    [
        Behaviour(error={"code": -32603, "message": "no"}),
        Behaviour(status=500, error={"code": -32603, "message": "no"}),
        Behaviour(status=400, body="bad"),
        Behaviour(status=429),
        Behaviour(status=403),
        Behaviour(result={"content": [], "isError": True}),
    ],
    ids=["error", "500 with an answer", "400", "429", "403", "isError"],
)
async def test_what_is_no_transport_fault_never_opens_the_breaker(
    era: Any, encoding: Any, answer: Behaviour
):
    async with talking(FRAGILE, era=era, encoding=encoding) as (server, client):
        await client.connect()
        await server.script(Rule(tool="record", times=10, do=answer))
        await together(*(record(client) for _ in range(10)))
        assert len(await server.requests("tools/call")) == 10
        assert (await record(client)).success


async def test_one_success_between_faults_keeps_the_breaker_closed():
    async with talking(FRAGILE) as (server, client):
        await client.connect()
        for _ in range(3):
            await server.script(Rule(tool="record", times=2, do=LOST))
            for _ in range(2):
                assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
            assert (await record(client)).text == "recorded"


async def test_calls_that_were_cancelled_never_open_the_breaker():
    async with talking(FRAGILE) as (server, client):
        await client.connect()
        for turn in range(5):
            call = asyncio.create_task(client.call_tool("slow", {"seconds": 30}))
            await server.requests("tools/call", "slow", at_least=turn + 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (await record(client)).text == "recorded"


# -- a place in flight ------------------------------------------------------------------------


@eras
@encodings
async def test_no_more_calls_than_allowed_are_in_flight(era: Any, encoding: Any):
    settings = {"max_in_flight": 3}
    async with talking(settings, era=era, encoding=encoding) as (server, client):
        await client.connect()
        calls = (client.call_tool("slow", {"seconds": 0.3}) for _ in range(6))
        results = await together(*calls)
        assert [result.text for result in results] == ["done"] * 6
        seen = [request.at for request in await server.requests("tools/call")]
        assert seen[2] - seen[0] < 0.29
        for earlier, later in zip(seen, seen[3:], strict=False):
            assert later - earlier >= 0.29


async def test_a_call_that_fails_gives_its_place_back():
    async with talking({"max_in_flight": 1, "max_retries": 0}) as (server, client):
        await client.connect()
        refused = Behaviour(error={"code": -32000, "message": "no"})
        await server.script(
            Rule(tool="record", times=1, do=LOST), Rule(tool="record", times=1, do=refused)
        )
        outcomes = await together(record(client), record(client), record(client))
        kinds = {type(outcome) for outcome in outcomes[:2]}
        assert kinds == {CallOutcomeUnknown, CallRejected}
        assert outcomes[2].text == "recorded"


# -- a session that the server can no longer serve ----------------------------------------------


class Pods:
    """A balancer that sends each session to a pod of its own. Sessions of a pod that is gone get
    what the balancer has to say; new ones are fine.
    """

    def __init__(self, gone: bytes | None) -> None:
        self._gone = gone
        self.dead = set[str]()
        self.sessions: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.ran = 0

    def server(self) -> RawServer:
        return RawServer(self._answer, only=True)

    def kill(self) -> None:
        self.dead.update(self.sessions)

    def _answer(self, asked: Asked) -> bytes | Awaitable[bytes]:
        session, method = asked.headers.get("mcp-session-id", ""), asked.message.get("method")
        self.asked.append((session, method or asked.verb))
        if session in self.dead:
            return _silence() if self._gone is None else self._gone
        if method == "initialize":
            self.sessions.append(f"session-{len(self.sessions) + 1}")
            head, _, body = handshake(asked).partition(b"\r\n\r\n")
            name = f"mcp-session-id: {self.sessions[-1]}".encode()
            return head + b"\r\n" + name + b"\r\n\r\n" + body
        if method == "tools/list":
            tools = [{"name": "any", "inputSchema": {"type": "object"}}]
            return http(result_for(asked, {"tools": tools}))
        if method == "tools/call":
            self.ran += 1
            return http(result_for(asked))
        return http(result_for(asked, {})) if asked.id is not None else handshake(asked)


async def _silence() -> bytes:
    await asyncio.sleep(60)
    return b""


BAD_GATEWAY = http(b"<html>", status="502 Bad Gateway", kind="text/html")
CUT = b""
COME_LATER = http(b"", "retry-after: 0", status="503 Service Unavailable")


@pytest.mark.parametrize("gone", [BAD_GATEWAY, CUT], ids=["502", "cut"])
async def test_a_session_in_which_the_probe_fails_is_given_up(gone: bytes):
    pods = Pods(gone)
    async with pods.server() as server:
        settings = {"mode": "legacy", "breaker_threshold": 3, "breaker_cooldown": 0.05}
        async with client_of(server, **settings) as client:
            await client.call_tool("any")
            pods.kill()
            outcome, failed = None, 0
            while not isinstance(outcome, CallResult) and failed < 20:
                (outcome,) = await together(client.call_tool("any"))
                failed += isinstance(outcome, ToolkeepError)
                await asyncio.sleep(0.06)  # the cooldown
            assert failed <= 6
            assert client.session_id == "session-2"
            assert [ask for ask in pods.asked if ask[1] == "initialize"] == [("", "initialize")] * 2
    assert ("session-1", "DELETE") in pods.asked


async def test_a_session_that_only_fails_is_given_up_while_others_are_served():
    """Of several principals one is stuck: the breaker never opens, for the others succeed."""
    pods = Pods(BAD_GATEWAY)
    async with pods.server() as server:
        spec = {"url": server.url, "mode": "legacy", "max_retries": 0}
        async with Runtime({"mcpServers": {"kit": spec}}) as runtime:
            ann, ben = CallContext(principal="ann"), CallContext(principal="ben")
            await runtime.call("kit.any", context=ann)
            pods.dead.add(pods.sessions[-1])
            failed = 0
            for _ in range(30):
                assert (await runtime.call("kit.any", context=ben)).text == "hello"
                (outcome,) = await together(runtime.call("kit.any", context=ann))
                failed += isinstance(outcome, ToolkeepError)
            assert failed == 10


async def test_a_blip_that_many_calls_meet_at_once_costs_no_session():
    pods = Pods(BAD_GATEWAY)
    async with (
        pods.server() as server,
        client_of(server, mode="legacy", breaker_threshold=0, max_retries=0) as client,
    ):
        await client.call_tool("any")
        pods.kill()
        outcomes = await together(*(client.call_tool("any") for _ in range(30)))
        assert {type(outcome) for outcome in outcomes} == {CallOutcomeUnknown}
        pods.dead.clear()
        assert (await client.call_tool("any")).text == "hello"
        assert client.session_id == "session-1"


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("gone", [BAD_GATEWAY, CUT, COME_LATER], ids=["502", "cut", "503"])
async def test_after_a_ping_that_fails_the_next_call_has_a_new_session(gone: bytes):
    pods = Pods(gone)
    async with (
        pods.server() as server,
        client_of(server, mode="legacy", max_retries=0) as client,
    ):
        await client.call_tool("any")
        pods.kill()
        assert isinstance(await failure_of(client.ping()), ToolkeepError)
        assert (await client.call_tool("any")).attempts == 1
        assert client.session_id == "session-2"


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("gone", [BAD_GATEWAY, None], ids=["502", "read"])
async def test_after_a_failed_health_check_the_next_attempt_has_a_new_session(gone: bytes | None):
    pods = Pods(gone)
    async with pods.server() as server:
        spec = {"url": server.url, "mode": "legacy", "health_interval": 0.5, "max_retries": 0}
        async with Runtime({"mcpServers": {"kit": spec}}) as runtime:
            assert (await runtime.call("kit.any")).text == "hello"
            pods.kill()
            async with asyncio.timeout(PATIENCE):
                while len(pods.sessions) == 1:
                    await asyncio.sleep(0.05)
            assert (await runtime.call("kit.any")).text == "hello"
    assert pods.ran == 2


@pytest.mark.requirement("G7")
async def test_a_ping_that_reaches_nothing_costs_no_session():
    async with (
        ScriptedServer.local(era="legacy") as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
    ):
        settings = {"mode": "legacy", "max_retries": 0, "keep_alive": 1e-6}
        async with client_for(proxy.url(), settings) as client:
            await client.connect()
            session = client.session_id
            proxy.refuse()
            assert isinstance(await failure_of(client.ping()), CallNotDelivered)
            await proxy.heal()
            assert (await record(client)).text == "recorded"
            assert client.session_id == session
