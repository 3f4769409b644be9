"""What the shell offers after Tab: names that were listed before. Opens no server, starts nothing,
and offers nothing when in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import typer

Offers = list[tuple[str, str]]
"""What would be typed, and what it means."""


def servers(ctx: typer.Context, incomplete: str) -> Offers:
    return _starting(incomplete, ((name, "") for name in _known(ctx)))


def tools(ctx: typer.Context, incomplete: str) -> Offers:
    named = (
        (f"{server}.{tool}", _text(about, "help"))
        for server, kept in _known(ctx).items()
        for tool, about in _mapping(kept.get("tools")).items()
    )
    return _starting(incomplete, named)


def uris(ctx: typer.Context, incomplete: str) -> Offers:
    known = _known(ctx).items()
    listed = ((uri, server) for server, kept in known for uri in _texts(kept, "resources"))
    return _starting(incomplete, listed)


def arguments(ctx: typer.Context, incomplete: str) -> Offers:
    """`key=` of the tool that was named, and after it the values that its schema lists."""
    keys = _keys(ctx)
    key, equals, _ = incomplete.partition("=")
    if equals:
        values = _texts(_mapping(keys.get(key)), "values")
        return _starting(incomplete, ((f"{key}={value}", "") for value in values))
    given = {str(word).partition("=")[0] for word in ctx.params.get("arguments") or ()}
    left = ((f"{name}=", _text(about, "help")) for name, about in keys.items() if name not in given)
    return _starting(incomplete, left)


def _keys(ctx: typer.Context) -> dict[str, Any]:
    name = str(ctx.params.get("name") or "")
    for server, kept in _known(ctx).items():
        for tool, about in _mapping(kept.get("tools")).items():
            if name in (tool, f"{server}.{tool}"):
                return _mapping(_mapping(about).get("keys"))
    return {}


def _known(ctx: typer.Context) -> dict[str, dict[str, Any]]:
    from mainstay.cli import memory

    given = (ctx.params.get(name) for name in ("config", "url", "command"))
    return memory.recall(*(one if isinstance(one, str) else None for one in given))


def _starting(incomplete: str, offers: Iterable[tuple[str, str]]) -> Offers:
    return [one for one in offers if one[0].startswith(incomplete)]


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _texts(kept: dict[str, Any], key: str) -> list[str]:
    found = kept.get(key)
    given = cast("list[object]", found) if isinstance(found, list) else []
    return [one for one in given if isinstance(one, str)]


def _text(about: object, key: str) -> str:
    found = _mapping(about).get(key)
    return found if isinstance(found, str) else ""
