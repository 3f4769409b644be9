"""What must show. Ratios within one run, so that they hold on any machine.

Each target is a line of the report with the figure that was measured; a figure that could not be
measured is no target met.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

Report = dict[str, Any]
Figure = Callable[[Report], float]


@dataclass(frozen=True)
class Target:
    what: str
    figure: Figure
    limit: float
    at_least: bool = False
    unit: str = ""

    def judged(self, report: Report) -> dict[str, Any]:
        try:
            found = self.figure(report)
        except (KeyError, LookupError, ZeroDivisionError):
            found = None
        holds = found is not None and (
            found >= self.limit if self.at_least else found <= self.limit
        )
        kept = {key: value for key, value in asdict(self).items() if key != "figure"}
        return {**kept, "measured": found, "holds": holds}


def judged(report: Report) -> list[dict[str, Any]]:
    return [target.judged(report) for target in TARGETS]


# -- figures --------------------------------------------------------------------------------------


def of_calls(contestant: str, key: str = "cpu_ms", **cell: Any) -> Figure:
    def figure(report: Report) -> float:
        wanted = {"contestant": contestant, **cell}
        for row in report["calls"]:
            if all(row[name] == value for name, value in wanted.items()):
                return row[key]
        raise LookupError(contestant)

    return figure


def ratio(above: str, below: str, **cell: Any) -> Figure:
    """Client CPU for one call, of one contestant to another's."""
    over, under = of_calls(above, **cell), of_calls(below, **cell)
    return lambda report: over(report) / under(report)


def _imported(report: Report) -> float:
    found = report["imports"]
    return found["import toolkeep"]["cpu_s"] / found["import mcp"]["cpu_s"]


# -- targets --------------------------------------------------------------------------------------


def _to_the_sdk() -> Iterator[Target]:
    small: dict[str, Any] = {"size": 100}
    for era in ("legacy", "modern"):
        for answer, in_flight, limit in (
            *(("json", 1, 0.30), ("json", 32, 0.20)),
            *(("sse", 1, 0.15), ("sse", 32, 0.15)),
        ):
            cell = {**small, "answer": answer, "era": era, "in_flight": in_flight}
            what = f"Client to SDK Client: {answer.upper()}, {era}, {in_flight} in flight"
            yield Target(what, ratio("client", "sdk", **cell), limit)
    for answer in ("json", "sse"):
        cell = {"answer": answer, "era": "legacy", "size": 1_000_000, "in_flight": 1}
        what = f"Client to SDK Client: {answer.upper()}, 1 MB"
        yield Target(what, ratio("client", "sdk", **cell), 0.5)


def _to_the_floor() -> Iterator[Target]:
    for era in ("legacy", "modern"):
        for in_flight, limit in ((1, 1.6), (32, 2.2)):
            cell: dict[str, Any] = {"answer": "json", "era": era, "size": 100}
            figure = ratio("client", "bare_aiohttp", in_flight=in_flight, **cell)
            yield Target(f"Client to bare POST: JSON, {era}, {in_flight} in flight", figure, limit)


def _sockets() -> Iterator[Target]:
    for era in ("legacy", "modern"):
        for in_flight in (1, 32):
            cell: dict[str, Any] = {"answer": "sse", "era": era, "size": 100}
            figure = of_calls("client", "connections", in_flight=in_flight, **cell)
            what = f"new TCP connections for a call: SSE, {era}, {in_flight} in flight"
            yield Target(what, figure, 0.0)


def _rest() -> Iterator[Target]:
    one: dict[str, Any] = {"answer": "json", "era": "legacy", "size": 100, "in_flight": 1}
    for in_flight in (1, 32):
        cell = {**one, "in_flight": in_flight}
        what = f"Runtime.call to Client.call_tool: {in_flight} in flight"
        yield Target(what, ratio("runtime", "client", **cell), 1.15)
    theirs = "langchain_mcp_adapters"
    what = "langchain-mcp-adapters' default to Client"
    yield Target(what, ratio(theirs, "client", **one), 50.0, at_least=True)
    opened = "opening"
    yield Target("a further session: CPU", lambda r: r[opened]["client"]["cpu_ms"], 15.0, unit="ms")
    yield Target(
        "a further session: memory", lambda r: r[opened]["client"]["kib"], 60.0, unit="KiB"
    )
    yield Target("import toolkeep to import mcp", _imported, 0.3)
    lost = "recovery"
    what = "requests to replace a lost session"
    yield Target(what, lambda report: report[lost]["client"]["requests"], 2.0)
    what = "TCP connections to replace a lost session"
    yield Target(what, lambda report: report[lost]["client"]["connections"], 0.0)
    what = "search in 10,000 tools, CPU, the worst of 200"
    yield Target(what, lambda r: r["catalogue"]["search_ms_worst"], 5.0, unit="ms")


TARGETS = (*_to_the_sdk(), *_to_the_floor(), *_sockets(), *_rest())
