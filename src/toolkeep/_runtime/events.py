"""What a runtime tells of itself, beside what its servers and calls tell."""

from __future__ import annotations

from dataclasses import dataclass

from toolkeep._catalogue.difference import Changes
from toolkeep.errors import ConfigError
from toolkeep.events import Event


@dataclass(frozen=True, kw_only=True, match_args=False)
class CatalogueChanged(Event):
    """What a server offers is not what it was, or can no longer be vouched for.

    It is about the catalogue that is shown to callers without identity. Lists of single principals
    are fetched anew when they are needed; nobody is told of their changes.
    """

    revision: int
    """Of the catalogue, after the change."""
    changes: Changes
    stale: bool
    """Whether the server is out of reach, and what is shown is what it last said."""

    __match_args__ = ("changes",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class Reloaded(Event):
    """An edit of the configuration was applied."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, match_args=False)
class EditRefused(Event):
    """An edit of the configuration cannot be read, or not be applied; what was there stays."""

    error: ConfigError

    __match_args__ = ("error",)
