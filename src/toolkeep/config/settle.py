"""From a draft to servers: variables expanded, defaults filled in, every value checked.

Pure but for what it is handed: who answers inputs, and who reads an `envFile`. It raises nothing
about the draft; what is wrong is added to the draft's mistakes, each with the key and the line as
its author wrote them. A server that is switched off is not looked at any further.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from toolkeep.config.configuration import Origin
from toolkeep.config.draft import Draft, Entry, Setting
from toolkeep.config.expand import FromVariable, Meanings, expand
from toolkeep.config.model import Frozen
from toolkeep.config.reach import reach
from toolkeep.config.spec import ServerSpec
from toolkeep.config.transports import OF_A_PROGRAM, OF_HTTP, name_for
from toolkeep.config.urls import our_names
from toolkeep.config.words import as_number, switch
from toolkeep.errors import ConfigError

REFERENCE = "${"
ReadEnv = Callable[[str], Mapping[str, str]]
Values = dict[str, Any]


@dataclass(slots=True)
class Settled:
    """What became of a draft, in its order."""

    specs: list[ServerSpec] = field(default_factory=list[ServerSpec])
    disabled: dict[str, str] = field(default_factory=dict[str, str])
    origins: dict[str, dict[str, Origin]] = field(default_factory=dict[str, dict[str, Origin]])
    places: dict[str, Origin] = field(default_factory=dict[str, Origin])
    """Of each server as a whole."""
    written: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Of each program, the command line before anything was expanded."""


def settle(draft: Draft, meanings: Meanings, read_env: ReadEnv) -> Settled:
    settled = Settled()
    _give_our_names(draft)
    for entry in draft.entries:
        _One(draft, entry, meanings, read_env).settle(settled)
    return settled


def _give_our_names(draft: Draft) -> None:
    """Servers that another product has named in its own way are renamed, and that is said."""
    given = [one.name for one in draft.entries if one.name and REFERENCE not in one.name]
    ours = our_names(given)
    for place, entry in enumerate(draft.entries):
        name = ours.get(entry.name or "", entry.name)
        if name != entry.name:
            draft.warn(f"the server {entry.name!r:.200} is called {name} here", entry.origin)
            draft.entries[place] = replace(entry, name=name)


@dataclass(slots=True)
class _One:
    """One entry, while it is settled."""

    draft: Draft
    entry: Entry
    meanings: Meanings
    read_env: ReadEnv
    used: dict[str, Setting] = field(default_factory=dict[str, Setting])
    """What each of our keys was made from."""
    units: dict[str, str] = field(default_factory=dict[str, str])
    """What was written for a number that another unit has made another."""
    fine: bool = True

    def settle(self, settled: Settled) -> None:
        off = self.draft.off or self._off()
        if off:
            self._take(settled, self._rough_name())
            settled.disabled[self._rough_name()] = off
            return
        whole = self.entry.settings[0] if self.entry.settings else None
        spec = whole.value if whole and whole.key == "spec" else self._spec()
        if not isinstance(spec, ServerSpec) or not self.entry.fine:
            return
        if self._take(settled, spec.name):
            settled.specs.append(spec)
            settled.origins[spec.name] = self._origins()
            if spec.command:
                settled.written[spec.name] = self._written(spec)

    def _take(self, settled: Settled, name: str) -> bool:
        if name in settled.places:
            first = str(settled.places[name])
            self._wrong(f"this name is taken, by {first}", "Give each server its own", key="name")
            return False
        settled.places[name] = self.entry.origin
        return True

    def _rough_name(self) -> str:
        given = {setting.key: setting.value for setting in self.entry.settings}
        return name_for(given) if self.entry.name is None else self.entry.name

    def _off(self) -> str:
        for setting in self.entry.settings:
            if setting.key in ("enabled", "disabled"):
                said = switch(self._value(setting))
                if said is None and self.fine:
                    self._wrong("neither true nor false", "Write true or false", setting)
                elif said is (setting.key == "disabled"):
                    return f"{setting.written} is {str(said).lower()}"
        return ""

    def _spec(self) -> ServerSpec | None:
        given = self._given()
        if not self.fine:
            return None
        self._fill_in(given)
        if self.entry.name is not None and REFERENCE not in self.entry.name:
            given["name"] = self.entry.name
        elif given.get("name") is None:
            given["name"] = name_for(given)
        try:
            return ServerSpec(**given) if self.fine else None
        except ConfigError:
            for error in ServerSpec.mistakes(given):
                self._translate(error)
            return None

    def _given(self) -> Values:
        """What the server's own entry says."""
        given: Values = {}
        for setting in sorted(self.entry.settings, key=lambda one: "." in one.key):
            if setting.key not in ("enabled", "disabled"):
                value = self._value(setting)
                self._check_text(setting, value)
                if not _put(given, setting.key, value):
                    other = self.used.get(setting.key, setting).written
                    self._wrong(f"{other!r} says the same", "Keep one of them", setting)
                self.used.setdefault(setting.key, setting)
        self._read_env_file(given)
        prompts = given.get("prompts_file")
        if isinstance(prompts, str) and prompts:
            given["prompts_file"] = str(self.draft.document.folder / os.path.expanduser(prompts))
        try:
            reach(given)
        except ConfigError as error:
            self._translate(error)
        return given

    def _fill_in(self, given: Values) -> None:
        """What the defaults say, where the server itself says nothing."""
        foreign = {
            *(() if given.get("command") else OF_A_PROGRAM),
            *(() if given.get("url") else OF_HTTP),
        }
        for setting in self.draft.defaults:
            if setting.key in foreign:
                continue
            value = self._value(setting)
            self._check_text(setting, value)
            own = given.get(setting.key)
            if isinstance(value, Mapping) and isinstance(own, dict):
                common, mine = cast("Values", value), cast("Values", own)
                given[setting.key] = {**common, **mine}
                for below in common.keys() - mine.keys():
                    self.used.setdefault(f"{setting.key}.{below}", setting)
            elif _put(given, setting.key, value):
                self.used.setdefault(setting.key, setting)

    def _read_env_file(self, given: Values) -> None:
        path = given.pop("env_file", None)
        setting = self.used.get("env_file")
        if setting is None or not self.fine:
            return
        if not isinstance(path, str) or not path:
            self._wrong("a path is a text", "Name a file of NAME=value lines", setting)
            return
        try:
            found = self.read_env(path)
        except ConfigError as error:
            self._wrong(f"{error.file}: {error.problem}", error.remedy, setting)
            return
        own = given.get("env", {})
        given["env"] = {**found, **cast("Values", own)} if isinstance(own, dict) else own

    def _value(self, setting: Setting) -> Any:
        """Expanded, in our unit."""
        if setting.key == "server":
            return setting.value
        value = setting.value
        if isinstance(value, Frozen):  # a part that was made in Python
            value = value.model_dump(exclude_unset=True)
        try:
            written = _as_written(expand(value, self.meanings))
            found = setting.convert(written)
            if isinstance(found, float) and found != as_number(written):
                self.units[setting.key] = f"{as_number(written):.15g} ms"
            return found
        except ConfigError as error:
            self._wrong(error.problem, error.remedy, setting, below=error.key or "")
            return None

    def _check_text(self, setting: Setting, value: Any) -> None:
        for below, text in _texts(value):
            if not text.isprintable() and ("\0" in text or _is_broken(text)):
                what = "a NUL character" if "\0" in text else "half a character"
                self._wrong(f"it holds {what}", "Correct the value", setting, below=below)

    def _translate(self, error: ConfigError) -> None:
        """What is wrong with a key of ours, told in the author's words and place."""
        key = error.key or ""
        owner = max((one for one in self.used if _leads_to(one, key)), key=len, default=None)
        if owner is None and error.key == "url" and not self.entry.fine:
            self.fine = False  # what would say where it is may be the key that is misspelt
        elif owner is None:
            spelled = self.entry.spell(key)
            self._wrong(error.problem, error.remedy, key=spelled)
        else:
            below = key[len(owner) :].strip(".")
            self._wrong(error.problem, error.remedy, self.used[owner], below=below)

    def _wrong(
        self,
        problem: str,
        remedy: str,
        setting: Setting | None = None,
        *,
        key: str = "",
        below: str = "",
    ) -> None:
        self.fine = False
        origin, server = self.entry.origin, self.entry.name
        if setting is not None:
            key = f"{setting.written}.{below}" if below else setting.written
            origin = self._place(setting, below)
            server = None if setting in self.draft.defaults else server
        self.draft.mistakes.add(
            problem,
            remedy=remedy,
            origin=origin,
            server=server,
            key=key,
            of_one_server=setting is None or setting not in self.draft.defaults,
        )

    def _place(self, setting: Setting, below: str) -> Origin:
        parts = below.split(".") if below else []
        steps = (int(part) if part.isdecimal() else part for part in parts)
        if not setting.steps or not parts:
            return setting.origin
        return self.draft.document.origin((*setting.steps, *steps))

    def _written(self, spec: ServerSpec) -> tuple[str, ...]:
        program = self.used.get("command") or self.used.get("url")
        if program is None:  # given as a spec
            return (spec.command, *spec.args)
        args: object = self.used["args"].value if "args" in self.used else []
        listed = cast("list[object]", args) if isinstance(args, list | tuple) else [args]
        python = (spec.command,) if len(spec.args) > len(listed) else ()
        return (*python, str(program.value), *map(str, listed))

    def _origins(self) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for key, setting in self.used.items():
            found[key] = setting.origin
            if key in self.units:
                found[key] = replace(setting.origin, how=self.units[key])
            value: object = setting.value if key == setting.key else None
            for below in cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else ():
                found[f"{key}.{below}"] = self._place(setting, below)
        return found


def _put(given: Values, key: str, value: Any) -> bool:
    """False if there is a value already, which stays."""
    outer, _, inner = key.partition(".")
    if not inner:
        if outer in given:
            return False
        given[outer] = value
        return True
    table = given.setdefault(outer, {})
    if not isinstance(table, dict):  # wrong, and told by the model
        return True
    within = cast("Values", table)
    if inner in within:
        return False
    within[inner] = value
    return True


def _as_written(value: Any) -> Any:
    """In a file, and in a variable, a number may be written as a text."""
    if isinstance(value, str):
        return FromVariable(value)
    if isinstance(value, dict):
        return {key: _as_written(one) for key, one in cast("Values", value).items()}
    return value


def _leads_to(owner: str, key: str) -> bool:
    return key == owner or key.startswith(f"{owner}.")


def _texts(value: Any, below: str = "") -> Iterator[tuple[str, str]]:
    """Every text in it, keys included, with the way to it."""
    if isinstance(value, str):
        yield below, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    for key, inner in items:
        deeper = f"{below}.{key}" if below else str(key)
        yield deeper, str(key)
        yield from _texts(inner, deeper)


def _is_broken(text: str) -> bool:
    """Whether it holds one half of a surrogate pair, as JSON's escapes can make it."""
    return any("\ud800" <= one <= "\udfff" for one in text)
