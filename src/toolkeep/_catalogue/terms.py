"""What all suppliers of one runtime have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkeep._engine.setup import Setup

if TYPE_CHECKING:
    from toolkeep._catalogue.supplier import Supplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Settled when the runtime is made."""

    setup: Setup
    answers: Mapping[str, Any]
    live: bool
    """Whether to hear of changes, which over HTTP takes a stream for each server."""
    changed: Callable[[Supplier], None]
    """Told when the stock is another one."""
