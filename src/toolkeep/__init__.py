"""toolkeep: a client layer for MCP servers.

The names that most programs need: `Client` for one server, `Runtime` for many, and the errors.
Everything else is in its module: events in `toolkeep.events`, for example.

`import toolkeep` and `from toolkeep import Client` load neither the SDK nor the HTTP library; these
are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolkeep import _logs
from toolkeep._version import __version__
from toolkeep.context import CallContext
from toolkeep.errors import (
    AmbiguousTool,
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    ConfigError,
    InputNotGiven,
    InvalidArguments,
    InvalidResult,
    NotOffered,
    NotPermitted,
    RemoteProtocolError,
    ResultTooLarge,
    SealBroken,
    ServerUnavailable,
    StoreUnavailable,
    ToolError,
    ToolkeepError,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTool,
    WrongLoop,
)
from toolkeep.results import CallResult

if TYPE_CHECKING:
    from toolkeep._catalogue.tool import Tool
    from toolkeep.client import Client
    from toolkeep.config import load
    from toolkeep.group import ServerGroup
    from toolkeep.runtime import Runtime

__all__ = [
    "AmbiguousTool",
    "AuthNeeded",
    "CallContext",
    "CallError",
    "CallNotDelivered",
    "CallNotSentInTime",
    "CallOutcomeUnknown",
    "CallRejected",
    "CallResult",
    "CallTimedOut",
    "Client",
    "ConfigError",
    "InputNotGiven",
    "InvalidArguments",
    "InvalidResult",
    "NotOffered",
    "NotPermitted",
    "RemoteProtocolError",
    "ResultTooLarge",
    "Runtime",
    "SealBroken",
    "ServerGroup",
    "ServerUnavailable",
    "StoreUnavailable",
    "Tool",
    "ToolError",
    "ToolkeepError",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "WrongLoop",
    "__version__",
    "load",
]

_LAZY = {
    "Client": "toolkeep.client",
    "Runtime": "toolkeep.runtime",
    "ServerGroup": "toolkeep.group",
    "Tool": "toolkeep._catalogue.tool",
    "load": "toolkeep.config",
}

_logs.escape_log_lines()


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'toolkeep' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
