"""The account of a program: what became of it, and of each of its calls.

Whether a call ran can be read off its outcome alone. Nothing here runs anything.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep._runtime.own_tools import SERVER
from toolkeep.errors import Delivery, ToolkeepError
from toolkeep.events import Event

__all__ = [
    "CodeCall",
    "CodeEvent",
    "CodeFailed",
    "CodeFinished",
    "CodeRefused",
    "CodeResult",
    "Outcome",
    "Printed",
]

LONGEST_ANSWER = 50_000
"""Characters of a program's value in a text."""
LONGEST_REASON = 200
SHOWN_ARGUMENTS = 200
"""Characters of a call's arguments in a text."""
MOST_SHOWN = 20
"""Problems or calls that a message lists."""


class Outcome(enum.Enum):
    """Whether a call ran."""

    RAN = "ran"
    """The server answered, with a result or an error."""
    DID_NOT_RUN = "did not run"
    """It certainly did not run."""
    UNKNOWN = "unknown"
    """It may have run: its answer was lost, or it was cancelled while it was under way."""


@dataclass(frozen=True, slots=True)
class CodeCall:
    """What became of one call of a program."""

    tool: str
    """Its full name, `server.tool`."""
    arguments: Mapping[str, Any] = field(repr=False)
    line: int | None
    """Where the program calls it; None inside of `eval`."""
    outcome: Outcome = Outcome.DID_NOT_RUN
    error: str = ""
    """Why there is no result; empty if there is one."""
    seconds: float = 0.0
    repeatable: bool = False
    """Whether the tool is marked read-only or idempotent."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, ready for `json.dumps`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "outcome": self.outcome.value, "seconds": round(self.seconds, 6)}

    def text(self, *, arguments: bool = True) -> str:
        """One line about it."""
        given = ", ".join(f"{key}={as_json(value)}" for key, value in self.arguments.items())
        shown = shortened(given, SHOWN_ARGUMENTS) if arguments else ""
        place = f", line {self.line}" if self.line else ""
        why = f" ({shortened(' '.join(self.error.split()), LONGEST_REASON)})" if self.error else ""
        return f"{self.tool}({shown}){place}: {self.outcome.value}{why}, {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What became of a program: its value, or why there is none, and the account of its calls."""

    value: Any = None
    """The value of the program's last line, if that is an expression, as plain data."""
    error: str = ""
    """Why the run failed; empty if it did not."""
    line: int | None = None
    """Where it failed."""
    calls: tuple[CodeCall, ...] = ()
    """Each call, in the order in which they were made."""
    printed: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the program got to its end, and no call has an outcome that matters and is
        unknown."""
        return not self.error

    @property
    def unknown(self) -> tuple[CodeCall, ...]:
        """The calls that may have run."""
        return tuple(call for call in self.calls if call.outcome is Outcome.UNKNOWN)

    def raise_for_failure(self) -> None:
        """Raise `CodeFailed`, unless `ok`."""
        if not self.ok:
            raise CodeFailed(self)

    def text(self) -> str:
        """All of it, for a model or a person: of a failure with the account."""
        return "\n\n".join(paragraphs(self))

    def to_json(self) -> dict[str, Any]:
        """The result as plain data, ready for `json.dumps`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        calls = [call.to_json() for call in self.calls]
        return {"ok": self.ok, **plain, "calls": calls, "seconds": round(self.seconds, 6)}


class CodeRefused(ToolkeepError):
    """A program that was not started: it is no Python, breaks the tools' types, or uses a tool that
    is not allowed. Nothing was called."""

    def __init__(self, problems: Collection[str]) -> None:
        self.problems = tuple(problems)
        """What is to be mended, each with its line."""
        shown = "\n".join(f"- {one}" for one in self.problems[:MOST_SHOWN])
        super().__init__(f"The program was not started, and nothing was called:\n{shown}")


class CodeFailed(ToolkeepError):
    """A program that did not get to its end, or of which something is not known: see `.result`."""

    def __init__(self, result: CodeResult) -> None:
        self.result = result
        outcomes = {call.outcome for call in result.calls}
        if Outcome.UNKNOWN in outcomes:
            self.delivery = Delivery.UNKNOWN
        elif Outcome.RAN in outcomes:
            self.delivery = Delivery.ANSWERED
        calls = "; ".join(call.text(arguments=False) for call in result.calls[:MOST_SHOWN])
        super().__init__(f"{failure_of(result)} Calls: {calls or 'none'}. {what_to_repeat(result)}")


@dataclass(frozen=True, kw_only=True, match_args=False)
class CodeEvent(Event):
    """An event of a program, beside those of its calls."""

    server: str = SERVER


@dataclass(frozen=True, kw_only=True, match_args=False)
class Printed(CodeEvent):
    """The program printed something."""

    text: str


@dataclass(frozen=True, kw_only=True, match_args=False)
class CodeFinished(CodeEvent):
    """The run is over, also when it was cancelled. The last event."""

    result: CodeResult
    is_final = True

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "result": self.result.to_json()}


def paragraphs(result: CodeResult) -> Iterator[str]:
    if result.error:
        yield failure_of(result)
    if result.printed:
        yield f"Printed:\n{result.printed.rstrip()}"
    if not result.error:
        value = shortened(as_json(result.value), LONGEST_ANSWER)
        yield f"Result:\n{value}" if result.printed else value
        return
    numbered = (f"{number}. {call.text()}" for number, call in enumerate(result.calls, 1))
    yield "\n".join(("Calls:", *numbered)) if result.calls else "No tool was called."
    yield what_to_repeat(result)


def failure_of(result: CodeResult) -> str:
    place = f" at line {result.line}" if result.line else ""
    return f"The program failed{place}: {result.error}"


def what_to_repeat(result: CodeResult) -> str:
    """What may be done again, and what not."""
    lost = [call.tool for call in result.unknown if not call.repeatable]
    ran = [call.tool for call in result.calls if has_run_for_good(call)]
    said: list[str] = []
    if lost:
        said.append(f"Find out whether it ran before you repeat it: {names_of(lost)}.")
    if ran:
        said.append(f"Already ran, do not repeat: {names_of(ran)}.")
    return " ".join(said) or "Nothing ran that must not be repeated: the program may be run again."


def has_run_for_good(call: CodeCall) -> bool:
    return call.outcome is Outcome.RAN and not call.repeatable


def names_of(tools: Collection[str]) -> str:
    names = list(dict.fromkeys(tools))
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def is_lost(call: CodeCall) -> bool:
    """Whether it may have run, and must not be repeated."""
    return call.outcome is Outcome.UNKNOWN and not call.repeatable


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
