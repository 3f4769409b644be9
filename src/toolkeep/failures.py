"""The vocabulary of failure: how far a request got, what went wrong, and the evidence.

This module imports nothing of toolkeep: everything else stands on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["Delivery", "Failure", "FailureKind"]


class Delivery(enum.Enum):
    """How far a request got. The order is the order of regret: see `worst`."""

    NOT_SENT = "not sent"
    """No byte of it was written."""
    REFUSED = "refused"
    """It arrived, and was turned away before it could run."""
    ANSWERED = "answered"
    """The server answered this very request."""
    UNKNOWN = "unknown"
    """It may have run."""

    @staticmethod
    def worst(first: Delivery, second: Delivery) -> Delivery:
        """What is true of a call after two attempts: a later refusal hides no earlier doubt."""
        return max(first, second, key=_REGRET.index)


_REGRET = (Delivery.NOT_SENT, Delivery.REFUSED, Delivery.ANSWERED, Delivery.UNKNOWN)


class FailureKind(enum.Enum):
    """The rows of the recovery table (`toolkeep._rules.recovery`)."""

    UNREACHABLE = "unreachable"
    """Name lookup, connection or TLS failed: nothing was written."""
    EXITED = "exited"
    """The server's process ended before it was ready: starting it again would do the same."""
    SESSION_LOST = "session lost"
    """The server does not know the session that the request carried."""
    SESSION_DOUBTED = "session in doubt"
    """A JSON-RPC error answered the request in words that may mean a lost session. The call was
    answered; the session is checked, and replaced if it is gone."""
    UNAUTHORIZED = "unauthorized"
    """401 or 403."""
    THROTTLED = "throttled"
    """429, or 503 with Retry-After."""
    REFUSED = "refused"
    """A 4xx that is said before anything is done (400, 404, 413, 422 …), with no JSON-RPC body."""
    UNREADABLE = "unreadable"
    """An answer that is not one: foreign redirect, wrong content type, broken or oversized body."""
    BROKEN = "broken"
    """The connection or a gateway failed after the request may have been read."""
    REJECTED = "rejected"
    """A JSON-RPC error answered the request."""
    HEADER_MISMATCH = "header mismatch"
    """-32020: the tool's header annotations changed; list again and send again."""
    VERSION_MISMATCH = "version mismatch"
    """-32022: negotiate again."""


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, classified. Frozen evidence: safe to keep, log and compare."""

    kind: FailureKind
    delivery: Delivery
    message: str
    status: int | None = None
    code: int | None = None
    data: Any = None
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS, repr=False)
    """Retry-After and WWW-Authenticate, as the server sent them."""
    exit_code: int | None = None
    """How the server's process ended; negative: by that signal."""
    stderr: str = field(default="", repr=False)
    """The last words of the server's process."""
    row: str = ""
    """The row of the classification table that matched, with its source."""

    def __str__(self) -> str:
        facts = [self.kind.value]
        if self.status is not None:
            facts.append(f"HTTP {self.status}")
        if self.code is not None:
            facts.append(f"code {self.code}")
        if self.exit_code is not None:
            facts.append(f"exit code {self.exit_code}")
        # The rest is on `stderr`; here it would fill logs, and contexts of models.
        last = self.stderr.strip().rpartition("\n")[2][-300:]
        said = f"; its last words: {last}" if last else ""
        return f"{', '.join(facts)}: {self.message}{said}"
