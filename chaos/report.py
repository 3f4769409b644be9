"""What a soak found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaos.faults import FAULTS, TROUBLES
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
    yield "faults of calls: " + _counted({name: judge.granted[name] for name in FAULTS})
    yield "troubles: " + _counted({name: findings.troubles[name] for name in TROUBLES})
    yield "what they hit: " + _counted({name: findings.hits[name] for name in TROUBLES})
    yield f"latest end: {max(0.0, findings.latest):.2f} s after its deadline"
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


def as_json(findings: Findings, judge: Judge, seed: int) -> dict[str, Any]:
    outcomes: dict[str, dict[str, int]] = {}
    for (server, said), count in judge.outcomes.items():
        outcomes.setdefault(server, {})[said.lower()] = count
    return {
        "seed": seed,
        "calls": findings.calls,
        "seconds": round(findings.seconds, 1),
        "outcomes": outcomes,
        "faults": dict(judge.granted),
        "troubles": dict(findings.troubles),
        "hits": dict(findings.hits),
        "latest": round(findings.latest, 3),
        "broken": [told(broken, seed, findings.calls) for broken in findings.broken],
    }
