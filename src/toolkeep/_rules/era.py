"""Which era does a server speak? What the answer to a `server/discover` probe says about it.

Only an answer can be a verdict. A 401, a 429, a 5xx or a network fault is an outage: taking it for
"legacy" would quietly downgrade a modern server for as long as the verdict is remembered.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any, cast

from toolkeep.errors import Failure, FailureKind

_OUTAGES = (
    FailureKind.UNREACHABLE,
    FailureKind.UNAUTHORIZED,
    FailureKind.THROTTLED,
    FailureKind.BROKEN,
)


class Era(enum.Enum):
    LEGACY = "legacy"
    """2024-11-05 to 2025-11-25: handshake and, over HTTP, sessions."""
    MODERN = "modern"
    """2026-07-28: no handshake, no sessions."""


class Verdict(enum.Enum):
    LEGACY = "legacy"
    OUTAGE = "outage"
    """No verdict: the probe's failure is the failure of the opening."""
    OTHER_VERSION = "other version"
    """Modern, at a version that the server named and we speak: ask again with that one."""
    STRANGER = "stranger"
    """Modern, at versions that we do not speak."""


def verdict(failure: Failure, *, modern: Collection[str], legacy: Collection[str]) -> Verdict:
    """What a failed probe says about the server."""
    if failure.kind in _OUTAGES:
        return Verdict.OUTAGE
    if failure.kind is not FailureKind.VERSION_MISMATCH:
        return Verdict.LEGACY
    supported = supported_versions(failure.data)
    if any(version in modern for version in supported):
        return Verdict.OTHER_VERSION
    if not supported or any(version in legacy for version in supported):
        return Verdict.LEGACY
    return Verdict.STRANGER


def supported_versions(data: object) -> tuple[str, ...]:
    """The versions that the data of a -32022 names, however carelessly."""
    if not isinstance(data, Mapping):
        return ()
    named = cast("Mapping[str, Any]", data).get("supported")
    if not isinstance(named, list):
        return ()
    return tuple(version for version in cast("list[Any]", named) if isinstance(version, str))


def probe_bound(connect_budget: float) -> float:
    """How long a probe may take: a server that ignores it must not cost the whole opening."""
    return min(3.0, connect_budget / 3)


def handshake_stands(method: str, status: int | None) -> bool:
    """Whether a notification that was answered by this status is no reason to give up.

    `notifications/initialized` needs no answer: a server that fails on it with a 5xx has agreed to
    a version already, and the next request tells whether the session works. A 4xx is a refusal.
    """
    return method == "notifications/initialized" and status is not None and status >= 500
