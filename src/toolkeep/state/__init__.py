"""State that processes share: the `Store` protocol and its drivers.

`open_store` makes a store from a URL: `memory:`, `sqlite:///path` or `redis://host`. `sealed` adds
encryption to any store. `RedisStore` needs the package redis, `sealed` the package cryptography:
they raise ConfigError when they are made without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from toolkeep.errors import ConfigError, SealBroken, StoreUnavailable
from toolkeep.state.sealed import SealedStore, sealed
from toolkeep.state.store import Entry, Lease, Store

if TYPE_CHECKING:
    from toolkeep.state.memory import MemoryStore
    from toolkeep.state.redis import RedisStore
    from toolkeep.state.shared import StateStatus
    from toolkeep.state.sqlite import SQLiteStore

__all__ = [
    "Entry",
    "Lease",
    "MemoryStore",
    "RedisStore",
    "SQLiteStore",
    "SealBroken",
    "SealedStore",
    "StateStatus",
    "Store",
    "StoreUnavailable",
    "open_store",
    "sealed",
]

_DRIVERS = {
    "MemoryStore": "memory",
    "RedisStore": "redis",
    "SQLiteStore": "sqlite",
    "StateStatus": "shared",
}
"""Loaded when first used: most clients share nothing."""

URLS = "Write memory:, sqlite:///path/to/file or redis://host:6379/0"


def __getattr__(name: str) -> Any:
    if name not in _DRIVERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_DRIVERS[name]}"), name)


def open_store(url_or_store: str | Store, *, keys: Sequence[str | bytes] | None = None) -> Store:
    """The store for a URL, or the given store; with `keys`, encrypted by `sealed`.

    Checks its arguments now (ConfigError); connects and opens files at the first use.
    """
    store = _from_url(url_or_store) if isinstance(url_or_store, str) else _checked(url_or_store)
    return store if keys is None else sealed(store, keys)


def _checked(store: object) -> Store:
    if not isinstance(store, Store):
        kind = type(store).__name__
        raise ConfigError(f"a store must be a URL or a Store, not {kind}", remedy=URLS)
    return store


def _from_url(url: str) -> Store:
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon:
        if rest.strip("/"):
            raise ConfigError("the URL memory: takes no name", remedy="Write memory:")
        from toolkeep.state.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite" and colon:
        from toolkeep.state.sqlite import SQLiteStore

        return SQLiteStore(_file(rest))
    if scheme.partition("+")[0] in ("redis", "rediss") and colon:
        from toolkeep.state.redis import RedisStore

        return RedisStore(url)
    problem = f"has the unknown scheme {scheme!r}" if colon else "has no scheme"
    raise ConfigError(f"the URL of the store {problem}", remedy=URLS)


def _file(rest: str) -> Path:
    """The file of `sqlite:relative/path`, `sqlite:~/path` or `sqlite:///absolute/path`."""
    if "?" in rest or "#" in rest:
        raise ConfigError("the URL of an SQLite store takes no options", remedy=URLS)
    path = Path(unquote(rest.removeprefix("//")))
    if rest.startswith("//") and not path.is_absolute():
        raise ConfigError(
            "the URL of an SQLite store names a host",
            remedy="Write sqlite:///absolute/path, or sqlite:path for the working directory",
        )
    if path.name in ("", "..", ":memory:"):
        raise ConfigError("the URL of the store names no file", remedy=URLS)
    if path.is_absolute() and len(path.parts) == 2:
        raise ConfigError(
            f"the URL of the store names {path}, in the root directory",
            remedy=f"Write sqlite:{path.name} for a file in the working directory",
        )
    return path
