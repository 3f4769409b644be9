"""What the shell offers after Tab: names that an earlier command listed. No server is opened.

The names are kept in the user's cache directory, in one private file for each way in which servers
were named (a file, a URL, a command, or the working directory). A file holds names, and the
arguments of tools; never a header, a result or any other part of a configuration. It may be
missing, old or broken: then nothing is offered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from toolkeep.cli import arguments
from toolkeep.cli.output import first_line

if TYPE_CHECKING:
    from toolkeep import Tool
    from toolkeep._catalogue.listing import ListingContent
    from toolkeep.cli.source import ServerSource
    from toolkeep.runtime import Catalogue

Names = dict[str, dict[str, Any]]
"""For each server its `tools`, `prompts` and `resources`."""
Offers = list[tuple[str, str]]
"""What would be typed, and its description."""

MAX_NAMES = 2000
"""Tools, prompts or resources of one server."""
MAX_ARGUMENTS = 100
MAX_LENGTH = 300
"""Characters of a name or a description."""
MAX_FILES = 50

# -- completion functions ------------------------------------------------------------------------


def complete_server(ctx: typer.Context, incomplete: str) -> Offers:
    return _starting_with(incomplete, ((name, "") for name in _names_for(ctx)))


def complete_tool(ctx: typer.Context, incomplete: str) -> Offers:
    tools = (
        (f"{server}.{tool}", _text(about, "help"))
        for server, kept in _names_for(ctx).items()
        for tool, about in _mapping(kept.get("tools")).items()
    )
    return _starting_with(incomplete, tools)


def complete_prompt(ctx: typer.Context, incomplete: str) -> Offers:
    names = _names_for(ctx).values()
    return _starting_with(
        incomplete, ((name, "") for kept in names for name in _texts(kept, "prompts"))
    )


def complete_uri(ctx: typer.Context, incomplete: str) -> Offers:
    names = _names_for(ctx).items()
    uris = ((uri, server) for server, kept in names for uri in _texts(kept, "resources"))
    return _starting_with(incomplete, uris)


def complete_argument(ctx: typer.Context, incomplete: str) -> Offers:
    """`key=value`, with the values that the tool's schema lists."""
    keys = _argument_names(ctx)
    given = [str(word) for word in ctx.params.get("words") or ()]
    if given[-1:] == ["="]:  # bash splits words at "=", and asks for what follows it
        values = _texts(_mapping(keys.get(given[-2] if given[1:] else "")), "values")
        return _starting_with(incomplete, ((value, "") for value in values))
    used = {word.partition("=")[0] for word in given}
    unused = (
        (offer, _text(about, "help"))
        for name, about in keys.items()
        if name not in used or incomplete.startswith(f"{name}=")
        for offer in _pairs(name, _texts(_mapping(about), "values"))
    )
    return _starting_with(incomplete, unused)


def _pairs(name: str, values: list[str]) -> list[str]:
    """Two offers where the value is free: shells add a blank after a single one."""
    return [f"{name}={value}" for value in values] or [f"{name}=", f"{name}=..."]


def _argument_names(ctx: typer.Context) -> dict[str, Any]:
    name = str(ctx.params.get("name") or "")
    for server, kept in _names_for(ctx).items():
        for tool, about in _mapping(kept.get("tools")).items():
            if name in (tool, f"{server}.{tool}"):
                return _mapping(_mapping(about).get("keys"))
    return {}


def _names_for(ctx: typer.Context) -> Names:
    given = (ctx.params.get(name) for name in ("config", "url", "command"))
    return load_names(*(one if isinstance(one, str) else None for one in given))


def _starting_with(incomplete: str, offers: Iterable[tuple[str, str]]) -> Offers:
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


# -- the files -----------------------------------------------------------------------------------


def save_names(source: ServerSource, catalogue: Catalogue, *, complete: bool = True) -> None:
    """Keep the names of a catalogue; `complete`: servers that are not in it are dropped."""
    with contextlib.suppress(OSError, ValueError):
        from toolkeep._files import make_private_directory, write_private

        place = (source.config, source.url, source.command)
        before = load_names(*place)
        listed = {one.server: _names_of(one) for one in catalogue.listings if _is_current(one)}
        if complete:
            before = {name: before[name] for name in catalogue.servers if name in before}
        path = names_file(*place)
        make_private_directory(path.parent)
        write_private(path, json.dumps({**before, **listed}).encode())
        _remove_oldest(path.parent)


def load_names(config: str | None, url: str | None, command: str | None) -> Names:
    """The names that were kept; empty if the file cannot be read."""
    from toolkeep._files import read_private

    try:
        found = _mapping(json.loads(read_private(names_file(config, url, command))))
    except (OSError, ValueError, RecursionError):
        return {}
    return {name: kept for name, kept in found.items() if isinstance(kept, dict)}


def names_file(config: str | None, url: str | None, command: str | None) -> Path:
    """The same file for the same servers, as far as that is known without reading anything."""
    if url is not None or command is not None:
        place: list[str | None] = [url, command]
    elif config is not None:
        place = [os.path.realpath(config)]
    else:
        place = [os.path.realpath(os.curdir), os.environ.get("TOOLKEEP_CONFIG")]
    digest = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
    return _directory(os.environ) / f"{digest}.json"


def _directory(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    else:
        base = env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "toolkeep" / "names"


def _is_current(offer: ListingContent) -> bool:
    return not (offer.stale or offer.missing)


def _names_of(offer: ListingContent) -> dict[str, Any]:
    uris = (one.uri for one in offer.resources[:MAX_NAMES])
    return {
        "tools": {tool.tool[:MAX_LENGTH]: _tool(tool) for tool in offer.tools[:MAX_NAMES]},
        "prompts": [one.name[:MAX_LENGTH] for one in offer.prompts[:MAX_NAMES]],
        "resources": [uri for uri in uris if len(uri) <= MAX_LENGTH],
    }


def _tool(tool: Tool) -> dict[str, Any]:
    schema = tool.input_schema
    keys = {
        name: {
            "help": arguments.description_of(part)[:MAX_LENGTH],
            "values": arguments.choices(part, schema),
        }
        for name, part in list(arguments.properties(schema).items())[:MAX_ARGUMENTS]
    }
    return {"help": first_line(tool.description)[:MAX_LENGTH], "keys": keys}


def _remove_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in files[:-MAX_FILES]:
        old.unlink(missing_ok=True)
