"""`fetch`: what it refuses to dial, what it follows, and how much it reads. Over real sockets."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import (
    EgressRefused,
    FetchFailed,
    FetchResponse,
    fetch,
    is_configured,
    policy_for,
)

pytestmark = pytest.mark.requirement("N2")


class Server:
    """A plain HTTP server that answers in bytes, and remembers what it was sent."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers, self.heads, self.connections, self.port = answers, list[str](), 0, 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            writer.write(self.answers.get(head.split()[1].split("?")[0], answer("no", 404)))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answer(body: str = "", status: int = 200, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def serving(**answers: bytes) -> AsyncIterator[Server]:
    made = Server({f"/{name.strip('_')}": found for name, found in answers.items()})
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        await listening.wait_closed()


def always(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


async def get(url: str, policy: EgressPolicy | None = None, **options: Any) -> FetchResponse:
    return await fetch("GET", url, policy=policy or EgressPolicy(), **{"proxy": "", **options})


async def test_a_configured_loopback_server_answers_and_says_where_it_is():
    async with serving(_=answer("hello", x_one="1")) as server:
        found = await get(server.url(), policy_for(server.url("/mcp")))
    assert (found.status, found.body, found.peer) == (200, b"hello", "127.0.0.1")
    assert found.headers["x-one"] == "1"
    assert "hello" not in repr(found)


async def test_what_a_server_names_on_loopback_is_never_dialled():
    async with serving(_=answer("secret")) as server:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
            with pytest.raises(EgressRefused, match="loopback"):
                await get(server.url(host=host))
        assert server.connections == 0


@pytest.mark.parametrize(
    "host", ["\uff11\uff12\uff17.0.0.1", "127。0。0。1", "①②⑦.0.0.1", "[::1]", "[::]"]
)
async def test_other_spellings_are_not_dialled_either(host: str):
    with pytest.raises(EgressRefused, match="loopback"):
        await get(f"http://{host}:9/")


async def test_a_name_is_judged_by_the_addresses_it_resolves_to():
    async with serving(_=answer("secret")) as server:
        with pytest.raises(EgressRefused, match="loopback"):
            await get(server.url(host="auth.example"), resolve=always("127.0.0.1"))
        with pytest.raises(EgressRefused, match="cloud metadata"):
            await get("https://auth.example/", resolve=always("169.254.169.254"))
        assert server.connections == 0


async def test_a_name_with_one_refused_address_among_several_is_refused():
    async with serving(_=answer("secret")) as server:
        policy = EgressPolicy(allow=("127.0.0.1",))
        with pytest.raises(EgressRefused, match="private"):
            found = always("127.0.0.1", "10.0.0.1")
            await get(server.url(host="auth.example"), policy, resolve=found)
        assert server.connections == 0


class RebindingNames(asyncio.DatagramProtocol):
    """A DNS server on loopback that answers each question with the next of its addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses, self.asked = list(addresses), list[str]()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        labels, at = list[str](), 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += size + 1
        self.asked.append(".".join(labels))
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        head = data[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0) + data[12 : at + 5]
        record = struct.pack("!3HIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address)
        self._transport.sendto(head + record, addr)


@asynccontextmanager
async def rebinding(*addresses: str) -> AsyncIterator[tuple[RebindingNames, Any]]:
    """The DNS server, and a resolver that asks it every time."""
    loop = asyncio.get_running_loop()
    serving, names = await loop.create_datagram_endpoint(
        lambda: RebindingNames(*addresses), ("127.0.0.1", 0)
    )
    where = serving.get_extra_info("sockname")

    async def resolve(host: str, port: int) -> list[str]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            name = b"".join(bytes([len(one)]) + one.encode() for one in host.split("."))
            question = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + name + b"\0\0\1\0\1"
            await loop.sock_sendto(asking, question, where)
            async with asyncio.timeout(5):
                answer = await loop.sock_recv(asking, 512)
        return [socket.inet_ntoa(answer[-4:])]

    try:
        yield names, resolve
    finally:
        serving.close()


async def test_a_name_that_is_bound_again_leads_nowhere_else():
    """Allowed when it is judged, loopback from the second question on."""
    async with serving(_=answer("secret")) as inner, rebinding("127.0.0.2", "127.0.0.1") as dns:
        names, resolve = dns
        url, policy = inner.url(host="rebind.example"), EgressPolicy(allow=("127.0.0.2",))
        with pytest.raises(FetchFailed, match="cannot be reached"):  # 127.0.0.2 was dialled
            await get(url, policy, resolve=resolve)
        assert (names.asked, inner.connections) == (["rebind.example"], 0)
        for _ in range(3):
            with pytest.raises(EgressRefused, match="loopback"):
                await get(url, policy, resolve=resolve)
        assert (len(names.asked), inner.connections) == (4, 0)


async def test_a_name_that_is_bound_again_for_a_redirect_is_judged_again():
    async with serving() as outer, rebinding("127.0.0.1", "169.254.169.254") as dns:
        names, resolve = dns
        url = outer.url("/a", host="rebind.example")
        outer.answers["/a"] = answer(status=302, location=url.replace("/a", "/b"))
        with pytest.raises(EgressRefused, match="cloud metadata"):
            await get(url, policy_for(url), resolve=resolve)
        assert (len(names.asked), outer.connections) == (2, 1)


async def test_every_hop_of_a_redirect_is_judged():
    async with serving(_=answer("secret")) as inner:
        asked = inner.url("/", "localhost")
        async with serving(a=answer(status=302, location=asked), b=answer("fine")) as outer:
            policy = policy_for(outer.url())
            with pytest.raises(EgressRefused, match="loopback"):
                await get(outer.url("/a"), policy)
            assert inner.connections == 0
            outer.answers["/a"] = answer(status=302, location="/b")
            found = await get(outer.url("/a"), policy)
            assert (found.body, found.url) == (b"fine", outer.url("/b"))


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/", "file:///etc/passwd", "//["])
async def test_a_redirect_to_somewhere_hostile_is_refused(target: str):
    async with serving(a=answer(status=307, location=target)) as server:
        with pytest.raises(FetchFailed):
            await get(server.url("/a"), policy_for(server.url()))


async def test_redirects_end_and_posts_are_not_redirected():
    async with serving(a=answer(status=302, location="/a")) as server:
        policy = policy_for(server.url())
        with pytest.raises(FetchFailed, match="more than 3 times"):
            await get(server.url("/a"), policy)
        found = await fetch("POST", server.url("/a"), policy=policy, body=b"x", proxy="")
        assert found.status == 302
        assert server.heads[-1].startswith("POST")


async def test_an_answer_that_is_too_long_is_not_read_to_its_end():
    async with serving(a=answer("x" * 5000)) as server:
        policy = policy_for(server.url())
        with pytest.raises(FetchFailed, match="more than 1000 bytes"):
            await get(server.url("/a"), policy, max_bytes=1000)
        assert len((await get(server.url("/a"), policy, max_bytes=5000)).body) == 5000


async def test_a_compressed_answer_is_bounded_by_what_it_unpacks_to():
    import zlib

    packed = zlib.compress(b"x" * 5_000_000)
    head = f"HTTP/1.1 200 X\r\ncontent-encoding: deflate\r\ncontent-length: {len(packed)}\r\n\r\n"
    async with serving() as server:
        server.answers["/a"] = head.encode() + packed
        with pytest.raises(FetchFailed, match="more than"):
            await get(server.url("/a"), policy_for(server.url()))


async def test_a_server_that_is_silent_costs_no_more_than_the_timeout():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        with pytest.raises(FetchFailed, match="did not answer within"):
            await get(url, policy_for(url), timeout=0.2)
    finally:
        listening.close()
        await listening.wait_closed()


async def test_what_cannot_be_reached_is_said_without_the_headers_that_were_to_be_sent():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/?token=sesame"
        with pytest.raises(FetchFailed) as caught:
            await get(url, policy_for(url), headers={"authorization": "Bearer sesame"})
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        *("", "mcp", "//host/", "file:///etc/passwd", "ftp://host/", "javascript:alert(1)"),
        *("http://", "http:///path", "http://host:0/", "http://ho st/", "http://host\\@evil/"),
        *(
            "http://user@127.0.0.1/",
            "http://user:pass@example.com/",
            "https://a\nb/",
            "http://[::1",
        ),
        *("http://a%2eb/", "http://%31%32%37.0.0.1/", "http://[fe80::1%25eth0]/", "gopher://x/"),
    ],
)
async def test_a_url_that_cannot_be_judged_is_refused(url: str):
    with pytest.raises(EgressRefused):
        await get(url)


async def test_cookies_of_one_answer_are_not_sent_with_the_next():
    async with serving(a=answer(status=302, location="/b", set_cookie="a=1"), b=answer()) as server:
        await get(server.url("/a"), policy_for(server.url()))
    assert not any("cookie" in head.lower() for head in server.heads)


async def test_behind_a_proxy_names_and_literals_are_judged_and_the_peer_is_unknown():
    async with serving() as proxy:
        proxy.answers["http://mcp.example/"] = answer("through")
        policy = policy_for("http://mcp.example/")
        found = await get("http://mcp.example/", policy, proxy=proxy.url())
        assert (found.body, found.peer) == (b"through", "")
        for url in ("https://127.0.0.1/", "https://metadata.google.internal/", "http://localhost/"):
            with pytest.raises(EgressRefused):
                await get(url, policy, proxy=proxy.url())
        assert proxy.connections == 1


def test_only_the_origin_itself_is_configured():
    policy = policy_for("https://mcp.example/mcp")
    assert is_configured("https://mcp.example/other", policy)
    assert is_configured("https://MCP.example:443/", policy)
    assert not is_configured("https://mcp.example:8443/mcp", policy)
    assert not is_configured("http://mcp.example/mcp", policy)
