"""Verdicts as data, and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Result = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one scenario."""

    scenario: str
    result: Result
    evidence: str
    """What was seen, or why it does not apply."""
    seconds: float
    choice: bool = False
    """A client may rightly decide otherwise."""


@dataclass(frozen=True, slots=True)
class Report:
    """One client through all scenarios."""

    client: str
    era: str
    python: str
    packages: Mapping[str, str]
    verdicts: tuple[Verdict, ...]

    def of(self, result: Result) -> tuple[Verdict, ...]:
        return tuple(each for each in self.verdicts if each.result == result)

    def __getitem__(self, scenario: str) -> Verdict:
        missing = Verdict(scenario, "not applicable", "not played yet", 0.0)
        return next((each for each in self.verdicts if each.scenario == scenario), missing)

    def __str__(self) -> str:
        width = max((len(each.scenario) for each in self.verdicts), default=0)
        lines = [
            f"{each.result:<15}{each.scenario:<{width + 2}}{each.evidence}"
            for each in self.verdicts
        ]
        counts = f"{len(self.of('passed'))} passed, {len(self.of('failed'))} failed"
        return "\n".join([*lines, f"{self.client}: {counts} of {len(self.verdicts)}"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Report:
        known: dict[str, Any] = {**raw, "verdicts": tuple(Verdict(**v) for v in raw["verdicts"])}
        return cls(**known)


_SHOWN: Mapping[Result, str] = {"passed": "yes", "failed": "**no**", "not applicable": "–"}


def _shown(verdict: Verdict) -> str:
    if verdict.choice and verdict.result == "failed":
        return "no (a choice)"
    return _SHOWN[verdict.result]


def _total(report: Report) -> str:
    counted = [each for each in report.verdicts if not each.choice]
    applicable = [each for each in counted if each.result != "not applicable"]
    return f"{sum(each.result == 'passed' for each in applicable)}/{len(applicable)}"


def table(reports: Sequence[Report], scenarios: Iterable[str] | None = None) -> str:
    """Clients beside each other, in Markdown: a row for each scenario.

    The last row counts what applies to a client, and is no matter of choice.
    """
    names = list(scenarios or [each.scenario for each in reports[0].verdicts])
    lines = [
        "| | " + " | ".join(report.client for report in reports) + " |",
        "|---|" + "---|" * len(reports),
    ]
    lines += [
        f"| {name} | " + " | ".join(_shown(report[name]) for report in reports) + " |"
        for name in names
    ]
    return "\n".join([*lines, "| passed | " + " | ".join(map(_total, reports)) + " |"])
