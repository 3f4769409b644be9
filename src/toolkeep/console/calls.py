"""`CallRecord`: one call as far as it was observed, with its attempts, its verdict and the reason.

Fed with the events of the call. The verdict says whether the tool ran, as the error says it; the
reason is that of the rules. Secrets of the server are taken out of its texts before they are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from toolkeep.console.values import Kept, Redact, cut_json, cut_text
from toolkeep.console.views import error_json, failure_json
from toolkeep.errors import (
    Delivery,
    InputNotGiven,
    InvalidArguments,
    InvalidResult,
    ResultTooLarge,
    ToolkeepError,
)
from toolkeep.events import (
    CallEvent,
    Completed,
    Failed,
    InputNeeded,
    Log,
    Progress,
    Retrying,
    Started,
)

MAX_ATTEMPTS, MAX_LOGS = 20, 100
"""Attempts and log lines that are kept of one call."""
MAX_REASON, MAX_NAME = 500, 200

SHOWN = (
    *("id", "server", "tool", "principal", "console", "began", "ended", "cached", "progress"),
    *("attempts", "attempt_count", "outcome", "verdict", "questions"),
)
"""What a viewer gets of a record as it is."""


@dataclass(slots=True)
class CallRecord:
    """One call as far as it was observed."""

    id: str
    server: str
    tool: str
    began: float
    attempts: list[dict[str, Any]]
    attempt_count: int = 1
    principal: str | None = None
    console: bool = False
    ended: float | None = None
    cached: bool = False
    progress: dict[str, Any] | None = None
    outcome: str | None = None
    verdict: str | None = None
    reason: str | None = None
    masked_reason: str | None = None
    """For those who may not see values, where reason and error quote some."""
    error: dict[str, Any] | None = None
    logs: list[Kept] = field(default_factory=list[Kept])
    log_count: int = 0
    questions: int = 0
    arguments: Kept | None = None
    result: Kept | None = None
    version: int = 0
    size: int = 0
    """Characters of the values that are kept."""

    @classmethod
    def of(cls, event: CallEvent, redact: Redact) -> CallRecord:
        tool = cut_text(redact(event.tool), MAX_NAME)
        return cls(event.call_id, event.server, tool, event.at, [new_attempt(1, event.at)])

    def _keep(self, value: object) -> Kept:
        kept = Kept(value)
        self.size += len(kept.text)
        return kept

    def as_dict(self, *, values: bool) -> dict[str, Any]:
        reason, error = self.reason, self.error
        if self.masked_reason and error and not values:
            reason, error = self.masked_reason, {**error, "message": self.masked_reason}
        return {
            **{name: getattr(self, name) for name in SHOWN},
            "state": "running" if self.ended is None else "ended",
            "duration": None if self.ended is None else max(self.ended - self.began, 0.0),
            "reason": reason,
            "error": error,
            "logs": self.log_count,
            "argument_bytes": self.arguments.size if self.arguments else None,
            "result_bytes": self.result.size if self.result else None,
        }

    def detail(self, redact: Redact, *, values: bool) -> dict[str, Any]:
        """With arguments, result and log lines; masked without `values`."""

        def shown(kept: Kept | None) -> Any:
            return None if kept is None else kept.shown(redact) if values else kept.masked()

        kept = (*self.logs, self.arguments, self.result)
        return {
            **self.as_dict(values=values),
            "arguments": shown(self.arguments),
            "result": shown(self.result),
            "log_lines": [shown(line) for line in self.logs],
            "shown": values,
            "truncated": any(one is not None and one.truncated for one in kept),
        }

    # -- events ---------------------------------------------------------------------------------

    def add(self, event: CallEvent, redact: Redact) -> None:
        match event:
            case Started():
                self.began, self.principal = event.at, event.principal
                self.attempts[0]["began"] = event.at
                self.arguments = self._keep(event.arguments or {})
            case Progress():
                self._add_progress(event, redact)
            case Log():
                self._add_log(event)
            case Retrying():
                self._add_retry(event, redact)
            case InputNeeded():
                self.questions += 1
            case Completed():
                self._add_result(event)
            case Failed():
                self._add_failure(event, redact)
            case _:
                pass

    def _add_progress(self, event: Progress, redact: Redact) -> None:
        facts = {"progress": event.progress, "total": event.total, "fraction": event.fraction}
        message = None if event.message is None else cut_text(redact(event.message), MAX_REASON)
        self.progress, _ = cut_json({**facts, "message": message})

    def _add_log(self, event: Log) -> None:
        self.log_count += 1
        if len(self.logs) < MAX_LOGS:
            line = {"at": event.at, "level": event.level, "logger": event.logger}
            self.logs.append(self._keep({**line, "data": event.data}))

    def _add_retry(self, event: Retrying, redact: Redact) -> None:
        failure = failure_json(event.failure, redact)
        self._end_attempt(event.at, "failed", failure, f"sent again: {event.reason}")
        self.attempts[-1]["delay"] = event.delay
        self.attempt_count = event.attempt + 1
        self.attempts.append(new_attempt(self.attempt_count, event.at + event.delay))
        del self.attempts[:-MAX_ATTEMPTS]

    def _add_result(self, event: Completed) -> None:
        result = event.result
        self._end(event.at)
        self._end_attempt(event.at, "answered")
        self.cached, self.attempt_count = result.cached, max(result.attempts, 1)
        self.result = self._keep(result.raw)
        self.verdict, self.outcome = "ran", "ok"
        if result.cached:
            self.reason = "an earlier equal call has this result: nothing was sent"
        elif result.needs_input:
            self.outcome, self.reason = "input needed", "the server asks for input first"
        elif result.is_error:
            self.outcome, self.reason = "tool error", "the tool reported an error of its own"
        else:
            self.reason = "the server answered with a result"

    def _add_failure(self, event: Failed, redact: Redact) -> None:
        error = event.error
        self._end(event.at)
        self.error = error_json(error, redact)
        self.outcome, self.verdict, reason = judge(error)
        self.reason = cut_text(redact(reason), MAX_REASON)
        if isinstance(error, InvalidArguments):
            self.masked_reason = "the arguments do not match the tool's schema: not sent"
        elif isinstance(error, InvalidResult) and not isinstance(error, ResultTooLarge):
            self.masked_reason = "the result does not match what was declared or asked for"
        if self.attempts[-1]["ended"] is None:
            known = error if isinstance(error, ToolkeepError) else ToolkeepError()
            said = f"not sent again: {known.no_retry_reason}" if known.no_retry_reason else None
            self._end_attempt(event.at, "failed", failure_json(known.failure, redact), said)
        raw = getattr(getattr(error, "result", None), "raw", None)
        if raw is not None:
            self.result = self._keep(raw)

    def _end(self, at: float) -> None:
        self.ended = at
        if len(self.attempts) > 1:  # the next attempt was announced, and may not have begun
            self.attempts[-1]["began"] = min(self.attempts[-1]["began"], at)

    def _end_attempt(
        self,
        at: float,
        outcome: str,
        failure: dict[str, Any] | None = None,
        decision: str | None = None,
    ) -> None:
        about = {"ended": at, "outcome": outcome, "failure": failure, "decision": decision}
        self.attempts[-1] |= about


def new_attempt(number: int, at: float) -> dict[str, Any]:
    empty = dict.fromkeys(("ended", "failure", "decision", "delay"))
    return {"number": number, "began": at, "outcome": "running", **empty}


def judge(error: BaseException) -> tuple[str, str, str]:
    """Outcome, verdict and reason of a call that ended without a result."""
    if not isinstance(error, ToolkeepError):
        cancelled = isinstance(error, asyncio.CancelledError)
        outcome = "cancelled" if cancelled else "failed"
        said = "its caller cancelled it" if cancelled else type(error).__name__
        return outcome, "unknown", f"{said}; it may have run"
    if isinstance(error, InvalidResult | InputNotGiven):
        outcome = "failed" if isinstance(error, InvalidResult) else "input needed"
        return outcome, "ran", str(error)
    failure = error.failure
    parts = [failure.message if failure else str(error)]
    parts += [f"not sent again: {error.no_retry_reason}"] if error.no_retry_reason else []
    reason = "; ".join(parts)
    match error.delivery:
        case Delivery.ANSWERED:
            return "rejected", "unknown", f"the server answered with an error: {reason}"
        case Delivery.UNKNOWN:
            return "failed", "unknown", reason
        case _:
            return "failed", "did not run", reason
