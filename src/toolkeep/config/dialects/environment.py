"""Reader for servers in environment variables: `MCP_SERVERS` and `MCP_SERVER_<NAME>_<KEY>`.

A server name may contain underscores, so the longest known key at the end of a variable is its
key: `MCP_SERVER_MY_TOOLS_API_KEY` is the `API_KEY` of `my_tools`. An unknown variable is a
warning, or an error if it starts with the name of a configured server.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from toolkeep.config.dialects.draft import (
    FOREIGN_TOOL_KEYS,
    OWN_KEYS,
    DialectKeys,
    Draft,
    ServerEntry,
    Setting,
    identity,
    parse_bool,
)
from toolkeep.config.dialects.mcp_json import read_entries
from toolkeep.config.fields import ALL_PROMPTS, closest_match, type_name
from toolkeep.config.formats import Document, parse_json
from toolkeep.config.spec import Origin
from toolkeep.errors import ConfigError

VARIABLE_PREFIX, SERVERS_VARIABLE = "MCP_SERVER_", "MCP_SERVERS"
ENABLE_VARIABLES = ("MCP_ENABLE", "ENABLE_MCP_TOOLS")
DEFAULT_VARIABLES: Mapping[str, str] = {
    "MCP_CLIENT_RETRY_ATTEMPTS": "max_retries",
    "MCP_CLIENT_TIMEOUT": "timeouts.call",
    "MCP_HEALTH_CHECK_INTERVAL": "health_interval",
}
"""Defaults for all servers, whatever dialect describes them. Durations are seconds."""

SERVER_VARIABLES: Mapping[str, str] = {
    "TYPE": "type",
    "TRANSPORT": "transport",
    "URL": "url",
    "ENDPOINT": "url",
    "LOCAL_PATH": "url",
    "API_KEY": "api_key",
    "ENABLED": "enabled",
    "TIMEOUT": "timeouts.call",
    "COMMAND": "command",
    "ARGS": "args",
    "CWD": "cwd",
    "RETRY_ATTEMPTS": "max_retries",
    "HEALTH_CHECK_INTERVAL": "health_interval",
    "CONNECTION_POOL_SIZE": "max_in_flight",
    "PROMPTS_FILE": "prompts_file",
    "PROMPT_TOOL_ASSOCIATION": "guides",
}
_VARIABLE_OF_KEY = {ours: theirs for theirs, ours in reversed(SERVER_VARIABLES.items())}
LISTED_SERVER_KEYS = DialectKeys(
    {**OWN_KEYS, **FOREIGN_TOOL_KEYS, "disabled": "disabled"}, strict=True
)


def read_environment(document: Document) -> Draft:
    """Read a document whose value is the environment or the variables of a `.env` file."""
    draft = Draft(document)
    env = cast("Mapping[str, str]", document.value)
    _read_list(draft, env.get(SERVERS_VARIABLE, ""))
    found: dict[str, list[tuple[str, str]]] = {}
    unknown: list[str] = []
    for variable in env:
        if variable.startswith(VARIABLE_PREFIX):
            name, key = split_variable(variable)
            if name and key:
                found.setdefault(name, []).append((key, variable))
            else:
                unknown.append(variable)
    for name, variables in found.items():
        draft.entries.append(_entry(draft, name, variables))
    for variable in unknown:
        _report_unknown(draft, variable, found)
    return draft


def split_variable(variable: str) -> tuple[str, str]:
    """Split a variable into the server's part and the key; both empty without a known key."""
    rest = variable.removeprefix(VARIABLE_PREFIX)
    fitting = [key for key in SERVER_VARIABLES if rest.endswith(f"_{key}")]
    key = max(fitting, key=len, default="")
    return (rest.removesuffix(f"_{key}"), key) if key else ("", "")


def _entry(draft: Draft, name: str, variables: list[tuple[str, str]]) -> ServerEntry:
    def spell(key: str) -> str:
        return f"{VARIABLE_PREFIX}{name}_{_VARIABLE_OF_KEY.get(key, key.upper())}"

    def settings() -> Iterator[Setting]:
        for key, variable in variables:
            value = draft.document.value[variable]
            origin = draft.document.origin((variable,), variable)
            convert = _CONVERTERS.get(key, identity)
            yield Setting(SERVER_VARIABLES[key], value, variable, origin, (variable,), convert)

    first = draft.document.origin((variables[0][1],), f"{VARIABLE_PREFIX}{name}_…")
    return ServerEntry(name.lower(), tuple(settings()), first, spell)


def parse_arguments(value: Any) -> Any:
    """Parse a JSON array, or words quoted as in a shell."""
    text = str(value)
    try:
        return json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except ValueError:
        remedy = 'Write a JSON array, ["-v", "…"], or words with balanced quotes'
        raise ConfigError("the arguments cannot be parsed", remedy=remedy) from None


def parse_prompt_association(association: Any) -> Any:
    """Parse Cortex-Flow's PROMPT_TOOL_ASSOCIATION into `guides`.

    A tool's name, or a JSON array of names: the tools that the prompts file describes. A JSON
    object: the tools of each prompt.
    """
    text = str(association or "").strip()
    if not text.startswith(("{", "[")):
        return {text: ALL_PROMPTS} if text else {}
    remedy = 'Write a tool\'s name, ["tool", …] or {"prompt": "tool"}'
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("the value is not JSON", remedy=remedy) from None
    by_prompt = (
        cast("dict[str, object]", found) if isinstance(found, dict) else {ALL_PROMPTS: found}
    )
    guides: dict[str, str] = {}
    for prompt, tools in by_prompt.items():
        for tool in cast("list[object]", tools) if isinstance(tools, list) else [tools]:
            if not isinstance(tool, str) or re.search(r"\s", prompt):
                raise ConfigError("a prompt or tool name is not a single word", remedy=remedy)
            if guides.setdefault(tool, prompt) != prompt:
                raise ConfigError(f"{tool[:80]!r} has two prompts", remedy="Keep one of them")
    return guides


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "ARGS": parse_arguments,
    "PROMPTS_FILE": lambda value: value or None,
    "PROMPT_TOOL_ASSOCIATION": parse_prompt_association,
}


def _report_unknown(draft: Draft, variable: str, servers: Mapping[str, object]) -> None:
    origin = draft.document.origin((variable,))
    for name in servers:
        if variable.startswith(f"{VARIABLE_PREFIX}{name}_"):
            known = [f"{VARIABLE_PREFIX}{name}_{key}" for key in SERVER_VARIABLES]
            meant = closest_match(variable, known)
            problem = f"unknown key {variable[:80]!r}"
            problem += f", did you mean {meant!r}?" if meant else ""
            remedy = f"Write {meant}, or unset it" if meant else f"Known: {', '.join(known)}"
            draft.errors.add(
                problem, remedy=remedy, origin=origin, server=name.lower(), key=variable
            )
            draft.entries[:] = [
                replace(one, valid=False) if one.name == name.lower() else one
                for one in draft.entries
            ]
            return
    draft.warn(f"{variable} is ignored: it does not end in a known key", origin)


def _read_list(draft: Draft, text: str) -> None:
    if not text.strip():
        return
    document = draft.document
    outer = document.origin((SERVERS_VARIABLE,))
    try:
        value, _ = parse_json(text, None)
    except ConfigError as error:
        draft.errors.add(error.problem, remedy=error.remedy, origin=outer, key=SERVERS_VARIABLE)
        return
    if not isinstance(value, list | dict):
        problem = f"servers must be a list or a mapping, not {type_name(value)}"
        remedy = 'Write [{"name": "…", "url": "http://…"}]'
        draft.errors.add(problem, remedy=remedy, origin=outer, key=SERVERS_VARIABLE)
        return
    inner = Draft(Document(value, document.file, {(): outer.line or 0}, document.folder))
    inner.errors, inner.warnings = draft.errors, draft.warnings
    read_entries(inner, cast("object", value), LISTED_SERVER_KEYS, ())
    draft.entries.extend(inner.entries)


def describes_servers(variable: str) -> bool:
    """Whether the variable configures a server."""
    return variable == SERVERS_VARIABLE or (
        variable.startswith(VARIABLE_PREFIX) and all(split_variable(variable))
    )


def disabled_by(env: Mapping[str, str], draft: Draft) -> str:
    """Why all servers are disabled by an enable variable; empty if they are not."""
    for variable in ENABLE_VARIABLES:
        text = env.get(variable, "").strip()
        if text and parse_bool(text) is None:
            origin = Origin("environment")
            remedy = "Set it to true or false, or unset it"
            draft.errors.add(
                "it is neither true nor false", remedy=remedy, origin=origin, key=variable
            )
        elif text and not parse_bool(text):
            return f"{variable} is {text.lower()}"
    return ""


def read_defaults(env: Mapping[str, str]) -> list[Setting]:
    """The default variables that are set."""
    return [
        Setting(
            ours,
            env[variable],
            variable,
            Origin("environment", None, f"default of {variable}"),
        )
        for variable, ours in DEFAULT_VARIABLES.items()
        if env.get(variable, "").strip()
    ]
