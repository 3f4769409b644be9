"""`examine`: one step after the other, until one fails. Every wait in it is bounded.

Steps that come after a failure are told as not tried. Whatever was opened is closed at the end,
also when who listens goes away.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from toolkeep._doctor.case import Case
from toolkeep._doctor.configuration import consider
from toolkeep._doctor.faults import Step
from toolkeep._doctor.finding import Finding, Seen, State, Trouble
from toolkeep._doctor.network import connect, look_up, way_to
from toolkeep._doctor.opening import Opening
from toolkeep._doctor.program import find
from toolkeep._doctor.trust import shake_hands
from toolkeep._doctor.using import keep_session, list_tools, ping
from toolkeep._wire.tap import Tap, veiled
from toolkeep.config import Origin, ServerSpec

Work = Callable[[], Awaitable[Seen]]
OnStep = Callable[[str, Step], None]


async def examine(
    spec: ServerSpec,
    *,
    origins: Mapping[str, Origin] | None = None,
    timeout: float | None = None,
    slow: float = 1.0,
    tap: Tap | None = None,
    on_step: OnStep | None = None,
) -> AsyncGenerator[Finding]:
    """What is found about one server, as it is found; for each of its addresses.

    `timeout` bounds each step: 10 s without it, and 60 s for what a program has to do. `on_step` is
    told when a step begins. Close the generator.
    """
    importlib.import_module("toolkeep._engine.keeper")  # its import is no time of the server's
    for one in spec.each:
        alone = len(spec.each) == 1
        case = Case(one, origins or {}, timeout, slow, tap, alone)
        async with aclosing(_examine(case, on_step)) as findings:
            async for finding in findings:
                yield finding


async def _examine(case: Case, on_step: OnStep | None) -> AsyncGenerator[Finding]:
    failed = False
    async with aclosing(_Steps(case)) as steps:
        for step, work in steps.all():
            if failed:
                yield Finding(case.label, step, State.SKIPPED, "not tried")
                continue
            if on_step is not None:
                on_step(case.label, step)
            for finding in await _taken(case, step, work):
                failed = failed or finding.state is State.FAILED
                yield _discreet(case, finding)


def _discreet(case: Case, finding: Finding) -> Finding:
    """Servers quote what they were sent: in errors, on pages, in names of tools."""
    if finding.step in (Step.CONFIGURATION, Step.COMMAND):
        return finding  # our words, about what was written
    seen, cause = (veiled(text, case.private) for text in (finding.seen, finding.cause))
    return replace(finding, seen=seen, cause=cause)


async def _taken(case: Case, step: Step, work: Work) -> list[Finding]:
    begun = time.monotonic()
    try:
        seen = await work()
    except Trouble as trouble:
        return [_failed(case, step, trouble, _time(trouble.seconds, begun))]
    seconds = _time(seen.seconds, begun)
    if seen.skipped:
        return [Finding(case.label, step, State.SKIPPED, seen.text)]
    found = [Finding(case.label, step, State.OK, seen.text, seconds)]
    return found + [
        Finding(
            case.label,
            step,
            State.WARNING,
            fault=doubt.fault,
            cause=doubt.cause,
            remedy=doubt.remedy,
        )
        for doubt in seen.doubts
    ]


def _time(told: float | None, begun: float) -> float:
    return time.monotonic() - begun if told is None else told


def _failed(case: Case, step: Step, trouble: Trouble, seconds: float) -> Finding:
    return Finding(
        case.label,
        step,
        State.FAILED,
        trouble.seen,
        seconds,
        trouble.fault,
        trouble.cause,
        trouble.remedy,
    )


class _Steps:
    """Those of one server, and the client that they share."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._made: Opening | None = None

    @property
    def _opening(self) -> Opening:
        """Made after the configuration was found to be sound."""
        self._made = self._made or Opening(self._case)
        return self._made

    def all(self) -> list[tuple[Step, Work]]:
        case = self._case
        found: list[tuple[Step, Work]] = [(Step.CONFIGURATION, lambda: consider(case))]
        if case.spec.command:
            found.append((Step.COMMAND, lambda: find(case)))
            found.append((Step.PROCESS, lambda: self._opening.started()))
        elif case.spec.url:
            found += self._over_http()
        found.append((Step.HANDSHAKE, lambda: self._opening.agreed()))
        if case.spec.url:
            found.append((Step.SESSION, lambda: keep_session(case, self._opening.client)))
        found.append((Step.TOOLS, lambda: list_tools(case, self._opening.client)))
        found.append((Step.PING, lambda: ping(case, self._opening.client)))
        return found

    def _over_http(self) -> list[tuple[Step, Work]]:
        case = self._case
        found: list[tuple[Step, Work]] = [
            (Step.DNS, lambda: look_up(case, way_to(case))),
            (Step.TCP, lambda: connect(case, way_to(case))),
        ]
        if case.secure:
            found.append((Step.TLS, lambda: shake_hands(case, way_to(case))))
        found.append((Step.HTTP, lambda: self._opening.answered()))
        return found

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()
