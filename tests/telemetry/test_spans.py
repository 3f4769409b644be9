"""A call is a span, named and described as OpenTelemetry's conventions for MCP have it."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from tests.engine.helpers_rounds import ADA, ELICIT, Way, answering, both_eras, meeting
from tests.engine.helpers_tasks import BOUND, Era, closing, every_era, outcome
from tests.telemetry.helpers_otel import Telescope, Transport, every_transport, observed
from toolkeep import Client, ToolkeepError
from toolkeep.config import ServerSpec
from toolkeep.events import Failed, Started
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("O1")

VERSIONS: dict[Era, str] = {"legacy": "2025-11-25", "modern": "2026-07-28"}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def status(span: ReadableSpan) -> StatusCode:
    return span.status.status_code


@every_era
@every_transport
async def test_a_call_is_a_client_span_with_the_attributes_of_the_conventions(
    era: Era, transport: Transport, telescope: Telescope
):
    async with observed(telescope, era, transport) as (server, client):
        await client.call_tool("echo", {"text": "hello"})
        span, expected = telescope.call(), {"network.transport": "pipe"}
        if transport == "http":
            place = {"server.address": "127.0.0.1", "server.port": server.port}
            expected = {"network.transport": "tcp", "network.protocol.name": "http", **place}
    call_id = attributes(span).pop("toolkeep.call.id")
    assert (span.name, span.kind, status(span)) == (
        "tools/call echo",
        SpanKind.CLIENT,
        StatusCode.UNSET,
    )
    assert attributes(span) == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": VERSIONS[era],
        "toolkeep.server.name": "kit",
        "toolkeep.attempts": 1,
        "toolkeep.call.id": call_id,
        **expected,
    }


@pytest.mark.parametrize(
    ("spec", "address", "port"),
    [
        ("https://tools.example.com/mcp", "tools.example.com", 443),
        ("http://127.0.0.1/mcp", "127.0.0.1", 80),
        ("http://[::1]:8000/mcp", "::1", 8000),
    ],
)
def test_a_server_is_told_by_host_and_port(
    spec: str, address: str, port: int, telescope: Telescope
):
    observer = telescope.observer(servers=[ServerSpec.parse({"name": "kit", "url": spec})])
    observer(Started(server="kit", tool="echo", call_id="1"))
    observer(Failed(server="kit", tool="echo", call_id="1", error=OSError()))
    found = attributes(telescope.call())
    assert (found["server.address"], found["server.port"]) == (address, port)
    assert found["error.type"] == "_OTHER"


async def test_a_server_in_this_process_is_nowhere(telescope: Telescope):
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with closing(Client(greet)) as client:
        client.observe(telescope.observer(servers=[client.spec]), listen=False)
        await client.call_tool("greet", {"name": "Ada"})
    assert telescope.call().name == "tools/call greet"
    assert not {"network.transport", "server.address"} & attributes(telescope.call()).keys()


@every_era
async def test_a_call_is_the_child_of_the_span_around_it(era: Era, telescope: Telescope):
    async with observed(telescope, era) as (_, client):
        with telescope.tracer.start_as_current_span("agent") as agent:
            await client.call_tool("echo", {"text": "hello"})
            async with client.stream("steps", {"count": 2}) as call:
                await call.result()
        await client.call_tool("add", {"a": 1, "b": 2})
    inside = {span.name: span.parent for span in telescope.calls()}
    around = agent.get_span_context().span_id
    assert {name: parent and parent.span_id for name, parent in inside.items()} == {
        "tools/call echo": around,
        "tools/call steps": around,
        "tools/call add": None,
    }


async def test_the_span_around_a_call_stays_the_current_one(telescope: Telescope):
    async with observed(telescope, "modern") as (_, client):
        with telescope.tracer.start_as_current_span("agent") as agent:
            await client.call_tool("echo", {"text": "hello"})
            with telescope.tracer.start_as_current_span("next"):
                pass
    parents = {span.name: span.parent for span in telescope.spans_out.get_finished_spans()}
    assert parents["next"] is not None
    assert parents["next"].span_id == agent.get_span_context().span_id


@every_era
async def test_concurrent_calls_keep_to_their_own_parents(era: Era, telescope: Telescope):
    async with observed(telescope, era) as (_, client):

        async def work(number: int) -> tuple[int, str]:
            with telescope.tracer.start_as_current_span(f"agent {number}") as agent:
                await client.call_tool("echo", {"text": f"{number}"}, meta={"number": number})
                return agent.get_span_context().span_id, f"{number}"

        async with asyncio.timeout(BOUND):
            agents = dict(await asyncio.gather(*(work(number) for number in range(30))))
    parents = [span.parent.span_id for span in telescope.calls() if span.parent]
    assert sorted(parents) == sorted(agents)


ENDS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "rejected": ({"error": {"code": -32602, "message": "no"}}, "-32602", "-32602"),
    "unreadable": ({"body": "<html>"}, "CallOutcomeUnknown", None),
    "unauthorized": ({"status": 401}, "AuthNeeded", None),
    "refused": ({"status": 400}, "CallNotDelivered", None),
}


@pytest.mark.parametrize("end", ENDS)
@every_era
async def test_a_failure_is_told_by_its_type(era: Era, end: str, telescope: Telescope):
    how, error_type, code = ENDS[end]
    async with observed(telescope, era, max_retries=0) as (server, client):
        await client.connect()
        await server.script(Rule(tool="echo", do=Behaviour(**how)))
        error = await outcome(client.call_tool("echo", {"text": "hello"}))
        assert isinstance(error, ToolkeepError)
    span = telescope.call()
    assert status(span) is StatusCode.ERROR
    assert attributes(span)["error.type"] == error_type
    assert attributes(span).get("rpc.response.status_code") == code
    assert attributes(span)["toolkeep.delivery"] == error.delivery.value


@every_era
@every_transport
async def test_a_result_that_says_it_is_an_error_is_a_tool_error(
    era: Era, transport: Transport, telescope: Telescope
):
    async with observed(telescope, era, transport) as (_, client):
        result = await client.call_tool("fail", {"message": "broken"})
    assert result.is_error
    assert status(telescope.call()) is StatusCode.ERROR
    assert attributes(telescope.call())["error.type"] == "tool_error"


@every_era
@every_transport
async def test_a_cancelled_call_ends_its_span(era: Era, transport: Transport, telescope: Telescope):
    async with observed(telescope, era, transport) as (server, client):
        caller = asyncio.ensure_future(client.call_tool("slow", {"seconds": 20}))
        await server.requests(tool="slow", at_least=1)
        assert telescope.calls() == []
        caller.cancel()
        await asyncio.wait((caller,), timeout=BOUND)
        assert caller.cancelled()
    assert attributes(telescope.call())["error.type"] == "cancelled"


async def test_leaving_a_watched_call_ends_its_span(telescope: Telescope):
    async with observed(telescope, "modern") as (_, client):
        async with client.stream("slow", {"seconds": 20}) as call:
            await anext(call)
        assert attributes(telescope.call())["error.type"] == "cancelled"


@every_era
async def test_a_replay_is_an_event_of_the_one_span(era: Era, telescope: Telescope):
    throttled = Behaviour(status=429, headers={"retry-after": "0"})
    async with observed(telescope, era) as (server, client):
        await client.connect()
        await server.script(Rule(tool="echo", do=throttled, times=2))
        await client.call_tool("echo", {"text": "hello"})
    span = telescope.call()
    assert status(span) is StatusCode.UNSET
    assert attributes(span)["toolkeep.attempts"] == 3
    assert [event.name for event in span.events] == ["toolkeep.retry"] * 2
    told = dict(span.events[0].attributes or {})
    assert (told["toolkeep.attempt"], told["toolkeep.failure"], told["toolkeep.status"]) == (
        1,
        "throttled",
        429,
    )


@both_eras
async def test_a_question_is_an_event_of_the_span(way: Way, telescope: Telescope):
    async with meeting(way, elicitation=answering(ADA)) as (_, client):
        client.observe(telescope.observer(), listen=False)
        await client.call_tool("ask", {"requests": {"name": ELICIT}})
    (event,) = telescope.call().events
    assert (event.name, dict(event.attributes or {})) == (
        "toolkeep.input_needed",
        {"mcp.method.name": "elicitation/create"},
    )


async def test_an_observer_that_is_closed_in_the_middle_harms_nobody(telescope: Telescope):
    async with observed(telescope, "modern") as (_, client):
        second = telescope.observer()
        observation = client.observe(second, listen=False)
        async with client.stream("slow", {"seconds": 0.05}) as call:
            await anext(call)
            observation.close()
            await call.result()
        await client.call_tool("echo", {"text": "hello"})
    assert [span.name for span in telescope.calls()] == ["tools/call slow", "tools/call echo"]


async def test_calls_whose_end_is_never_told_do_not_pile_up(telescope: Telescope):
    observer = telescope.observer()
    for number in range(10_001):
        observer(Started(server="kit", tool="echo", call_id=f"{number}"))
    observer(Failed(server="kit", tool="echo", call_id="0", error=OSError()))
    assert [dict(span.attributes or {})["toolkeep.call.id"] for span in telescope.calls()] == ["0"]
    assert (observer.meta("0"), bool(observer.meta("2"))) == ({}, True)
