"""What happens while a plan runs, as it happens.

In order: for every call `StepStarted`, any number of `StepProgress`, then `StepEnded`; `StepEnded`
alone for what is skipped, or ends before it is sent; at last, once, `Finished`. `server` is empty
where no server is meant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkeep.compose._account import Account, Record
from toolkeep.events import Event

__all__ = [
    "Finished",
    "OnEvent",
    "PlanEvent",
    "StepEnded",
    "StepEvent",
    "StepProgress",
    "StepStarted",
    "tell",
]

logger = logging.getLogger("toolkeep.compose")


@dataclass(frozen=True, kw_only=True, match_args=False)
class PlanEvent(Event):
    """An event of one plan."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class StepEvent(PlanEvent):
    """An event of one step."""

    step: str
    items: tuple[int, ...] = ()
    """For which element of the fan-outs around it, the outermost first, counted from 0."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class StepStarted(StepEvent):
    """The step's call begins."""

    tool: str


@dataclass(frozen=True, kw_only=True, match_args=False)
class StepProgress(StepEvent):
    """The server reported a step of its own."""

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True, match_args=False)
class StepEnded(StepEvent):
    """It is known what became of the step."""

    record: Record

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "record": self.record.to_json()}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Finished(PlanEvent):
    """The plan is over, also when it was cancelled. The last event."""

    account: Account
    is_final = True

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "account": self.account.to_json()}


OnEvent = Callable[[PlanEvent], None]
"""Called with every event, in order. It must not block; what it raises is logged."""


def tell(on_event: OnEvent | None, event: PlanEvent) -> None:
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("whoever hears of a plan failed with %s", type(event).__name__)
