"""Configuration: frozen models that are checked before anything is opened.

`load` reads it from wherever it is written; the rest is for those who look closer. What only
reading needs is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mainstay.config.redact import redact_url, secrets_of_url
from mainstay.config.spec import TLS, ServerSpec, Timeouts

if TYPE_CHECKING:
    from mainstay.config.approval import Approvals, FileApprovals, MemoryApprovals, approve
    from mainstay.config.configuration import (
        Configuration,
        Difference,
        Origin,
        Pending,
        difference,
    )
    from mainstay.config.functions import tool
    from mainstay.config.loading import load
    from mainstay.config.schemas import schema
    from mainstay.config.watching import watch

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
        raise AttributeError(f"module 'mainstay.config' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"mainstay.config.{home}"), name)
    return value
