"""`toolkeep check`: names, ports, certificates and proxies, from nowhere to a TLS handshake."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.cli.helpers_checking import (
    Found,
    Seeded,
    answering,
    check,
    closed_port,
    page,
    self_signed,
    told_twice,
)
from tests.cli.helpers_running import Home
from tests.engine.certificates import DAY, NOW, Authority, HttpProxy, wants_client_certificate
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("O2")

FAULTS = [
    Seeded("lookup", "dns", "dns-failure", "'no-such-host.invalid'", "host in 'url'"),
    Seeded("metadata", "dns", "egress-refused", "a cloud metadata address", "egress.allow"),
    Seeded("closed", "tcp", "port-closed", "nothing listens on port", "Start the server"),
    Seeded("remote", "tcp", "no-connection", "no connection to [fe80::1]:9", "firewall"),
    Seeded("name", "tls", "tls-name-mismatch", "it is for elsewhere.test", "'url' (servers.json"),
    Seeded("expired", "tls", "tls-expired", "127.0.0.1 expired on", "Renew the certificate"),
    Seeded("early", "tls", "tls-not-yet-valid", "not valid before", "clock"),
    Seeded("self", "tls", "tls-self-signed", "is self-signed", "'tls.ca_file'"),
    Seeded("issuer", "tls", "tls-unknown-issuer", "'toolkeep test ca'", "'tls.ca_file'"),
    Seeded("secure", "tls", "tls-to-plain-port", "speaks plain HTTP", "http://"),
    Seeded("plain", "http", "plain-to-tls-port", "speaks TLS", "https://"),
    Seeded("mutual", "http", "tls-failed", "before the first request", "'tls.client_cert'"),
]


@contextlib.asynccontextmanager
async def wanting_certificates(authority: Authority) -> AsyncIterator[str]:
    """A TLS server that would say nothing, and wants to know who asks."""

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = wants_client_certificate(authority.issue("127.0.0.1"), authority)
    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


@pytest.fixture(scope="module")
async def told(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, str]:
    home = Home(tmp_path_factory.mktemp("network"))
    authority = Authority(home.path)
    trusted = {"tls": {"ca_file": authority.file}}
    good = authority.issue("127.0.0.1").both
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        plain = await enter(answering(page("", status="400 Bad Request"), eager=True))
        secure = await enter(ScriptedServer.local(tls=good))
        other = await enter(ScriptedServer.local(tls=authority.issue("elsewhere.test").both))
        old = authority.issue("127.0.0.1", until=NOW - DAY).both
        expired = await enter(ScriptedServer.local(tls=old))
        future = self_signed(home.path, "future", "localhost", begins=NOW + DAY)
        early = await enter(ScriptedServer.local(tls=future.both))
        own = self_signed(home.path, "own", "localhost")
        alone = await enter(ScriptedServer.local(tls=own.both))
        specs = {
            "well": {"url": secure.url, **trusted},
            "lookup": {"url": "https://no-such-host.invalid/mcp"},
            "closed": {"url": f"http://127.0.0.1:{stack.enter_context(closed_port())}/mcp"},
            # An address of a network, without the network: the system refuses at once.
            "remote": {"url": "https://[fe80::1]:9/mcp", "egress": {"allow": ["fe80::/10"]}},
            "metadata": {"url": "https://169.254.169.254/mcp"},
            "name": {"url": other.url, **trusted},
            "expired": {"url": expired.url, **trusted},
            "early": {
                "url": f"https://localhost:{early.port}/mcp",
                "tls": {"ca_file": future.cert},
            },
            "self": {"url": f"https://localhost:{alone.port}/mcp"},
            "issuer": {"url": secure.url},
            "secure": {"url": plain.replace("http:", "https:")},
            "plain": {"url": secure.url.replace("https:", "http:")},
            "mutual": {"url": await enter(wanting_certificates(authority)), **trusted},
        }
        return await told_twice(home, "-c", home.configure(specs))


@pytest.mark.parametrize("seeded", FAULTS, ids=str)
def test_a_fault_of_the_network_is_named_with_its_cause_and_its_remedy(
    told: tuple[Found, str], seeded: Seeded
):
    seeded.assert_in(*told)


def test_a_good_certificate_is_said_to_be_good(told: tuple[Found, str]):
    well = told[0].of("well")
    assert set(well.states.values()) == {"ok", "skipped"}
    (tls,) = (one for one in well.findings if one["step"] == "tls")
    assert tls["state"] == "ok"
    assert tls["seen"].startswith("TLSv1.")


def test_what_comes_after_a_failure_is_not_tried_and_said_not_to_be(told: tuple[Found, str]):
    assert told[0].of("closed").states == {
        "configuration": "ok",
        "dns": "skipped",
        "tcp": "failed",
        "http": "skipped",
        "handshake": "skipped",
        "session": "skipped",
        "tools": "skipped",
        "ping": "skipped",
    }
    assert told[1].rstrip().endswith("12 of 13 failed; first lookup, at DNS")


async def test_a_proxy_is_named_gone_through_and_blamed_where_it_is_at_fault(home: Home):
    authority = Authority(home.path)
    no = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with (
        ScriptedServer.local() as plain,
        ScriptedServer.local(tls=authority.issue("127.0.0.1").both) as secure,
        HttpProxy() as good,
        HttpProxy(refusal=no) as bad,
    ):
        with closed_port() as port:
            trusted = {"url": secure.url, "tls": {"ca_file": authority.file}}
            secret = good.url.replace("//", "//somebody:sekret-of-the-proxy@")
            specs = {
                "plain": {"url": plain.url, "proxy": secret},
                "tunnel": {**trusted, "proxy": secret},
                "refused": {"url": plain.url, "proxy": bad.url},
                "shut": {**trusted, "proxy": bad.url},
                "gone": {"url": plain.url},
            }
            around = {"HTTP_PROXY": f"http://127.0.0.1:{port}"}
            found = await check(home, "-c", home.configure(specs), env=around)
    assert set(found.of("plain").states.values()) == {"ok", "skipped"}
    assert set(found.of("tunnel").states.values()) == {"ok", "skipped"}
    assert f"CONNECT 127.0.0.1:{secure.port}" in good.asked
    assert "through " + good.url in found.of("plain").findings[0]["seen"]
    assert found.failed_at("refused") == ("http", "proxy-refused")
    assert found.failed_at("shut") == ("tls", "proxy-refused")
    assert found.failed_at("gone") == ("tcp", "port-closed")
    assert "the proxy" in found.of("gone").failure["remedy"]
    assert "sekret" not in found.ran.said
