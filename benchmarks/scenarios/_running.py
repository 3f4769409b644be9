"""Runs scenarios, each against a server of its own, and gives verdicts.

Whatever a client does, every scenario ends in its time and has a verdict.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.scenarios import _callers, _lists, _logins, _outcomes, _sessions
from benchmarks.scenarios._driver import STARTING, ClientProcess
from benchmarks.scenarios.report import Report, Result, Verdict
from benchmarks.scenarios.scenario import Era, Scenario
from benchmarks.scenarios.stage import Broken, NotApplicable, Stage
from toolkeep.testing.proxy import FaultProxy
from toolkeep.testing.script import JsonObject, ServerOptions
from toolkeep.testing.scripted import ScriptedServer

SCENARIOS: tuple[Scenario, ...] = (
    *_sessions.ALL,
    *_outcomes.ALL,
    *_callers.ALL,
    *_lists.ALL,
    *_logins.ALL,
)
BOUND = 45.0
"""Seconds for one scenario; what takes longer is broken."""


async def run(
    adapter: type | str,
    *,
    scenarios: Sequence[Scenario] | None = None,
    era: Era = "legacy",
    python: str | None = None,
    jobs: int = 1,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> Report:
    """Drive a client through all scenarios, or these: one after the other, or in so many processes
    at once.

    `adapter` is a class (see `Adapter`), or says where it is: `package.module:Name`, or
    `path/to/file.py:Name`. `python` may be that of another environment, which needs the client and
    nothing of toolkeep; without, it is this one's. `era`: what the server speaks. Raises
    RuntimeError if the adapter cannot be loaded.
    """
    where = adapter if isinstance(adapter, str) else _place_of(adapter)
    chosen, program = SCENARIOS if scenarios is None else scenarios, python or sys.executable
    left, verdicts = deque(chosen), dict[str, Verdict]()

    async def work() -> JsonObject:
        process = await _started(where, program)
        facts, fit = process.facts, True
        try:
            while left:
                scenario = left.popleft()
                if not fit:
                    await process.close()
                    process = await _started(where, program)
                verdict, fit = await _judged(scenario, process, era)
                verdicts[scenario.name] = verdict
                if on_verdict is not None:
                    on_verdict(verdict)
        finally:
            await process.close()
        return facts

    facts, *_ = await asyncio.gather(*(work() for _ in range(min(jobs, len(left)))))
    ordered = tuple(verdicts[scenario.name] for scenario in chosen)
    return Report(facts["name"], era, facts["python"], facts["packages"], ordered)


def _place_of(adapter: type) -> str:
    file = inspect.getsourcefile(adapter)
    if file is None or "<locals>" in adapter.__qualname__:
        raise ValueError(f"{adapter!r} cannot be found by another process: define it in a module")
    return f"{file}:{adapter.__qualname__}"


async def _started(where: str, python: str) -> ClientProcess:
    """A process that has made a call already: what a client imports for its first one would be
    taken for its slowness."""
    process = await ClientProcess.start(where, python)
    async with ScriptedServer.local() as server:
        stage = Stage(server, FaultProxy.to("127.0.0.1", 0), process, timeout=STARTING)
        try:
            await stage.ready(timeout=STARTING)
            await stage.close()
        except (Broken, NotApplicable) as seen:
            await process.close()
            raise RuntimeError(f"no client: of a server that is well: {seen}") from None
        if not await process.end():
            await process.close()
            raise RuntimeError("no client: it does not end")
    return process


async def _judged(scenario: Scenario, process: ClientProcess, era: Era) -> tuple[Verdict, bool]:
    """The verdict, and whether the process is fit for the next."""
    if era not in scenario.eras:
        verdict = Verdict(scenario.name, "not applicable", f"there is none in the {era} era", 0.0)
        return verdict, True
    began = time.monotonic()
    options: ServerOptions = {**scenario.server, "era": era}
    async with (
        ScriptedServer.local(**options) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
    ):
        stage = Stage(server, proxy, process, era)
        result, evidence = await _played(scenario, stage)
        fit = (await stage.close()).what in ("answer", "error")
        fit = await process.end() and fit
    seconds = round(time.monotonic() - began, 1)
    return Verdict(scenario.name, result, evidence, seconds, bool(scenario.choice)), fit


async def _played(scenario: Scenario, stage: Stage) -> tuple[Result, str]:
    try:
        async with asyncio.timeout(BOUND):
            await scenario.play(stage)
    except Broken as seen:
        return "failed", str(seen)
    except NotApplicable as reason:
        return "not applicable", str(reason)
    except TimeoutError:
        return "failed", "; ".join([*stage.notes, "it did not come to an end"])
    return "passed", "; ".join(stage.notes)
