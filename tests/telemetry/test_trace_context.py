"""Trace context goes with each call in its `_meta`, and with no other."""

import asyncio
import json
import logging
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from tests.engine.helpers_rounds import ADA, ELICIT, Way, answering, both_eras, meeting
from tests.engine.helpers_tasks import BOUND, Era, every_era, serving
from tests.telemetry.helpers_otel import (
    Telescope,
    Transport,
    every_transport,
    metas,
    observed,
    traceparent,
)
from toolkeep.events import Event, InputNeeded
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("O1")

KEYS = {"traceparent", "tracestate", "baggage"}


@every_era
@every_transport
async def test_the_server_gets_the_span_of_the_call(
    era: Era, transport: Transport, telescope: Telescope
):
    async with observed(telescope, era, transport) as (server, client):
        await client.call_tool("echo", {"text": "hello"})
        (meta,) = await metas(server, "echo")
    assert meta["traceparent"] == traceparent(telescope.call())
    assert not KEYS & meta.keys() - {"traceparent"}


@every_era
async def test_tracestate_and_baggage_go_along(era: Era, telescope: Telescope):
    remote = SpanContext(1, 2, True, TraceFlags(TraceFlags.SAMPLED), TraceState([("us", "1")]))
    async with observed(telescope, era) as (server, client):
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        try:
            with use_span(NonRecordingSpan(remote)):
                await client.call_tool("echo", {"text": "hello"})
        finally:
            context.detach(token)
        await client.call_tool("record")
        (inside,), (outside,) = await metas(server, "echo"), await metas(server, "record")
    assert (inside["tracestate"], inside["baggage"]) == ("us=1", "tenant=blue")
    assert inside["traceparent"].startswith(f"00-{1:032x}-")
    assert not {"tracestate", "baggage"} & outside.keys()


@every_era
@every_transport
async def test_concurrent_calls_do_not_mix_their_contexts(
    era: Era, transport: Transport, telescope: Telescope
):
    async with observed(telescope, era, transport) as (server, client):

        async def work(number: int) -> tuple[str, str]:
            context.attach(baggage.set_baggage("number", f"{number}"))  # ends with the task
            with telescope.tracer.start_as_current_span("agent") as agent:
                await client.call_tool("echo", {"text": f"{number}"})
                return f"number={number}", f"{agent.get_span_context().trace_id:032x}"

        async with asyncio.timeout(BOUND):
            tasks = [asyncio.create_task(work(number)) for number in range(30)]
            traces = dict(await asyncio.gather(*tasks))
        arrived = await metas(server, "echo")
    assert {m["baggage"]: m["traceparent"].split("-")[1] for m in arrived} == traces
    assert {m["traceparent"] for m in arrived} == {traceparent(s) for s in telescope.calls()}


@every_era
async def test_a_replay_carries_the_same_span(era: Era, telescope: Telescope):
    throttled = Behaviour(status=429, headers={"retry-after": "0"})
    async with observed(telescope, era) as (server, client):
        await client.connect()
        await server.script(Rule(tool="echo", do=throttled, times=1))
        await client.call_tool("echo", {"text": "hello"})
        sent = [meta["traceparent"] for meta in await metas(server, "echo")]
    assert sent == [traceparent(telescope.call())] * 2


@both_eras
async def test_every_leg_of_a_call_carries_the_same_span(way: Way, telescope: Telescope):
    async with meeting(way, elicitation=answering(ADA)) as (server, client):
        client.observe(telescope.observer(), listen=False)
        await client.call_tool("ask", {"requests": {"name": ELICIT}})
        sent = {meta["traceparent"] for meta in await metas(server, "ask")}
    assert sent == {traceparent(telescope.call())}


@every_era
async def test_what_is_not_a_call_carries_no_context(era: Era, telescope: Telescope):
    async with observed(telescope, era) as (server, client):
        with telescope.tracer.start_as_current_span("agent"):
            await client.call_tool("echo", {"text": "hello"})
            await client.list_tools()
        others = [seen for seen in await server.requests() if seen.tool is None]
    assert others
    assert "traceparent" not in json.dumps([[seen.body, seen.headers] for seen in others])


@every_era
async def test_who_records_nothing_adds_nothing(era: Era):
    telescope = Telescope(sampled=False)
    async with observed(telescope, era) as (server, client):
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        await client.call_tool("echo", {"text": "hello"})
        context.detach(token)
        (meta,) = await metas(server, "echo")
    telescope.close()
    assert not KEYS & meta.keys()


async def test_propagation_can_be_switched_off(telescope: Telescope):
    async with serving("modern") as (server, client):
        client.observe(telescope.observer(propagate=False), listen=False)
        await client.call_tool("echo", {"text": "hello"})
        (meta,) = await metas(server, "echo")
    assert telescope.calls()
    assert not KEYS & meta.keys()


OURS = {"traceparent": "00-ours", "tracestate": "ours=1", "tenant": "blue"}


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ({"mine": 1}, {**OURS, "mine": 1}),
        ({"tenant": "red"}, {**OURS, "tenant": "red"}),
        ({"traceparent": "00-mine"}, {"traceparent": "00-mine", "tenant": "blue"}),
        ({"tracestate": "mine=1"}, {"tracestate": "mine=1", "tenant": "blue"}),
    ],
    ids=["something else", "the same key", "a traceparent", "a tracestate"],
)
@every_era
async def test_what_the_caller_gives_wins_and_a_trace_context_is_never_a_mixture(
    era: Era, given: dict[str, Any], arrives: dict[str, Any]
):
    async with serving(era) as (server, client):
        client.observe(Adding(OURS), listen=False)
        await client.call_tool("echo", {"text": "hello"}, meta=given)
        (meta,) = await metas(server, "echo")
    assert {key: meta[key] for key in meta.keys() & {*OURS, "mine"}} == arrives


class Adding:
    """An observer that adds the same to every call."""

    def __init__(self, added: Any) -> None:
        self.added, self.asked, self.events = added, list[str](), list[Event]()

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def meta(self, call_id: str) -> Any:
        self.asked.append(call_id)
        if isinstance(self.added, Exception):
            raise self.added
        return self.added


@pytest.mark.parametrize(
    "added",
    [LookupError("mine"), None, 7, {"x": object()}, {"x": float("nan")}, ["x"]],
    ids=lambda added: type(added).__name__,
)
@every_era
async def test_an_observer_that_fails_to_add_is_logged_and_the_call_goes_on(
    era: Era, added: Any, caplog: pytest.LogCaptureFixture
):
    async with serving(era) as (server, client):
        client.observe(Adding(added), listen=False)
        client.observe(Adding({"other": 1}), listen=False)
        result = await client.call_tool("echo", {"text": "hello"})
        (meta,) = await metas(server, "echo")
    assert (result.text, meta["other"], "x" in meta) == ("hello", 1, False)
    failures = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.name for each in failures] == ["toolkeep.client"]


async def test_an_observer_is_asked_after_it_was_told_of_the_start_with_the_same_id():
    adding = Adding({})
    async with serving("modern") as (_, client):
        client.observe(adding, listen=False)
        await client.call_tool("echo", {"text": "hello"})
    told = [getattr(event, "call_id", None) for event in adding.events if event.kind == "started"]
    assert told == adding.asked


async def test_an_observer_that_comes_in_the_middle_of_a_call_adds_nothing_to_it():
    """The call has no id by which it could be told apart."""
    adding = Adding({"late": 1})

    async def come(needed: InputNeeded) -> Any:
        client.observe(adding, listen=False)
        return ADA

    async with meeting(Way("json", "modern"), elicitation=come) as (server, client):
        await client.call_tool("ask", {"requests": {"name": ELICIT}})
        legs = await metas(server, "ask")
    assert (len(legs), adding.asked) == (2, [])
