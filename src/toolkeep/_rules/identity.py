"""On whose behalf a call is made, as far as sessions are concerned.

A named principal is who it says it is: whatever headers its calls carry, they are its own, and a
rotated token changes nothing. Without a name, every header that a call, a task or its context
brings is identity, unless it is neutral. The headers of an identity go with its handshakes, its
streams and the end of its session, too; what belongs to a single call never does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from toolkeep._rules import headers as header_rules

__all__ = ["CREDENTIALS", "Identity", "identify"]

CREDENTIALS = ("authorization", "proxy-authorization", "cookie")
"""Headers that change while the principal stays the same."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Equal identities may share a session."""

    key: str = field(repr=False)
    principal: str | None = field(default=None, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, compare=False)
    """Those that go with whatever is sent for it."""

    def __str__(self) -> str:
        return self.principal or f"anonymous-{self.key[-8:]}"


def identify(
    principal: str | None,
    *,
    call: Mapping[str, str],
    task: Mapping[str, str],
    neutral: Collection[str] = (),
) -> Identity | None:
    """Whose call it is; None: nobody's in particular. `task`: the headers of the task, and those
    that are derived from it. All are checked, with lower-case names."""
    if principal is not None:
        own = header_rules.identity(task, neutral)
        own.update((name, call[name]) for name in CREDENTIALS if name in call)
        return Identity(f"principal:{principal}", principal, own)
    if not call and not task:
        return None
    own = header_rules.identity(header_rules.merge(call, task), neutral)
    if not own:
        return None
    digest = hashlib.sha256(json.dumps(sorted(own.items())).encode()).hexdigest()
    return Identity(f"headers:{digest}", None, own)
