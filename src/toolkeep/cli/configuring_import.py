"""`config import`: servers of other products, taken over as they are written.

A reference such as `${TOKEN}` stays a reference. A secret that is written out is copied, because
the server would not work without it, and named, with what to write in its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from toolkeep.cli import columns
from toolkeep.cli.configuring_merge import Target
from toolkeep.cli.configuring_places import PRODUCTS, Found, Kept, read, usual
from toolkeep.cli.configuring_values import literal_secrets, redacted, variables_of
from toolkeep.cli.ending import DONE, FAILED, Misused
from toolkeep.cli.screen import Screen
from toolkeep.config.urls import our_names
from toolkeep.errors import ConfigError

Status = Literal["new", "same", "replaced", "kept"]

_WORDS: Mapping[Status, str] = {
    "new": "taken",
    "same": "is there already",
    "replaced": "replaces what was there",
    "kept": "another is there: kept",
}


@dataclass(frozen=True)
class Taken:
    """One server, and what becomes of it."""

    name: str
    found: Found
    status: Status
    secrets: list[str] = field(default_factory=list[str])

    @property
    def inputs(self) -> list[str]:
        asked = variables_of(_leaves(self.found.entry))
        return [name.removeprefix("input:") for name in asked if name.startswith("input:")]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "product": self.found.product,
            "from": str(self.found.path),
            "shown": shown(self.found.entry),
            "secrets": self.secrets,
        }


def imported(source: str | None, to: Path, *, force: bool, dry_run: bool, json: bool) -> int:
    screen, cwd = Screen(json), Path.cwd()
    target = Target(to)
    found = [one for one in _all(source, cwd, screen) if one.path != (cwd / to)]
    taken = _decided(found, target, force=force)
    changed = [one for one in taken if one.status in ("new", "replaced")]
    written = bool(changed) and not dry_run
    if written:
        _write(changed, target)
    screen.give({"to": str(to), "written": written, "servers": [one.as_dict() for one in taken]})
    if not taken:
        screen.note("error: no server was found in the files of Claude, Cursor and VS Code")
        return FAILED
    _tell(taken, screen)
    _warn(changed, target, screen)
    screen.say(_summary(len(changed), to, dry_run=dry_run))
    return DONE


def _all(source: str | None, cwd: Path, screen: Screen) -> list[Found]:
    """Of this product, of this file, or of every product. What was named must be readable."""
    places = usual(sys.platform, os.environ, cwd)
    if source is not None and source not in PRODUCTS:
        if not os.path.lexists(source):
            known = ", ".join(PRODUCTS)
            raise Misused(f"{source!r} is no file, and no product that is known: {known}")
        return read(Kept("file", cwd / source), cwd)
    found: list[Found] = []
    for kept in places:
        if source in (None, kept.product) and kept.path.is_file():
            try:
                found += read(kept, cwd)
            except ConfigError as error:
                screen.note(f"warning: {error}")
    return found


def _decided(found: Iterable[Found], target: Target, *, force: bool) -> list[Taken]:
    """Each name once: the nearest file wins."""
    taken: dict[str, Taken] = {}
    listed = list(found)
    names = our_names(one.name for one in listed)
    for one in listed:
        name = names[one.name]
        if name in taken:
            continue
        there = target.servers.get(name)
        status: Status = "new"
        if there is not None:
            status = "same" if there == dict(one.entry) else "replaced" if force else "kept"
        taken[name] = Taken(name, one, status, literal_secrets(one.entry))
    return list(taken.values())


def _write(changed: list[Taken], target: Target) -> None:
    asked = {id_ for one in changed for id_ in one.inputs}
    declared = [i for one in changed for i in one.found.inputs if i.get("id") in asked]
    if declared and target.frame != "mcpServers" and all(_is_vscodes(one) for one in changed):
        target.declare(declared)
    for one in changed:
        target.add(one.name, one.found.entry)
    target.write(private=any(one.secrets for one in changed))


def _is_vscodes(taken: Taken) -> bool:
    return bool(taken.found.inputs) or taken.found.product == "vscode"


def _tell(taken: list[Taken], screen: Screen) -> None:
    rows = [
        (one.name, _WORDS[one.status], one.found.product, shown(one.found.entry)) for one in taken
    ]
    if not screen.json:
        columns.show(screen, ("server", "", "from", "what"), rows)


def _warn(changed: list[Taken], target: Target, screen: Screen) -> None:
    for one in changed:
        if one.name != one.found.name:
            screen.note(f"note: {one.found.name!r} is called {one.name} here")
        for key in one.secrets:
            name = key.rpartition(".")[2].upper().replace("-", "_")
            screen.note(
                f"warning: {one.name}: {key} holds a secret, written out. "
                f"Set a variable, and write ${{{name}}} in its place"
            )
        if one.inputs and target.frame == "mcpServers":
            screen.note(
                f"warning: {one.name}: asks for {', '.join(one.inputs)}, which only a file of "
                "VS Code's can do. Write ${NAME} in place of ${input:…}"
            )


def _summary(changed: int, to: Path, *, dry_run: bool) -> str:
    number = f"{changed} server{'' if changed == 1 else 's'}"
    if not changed:
        return f"nothing to add to {to}; --force replaces what is there"
    return f"would add {number} to {to}" if dry_run else f"added {number} to {to}"


def shown(entry: Mapping[str, Any]) -> str:
    """A server in one line, without secrets."""
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        return str(redacted("url", url))
    args = entry.get("args")
    listed = cast("list[object]", args) if isinstance(args, list) else []
    return " ".join((str(entry.get("command", "")), *redacted("args", listed)))


def _leaves(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return _leaves(list(cast("Mapping[str, object]", value).values()))
    if isinstance(value, list | tuple):
        return [leaf for one in cast("list[object]", value) for leaf in _leaves(one)]
    return [value] if isinstance(value, str) else []
