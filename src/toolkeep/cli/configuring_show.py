"""`config show` and `config path`.

A value with a reference in it is shown as it is written, `${TOKEN}`, with the name of the variable
as its source: what a variable holds may be a secret wherever it stands.
"""

from __future__ import annotations

import json as json_
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from toolkeep.cli import columns
from toolkeep.cli.configuring_values import redacted, variables_of
from toolkeep.cli.ending import Misused
from toolkeep.cli.place import loaded
from toolkeep.cli.screen import Screen
from toolkeep.config import Configuration, Origin, ServerSpec
from toolkeep.config.draft import Draft, Entry, Input
from toolkeep.config.inputs import Answers
from toolkeep.config.loading import NAMED_BY, USUAL_PLACES, Surroundings
from toolkeep.config.transports import name_for
from toolkeep.config.urls import our_names

PREDEFINED = ("workspaceFolder", "workspaceFolderBasename", "cwd", "userHome", "pathSeparator")
"""What the products' files may refer to without anybody setting it."""


@dataclass(frozen=True)
class Value:
    """One value of a server, fit to be shown."""

    key: str
    shown: Any
    source: str
    variables: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        shown = self.shown
        return shown if isinstance(shown, str) else json_.dumps(shown, ensure_ascii=False)

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.shown, "source": self.source, "variables": list(self.variables)}


def shown(config: str | None, server: str | None, *, every: bool, json: bool) -> int:
    screen = Screen(json)
    found = loaded(config, inputs=as_written)
    around = Surroundings(os.environ, Path.cwd(), Answers(as_written))
    draft = around.draft(config)
    written = _by_name(draft)
    for text in found.warnings:
        screen.note(f"warning: {text}")
    for error in found.set_aside:
        screen.note(f"warning: {error} (it is set aside)")
    beside = around.beside
    servers = [_Server(found, draft, written, spec, every, beside) for spec in _specs(found)]
    if server is not None:
        servers = [one for one in servers if one.spec.name == server]
        if not servers:
            known = ", ".join(found.order) or "none"
            raise Misused(f"no server {server!r} is configured here; there are: {known}")
    read = sorted({place.rpartition(":")[0] for place in beside.values()})
    screen.give(
        {
            "servers": [one.as_dict() for one in servers],
            "disabled": dict(found.disabled),
            "set_aside": [str(error) for error in found.set_aside],
            "variables_from": read,
        }
    )
    for file in read:
        screen.say(f"{file} is read: {len(beside)} variables, which the environment may replace\n")
    for one in servers:
        one.tell(screen)
    for name, why in found.disabled.items() if server is None else ():
        screen.say(f"{name}: switched off, {why}\n")
    return 0


def as_written(asked: Input) -> str | None:
    """Nobody is asked: the reference stands for itself."""
    if asked.default is not None or asked.options:
        return asked.default if asked.default is not None else asked.options[0]
    return f"${{input:{asked.id}}}"


def _specs(found: Configuration) -> tuple[ServerSpec, ...]:
    return found.in_order((*found.servers, *(one.spec for one in found.needs_approval)))


@dataclass(frozen=True)
class _Server:
    found: Configuration
    draft: Draft
    written: Mapping[str, Entry]
    spec: ServerSpec
    every: bool
    beside: Mapping[str, str]

    @property
    def state(self) -> str:
        waits = any(one.name == self.spec.name for one in self.found.needs_approval)
        return "needs approval" if waits else "configured"

    def values(self) -> Iterator[Value]:
        origins = self.found.origins.get(self.spec.name, {})
        raw = self._raw()
        plain = self.spec.model_dump(mode="json", exclude={"name"}, exclude_unset=not self.every)
        given_or_derived = dict(_flat(self.spec.model_dump(mode="json", exclude_unset=True)))
        for key, value in _flat(plain):
            origin = origins.get(key) or origins.get(key.rpartition(".")[0])
            untold = "derived" if key in given_or_derived else "default"
            source = _place(origin) if origin else untold
            given = raw.get(key)
            used = variables_of(given)
            yield Value(key, redacted(key, given) if used else value, source, used)

    def _raw(self) -> dict[str, Any]:
        entry = self.written.get(self.spec.name)
        settings = (*self.draft.defaults, *(entry.settings if entry else ()))
        return {key: value for one in settings for key, value in _flat({one.key: one.value}) if key}

    def as_dict(self) -> dict[str, Any]:
        values = {one.key: one.as_dict() for one in self.values()}
        return {"name": self.spec.name, "state": self.state, "values": values}

    def tell(self, screen: Screen) -> None:
        waits = ": needs approval (toolkeep config approve)" if self.state != "configured" else ""
        screen.say(f"{self.spec.name}{waits}")
        rows = [(f"  {one.key}", one.text, self._source(one)) for one in self.values()]
        _table(screen, rows)
        screen.say()

    def _source(self, value: Value) -> str:
        used = ", ".join(f"{name}{self._set_by(name)}" for name in value.variables)
        return f"{value.source}, from {used}" if used else value.source

    def _set_by(self, name: str) -> str:
        if name in self.beside:
            return f" ({self.beside[name]})"
        return "" if _is_set(name) else " (not set)"


def _by_name(draft: Draft) -> dict[str, Entry]:
    """The entries as they are written, by the names that their servers have here."""
    named = [one.name or name_for({s.key: s.value for s in one.settings}) for one in draft.entries]
    ours = our_names(named)
    return {ours[name]: one for name, one in zip(named, draft.entries, strict=True)}


def _place(origin: Origin) -> str:
    if origin.place and origin.how and str(origin) != origin.how:
        return f"{origin.place} ({origin.how})"  # as it was written, in another unit
    return str(origin)


def _is_set(name: str) -> bool:
    return name.startswith("input:") or name in PREDEFINED or name in os.environ


def _table(screen: Screen, rows: list[tuple[str, str, str]]) -> None:
    """Without heads; `columns` would take the blanks before a key away."""
    widths = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
    for key, text, source in rows:
        screen.tell(f"{key.ljust(widths[0])}  {text.ljust(min(widths[1], 40))}  {source}".rstrip())


def _flat(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Mappings are walked; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _flat(inner, f"{before}.{key}" if before else str(key))
    else:
        yield before, value


def places(*, json: bool) -> int:
    """In the order of looking. The first that is there counts."""
    screen = Screen(json)
    named = os.environ.get(NAMED_BY, "").strip()
    looked = [(named or NAMED_BY, f"named by {NAMED_BY}" if named else "", bool(named))]
    looked += [(place, "", os.path.lexists(place)) for place in USUAL_PLACES]
    servers = sorted(name for name in os.environ if _describes_servers(name))
    looked.append(("environment", ", ".join(servers), bool(servers)))
    counts = next((name for name, _, there in looked if there), None)
    rows = [
        (name, "used" if name == counts else "found, not used" if there else "not there", more)
        for name, more, there in looked
    ]
    keys = ("place", "state", "more")
    screen.give({"used": counts, "places": [dict(zip(keys, row, strict=True)) for row in rows]})
    if not json:
        columns.show(screen, ("place", "", ""), rows)
    if counts is None:
        screen.note("Nothing is configured. Write an mcp.json, or `toolkeep config import`")
    return 0


def _describes_servers(name: str) -> bool:
    return name == "MCP_SERVERS" or (name.startswith("MCP_SERVER_") and name.endswith("_URL"))
