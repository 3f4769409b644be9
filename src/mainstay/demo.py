"""`python -m mainstay.demo`: a client survives its server, and says what it cost.

Every line marked `ok` is a claim that was compared with the server's own record of requests and
runs, never with what the client thinks of itself. Exit code 0: all claims held.

A server process of each era is put through the same acts; the client is not told which era it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from mainstay import (
    CallEvent,
    CallOutcomeUnknown,
    CallResult,
    Client,
    Completed,
    MainstayError,
    Progress,
    __version__,
)
from mainstay.testing import PYTHON_SDK, Behaviour, Rule, ScriptedServer, SessionLoss

Era = Literal["legacy", "modern"]

WIDTH = 78
LONGEST = 30.0
"""Seconds for one era. It takes about two."""
STEPS, GAP = 5, 0.15

CALL = ("tools/call",)
OPENING: dict[Era, tuple[str, ...]] = {
    "legacy": ("server/discover", "initialize", "notifications/initialized"),
    "modern": ("server/discover",),
}
RECOVERY: dict[Era, tuple[str, ...]] = {
    "legacy": (*CALL, "initialize", "notifications/initialized", *CALL),
    "modern": CALL,
}
ABOUT: dict[Era, str] = {
    "legacy": "LEGACY SERVER: a handshake, then a session that can be lost",
    "modern": "MODERN SERVER: no handshake, no session; each request stands alone",
}


@dataclass(frozen=True)
class Claim:
    """Something told about an act, with what was promised and what was found."""

    told: str
    promised: object
    seen: object

    @property
    def holds(self) -> bool:
        return self.promised == self.seen


def verdict(claims: list[Claim]) -> int:
    """The exit code: 0 if there were claims, and every one held."""
    return 0 if claims and all(claim.holds for claim in claims) else 1


class Screen:
    """Writes for people: in colour and redrawing on a terminal, line by line into a log."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._live = out, out.isatty()
        self._coloured = self._live and "NO_COLOR" not in os.environ
        self._full, self._empty = ("█", "░") if _can_write(out, "█░") else ("#", "-")

    def line(self, text: str = "", *, indent: str = "", style: str = "") -> None:
        """One paragraph, wrapped; further lines stand under the text."""
        for part in textwrap.wrap(text, WIDTH - len(indent)) or [""]:
            shown = f"\x1b[{style}m{part}\x1b[0m" if style and self._coloured else part
            print(f"{indent}{shown}".rstrip(), file=self._out, flush=True)
            indent = " " * len(indent)

    def claim(self, claim: Claim) -> None:
        if claim.holds:
            self.line(claim.told, indent="     ok  ", style="32")
        else:
            differed = f"{claim.told} -- promised {claim.promised!r}, seen {claim.seen!r}"
            self.line(differed, indent="     NO  ", style="31")

    def bar(self, event: Progress) -> None:
        done = round((event.fraction or 0.0) * 30)
        drawn = f"{self._full * done}{self._empty * (30 - done)}"
        text = f"         {drawn} {event.fraction or 0.0:4.0%}  {event.message}"
        redrawn = self._live and event.fraction != 1.0
        print(f"\r{text}" if self._live else text, end="" if redrawn else "\n", file=self._out)
        self._out.flush()


def _can_write(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


@dataclass
class Stage:
    """One server and one client of it. Lives as long as the acts of one era."""

    era: Era
    server: ScriptedServer
    client: Client
    screen: Screen
    counted: int = 0
    """Requests that earlier acts have accounted for."""
    socket: int = 0
    """The TCP connection of the last request that was accounted for."""

    async def cost(self, *promised: str, same_socket: bool = True) -> list[Claim]:
        """What reached the server since the last time, against what was promised."""
        new = (await self.server.requests())[self.counted :]
        before, seen = self.socket, [request.rpc_method or request.http_method for request in new]
        self.counted, self.socket = self.counted + len(new), new[-1].socket if new else before
        number = f"{len(promised)} request{'s' if len(promised) > 1 else ''}"
        claims = [Claim(f"{number}: {', '.join(promised)}", list(promised), seen)]
        if same_socket:
            sockets = sorted({request.socket for request in new})
            claims.append(Claim("on the TCP connection that was already open", [before], sockets))
        return claims

    async def ran(self, key: str, times: int, told: str) -> Claim:
        return Claim(told, times, await self.server.executions(key))

    async def call(self, tool: str, **arguments: Any) -> CallResult | MainstayError:
        try:
            return await self.client.call_tool(tool, arguments)
        except MainstayError as error:
            return error


def _answer(outcome: CallResult | MainstayError) -> str:
    return outcome.text if isinstance(outcome, CallResult) else repr(outcome)


async def list_tools(stage: Stage) -> list[Claim]:
    tools = [tool.name for tool in await stage.client.list_tools()]
    found = f"{len(tools)} tools: {', '.join(tools[:4])}, ..."
    speaks = f"the client found out by itself that the server is {stage.era}"
    return [
        Claim(found, True, {"add", "echo", "record", "steps"} <= set(tools)),
        Claim(speaks, stage.era, stage.client.era),
        *await stage.cost(*OPENING[stage.era], "tools/list", same_socket=False),
    ]


async def call(stage: Stage) -> list[Claim]:
    outcome = await stage.call("add", a=2, b=3, key="sum")
    return [
        Claim('add(2, 3) answered {"sum": 5}', '{"sum": 5}', _answer(outcome)),
        await stage.ran("sum", 1, "the tool ran once"),
        *await stage.cost(*CALL),
    ]


async def watch(stage: Stage) -> list[Claim]:
    events: list[CallEvent] = []
    async with stage.client.stream("steps", {"count": STEPS, "gap": GAP}) as watched:
        async for event in watched:
            events.append(event)
            if isinstance(event, Progress):
                stage.screen.bar(event)
    steps = [event for event in events if isinstance(event, Progress)]
    early = bool(steps) and events[-1].at - steps[0].at > GAP
    return [
        Claim(f"{STEPS} steps, one event for each", STEPS, len(steps)),
        Claim("the first was here while the tool still had work to do", True, early),
        Claim("the last event is the answer", True, isinstance(events[-1], Completed)),
        *await stage.cost(*CALL),
    ]


async def forget(stage: Stage) -> list[Claim]:
    before = stage.client.session_id
    await stage.server.forget_sessions()
    outcome = await stage.call("echo", text="still here", key="forgotten")
    claims = [
        Claim("the next call was answered", "still here", _answer(outcome)),
        await stage.ran("forgotten", 1, "the tool ran once"),
    ]
    if stage.era == "legacy":
        renewed = stage.client.session_id not in (None, before)
        claims.append(Claim("there is a new session; nobody had to ask for it", True, renewed))
    else:
        claims.append(Claim("there was no session to lose", None, before))
    return [*claims, *await stage.cost(*RECOVERY[stage.era])]


async def restart(stage: Stage) -> list[Claim]:
    before = stage.socket
    await stage.server.restart()
    outcome = await stage.call("echo", text="back again", key="restarted")
    claims = [
        Claim("the next call was answered by the new process", "back again", _answer(outcome)),
        await stage.ran("restarted", 1, "the tool ran once"),
        *await stage.cost(*RECOVERY[stage.era], same_socket=False),
    ]
    return [*claims, Claim("on a new TCP connection", True, stage.socket > before)]


CUT = Behaviour(delay=GAP, drop="after_run", reset=True)


async def cut_side_effect(stage: Stage) -> list[Claim]:
    await stage.server.script(Rule(tool="record", times=1, do=CUT))
    outcome = await stage.call("record", key="payment")
    kind = CallOutcomeUnknown.__name__
    return [
        Claim(f"the caller is told {kind}: it may have run", kind, type(outcome).__name__),
        await stage.ran("payment", 1, "it had run, once; it was not sent again"),
        *await stage.cost(*CALL),
    ]


async def cut_harmless(stage: Stage) -> list[Claim]:
    await stage.client.list_tools(refresh=True)
    await stage.server.script(Rule(tool="record_read_only", times=1, do=CUT))
    outcome = await stage.call("record_read_only", key="look")
    return [
        Claim("the caller has its answer", "recorded", _answer(outcome)),
        await stage.ran("look", 2, "it ran twice, which its server calls harmless"),
        *await stage.cost("tools/list", *CALL, *CALL, same_socket=False),
    ]


ACTS: tuple[tuple[str, Callable[[Stage], Awaitable[list[Claim]]]], ...] = (
    ("The first use opens the client: list the tools", list_tools),
    ("Call a tool", call),
    ("Watch a tool at work", watch),
    ("The server forgets its sessions", forget),
    ("The server's process is killed and started again", restart),
    ("The connection is cut while a tool with a side effect runs", cut_side_effect),
    ("The same cut, but the list of tools says that this one is read-only", cut_harmless),
)


async def play(stage: Stage) -> list[Claim]:
    """All acts on one stage. What an act raises is a claim that does not hold."""
    made: list[Claim] = []
    stage.screen.line(ABOUT[stage.era], style="1")
    for number, (title, act) in enumerate(ACTS, 1):
        stage.screen.line(title, indent=f"  {number}  ", style="1")
        try:
            claims = await act(stage)
        except MainstayError as error:
            claims = [Claim("no error", None, error)]
        for claim in claims:
            stage.screen.claim(claim)
        made += claims
    stage.screen.line()
    return made


async def perform(era: Era, screen: Screen, loss: SessionLoss) -> list[Claim]:
    async with (
        asyncio.timeout(LONGEST),
        ScriptedServer.spawn(era=era, encoding="sse", session_loss=loss) as server,
        contextlib.aclosing(Client(server.url)) as client,
    ):
        return await play(Stage(era, server, client, screen))


def main(loss: SessionLoss = PYTHON_SDK, out: TextIO | None = None) -> int:
    """Both eras. `loss`: how the server says that it does not know a session."""
    screen = Screen(out or sys.stdout)
    screen.line(f"mainstay {__version__}: what a client does when its server fails it", style="1")
    screen.line("Requests and runs are counted at the server, a process of its own.")
    screen.line()
    claims: list[Claim] = []
    for era in ("legacy", "modern"):
        claims += asyncio.run(perform(era, screen, loss))
    held = sum(claim.holds for claim in claims)
    screen.line(f"{held} of {len(claims)} claims held.", style="1")
    return verdict(claims)


if __name__ == "__main__":
    sys.exit(main())
