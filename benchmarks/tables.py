"""From figures to tables, for the terminal and for the docs alike: Markdown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.cells import CORE, FRAMEWORKS, SIZED
from benchmarks.roster import ROSTER
from benchmarks.targets import of_calls

Report = dict[str, Any]
Column = tuple[str, dict[str, Any]]
SMALL: tuple[Column, ...] = tuple(
    (
        f"{answer.upper()} {era} {in_flight}",
        {"answer": answer, "era": era, "size": 100, "in_flight": in_flight},
    )
    for answer in ("json", "sse")
    for era in ("legacy", "modern")
    for in_flight in (1, 32)
)
SIZES: tuple[Column, ...] = tuple(
    (title, {"answer": answer, "era": "legacy", "size": size, "in_flight": in_flight})
    for title, answer, size, in_flight in (
        ("JSON 100 B, 256 in flight", "json", 100, 256),
        ("JSON 10 kB", "json", 10_000, 1),
        ("JSON 10 kB, 32 in flight", "json", 10_000, 32),
        ("SSE 10 kB", "sse", 10_000, 1),
        ("JSON 1 MB", "json", 1_000_000, 1),
        ("SSE 1 MB", "sse", 1_000_000, 1),
    )
)
STDIO: tuple[Column, ...] = tuple(
    (f"{in_flight} in flight", {"answer": "stdio", "in_flight": in_flight}) for in_flight in (1, 32)
)
OF_FRAMEWORKS = (SMALL[0], SMALL[1], SMALL[4])


def sections(report: Report) -> Iterator[tuple[str, str]]:
    """Each with its heading and what stands below it."""
    yield "Targets", targets(report)
    yield "A call of 100 bytes", calls(report, CORE, SMALL)
    yield "Through a framework", frameworks(report)
    yield "Larger answers, and more at once", calls(report, ("runtime", *SIZED), SIZES)
    yield "A program on stdio", calls(report, ("bare_pipe", "client", "sdk"), STDIO)
    if report.get("instructions"):
        yield "Instructions for one call", instructions(report)
    yield "Fifty servers", opening(report)
    yield "After a lost session", recovery(report)
    yield "Imports", imports(report)
    yield "Ten thousand tools", catalogue(report)


def about(report: Report) -> str:
    found = report["about"]
    pinned = "client and server each on a core of its own" if found["own_cores"] else "one core"
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"{found['date']}; {found['system']}, {found['processor']}, {found['cores']} cores,"
        f" {pinned}; load {found['load']} at the start;"
        f" Python {found['python']}, Node {found['node']}."
        f" {versions}. Medians of {found['turns']} turns; {report['took_s']:.0f} s in all."
    )


# -- tables ---------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def targets(report: Report) -> str:
    def row(one: dict[str, Any]) -> list[str]:
        unit = f" {one['unit']}" if one["unit"] else ""
        found = "not measured" if one["measured"] is None else f"{number(one['measured'])}{unit}"
        bound = f"{'at least' if one['at_least'] else 'at most'} {one['limit']:g}{unit}"
        return [one["what"], found, bound, "yes" if one["holds"] else "**no**"]

    return table(["", "measured", "wanted", "holds"], map(row, report["targets"]))


def calls(report: Report, who: Iterable[str], columns: Sequence[Column]) -> str:
    """Microseconds of processor time, and of wall time in brackets."""

    def figure(name: str, cell: dict[str, Any]) -> str:
        cpu, wall = (found(report, name, key, cell) for key in ("cpu_ms", "wall_ms"))
        return "" if cpu is None or wall is None else f"{cpu * 1000:,.0f} ({wall * 1000:,.0f})"

    rows = ([ROSTER[name].title, *(figure(name, cell) for _, cell in columns)] for name in who)
    return table(["µs", *(title for title, _ in columns)], (row for row in rows if any(row[1:])))


def frameworks(report: Report) -> str:
    head = ["µs", *(title for title, _ in OF_FRAMEWORKS), "requests", "new sockets, SSE"]

    def row(name: str) -> list[str]:
        cells = [cell for _, cell in OF_FRAMEWORKS]
        cpu = [found(report, name, "cpu_ms", cell) for cell in cells]
        more = [
            found(report, name, key, cell)
            for key, cell in (("requests", cells[0]), ("connections", cells[2]))
        ]
        shown = ["" if one is None else f"{one * 1000:,.0f}" for one in cpu]
        return [ROSTER[name].title, *shown, *("" if one is None else f"{one:g}" for one in more)]

    return table(head, (row for row in map(row, FRAMEWORKS) if any(row[1:])))


def found(report: Report, name: str, key: str, cell: dict[str, Any]) -> float | None:
    try:
        return of_calls(name, key, **cell)(report)
    except LookupError:
        return None


def instructions(report: Report) -> str:
    rows = (
        [
            f"{ROSTER[row['contestant']].title}, {row['answer'].upper()}, {row['era']}",
            f"{row['instructions']:,.0f}",
            f"{row['to_floor']:.2f}" if "to_floor" in row else "",
        ]
        for row in report["instructions"]
    )
    return table(["", "instructions", "in bare POSTs"], rows)


def opening(report: Report) -> str:
    return by_contestant(
        report["opening"],
        {
            "CPU": lambda one: f"{one['cpu_ms']:.1f} ms",
            "wall": lambda one: f"{one['wall_ms']:.1f} ms",
            "memory": lambda one: f"{one['kib']:.0f} KiB",
        },
    )


def recovery(report: Report) -> str:
    def unless_failed(key: str, form: str) -> Callable[[dict[str, Any]], str]:
        return lambda one: "" if one["error"] else format(one[key], form)

    return by_contestant(
        report["recovery"],
        {
            "the next call": lambda one: f"fails: {one['error']}" if one["error"] else "works",
            "requests more": unless_failed("requests", "g"),
            "new sockets": unless_failed("connections", "g"),
            "ms": unless_failed("wall_ms", ".1f"),
        },
    )


def by_contestant(
    figures: dict[str, dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str]]
) -> str:
    rows = (
        [ROSTER[name].title, *(show(one) for show in columns.values())]
        for name, one in figures.items()
    )
    return table(["", *columns], rows)


def imports(report: Report) -> str:
    rows = (
        [name, f"{one['cpu_s'] * 1000:.0f}", f"{one['wall_s'] * 1000:.0f}"]
        for name, one in report["imports"].items()
    )
    return table(["ms over an interpreter's start", "CPU", "wall"], rows)


def catalogue(report: Report) -> str:
    one = report["catalogue"]
    return table(
        ["", ""],
        [
            ["tools", f"{one['tools']:,}"],
            ["open and list, CPU", f"{one['open_cpu_s']:.2f} s"],
            ["open and list, wall", f"{one['open_wall_s']:.2f} s"],
            ["memory", f"{one['kib'] / 1024:.0f} MiB"],
            ["first search (makes the index)", f"{one['first_search_ms']:.0f} ms"],
            ["search, top 10: median", f"{one['search_ms']:.2f} ms"],
            ["search, top 10: the worst of 200", f"{one['search_ms_worst']:.2f} ms"],
            ["a tool by its name", f"{one['lookup_ms'] * 1000:.1f} µs"],
        ],
    )


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
