"""What an attacker tries, as a client with a key or as a page in a browser: to be taken for another
client, to see what others are told, to fill what others need, or to make the gateway fail."""

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.front import KEYS, Front, front, listening, next_message, until, wire
from tests.gateway.test_gateway_questions import ADA, ALL, NAME, ask_modern, go_on
from tests.gateway.test_gateway_streams import event_of
from toolkeep.cli.serve import http_protocol, listen
from toolkeep.gateway import Caller, hash_key
from toolkeep.gateway.offer import matches
from toolkeep.gateway.protocol import Peer
from toolkeep.state import MemoryStore
from toolkeep.state.store import Entry
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.timeout(30)

ALICE, BOB = "tk_alice", "tk_bob"
TWO = {"keys": {"alice": hash_key(ALICE), "bob": hash_key(BOB)}}
UPDATED = "notifications/resources/updated"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


class Socket:
    """A connection to a gateway, for bytes that HTTP clients do not send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def status(self, data: bytes) -> int:
        self.writer.write(data)
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Socket]:
    place = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(place[0], int(place[1]))
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()


def head(*lines: str, verb: str = "POST", length: int = len(PING), path: str = "/mcp") -> bytes:
    given = {"host": "127.0.0.1", "content-type": "application/json", "content-length": length}
    added = {one.partition(":")[0].lower() for one in lines}
    kept = [f"{name}: {value}" for name, value in given.items() if name not in added]
    return "\r\n".join([f"{verb} {path} HTTP/1.1", *kept, *lines, "", ""]).encode("latin-1")


async def status_of(gateway: Front, *lines: str, verb: str = "POST") -> int:
    async with connected(gateway.url) as one:
        return await one.status(head(*lines, verb=verb) + PING)


# -- headers --------------------------------------------------------------------------------------


async def test_a_header_that_says_who_asks_or_for_what_appears_once() -> None:
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        await alice.initialize()
        key = f"Authorization: Bearer {ALICE}"
        session = f"Mcp-Session-Id: {alice.headers['mcp-session-id']}"
        assert await status_of(gateway, key, session) == 200
        for again in (
            *("Authorization: Bearer tk_guessed", key, "Mcp-Session-Id: x", "Mcp-Param-Who: a"),
            *("Mcp-Protocol-Version: 2026-07-28", "Content-Type: application/json"),
        ):
            name = again.partition(":")[0]
            first = {"Content-Type": again, "Mcp-Param-Who": again}.get(name)
            version = "Mcp-Protocol-Version: 2025-11-25"
            given = [key, session, version, again, *([first] if first else [])]
            assert await status_of(gateway, *given) == 400, again
        async with connected(gateway.url) as one:
            twice = head(key, "Authorization: Bearer x", verb="GET", length=0, path="/metrics")
            assert await one.status(twice) == 400


async def test_malformed_origins_and_hosts_are_refused_and_no_fault() -> None:
    async with ScriptedServer.local() as kit, front({"kit": kit.url}) as gateway:
        for origin in ("http://[::1", "http://a]b", "http://[", "http://localhost:80@evil", "null"):
            assert await status_of(gateway, f"Origin: {origin}") == 403, origin
        for host in ("[::1]x", "[::1", "localhost:80@evil", "localhost:80:80", ""):
            assert await status_of(gateway, f"Host: {host}") in (400, 403), host


async def test_an_event_id_that_no_store_counts_to_is_refused(tmp_path: Path) -> None:
    """The numbers of SQLite end at 63 bits. A store that fails is left alone for all clients."""
    store = f"sqlite:///{tmp_path}/state.db"
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, store=store) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize(**ALL)
        ask = client.request("tools/call", name="kit__ask", arguments={"requests": {"who": NAME}})
        async with await client.open(ask) as response:
            event_id, _ = await event_of(response)
        stream = event_id.rpartition(".")[0]
        session = f"Mcp-Session-Id: {client.headers['mcp-session-id']}"
        for position in ("\xb2", "9" * 19, "9" * 5000, "-1", ""):
            given = session, f"Last-Event-ID: {stream}.{position}"
            assert await status_of(gateway, *given, verb="GET") == 400, position
        assert gateway.gateway.readiness()[1].get("degraded") is None
        await client.send(verb="DELETE")  # ends the call


async def test_ids_of_requests_are_short() -> None:
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        for long in ("a" * 1001, 2**63, -(2**63)):
            sent = {"jsonrpc": "2.0", "id": long, "method": "ping"}
            assert (await client.send(sent)).status == 400
        sent = {"jsonrpc": "2.0", "id": "a" * 1000, "method": "ping"}
        assert (await client.send(sent)).status == 200


async def test_a_profile_that_is_gone_is_not_found() -> None:
    settings = {"profiles": {"few": {}}}
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=settings) as gateway,
        wire(f"{gateway.url}/few") as client,
    ):
        await client.initialize()
        gateway.gateway.apply(gateway.gateway.settings.model_copy(update={"profiles": {}}))
        for verb in ("POST", "GET", "DELETE"):
            assert (await client.send({}, verb=verb)).status == 404


# -- sessions and questions -----------------------------------------------------------------------


class GatedStore(MemoryStore):
    """A store whose answers wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, key: str) -> Entry | None:
        await self.gate.wait()
        return await super().get(key)


async def test_two_tokens_of_one_principal_do_not_lend_each_other_their_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkeep.gateway.sessions.RECHECK", -1.0)
    store = GatedStore()
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, store=store, keys=[KEYS]) as g,
    ):
        sessions = g.gateway.sessions
        text, _ = sessions.issue(Peer(Caller("alice")))
        few, many = Caller("alice", {"admin": False}), Caller("alice", {"admin": True})

        async def peer_of(caller: Caller) -> Peer:
            return (await sessions.open(text, caller, "")).peer

        store.gate.clear()
        asking = [asyncio.create_task(peer_of(one)) for one in (few, many)]
        await asyncio.sleep(0)  # both wait for the store
        store.gate.set()
        assert [one.caller for one in await asyncio.gather(*asking)] == [few, many]


async def test_a_session_of_a_client_with_a_long_name_opens_at_every_replica() -> None:
    async with ScriptedServer.local() as kit, front({"kit": kit.url}, replicas=2) as gateway:
        info = dict.fromkeys(("name", "title", "version"), "\U0001f9f0" * 300)
        async with wire(gateway.hosts[0]) as first, wire(gateway.hosts[1]) as second:
            begun = await first.call(
                "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info
            )
            second.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
            assert (await second.call("ping")).status == 200


async def test_answers_to_questions_that_were_not_asked_reach_no_store() -> None:
    store = MemoryStore()
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, store=store, keys=[KEYS]) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        large = {"content": "x" * 500_000}
        replica = gateway.gateway.replicas.id
        for made in ("toolkeep.other.key", f"toolkeep.{replica}x.key", "toolkeep." + "A" * 300):
            sent = {"jsonrpc": "2.0", "id": made, "result": large}
            assert (await client.send(sent)).status == 202
        assert int(repr(store).split(", ")[2].split()[0]) < 100_000  # bytes


# -- subscriptions --------------------------------------------------------------------------------


async def test_a_client_that_leaves_while_it_subscribes_leaves_no_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkeep.gateway.streams.LINGER", 0.0)
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        wanted = {"resourceSubscriptions": ["kit://notes", "kit://notes/1"]}
        body, headers = client.modern_request(
            "subscriptions/listen", {}, {}, {"notifications": wanted}
        )
        slow = Rule(method="resources/subscribe", skip=1, do=Behaviour(delay=5.0))
        await kit.script(slow)
        response = await client.open(body, **headers)
        await kit.requests("resources/subscribe", at_least=2)
        response.close()
        await kit.requests("resources/unsubscribe", at_least=1)
        await until(lambda: not gateway.gateway.changes.listeners)


async def test_each_principal_needs_the_permission_for_what_it_subscribes_to() -> None:
    def may(action: str, what: Any, context: Any) -> bool:
        return context.principal == "alice" or action == "see"

    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}, settings=TWO, permissions=may) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
    ):
        wanted = {"resourceSubscriptions": ["kit://notes"]}
        body, headers = alice.modern_request(
            "subscriptions/listen", {}, {}, {"notifications": wanted}
        )
        async with (
            await alice.open(body, **headers) as hers,
            await bob.open(body, **headers) as his,
        ):
            assert (await next_message(hers))["params"]["notifications"] == wanted
            assert (await next_message(his))["params"]["notifications"] == {}
            await kit.notify(UPDATED, {"uri": "kit://notes"})
            assert (await next_message(hers))["params"]["uri"] == "kit://notes"
            his.close()


async def test_a_uri_that_nearly_fits_a_template_costs_no_time() -> None:
    began = time.perf_counter()
    for template in ("x://{a}-{b}-{c}-{d}", "x://{+a}-{+b}-{+c}/y", "x://" + "{+a}-" * 20):
        assert not matches(template, "x://" + "-" * 7000 + "/")
        assert not matches(template, "x://" + "-" * 4_000_000 + "/")
    assert time.perf_counter() - began < 2.0


async def test_a_session_subscribes_to_no_uri_of_megabytes() -> None:
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        refused = await client.call("resources/subscribe", uri=f"kit://notes/{'a' * 2000}")
        assert refused.error["code"] == -32602
        assert "2000 characters" in refused.error["message"]


@pytest.mark.parametrize("upstream", ["modern", "legacy"])
async def test_the_request_state_of_one_principal_is_no_use_to_another(upstream: Any) -> None:
    async with (
        ScriptedServer.local(era=upstream) as kit,
        front({"kit": kit.url}, settings={**TWO, "profiles": {"all": {}}}) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
        wire(f"{gateway.url}/all", authorization=f"Bearer {ALICE}") as elsewhere,
    ):
        asked = await ask_modern(alice, {"who": NAME})
        (key,) = asked["inputRequests"]
        for client in (bob, elsewhere):
            stolen = await go_on(client, asked["requestState"], {key: ADA}, {"who": NAME})
            assert stolen.error["code"] == -32602
            assert "belongs to another request" in stolen.error["message"]
        assert len(await kit.requests(tool="ask")) == 1
        answer = await go_on(alice, asked["requestState"], {key: ADA}, {"who": NAME})
        assert answer.json["result"]["resultType"] == "complete"


# -- limits ---------------------------------------------------------------------------------------


async def test_a_request_state_that_is_sent_again_and_again_does_not_get_around_the_rate() -> None:
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}, settings={"rate": "60/h"}) as gateway,  # three at once
        wire(gateway.url) as client,
    ):
        state = (await ask_modern(client, {"who": NAME}, key="k"))["requestState"]
        answers = [await go_on(client, state, {"who": ADA}, {"who": NAME}) for _ in range(4)]
        assert [one.status for one in answers] == [200, 200, 429, 429]


async def test_messages_that_do_not_arrive_are_limited_for_each_principal() -> None:
    limits = {"limits": {"requests_per_principal": 1}}
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={**TWO, **limits}) as gateway,
        connected(gateway.url) as first,
        connected(gateway.url) as second,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
    ):
        endpoint = gateway.gateway.endpoint
        for one in (first, second):
            one.writer.write(head(f"Authorization: Bearer {ALICE}", length=1_000_000) + b"{")
        await until(lambda: endpoint.message_count == 2)
        refused = await alice.initialize()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert (await bob.initialize()).status == 200
        first.writer.close()
        await until(lambda: endpoint.message_count == 1)
        assert (await alice.initialize()).status == 200


async def test_made_up_cursors_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkeep.gateway.offer.PAGE_ITEMS", 5)
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        listed = (await client.call("tools/list")).json["result"]
        offer, name = gateway.gateway.offers(""), listed["tools"][2]["name"]
        made = base64.urlsafe_b64encode(json.dumps([3, name]).encode()).decode()
        for cursor, is_kept in ((listed["nextCursor"], True), (made, False), (None, True)):
            pages = [await offer.page("tools", cursor, None, modern=False) for _ in range(2)]
            assert (pages[0] is pages[1]) is is_kept


# -- connections ----------------------------------------------------------------------------------


async def test_a_connection_on_which_no_request_arrives_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkeep.cli.serve.HEAD_WITHIN", 0.2)
    async with ScriptedServer.local() as kit, front({"kit": kit.url}) as gateway:
        app: Any = gateway.gateway
        async with listening(app, http=http_protocol()) as url:
            for begun in (b"", b"POST /mcp HTTP/1.1\r\nHos"):
                async with connected(url) as one:
                    one.writer.write(begun)
                    await closed(one.reader)
            async with connected(url) as one:
                assert await one.status(head("Host: evil.example") + PING) == 403
                one.writer.write(b"POST ")
                await closed(one.reader)
            async with wire(f"{url}/mcp") as client:
                slow = Rule(tool="echo", do=Behaviour(delay=0.5))
                await kit.script(slow)
                called = await client.modern(
                    "tools/call", name="kit__echo", arguments={"text": "x"}
                )
                assert called.status == 200


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other side closes."""
    async with asyncio.timeout(3):
        with suppress(ConnectionResetError):
            while await reader.read(1000):
                pass


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_a_client_that_takes_nothing_of_an_answer_is_cut_by_the_kernel() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        served, _ = listener.accept()
        with served:
            option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            assert served.getsockopt(*option) == 60_000
