"""Trust, proxies and timeouts are settings of every connection."""

import datetime
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.certificates import NOW, Authority, HttpProxy, wants_client_certificate
from tests.engine.helpers_wire import (
    Era,
    RawServer,
    both_eras,
    client_of,
    http,
    methods,
    result_for,
)
from toolkeep import CallOutcomeUnknown, CallTimedOut, Client, ConfigError, ServerUnavailable
from toolkeep.config import ServerSpec
from toolkeep.config.spec import ConfigWarning
from toolkeep.errors import Delivery, FailureKind
from toolkeep.testing import ScriptedServer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def here(authority: Authority) -> tuple[str, str]:
    return authority.issue("127.0.0.1").both


# -- trust -------------------------------------------------------------------------------------


WAYS = ["ca_file", "SSL_CERT_FILE", "SSL_CERT_DIR", "both", "REQUESTS_CA_BUNDLE", "bundle dir"]


@pytest.fixture(params=WAYS)
def trust(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[Authority, dict[str, Any]]:
    """An authority, and a way to say that it is trusted."""
    authority = Authority(tmp_path)
    spec: dict[str, Any] = {}
    match request.param:
        case "ca_file":
            spec = {"tls": {"ca_file": authority.file}}
        case "SSL_CERT_DIR":
            monkeypatch.setenv("SSL_CERT_DIR", authority.directory())
        case "both":
            (tmp_path / "other").mkdir()
            monkeypatch.setenv("SSL_CERT_FILE", Authority(tmp_path / "other", "another ca").file)
            monkeypatch.setenv("SSL_CERT_DIR", authority.directory())
        case "bundle dir":
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority.directory())
        case name:
            monkeypatch.setenv(name, authority.file)
    return authority, spec


@pytest.mark.requirement("S10")
async def test_an_authority_is_trusted_when_named(trust: tuple[Authority, dict[str, Any]]) -> None:
    authority, spec = trust
    tls = authority.issue("127.0.0.1").both
    async with ScriptedServer.local(tls=tls) as server, client_of(server, **spec) as client:
        for _ in range(3):
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert await server.connections() == 1


@pytest.mark.requirement("S10")
async def test_an_unknown_authority_is_not_trusted_and_nothing_is_sent(
    here: tuple[str, str],
) -> None:
    async with (
        ScriptedServer.local(tls=here) as server,
        client_of(server, max_retries=0) as client,
    ):
        with pytest.raises(ServerUnavailable) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.delivery is Delivery.NOT_SENT
        assert caught.value.failure is not None
        assert caught.value.failure.kind is FailureKind.UNREACHABLE
        assert "certificate" in str(caught.value)
        assert await methods(server) == []


@pytest.mark.requirement("S10")
async def test_a_certificate_for_another_host_is_refused(authority: Authority) -> None:
    tls = authority.issue("elsewhere.test").both
    async with (
        ScriptedServer.local(tls=tls) as server,
        client_of(server, max_retries=0, tls={"ca_file": authority.file}) as client,
    ):
        with pytest.raises(ServerUnavailable) as caught:
            await client.connect()
        assert caught.value.delivery is Delivery.NOT_SENT
        assert "certificate" in str(caught.value)
        assert await methods(server) == []


@pytest.mark.requirement("S10")
async def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    tls = authority.issue("127.0.0.1", until=NOW - datetime.timedelta(days=1)).both
    async with (
        ScriptedServer.local(tls=tls) as server,
        client_of(server, max_retries=0, tls={"ca_file": authority.file}) as client,
    ):
        with pytest.raises(ServerUnavailable):
            await client.connect()
        assert await methods(server) == []


@pytest.mark.requirement("S10")
async def test_verification_can_be_switched_off_with_a_warning(here: tuple[str, str]) -> None:
    async with ScriptedServer.local(tls=here) as server:
        with pytest.warns(ConfigWarning, match="verified"):
            spec = ServerSpec.parse({"url": server.url, "tls": {"verify": False}})
        client = Client(spec)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        await client.aclose()


@pytest.mark.requirement("S10")
async def test_tls_spoken_to_a_plain_server_is_a_typed_error() -> None:
    async with ScriptedServer.local() as server:
        spec: dict[str, Any] = {"url": server.url.replace("http:", "https:")}
        async with client_of(server, **spec, max_retries=0, timeouts={"connect": 0.3}) as client:
            with pytest.raises(ServerUnavailable) as caught:
                await client.connect()
            assert caught.value.delivery is Delivery.NOT_SENT


@pytest.mark.parametrize("password", [None, "hush"])
@pytest.mark.requirement("S10")
async def test_a_client_certificate_is_shown_where_it_is_wanted(
    authority: Authority, password: str | None
) -> None:
    context = wants_client_certificate(authority.issue("127.0.0.1"), authority)
    mine = authority.issue("somebody", password=password.encode() if password else None)
    tls = {"ca_file": authority.file, "client_cert": mine.cert, "client_key": mine.key}
    async with RawServer(lambda asked: http(result_for(asked)), tls=context) as server:
        spec = {**tls, "client_key_password": password}
        async with client_of(server, mode="legacy", tls=spec) as client:
            assert (await client.call_tool("any")).text == "hello"
        bare = {"ca_file": authority.file}
        async with client_of(server, mode="legacy", tls=bare, max_retries=0) as client:
            with pytest.raises(ServerUnavailable) as caught:
                await client.call_tool("any")
            assert caught.value.delivery is Delivery.NOT_SENT


@pytest.mark.parametrize("key", ["ca_file", "client_cert"])
@pytest.mark.requirement("S10", "C3")
async def test_certificates_that_cannot_be_loaded_are_a_mistake_of_configuration(
    tmp_path: Path, key: str
) -> None:
    (tmp_path / "rubbish.pem").write_text("rubbish")
    for name in ("rubbish.pem", "missing.pem"):
        client = Client(
            {"url": "https://127.0.0.1:9/mcp", "tls": {key: str(tmp_path / name)}, "name": "kit"}
        )
        with pytest.raises(ConfigError) as caught:
            await client.connect()
        assert caught.value.key == "tls"
        await client.aclose()


# -- proxies -----------------------------------------------------------------------------------


@both_eras
@pytest.mark.parametrize("how", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "setting"])
@pytest.mark.requirement("S10")
async def test_plain_requests_go_through_the_proxy(
    era: Era, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer.local(era=era) as server, HttpProxy() as proxy:
        spec: dict[str, Any] = {"proxy": proxy.url} if how == "setting" else {}
        if not spec:
            monkeypatch.setenv(how, proxy.url)
        async with client_of(server, mode=era, **spec) as client:
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert proxy.asked[0] == f"POST {server.url}"


@pytest.mark.parametrize("how", ["HTTPS_PROXY", "https_proxy", "setting"])
@pytest.mark.requirement("S10")
async def test_tls_goes_through_a_tunnel(
    how: str, monkeypatch: pytest.MonkeyPatch, authority: Authority, here: tuple[str, str]
) -> None:
    async with ScriptedServer.local(tls=here) as server, HttpProxy() as proxy:
        spec: dict[str, Any] = {"tls": {"ca_file": authority.file}}
        if how == "setting":
            spec["proxy"] = proxy.url.replace("//", "//user:hush@")
        else:
            monkeypatch.setenv(how, proxy.url)
        async with client_of(server, **spec) as client:
            for _ in range(3):
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert proxy.asked == [f"CONNECT 127.0.0.1:{server.port}"]
        named = "proxy-authorization: basic" in proxy.headers[0].lower()
        assert named == (how == "setting")


@pytest.mark.parametrize("listed", ["127.0.0.1", "*", "other.test,127.0.0.1", "127.0.0.1:{port}"])
@pytest.mark.requirement("S10")
async def test_hosts_that_need_no_proxy_go_without(
    listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer.local() as server, HttpProxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", listed.format(port=server.port))
        async with client_of(server) as client:
            await client.connect()
        assert proxy.asked == []


@pytest.mark.requirement("S10")
async def test_an_empty_proxy_means_none_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedServer.local() as server, HttpProxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with client_of(server, proxy="") as client:
            await client.connect()
        assert proxy.asked == []


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", b"?\r\n\r\n"]
)
@pytest.mark.requirement("S10", "P1")
async def test_a_tunnel_that_is_refused_has_sent_nothing(
    answer: bytes, authority: Authority, here: tuple[str, str]
) -> None:
    async with ScriptedServer.local(tls=here) as server, HttpProxy(refusal=answer) as proxy:
        spec = {"proxy": proxy.url, "tls": {"ca_file": authority.file}, "max_retries": 0}
        async with client_of(server, **spec) as client:
            with pytest.raises(ServerUnavailable) as caught:
                await client.call_tool("echo", {"text": "hi"})
        assert caught.value.delivery is Delivery.NOT_SENT
        assert caught.value.failure is not None
        assert caught.value.failure.kind is FailureKind.UNREACHABLE
        assert await server.connections() == 0


# -- timeouts ----------------------------------------------------------------------------------


@pytest.mark.requirement("S10", "P3")
async def test_the_calls_own_time_is_a_setting() -> None:
    async with (
        ScriptedServer.local() as server,
        client_of(server, timeouts={"call": 0.2}) as client,
    ):
        await client.connect()
        began = time.monotonic()
        with pytest.raises(CallTimedOut):
            await client.call_tool("slow", {"seconds": 5})
        assert 0.15 < time.monotonic() - began < 2


@pytest.mark.requirement("S10")
async def test_the_longest_silence_is_a_setting() -> None:
    async with (
        ScriptedServer.local(encoding="sse") as server,
        client_of(server, timeouts={"read": 0.2}) as client,
    ):
        noisy = await client.call_tool("steps", {"count": 5, "gap": 0.1}, on_progress=print)
        assert noisy.text == "5 steps"
        with pytest.raises(CallOutcomeUnknown) as caught:
            await client.call_tool("slow", {"seconds": 5}, timeout=3)
        assert not isinstance(caught.value, TimeoutError)


@pytest.mark.requirement("S10")
async def test_the_time_to_connect_is_a_setting() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # the backlog is full from now on
            spec = {"name": "kit", "max_retries": 0, "timeouts": {"connect": 0.3}}
            client = Client({**spec, "url": f"http://127.0.0.1:{port}/mcp"})
            began = time.monotonic()
            with pytest.raises(ServerUnavailable) as caught:
                await client.call_tool("echo", timeout=5)
            assert time.monotonic() - began < 2
            assert caught.value.delivery is Delivery.NOT_SENT
            await client.aclose()
