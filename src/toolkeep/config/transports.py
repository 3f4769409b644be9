"""Which way a server is reached, and what that way cannot have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol, cast

from pydantic import SecretStr

from toolkeep.config.model import kind_of
from toolkeep.config.urls import as_name, name_from, problem
from toolkeep.errors import ConfigError

OF_HTTP = ("headers", "tool_headers", "derived_headers", "api_key", "proxy")
OF_A_PROGRAM = ("args", "env", "cwd")
_FITTING = {"url": ("http", "sse"), "command": ("stdio",), "server": ("local",)}


class Described(Protocol):
    """As much of a `ServerSpec` as is judged here."""

    @property
    def url(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def server(self) -> Any: ...
    @property
    def mode(self) -> str: ...
    @property
    def transport(self) -> str | None: ...
    @property
    def api_key(self) -> SecretStr | None: ...


TYPES = {
    "stdio": "stdio",
    "sse": "sse",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
}
"""What other products call the transport, under `type`."""


def in_our_words(given: dict[str, Any]) -> dict[str, Any]:
    """One entry of an `mcp.json`, as products write it."""
    if "mcpServers" in given or "servers" in given:
        raise ConfigError(
            "this describes several servers", remedy="Give one of them: its url, or its command"
        )
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in TYPES or "transport" in given:
        return given
    rest = {key: value for key, value in given.items() if key != "type"}
    return {**rest, "transport": TYPES[kind]}


def check_transport(spec: Described) -> None:
    """Raises unless the server is reached in exactly one way, and all else fits to it."""
    given = [way for way in _FITTING if getattr(spec, way)]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "nothing says where the server is"
        key = given[0] if given else "url"
        raise problem(what, "Give one of 'url', 'command' and 'server'", key)
    way = given[0]
    if spec.transport not in (None, *_FITTING[way]):
        fitting = " or ".join(repr(one) for one in _FITTING[way])
        raise problem(
            f"the transport {spec.transport!r} does not go with {way!r}",
            f"Use {fitting}",
            "transport",
        )
    foreign = OF_A_PROGRAM if way == "url" else OF_HTTP
    foreign = (*OF_HTTP, *OF_A_PROGRAM) if way == "server" else foreign
    for key in foreign:
        if getattr(spec, key):
            remedy = (
                "Programs get their secrets in 'env'" if way == "command" else f"Remove {key!r}"
            )
            raise problem(f"{key!r} means nothing to a server with {way!r}", remedy, key)
    if spec.transport == "sse" and spec.mode == "modern":
        raise problem(
            "HTTP+SSE was gone before 2026-07-28",
            "Use the mode 'legacy', or the transport 'http'",
            "transport",
        )


def is_local_server(value: object) -> bool:
    """Whether this can be a server in this process. What it really is, the wire finds out."""
    if isinstance(value, list | tuple):
        parts = cast("list[object]", value)
        return bool(parts) and all(callable(part) for part in parts)
    known = hasattr(value, "_lowlevel_server") or hasattr(value, "create_initialization_options")
    return not isinstance(value, str | Mapping | type) and (known or callable(value))


def name_of_local(server: object) -> str:
    """A server's own name; functions are named after the first."""
    listed = isinstance(server, list | tuple)
    first = next(iter(cast("list[object]", server)), None) if listed else server
    own = getattr(first, "name", None) or getattr(first, "__name__", None)
    return as_name(own) if isinstance(own, str) else "local"


def as_mapping(value: object) -> dict[str, Any]:
    """What describes one server, whatever it was given as."""
    if isinstance(value, str):
        return {"url": value}
    if is_local_server(value):
        return {"server": value}
    if not isinstance(value, Mapping):
        remedy = 'Write it as {"url": "http://…"} or {"command": "…", "args": […]}'
        raise ConfigError(f"a server is a URL or a mapping, not {kind_of(value)}", remedy=remedy)
    found = cast("Mapping[Any, Any]", value)
    for key in found:
        if not isinstance(key, str):
            raise ConfigError(f"a key is a text, not {kind_of(key)}", remedy="Correct the key")
    return in_our_words(dict(found))


def name_for(given: Mapping[str, Any]) -> str:
    """A name for a server that was given none."""
    if given.get("server") is not None:
        return name_of_local(given["server"])
    command = given.get("command")
    if isinstance(command, str) and command:
        return as_name(re.split(r"[\\/]", command.split()[0])[-1] if command.strip() else "")
    return name_from(given.get("url") or next(iter(given.get("urls") or ()), None))
