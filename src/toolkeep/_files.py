"""Small private files: owner-only access, atomic writes, one writer at a time.

A file that other users could read or write raises `UntrustedFile`. A missing file or a full
disk stays the `OSError` it is. The module does not know what the files contain.
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

MAX_RECORD_BYTES = 4 * 1024 * 1024
"""Size limit of one record. A stored handshake has a few thousand bytes, more with long
instructions."""

_LOCK_TIMEOUT, _LOCK_POLL_INTERVAL = 2.0, 0.002
"""Seconds to wait for a lock, and between attempts. Writers hold it for less than a millisecond."""

_SAFE_OPEN_FLAGS = 0 if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK
"""Do not follow a symbolic link, and do not block on a named pipe at the file's path."""

_REFUSED_ERRNOS = (errno.ELOOP, errno.EMLINK, errno.EACCES, errno.EPERM, errno.ENXIO)
"""Errors of opening a symbolic link (EMLINK on FreeBSD), another user's file or a socket."""


class UntrustedFile(ValueError):
    """The file cannot be trusted. The message quotes nothing of its content."""


def read_private(path: Path) -> bytes:
    """The file's content. Raises `UntrustedFile` if another user could have written it."""
    try:
        opened = os.open(path, os.O_RDONLY | _SAFE_OPEN_FLAGS)
    except OSError as error:
        if error.errno in _REFUSED_ERRNOS:
            raise UntrustedFile("it is not a regular file that this user may open") from None
        raise
    try:
        found = os.fstat(opened)
        reason = distrust_reason(found, stat.S_ISREG)
        if reason or found.st_size > MAX_RECORD_BYTES:
            raise UntrustedFile(reason or f"it is larger than {MAX_RECORD_BYTES} bytes")
        with open(opened, "rb", closefd=False) as file:
            return file.read(found.st_size)
    finally:
        os.close(opened)


def distrust_reason(found: os.stat_result, is_expected: Callable[[int], bool]) -> str:
    """Why this file or directory cannot be trusted; empty if it can."""
    if not is_expected(found.st_mode):
        return "it has the wrong file type"
    if sys.platform != "win32":  # Windows inherits access from the directory and has no mode
        if found.st_uid != os.geteuid():
            return "it belongs to another user"
        if found.st_mode & 0o077:
            return "others than its owner have access to it"
    return ""


def make_private_directory(directory: Path) -> None:
    """Create the directory and its missing parents, with access for this user only."""
    if not directory.parent.exists():
        make_private_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)


def write_private(path: Path, record: bytes) -> None:
    """Replace the file's content atomically. The caller holds the lock (`locked`)."""
    # A fixed name: one process writes at a time, and the next write removes what a killed
    # process left behind.
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        created = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_OPEN_FLAGS, 0o600)
        with open(created, "wb") as file:
            file.write(record)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock on the file: one thread of one process at a time.

    The system releases the lock of a process that died. Raises `TimeoutError`.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE_OPEN_FLAGS, 0o600)
    try:
        _acquire_lock(opened, path)
        try:
            yield
        finally:
            # Closing alone would leave the lock with a child process forked in the meantime.
            _unlock(opened)
    finally:
        os.close(opened)


def _acquire_lock(opened: int, path: Path) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return _lock(opened)
        except (BlockingIOError, PermissionError):  # the latter on Windows
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was locked for {_LOCK_TIMEOUT:g} s") from None
        time.sleep(_LOCK_POLL_INTERVAL)


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
