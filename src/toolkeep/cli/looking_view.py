"""The picture that `watch` draws: how each server is, and the last events that fit below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkeep.cli.standing import reason

if TYPE_CHECKING:
    from rich.console import RenderableType

    from toolkeep import Runtime, ServerStatus

HEADS = ("server", "transport", "era", "version", "latency", "tools", "health")
_COLOURS = {"healthy": "green", "down": "red", "needs authorization": "yellow"}


def row_of(status: ServerStatus) -> tuple[str, ...]:
    latency = "" if status.latency is None else f"{status.latency * 1000:.0f} ms"
    return (
        status.name,
        status.transport,
        status.era or "",
        status.protocol_version or "",
        latency,
        "" if status.error else f"{status.tools}{' (stale)' if status.stale else ''}",
        status.health.value,
    )


def dict_of(status: ServerStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "transport": status.transport,
        "era": status.era,
        "protocol_version": status.protocol_version,
        "health": status.health.value,
        "latency": status.latency,
        "tools": status.tools,
        "stale": status.stale,
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
