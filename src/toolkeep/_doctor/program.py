"""Servers that are programs: the command step, and what their exit and their output tell."""

from __future__ import annotations

import difflib
import os
import re
import shlex

from toolkeep._doctor.report import Fault, Problem, StepFailed, StepResult
from toolkeep._doctor.target import Target, Traffic
from toolkeep._transport.subprocess import child_environment, resolve_program
from toolkeep.config.redact import redact_args
from toolkeep.errors import ConfigError, ToolkeepError

SHELL_SYNTAX = re.compile(r"[|&;<>`]|\$\(|\s-|^~|\$\{?\w")
SHOWN_COMMAND, SHOWN_COMMAND_BY_HAND = 160, 300
"""Characters of a command line."""
SHOWN_STDERR_LINES = 3
HOW_TO_INSTALL = {
    "npx": "It comes with Node.js: install that, or give the full path of npx",
    "node": "Install Node.js, or give its full path",
    "uvx": "It comes with uv: install that, or give the full path of uvx",
    "uv": "Install uv, or give its full path",
    "docker": "Install Docker, or give its full path",
    "python": "Many systems have python3 only: set 'command' to python3, or to a full path",
    "deno": "Install Deno, or give its full path",
    "bunx": "It comes with Bun: install that, or give the full path of bunx",
}


# -- the command --------------------------------------------------------------------------------


async def find_program(target: Target) -> StepResult:
    spec = target.spec
    try:
        program = resolve_program(spec)
    except ConfigError as error:
        raise StepFailed(_not_startable(target, error)) from None
    shown = " ".join((program.path, *redact_args(spec.args)))
    shown = shown if len(shown) <= SHOWN_COMMAND else f"{shown[:SHOWN_COMMAND]}…"
    return StepResult(shown, _npx_would_ask(target))


def _npx_would_ask(target: Target) -> tuple[Problem, ...]:
    name = os.path.basename(target.spec.command)
    if name not in ("npx", "npx.cmd") or {"-y", "--yes"} & set(target.spec.args):
        return ()
    cause = "npx asks on a terminal before it installs a package, and a server has no terminal"
    return (Problem(Fault.UNWISE, cause, f"Add -y as the first of {target.key('args')}"),)


def _not_startable(target: Target, error: ConfigError) -> Problem:
    command, key = target.spec.command, target.key("command")
    if error.key != "command":
        remedy = f"{error.remedy}: {target.key(error.key or 'command')}"
        return Problem(Fault.BAD_CONFIGURATION, error.problem, remedy)
    path = os.path.join(target.spec.cwd or "", command)
    if os.path.dirname(command) and os.path.exists(path):
        remedy = f"Make it executable (chmod +x), or put its interpreter into {key}"
        return Problem(Fault.NOT_EXECUTABLE, f"the file {command!r} is not executable", remedy)
    if len(command.split()) > 1 or SHELL_SYNTAX.search(command):
        return _needs_shell(command, key)
    remedy = HOW_TO_INSTALL.get(command) or _similar_programs(target) or error.remedy
    return Problem(Fault.COMMAND_MISSING, error.problem, f"{remedy}: {key}")


def _needs_shell(command: str, key: str) -> Problem:
    first, *rest = command.split() or [command]
    if re.search(r"[|&;<>`$~]", command):
        cause = f"{key} contains shell syntax, but no shell is started"
        remedy = f"Start a shell: 'command': 'sh', 'args': ['-c', {command!r}]"
    else:
        cause = f"there is no program {command!r}: {key} contains arguments"
        remedy = f"Write 'command': {first!r} and 'args': {rest!r}"
    return Problem(Fault.COMMAND_IS_SHELL, cause, remedy)


def _similar_programs(target: Target) -> str:
    """A remedy that names similar programs on the PATH that the server gets, or nothing."""
    command = target.spec.command
    if os.path.dirname(command):
        return ""
    path = child_environment(target.spec.env).get("PATH", os.defpath)
    similar = difflib.get_close_matches(command, sorted(_programs(path)), n=3, cutoff=0.75)
    return f"Did you mean {' or '.join(map(repr, similar))}? Correct it" if similar else ""


def _programs(path: str) -> set[str]:
    names: set[str] = set()
    for directory in path.split(os.pathsep):
        try:
            names.update(os.listdir(directory or "."))
        except OSError:
            continue
    return names


# -- the process --------------------------------------------------------------------------------


def command_line(target: Target) -> str:
    """The command as a person would type it, without its secrets."""
    line = shlex.join([target.spec.command, *redact_args(target.spec.args)])
    return line[:SHOWN_COMMAND_BY_HAND]


def exited(target: Target, error: ToolkeepError) -> Problem:
    """The program ended before it was ready: `error` has its exit code."""
    code = error.exit_code or 0
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    lines = [line for line in error.stderr.splitlines() if line.strip()][-SHOWN_STDERR_LINES:]
    said = f"; its last output: {' / '.join(lines)}" if lines else " and printed no error"
    remedy = "Fix what its last output reports, or run" if lines else "Run"
    remedy += f" it by hand: {command_line(target)} (from {target.key('command')})"
    return Problem(Fault.PROGRAM_EXITS, f"the program {how} before it was ready{said}", remedy)


def stray_output(target: Target, traffic: Traffic) -> Problem | None:
    """Text on standard output, where only messages may be."""
    if not traffic.stray_output:
        return None
    first = traffic.stray_output.splitlines()[0]
    cause = f"the program prints text to standard output that is not an MCP message: {first!r}"
    remedy = f"Change {target.spec.name} to print to standard error: other clients fail at such "
    return Problem(Fault.STDOUT_NOISE, cause, f"{remedy}a line")
