"""`python -m chaos.page [--check]`: the results of recorded soaks, in `docs/explanation/chaos.md`.

Between its two marks that page says what `results.json` holds, and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chaos.faults import FAULTS, TROUBLES
from chaos.judge import Said
from chaos.scene import SERVERS

RESULTS = Path(__file__).resolve().parent / "results.json"
PAGE = RESULTS.parent.parent / "docs" / "explanation" / "chaos.md"
BEGIN = (
    "<!-- Written by chaos/page.py from chaos/results.json. Run a soak with --record instead. -->"
)
END = "<!-- Here it ends. -->"

Run = dict[str, Any]


def recorded() -> list[Run]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []


def record(run: Run) -> None:
    """Beside the others, in place of the one of the same seed; and the page with it."""
    runs = [other for other in recorded() if other["seed"] != run["seed"]]
    runs.append(run)
    runs.sort(key=lambda each: each["seed"])
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    PAGE.write_text(drawn(PAGE.read_text("utf-8"), runs), "utf-8")


def drawn(page: str, runs: Sequence[Run]) -> str:
    """The page with these results in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n\n".join([before + BEGIN, *_parts(runs), END]) + after


def _parts(runs: Sequence[Run]) -> Iterable[str]:
    yield _table(["", *(f"seed {run['seed']}" for run in runs)], _facts(runs))
    yield "How the calls ended, in the client's words, over all these soaks:"
    yield _table(["server", *(_shown(said) for said in _SAID)], _outcomes(runs))
    yield "How often each fault of a single call was injected, as the servers' journals tell:"
    yield _table(["fault", "times"], _sums(runs, "faults", FAULTS))
    yield "And each trouble of a server, of its connections or of the runtime:"
    yield _table(["trouble", "times", "what it hit"], _troubles(runs))


_SAID = [said for said in Said if said is not Said.NOTHING]


def _shown(said: Said) -> str:
    return said.name.lower().replace("_", " ")


def _facts(runs: Sequence[Run]) -> Iterable[list[str]]:
    def row(name: str, form: str) -> list[str]:
        return [name, *(form.format(**run) for run in runs)]

    yield row("date", "{date}")
    yield row("machine", "{system}, Python {python}")
    yield row("load of the machine (15 minutes)", "{load}")
    yield row("calls", "{calls:,}")
    yield row("seconds", "{seconds:.0f}")
    yield row("runtimes, one after the other", "{runtimes}")
    yield row("callers that were cancelled", "{callers[cancelled]:,}")
    yield row("callers in a hurry", "{callers[in a hurry]:,}")
    yield row("callers that watched", "{callers[watching]:,}")
    yield row(
        "latest end of a call after its deadline, stalls of the loop left out", "{latest:.2f} s"
    )
    yield row("longest that the event loop stood still", "{lag:.2f} s")
    yield row("slowest edit of the configuration", "{slowest:.2f} s")
    yield row("longest until all servers served again", "{recovery:.2f} s")
    yield row(
        "memory at the first and at the last quiet moment", "{memory[0]:.0f} and {memory[1]:.0f} MB"
    )
    yield ["**invariants broken**", *(f"**{len(run['broken'])}**" for run in runs)]


def _outcomes(runs: Sequence[Run]) -> Iterable[list[str]]:
    for server in SERVERS:
        told = [run["outcomes"].get(server.name, {}) for run in runs]
        counts = [sum(each.get(said.name.lower(), 0) for each in told) for said in _SAID]
        yield [f"`{server.name}`", *(f"{count:,}" for count in counts)]


def _sums(runs: Sequence[Run], what: str, names: Iterable[str]) -> Iterable[list[str]]:
    for name in names:
        yield [name, f"{sum(run[what].get(name, 0) for run in runs):,}"]


def _troubles(runs: Sequence[Run]) -> Iterable[list[str]]:
    hits = dict(_sums(runs, "hits", TROUBLES))
    for name, times in _sums(runs, "troubles", TROUBLES):
        yield [name, times, hits[name]]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def main(arguments: Sequence[str]) -> int:
    page = PAGE.read_text("utf-8")
    fresh = drawn(page, recorded())
    if "--check" in arguments:
        return int(page != fresh)
    PAGE.write_text(fresh, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
