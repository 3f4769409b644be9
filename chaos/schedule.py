"""What will be done: a pure function of the seed. Nothing here knows a clock or a server.

Each step is drawn by itself from the seed and its number, so a longer soak begins like a shorter
one, and any step can be drawn again when it is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from chaos.faults import FAULTS, TROUBLES
from chaos.scene import BY_NAME, GUEST, NOBODY, PLACES, PRINCIPALS, SERVERS, VISITOR, Server

DEADLINE = 6.0
ROTATION = 500
"""Calls between two tokens of a principal."""
_FAULTY = {"http": 0.16, "sse": 0.08, "stdio": 0.06}
"""On a pipe one fault hits all that are under way."""
_HASTY, _CANCELLED, _WATCHED = 0.03, 0.04, 0.10
_PADDED, _PAD = 0.04, 20_000
_TROUBLED = 1 / 30


@dataclass(frozen=True, slots=True)
class Step:
    """One call."""

    number: int
    server: str
    tool: str
    principal: str
    rotation: int
    timeout: float = DEADLINE
    cancel_after: float | None = None
    fault: str | None = None
    pad: int = 0
    watched: bool = False
    """Made by `stream`."""

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"key": str(self.number)}
        if self.pad:
            arguments["pad"] = "x" * self.pad
        if self.fault is not None:
            arguments["behaviour"] = dict(FAULTS[self.fault].wish)
        return arguments


@dataclass(frozen=True, slots=True)
class Event:
    """One trouble, which begins with the step of the same number."""

    number: int
    kind: str
    target: str
    """An address, a server, or a principal, if one is forgotten."""
    seconds: float = 0.0
    amount: int = 0
    """Of bytes."""


@dataclass(frozen=True)
class Schedule:
    """All steps and events of a seed."""

    seed: int
    step: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", lru_cache(maxsize=20_000)(self._step))

    def _dice(self, number: int, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{number}/{purpose}")

    def _step(self, number: int) -> Step:
        dice = self._dice(number, "step")
        (server,) = dice.choices(SERVERS, [server.share for server in SERVERS])
        fault = _fault(dice, server) if dice.random() < _FAULTY[server.kind] else None
        silent = fault is not None and FAULTS[fault].silent
        hasty = silent or dice.random() < _HASTY
        return Step(
            number,
            server.name,
            dice.choices(("pay", "look", "put"), (60, 25, 15))[0],
            dice.choice((NOBODY, *PRINCIPALS)),
            number // ROTATION,
            timeout=round(dice.uniform(0.05, 0.6), 3) if hasty else DEADLINE,
            cancel_after=round(dice.uniform(0, 0.1), 4) if dice.random() < _CANCELLED else None,
            fault=fault,
            pad=_PAD if dice.random() < _PADDED else 0,
            watched=dice.random() < _WATCHED,
        )

    def event(self, number: int) -> Event | None:
        """The trouble that begins with this step, if any does."""
        dice = self._dice(number, "event")
        if dice.random() >= _TROUBLED:
            return None
        (kind,) = dice.choices(list(TROUBLES), [trouble.weight for trouble in TROUBLES.values()])
        trouble = TROUBLES[kind]
        longest = trouble.longest
        seconds = round(dice.uniform(longest / 4, longest), 3) if longest else 0.0
        return Event(number, kind, _target(dice, kind), seconds, dice.randrange(600))

    def lines(self, count: int) -> Iterator[str]:
        """The whole of it, to be read by people and compared by tests."""
        for number in range(count):
            if (event := self.event(number)) is not None:
                yield _told(event)
            yield _told(self.step(number))


def _fault(dice: random.Random, server: Server) -> str:
    fitting = {
        name: fault.weight
        for name, fault in FAULTS.items()
        if server.kind in fault.kinds and server.era in fault.eras
    }
    return dice.choices(list(fitting), list(fitting.values()))[0]


def _target(dice: random.Random, kind: str) -> str:
    kinds = TROUBLES[kind].kinds
    if kinds:
        return dice.choice([name for name, server in PLACES.items() if server.kind in kinds])
    match kind:
        case "principal forgotten":
            return dice.choice(PRINCIPALS)
        case "headers edited":
            edited = [name for name, s in BY_NAME.items() if s.kind != "stdio"]
            return dice.choice([name for name in edited if name != VISITOR])
        case "environment edited":
            return dice.choice([name for name, s in BY_NAME.items() if s.kind == "stdio"])
        case _:
            return GUEST if kind.startswith(GUEST) else VISITOR


def _told(what: Step | Event) -> str:
    facts = {name: getattr(what, name) for name in what.__slots__ if name != "number"}
    said = ", ".join(f"{name}={value}" for name, value in facts.items() if value not in (None, ""))
    return f"{what.number:>7} {type(what).__name__.lower():5} {said}"
