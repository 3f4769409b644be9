"""No secret in a span, a metric or a log line, whatever goes wrong."""

import asyncio
import json
import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_secrets import HEADER, KEY, MARK, MINE, PASSWORD, QUERY, USER
from tests.engine.helpers_tasks import BOUND, Era, closing, every_era, outcome
from tests.telemetry.helpers_otel import Telescope
from toolkeep import Client
from toolkeep.events import Event
from toolkeep.telemetry import LogObserver
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("H6")

ANSWERS: dict[str, Behaviour] = {
    "fine": Behaviour(),
    "401": Behaviour(status=401),
    "429": Behaviour(status=429),
    "500 that quotes": Behaviour(status=500, body=f"the key {KEY} has expired"),
    "rejected, quoting": Behaviour(error={"code": -32602, "message": MINE, "data": QUERY}),
    "a result that quotes": Behaviour(
        result={"content": [{"type": "text", "text": MINE}], "isError": True}
    ),
    "html": Behaviour(body="<html>"),
    "reset": Behaviour(drop="after_run", reset=True),
    "foreign redirect": Behaviour(
        redirect=f"http://{USER}:{PASSWORD}@elsewhere.test/?token={QUERY}"
    ),
}


@asynccontextmanager
async def watched(
    era: Era, telescope: Telescope, caplog: pytest.LogCaptureFixture, **spec: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A client full of secrets, with every observer there is; nothing that it tells shows one."""
    caplog.set_level(logging.DEBUG, logger="toolkeep")
    sessions = set[str]()
    async with (
        ScriptedServer.local(era=era) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
    ):
        address = proxy.url().replace("://", f"://{USER}:{PASSWORD}@")
        with warnings.catch_warnings(action="ignore"):
            own = {"api_key": KEY, "headers": {"x-secret": HEADER}, "max_retries": 1}
            url = f"{address}?token={QUERY}"
            client = Client({"name": "kit", "mode": era, "url": url, **own, **spec})

        def note(event: Event) -> None:
            if client.session_id is not None:
                sessions.add(client.session_id)

        client.observe(telescope.observer(servers=[client.spec]))
        client.observe(LogObserver())
        client.observe(note)
        async with closing(client):
            yield server, client
    shown = telescope.shown() + "".join(told(record) for record in caplog.records)
    assert "tools/call" in shown
    assert MARK not in shown
    assert era == "modern" or sessions
    assert not [session for session in sessions if session in shown]


def told(record: logging.LogRecord) -> str:
    """A line as people and as machines read it."""
    extra = json.dumps(getattr(record, "toolkeep", None), default=repr)
    return f"{logging.Formatter().format(record)} {record.args!r} {extra}\n"


@pytest.mark.parametrize("answer", ANSWERS)
@every_era
async def test_no_answer_makes_telemetry_show_a_secret(
    era: Era, answer: str, telescope: Telescope, caplog: pytest.LogCaptureFixture
):
    async with watched(era, telescope, caplog) as (server, client):
        await client.connect()
        await server.script(Rule(tool="echo", do=ANSWERS[answer]))
        own = {"x-request-id": MINE}
        await outcome(client.call_tool("echo", {"text": MINE}, headers=own, meta={"mine": MINE}))


@every_era
async def test_what_a_call_is_about_is_not_shown(
    era: Era, telescope: Telescope, caplog: pytest.LogCaptureFixture
):
    async with watched(era, telescope, caplog) as (_, client):
        await client.list_tools()
        await client.call_tool("echo", {"text": MINE})
        await client.call_tool("fail", {"message": MINE})
        await outcome(client.call_tool("add", {"a": MINE, "b": 1}))
        await outcome(client.call_tool("slow", {"seconds": 20, "key": MINE}, timeout=0.05))
        async with client.stream("logs", {"lines": [MINE]}) as call:
            await outcome(call.result())


@every_era
async def test_a_server_that_is_gone_shows_no_secret(
    era: Era, telescope: Telescope, caplog: pytest.LogCaptureFixture
):
    async with watched(era, telescope, caplog, breaker_threshold=0) as (server, client):
        await client.call_tool("echo", {"text": MINE})
        await server.script(Rule(do=Behaviour(drop="before_body", reset=True)))
        await outcome(client.call_tool("echo", {"text": MINE}))


async def test_a_program_that_dies_with_a_secret_on_its_lips_shows_none(
    telescope: Telescope, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="toolkeep")
    async with ScriptedServer.stdio(era="legacy", stderr=f"password {MINE}") as server:
        spec = {**server.spec, "env": {**server.spec.get("env", {}), "TOKEN": KEY}}
        async with closing(Client({"name": "kit", "mode": "legacy", **spec})) as client:
            client.observe(telescope.observer(servers=[client.spec]))
            client.observe(LogObserver(), listen=False)
            async with asyncio.timeout(BOUND):
                await client.call_tool("echo", {"text": "hello"})
            await server.script(Rule(tool="record", do=Behaviour(drop="after_run", exit_code=3)))
            await outcome(client.call_tool("record"))
    ours = [record for record in caplog.records if record.name == "toolkeep.events"]
    shown = telescope.shown() + "".join(told(record) for record in ours)
    assert "CallOutcomeUnknown" in shown
    assert MARK not in shown
