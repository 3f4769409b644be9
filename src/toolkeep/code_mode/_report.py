"""The report of a run: the result of the program, and the outcome of each of its calls.

A call's `outcome` alone says whether it ran. Nothing here runs anything.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep._runtime.builtin import OWN_SERVER
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

MAX_VALUE_TEXT = 50_000
"""Characters of a program's value in `CodeResult.text`."""
MAX_REASON_TEXT = 200
"""Characters of a call's error in `CodeCall.text`."""
MAX_ARGUMENTS_TEXT = 200
"""Characters of a call's arguments in `CodeCall.text`."""
MAX_LISTED = 20
"""Problems or calls that an error message lists."""
MAX_NAMES = 10
"""Tools that a sentence lists."""


class Outcome(enum.Enum):
    """Whether a call ran."""

    RAN = "ran"
    """The server answered, with a result or an error."""
    DID_NOT_RUN = "did not run"
    """It certainly did not run."""
    UNKNOWN = "unknown"
    """It may have run: its response was lost, or it was cancelled while it was running."""


@dataclass(frozen=True, slots=True)
class CodeCall:
    """One call of a program, and its outcome."""

    tool: str
    """Its full name, `server.tool`."""
    arguments: Mapping[str, Any] = field(repr=False)
    line: int | None
    """The line of the program that calls it; None inside `eval`."""
    outcome: Outcome = Outcome.DID_NOT_RUN
    error: str = ""
    """Why there is no result; empty on success."""
    seconds: float = 0.0
    repeatable: bool = False
    """Whether the tool is marked read-only or idempotent."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, ready for `json.dumps`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "outcome": self.outcome.value, "seconds": round(self.seconds, 6)}

    def text(self, *, arguments: bool = True) -> str:
        """The call in one line."""
        given = ", ".join(f"{key}={as_json(value)}" for key, value in self.arguments.items())
        shown = shortened(given, MAX_ARGUMENTS_TEXT) if arguments else ""
        place = f", line {self.line}" if self.line else ""
        why = f" ({shortened(' '.join(self.error.split()), MAX_REASON_TEXT)})" if self.error else ""
        return f"{self.tool}({shown}){place}: {self.outcome.value}{why}, {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of a run: the program's value or its error, and all its calls."""

    value: Any = None
    """The value of the program's last line if that is an expression, as plain data."""
    error: str = ""
    """Why the run failed; empty on success."""
    line: int | None = None
    """The line at which it failed."""
    calls: tuple[CodeCall, ...] = ()
    """The calls, in the order in which they were made."""
    printed: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and the outcome of every call that must not be
        repeated is known."""
        return not self.error

    @property
    def unknown(self) -> tuple[CodeCall, ...]:
        """The calls of which it is unknown whether they ran."""
        return tuple(call for call in self.calls if call.outcome is Outcome.UNKNOWN)

    def raise_for_failure(self) -> None:
        """Raise `CodeFailed` unless `ok`."""
        if not self.ok:
            raise CodeFailed(self)

    def text(self) -> str:
        """The result as text for a model or a person. For a failure, with the list of calls."""
        return "\n\n".join(paragraphs(self))

    def to_json(self) -> dict[str, Any]:
        """The result as plain data, ready for `json.dumps`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        calls = [call.to_json() for call in self.calls]
        return {"ok": self.ok, **plain, "calls": calls, "seconds": round(self.seconds, 6)}


class CodeRefused(ToolkeepError):
    """A program was not started: it is not valid Python, breaks the tools' types, or uses a tool
    that is not allowed. Nothing was called."""

    def __init__(self, problems: Collection[str]) -> None:
        self.problems = tuple(problems)
        """What to fix, each with its line."""
        shown = "\n".join(f"- {one}" for one in self.problems[:MAX_LISTED])
        super().__init__(f"The program was not started, and nothing was called:\n{shown}")


class CodeFailed(ToolkeepError):
    """A program failed, or the outcome of a call is unknown: see `.result`."""

    def __init__(self, result: CodeResult) -> None:
        self.result = result
        outcomes = {call.outcome for call in result.calls}
        if Outcome.UNKNOWN in outcomes:
            self.delivery = Delivery.UNKNOWN
        elif Outcome.RAN in outcomes:
            self.delivery = Delivery.ANSWERED
        calls = "; ".join(call.text(arguments=False) for call in result.calls[:MAX_LISTED])
        super().__init__(
            f"{failure_text(result)} Calls: {calls or 'none'}. {repeat_advice(result)}"
        )


@dataclass(frozen=True, kw_only=True, match_args=False)
class CodeEvent(Event):
    """An event of the program itself, not of one of its calls."""

    server: str = OWN_SERVER


@dataclass(frozen=True, kw_only=True, match_args=False)
class Printed(CodeEvent):
    """The program printed something."""

    text: str


@dataclass(frozen=True, kw_only=True, match_args=False)
class CodeFinished(CodeEvent):
    """The run has ended or was cancelled. The last event."""

    result: CodeResult
    is_final = True

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "result": self.result.to_json()}


def paragraphs(result: CodeResult) -> Iterator[str]:
    if result.error:
        yield failure_text(result)
    if result.printed:
        yield f"Printed:\n{result.printed.rstrip()}"
    if not result.error:
        value = shortened(as_json(result.value), MAX_VALUE_TEXT)
        yield f"Result:\n{value}" if result.printed else value
        return
    numbered = (f"{number}. {call.text()}" for number, call in enumerate(result.calls, 1))
    yield "\n".join(("Calls:", *numbered)) if result.calls else "No tool was called."
    yield repeat_advice(result)


def failure_text(result: CodeResult) -> str:
    place = f" at line {result.line}" if result.line else ""
    return f"The program failed{place}: {result.error}"


def repeat_advice(result: CodeResult) -> str:
    """Which calls may be repeated, and which not."""
    unknown = [call.tool for call in result.calls if must_be_checked(call)]
    ran = [
        call.tool for call in result.calls if call.outcome is Outcome.RAN and not call.repeatable
    ]
    advice: list[str] = []
    if unknown:
        advice.append(f"Find out whether it ran before you repeat it: {names_of(unknown)}.")
    if ran:
        advice.append(f"Already ran, do not repeat: {names_of(ran)}.")
    return (
        " ".join(advice) or "Nothing ran that must not be repeated: the program may be run again."
    )


def names_of(tools: Collection[str]) -> str:
    names = list(dict.fromkeys(tools))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def must_be_checked(call: CodeCall) -> bool:
    """Whether it may have run and must not run twice: repeating it needs a check first."""
    return call.outcome is Outcome.UNKNOWN and not call.repeatable


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
