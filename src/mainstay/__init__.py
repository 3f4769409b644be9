"""mainstay: MCP tools that an agent can depend on.

`import mainstay` and `from mainstay import Client` load neither the SDK nor the HTTP library; what
is heavy comes with its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mainstay._rules.classify import SessionRow
from mainstay._version import __version__
from mainstay.auth import Authorizer, StaticKey
from mainstay.context import CallContext
from mainstay.errors import (
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
    MainstayError,
    NotOffered,
    NotPermitted,
    RemoteProtocolError,
    ResultTooLarge,
    ServerUnavailable,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTool,
    WrongLoop,
)
from mainstay.events import (
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
from mainstay.results import CallResult
from mainstay.stores import FileSessionStore, MemorySessionStore, SessionStore, StoredSession
from mainstay.stores.results import MemoryResultStore, ResultStore

if TYPE_CHECKING:
    from mainstay._catalogue.catalogue import Catalogue
    from mainstay._catalogue.tool import Tool
    from mainstay._engine.call import Call
    from mainstay._engine.client import Client
    from mainstay._engine.endpoints import Endpoint
    from mainstay._engine.group import ServerGroup
    from mainstay._engine.group_terms import Dropped, HealthChanged, Joined, Left
    from mainstay._engine.observing import Observation
    from mainstay._rules.budget import Backoff
    from mainstay._rules.membership import Health, Member, MemberState
    from mainstay._runtime.browsing import browsing
    from mainstay._runtime.events import CatalogueChanged, EditRefused, Reloaded
    from mainstay._runtime.oversized import ResultPart
    from mainstay._runtime.reading import reading
    from mainstay._runtime.status import ServerStatus
    from mainstay.config import TLS, Configuration, ServerSpec, Timeouts, load
    from mainstay.runtime import Runtime

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
    "MainstayError",
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
    "ServerGroup",
    "ServerSpec",
    "ServerStatus",
    "ServerUnavailable",
    "SessionRow",
    "SessionStore",
    "Started",
    "StaticKey",
    "StoredSession",
    "Timeouts",
    "Tool",
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
    "Backoff": "mainstay._rules.budget",
    "Call": "mainstay._engine.call",
    "Catalogue": "mainstay._catalogue.catalogue",
    "CatalogueChanged": "mainstay._runtime.events",
    "Client": "mainstay._engine.client",
    "Configuration": "mainstay.config",
    "Dropped": "mainstay._engine.group_terms",
    "EditRefused": "mainstay._runtime.events",
    "Endpoint": "mainstay._engine.endpoints",
    "Health": "mainstay._rules.membership",
    "HealthChanged": "mainstay._engine.group_terms",
    "Joined": "mainstay._engine.group_terms",
    "Left": "mainstay._engine.group_terms",
    "Member": "mainstay._rules.membership",
    "MemberState": "mainstay._rules.membership",
    "Observation": "mainstay._engine.observing",
    "Reloaded": "mainstay._runtime.events",
    "ResultPart": "mainstay._runtime.oversized",
    "Runtime": "mainstay.runtime",
    "ServerGroup": "mainstay._engine.group",
    "ServerSpec": "mainstay.config",
    "ServerStatus": "mainstay._runtime.status",
    "TLS": "mainstay.config",
    "Timeouts": "mainstay.config",
    "Tool": "mainstay._catalogue.tool",
    "browsing": "mainstay._runtime.browsing",
    "reading": "mainstay._runtime.reading",
    "load": "mainstay.config",
}


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'mainstay' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
