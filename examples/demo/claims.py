"""What the demo claims, and whether it is so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """Something told about an act, with what was promised and what was found."""

    told: str
    promised: object
    seen: object

    @property
    def holds(self) -> bool:
        return self.promised == self.seen


def verdict(claims: Sequence[Claim]) -> int:
    """The exit code: 0 if there were claims, and every one held."""
    return 0 if claims and all(claim.holds for claim in claims) else 1
