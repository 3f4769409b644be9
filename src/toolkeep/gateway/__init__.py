"""The gateway: a runtime as one MCP server."""

from __future__ import annotations

from toolkeep.gateway.access import (
    Access,
    AnyAccess,
    ApiKey,
    Caller,
    Denied,
    JwtAccess,
    KeyAccess,
    OpenAccess,
    access_for,
    hash_key,
    new_key,
)
from toolkeep.gateway.app import CLIENT_ANSWERS, Gateway
from toolkeep.gateway.audit import AuditEntry, AuditLog
from toolkeep.gateway.errors import ERRORS, RpcError
from toolkeep.gateway.metrics import Metrics
from toolkeep.gateway.profiles import Profile

__all__ = [
    "CLIENT_ANSWERS",
    "ERRORS",
    "Access",
    "AnyAccess",
    "ApiKey",
    "AuditEntry",
    "AuditLog",
    "Caller",
    "Denied",
    "Gateway",
    "JwtAccess",
    "KeyAccess",
    "Metrics",
    "OpenAccess",
    "Profile",
    "RpcError",
    "access_for",
    "hash_key",
    "new_key",
]
