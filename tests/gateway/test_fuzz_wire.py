"""What no HTTP client sends: broken framing, floods, slow bodies, forged ids and tokens. A gateway
refuses it or closes, never with a fault of its own, and serves others meanwhile."""

import asyncio
import base64
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.gateway_fuzz import Fuzz, seeds
from tests.gateway.front import Front, front, wire
from tests.gateway.test_access import REFUSED, SECRET
from tests.gateway.tokens import claims, issuing, sign
from toolkeep.gateway import http
from toolkeep.testing import ScriptedServer

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = (
    b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"accept: application/json, text/event-stream\r\n"
)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Front]:
    async with (
        ScriptedServer.local(record=False) as kit,
        front({"kit": kit.url}, **options) as gateway,
    ):
        yield gateway


async def send_raw(gateway: Front, *pieces: bytes, within: float = 5.0) -> bytes:
    """What is answered to these bytes, until the connection ends or an answer is there."""
    port = int(gateway.url.split(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        async with asyncio.timeout(within):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while chunk := await reader.read(1 << 16):
                found += chunk
                head, parted, body = found.partition(b"\r\n\r\n")
                if parted and (b"content-length: %d" % len(body)) in head.lower():
                    break
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


def status_of(answer: bytes) -> int:
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def with_body(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


RAW = {
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a length that is no number": HEAD + b"content-length: x\r\n\r\n{}",
    "a negative length": HEAD + b"content-length: -1\r\n\r\n{}",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are none": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"transfer-encoding: gzip\r\n\r\n{}",
    "a header without a colon": HEAD + b"nothing\r\ncontent-length: 2\r\n\r\n{}",
    "a header with a NUL": HEAD + b"x-a: \0\r\ncontent-length: 2\r\n\r\n{}",
    "a header that is too long": HEAD
    + b"x-a: "
    + b"a" * 70_000
    + b"\r\ncontent-length: 2\r\n\r\n{}",
    "many headers": HEAD + b"".join(b"x-%d: a\r\n" % n for n in range(5000)) + b"\r\n",
    "no host": b"POST /mcp HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
    "two hosts": HEAD + b"host: example.com\r\ncontent-length: 2\r\n\r\n{}",
    "an absolute path": b"POST http://localhost/mcp HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a path that leaves": b"POST /mcp/../../etc HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a method that is none": b"BREW /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bytes that are no UTF-8": with_body(b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'),
    "a lone surrogate": with_body(rb'{"jsonrpc":"2.0","id":1,"method":"\ud800"}'),
    "100,000 lists in each other": with_body(b"[" * 100_000),
    "100,000 objects in each other": with_body(b'{"a":' * 100_000),
    "deep arguments": with_body(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":'
        + b'{"a":' * 500
        + b"1"
        + b"}" * 500
        + b"}}"
    ),
    "a number of 100,000 digits": with_body(
        b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"ping"}'
    ),
    "a batch": with_body(b"[" + PING + b"]"),
    "keys twice": with_body(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"x"}'),
    "NaN": with_body(b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}'),
}


async def test_broken_requests_are_refused_or_closed_and_others_are_served() -> None:
    async with serving() as gateway, wire(gateway.url) as other:
        await other.initialize()
        answers = await asyncio.gather(*(send_raw(gateway, one) for one in RAW.values()))
        found = {name: status_of(one) for name, one in zip(RAW, answers, strict=True)}
        assert {name: status for name, status in found.items() if status >= 500} == {}
        assert {name: status for name, status in found.items() if 200 <= status < 300} == {}
        assert (await other.call("ping")).status == 200


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_WITHIN", 0.2)
    async with serving() as gateway:
        announced = HEAD + b"content-length: 100\r\n\r\n"
        answers = await asyncio.gather(
            send_raw(gateway, announced),
            send_raw(gateway, announced, b"{"),
            send_raw(gateway, HEAD + CHUNKED, b"1\r\n{\r\n"),
            send_raw(gateway, HEAD + CHUNKED, b"ffffffffffffffff\r\n{"),
        )
        assert [status_of(one) for one in answers] == [408, 408, 408, 408]


async def test_a_large_body_is_refused_before_it_is_read() -> None:
    async with serving(settings={"limits": {"body_bytes": 1000}}) as gateway:
        announced = await send_raw(gateway, HEAD + b"content-length: 1000000000\r\n\r\n")
        assert status_of(announced) == 413
        chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        assert status_of(await send_raw(gateway, HEAD + CHUNKED, chunk, chunk)) == 413


def forged(session: str) -> st.SearchStrategy[str]:
    """Ids that differ from a true one."""
    raw = session.encode()
    flipped = st.builds(
        lambda at, by: (raw[:at] + bytes([raw[at] ^ by]) + raw[at + 1 :]).decode("latin-1"),
        st.integers(0, len(raw) - 1),
        st.integers(1, 127),
    )
    cut = st.integers(0, len(raw) - 1).map(lambda end: session[:end])
    noise = st.binary(max_size=200).map(lambda one: base64.urlsafe_b64encode(one).decode())
    return st.one_of(flipped, cut, noise, st.just(session + "A"), st.just(session * 2))


async def test_no_forged_session_id_opens_and_none_makes_the_gateway_fail() -> None:
    async with serving() as gateway, wire(gateway.url) as client:
        await client.initialize()
        session, found = client.headers["mcp-session-id"], list[str]()

        @given(forged(session))
        @settings(max_examples=200, database=None, derandomize=True)
        def collect(one: str) -> None:
            if one.isascii() and one.isprintable() and one.strip() != session:
                found.append(one)

        collect()
        assert len(found) > 100
        for one in found:
            answer = await client.send(json.loads(PING), mcp_session_id=one)
            assert answer.status in (400, 404), (one, answer.status)
        assert (await client.call("ping")).status == 200


async def test_tokens_that_prove_nothing_are_refused_before_the_body_is_looked_at() -> None:
    async with (
        issuing() as issuer,
        serving(access=issuer.access()) as gateway,
        wire(gateway.url) as client,
    ):
        for name, (make, _) in REFUSED.items():
            answer = await client.send(b"{", authorization=f"Bearer {make()}")
            assert answer.status == 401, name
            assert "www-authenticate" in answer.headers, name
            assert SECRET not in answer.text, name
        client.headers["authorization"] = f"Bearer {sign(claims())}"
        assert (await client.initialize()).status == 200
        client.headers["authorization"] = f"Bearer {sign(claims(sub='mallory'))}"
        assert (await client.call("tools/list")).status == 404  # the session of alice


async def test_the_seeds_of_the_fuzzer_are_requests_that_are_served() -> None:
    fuzz = Fuzz()
    await fuzz.open()
    try:
        async with asyncio.timeout(10):
            statuses = Counter([await fuzz.send_input(seed) for seed in seeds()])
    finally:
        await fuzz.close()
        fuzz.loop.close()
    assert statuses[200] > 20


async def test_floods_leave_no_memory_behind() -> None:
    async with serving() as gateway:
        body = with_body(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 100_000 + b'"}')
        for _ in range(20):
            await send_raw(gateway, body)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(100):
                await send_raw(gateway, body)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 2_000_000  # 10 MB went through
