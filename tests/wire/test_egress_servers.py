"""MCP servers at addresses that toolkeep does not connect to, however they are written."""

import pytest

from tests.wire.rebinding import NAME, rebinding_dns, used_by_the_system
from toolkeep import Client, ConfigError, Runtime
from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import EgressRefused, FetchFailed, fetch
from toolkeep.config import ServerSpec
from toolkeep.testing import ScriptedServer

pytestmark = [
    pytest.mark.requirement("N2"),
    pytest.mark.filterwarnings("ignore:.*plain http to another machine"),
]

FORBIDDEN = [
    "http://169.254.169.254/mcp",
    "http://169.254.1.1/mcp",
    "http://2852039166/mcp",
    "http://0251.0376.0251.0376/mcp",
    "http://[::ffff:169.254.169.254]/mcp",
    "http://[fe80::1]/mcp",
    "http://[fd00:ec2::254]/mcp",
    "http://metadata.google.internal/mcp",
    "http://100.100.100.200/mcp",
    "http://224.0.0.1/mcp",
]


@pytest.mark.parametrize("url", FORBIDDEN)
async def test_a_server_at_a_metadata_or_link_local_address_is_refused_before_anything_is_sent(
    url: str,
):
    client = Client({"name": "kit", "url": url})
    with pytest.raises(ConfigError, match=r"connecting to .* is refused: it has a .* address") as e:
        await client.connect()
    assert (e.value.server, e.value.key) == ("kit", "egress")
    await client.aclose()


async def test_the_configuration_may_allow_what_is_refused(monkeypatch: pytest.MonkeyPatch):
    name = "metadata.google.internal"
    async with (
        ScriptedServer.local() as server,
        rebinding_dns(["127.0.0.1"]) as dns,
    ):
        url = server.url.replace("127.0.0.1", name)
        with used_by_the_system(dns, monkeypatch, name):
            spec = ServerSpec.parse({"url": url, "egress": {"allow": ["*.google.internal"]}})
            async with Client(spec) as client:
                assert (await client.call_tool("echo", {"text": "x"})).text == "x"


async def test_a_name_is_judged_again_whenever_it_is_dialled(monkeypatch: pytest.MonkeyPatch):
    """A rebinding name: first the server, then the metadata service."""
    async with (
        ScriptedServer.local() as server,
        rebinding_dns(["127.0.0.1"], ["169.254.169.254"]) as dns,
    ):
        url = server.url.replace("127.0.0.1", NAME)
        with used_by_the_system(dns, monkeypatch, NAME):
            spec = ServerSpec.parse({"name": "kit", "url": url, "keep_alive": 0.001})
            async with Client(spec) as client:
                assert (await client.call_tool("echo", {"text": "x"})).text == "x"
            asked = dns.questions
            with pytest.raises(ConfigError, match="cloud metadata"):
                await Client(spec).connect()
            assert (asked, dns.questions) == (1, 2)


async def test_what_a_server_names_is_dialled_at_the_address_that_was_judged():
    async with ScriptedServer.local() as server, rebinding_dns(["127.0.0.2"], ["127.0.0.1"]) as dns:
        url = server.url.replace("127.0.0.1", NAME)
        policy = EgressPolicy(allow=("127.0.0.2",))
        for expected in (FetchFailed, EgressRefused):  # nothing listens at the judged address
            with pytest.raises(expected):
                await fetch("GET", url, policy=policy, proxy="", resolve=dns.resolve)
        assert (dns.questions, await server.requests()) == (2, [])


async def test_a_runtime_leaves_a_refused_server_out_and_says_why():
    servers = {"kit": {"url": "http://169.254.169.254/mcp"}}
    async with Runtime.open({"mcpServers": servers}) as runtime:
        (status,) = runtime.servers
        assert isinstance(status.error, ConfigError)
        assert "egress.allow" in str(status.error)


@pytest.mark.parametrize("entry", ["", "a b", "10.0.0.0/99", "https://x", "*", "a@b", "x:80"])
def test_what_is_allowed_must_be_a_host_or_a_network(entry: str):
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"url": "http://127.0.0.1/mcp", "egress": {"allow": [entry]}})
    assert "egress.allow" in (caught.value.key or "")
