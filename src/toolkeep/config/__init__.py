"""Configuration of servers: load it, check it, watch it, approve programs.

The models are imported at once; everything that only loading needs is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolkeep.config.auth import Auth
from toolkeep.config.redact import redact_url, secrets_of_url
from toolkeep.config.spec import TLS, Egress, ServerSpec, Timeouts

if TYPE_CHECKING:
    from toolkeep.config.approval import Approvals, FileApprovals, MemoryApprovals, approve
    from toolkeep.config.functions import tool
    from toolkeep.config.loader import load
    from toolkeep.config.schemas import schema
    from toolkeep.config.spec import Configuration, Difference, Origin, PendingApproval, difference
    from toolkeep.config.watcher import watch

__all__ = [
    "TLS",
    "Approvals",
    "Auth",
    "Configuration",
    "Difference",
    "Egress",
    "FileApprovals",
    "MemoryApprovals",
    "Origin",
    "PendingApproval",
    "ServerSpec",
    "Timeouts",
    "approve",
    "difference",
    "load",
    "redact_url",
    "schema",
    "secrets_of_url",
    "tool",
    "watch",
]

_LAZY = {
    "Approvals": "approval",
    "Configuration": "spec",
    "Difference": "spec",
    "FileApprovals": "approval",
    "MemoryApprovals": "approval",
    "Origin": "spec",
    "PendingApproval": "spec",
    "approve": "approval",
    "difference": "spec",
    "load": "loader",
    "schema": "schemas",
    "tool": "functions",
    "watch": "watcher",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'toolkeep.config' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"toolkeep.config.{module}"), name)
    return value
