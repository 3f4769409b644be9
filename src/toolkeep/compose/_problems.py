"""What is wrong with a plan: all of it at once, each with its place and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from toolkeep.errors import ToolkeepError

__all__ = ["PlanRefused", "Problem", "nearest", "short"]

SHOWN = 20
"""Problems that a message tells. The error holds them all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    place: str
    """Where in the plan, as JSON has it: `steps[2].parallel[0].arguments.text`."""
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        told = f"{self.place}: {self.problem}" if self.place else self.problem
        return f"{told}. {self.remedy}" if self.remedy else told


class PlanRefused(ToolkeepError, ValueError):
    """A plan that cannot work. Nothing of it ran."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        shown = [f"- {problem}" for problem in self.problems[:SHOWN]]
        if count > SHOWN:
            shown.append(f"- and {count - SHOWN} more")
        head = f"the plan was not started: {count} {'problem' if count == 1 else 'problems'}"
        super().__init__("\n".join([head, *shown]))


def nearest(name: str, names: Iterable[str]) -> str:
    """A remedy: the name that was probably meant, or all that there are."""
    known = sorted(set(names))
    close = get_close_matches(name[:80], [one for one in known if len(one) <= 80][:1000], n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    shown = ", ".join(known[:10])
    return f"There is: {shown}" if shown else ""


def short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
