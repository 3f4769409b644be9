"""What a scenario has in its hands: a scripted server, a proxy before it, and a client.

What became of a call is read from the server's ledger, never from the client's word; the word is
compared with it. A scenario that sees what it must not see raises `Broken` with the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scenarios._driver import ClientProcess, Told, Turn
from toolkeep.testing.proxy import FaultProxy
from toolkeep.testing.script import Recorded
from toolkeep.testing.scripted import ScriptedServer

TIMEOUT = 8.0
"""Seconds that a client is told to grant each call, unless the scenario is about that."""
PROMPT = 5.0
"""Within so many seconds a caller is to be told what can be known at once."""
_GRACE = 4.0
"""Seconds beyond the client's own timeout before it is taken to hang."""


class Broken(Exception):
    """What was seen, and should not have been."""


class NotApplicable(Exception):
    """Why a scenario says nothing about this client."""


@dataclass(slots=True)
class Stage:
    """One scenario's. Lives as long as it."""

    server: ScriptedServer
    proxy: FaultProxy
    process: ClientProcess
    era: str = "legacy"
    timeout: float = TIMEOUT
    notes: list[str] = field(default_factory=list[str])

    # -- the client -----------------------------------------------------------------------------

    async def open(self, *, proxied: bool = False, timeout: float = TIMEOUT) -> Told:
        """Have the client opened; `proxied`: through the proxy."""
        self.timeout = timeout
        url = self.proxy.url() if proxied else self.server.url
        return await self._told(self.process.ask("open", url=url, timeout=timeout))

    async def log_in(self, url: str, folder: str, *, proxy: str = "") -> Told:
        """Have the client opened at a server that wants a login. What it keeps is in the folder;
        `proxy`: for what is not on this machine."""
        details = {"timeout": self.timeout, "folder": folder, "proxy": proxy}
        return await self._told(self.process.ask("log_in", url=url, **details))

    async def ready(self, *, proxied: bool = False, timeout: float = TIMEOUT) -> None:
        """Open the client, and have it make a first call."""
        opened = await self.open(proxied=proxied, timeout=timeout)
        self.require(opened.what == "answer", f"opening: {opened}")
        await self.answered("echo", text="first")

    def start(
        self,
        tool: str,
        *,
        headers: Mapping[str, str] | None = None,
        watched: bool = False,
        beside: bool = True,
        **arguments: Any,
    ) -> Turn:
        """Begin a call; `beside`: in a task of its own, not in the one that opened the client."""
        return self.process.ask(
            "call",
            name=tool,
            arguments=arguments,
            headers=dict(headers) if headers else None,
            watched=watched,
            beside=beside,
        )

    async def call(self, tool: str, **arguments: Any) -> Told:
        """A call in the task that opened the client."""
        return await self._told(self.start(tool, beside=False, **arguments))

    async def outcomes(self, turns: Sequence[Turn]) -> list[Told]:
        return [await self._told(turn) for turn in turns]

    async def cancel(self, turn: Turn) -> Told:
        self.process.cancel(turn)
        return await self._told(turn)

    async def tools(self) -> Told:
        return await self._told(self.process.ask("list"))

    async def close(self) -> Told:
        return await self._told(self.process.ask("close"))

    async def _told(self, turn: Turn) -> Told:
        told = await turn.told(self.timeout + _GRACE)
        if told.what == "unsupported":
            raise NotApplicable(told.text)
        return told

    # -- judging --------------------------------------------------------------------------------

    def require(self, condition: bool, evidence: str) -> None:
        if not condition:
            raise Broken(evidence)

    def note(self, fact: str) -> None:
        """Something worth knowing, whatever the verdict."""
        self.notes.append(fact)

    async def answered(self, tool: str, *, what: str = "the call", **arguments: Any) -> Told:
        """Call it; the answer must come."""
        told = await self.call(tool, **arguments)
        self.require(told.good, f"{what}: {told}")
        return told

    def judge_refusal(self, told: Told, what: str = "the call") -> None:
        """The caller must have been told promptly that there is no answer."""
        self.require(told.what == "error" or told.failed, f"{what}: {told}")
        self.require(told.seconds < PROMPT, f"{what}: told only after {told.seconds:.1f} s")
        self.note(f"told: {told}")

    async def ran(self, key: str, times: int = 1) -> None:
        """By the server's ledger."""
        found = await self.server.executions(key)
        self.require(found == times, f"the tool ran {found} times, not {times}")

    async def truthful(self, told: Told, key: str) -> None:
        """What the error says of the call, if anything, is what the ledger says."""
        ran = "ran" if await self.server.executions(key) else "not run"
        if told.what == "error" and told.outcome not in (None, "unknown"):
            self.require(told.outcome == ran, f"told {told.outcome!r}, in truth: {ran}")

    async def goes_on(self) -> None:
        """The client is still of use: the next call has its answer."""
        key = f"after-{len(self.notes)}"
        await self.answered("record", what="the next call", key=key)
        await self.ran(key)

    async def sent(self, method: str | None = None, tool: str | None = None) -> list[Recorded]:
        return await self.server.requests(method, tool)
