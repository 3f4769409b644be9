"""What is to be started: found and checked before anything is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError

_ON_WINDOWS = (
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT"),
    *("PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
)
_ELSEWHERE = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
    *("LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"),
)
_NEEDED = _ON_WINDOWS if os.name == "nt" else _ELSEWHERE
"""The SDK's lists (2.3.0), and what texts and times are written in."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that exists, and what it gets."""

    server: str
    command: str
    """As configured."""
    path: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None


def program_of(spec: ServerSpec) -> Program:
    """Raises `ConfigError`."""
    cwd = None if spec.cwd is None else os.path.abspath(spec.cwd)
    if cwd is not None and not os.path.isdir(cwd):
        problem = f"there is no directory {spec.cwd!r}"
        raise ConfigError(problem, server=spec.name, key="cwd", remedy="Correct or create it")
    _check_texts(spec)
    env = environment(spec.env)
    path = _find(spec.command, env.get("PATH", os.defpath), cwd or _here(spec))
    if path is None:
        raise _missing(spec)
    return Program(spec.name, spec.command, path, (spec.command, *spec.args), env, cwd)


def _here(spec: ServerSpec) -> str:
    try:
        return os.getcwd()
    except OSError:
        problem = "the directory in which this program runs is gone"
        raise ConfigError(problem, server=spec.name, key="cwd", remedy="Give one") from None


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What every program needs of ours, and what is given for this one."""
    ours = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    harmless = {name: value for name, value in ours.items() if not value.startswith("()")}
    return {**harmless, **given}


def _find(command: str, path: str, cwd: str) -> str | None:
    """Where the child would find it: relative to its own directory, on its own PATH."""
    if os.path.dirname(command):
        return shutil.which(os.path.join(cwd, command))
    places = [os.path.join(cwd, place) for place in path.split(os.pathsep)]
    return shutil.which(command, path=os.pathsep.join(places))


def _missing(spec: ServerSpec) -> ConfigError:
    if len(spec.command.split()) > 1:
        problem = "there is no program of that name, which holds blanks"
        remedy = "Put the arguments into 'args', one by one"
        return ConfigError(problem, server=spec.name, key="command", remedy=remedy)
    place = os.path.join(spec.cwd or "", spec.command)
    if os.path.dirname(spec.command) and os.path.exists(place):
        problem, remedy = f"{spec.command!r} cannot be executed", "Make it executable"
    elif os.path.dirname(spec.command):
        problem, remedy = f"there is no program {spec.command!r}", "Correct the path"
    else:
        problem = f"no program {spec.command!r} on its PATH"
        remedy = "Install it, give its full path, or set PATH in 'env'"
    return ConfigError(problem, server=spec.name, key="command", remedy=remedy)


def _check_texts(spec: ServerSpec) -> None:
    if not all(_is_sound(text) for text in (spec.command, *spec.args)):
        problem = "an argument holds a NUL character, or half of one beyond the BMP"
        raise ConfigError(problem, server=spec.name, key="args", remedy="Correct it")
    for name, value in spec.env.items():
        if not name or "=" in name or not _is_sound(name + value):
            problem = "it is no environment variable"
            raise ConfigError(problem, server=spec.name, key=f"env.{name}", remedy="Correct it")


def _is_sound(text: str) -> bool:
    """Whether a system call takes it."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
