"""mainstay: MCP tools that an agent can depend on. So far: servers, one or many, however they are
reached.

`import mainstay` and `from mainstay import Client` load neither the SDK nor the HTTP library; what
is heavy comes with its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mainstay._rules.classify import SessionRow
from mainstay._version import __version__
from mainstay.auth import Authorizer, StaticKey
from mainstay.errors import (
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
    NotPermitted,
    RemoteProtocolError,
    ServerUnavailable,
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

if TYPE_CHECKING:
    from mainstay._engine.call import Call
    from mainstay._engine.client import Client
    from mainstay._engine.group import ServerGroup
    from mainstay._engine.group_terms import Dropped, HealthChanged, Joined, Left
    from mainstay._engine.observing import Observation
    from mainstay._rules.budget import Backoff
    from mainstay._rules.membership import Health, Member, MemberState
    from mainstay.config import TLS, Configuration, ServerSpec, Timeouts, load

__all__ = [
    "TLS",
    "AuthNeeded",
    "Authorizer",
    "Backoff",
    "Call",
    "CallError",
    "CallEvent",
    "CallNotDelivered",
    "CallNotSentInTime",
    "CallOutcomeUnknown",
    "CallRejected",
    "CallResult",
    "CallTimedOut",
    "Changed",
    "Client",
    "Completed",
    "ConfigError",
    "Configuration",
    "Connected",
    "Delivery",
    "Disconnected",
    "Dropped",
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
    "MemorySessionStore",
    "NotPermitted",
    "Notice",
    "Observation",
    "Observer",
    "Progress",
    "RemoteProtocolError",
    "Replaying",
    "ServerGroup",
    "ServerSpec",
    "ServerUnavailable",
    "SessionRow",
    "SessionStore",
    "Started",
    "StaticKey",
    "StoredSession",
    "Timeouts",
    "UnknownServer",
    "UnknownTool",
    "WrongLoop",
    "__version__",
    "load",
]

_LAZY = {
    "Backoff": "mainstay._rules.budget",
    "Configuration": "mainstay.config",
    "Dropped": "mainstay._engine.group_terms",
    "Health": "mainstay._rules.membership",
    "HealthChanged": "mainstay._engine.group_terms",
    "Joined": "mainstay._engine.group_terms",
    "Left": "mainstay._engine.group_terms",
    "Member": "mainstay._rules.membership",
    "MemberState": "mainstay._rules.membership",
    "ServerGroup": "mainstay._engine.group",
    "load": "mainstay.config",
    "Call": "mainstay._engine.call",
    "Client": "mainstay._engine.client",
    "Observation": "mainstay._engine.observing",
    "ServerSpec": "mainstay.config",
    "TLS": "mainstay.config",
    "Timeouts": "mainstay.config",
}


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'mainstay' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
