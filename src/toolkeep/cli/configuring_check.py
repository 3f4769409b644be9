"""`config validate` and `config schema`."""

from __future__ import annotations

import json as json_
import sys
import warnings
from typing import Any

from toolkeep.cli.configuring_show import as_written
from toolkeep.cli.ending import DONE, FAILED
from toolkeep.cli.place import loaded
from toolkeep.cli.screen import Screen
from toolkeep.config import Configuration
from toolkeep.config.doubts import ConfigWarning
from toolkeep.config.loading import problems
from toolkeep.config.schemas import schema
from toolkeep.errors import ConfigError


def validated(file: str | None, *, json: bool) -> int:
    screen = Screen(json)
    warnings.simplefilter("ignore", ConfigWarning)
    found = problems(file, inputs=as_written)
    if found:
        _tell(found, screen)
        return FAILED
    good = loaded(file, inputs=as_written)
    screen.give({"ok": True, "problems": [], "warnings": list(good.warnings), "servers": _of(good)})
    for text in good.warnings:
        screen.tell(f"warning: {text}")
    screen.say(_summary(file, good))
    return DONE


def _tell(found: tuple[ConfigError, ...], screen: Screen) -> None:
    listed = [_as_dict(one) for one in found]
    screen.give({"ok": False, "problems": listed, "warnings": [], "servers": []})
    for one in found:
        screen.tell(str(one))
    screen.say(f"{len(found)} problem{'' if len(found) == 1 else 's'}")


def _as_dict(error: ConfigError) -> dict[str, Any]:
    keys = ("file", "server", "key", "problem", "remedy")
    return {key: getattr(error, key) or None for key in keys}


def _of(good: Configuration) -> list[str]:
    return list(good.order)


def _summary(file: str | None, good: Configuration) -> str:
    where = file or (str(good.files[0].name) if good.files else "environment")
    more = [f"{len(good.disabled)} switched off"] if good.disabled else []
    more += [f"{len(good.needs_approval)} to be approved"] if good.needs_approval else []
    number = f"{len(good.order)} server{'' if len(good.order) == 1 else 's'}"
    return f"{where}: ok, {', '.join((number, *more))}"


def print_schema() -> int:
    sys.stdout.write(json_.dumps(schema(), indent=2) + "\n")
    return DONE
