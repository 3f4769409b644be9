"""What was listed last, for the shell to complete names from. A convenience: it may be missing,
old or broken, and nothing depends on it.

One private file for each way in which servers were named (a file, an address, a command, or a
directory to look in), in the user's cache directory. It holds names, and of tools their arguments;
never a header, a result or anything else of a configuration.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from toolkeep import Catalogue, Tool
    from toolkeep._catalogue.offer import Offer
    from toolkeep.cli.place import Place

MOST_TOOLS, MOST_FILES, LONGEST = 2000, 50, 300
"""Of one server; in the directory; characters of a name or a hint."""

Known = dict[str, dict[str, Any]]
"""From servers to their `tools`, `prompts` and `resources`."""


def keep(place: Place, view: Catalogue, *, whole: bool = True) -> None:
    """Remember this; `whole`: nothing else is configured."""
    with contextlib.suppress(OSError, ValueError):
        from toolkeep._files import make_private, write

        before = recall(place.config, place.url, place.command)
        listed = {o.server: _of(o) for o in view.offers if not (o.stale or o.missing)}
        there = {server: before[server] for server in view.servers if server in before}
        known = {**(there if whole else before), **listed}
        path = path_for(place.config, place.url, place.command)
        make_private(path.parent)
        write(path, json.dumps(known).encode())
        _tidy(path.parent)


def recall(config: str | None, url: str | None, command: str | None) -> Known:
    """What is remembered: nothing, if it cannot be read or is not what was written."""
    from toolkeep._files import content

    try:
        found: object = json.loads(content(path_for(config, url, command)))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    servers = cast("dict[str, object]", found)
    return {name: cast("Any", kept) for name, kept in servers.items() if isinstance(kept, dict)}


def path_for(config: str | None, url: str | None, command: str | None) -> Path:
    """The same for the same servers, as far as that can be told without reading anything."""
    if url is not None or command is not None:
        where: list[str | None] = [url, command]
    elif config is not None:
        where = [os.path.realpath(config)]
    else:
        where = [os.path.realpath(os.curdir), os.environ.get("TOOLKEEP_CONFIG")]
    digest = hashlib.sha256(json.dumps(where).encode()).hexdigest()[:32]
    return _directory(os.environ) / f"{digest}.json"


def _directory(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    else:
        base = env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "toolkeep" / "names"


def _of(offer: Offer) -> dict[str, Any]:
    return {
        "tools": {tool.tool[:LONGEST]: _tool(tool) for tool in offer.tools[:MOST_TOOLS]},
        "prompts": [one.name[:LONGEST] for one in offer.prompts[:MOST_TOOLS]],
        "resources": [one.uri for one in offer.resources[:MOST_TOOLS] if len(one.uri) <= LONGEST],
    }


def _tool(tool: Tool) -> dict[str, Any]:
    from toolkeep.cli.screen import one_line
    from toolkeep.cli.shapes import choices, described, properties

    schema = tool.input_schema
    keys = {
        name: {"help": described(part)[:LONGEST], "values": choices(part, schema)}
        for name, part in list(properties(schema).items())[:100]
    }
    return {"help": one_line(tool.description)[:LONGEST], "keys": keys}


def _tidy(directory: Path) -> None:
    """Directories come and go: the oldest files go too."""
    files = sorted(directory.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in files[:-MOST_FILES]:
        old.unlink(missing_ok=True)
