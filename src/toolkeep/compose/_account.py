"""The account of a plan: what ran, what did not, and what is not known.

Every step of the plan is in it, with exactly one state. Whether a step ran can be read off its
state alone, and no policy changes it: a plan may go on after a step, its state stays.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from toolkeep.compose._problems import short
from toolkeep.errors import Delivery, ToolkeepError
from toolkeep.results import CallResult

__all__ = ["Account", "PlanFailed", "Record", "State", "state_of"]

SHOWN = 300
"""Characters of an error, or of what a tool said of its own, in the text."""


class State(enum.Enum):
    """What became of one step."""

    COMPLETED = "completed"
    """It ran, and this is its result, or one that was kept of an equal call, where a server's
    configuration allows that. A fan-out: all its elements are done."""
    TOOL_ERROR = "tool error"
    """It ran, and says itself that it failed."""
    FAILED = "failed"
    """The server answered, and there is no result to use. It may have had effects."""
    NOT_DELIVERED = "not delivered"
    """It certainly did not run: it could not be sent, or was turned away."""
    UNKNOWN = "unknown"
    """It may have run. Nobody sends it again."""
    CANCELLED = "cancelled"
    """It was given up while it was under way. It may have run."""
    SKIPPED = "skipped"
    """Its condition was false."""
    NOT_REACHED = "not reached"
    """The plan was over before."""

    @property
    def may_have_run(self) -> bool:
        """Whether its outcome is not known."""
        return self in (State.UNKNOWN, State.CANCELLED)

    @property
    def is_failure(self) -> bool:
        """Whether it was begun, or should have been, and brought no result."""
        return self not in (State.COMPLETED, State.SKIPPED, State.NOT_REACHED)


_STATES = {
    Delivery.NOT_SENT: State.NOT_DELIVERED,
    Delivery.REFUSED: State.NOT_DELIVERED,
    Delivery.ANSWERED: State.FAILED,
    Delivery.UNKNOWN: State.UNKNOWN,
}


def state_of(error: BaseException) -> State:
    """What an error says of the call; one that says nothing leaves it open."""
    return _STATES[error.delivery] if isinstance(error, ToolkeepError) else State.UNKNOWN


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one step, or of one fan-out."""

    name: str
    tool: str = ""
    """Its full name; of a fan-out none."""
    path: str = ""
    """Its name, with the elements that it was for: `mails[0].send`."""
    state: State = State.NOT_REACHED
    why: str = ""
    """Why it is in this state, where neither result nor error say so."""
    result: CallResult | None = field(default=None, repr=False)
    error: BaseException | None = None
    seconds: float = 0.0
    items: tuple[tuple[Record, ...], ...] = field(default=(), repr=False)
    """Of a fan-out: for every element, what became of its steps."""

    @property
    def is_fan_out(self) -> bool:
        """Whether this is about a `ForEach`, with its calls in `items`."""
        return not self.tool

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, ready for `json.dumps`."""
        plain: dict[str, Any] = {"name": self.name, "path": self.path, "state": self.state.value}
        if self.tool:
            plain["tool"] = self.tool
        if self.why:
            plain["why"] = self.why
        if self.result is not None:
            plain["result"] = dict(self.result.raw)
        if self.error is not None:
            plain["error"] = {"type": type(self.error).__name__, "message": str(self.error)}
        if self.seconds:
            plain["seconds"] = round(self.seconds, 6)
        if self.is_fan_out:
            plain["items"] = [[step.to_json() for step in steps] for steps in self.items]
        return plain


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a plan: every step of it, each with exactly one state. Frozen; made by `run`
    and `stream`."""

    steps: tuple[Record, ...]
    """All of them, in the order of the plan; those of a fan-out in its record."""
    ended: str = ""
    """Why the plan was over before its end; empty, if it got there."""
    cancelled: bool = False
    seconds: float = 0.0
    values: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What the steps gave, by their names: what references saw."""

    def __getitem__(self, name: str) -> Record:
        """By name, or by path: `account["mails[0].send"]`."""
        for record in _all(self.steps):
            if record.path == name:
                return record
        raise KeyError(name)

    @property
    def calls(self) -> tuple[Record, ...]:
        """Every call of the plan, those of fan-outs too. A fan-out that never came to its elements
        stands for its calls."""
        return tuple(
            record
            for record in _all(self.steps)
            if record.tool or (not record.items and record.state is not State.COMPLETED)
        )

    @property
    def completed(self) -> tuple[Record, ...]:
        """Calls that ran, and brought a result."""
        return self._in(State.COMPLETED)

    @property
    def unknown(self) -> tuple[Record, ...]:
        """Calls that may have run: their answers were lost, or they were given up."""
        return self._in(State.UNKNOWN, State.CANCELLED)

    @property
    def failures(self) -> tuple[Record, ...]:
        """Whatever was begun and not completed, also if the plan went on after it."""
        return tuple(step for step in self.calls if step.state.is_failure)

    @property
    def not_run(self) -> tuple[Record, ...]:
        """Calls that certainly did not run."""
        return self._in(State.NOT_DELIVERED, State.SKIPPED, State.NOT_REACHED)

    @property
    def ok(self) -> bool:
        """Whether the plan got to its end, and the outcome of every step is known."""
        return not self.ended and not self.cancelled and not self.unknown

    def _in(self, *states: State) -> tuple[Record, ...]:
        return tuple(call for call in self.calls if call.state in states)

    def raise_for_failure(self) -> None:
        """Raise `PlanFailed`, unless `ok`."""
        if not self.ok:
            raise PlanFailed(self)

    def text(self) -> str:
        """The account in a few sentences, for a person or a model."""
        return " ".join(_sentences(self))

    def to_json(self) -> dict[str, Any]:
        """The account as plain data, ready for `json.dumps`, with what the servers answered."""
        return {
            "ok": self.ok,
            "ended": self.ended,
            "cancelled": self.cancelled,
            "seconds": round(self.seconds, 6),
            "steps": [step.to_json() for step in self.steps],
            "text": self.text(),
        }


class PlanFailed(ToolkeepError):
    """A plan that did not get to its end, or of which something is not known. See `.account`."""

    def __init__(self, account: Account) -> None:
        self.account = account
        if account.unknown:
            self.delivery = Delivery.UNKNOWN
        elif any(call.state not in _UNSENT for call in account.calls):
            self.delivery = Delivery.ANSWERED
        super().__init__(account.text())


_UNSENT = (State.NOT_DELIVERED, State.SKIPPED, State.NOT_REACHED)


def _sentences(account: Account) -> Iterator[str]:
    calls = account.calls
    done = sum(call.state is State.COMPLETED for call in calls)
    end = f"stopped: {account.ended}" if account.ended else "got to its end"
    yield f"The plan {end}. {done} of {len(calls)} calls completed."
    told = {
        State.TOOL_ERROR: "Ran, and failed by their own account",
        State.FAILED: "Answered without a result that can be used",
        State.NOT_DELIVERED: "Certainly did not run, because they could not be delivered",
        State.UNKNOWN: "May have run; find out before you do it again",
        State.CANCELLED: "Given up while under way, so they may have run",
        State.SKIPPED: "Skipped",
        State.NOT_REACHED: "Never begun",
    }
    for state, words in told.items():
        found = [call for call in calls if call.state is state]
        if found:
            yield f"{words}: {'; '.join(_phrases(found))}."


def _phrases(found: list[Record], most: int = 20) -> Iterator[str]:
    yield from map(_told, found[:most])
    if len(found) > most:
        yield f"and {len(found) - most} more"


def _told(record: Record) -> str:
    said = record.why
    if record.result is not None and record.state is State.TOOL_ERROR:
        said = record.result.text
    elif record.error is not None:
        said = str(record.error)
    said = short(" ".join(said.split()), SHOWN)
    return f"{record.path} ({said})" if said else record.path


def _all(steps: Iterable[Record]) -> Iterator[Record]:
    for step in steps:
        yield step
        for inside in step.items:
            yield from _all(inside)
