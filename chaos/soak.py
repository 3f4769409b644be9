"""The soak itself: calls in flight, troubles beside them, and quiet moments in which it is judged.

Calls are made in rounds. After each round every call has ended and every trouble is over; then the
journals are read, the calls judged, and what the process holds is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.calls import made, stated
from chaos.calm import recovered
from chaos.edits import Edits
from chaos.faults import FAULTS, TROUBLES
from chaos.holdings import Holdings, growth, settled
from chaos.judge import CANCELS, ENDS, HUSHED, OWN_ANSWER, Broken, Judge, Said
from chaos.link import Journals, World
from chaos.scene import PRINCIPALS, SECRET
from chaos.schedule import DEADLINE, Event, Schedule, Step
from chaos.witness import Witness
from toolkeep import CallResult, Runtime, ToolkeepError

IN_FLIGHT = 64
BREATH = 0.05
"""Seconds that a caller waits whose call was not even sent: an outage must not use up the soak."""
ROUNDS = 8
"""Of a shift."""
LAST_CALLS = 100
"""During which a runtime is closed."""
ENOUGH = 20_000
"""Calls after which no fault may be missing."""
INJECTED = "every fault was injected"
EDITED = "an edit of the configuration is applied, or refused with a documented error"
SETTLING = 5.0
"""Seconds for idle sockets to go."""
QUIET = "no call is counted as running when all have ended"
USEFUL = "most calls complete, whatever happens"
MOST, OF_AT_LEAST = 0.5, 1_000
"""The share, and of how many calls at least."""


@dataclass(slots=True)
class Limits:
    """How much there is to do, and the patience with each part of it: seconds, on a machine that
    is busy with other things as well.
    """

    calls: int | None
    seconds: float | None = None
    round: int = 2_000
    grace: float = 10.0
    """After its deadline, until a call is given up."""
    prompt: float = 2.0
    """After its deadline, in which a call must have ended; the time in which the event loop stood
    still does not count.
    """
    recovery: float = 30.0
    """After a round, in which every server must serve again."""
    closing: float = 10.0
    """After the runtime is closed, in which sockets and processes must be gone."""


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
    """Seconds after its deadline that a call ended, without those that the event loop stood still.
    """
    latest_of: str = ""
    """Which one, and what it said."""
    lag: float = 0.0
    """Seconds that the event loop stood still at most."""
    work: float = 0.0
    """Seconds of processor time between two looks at it that were to be 0.05 s apart."""
    slowest: tuple[float, str] = (0.0, "")
    """Edit: how many seconds it took, and which one it was."""
    callers: Counter[str] = field(default_factory=Counter[str])
    """Those that were cancelled, had little time, or watched their calls."""
    recovery: float = 0.0
    """Seconds that it took at most, after a round, until every server served again."""
    moments: int = 0
    """Quiet ones."""
    shifts: int = 0


class Soak:
    """All calls of a schedule, in shifts: one for each runtime. Lives in one event loop."""

    def __init__(
        self,
        schedule: Schedule,
        world: World,
        edits: Edits,
        journals: Journals,
        limits: Limits,
        tell: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._schedule, self._world, self._edits = schedule, world, edits
        self._journals, self._limits = journals, limits
        self.judge = Judge(schedule)
        self.findings = Findings()
        self.witness = Witness()
        self._next = 0
        self._began = time.monotonic()
        self._first_shift = 0
        """How many quiet moments the first shift had."""

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
        measured = len(self.findings.quiet)
        with contextlib.closing(runtime.observe(self.witness)):
            for number in range(ROUNDS):
                await self._round(runtime, self._limits.round)
                await self._quiet_moment(runtime)
                if number % 2 == 0 or self.is_over:
                    await self._take_stock()
                if self.is_over:
                    break
            self.findings.broken += growth(self.findings.quiet[measured:])
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._round(runtime, LAST_CALLS))
                await asyncio.sleep(BREATH)
                await runtime.aclose()
        self.findings.broken += self.witness.findings(quiet=True)
        self._first_shift = self._first_shift or len(self.findings.quiet)
        self.findings.shifts += 1

    def finish(self) -> Findings:
        self.read()
        self.findings.calls = self._next
        self.findings.lag, self.findings.work = self.witness.lag, self.witness.work
        self.findings.slowest = self._edits.slowest
        self.findings.broken += self.witness.findings(quiet=True)
        self.findings.seconds = time.monotonic() - self._began
        # The first runtime has no store, and so holds less than the later ones.
        self.findings.broken += growth(self.findings.quiet[self._first_shift :])
        self.findings.broken += [*missing(self.findings, self.judge)]
        self.findings.broken += [*too_few(self.findings, self.judge)]
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
        left: list[bool] = []
        if step.cancel_after is not None:
            loop.call_later(step.cancel_after, lambda: left.append(task.cancel()))
        await asyncio.wait((task,), timeout=step.timeout + self._limits.grace)
        if not task.done():
            await self._give_up(step, task)
            return
        self._count(step, cancelled=any(left))
        statement = stated(step, task, cancelled=any(left))
        if (late := loop.time() - deadline) > 0:
            self._time(step, late - self.witness.stood_since(deadline), statement.words)
        if any(left) and statement.said is not Said.CANCELLED:
            self._accuse(CANCELS, step.number, statement.words)
        self.judge.ends(
            step.number, statement.said, statement.words, self._edits.possible(step.server)
        )
        if statement.foreign:
            self._accuse(OWN_ANSWER, step.number, f"the result is {statement.foreign}")
        if SECRET in statement.words:
            self._accuse(HUSHED, step.number, "the words of the error")
        if statement.said is Said.NOT_RUN:
            await asyncio.sleep(BREATH)

    def _time(self, step: Step, late: float, words: str) -> None:
        if late > self.findings.latest:
            self.findings.latest, self.findings.latest_of = late, f"{step}, {words}"
        if late > self._limits.prompt:
            self._accuse(ENDS, step.number, f"it ended {late:.2f} s after its deadline: {words}")

    def _count(self, step: Step, *, cancelled: bool) -> None:
        self.findings.callers["cancelled"] += cancelled
        self.findings.callers["in a hurry"] += step.timeout < DEADLINE
        self.findings.callers["watching"] += step.watched

    async def _give_up(self, step: Step, task: asyncio.Task[CallResult]) -> None:
        self._accuse(ENDS, step.number, f"it waits in {waiting(task)}")
        task.cancel()
        await asyncio.wait((task,), timeout=self._limits.grace)

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
            return await self._edits.apply(event)
        except ToolkeepError:
            pass  # refused, as everything may be in such a world
        except Exception as error:  # a bug of ours, to be reported like any other
            words = f"{event.kind}: {type(error).__name__}: {error}"
            self.findings.broken.append(Broken(EDITED, None, words, "the configuration"))
        return 0

    # -- quiet moments --------------------------------------------------------------------------

    async def _quiet_moment(self, runtime: Runtime) -> None:
        found = self.findings
        self._look_for_flights(runtime)
        seconds, unserved = await recovered(
            runtime, self._edits.present, found.moments, self._limits.recovery
        )
        found.recovery, found.moments = max(found.recovery, seconds), found.moments + 1
        found.broken += unserved
        found.broken += self.witness.findings(quiet=True)
        # So that a soak which is stopped has said something.
        self._tell(f"{self._next} calls, {len(found.broken)} broken")

    async def _take_stock(self) -> None:
        """Without the sessions of principals, so that it is the same at any time."""
        forgotten = (Event(self._next, "principal forgotten", one) for one in PRINCIPALS)
        await asyncio.gather(*(self._edit(event) for event in forgotten))
        self.findings.quiet.append(await settled(SETTLING))

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


def waiting(task: asyncio.Task[Any]) -> str:
    """Where a task stands, the innermost first; a task's own stack ends at its outermost."""
    frames: list[str] = []
    inner: Any = task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        inner = inner.cr_await
    return " < ".join(reversed(frames))


def missing(findings: Findings, judge: Judge) -> Iterator[Broken]:
    """Faults that did not come, after so many calls that all should have."""
    absent = [name for name in FAULTS if not judge.granted[name]]
    absent += [name for name in TROUBLES if not findings.hits[name]]
    if absent and findings.calls >= ENOUGH:
        yield Broken(INJECTED, None, "", f"none of: {absent}")


def too_few(findings: Findings, judge: Judge) -> Iterator[Broken]:
    """A client that says no to everything tells no lie, and is of no use."""
    completed = sum(n for (_, said), n in judge.outcomes.items() if said == Said.COMPLETED.name)
    if completed < MOST * findings.calls and findings.calls >= OF_AT_LEAST:
        yield Broken(USEFUL, None, f"{completed} of {findings.calls} completed", "the whole")
