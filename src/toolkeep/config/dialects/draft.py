"""`Draft`: the servers of one document under our key names, each value with its origin.

`DialectKeys` maps the keys of a dialect to ours. Values are neither expanded nor checked here;
`resolve` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep.config.fields import closest_match, describe_unknown_key
from toolkeep.config.formats import Document, ErrorCollector, KeyPath
from toolkeep.config.spec import TRANSPORT_ALIASES, Origin, ServerSpec


def identity(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a server, neither expanded nor checked."""

    key: str
    """Our name of the key, dotted: `timeouts.call`."""
    value: Any = field(repr=False)
    source_key: str
    """The key as the author wrote it."""
    origin: Origin
    path: KeyPath = ()
    convert: Callable[[Any], Any] = identity
    """Converts the dialect's unit or vocabulary to ours, after expansion."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server, as written."""

    name: str | None
    settings: tuple[Setting, ...]
    origin: Origin
    format_key: Callable[[str], str] = identity
    """How this dialect writes a key, for errors about a missing one."""
    valid: bool = True
    """Whether all of its keys are known. An invalid entry is checked but not used."""


@dataclass(frozen=True, slots=True)
class InputDefinition:
    """A value that the user supplies at load time: an entry of VS Code's `inputs`."""

    id: str
    description: str = ""
    password: bool = False
    default: str | None = field(default=None, repr=False)
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Draft:
    """What a reader found in one document. Mutable; lives during one `load`."""

    document: Document
    entries: list[ServerEntry] = field(default_factory=list[ServerEntry])
    defaults: list[Setting] = field(default_factory=list[Setting])
    inputs: dict[str, InputDefinition] = field(default_factory=dict[str, InputDefinition])
    has_editor_variables: bool = False
    """Whether `${workspaceFolder}` and other variables of VS Code are known."""
    warnings: list[str] = field(default_factory=list[str])
    errors: ErrorCollector = field(default_factory=ErrorCollector)
    state: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`state` and `state_keys`: the store that processes share. Expanded by `resolve`."""
    gateway: Any = field(default=None, repr=False)
    """The table `[gateway]`, as written."""
    gateway_errors: ErrorCollector = field(default_factory=ErrorCollector)
    """Errors in it. They concern a gateway alone."""
    disabled_reason: str = ""
    """Why all of its servers are disabled; empty if they are not."""

    def warn(self, text: str, origin: Origin, server: str | None = None) -> None:
        place = [str(origin) if origin != Origin() else "", f"server {server!r}" if server else ""]
        where = ", ".join(part for part in place if part)
        self.warnings.append(f"{where}: {text}" if where else text)


OWN_KEYS: Mapping[str, str] = {
    **{key: key for key in ServerSpec.model_fields if key != "server"},
    "endpoint": "url",
    "type": "type",
    "timeout": "timeouts.call",
    "enabled": "enabled",
    "env_file": "env_file",
    "retry_attempts": "max_retries",
    "connection_pool_size": "max_in_flight",
    "health_check_interval": "health_interval",
}
"""Keys accepted in every dialect, with our name of each."""

FOREIGN_TOOL_KEYS: Mapping[str, str] = {
    "includeTools": "include_tools",  # Gemini CLI
    "excludeTools": "exclude_tools",
    "allowedTools": "include_tools",  # Deep Agents
    "disabledTools": "exclude_tools",  # Roo, Windsurf, Deep Agents
    "enabled_tools": "include_tools",  # Codex
    "disabled_tools": "exclude_tools",
    "allowed_tools": "include_tools",  # OpenAI's API
    "allowed_tool_names": "include_tools",  # OpenAI Agents
    "blocked_tool_names": "exclude_tools",
}
"""Names of other products for included and excluded tools. Accepted in all dialects but our own."""

PER_SERVER_KEYS = frozenset(
    {
        *("name", "url", "urls", "endpoint", "command", "args", "server", "type", "transport"),
        *("api_key", "auth", "enabled", "env_file", "prompts_file"),
    }
)
"""Keys that cannot have a default."""

_LOCATION_KEYS = ("url", "urls", "command", "server", "spec")

LOCAL_PROGRAM = "program"
REMOTE = "remote"
TRANSPORT_KEYWORDS: Mapping[str, str] = {
    **TRANSPORT_ALIASES,
    "local": LOCAL_PROGRAM,
    "remote": REMOTE,
}
"""Values of `type` and `transport`. `local` is a program or a Python file; `remote` is a URL, with
the transport still to be detected."""

_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def parse_bool(value: object) -> bool | None:
    """Parse a boolean or a text such as "yes" or "off"; None for anything else."""
    if isinstance(value, bool):
        return value
    return _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class DialectKeys:
    """The keys that a dialect accepts."""

    keys: Mapping[str, str] = field(default_factory=lambda: OWN_KEYS)
    """The dialect's key, and ours."""
    ignored: frozenset[str] = frozenset()
    """Keys of the dialect that toolkeep can safely ignore without a warning."""
    strict: bool = False
    """Whether an unknown key is an error, not a warning."""
    converters: Mapping[str, Callable[[Mapping[str, Any]], Callable[[Any], Any]]] = field(
        default_factory=dict[str, Callable[[Mapping[str, Any]], Callable[[Any], Any]]]
    )
    """By our key: a function from a server's entry to the converter of the value."""


def read_settings(
    given: Mapping[str, Any],
    dialect: DialectKeys,
    draft: Draft,
    path: KeyPath,
    server: str | None,
    *,
    of_one_server: bool = True,
) -> Iterator[Setting]:
    """Yield the settings with known keys; report the others.

    In a dialect that is not strict, a misspelled `url` or `command` is an error if the entry has no
    other location.
    """
    has_location = any(dialect.keys.get(key) in _LOCATION_KEYS for key in given)
    for key, value in given.items():
        origin = draft.document.origin((*path, key))
        ours = dialect.keys.get(key)
        if ours is not None:
            make_converter = dialect.converters.get(ours)
            convert = make_converter(given) if make_converter else identity
            yield Setting(ours, value, key, origin, (*path, key), convert)
        elif dialect.strict or (
            not has_location
            and dialect.keys.get(closest_match(key, dialect.keys) or "") in _LOCATION_KEYS
        ):
            problem, remedy = describe_unknown_key(key, dialect.keys)
            draft.errors.add(
                problem,
                remedy=remedy,
                origin=origin,
                server=server,
                key=key,
                of_one_server=of_one_server,
            )
        elif key not in dialect.ignored:
            meant = closest_match(key, dialect.keys)
            hint = f", did you mean {meant!r}?" if meant else ""
            draft.warn(f"the key {key[:80]!r} means nothing to toolkeep{hint}", origin, server)
