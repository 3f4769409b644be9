"""The file that servers are added to. What else is in it stays, and it is written whole or not."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from toolkeep.cli.configuring_places import text_of
from toolkeep.cli.configuring_values import mapping_of
from toolkeep.cli.ending import Misused
from toolkeep.config.formats import parse_json
from toolkeep.errors import ConfigError

Values = dict[str, Any]


class Target:
    """Read once, changed in memory, written once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix != ".json":
            raise Misused(f"--to {path}: servers are added to a .json file; name one")
        self._whole: Values = _whole(path) if os.path.lexists(path) else {}
        self.frame = next((key for key in ("mcpServers", "servers") if key in self._whole), "")
        if self._whole and not self.frame:
            remedy = 'Put its servers under "mcpServers", or name another file'
            raise ConfigError("there is nowhere to add servers", remedy=remedy, file=str(path))

    @property
    def servers(self) -> Mapping[str, Any]:
        return mapping_of(self._whole.get(self.frame))

    def add(self, name: str, entry: Mapping[str, Any]) -> None:
        self.frame = self.frame or "mcpServers"
        self._whole[self.frame] = {**self.servers, name: dict(entry)}

    def declare(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Inputs as VS Code declares them, beside those that are there."""
        self.frame = self.frame or "servers"
        there = cast("list[Any]", self._whole.get("inputs") or [])
        known = {mapping_of(one).get("id") for one in there}
        self._whole["inputs"] = [*there, *(one for one in inputs if one.get("id") not in known)]

    def write(self, *, private: bool) -> None:
        """`private`: a file that is made now is for its owner alone."""
        path = self.path.resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600 if private else 0o644
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=".toolkeep-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(self._whole, indent=2, ensure_ascii=False) + "\n")
            os.chmod(made, mode)
            os.replace(made, path)
        except BaseException:
            os.unlink(made)
            raise


def _whole(path: Path) -> Values:
    """Strictly JSON: comments could not be kept."""
    value = parse_json(text_of(path), str(path))[0]
    if not isinstance(value, dict):
        raise ConfigError(
            "it is no JSON object", remedy='Begin with {"mcpServers": {}}', file=str(path)
        )
    return cast("Values", value)
