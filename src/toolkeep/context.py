"""`CallContext`: the identity and correlation ids of a call.

A task passes one context unchanged to every call it makes. Only `headers`, and the ids that a
server's `derived_headers` ask for, leave the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toolkeep.errors import ConfigError

__all__ = ["CallContext"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _empty() -> Mapping[str, Any]:
    return _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The identity and the ids of a call. Immutable; make another one with
    `dataclasses.replace`."""

    principal: str | None = None
    """For whom the call is made. Principals never share a session. None: the headers identify the
    caller."""
    user_id: str | None = None
    """Not an identity: set `principal` for that. Sent where `derived_headers` asks for it."""
    session_id: str | None = None
    execution_id: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=_empty, repr=False)
    """Sent with every call over HTTP. Values are treated as secrets."""
    metadata: Mapping[str, Any] = field(default_factory=_empty, repr=False)
    """For filters, permissions and input handlers. Never sent."""

    def __post_init__(self) -> None:
        for key in ("principal", "user_id", "session_id", "execution_id", "trace_id"):
            value: object = getattr(self, key)
            if value is not None and not (isinstance(value, str) and value):
                remedy = "Give a text, or None"
                raise ConfigError("it must be a text that is not empty", key=key, remedy=remedy)
        for key in ("headers", "metadata"):
            if not isinstance(getattr(self, key), Mapping):
                raise ConfigError("it must be a mapping", key=key, remedy="Give a dict")
