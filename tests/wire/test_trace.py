"""What passes over the wire can be looked at: all of it, in order, and no secret."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

import pytest

from toolkeep import Client, ToolkeepError
from toolkeep._client.options import ClientOptions
from toolkeep._transport.base import Tap
from toolkeep._transport.trace import (
    MAX_BODY_BYTES,
    HttpTrace,
    TraceEvent,
    TraceKind,
    redact,
)
from toolkeep.config import ServerSpec
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PATIENCE = 10.0
SECRET = 'sekret/"quoted" ä'


@asynccontextmanager
async def tapped(spec: dict[str, Any], told: list[TraceEvent]) -> AsyncIterator[Client]:
    known = ServerSpec.model_validate({"name": "kit", "max_retries": 0, **spec})
    client = Client.with_options(known, ClientOptions(tracer=told.append), {})
    async with asyncio.timeout(PATIENCE), client:
        yield client


def moves(told: list[TraceEvent], number: int) -> list[TraceKind]:
    return [passing.kind for passing in told if passing.request_number == number]


@pytest.mark.parametrize("encoding", ["json", "sse"])
async def test_a_request_and_its_answer_are_told_in_order(encoding: Any):
    told: list[TraceEvent] = []
    async with (
        ScriptedServer.local(era="legacy", encoding=encoding) as server,
        tapped({"url": server.url, "headers": {"X-Team": "the-blue-team"}}, told) as client,
    ):
        await client.call_tool("echo", {"text": "hello"})
    (asked,) = (one for one in told if '"tools/call"' in one.body)
    assert asked.kind is TraceKind.REQUEST
    assert asked.text == f"POST {server.url}"
    assert asked.headers["x-team"] == "***"
    assert asked.headers["mcp-session-id"] == "***"
    assert asked.headers["content-type"] == "application/json"
    assert moves(told, asked.request_number) == [
        TraceKind.REQUEST,
        TraceKind.RESPONSE,
        TraceKind.BODY,
    ]
    answer, body = (
        one for one in told if one.request_number == asked.request_number and one is not asked
    )
    assert answer.status == 200
    assert '"hello"' in body.body
    assert "the-blue-team" not in repr(told)
    deleted = next(one for one in told if one.text == f"DELETE {server.url}")
    assert TraceKind.RESPONSE in moves(told, deleted.request_number)


async def test_events_of_a_stream_are_told_one_by_one_while_it_is_open():
    told: list[TraceEvent] = []
    seen: list[int] = []

    def events() -> list[TraceEvent]:
        return [one for one in told if one.kind is TraceKind.BODY and "step" in one.body]

    def look(*_: object) -> None:
        seen.append(len(events()))

    async with (
        ScriptedServer.local(encoding="sse") as server,
        tapped({"url": server.url}, told) as client,
    ):
        await client.call_tool("steps", {"count": 3, "gap": 0.1}, on_progress=look)
    assert 0 < seen[0] < 4
    assert len(events()) == 4, "three steps, and the answer"


@pytest.mark.parametrize(
    ("do", "last"),
    [
        (Behaviour(drop="after_body"), TraceKind.FAILED),
        (Behaviour(cut_after=10), TraceKind.FAILED),
        (Behaviour(hang=True), TraceKind.ABANDONED),
        (Behaviour(endless=True, encoding="sse"), TraceKind.ABANDONED),
    ],
    ids=["no answer", "broken answer", "read", "endless answer"],
)
async def test_an_answer_that_does_not_come_is_told_as_that(do: Behaviour, last: TraceKind):
    told: list[TraceEvent] = []
    async with (
        ScriptedServer.local() as server,
        tapped({"url": server.url}, told) as client,
    ):
        await server.script(Rule(tool="echo", do=do))
        with suppress(ToolkeepError):
            await client.call_tool("echo", {"text": "hello"}, timeout=0.5)
        (asked,) = (one for one in told if '"tools/call"' in one.body)
        assert last in moves(told, asked.request_number)


async def test_a_large_body_is_cut_where_it_cannot_give_a_secret_away():
    told: list[TraceEvent] = []
    async with (
        ScriptedServer.local() as server,
        tapped({"url": server.url}, told) as client,
    ):
        await server.script(Rule(tool="echo", do=Behaviour(body_bytes=2 * MAX_BODY_BYTES)))
        result = await client.call_tool("echo", {"text": "hello"})
    (body,) = (one.body for one in told if len(one.body) > MAX_BODY_BYTES // 2)
    assert len(result.text) > len(body)
    assert body.endswith(" bytes more")
    assert len(body) < MAX_BODY_BYTES + 100


@pytest.mark.parametrize("shown", range(1, len("sekret-secret")))
def test_half_of_a_secret_at_the_cut_is_not_shown(shown: int):
    told: list[TraceEvent] = []
    talk = HttpTrace(Tap(told.append), 1, ("sekret-secret",))
    talk.body_received(b"x" * (MAX_BODY_BYTES - shown) + b"sekret-secret")
    talk.body_received(b"more")
    talk.body_received(b"")
    talk.body_ended()
    talk.body_ended()
    (body,) = told
    assert "s" not in body.body.partition("…")[0]


@pytest.mark.parametrize("guise", [SECRET, quote(SECRET), json.dumps(SECRET)[1:-1]])
def test_no_beginning_of_a_secret_is_shown_where_a_body_broke_off(guise: str):
    written = guise.encode()
    for end in range(1, len(written) + 1):
        told: list[TraceEvent] = []
        talk = HttpTrace(Tap(told.append), 1, (f"Bearer {SECRET}",))
        talk.body_received(b"expired: " + written[:end])
        talk.body_ended()
        assert [one.body.rstrip() for one in told] in (["expired:"], ["expired: ***"])


def test_the_end_of_a_body_that_is_all_there_is_left_as_it_is():
    told: list[TraceEvent] = []
    talk = HttpTrace(Tap(told.append), 1, ("sekret-secret",))
    talk.body_received(b"successes")
    talk.body_received(b"")
    talk.body_ended()
    assert told[0].body == "successes"


@pytest.mark.parametrize(
    "text",
    [
        f"the key {SECRET} has expired",
        '{"message": "the key sekret/\\"quoted\\" ä"}',
        '{"message": "the key sekret\\/\\"quoted\\" \\u00e4"}',
        "http://host/?q=sekret%2F%22quoted%22%20%C3%A4",
        "http://host/sekret/%22quoted%22%20%C3%A4",
        "http://host/?access_token=sekret-of-somebody-else",
        '{"accessToken" : "sekret-of-\\"somebody\\"-else", "text": "plain"}',
        '{"accessToken" : "sekret-of-\\"somebody\\',
    ],
)
def test_a_secret_is_taken_out_however_it_is_written(text: str):
    shown = redact(text, (f"Bearer {SECRET}",))
    assert "sekret" not in shown
    assert "quoted" not in shown
    assert "somebody" not in shown
    assert "***" in shown


def test_what_is_no_secret_stays():
    said = '{"text": "the token of my esteem", "count": 3}'
    assert redact(said, ("sekret-of-ours",)) == said


async def test_a_program_is_told_from_its_start_to_its_last_words():
    told: list[TraceEvent] = []
    noise = "Hello from sekret-of-the-program\n"
    async with ScriptedServer.stdio(stdout_noise=noise, stderr="goodbye\n") as program:
        env = {**program.spec.get("env", {}), "KEY": "sekret-of-the-program"}
        spec = {**program.spec, "env": env, "max_result_bytes": 20_000}
        async with tapped(spec, told) as client:
            await program.script(
                Rule(tool="add", do=Behaviour(body_bytes=40_000)),
                Rule(tool="echo", do=Behaviour(drop="after_run", exit_code=3)),
            )
            for tool, given in (("add", {"a": 1, "b": 2}), ("echo", {"text": "hello"})):
                with suppress(ToolkeepError):
                    await client.call_tool(tool, given)
    texts = [(one.kind, one.text or one.body) for one in told]
    assert texts[0] == (TraceKind.OPENED, "")
    assert (TraceKind.STRAY_OUTPUT, "Hello from ***") in texts
    assert (TraceKind.RECEIVED, "a message of more than 20000 bytes") in texts
    sent = [text for move, text in texts if move is TraceKind.SENT]
    assert [call in sent[-1] for call in ('"tools/call"', '"hello"')] == [True, True]
    (ended,) = (one for one in told if one.kind is TraceKind.CLOSED)
    assert "code 3" in ended.text
    assert "goodbye" in ended.body
    assert "sekret" not in repr(told)


def test_whoever_does_not_look_on_does_not_pay_for_it():
    script = """
import asyncio, sys
from toolkeep import Client
from toolkeep.testing import ScriptedServer

async def main():
    async with ScriptedServer.local() as server, Client(server.url) as client:
        await client.call_tool("echo", {"text": "hello"})
    print("toolkeep._transport.trace" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
