"""Readers for the configuration formats that are written in files or passed as Python values.

`plain`: a list of servers, one server, or a mapping from names to servers. `own`:
`toolkeep.toml`. `products`: `mcpServers` of Claude, Cursor, Cline, Roo, Windsurf and Gemini
CLI. `service`: `tool_service` with `mcp_servers`. `vscode`: `servers` with `inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from toolkeep.config.auth import auth_converter
from toolkeep.config.dialects.draft import (
    FOREIGN_TOOL_KEYS,
    OWN_KEYS,
    PER_SERVER_KEYS,
    DialectKeys,
    Draft,
    InputDefinition,
    ServerEntry,
    Setting,
    parse_bool,
    read_settings,
)
from toolkeep.config.fields import describe_unknown_key, to_number, type_name
from toolkeep.config.formats import KeyPath
from toolkeep.config.spec import ServerSpec, is_local_server, local_server_name

# -- plain values -------------------------------------------------------------------------------

PLAIN_KEYS = DialectKeys({**OWN_KEYS, **FOREIGN_TOOL_KEYS, "server": "server"}, strict=True)

_SINGLE_SERVER_KEYS = ("url", "endpoint", "command", "server")


def read_plain(draft: Draft) -> None:
    """A list of servers, one server, or a mapping from names to servers."""
    value = draft.document.value
    if is_local_server(value) or isinstance(value, ServerSpec | str) or _is_single_server(value):
        read_entry(draft, value, PLAIN_KEYS, ())
    elif isinstance(value, Mapping | list | tuple):
        read_entries(draft, cast("Mapping[str, Any] | list[Any]", value), PLAIN_KEYS, ())
    else:
        draft.errors.add(
            f"servers must be a mapping or a list, not {type_name(value)}",
            remedy='Write {"mcpServers": {"name": {"url": "http://…"}}}',
            origin=draft.document.origin(()),
        )


def _is_single_server(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    given = cast("Mapping[str, Any]", value)
    return any(key in given and not isinstance(given[key], Mapping) for key in _SINGLE_SERVER_KEYS)


def read_entries(draft: Draft, given: object, dialect: DialectKeys, path: KeyPath) -> None:
    """Read several servers: a mapping from names, or a list."""
    match given:
        case Mapping():
            for name, value in cast("Mapping[Any, Any]", given).items():
                if _check_key_type(draft, name, path):
                    read_entry(draft, value, dialect, (*path, name), name)
        case list() | tuple():
            for index, value in enumerate(cast("list[Any]", given)):
                read_entry(draft, value, dialect, (*path, index))
        case _:
            draft.errors.add(
                f"servers must be a mapping or a list, not {type_name(given)}",
                remedy='Write {"name": {"url": "http://…"}}',
                origin=draft.document.origin(path),
                key=".".join(map(str, path)) or None,
            )


def read_entry(
    draft: Draft, value: object, dialect: DialectKeys, path: KeyPath, name: str | None = None
) -> None:
    """Read one server: a `ServerSpec`, a URL, a server in this process, or a mapping."""
    origin = draft.document.origin(path)

    def single_setting(key: str, name: str | None = name) -> ServerEntry:
        return ServerEntry(name, (Setting(key, value, key, origin, path),), origin)

    if isinstance(value, ServerSpec):
        draft.entries.append(single_setting("spec", value.name))
    elif isinstance(value, str):
        draft.entries.append(single_setting("url"))
    elif is_local_server(value):
        draft.entries.append(single_setting("server", name or local_server_name(value)))
    elif isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        if all(_check_key_type(draft, key, path, name) for key in given):
            draft.entries.append(_entry_from_mapping(draft, given, dialect, path, name))
    else:
        draft.errors.add(
            f"a server must be a URL or a mapping, not {type_name(value)}",
            remedy='Write it as {"url": "http://…"} or {"command": "…", "args": […]}',
            origin=origin,
            server=name,
            key=str(path[-1]) if path else None,
            of_one_server=bool(path),
        )


def _entry_from_mapping(
    draft: Draft, given: Mapping[str, Any], dialect: DialectKeys, path: KeyPath, name: str | None
) -> ServerEntry:
    origin, own = draft.document.origin(path), given.get("name")
    known = name if name is not None else own if isinstance(own, str) else None
    if name is not None and own is not None and own != name:
        draft.warn("the key 'name' is ignored: the server has the name of its entry", origin, name)
    rest = {key: value for key, value in given.items() if key != "name" or name is None}
    before = len(draft.errors.found)
    settings = tuple(read_settings(rest, dialect, draft, path, known))
    return ServerEntry(known, settings, origin, valid=len(draft.errors.found) == before)


def _check_key_type(draft: Draft, key: object, path: KeyPath, server: str | None = None) -> bool:
    if not isinstance(key, str):
        problem = f"a key must be a text, not {type_name(key)}"
        origin = draft.document.origin(path)
        draft.errors.add(
            problem, remedy="Correct the key", origin=origin, server=server, of_one_server=True
        )
    return isinstance(key, str)


# -- toolkeep.toml ------------------------------------------------------------------------------

STATE_KEYS = ("state", "state_keys")
OWN_TOP_LEVEL_KEYS = ("servers", "defaults", "gateway", *STATE_KEYS)
OWN_SERVER_KEYS = DialectKeys(strict=True)
OWN_DEFAULTS_KEYS = DialectKeys(
    {key: ours for key, ours in OWN_KEYS.items() if key not in PER_SERVER_KEYS}, strict=True
)


def read_own(draft: Draft) -> None:
    """`toolkeep.toml`: `[servers.name]`, `[defaults]`, `[gateway]`, and `state` above them."""
    given = cast("Mapping[str, Any]", draft.document.value)
    draft.state = {key: given[key] for key in STATE_KEYS if key in given}
    draft.gateway = given.get("gateway")
    for key in given:
        if key not in OWN_TOP_LEVEL_KEYS:
            origin = draft.document.origin((key,))
            problem, _ = describe_unknown_key(str(key), OWN_TOP_LEVEL_KEYS)
            remedy = "Write [servers.name] and [defaults]"
            draft.errors.add(problem, remedy=remedy, origin=origin, key=key)
    defaults = given.get("defaults", {})
    if isinstance(defaults, Mapping):
        found = cast("Mapping[str, Any]", defaults)
        settings = read_settings(
            found, OWN_DEFAULTS_KEYS, draft, ("defaults",), None, of_one_server=False
        )
        draft.defaults.extend(settings)
    else:
        problem = f"defaults must be a table, not {type_name(defaults)}"
        origin = draft.document.origin(("defaults",))
        draft.errors.add(problem, remedy="Write [defaults]", origin=origin, key="defaults")
    read_entries(draft, given.get("servers", {}), OWN_SERVER_KEYS, ("servers",))


# -- mcpServers of other products ---------------------------------------------------------------

_APPROVAL_KEYS = frozenset({"alwaysAllow", "autoApprove"})
_MAX_SECONDS = 3600


def timeout_converter(entry: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Converts `timeout` to seconds.

    Milliseconds in Claude Code (code.claude.com/docs/en/mcp: a hard limit for a tool call; values
    below 1000 are ignored), Gemini CLI and FastMCP's `MCPConfig`. Seconds in Cline and Roo, from 1
    to 3600 (docs.cline.bot/mcp/configuring-mcp-servers), whose entries have `alwaysAllow` or
    `autoApprove`. So a value below 1000 is always in seconds.
    """
    longest = _MAX_SECONDS if _APPROVAL_KEYS & entry.keys() else 999

    def seconds(value: Any) -> Any:
        number = to_number(value)
        if number is None:
            return value
        return number if number <= longest else number / 1000

    return seconds


def env_converter(_entry: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Converts VS Code's `env`: numbers become texts, and null entries are dropped.

    In VS Code, null removes a variable of the inherited environment. Our programs inherit almost
    nothing, so there is nothing to remove.
    """

    def texts(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        return {
            name: str(one) if isinstance(one, int | float) and not isinstance(one, bool) else one
            for name, one in given.items()
            if one is not None
        }

    return texts


PRODUCT_KEYS = DialectKeys(
    keys={
        **OWN_KEYS,
        **FOREIGN_TOOL_KEYS,
        "envFile": "env_file",
        "disabled": "disabled",
        "serverUrl": "url",  # Windsurf
        "httpUrl": "url",  # Gemini CLI
        "transportType": "type",  # Cline, before its `type`
        "oauth": "auth",  # Claude Code, Gemini CLI
    },
    ignored=frozenset(
        {
            *_APPROVAL_KEYS,
            "description",
            "icon",
            "trust",
            "alwaysLoad",
            "$schema",
            "gallery",
            "version",
        }
    ),
    converters={
        "timeouts.call": timeout_converter,
        "env": env_converter,
        "auth": auth_converter,
    },
)


def read_products(draft: Draft) -> None:
    """`mcpServers`, as in the files of Claude, Cursor, Cline and others."""
    given: Mapping[str, Any] = draft.document.value
    draft.has_editor_variables = True
    for key in given:
        if key not in ("mcpServers", "$schema"):
            origin = draft.document.origin((key,))
            draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)
    read_entries(draft, given["mcpServers"], PRODUCT_KEYS, ("mcpServers",))


# -- tool_service -------------------------------------------------------------------------------

SERVICE_KEYS = DialectKeys(
    {**OWN_KEYS, **FOREIGN_TOOL_KEYS, "disabled": "disabled"}, ignored=frozenset({"description"})
)


def read_service(draft: Draft) -> None:
    """`tool_service` with `mcp_servers`; the outer key may be absent."""
    document = cast("Mapping[str, Any]", draft.document.value)
    path: KeyPath = ("tool_service",) if "tool_service" in document else ()
    inner = document["tool_service"] if path else document
    if not isinstance(inner, Mapping):
        problem = f"tool_service must be a mapping, not {type_name(inner)}"
        remedy = 'Write {"tool_service": {"mcp_servers": […]}}'
        origin = draft.document.origin(path)
        draft.errors.add(problem, remedy=remedy, origin=origin, key="tool_service")
        return
    given = cast("Mapping[str, Any]", inner)
    for key, value in given.items():
        _read_service_key(draft, key, value, (*path, key))
    read_entries(draft, given.get("mcp_servers", []), SERVICE_KEYS, (*path, "mcp_servers"))


def apply_enable_switch(draft: Draft, value: object, path: KeyPath) -> None:
    """Enable or disable all servers of the document."""
    on = parse_bool(value)
    if on is None:
        origin, key = draft.document.origin(path), ".".join(map(str, path))
        remedy = "Write true or false"
        draft.errors.add("it is neither true nor false", remedy=remedy, origin=origin, key=key)
    elif not on:
        draft.disabled_reason = f"{path[-1]} is false"


def _read_service_key(draft: Draft, key: str, value: object, path: KeyPath) -> None:
    origin = draft.document.origin(path)
    if key in ("enable_mcp", "enable_mcp_tools"):
        apply_enable_switch(draft, value, path)
    elif key in OWN_KEYS and key not in PER_SERVER_KEYS:
        draft.defaults.append(Setting(OWN_KEYS[key], value, key, origin, path))
    elif key != "mcp_servers":
        draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)


# -- VS Code ------------------------------------------------------------------------------------

VSCODE_KEYS = DialectKeys(
    keys={**OWN_KEYS, **FOREIGN_TOOL_KEYS, "envFile": "env_file", "disabled": "disabled"},
    ignored=frozenset({"dev", "gallery", "version"}),
    converters={"env": env_converter},
)


def is_vscode_settings(given: Mapping[str, object]) -> bool:
    """Whether this is VS Code's `servers` with `inputs`, or its settings with `mcp`."""
    if _is_nested(given):
        return "servers" in cast("Mapping[str, Any]", given["mcp"])
    return "inputs" in given and "servers" in given


def _is_nested(given: Mapping[str, object]) -> bool:
    return isinstance(given.get("mcp"), Mapping) and "servers" not in given


def read_vscode(draft: Draft) -> None:
    """`servers` with `inputs`, at the top level or under `mcp`."""
    document = cast("Mapping[str, Any]", draft.document.value)
    path: KeyPath = ("mcp",) if _is_nested(document) else ()
    given = cast("Mapping[str, Any]", document["mcp"]) if path else document
    draft.has_editor_variables = True
    for key in given:
        if key not in ("servers", "inputs", "$schema"):
            origin = draft.document.origin((*path, key))
            draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)
    _read_inputs(draft, given.get("inputs", []), (*path, "inputs"))
    read_entries(draft, given["servers"], VSCODE_KEYS, (*path, "servers"))


def _read_inputs(draft: Draft, given: Any, path: KeyPath) -> None:
    if not isinstance(given, list):
        problem = f"inputs must be a list, not {type_name(given)}"
        remedy = 'Write [{"type": "promptString", "id": "…"}]'
        origin = draft.document.origin(path)
        draft.errors.add(problem, remedy=remedy, origin=origin, key=".".join(map(str, path)))
        return
    for index, one in enumerate(cast("list[object]", given)):
        _read_input(draft, one, (*path, index))


def _read_input(draft: Draft, given: object, path: KeyPath) -> None:
    one: Mapping[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    id_, key = one.get("id"), ".".join(map(str, (*path, "id")))
    origin = draft.document.origin((*path, "id"))
    if not isinstance(id_, str) or not id_:
        remedy = 'Write {"type": "promptString", "id": "…"}'
        draft.errors.add("the input has no id", remedy=remedy, origin=origin, key=key)
    elif id_ in draft.inputs:
        draft.errors.add("the input is declared twice", remedy="Keep one", origin=origin, key=key)
    else:
        draft.inputs[id_] = InputDefinition(
            id=id_,
            description=str(one.get("description") or ""),
            password=one.get("password") is True,
            default=one["default"] if isinstance(one.get("default"), str) else None,
            options=tuple(_input_options(one.get("options"))),
        )


def _input_options(given: object) -> list[str]:
    """Texts, or `{"label": …, "value": …}`."""
    options = cast("list[Any]", given) if isinstance(given, list) else []
    values = [
        cast("dict[str, Any]", one).get("value") if isinstance(one, dict) else one
        for one in options
    ]
    return [one for one in values if isinstance(one, str)]
