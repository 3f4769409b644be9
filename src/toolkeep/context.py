"""On whose behalf a call is made, and as part of what.

A `CallContext` is what a task hands on unchanged to every call that it makes. Only `headers`, and
those of the ids that a server's configuration asks for (`derived_headers`), ever leave the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toolkeep.errors import ConfigError

__all__ = ["CallContext"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Frozen; make another one with `dataclasses.replace`."""

    principal: str | None = None
    """For whom. Sessions are never shared between principals; None: told apart by the headers."""
    user_id: str | None = None
    """No identity by itself: name the principal. Sent where `derived_headers` asks for it."""
    session_id: str | None = None
    execution_id: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    """Sent with every call of the task, where there is HTTP. Values are treated as secrets."""
    metadata: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    """For filters, permissions and answers to questions. Never sent."""

    def __post_init__(self) -> None:
        for key in ("principal", "user_id", "session_id", "execution_id", "trace_id"):
            value: object = getattr(self, key)
            if value is not None and not (isinstance(value, str) and value):
                remedy = "Give a text, or None for nobody in particular"
                raise ConfigError("it is no text, or an empty one", key=key, remedy=remedy)
        for key in ("headers", "metadata"):
            if not isinstance(getattr(self, key), Mapping):
                raise ConfigError("it is no mapping", key=key, remedy="Give a dict")
