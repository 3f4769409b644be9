"""How a command ends: its exit code, and how an error is shown.

| code | |
|---|---|
| 0 | success |
| 1 | the command failed: the server refused, the tool reported an error, or no server was reached |
| 2 | the command cannot run as it was given; nothing was sent |
| 3 | the call may have run: find out before you repeat it |
| 130 | interrupted by Ctrl-C or SIGTERM: calls were cancelled, sessions and programs were closed |

A reader that closes standard output ends the command, with code 0. An exception that is not one of
toolkeep's is reported as a bug. Tracebacks are shown only with TOOLKEEP_DEBUG=1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from difflib import get_close_matches
from typing import Any, NoReturn, TypeAlias

import typer

from toolkeep.cli.output import Output, discard, to_json, wrap_for, write_error
from toolkeep.errors import (
    AuthNeeded,
    CallTimedOut,
    ConfigError,
    Delivery,
    InvalidArguments,
    NotOffered,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
    UnknownResource,
)

OK, FAILED, USAGE, UNKNOWN, INTERRUPTED = 0, 1, 2, 3, 130

BUG_REMEDY = "This is a bug in toolkeep; TOOLKEEP_DEBUG=1 shows where"

Work: TypeAlias = "Callable[[Output], int | Coroutine[Any, Any, int]]"


class UsageError(Exception):
    """The command cannot run as it was given. The message says what to change."""


def run(work: Work, *, json: bool = False) -> NoReturn:
    """Run a command, and end it with the exit code that `work` returns. A coroutine is run in an
    event loop, and cancelled by Ctrl-C and SIGTERM."""
    try:
        result = work(Output(json))
        code = result if isinstance(result, int) else _run_in_loop(result)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        code = OK
    except KeyboardInterrupt:
        code = INTERRUPTED
        # The terminal has echoed ^C: write over it.
        write_error("\rinterrupted" if sys.stderr.isatty() else "interrupted")
    except typer.Exit:
        raise
    except Exception as error:
        code = _report(error, json=json)
    raise typer.Exit(code)


def _run_in_loop(work: Coroutine[Any, Any, int]) -> int:
    async def cancellable() -> int:
        task = asyncio.current_task()
        assert task is not None
        if sys.platform != "win32":
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(cancellable())  # which cancels it at the first Ctrl-C
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _report(error: Exception, *, json: bool) -> int:
    if debugging():
        import traceback

        traceback.print_exception(error)
    try:
        show_error(error, json=json)
    except BrokenPipeError:
        discard(sys.stdout)
    return exit_code(error)


def debugging() -> bool:
    return os.environ.get("TOOLKEEP_DEBUG", "") not in ("", "0")


def show_error(error: Exception, *, json: bool) -> None:
    """As one object on standard output with `--json`; otherwise as text on standard error."""
    if json:
        print(to_json({"error": error_as_dict(error)}), flush=True)
        return
    remedy = remedy_for(error)
    text = f"error: {_message(error)}" + (f"\n  {remedy}" if remedy else "")
    write_error(wrap_for(sys.stderr, text))


def exit_code(error: Exception) -> int:
    if isinstance(error, UsageError | ConfigError | NotOffered | InvalidArguments):
        return USAGE
    if isinstance(error, ToolkeepError) and error.delivery is Delivery.UNKNOWN:
        return UNKNOWN
    return FAILED


def error_as_dict(error: Exception) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    if isinstance(error, ToolkeepError):
        shown |= {"delivery": error.delivery.value, "status": error.status}
    if isinstance(error, NotOffered):
        shown["suggestions"] = list(error.suggestions)
    if isinstance(error, InvalidArguments):
        shown["problems"] = list(error.problems)
    return shown | {"remedy": remedy_for(error) or None}


def remedy_for(error: BaseException) -> str:
    """What to do about an error; empty where its message says it."""
    match error:
        case ServerUnavailable() | RemoteProtocolError():
            return "Find the cause: run `toolkeep check` with the same options"
        case AuthNeeded() if "toolkeep login" in str(error):
            return ""
        case AuthNeeded():
            return (
                "Give it credentials: --header 'Authorization: Bearer …', or in the configuration"
            )
        case CallTimedOut():
            return "Allow it more time with --timeout SECONDS"
        case UnknownResource():
            return "Name the server that has it, with --server NAME"
        case ToolkeepError() | UsageError() | OSError():
            return ""
        case _:
            return BUG_REMEDY


def evidence_of(error: BaseException | None) -> str:
    """Why a server is not there, without what that means for a call; empty without an error."""
    failure = error.failure if isinstance(error, ToolkeepError) else None
    return str(failure or error or "")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest one, or all that are known."""
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known names: {', '.join(names) or 'none'}"


def _message(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ToolkeepError | UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
