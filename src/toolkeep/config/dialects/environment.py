"""Servers in variables: `MCP_SERVERS`, a JSON array, and `MCP_SERVER_<NAME>_<KEY>`.

A name may hold underscores, so the longest known key at the end of a variable is its key:
`MCP_SERVER_MY_TOOLS_API_KEY` is the `API_KEY` of `my_tools`. The environment belongs to
everybody: a variable that is none of ours is a warning, unless it goes with a server of ours.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from toolkeep.config.configuration import Origin
from toolkeep.config.dialects.plain import entries
from toolkeep.config.draft import Document, Draft, Entry, Setting, same
from toolkeep.config.formats import parse_json
from toolkeep.config.model import nearest
from toolkeep.config.tools import guides_of
from toolkeep.config.words import OF_OTHERS, OURS, Vocabulary, switch
from toolkeep.errors import ConfigError

PREFIX, LISTED = "MCP_SERVER_", "MCP_SERVERS"
SWITCHES = ("MCP_ENABLE", "ENABLE_MCP_TOOLS")
DEFAULTS: Mapping[str, str] = {
    "MCP_CLIENT_RETRY_ATTEMPTS": "max_replays",
    "MCP_CLIENT_TIMEOUT": "timeouts.call",
    "MCP_HEALTH_CHECK_INTERVAL": "health_interval",
}
"""For all servers, whatever dialect describes them. Durations are seconds."""

KEYS: Mapping[str, str] = {
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
    "RETRY_ATTEMPTS": "max_replays",
    "HEALTH_CHECK_INTERVAL": "health_interval",
    "CONNECTION_POOL_SIZE": "max_in_flight",
    "PROMPTS_FILE": "prompts_file",
    "PROMPT_TOOL_ASSOCIATION": "guides",
}
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "ARGS": lambda value: arguments(value),
    "PROMPTS_FILE": lambda value: value or None,
    "PROMPT_TOOL_ASSOCIATION": guides_of,
}
_SPELLED = {ours: theirs for theirs, ours in reversed(KEYS.items())}
WORDS = Vocabulary({**OURS, **OF_OTHERS, "disabled": "disabled"}, strict=True)


def read(document: Document) -> Draft:
    """The document's value is the environment, or what a `.env` file says."""
    draft = Draft(document)
    env = cast("Mapping[str, str]", document.value)
    _read_list(draft, env.get(LISTED, ""))
    found: dict[str, list[tuple[str, str]]] = {}
    unknown: list[str] = []
    for variable in env:
        if variable.startswith(PREFIX):
            name, key = split(variable)
            if name and key:
                found.setdefault(name, []).append((key, variable))
            else:
                unknown.append(variable)
    for name, variables in found.items():
        draft.entries.append(_entry(draft, name, variables))
    for variable in unknown:
        _tell(draft, variable, found)
    return draft


def split(variable: str) -> tuple[str, str]:
    """The server's part of a variable, and the key; both empty if it has none."""
    rest = variable.removeprefix(PREFIX)
    fitting = [key for key in KEYS if rest.endswith(f"_{key}")]
    key = max(fitting, key=len, default="")
    return (rest.removesuffix(f"_{key}"), key) if key else ("", "")


def _entry(draft: Draft, name: str, variables: list[tuple[str, str]]) -> Entry:
    def spell(key: str) -> str:
        return f"{PREFIX}{name}_{_SPELLED.get(key, key.upper())}"

    def settings() -> Iterator[Setting]:
        for key, variable in variables:
            value = draft.document.value[variable]
            origin = draft.document.origin((variable,), variable)
            convert = _CONVERTED.get(key, same)
            yield Setting(KEYS[key], value, variable, origin, (variable,), convert)

    first = draft.document.origin((variables[0][1],), f"{PREFIX}{name}_…")
    return Entry(name.lower(), tuple(settings()), first, spell)


def arguments(value: Any) -> Any:
    """A JSON array, or words as in a shell."""
    text = str(value)
    try:
        return json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except ValueError:
        remedy = 'Write a JSON array, ["-v", "…"], or words with balanced quotes'
        raise ConfigError("the arguments cannot be told apart", remedy=remedy) from None


def _tell(draft: Draft, variable: str, servers: Mapping[str, object]) -> None:
    origin = draft.document.origin((variable,))
    for name in servers:
        if variable.startswith(f"{PREFIX}{name}_"):
            known = [f"{PREFIX}{name}_{key}" for key in KEYS]
            meant = nearest(variable, known)
            problem = f"unknown key {variable[:80]!r}"
            problem += f", did you mean {meant!r}?" if meant else ""
            remedy = f"Write {meant}, or unset it" if meant else f"Known: {', '.join(known)}"
            draft.mistakes.add(
                problem, remedy=remedy, origin=origin, server=name.lower(), key=variable
            )
            draft.entries[:] = [
                replace(one, fine=False) if one.name == name.lower() else one
                for one in draft.entries
            ]
            return
    draft.warn(f"{variable} means nothing here: it names no server, or no key of ours", origin)


def _read_list(draft: Draft, text: str) -> None:
    if not text.strip():
        return
    document = draft.document
    outer = document.origin((LISTED,))
    try:
        value, _ = parse_json(text, None)
    except ConfigError as error:
        said = (error.problem, error.remedy)
        draft.mistakes.add(said[0], remedy=said[1], origin=outer, key=LISTED)
        return
    if not isinstance(value, list | dict):
        problem, remedy = "not a list of servers", 'Write [{"name": "…", "url": "http://…"}]'
        draft.mistakes.add(problem, remedy=remedy, origin=outer, key=LISTED)
        return
    inner = Draft(Document(value, document.file, {(): outer.line or 0}, document.folder))
    inner.mistakes, inner.warnings = draft.mistakes, draft.warnings
    entries(inner, cast("object", value), WORDS, ())
    draft.entries.extend(inner.entries)


def describes_servers(variable: str) -> bool:
    return variable == LISTED or (variable.startswith(PREFIX) and all(split(variable)))


def switched_off(env: Mapping[str, str], draft: Draft) -> str:
    """Why nothing is to be opened, if a switch says so."""
    for variable in SWITCHES:
        text = env.get(variable, "").strip()
        if text and switch(text) is None:
            origin = Origin("environment")
            remedy = "Set it to true or false, or unset it"
            draft.mistakes.add("neither true nor false", remedy=remedy, origin=origin, key=variable)
        elif text and not switch(text):
            return f"{variable} is {text.lower()}"
    return ""


def defaults(env: Mapping[str, str]) -> list[Setting]:
    return [
        Setting(
            ours,
            env[variable],
            variable,
            Origin("environment", None, f"default of {variable}"),
        )
        for variable, ours in DEFAULTS.items()
        if env.get(variable, "").strip()
    ]
