"""One sentence for each failure: what failed, and what to do about it. Secrets are in none.

For people on standard error; with `--json` as one object on standard output.
"""

from __future__ import annotations

import sys
from typing import Any

from toolkeep.cli.ending import FAILED, UNKNOWN, USAGE, Misused
from toolkeep.cli.screen import beside, document, fit_for
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

OUR_BUG = "This is a bug in toolkeep; TOOLKEEP_DEBUG=1 shows where"


def tell(error: Exception, *, json: bool) -> None:
    if json:
        print(document({"error": as_dict(error)}), flush=True)
        return
    remedy = remedy_for(error)
    told = f"error: {_message(error)}" + (f"\n  {remedy}" if remedy else "")
    beside(fit_for(sys.stderr, told))


def code_of(error: Exception) -> int:
    if isinstance(error, Misused | ConfigError | NotOffered | InvalidArguments):
        return USAGE
    if isinstance(error, ToolkeepError) and error.delivery is Delivery.UNKNOWN:
        return UNKNOWN
    return FAILED


def as_dict(error: Exception) -> dict[str, Any]:
    """Plain data, ready for JSON."""
    told: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    if isinstance(error, ToolkeepError):
        told |= {"delivery": error.delivery.value, "status": error.status}
    if isinstance(error, NotOffered):
        told["suggestions"] = list(error.suggestions)
    if isinstance(error, InvalidArguments):
        told["problems"] = list(error.problems)
    return told | {"remedy": remedy_for(error) or None}


def remedy_for(error: BaseException) -> str:
    """Empty where the message has it."""
    match error:
        case ServerUnavailable() | RemoteProtocolError():
            return "`toolkeep check`, with the same options, finds out why"
        case AuthNeeded():
            return (
                "Give it credentials: --header 'Authorization: Bearer …', or in the configuration"
            )
        case CallTimedOut():
            return "--timeout SECONDS gives it longer"
        case UnknownResource():
            return "--server NAME says whose it is"
        case ToolkeepError() | Misused() | OSError():
            return ""
        case _:
            return OUR_BUG


def _message(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ToolkeepError | Misused):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
