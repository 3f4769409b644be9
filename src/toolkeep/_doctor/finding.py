"""What the doctor says: one `Finding` for each step, and one for each doubt. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from toolkeep._doctor.about import ABOUT
from toolkeep._doctor.faults import Fault, Step


class State(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and should be looked at."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not tried: an earlier step failed, or there is nothing to try."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Frozen, and free of secrets: it may be shown and kept."""

    server: str
    step: Step
    state: State
    seen: str = ""
    """What was found, in a line."""
    seconds: float | None = None
    fault: Fault | None = None
    cause: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "server": self.server,
            "step": self.step.value,
            "state": self.state.value,
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "seen": self.seen,
            "fault": self.fault.value if self.fault else None,
            "cause": self.cause,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that works all the same."""

    fault: Fault
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a step that worked has to tell."""

    text: str
    doubts: tuple[Doubt, ...] = ()
    skipped: bool = False
    """There was nothing to try."""
    seconds: float | None = None
    """If it took less than the step as a whole."""


class Trouble(Exception):
    """A step that failed, and why. Never leaves the doctor."""

    def __init__(
        self, fault: Fault, cause: str, remedy: str, *, seen: str = "", step: Step | None = None
    ) -> None:
        super().__init__(cause)
        self.fault, self.cause, self.remedy, self.seen = fault, cause, remedy, seen
        self.step = step or ABOUT[fault].step
        self.seconds: float | None = None
        """If another time than the step's own is to be told."""


__all__ = ["Doubt", "Finding", "Seen", "State", "Step", "Trouble"]
