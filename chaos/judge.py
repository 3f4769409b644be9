"""The verdict: what the client said about a call against what the servers wrote down.

Pure: statements and lines of journals in, broken invariants out. It keeps a few bytes for each
call, so that a run that comes long after its call's end is still found.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chaos.scene import BY_NAME, EDITION, MOST_RUNS, NOBODY, token
from chaos.schedule import Schedule, Step


class Said(enum.IntEnum):
    """What a client can say of a call."""

    NOTHING = 0
    """It has not ended."""
    COMPLETED = 1
    NOT_RUN = 2
    """Not sent, or refused."""
    ANSWERED = 3
    """By an error of the server's."""
    UNKNOWN = 4
    CANCELLED = 5
    NONSENSE = 6
    """Something that no caller is prepared for."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that did not hold."""

    invariant: str
    number: int | None
    """Of the call; None: it is about the whole."""
    client: str
    ledger: str


ENDS = "every call ends in time"
SAYS = "a call ends with a result or a documented error"
ONCE = "a completed call ran exactly once (where retries are allowed: at least once)"
NEVER = "a call reported as not delivered did not run"
AT_MOST = "a call with an unknown outcome ran at most once (unless retries are allowed)"
OWN_ANSWER = "a result belongs to its call"
OWN_PLACE = "a call runs at the server it was addressed to"
OWN_HEADERS = "a call carries its own principal's headers"
OWN_SESSION = "no session serves two principals"
IN_FORCE = "a call uses a configuration that was in force while it ran"
CANCELS = "a caller that is cancelled sees its cancellation, and nothing else"
HUSHED = "no token is shown in an error, an event or a log line"
OF_CALLS = (
    *(ENDS, SAYS, ONCE, NEVER, AT_MOST),
    *(OWN_ANSWER, OWN_PLACE, OWN_HEADERS, OWN_SESSION, IN_FORCE, CANCELS, HUSHED),
)
"""Invariants that are about single calls."""
CALM = "calm"
"""The first word of a call's key that is made in a quiet moment: no step of the schedule."""


class Judge:
    """Told of every call by its number, in any order."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._said = bytearray()
        self._runs = bytearray()
        self._oldest, self._newest = array("H"), array("H")
        self._words: dict[int, str] = {}
        self._sessions: dict[tuple[str, str], str] = {}
        self._open: set[int] = set()
        """Numbers of calls of which something was heard since the last verdict."""
        self._guilty: set[tuple[str, int]] = set()
        self.granted: Counter[str] = Counter()
        """Faults of calls that were really injected."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By server, and what was said."""
        self.errors: Counter[str] = Counter()
        """By their types."""

    # -- what the client says -------------------------------------------------------------------

    def begins(self, number: int, edition: int) -> None:
        """With the edition of its server's configuration that is certainly in force."""
        missing = number + 1 - len(self._said)
        if missing > 0:
            self._said.extend(bytes(missing))
            self._runs.extend(bytes(missing))
            self._oldest.extend([0] * missing)
            self._newest.extend([0] * missing)
        self._oldest[number] = edition
        self._open.add(number)

    def ends(self, number: int, said: Said, words: str, edition: int) -> None:
        """With the newest edition that may be in force."""
        self._said[number], self._newest[number] = said, edition
        self._words[number] = words
        self.outcomes[self._schedule.step(number).server, said.name] += 1
        if said is not Said.COMPLETED:
            self.errors[words.partition(":")[0]] += 1

    # -- what the servers wrote -----------------------------------------------------------------

    def reads(self, server: str, line: list[Any]) -> Iterator[Broken]:
        """One line of a journal."""
        if line[1].startswith(CALM):
            return
        number = int(line[1])
        step = self._schedule.step(number)
        if line[0] == "behaviour":
            self.granted[step.fault or "?"] += 1
            return
        self._runs[number] = min(255, self._runs[number] + 1)
        self._open.add(number)
        _, _, tool, session, headers = line
        if (server, tool) != (step.server, step.tool):
            yield self._broken(OWN_PLACE, number, f"{tool} ran at {server}")
        yield from self._headers(step, headers)
        if session is not None:
            yield from self._session(step, session)

    def _headers(self, step: Step, headers: dict[str, str]) -> Iterator[Broken]:
        if BY_NAME[step.server].kind == "stdio":
            return
        own = token(step.principal, step.rotation) if step.principal != NOBODY else None
        if headers.get("authorization") != own:
            shown = f"authorization: {headers.get('authorization')}"
            yield self._broken(OWN_HEADERS, step.number, f"{shown}, and not {own}")
        oldest, newest = self._oldest[step.number], self._newest[step.number]
        if not oldest <= int(headers.get(EDITION, -1)) <= newest:
            shown = f"edition {headers.get(EDITION)}, and not {oldest} to {newest}"
            yield self._broken(IN_FORCE, step.number, shown)

    def _session(self, step: Step, session: str) -> Iterator[Broken]:
        owner = self._sessions.setdefault((step.server, session), step.principal)
        if owner != step.principal:
            shown = f"session {session} served {owner or 'nobody'} before"
            yield self._broken(OWN_SESSION, step.number, shown)

    # -- the verdict ----------------------------------------------------------------------------

    def verdict(self) -> Iterator[Broken]:
        """About all calls of which something is new; each broken invariant is told once."""
        for number in sorted(self._open):
            said, runs = Said(self._said[number]), self._runs[number]
            invariant = self._judged(number, said, runs)
            if invariant is not None and (invariant, number) not in self._guilty:
                self._guilty.add((invariant, number))
                yield self._broken(invariant, number, f"ran {runs} times")
        self._open.clear()

    def _judged(self, number: int, said: Said, runs: int) -> str | None:
        step = self._schedule.step(number)
        most = MOST_RUNS if step.tool in BY_NAME[step.server].replayed else 1
        match said:
            case Said.NOTHING:
                return ENDS
            case Said.NONSENSE:
                return SAYS
            case Said.COMPLETED:
                return None if 1 <= runs <= most else ONCE
            case Said.NOT_RUN:
                return None if runs == 0 else NEVER
            case _:
                return None if runs <= most else AT_MOST

    def forget_the_innocent(self) -> None:
        """After a verdict with nothing under way: words are not needed again, nor are the sessions
        of programs, which are process ids that others may have next. The rest of the sessions have
        their owners for as long as the soak lasts: one that is handed on later is found.
        """
        self._words.clear()
        self._sessions = {
            (server, session): owner
            for (server, session), owner in self._sessions.items()
            if BY_NAME[server].kind != "stdio"
        }

    def accuse(self, invariant: str, number: int, evidence: str) -> Broken:
        """Something that the soak itself has seen."""
        self._guilty.add((invariant, number))
        return self._broken(invariant, number, evidence)

    def _broken(self, invariant: str, number: int, ledger: str) -> Broken:
        said = Said(self._said[number]).name.lower().replace("_", " ")
        words = self._words.get(number)
        return Broken(invariant, number, f"{said}: {words}" if words else said, ledger)
