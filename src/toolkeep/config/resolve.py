"""Resolve a `Draft` to `ServerSpec`s: expand references, answer inputs, apply defaults, check.

Does no I/O itself: the caller passes the function that answers inputs and the one that reads an
`envFile`. Errors are added to the draft, each with the key and line as the author wrote them.
Disabled servers are not checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from toolkeep.config.dialects.draft import (
    LOCAL_PROGRAM,
    REMOTE,
    TRANSPORT_KEYWORDS,
    Draft,
    InputDefinition,
    ServerEntry,
    Setting,
    parse_bool,
)
from toolkeep.config.expand import ExpandedText, References, expand
from toolkeep.config.fields import FrozenModel, to_number, valid_server_names
from toolkeep.config.gateway import GatewaySettings
from toolkeep.config.spec import (
    HTTP_FIELDS,
    PROGRAM_FIELDS,
    Origin,
    ServerSpec,
    default_server_name,
)
from toolkeep.errors import ConfigError

Inputs = Mapping[str, str] | Callable[[InputDefinition], str | None]
"""Answers by input id, or a function that asks. None or a missing key: use the input's default."""

EnvFileReader = Callable[[str], Mapping[str, str]]
"""Reads the variables of an `envFile`."""

REFERENCE_START = "${"


class InputAnswers:
    """The answers to inputs. Lives while one source is loaded or watched, so that the user is asked
    once for each input."""

    def __init__(self, inputs: Inputs | None) -> None:
        self._inputs = inputs
        self._answers: dict[str, str] = {}
        self._passwords: set[str] = set()

    def __repr__(self) -> str:
        return f"<InputAnswers {', '.join(self._answers) or 'none'}>"

    @property
    def passwords(self) -> tuple[str, ...]:
        return tuple(self._answers[id_] for id_ in self._passwords if self._answers[id_])

    def resolver(self, declared: Mapping[str, InputDefinition]) -> Callable[[str], str]:
        """The function that `expand` calls for `${input:…}`."""

        def answer(id_: str) -> str:
            definition = declared.get(id_)
            if definition is None:
                remedy = "Declare it under 'inputs'"
                raise ConfigError(f"the input {id_[:80]!r} is not declared", remedy=remedy)
            if id_ not in self._answers:
                self._answers[id_] = self._ask(definition)
            if definition.password:
                self._passwords.add(id_)
            return self._answers[id_]

        return answer

    def _ask(self, definition: InputDefinition) -> str:
        if callable(self._inputs):
            answer: object = self._inputs(definition)
        else:
            answer = (self._inputs or {}).get(definition.id)
        answer = definition.default if answer is None else answer
        if not isinstance(answer, str):
            raise ConfigError(
                f"the input {definition.id!r} has no answer",
                remedy=f"Run it at a terminal, or give inputs={{{definition.id!r}: …}} in Python",
            )
        if definition.options and answer not in definition.options:
            raise ConfigError(
                f"the answer to the input {definition.id!r} is not one of its options",
                remedy=f"Answer one of: {', '.join(definition.options)}",
            )
        return answer


def normalize_transport(given: dict[str, Any]) -> None:
    """Replace `type` and `transport` by our `transport`, or by none if the other keys imply it."""
    keywords = {key: given.pop(key) for key in ("type", "transport") if key in given}
    found = {key: _transport(key, word) for key, word in keywords.items() if word is not None}
    if LOCAL_PROGRAM in found.values():
        _use_local_program(given, next(key for key in found if found[key] == LOCAL_PROGRAM))
    concrete = {one for one in found.values() if one not in (LOCAL_PROGRAM, REMOTE)}
    if len(concrete) > 1:
        remedy = "Keep one of 'type' and 'transport'"
        raise ConfigError("'type' and 'transport' differ", key="type", remedy=remedy)
    if concrete:
        given["transport"] = concrete.pop()


def _transport(key: str, word: object) -> str:
    if isinstance(word, str) and word in TRANSPORT_KEYWORDS:
        return TRANSPORT_KEYWORDS[word]
    raise ConfigError(
        "the transport is unknown", key=key, remedy=f"Use one of: {', '.join(TRANSPORT_KEYWORDS)}"
    )


def _use_local_program(given: dict[str, Any], key: str) -> None:
    """Apply `local`: run a Python file with this interpreter, or keep the command."""
    if given.get("server") is not None:
        given["transport"] = "local"
        return
    url, command = given.get("url"), given.get("command")
    if isinstance(url, str) and "://" in url:
        remedy = f"Set {key!r} to http for an address, or give a command or a Python file"
        raise ConfigError("a local server has no address", key="url", remedy=remedy)
    file = url if isinstance(url, str) and url and not command else command
    if isinstance(file, str) and file.endswith(".py"):
        given.pop("url", None)
        args: Any = given.get("args") or []
        given["command"] = sys.executable
        given["args"] = [file, *args] if isinstance(args, list) else args
    elif file is url and url:
        remedy = "Name a file that ends in .py, or give a command"
        raise ConfigError("it is not a Python file", key="url", remedy=remedy)


@dataclass(slots=True)
class ResolvedServers:
    """The servers of a draft, in its order."""

    specs: list[ServerSpec] = field(default_factory=list[ServerSpec])
    disabled: dict[str, str] = field(default_factory=dict[str, str])
    origins: dict[str, dict[str, Origin]] = field(default_factory=dict[str, dict[str, Origin]])
    server_origins: dict[str, Origin] = field(default_factory=dict[str, Origin])
    """Origin of each server as a whole."""
    raw_commands: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Command line of each program before expansion."""
    gateway: GatewaySettings | None = None


def resolve(draft: Draft, references: References, read_env: EnvFileReader) -> ResolvedServers:
    """Resolve all entries. Errors are added to `draft.errors`."""
    resolved = ResolvedServers()
    _rename_servers(draft)
    for entry in draft.entries:
        _EntryResolver(draft, entry, references, read_env).resolve(resolved)
    return resolved


def _rename_servers(draft: Draft) -> None:
    """Give legal names to servers with names that only another product allows, with a warning."""
    given = [one.name for one in draft.entries if one.name and REFERENCE_START not in one.name]
    ours = valid_server_names(given)
    for index, entry in enumerate(draft.entries):
        name = ours.get(entry.name or "", entry.name)
        if name != entry.name:
            draft.warn(f"the server {entry.name!r:.200} is renamed to {name}", entry.origin)
            draft.entries[index] = replace(entry, name=name)


@dataclass(slots=True)
class _EntryResolver:
    """Resolves one entry."""

    draft: Draft
    entry: ServerEntry
    references: References
    read_env: EnvFileReader
    sources: dict[str, Setting] = field(default_factory=dict[str, Setting])
    """The setting that each of our keys comes from."""
    converted_from: dict[str, str] = field(default_factory=dict[str, str])
    """By our key, the original text of a number whose unit was converted."""
    valid: bool = True

    def resolve(self, resolved: ResolvedServers) -> None:
        """Add the server to `resolved`, or its errors to the draft."""
        reason = self.draft.disabled_reason or self._disabled_reason()
        if reason:
            self._claim_name(resolved, self._provisional_name())
            resolved.disabled[self._provisional_name()] = reason
            return
        first = self.entry.settings[0] if self.entry.settings else None
        spec = first.value if first and first.key == "spec" else self._build_spec()
        if not isinstance(spec, ServerSpec) or not self.entry.valid:
            return
        if self._claim_name(resolved, spec.name):
            resolved.specs.append(spec)
            resolved.origins[spec.name] = self._origins()
            if spec.command:
                resolved.raw_commands[spec.name] = self._raw_command(spec)

    def _claim_name(self, resolved: ResolvedServers, name: str) -> bool:
        if name in resolved.server_origins:
            first = str(resolved.server_origins[name])
            self._add_error(
                f"the name is already used by {first}", "Give each server its own name", key="name"
            )
            return False
        resolved.server_origins[name] = self.entry.origin
        return True

    def _provisional_name(self) -> str:
        given = {setting.key: setting.value for setting in self.entry.settings}
        return default_server_name(given) if self.entry.name is None else self.entry.name

    def _disabled_reason(self) -> str:
        for setting in self.entry.settings:
            if setting.key in ("enabled", "disabled"):
                value = parse_bool(self._value(setting))
                if value is None and self.valid:
                    self._add_error("it is neither true nor false", "Write true or false", setting)
                elif value is (setting.key == "disabled"):
                    return f"{setting.source_key} is {str(value).lower()}"
        return ""

    def _build_spec(self) -> ServerSpec | None:
        given = self._own_values()
        if not self.valid:
            return None
        self._apply_defaults(given)
        if self.entry.name is not None and REFERENCE_START not in self.entry.name:
            given["name"] = self.entry.name
        elif given.get("name") is None:
            given["name"] = default_server_name(given)
        try:
            return ServerSpec(**given) if self.valid else None
        except ConfigError:
            for error in ServerSpec.validation_errors(given):
                self._report(error)
            return None

    def _own_values(self) -> dict[str, Any]:
        """The values of the server's own entry, by our keys."""
        given: dict[str, Any] = {}
        for setting in sorted(self.entry.settings, key=lambda one: "." in one.key):
            if setting.key not in ("enabled", "disabled"):
                value = self._value(setting)
                self._check_text(setting, value)
                if not _set_value(given, setting.key, value):
                    other = self.sources.get(setting.key, setting).source_key
                    self._add_error(f"{other!r} sets the same value", "Keep one of them", setting)
                self.sources.setdefault(setting.key, setting)
        self._read_env_file(given)
        prompts = given.get("prompts_file")
        if isinstance(prompts, str) and prompts:
            given["prompts_file"] = str(self.draft.document.folder / os.path.expanduser(prompts))
        try:
            normalize_transport(given)
        except ConfigError as error:
            self._report(error)
        return given

    def _apply_defaults(self, given: dict[str, Any]) -> None:
        """Add defaults for keys that the server does not set and that fit its transport."""
        unused = {
            *(() if given.get("command") else PROGRAM_FIELDS),
            *(() if given.get("url") else HTTP_FIELDS),
        }
        for setting in self.draft.defaults:
            if setting.key in unused:
                continue
            value = self._value(setting)
            self._check_text(setting, value)
            own = given.get(setting.key)
            if isinstance(value, Mapping) and isinstance(own, dict):
                default = cast("dict[str, Any]", value)
                merged = {**default, **cast("dict[str, Any]", own)}
                given[setting.key] = merged
                for below in default.keys() - own.keys():
                    self.sources.setdefault(f"{setting.key}.{below}", setting)
            elif _set_value(given, setting.key, value):
                self.sources.setdefault(setting.key, setting)

    def _read_env_file(self, given: dict[str, Any]) -> None:
        path = given.pop("env_file", None)
        setting = self.sources.get("env_file")
        if setting is None or not self.valid:
            return
        if not isinstance(path, str) or not path:
            self._add_error("the path is not a text", "Name a file of NAME=value lines", setting)
            return
        try:
            found = self.read_env(path)
        except ConfigError as error:
            self._add_error(f"{error.file}: {error.problem}", error.remedy, setting)
            return
        own = given.get("env", {})
        given["env"] = {**found, **cast("dict[str, Any]", own)} if isinstance(own, dict) else own

    def _value(self, setting: Setting) -> Any:
        """The value, expanded and converted to our unit."""
        if setting.key == "server":
            return setting.value
        value = setting.value
        if isinstance(value, FrozenModel):  # a Timeouts or TLS given in Python
            value = value.model_dump(exclude_unset=True)
        try:
            expanded = _mark_text(expand(value, self.references))
            converted = setting.convert(expanded)
            if isinstance(converted, float) and converted != to_number(expanded):
                self.converted_from[setting.key] = f"{to_number(expanded):.15g} ms"
            return converted
        except ConfigError as error:
            self._add_error(error.problem, error.remedy, setting, below=error.key or "")
            return None

    def _check_text(self, setting: Setting, value: Any) -> None:
        for below, text in _strings(value):
            if not text.isprintable() and ("\0" in text or _has_lone_surrogate(text)):
                what = "a NUL character" if "\0" in text else "a lone surrogate"
                self._add_error(f"it contains {what}", "Correct the value", setting, below=below)

    def _report(self, error: ConfigError) -> None:
        """Add an error about one of our keys, with the author's key and line."""
        key = error.key or ""
        owner = max(
            (one for one in self.sources if _is_parent_key(one, key)), key=len, default=None
        )
        if owner is None and error.key == "url" and not self.entry.valid:
            self.valid = False  # the misspelled key that was reported may be the url
        elif owner is None:
            self._add_error(error.problem, error.remedy, key=self.entry.format_key(key))
        else:
            below = key[len(owner) :].strip(".")
            self._add_error(error.problem, error.remedy, self.sources[owner], below=below)

    def _add_error(
        self,
        problem: str,
        remedy: str,
        setting: Setting | None = None,
        *,
        key: str = "",
        below: str = "",
    ) -> None:
        self.valid = False
        origin, server = self.entry.origin, self.entry.name
        if setting is not None:
            key = f"{setting.source_key}.{below}" if below else setting.source_key
            origin = self._origin_of(setting, below)
            server = None if setting in self.draft.defaults else server
        self.draft.errors.add(
            problem,
            remedy=remedy,
            origin=origin,
            server=server,
            key=key,
            of_one_server=setting is None or setting not in self.draft.defaults,
        )

    def _origin_of(self, setting: Setting, below: str) -> Origin:
        parts = below.split(".") if below else []
        path = (int(part) if part.isdecimal() else part for part in parts)
        if not setting.path or not parts:
            return setting.origin
        return self.draft.document.origin((*setting.path, *path))

    def _raw_command(self, spec: ServerSpec) -> tuple[str, ...]:
        program = self.sources.get("command") or self.sources.get("url")
        if program is None:  # given as a spec
            return (spec.command, *spec.args)
        args: object = self.sources["args"].value if "args" in self.sources else []
        listed = cast("list[object]", args) if isinstance(args, list | tuple) else [args]
        python = (spec.command,) if len(spec.args) > len(listed) else ()
        return (*python, str(program.value), *map(str, listed))

    def _origins(self) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for key, setting in self.sources.items():
            found[key] = setting.origin
            if key in self.converted_from:
                found[key] = replace(setting.origin, detail=self.converted_from[key])
            value: object = setting.value if key == setting.key else None
            for below in cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else ():
                found[f"{key}.{below}"] = self._origin_of(setting, below)
        return found


def _set_value(given: dict[str, Any], key: str, value: Any) -> bool:
    """Set a dotted key. False, without a change, if it is set already."""
    outer, _, inner = key.partition(".")
    if not inner:
        if outer in given:
            return False
        given[outer] = value
        return True
    table = given.setdefault(outer, {})
    if not isinstance(table, dict):  # wrong; the model reports it
        return True
    inner_values = cast("dict[str, Any]", table)
    if inner in inner_values:
        return False
    inner_values[inner] = value
    return True


def _mark_text(value: Any) -> Any:
    """Mark texts of a file or variable, which may stand for numbers."""
    if isinstance(value, str):
        return ExpandedText(value)
    if isinstance(value, dict):
        return {key: _mark_text(one) for key, one in cast("dict[str, Any]", value).items()}
    return value


def _is_parent_key(owner: str, key: str) -> bool:
    return key == owner or key.startswith(f"{owner}.")


def _strings(value: Any, below: str = "") -> Iterator[tuple[str, str]]:
    """Every text in the value, keys included, each with its dotted path."""
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
        yield from _strings(inner, deeper)


def _has_lone_surrogate(text: str) -> bool:
    """Whether the text contains a lone surrogate, which JSON escapes can produce."""
    return any("\ud800" <= one <= "\udfff" for one in text)
