"""From figures to pictures for the docs. Nothing is fetched to show them, and nothing else in them
than what a run has measured."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from benchmarks.cells import CORE, FRAMEWORKS
from benchmarks.roster import ROSTER
from benchmarks.tables import SMALL, found

Report = dict[str, Any]
WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 900, 300, 90, 26, 64, 40
PAPER, INK, FAINT = "#181c24", "#d8dee9", "#3b4252"
COLOURS = {"floor": "#7b8394", "ours": "#7ec98a", "theirs": "#7aa2f7"}
WHOSE = {"floor": "floors", "ours": "toolkeep", "theirs": "others"}
Bar = tuple[str, float, str]
"""What it is, how long, in which colour."""


def pictures(report: Report) -> dict[str, str]:
    """By the name of their file."""
    return {"bench-calls.svg": one_call(report), "bench-forms.svg": forms(report)}


def one_call(report: Report) -> str:
    """Everybody: JSON, legacy, 100 bytes, one in flight."""
    names = dict.fromkeys((*CORE, *FRAMEWORKS))
    bars = [
        (ROSTER[name].title, cost * 1000, COLOURS[ROSTER[name].kind])
        for name in names
        if (cost := found(report, name, "cpu_ms", SMALL[0][1])) is not None
    ]
    title = "Client CPU for one call, µs (100 bytes, JSON, one in flight; logarithmic)"
    return drawn(title, sorted(bars, key=lambda bar: bar[1]))


def forms(report: Report) -> str:
    """Floor, ours and the SDK's for each form of answer, era and number in flight."""
    bars: list[Bar] = []
    for title, cell in SMALL:
        for name in ("bare_aiohttp", "client", "sdk"):
            cost = found(report, name, "cpu_ms", cell)
            if cost is not None:
                label = f"{title}: {ROSTER[name].title}"
                bars.append((label, cost * 1000, COLOURS[ROSTER[name].kind]))
    title = "Client CPU for one call, µs (100 bytes; form, era, calls in flight; logarithmic)"
    return drawn(title, bars)


def drawn(title: str, bars: Sequence[Bar]) -> str:
    height = TOP + ROW * len(bars) + BOTTOM
    low = 10 ** math.floor(math.log10(min(bar[1] for bar in bars)))
    high = max(bar[1] for bar in bars)

    def x(value: float) -> float:
        share = math.log10(value / low) / math.log10(high / low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(title)}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
        f'<text x="20" y="28" fill="{INK}" font-size="15">{escape(title)}</text>',
        *legend(),
    ]
    for power in range(round(math.log10(low)), math.floor(math.log10(high)) + 1):
        at, bottom = x(10**power), height - BOTTOM
        parts.append(f'<path d="M{at:.1f} {TOP - 6}V{bottom}" stroke="{FAINT}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 18}" fill="{INK}" text-anchor="middle">'
            f"{10**power:,}</text>"
        )
    for place, (label, value, colour) in enumerate(bars):
        parts += bar_of(label, value, colour, TOP + place * ROW, x(value))
    return "\n".join([*parts, "</svg>", ""])


def legend() -> list[str]:
    parts: list[str] = []
    for place, (kind, colour) in enumerate(COLOURS.items()):
        left = 20 + place * 110
        parts.append(f'<rect x="{left}" y="40" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 18}" y="51" fill="{INK}">{WHOSE[kind]}</text>')
    return parts


def bar_of(label: str, value: float, colour: str, top: int, end: float) -> list[str]:
    middle = top + ROW / 2 + 4
    return [
        f'<text x="{LEFT - 10}" y="{middle:.1f}" fill="{INK}" text-anchor="end">'
        f"{escape(label)}</text>",
        f'<rect x="{LEFT}" y="{top + 4}" width="{max(end - LEFT, 1):.1f}" height="{ROW - 8}"'
        f' fill="{colour}"/>',
        f'<text x="{end + 6:.1f}" y="{middle:.1f}" fill="{INK}">{value:,.0f}</text>',
    ]
