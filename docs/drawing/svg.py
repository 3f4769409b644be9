"""A few shapes. Each picture has a ground of its own, so that it reads the same on any page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

GROUND, INK, FAINT, RULE = "#fcfbf8", "#22272e", "#5d6670", "#c9c5bb"
BLUE, GREEN, SAND, ROSE, PLAIN = "#dbe7f8", "#dcefdc", "#f5ead0", "#f8dfdd", "#ecebe6"

STYLE = f"""\
text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-size: 14px; \
fill: {INK}; }}
.code {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; \
font-weight: 600; }}
.said {{ font-size: 12.5px; fill: {FAINT}; }}
.bold {{ font-weight: 600; }}
.box {{ stroke: {RULE}; }}
.way {{ fill: none; stroke: {FAINT}; stroke-width: 1.5; marker-end: url(#tip); }}"""

TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    f' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{FAINT}"/></marker>'
)

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle around its middle."""

    x: float
    y: float
    width: float
    height: float

    def holds(self, point: Point, room: float = 3.0) -> bool:
        across, along = abs(point[0] - self.x), abs(point[1] - self.y)
        return across <= self.width / 2 + room and along <= self.height / 2 + room

    def drawn(self, colour: str = PLAIN) -> str:
        left, top = self.x - self.width / 2, self.y - self.height / 2
        return (
            f'<rect class="box" x="{left:g}" y="{top:g}" width="{self.width:g}"'
            f' height="{self.height:g}" rx="6" fill="{colour}"/>'
        )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(words)}</text>'


def label(box: Box, title: str, *said: str, colour: str = PLAIN, kind: str = "bold") -> str:
    """A box with a title, and lines below it."""
    top = box.y + 5 - 8.5 * len(said)
    lines = [text(box.x, top + 17 * (n + 1), line, "said") for n, line in enumerate(said)]
    return "\n".join([box.drawn(colour), text(box.x, top, title, kind), *lines])


def way(*points: Point) -> str:
    """An arrow, straight from each point to the next."""
    return f'<path class="way" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def curve(start: Box, end: Box, bend: float = 0.0) -> str:
    """An arrow from one box to another; `bend`: how far its middle is to the left of its way."""
    a, c = (start.x, start.y), (end.x, end.y)
    b = ((a[0] + c[0]) / 2 + bend * (c[1] - a[1]), (a[1] + c[1]) / 2 - bend * (c[0] - a[0]))
    steps = [n / 200 for n in range(201)]
    first = next(t for t in steps if not start.holds(along(a, b, c, t)))
    last = next(t for t in reversed(steps) if not end.holds(along(a, b, c, t)))
    (x1, y1), (x2, y2) = along(a, b, c, first), along(a, b, c, last)
    x, y = between(between(a, b, first), between(b, c, first), last)
    return f'<path class="way" d="M{x1:.1f} {y1:.1f} Q{x:.1f} {y:.1f} {x2:.1f} {y2:.1f}"/>'


def between(a: Point, b: Point, t: float) -> Point:
    return a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t


def along(a: Point, b: Point, c: Point, t: float) -> Point:
    return between(between(a, b, t), between(b, c, t), t)


def picture(width: int, height: int, about: str, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{escape(about)}">',
            f"<style>\n{STYLE}\n</style>",
            f"<defs>{TIP}</defs>",
            f'<rect width="{width}" height="{height}" rx="10" fill="{GROUND}"/>',
            *parts,
            "</svg>\n",
        ]
    )
