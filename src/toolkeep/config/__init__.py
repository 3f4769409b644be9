"""Configuration: frozen models that are checked before anything is opened.

`load` reads it from wherever it is written; the rest is for those who look closer. What only
reading needs is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolkeep.config.redact import redact_url, secrets_of_url
from toolkeep.config.spec import TLS, ServerSpec, Timeouts

if TYPE_CHECKING:
    from toolkeep.config.approval import Approvals, FileApprovals, MemoryApprovals, approve
    from toolkeep.config.configuration import (
        Configuration,
        Difference,
        Origin,
        Pending,
        difference,
    )
    from toolkeep.config.functions import tool
    from toolkeep.config.loading import load
    from toolkeep.config.schemas import schema
    from toolkeep.config.watching import watch

__all__ = [
    "TLS",
    "Approvals",
    "Configuration",
    "Difference",
    "FileApprovals",
    "MemoryApprovals",
    "Origin",
    "Pending",
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
    "Configuration": "configuration",
    "Difference": "configuration",
    "FileApprovals": "approval",
    "MemoryApprovals": "approval",
    "Origin": "configuration",
    "Pending": "configuration",
    "approve": "approval",
    "difference": "configuration",
    "load": "loading",
    "schema": "schemas",
    "tool": "functions",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'toolkeep.config' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"toolkeep.config.{home}"), name)
    return value
