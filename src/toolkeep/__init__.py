"""toolkeep: MCP tools that an agent can depend on.

`import toolkeep` and `from toolkeep import Client` load neither the SDK nor the HTTP library; what
is heavy comes with its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolkeep import _logs
from toolkeep._rules.classify import SessionRow
from toolkeep._version import __version__
from toolkeep.auth import Authorizer, StaticKey
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
    Delivery,
    Failure,
    FailureKind,
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
    ToolkeepError,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTool,
    WrongLoop,
)
from toolkeep.events import (
    CallEvent,
    Changed,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    InputNeeded,
    Log,
    Notice,
    Observer,
    Progress,
    Replaying,
    Started,
)
from toolkeep.results import CallResult
from toolkeep.stores import FileSessionStore, MemorySessionStore, SessionStore, StoredSession
from toolkeep.stores.results import MemoryResultStore, ResultStore

if TYPE_CHECKING:
    from toolkeep._catalogue.catalogue import Catalogue
    from toolkeep._catalogue.tool import Tool
    from toolkeep._engine.call import Call
    from toolkeep._engine.client import Client
    from toolkeep._engine.endpoints import Endpoint
    from toolkeep._engine.group import ServerGroup
    from toolkeep._engine.group_terms import Dropped, HealthChanged, Joined, Left
    from toolkeep._engine.observing import Observation
    from toolkeep._rules.budget import Backoff
    from toolkeep._rules.membership import Health, Member, MemberState
    from toolkeep._runtime.browsing import browsing
    from toolkeep._runtime.events import CatalogueChanged, EditRefused, Reloaded
    from toolkeep._runtime.oversized import ResultPart
    from toolkeep._runtime.reading import reading
    from toolkeep._runtime.status import ServerStatus
    from toolkeep.config import TLS, Configuration, ServerSpec, Timeouts, load
    from toolkeep.runtime import Runtime

__all__ = [
    "TLS",
    "AmbiguousTool",
    "AuthNeeded",
    "Authorizer",
    "Backoff",
    "Call",
    "CallContext",
    "CallError",
    "CallEvent",
    "CallNotDelivered",
    "CallNotSentInTime",
    "CallOutcomeUnknown",
    "CallRejected",
    "CallResult",
    "CallTimedOut",
    "Catalogue",
    "CatalogueChanged",
    "Changed",
    "Client",
    "Completed",
    "ConfigError",
    "Configuration",
    "Connected",
    "Delivery",
    "Disconnected",
    "Dropped",
    "EditRefused",
    "Endpoint",
    "Event",
    "Failed",
    "Failure",
    "FailureKind",
    "FileSessionStore",
    "Health",
    "HealthChanged",
    "InputNeeded",
    "InputNotGiven",
    "InvalidArguments",
    "InvalidResult",
    "Joined",
    "Left",
    "Log",
    "Member",
    "MemberState",
    "MemoryResultStore",
    "MemorySessionStore",
    "NotOffered",
    "NotPermitted",
    "Notice",
    "Observation",
    "Observer",
    "Progress",
    "Reloaded",
    "RemoteProtocolError",
    "Replaying",
    "ResultPart",
    "ResultStore",
    "ResultTooLarge",
    "Runtime",
    "SealBroken",
    "ServerGroup",
    "ServerSpec",
    "ServerStatus",
    "ServerUnavailable",
    "SessionRow",
    "SessionStore",
    "Started",
    "StaticKey",
    "StoreUnavailable",
    "StoredSession",
    "Timeouts",
    "Tool",
    "ToolkeepError",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "WrongLoop",
    "__version__",
    "browsing",
    "load",
    "reading",
]

_LAZY = {
    "Backoff": "toolkeep._rules.budget",
    "Call": "toolkeep._engine.call",
    "Catalogue": "toolkeep._catalogue.catalogue",
    "CatalogueChanged": "toolkeep._runtime.events",
    "Client": "toolkeep._engine.client",
    "Configuration": "toolkeep.config",
    "Dropped": "toolkeep._engine.group_terms",
    "EditRefused": "toolkeep._runtime.events",
    "Endpoint": "toolkeep._engine.endpoints",
    "Health": "toolkeep._rules.membership",
    "HealthChanged": "toolkeep._engine.group_terms",
    "Joined": "toolkeep._engine.group_terms",
    "Left": "toolkeep._engine.group_terms",
    "Member": "toolkeep._rules.membership",
    "MemberState": "toolkeep._rules.membership",
    "Observation": "toolkeep._engine.observing",
    "Reloaded": "toolkeep._runtime.events",
    "ResultPart": "toolkeep._runtime.oversized",
    "Runtime": "toolkeep.runtime",
    "ServerGroup": "toolkeep._engine.group",
    "ServerSpec": "toolkeep.config",
    "ServerStatus": "toolkeep._runtime.status",
    "TLS": "toolkeep.config",
    "Timeouts": "toolkeep.config",
    "Tool": "toolkeep._catalogue.tool",
    "browsing": "toolkeep._runtime.browsing",
    "reading": "toolkeep._runtime.reading",
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
