"""`read`: a resource, as it is. Text for anybody; bytes for a pipe or a file, never a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkeep.cli import memory
from toolkeep.cli.answers import decoded
from toolkeep.cli.ending import DONE, FAILED, Misused
from toolkeep.cli.lists import context_of
from toolkeep.cli.place import Place, opened
from toolkeep.cli.screen import Screen
from toolkeep.cli.standing import tell_troubles

if TYPE_CHECKING:
    from toolkeep import Catalogue, Runtime
    from toolkeep.context import CallContext


async def read(
    place: Place,
    screen: Screen,
    uri: str,
    *,
    server: str | None,
    principal: str | None,
    output: str | None,
) -> int:
    context = context_of(principal)
    only = None if server is None else (server,)
    async with opened(place, screen, only=only) as runtime:
        owner = await _owner(runtime, place, screen, uri, context)
        found = await runtime.read_resource(uri, server=owner, context=context)
    contents = [one.model_dump(mode="json", exclude_none=True) for one in found.contents]
    if output is None:
        _show(screen, contents)
    else:
        _save(contents, output)
    screen.give({"contents": contents})
    return DONE if contents else FAILED


async def _owner(
    runtime: Runtime, place: Place, screen: Screen, uri: str, context: CallContext | None
) -> str | None:
    """The only server, or the only one with a template that could mean this; None: who lists it."""
    if len(runtime.servers) == 1:
        status = runtime.servers[0]
        if status.error is not None:
            raise status.error
        return status.name
    tell_troubles(runtime, screen)
    view = await runtime.catalogue_for(context)
    memory.keep(place, view)
    if any(one.uri == uri for one in view.resources):
        return None
    meant = _by_template(view, uri)
    return meant.pop() if len(meant) == 1 else None


def _by_template(view: Catalogue, uri: str) -> set[str]:
    starts = {(one.server, one.uri_template.partition("{")[0]) for one in view.templates}
    return {server for server, start in starts if start and uri.startswith(start)}


def _show(screen: Screen, contents: list[dict[str, Any]]) -> None:
    if screen.json:
        return
    for one in contents:
        if "text" in one:
            text: str = one["text"]
            line_end = "\n" if screen.terminal and not text.endswith("\n") else ""
            screen.write(text + line_end)
            continue
        data = decoded(one.get("blob")) or b""
        if screen.terminal:
            kind = one.get("mime_type", "of unknown type")
            raise Misused(f"{len(data)} bytes, {kind}: give --output FILE, or lead it into a pipe")
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _save(contents: list[dict[str, Any]], output: str) -> None:
    parts = [
        one["text"].encode() if "text" in one else decoded(one.get("blob")) or b""
        for one in contents
    ]
    try:
        Path(output).expanduser().write_bytes(b"".join(parts))
    except OSError as error:
        raise Misused(f"--output {output}: {error.strerror}") from None
