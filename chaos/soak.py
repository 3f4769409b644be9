"""The soak itself: calls in flight, troubles beside them, and quiet moments in which it is judged.

Calls are made in rounds. After each round every call has ended and every trouble is over; then the
journals are read, the calls judged, and what the process holds is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from chaos.calls import made, stated
from chaos.edits import Edits
from chaos.faults import FAULTS, TROUBLES
from chaos.holdings import Holdings, growth, held
from chaos.judge import ENDS, OWN_ANSWER, Broken, Judge
from chaos.link import Journals, World
from chaos.schedule import Event, Schedule, Step
from mainstay import CallResult, MainstayError, Runtime

IN_FLIGHT = 64
GRACE = 5.0
"""Seconds after its deadline in which a call must have ended, on a machine that is busy."""
BREATH = 0.05
"""Seconds that a caller waits whose call was not even sent: an outage must not use up the soak."""
ROUNDS = 4
"""Of a shift."""
LAST_CALLS = 100
"""During which a runtime is closed."""
ENOUGH = 20_000
"""Calls after which no fault may be missing."""
INJECTED = "every fault was injected"
EDITED = "an edit ends, in a way that its author is prepared for"
PATIENCE = 60.0
QUIET = "nothing is in flight when every call has ended"


@dataclass(slots=True)
class Limits:
    calls: int | None
    seconds: float | None
    round: int = 5_000


@dataclass(slots=True)
class Findings:
    """What a soak brought to light."""

    calls: int = 0
    seconds: float = 0.0
    broken: list[Broken] = field(default_factory=list[Broken])
    quiet: list[Holdings] = field(default_factory=list[Holdings])
    troubles: Counter[str] = field(default_factory=Counter[str])
    """How often each came."""
    hits: Counter[str] = field(default_factory=Counter[str])
    """Connections, processes and the like that they hit."""
    latest: float = 0.0
    """Seconds after its deadline that a call ended."""


class Soak:
    """All calls of a schedule, in shifts: one for each runtime. Lives in one event loop."""

    def __init__(
        self, schedule: Schedule, world: World, edits: Edits, journals: Journals, limits: Limits
    ) -> None:
        self._schedule, self._world, self._edits = schedule, world, edits
        self._journals, self._limits = journals, limits
        self.judge = Judge(schedule)
        self.findings = Findings()
        self._next = 0
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._over(self._limits.calls)

    def _over(self, last: int | None) -> bool:
        seconds = self._limits.seconds
        if seconds is not None and time.monotonic() >= self._began + seconds:
            return True
        return last is not None and self._next >= last

    async def shift(self, runtime: Runtime) -> None:
        """A few rounds with a runtime that is open; it is closed in the middle of the last one."""
        for _ in range(ROUNDS):
            await self._round(runtime, self._limits.round)
            self._look_for_flights(runtime)
            self.findings.quiet.append(held())
            if self.is_over:
                break
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._round(runtime, LAST_CALLS))
            await asyncio.sleep(BREATH)
            await runtime.aclose()

    def finish(self) -> Findings:
        self.read()
        self.findings.calls = self._next
        self.findings.seconds = time.monotonic() - self._began
        self.findings.broken += growth(self.findings.quiet)
        self._look_for_missing_faults()
        return self.findings

    async def _round(self, runtime: Runtime, calls: int) -> None:
        last = self._next + calls
        if self._limits.calls is not None and calls > LAST_CALLS:
            last = min(last, self._limits.calls)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._caller(runtime, last, tasks))
        self.read()

    async def _caller(self, runtime: Runtime, last: int, tasks: asyncio.TaskGroup) -> None:
        while not self._over(last):
            number, self._next = self._next, self._next + 1
            if (event := self._schedule.event(number)) is not None:
                tasks.create_task(self._trouble(event))
            await self._one(runtime, self._schedule.step(number))

    # -- calls ----------------------------------------------------------------------------------

    async def _one(self, runtime: Runtime, step: Step) -> None:
        self.judge.begins(step.number, self._edits.certain(step.server))
        loop = asyncio.get_running_loop()
        task = loop.create_task(made(runtime, step))
        deadline = loop.time() + step.timeout
        leaving = None
        if step.cancel_after is not None:
            leaving = loop.call_later(step.cancel_after, task.cancel)
        await asyncio.wait((task,), timeout=step.timeout + GRACE)
        if leaving is not None:
            leaving.cancel()
        if not task.done():
            await self._give_up(step, task)
            return
        self.findings.latest = max(self.findings.latest, loop.time() - deadline)
        statement = stated(step, task)
        self.judge.ends(
            step.number, statement.said, statement.words, self._edits.possible(step.server)
        )
        if statement.foreign:
            self._accuse(OWN_ANSWER, step.number, f"the result is {statement.foreign}")
        if statement.said.name == "NOT_RUN":
            await asyncio.sleep(BREATH)

    async def _give_up(self, step: Step, task: asyncio.Task[CallResult]) -> None:
        frames = " < ".join(f"{f.f_code.co_qualname}:{f.f_lineno}" for f in task.get_stack())
        self._accuse(ENDS, step.number, f"it waits in {frames}")
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE)

    def _accuse(self, invariant: str, number: int, evidence: str) -> None:
        self.findings.broken.append(self.judge.accuse(invariant, number, evidence))

    # -- troubles -------------------------------------------------------------------------------

    async def _trouble(self, event: Event) -> None:
        if TROUBLES[event.kind].kinds:
            hit = await self._world.befall(event)
        else:
            hit = await self._edit(event)
        self.findings.troubles[event.kind] += 1
        self.findings.hits[event.kind] += hit

    async def _edit(self, event: Event) -> int:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._edits.apply(event)
        except MainstayError:
            pass  # refused, as everything may be in such a world
        except Exception as error:  # a bug of ours, to be reported like any other
            words = f"{event.kind}: {type(error).__name__}: {error}"
            self.findings.broken.append(Broken(EDITED, None, words, "the configuration"))
        return 0

    # -- quiet moments --------------------------------------------------------------------------

    def read(self) -> None:
        found = self.findings.broken
        for server, line in self._journals.news():
            found += self.judge.reads(server, line)
        found += self.judge.verdict()
        self.judge.forget_the_innocent()

    def _look_for_flights(self, runtime: Runtime) -> None:
        for status in runtime.servers:
            if status.in_flight:
                shown = f"{status.in_flight} in flight at {status.name}"
                self.findings.broken.append(Broken(QUIET, None, shown, "every call has ended"))

    def _look_for_missing_faults(self) -> None:
        if self.findings.calls < ENOUGH:
            return
        missing = [name for name in FAULTS if not self.judge.granted[name]]
        missing += [name for name in TROUBLES if not self.findings.hits[name]]
        if missing:
            self.findings.broken.append(Broken(INJECTED, None, "", f"none of: {missing}"))
