"""Small private files: read with suspicion, written whole, one process at a time.

Knows nothing of what they hold. What others than the owner could read or have written is
`Unusable`; that a file is missing or the disk full stays the OSError that it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

LARGEST = 4 * 1024 * 1024
"""Bytes of one record. A handshake has a few thousand, or more if its instructions are long."""

_PATIENCE, _PAUSE = 2.0, 0.002
"""Seconds to wait for other processes, and between attempts. None needs a millisecond."""

_CAREFULLY = 0 if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK
"""No link is followed, and a pipe that lies in the way is no reason to wait."""

_NOT_OURS = (errno.ELOOP, errno.EMLINK, errno.EACCES, errno.EPERM, errno.ENXIO)
"""What opening a link (EMLINK on FreeBSD), a foreign file or a socket says."""


class Unusable(ValueError):
    """What is kept cannot be believed. The text quotes nothing of it."""


def content(path: Path) -> bytes:
    try:
        opened = os.open(path, os.O_RDONLY | _CAREFULLY)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise Unusable("it is not a file that we may open") from None
        raise
    try:
        found = os.fstat(opened)
        doubt = doubt_about(found, stat.S_ISREG)
        if doubt or found.st_size > LARGEST:
            raise Unusable(doubt or "it is too large")
        with open(opened, "rb", closefd=False) as file:
            return file.read(found.st_size)
    finally:
        os.close(opened)


def doubt_about(found: os.stat_result, is_expected: Callable[[int], bool]) -> str:
    """Why this file or directory is not believed; empty if it is."""
    if not is_expected(found.st_mode):
        return "it is of another kind than we make"
    if sys.platform != "win32":  # there, access follows from the directory's, not from a mode
        if found.st_uid != os.geteuid():
            return "it belongs to another user"
        if found.st_mode & 0o077:
            return "others than its owner have access to it"
    return ""


def make_private(directory: Path) -> None:
    if not directory.parent.exists():
        make_private(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)


def write(path: Path, record: bytes) -> None:
    # Always the same name: only one process writes at a time, and what a killed one has left
    # behind goes with the next save.
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        created = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o600)
        with open(created, "wb") as file:
            file.write(record)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """One process, and one thread in it, at a time. The system unlocks for a process that died."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | _CAREFULLY, 0o600)
    try:
        _wait_for(opened, path)
        try:
            yield
        finally:
            # Closing alone would leave it locked by a child that was forked in the meantime.
            _unlock(opened)
    finally:
        os.close(opened)


def _wait_for(opened: int, path: Path) -> None:
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return _lock(opened)
        except (BlockingIOError, PermissionError):  # the latter on Windows
            if time.monotonic() > give_up:
                raise TimeoutError(f"{path} was locked for {_PATIENCE:g} s") from None
        time.sleep(_PAUSE)


if sys.platform == "win32":
    import msvcrt

    def _lock(opened: int) -> None:
        msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)

    def _unlock(opened: int) -> None:
        msvcrt.locking(opened, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(opened: int) -> None:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(opened: int) -> None:
        fcntl.flock(opened, fcntl.LOCK_UN)
