"""State that processes share: one small protocol, `Store`, and its drivers.

`open_store` makes a store from a URL: `memory:`, `sqlite:///path` or `redis://host`. `sealed` puts
encryption around any store. What redis and cryptography are needed for says so when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from toolkeep.errors import ConfigError, SealBroken, StoreUnavailable
from toolkeep.state.memory import MemoryStore
from toolkeep.state.redis import RedisStore
from toolkeep.state.sealed import SealedStore, sealed
from toolkeep.state.sqlite import SQLiteStore
from toolkeep.state.store import Entry, Lease, Store

__all__ = [
    "Entry",
    "Lease",
    "MemoryStore",
    "RedisStore",
    "SQLiteStore",
    "SealBroken",
    "SealedStore",
    "Store",
    "StoreUnavailable",
    "open_store",
    "sealed",
]

URLS = "Write memory:, sqlite:///path/to/file or redis://host:6379/0"


def open_store(url_or_store: str | Store, *, keys: Sequence[str | bytes] | None = None) -> Store:
    """The store of a URL, or the given one; with `keys` it is `sealed`.

    Everything is checked here (ConfigError), and nothing is opened before the first use.
    """
    store = _from_url(url_or_store) if isinstance(url_or_store, str) else _checked(url_or_store)
    return store if keys is None else sealed(store, keys)


def _checked(store: object) -> Store:
    if not isinstance(store, Store):
        kind = type(store).__name__
        raise ConfigError(f"a store is a URL or a Store, not {kind}", remedy=URLS)
    return store


def _from_url(url: str) -> Store:
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon:
        if rest.strip("/"):
            raise ConfigError("a store in memory has no name", remedy="Write memory:")
        return MemoryStore()
    if scheme == "sqlite" and colon:
        return SQLiteStore(_file(rest))
    if scheme.partition("+")[0] in ("redis", "rediss") and colon:
        return RedisStore(url)
    shown = repr(scheme) if colon else "a text without a scheme"
    raise ConfigError(f"no store is known by {shown}", remedy=URLS)


def _file(rest: str) -> Path:
    """The file of `sqlite:relative/path`, `sqlite:~/path` or `sqlite:///absolute/path`."""
    if "?" in rest or "#" in rest:
        raise ConfigError("the URL of a store in SQLite has no options", remedy=URLS)
    path = Path(unquote(rest.removeprefix("//")))
    if rest.startswith("//") and not path.is_absolute():
        raise ConfigError(
            "the URL of a store in SQLite names a host",
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
