"""What a soak found, for people and for programs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import toolkeep
from chaos.faults import FAULTS, TROUBLES
from chaos.holdings import Holdings
from chaos.judge import Broken, Judge, Said
from chaos.scene import SERVERS
from chaos.soak import Findings

_SHOWN = 20


def repeating(seed: int, calls: int) -> str:
    return f"python -m chaos --calls {calls} --seed {seed}"


def told(broken: Broken, seed: int, calls: int) -> str:
    """One broken invariant, with all that is needed to see it again."""
    call = f"call {broken.number}" if broken.number is not None else "the whole"
    return "\n".join(
        (
            f"BROKEN: {broken.invariant}",
            f"  seed {seed}, {call}",
            f"  the client said: {broken.client}",
            f"  the ledger says: {broken.ledger}",
            f"  again: {repeating(seed, calls)}",
        )
    )


def lines(findings: Findings, judge: Judge, seed: int) -> Iterator[str]:
    rate = findings.calls / findings.seconds if findings.seconds else 0.0
    yield f"seed {seed}: {findings.calls} calls in {findings.seconds:.0f} s ({rate:.0f}/s)"
    yield from _outcomes(judge)
    yield "errors: " + _counted(dict(judge.errors.most_common()))
    yield "callers: " + _counted(dict(findings.callers))
    yield "faults of calls: " + _counted({name: judge.granted[name] for name in FAULTS})
    yield "troubles: " + _counted({name: findings.troubles[name] for name in TROUBLES})
    yield "what they hit: " + _counted({name: findings.hits[name] for name in TROUBLES})
    yield f"latest end: {max(0.0, findings.latest):.2f} s after its deadline: {findings.latest_of}"
    yield (
        f"the event loop stood still for {findings.lag:.2f} s at most, and worked for"
        f" {findings.work:.2f} s without a pause"
    )
    seconds, what = findings.slowest
    yield f"the slowest edit took {seconds:.2f} s: {what}"
    yield (
        f"all served again within {findings.recovery:.2f} s after a round,"
        f" in {findings.moments} rounds and {findings.shifts} runtimes"
    )
    if findings.quiet:
        yield f"held at the first quiet moment: {findings.quiet[0]}"
        yield f"held at the last one: {findings.quiet[-1]}"
    for broken in findings.broken[:_SHOWN]:
        yield told(broken, seed, findings.calls)
    if len(findings.broken) > _SHOWN:
        yield f"… and {len(findings.broken) - _SHOWN} more"
    yield "no invariant broken" if not findings.broken else f"{len(findings.broken)} broken"


def _outcomes(judge: Judge) -> Iterator[str]:
    said = [one.name for one in Said if one is not Said.NOTHING]
    yield f"{'':10}" + "".join(f"{name.lower().replace('_', ' '):>12}" for name in said)
    for server in SERVERS:
        counts = "".join(f"{judge.outcomes[server.name, name]:>12}" for name in said)
        yield f"{server.name:10}{counts}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _first_and_last(findings: Findings) -> list[Holdings]:
    return [findings.quiet[0], findings.quiet[-1]] if findings.quiet else []


def as_json(findings: Findings, judge: Judge, seed: int) -> dict[str, Any]:
    outcomes: dict[str, dict[str, int]] = {}
    for (server, said), count in judge.outcomes.items():
        outcomes.setdefault(server, {})[said.lower()] = count
    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": f"{platform.system()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "toolkeep": toolkeep.__version__,
        "load": round(os.getloadavg()[2], 1),
        "seed": seed,
        "calls": findings.calls,
        "runtimes": findings.shifts,
        "seconds": round(findings.seconds, 1),
        "outcomes": outcomes,
        "errors": dict(judge.errors),
        "callers": dict(findings.callers),
        "faults": dict(judge.granted),
        "troubles": dict(findings.troubles),
        "hits": dict(findings.hits),
        "latest": round(max(0.0, findings.latest), 2),
        "lag": round(findings.lag, 2),
        "work": round(findings.work, 2),
        "slowest": round(findings.slowest[0], 2),
        "recovery": round(findings.recovery, 2),
        "memory": [round(one.memory / (1 << 20), 1) for one in _first_and_last(findings)],
        "broken": [told(broken, seed, findings.calls) for broken in findings.broken],
    }
