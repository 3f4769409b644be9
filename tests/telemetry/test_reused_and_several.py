"""What telemetry says of calls that were not sent, and of servers with several addresses."""

import pytest

from tests.engine.helpers_endpoints import addresses, spec_of
from tests.telemetry.helpers_otel import Telescope
from toolkeep import Client, Runtime
from toolkeep.events import Completed, Connected, Event
from toolkeep.telemetry.logs import event_facts
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("O1")

OPERATION, SESSION = "mcp.client.operation.duration", "mcp.client.session.duration"


async def test_a_call_that_was_not_sent_has_a_span_that_says_so_and_no_duration(
    telescope: Telescope,
):
    async with ScriptedServer.local(era="modern") as server:
        spec = {"name": "kit", "url": server.url, "cache_results": 60}
        async with Runtime.open([spec]) as runtime:
            heard: list[Event] = []
            runtime.observe(telescope.observer())
            runtime.observe(heard.append)
            for _ in range(3):
                await runtime.call("kit.record_read_only", {"key": "x"})
    (point,) = telescope.points(OPERATION)
    assert point.count == 1
    cached = [(span.attributes or {}).get("toolkeep.cached") for span in telescope.calls()]
    assert cached == [None, True, True]
    facts = [event_facts(event) for event in heard if isinstance(event, Completed)]
    assert [fact.get("cached") for fact in facts] == [None, True, True]


async def test_of_several_addresses_none_is_named_as_the_one_that_was_called(telescope: Telescope):
    async with addresses(2, era="legacy") as servers:
        spec, heard = spec_of(servers, balance="call"), list[Event]()
        client = Client(spec)
        client.observe(telescope.observer(servers=[spec]), listen=False)
        client.observe(heard.append, listen=False)
        for _ in range(4):
            await client.call_tool("echo", {"text": "hi"})
        await client.aclose()
        urls = {server.url for server in servers}
    (point,) = telescope.points(OPERATION)
    assert "server.address" not in point.attributes
    assert point.attributes["network.transport"] == "tcp"
    (session,) = telescope.points(SESSION)
    assert session.count == 2
    opened = [event_facts(event) for event in heard if isinstance(event, Connected)]
    assert {fact["endpoint"] for fact in opened} == urls
