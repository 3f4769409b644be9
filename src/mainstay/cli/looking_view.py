"""The picture that `watch` draws: how each server is, and the last events that fit below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstay.cli.standing import reason

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mainstay import Runtime, ServerStatus

HEADS = ("server", "transport", "era", "health", "latency", "tools", "sessions", "calls", "errors")
_COLOURS = {"healthy": "green", "down": "red", "needs authorization": "yellow"}


def row_of(status: ServerStatus) -> tuple[str, ...]:
    latency = "" if status.latency is None else f"{status.latency * 1000:.0f} ms"
    figures = status.figures
    return (
        status.name,
        status.transport,
        status.era or "",
        status.health.value,
        latency,
        "" if status.error else f"{status.tools}{' (stale)' if status.stale else ''}",
        str(status.sessions),
        f"{figures.calls} ({figures.in_flight} now)" if figures.in_flight else str(figures.calls),
        str(figures.failed + figures.tool_errors),
    )


def dict_of(status: ServerStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "transport": status.transport,
        "era": status.era,
        "health": status.health.value,
        "latency": status.latency,
        "tools": status.tools,
        "stale": status.stale,
        "sessions": status.sessions,
        "calls": status.figures.calls,
        "in_flight": status.in_flight,
        "errors": status.figures.failed + status.figures.tool_errors,
        "error": reason(status.error) or None,
    }


def picture(runtime: Runtime, lines: Sequence[str], height: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in HEADS:
        table.add_column(head, no_wrap=True, overflow="ellipsis")
    for status in runtime.servers:
        cells = row_of(status)
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    troubles = [
        Text(f"{one.name}: {reason(one.error)}", style="red", no_wrap=True, overflow="ellipsis")
        for one in runtime.servers
        if one.error is not None
    ]
    summary = Text(f"{runtime.summary()}  ·  q ends", style="dim")
    room = max(height - len(runtime.servers) - len(troubles) - 4, 0)
    last = [Text(one, no_wrap=True, overflow="ellipsis") for one in (lines[-room:] if room else ())]
    return Group(table, *troubles, Text(), summary, Text(), *last)
