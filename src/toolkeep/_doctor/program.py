"""A server that is a program: is it there, and is it a program at all?"""

from __future__ import annotations

import difflib
import os
import re

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Doubt, Seen, Trouble
from toolkeep._wire.process_program import environment, program_of
from toolkeep.config.redact import redact_args
from toolkeep.errors import ConfigError

_SHELL = re.compile(r"[|&;<>`]|\$\(|\s-|^~|\$\{?\w")
_SHOWN = 160
"""Characters of a command line."""
_BRINGS = {
    "npx": "It comes with Node.js: install that, or give the full path of npx",
    "node": "Install Node.js, or give its full path",
    "uvx": "It comes with uv: install that, or give the full path of uvx",
    "uv": "Install uv, or give its full path",
    "docker": "Install Docker, or give its full path",
    "python": "Many systems have python3 only: set 'command' to python3, or to a full path",
    "deno": "Install Deno, or give its full path",
    "bunx": "It comes with Bun: install that, or give the full path of bunx",
}


async def find(case: Case) -> Seen:
    spec = case.spec
    try:
        program = program_of(spec)
    except ConfigError as error:
        raise _missing(case, error) from None
    shown = " ".join((program.path, *redact_args(spec.args)))
    return Seen(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…", tuple(_doubts(case)))


def _doubts(case: Case) -> list[Doubt]:
    name = os.path.basename(case.spec.command)
    asks = name in ("npx", "npx.cmd") and not {"-y", "--yes"} & set(case.spec.args)
    if not asks:
        return []
    cause = "npx asks on a terminal before it installs a package, and here is none"
    return [Doubt(Fault.UNWISE, cause, f"Add -y as the first of {case.place('args')}")]


def _missing(case: Case, error: ConfigError) -> Trouble:
    command, place = case.spec.command, case.place("command")
    if error.key != "command":
        remedy = f"{error.remedy}: {case.place(error.key or 'command')}"
        return Trouble(Fault.BAD_CONFIGURATION, error.problem, remedy, step=Step.COMMAND)
    path = os.path.join(case.spec.cwd or "", command)
    if os.path.dirname(command) and os.path.exists(path):
        remedy = f"Make it executable (chmod +x), or name its interpreter in {place}"
        return Trouble(Fault.NOT_EXECUTABLE, f"{command!r} cannot be executed", remedy)
    if len(command.split()) > 1 or _SHELL.search(command):
        return _for_a_shell(command, place)
    brings = _BRINGS.get(command, "")
    remedy = f"{brings}: {place}" if brings else f"{_near(case) or error.remedy}: {place}"
    return Trouble(Fault.COMMAND_MISSING, error.problem, remedy)


def _for_a_shell(command: str, place: str) -> Trouble:
    first, *rest = command.split() or [command]
    if re.search(r"[|&;<>`$~]", command):
        cause = f"{place} holds what only a shell understands; no shell is started"
        remedy = f"Start one: 'command': 'sh', 'args': ['-c', {command!r}]"
    else:
        cause = f"there is no program {command!r}: {place} holds its arguments, too"
        remedy = f"Write 'command': {first!r} and 'args': {rest!r}"
    return Trouble(Fault.COMMAND_IS_SHELL, cause, remedy)


def _near(case: Case) -> str:
    """Programs of a similar name on the PATH that the server gets."""
    command = case.spec.command
    if os.path.dirname(command):
        return ""
    path = environment(case.spec.env).get("PATH", os.defpath)
    found = difflib.get_close_matches(command, sorted(_programs(path)), n=3, cutoff=0.75)
    return f"Did you mean {' or '.join(map(repr, found))}? Correct it" if found else ""


def _programs(path: str) -> set[str]:
    names: set[str] = set()
    for place in path.split(os.pathsep):
        try:
            names.update(os.listdir(place or "."))
        except OSError:
            continue
    return names
