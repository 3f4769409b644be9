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
    """`key=value` with the values that the schema of the tool that was named lists."""
    keys = _keys(ctx)
    given = [str(word) for word in ctx.params.get("arguments") or ()]
    if given[-1:] == ["="]:  # bash breaks words at it, and asks for what follows
        values = _texts(_mapping(keys.get(given[-2] if given[1:] else "")), "values")
        return _starting(incomplete, ((value, "") for value in values))
    named = {word.partition("=")[0] for word in given}
    left = (
        (offer, _text(about, "help"))
        for name, about in keys.items()
        if name not in named or incomplete.startswith(f"{name}=")
        for offer in _pairs(name, _texts(_mapping(about), "values"))
    )
    return _starting(incomplete, left)


def _pairs(name: str, values: list[str]) -> list[str]:
    """Never one alone that is to be gone on with: shells put a blank after it."""
    return [f"{name}={value}" for value in values] or [f"{name}=", f"{name}=..."]


def _keys(ctx: typer.Context) -> dict[str, Any]:
    name = str(ctx.params.get("name") or "")
    for server, kept in _known(ctx).items():
        for tool, about in _mapping(kept.get("tools")).items():
            if name in (tool, f"{server}.{tool}"):
                return _mapping(_mapping(about).get("keys"))
    return {}


def _known(ctx: typer.Context) -> dict[str, dict[str, Any]]:
    from toolkeep.cli import memory

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
