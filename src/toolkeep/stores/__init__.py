"""Where sessions are kept, so that another client or another process can go on with them.

A session id is a credential: whoever holds it speaks for the session. It stands in no repr, no log
and no error; on disk only its owner can read it, and what others can read or could have written is
not believed. A store compares and sets: of several who replace the same session exactly one wins.
It never decides whether a session may be resumed; that is the engine's, by `binding`.

Both stores keep a session as the same JSON, so that what one of them takes the other takes too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from toolkeep._files import (
    LARGEST,
    Unusable,
    content,
    doubt_about,
    locked,
    make_private,
    write,
)

__all__ = ["FileSessionStore", "MemorySessionStore", "SessionStore", "StoredSession"]

logger = logging.getLogger("toolkeep.stores")

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class StoredSession:
    """A session, with all that is needed to go on without a handshake."""

    session_id: str = field(repr=False)
    handshake: Mapping[str, Any]
    """The server's InitializeResult, as it came."""
    binding: str = field(repr=False)
    """Whose session it is, and at which address: a digest that the engine makes and compares."""
    saved_at: float
    """Seconds since the epoch."""


@runtime_checkable
class SessionStore(Protocol):
    """Keeps at most one session for each server and principal.

    May raise OSError (ValueError for what cannot be kept): the engine then goes on without it. A
    cancelled `save` or `drop` may still happen.
    """

    async def load(self, server: str, principal: str | None) -> StoredSession | None:
        """The session that is kept, if there is one."""
        ...

    async def save(
        self, server: str, principal: str | None, session: StoredSession, *, replacing: str | None
    ) -> bool:
        """Keep `session` if the one kept now has the session id `replacing` (None: if none is
        kept). False: somebody else was faster; nothing was changed."""
        ...

    async def drop(self, server: str, principal: str | None, session_id: str) -> bool:
        """Forget the session, if it is still the one that is kept."""
        ...


class MemorySessionStore:
    """For several clients of one process, in any of its event loops and threads."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str | None], bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MemorySessionStore of {len(self._records)}>"

    async def load(self, server: str, principal: str | None) -> StoredSession | None:
        record = self._records.get((server, principal))
        return None if record is None else _decoded(record)

    async def save(
        self, server: str, principal: str | None, session: StoredSession, *, replacing: str | None
    ) -> bool:
        return self._replace((server, principal), replacing, _encoded(session))

    async def drop(self, server: str, principal: str | None, session_id: str) -> bool:
        return self._replace((server, principal), session_id, None)

    def _replace(self, key: tuple[str, str | None], old: str | None, new: bytes | None) -> bool:
        with self._lock:
            kept = self._records.get(key)
            if (None if kept is None else _decoded(kept).session_id) != old:
                return False
            if new is None:
                del self._records[key]
            else:
                self._records[key] = new
            return True


class FileSessionStore:
    """For several processes of one user: a file for each server and principal in `directory`.

    The directory is made when something is first saved, and must be its owner's alone. Otherwise
    nothing in it is read and nothing is saved there: `load` finds None, `save` and `drop` say
    False, and a warning says why, once. So for a single file; `save` replaces it. Waiting for
    another process ends with a TimeoutError.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory).expanduser().absolute()
        self._warned: set[Path] = set()

    def __repr__(self) -> str:
        return f"FileSessionStore({str(self._directory)!r})"

    async def load(self, server: str, principal: str | None) -> StoredSession | None:
        return await asyncio.to_thread(self._load, self._path(server, principal))

    async def save(
        self, server: str, principal: str | None, session: StoredSession, *, replacing: str | None
    ) -> bool:
        path, record = self._path(server, principal), _encoded(session)
        return await asyncio.to_thread(self._replace, path, replacing, record)

    async def drop(self, server: str, principal: str | None, session_id: str) -> bool:
        path = self._path(server, principal)
        return await asyncio.to_thread(self._replace, path, session_id, None)

    def _path(self, server: str, principal: str | None) -> Path:
        # Encoded before it is hashed: ("a", "b") is not ("ab", ""), and None is not "".
        owner = json.dumps([server, principal]).encode()
        return self._directory / f"{hashlib.sha256(owner).hexdigest()}.json"

    def _load(self, path: Path) -> StoredSession | None:
        if not self._directory_is_private():
            return None
        # A reader needs no lock to see whole records, but Windows replaces no file that is open.
        with locked(self._directory / "lock"):
            return self._read(path)

    def _replace(self, path: Path, old: str | None, new: bytes | None) -> bool:
        if new is not None:
            make_private(self._directory)
        if not self._directory_is_private():
            return False
        with locked(self._directory / "lock"):
            kept = self._read(path)
            if (None if kept is None else kept.session_id) != old:
                return False
            if new is None:
                path.unlink()
            else:
                write(path, new)
        self._warned.discard(path)
        return True

    def _directory_is_private(self) -> bool:
        try:
            found = os.lstat(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        doubt = doubt_about(found, stat.S_ISDIR)
        if doubt:
            self._warn(self._directory, doubt)
        return not doubt

    def _read(self, path: Path) -> StoredSession | None:
        try:
            return _decoded(content(path))
        except FileNotFoundError:
            return None
        except Unusable as problem:
            self._warn(path, str(problem))
            return None

    def _warn(self, path: Path, problem: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            logger.warning("%s is not used for sessions: %s", path, problem)


def _encoded(session: StoredSession) -> bytes:
    fields = {
        "format": _FORMAT,
        "session_id": session.session_id,
        "handshake": dict(session.handshake),
        "binding": session.binding,
        "saved_at": float(session.saved_at),
    }
    record = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
    if len(record) > LARGEST:
        raise ValueError(f"a session of {len(record)} bytes is too large to keep")
    return record


def _decoded(record: bytes) -> StoredSession:
    try:
        found: Any = json.loads(record)
    except (ValueError, RecursionError):
        # Without its cause: a JSONDecodeError carries the whole text.
        raise Unusable("it is not JSON") from None
    match found:
        case {
            "format": int(version),
            "session_id": str(session_id),
            "handshake": dict(),
            "binding": str(binding),
            "saved_at": float(saved_at),
        } if version == _FORMAT and math.isfinite(saved_at):
            return StoredSession(
                session_id=session_id,
                handshake=found["handshake"],
                binding=binding,
                saved_at=saved_at,
            )
        case _:
            raise Unusable("it is not a session that this version has saved")
