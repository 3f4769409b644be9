"""Where other products keep their servers, and how they are read from there.

Sources: modelcontextprotocol.io (Claude Desktop), code.claude.com/docs/en/mcp (Claude Code),
cursor.com/docs/context/mcp (Cursor), code.visualstudio.com/docs/copilot (VS Code). On Linux the
programs made with Electron keep theirs below XDG_CONFIG_HOME.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolkeep.cli.configuring_values import mapping_of
from toolkeep.config.approval import home_of
from toolkeep.config.formats import parse_json
from toolkeep.errors import ConfigError

LARGEST = 64 * 1024 * 1024
"""Bytes. Claude Code keeps much more in its file than servers."""


@dataclass(frozen=True)
class Kept:
    """A file of a product's, which need not be there."""

    product: str
    path: Path


def usual(platform: str, env: Mapping[str, str], cwd: Path) -> list[Kept]:
    """The nearest first: what a project says comes before what a user says."""
    home = Path(home_of(env))
    programs = {
        "darwin": home / "Library" / "Application Support",
        "win32": Path(env.get("APPDATA") or home / "AppData" / "Roaming"),
    }.get(platform, Path(env.get("XDG_CONFIG_HOME") or home / ".config"))
    return [
        Kept("claude-code", cwd / ".mcp.json"),
        Kept("cursor", cwd / ".cursor" / "mcp.json"),
        Kept("vscode", cwd / ".vscode" / "mcp.json"),
        Kept("claude-code", home / ".claude.json"),
        Kept("claude-desktop", programs / "Claude" / "claude_desktop_config.json"),
        Kept("cursor", home / ".cursor" / "mcp.json"),
        Kept("vscode", programs / "Code" / "User" / "mcp.json"),
        Kept("vscode", programs / "Code" / "User" / "settings.json"),
    ]


PRODUCTS = ("claude-desktop", "claude-code", "cursor", "vscode")


@dataclass(frozen=True)
class Found:
    """One server, as a product's file has it."""

    name: str
    entry: Mapping[str, Any] = field(repr=False)
    product: str
    path: Path
    inputs: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """What the file declares of what the entry asks for (VS Code)."""


def read(kept: Kept, cwd: Path) -> list[Found]:
    """Its servers; none if there are none. What is not JSON is a `ConfigError`."""
    value = _value(kept.path)
    inputs = tuple(_declared(value))
    return [
        Found(str(name), mapping_of(entry), kept.product, kept.path, inputs)
        for name, entry in _entries(value, cwd)
        if mapping_of(entry)
    ]


def _entries(value: Any, cwd: Path) -> Iterator[tuple[Any, Any]]:
    whole = mapping_of(value)
    here = mapping_of(mapping_of(whole.get("projects")).get(str(cwd)))  # Claude Code's local scope
    settings = mapping_of(whole.get("mcp"))  # VS Code's settings.json
    for frame in (here.get("mcpServers"), whole.get("mcpServers"), whole.get("servers")):
        yield from mapping_of(frame).items()
    yield from mapping_of(settings.get("servers")).items()


def _declared(value: Any) -> Iterator[Mapping[str, Any]]:
    whole = mapping_of(value)
    for given in (whole.get("inputs"), mapping_of(whole.get("mcp")).get("inputs")):
        for one in cast("list[Any]", given) if isinstance(given, list) else ():
            yield mapping_of(one)


def _value(path: Path) -> Any:
    text = text_of(path)
    try:
        # Most have no comments, and what Claude Code keeps may be deeper than any configuration.
        return json.loads(text)
    except (ValueError, RecursionError):
        return parse_json(text, str(path), comments=True)[0]


def text_of(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError("it is not a file", remedy="Name a file", file=str(path))
        with path.open("rb") as opened:
            content = opened.read(LARGEST)
        return content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "no access"
        remedy = "Make it readable, or name another"
        raise ConfigError(f"it cannot be read: {reason}", remedy=remedy, file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8", remedy="Save it as UTF-8", file=str(path)) from None
