"""Scenarios: sessions and servers that go away, and come back."""

from __future__ import annotations

import asyncio

from benchmarks.scenarios.scenario import scenario
from benchmarks.scenarios.stage import PROMPT, Stage
from toolkeep.testing.script import Behaviour, Rule
from toolkeep.testing.session_loss import GO_SDK, TYPESCRIPT_400

_AT_ONCE = 8
_CLOSING = 10.0
_LOOKS, _LOOK = 100, 0.02
"""How often, and with which pause, to look whether a server has closed its idle connections."""


@scenario(
    "ten calls, one after the other",
    "one session serves all",
    choice="a client that opens a session for every call pays a handshake each time, and loses what"
    " the server keeps for the session",
    eras=("legacy",),
)
async def one_session(stage: Stage) -> None:
    await stage.ready()
    for number in range(9):
        await stage.answered("echo", text=str(number))
    handshakes = len(await stage.sent("initialize"))
    stage.require(handshakes == 1, f"{handshakes} handshakes for 10 calls")
    sessions = {call.session_id for call in await stage.sent("tools/call")}
    stage.require(len(sessions) == 1, f"{len(sessions)} sessions for 10 calls")


async def _forgotten(stage: Stage) -> None:
    await stage.ready()
    before = len(await stage.sent())
    await stage.server.forget_sessions()
    await stage.answered("record", what="the call after it", key="after")
    await stage.ran("after")
    posts = [each for each in (await stage.sent())[before:] if each.http_method == "POST"]
    stage.note(f"{len(posts)} requests for it")


@scenario(
    "the server forgets the session (404, as the Python SDK's answers)",
    "the next call has its answer, and ran once",
    eras=("legacy",),
)
async def lost_session(stage: Stage) -> None:
    await _forgotten(stage)


@scenario(
    "the same, in the words of servers that copied the TypeScript examples (400, -32000)",
    "the same",
    eras=("legacy",),
    session_loss=TYPESCRIPT_400,
)
async def lost_session_as_a_400(stage: Stage) -> None:
    await _forgotten(stage)


@scenario(
    "the same, in the words of the Go SDK (404, plain text)",
    "the same",
    eras=("legacy",),
    session_loss=GO_SDK,
)
async def lost_session_in_plain_text(stage: Stage) -> None:
    await _forgotten(stage)


@scenario(
    f"the server forgets the session, and {_AT_ONCE} calls at once find out",
    "each has its answer, and ran once",
    eras=("legacy",),
)
async def lost_session_by_many(stage: Stage) -> None:
    await stage.ready()
    await stage.server.forget_sessions()
    keys = [f"many-{number}" for number in range(_AT_ONCE)]
    for told in await stage.outcomes([stage.start("record", key=key) for key in keys]):
        stage.require(told.good, f"one of {_AT_ONCE} calls: {told}")
    for key in keys:
        await stage.ran(key)
    stage.note(f"{len(await stage.sent('initialize')) - 1} handshakes for it")


@scenario("the server restarts between two calls", "the next call has its answer, and ran once")
async def restart(stage: Stage) -> None:
    await stage.ready()
    await stage.server.restart()
    await stage.answered("record", what="the call after it", key="after")
    await stage.ran("after")


@scenario(
    "the server is down for one call, and back for the next",
    "the first is told so, the second has its answer; no caller's task is cancelled",
)
async def down_for_a_while(stage: Stage) -> None:
    await stage.ready(proxied=True)
    stage.proxy.refuse()
    stage.proxy.kill_connections()
    down = await stage.call("record", key="down")
    stage.require(down.what == "error" or down.failed, f"while it is down: {down}")
    await stage.truthful(down, "down")
    await stage.ran("down", 0)
    stage.note(f"told: {down}")
    await stage.proxy.heal()
    await stage.goes_on()


@scenario(
    "the server closes a connection that was idle",
    "the next call has its answer, and ran once",
    keep_alive=0.2,
)
async def idle_connection_closed(stage: Stage) -> None:
    await stage.ready()
    for _ in range(_LOOKS):
        if await stage.server.open_connections() <= 1:  # a GET stream may be open, and is not idle
            break
        await asyncio.sleep(_LOOK)
    await stage.answered("record", what="the call after it", key="after")
    await stage.ran("after")


@scenario(
    "the server takes the first request, and never answers it",
    f"opening, or the first call, which is granted 2 s, gives up within {PROMPT:.0f} s",
)
async def handshake_hangs(stage: Stage) -> None:
    for method in ("server/discover", "initialize"):
        await stage.server.script(Rule(method=method, do=Behaviour(hang=True)))
    told = await stage.open(timeout=2.0)
    if told.what == "answer":
        told = await stage.call("record", key="never")
    stage.require(told.what == "error", f"with 2 s to do it: {told}")
    stage.require(told.seconds < PROMPT, f"with 2 s to do it: told after {told.seconds:.1f} s")
    await stage.ran("never", 0)
    stage.note(f"told after {told.seconds:.1f} s: {told}")


@scenario(
    "the network stops delivering, and the client is closed",
    f"closing ends within {_CLOSING:.0f} s",
)
async def closing_while_deaf(stage: Stage) -> None:
    await stage.ready(proxied=True)
    stage.proxy.stall()
    closed = await stage.close()
    stage.require(closed.what in ("answer", "error"), f"closing: {closed}")
    stage.require(closed.seconds < _CLOSING, f"closing took {closed.seconds:.1f} s")
    stage.note(f"closed after {closed.seconds:.1f} s")


ALL = (
    *(one_session, lost_session, lost_session_as_a_400, lost_session_in_plain_text),
    *(lost_session_by_many, restart, down_for_a_while, idle_connection_closed),
    *(handshake_hangs, closing_while_deaf),
)
