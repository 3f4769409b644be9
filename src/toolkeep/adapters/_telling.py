"""What a model is told when a call brought no result: one honest sentence, the same in every
framework.

It says whether the tool ran, whose move it is, and nothing that was given in confidence. What may
have run is never told so that it invites a repetition.
"""

from __future__ import annotations

from toolkeep.errors import (
    AuthNeeded,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    Delivery,
    InputNotGiven,
    InvalidArguments,
    InvalidResult,
    NotOffered,
    NotPermitted,
    ResultTooLarge,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.results import CallResult

__all__ = ["can_mend", "sentence", "tool_error"]


def sentence(error: ToolkeepError, tool: str) -> str:
    """For the model. `tool` is the name by which the model called it."""
    tool = error.called or tool
    match error:
        case InvalidArguments():
            problems = "; ".join(error.problems) or "they do not fit the tool"
            return f"{tool} was not called: its arguments are wrong ({problems}). Correct them."
        case NotOffered():
            return f"{tool} was not called: there is no such tool."
        case NotPermitted():
            return f"{tool} was not called: it may not be used here. Do not try it again."
        case AuthNeeded():
            return f"{tool} was not called: its server wants authorization from the user."
        case ServerUnavailable() | CallNotDelivered():
            return f"{tool} did not run: its server cannot be reached now. It may be tried later."
        case InputNotGiven():
            return f"{tool} stopped at a question that nobody answered. Do not call it again."
        case ResultTooLarge():
            return (
                f"{tool} ran, but its result is too large to be shown. "
                "If it only reads, ask it for less; otherwise do not call it again."
            )
        case InvalidResult():
            return f"{tool} ran, but its answer cannot be used. Do not call it again."
        case CallRejected():
            return f"{tool} was refused by its server (code {error.code})."
        case CallOutcomeUnknown():
            return (
                f"Whether {tool} ran is not known: its answer was lost. "
                "Do not call it again; find out first, or tell the user."
            )
        case _ if error.delivery is Delivery.UNKNOWN:
            return f"Whether {tool} ran is not known. Do not call it again; tell the user."
        case _ if error.delivery is Delivery.ANSWERED:
            return f"{tool} ran, but failed. Do not call it again."
        case _:
            return f"{tool} did not run: it cannot be used now."


def can_mend(error: ToolkeepError) -> bool:
    """Whether the model itself can do better at once: nothing ran, and the fault is its own."""
    return isinstance(error, InvalidArguments | NotOffered)


def tool_error(result: CallResult, tool: str) -> str:
    """A tool's own error, in its own words."""
    return result.text or f"{tool} says that it failed, and not why."
