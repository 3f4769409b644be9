"""The audit stream: who did what through a gateway, and how it ended, as JSON lines.

An entry never holds arguments or results, unless arguments are asked for, and no credential in any
case. Recording never waits: a thread writes. When it cannot keep up, or the disk is full, entries
are dropped, counted, and the count is written as a line of its own as soon as lines can be written
again.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any, Literal, Protocol, TypeAlias

from toolkeep.config.gateway import Audit
from toolkeep.errors import ConfigError, Delivery, InvalidResult, ToolkeepError
from toolkeep.results import CallResult
from toolkeep.telemetry.logs import shown

__all__ = ["AuditEntry", "AuditLog", "Outcome", "call_outcome"]

logger = logging.getLogger("toolkeep.gateway")

Outcome: TypeAlias = Literal["ran", "tool error", "did not run", "unknown"]
"""Whether a request ran: with a result, with an error of the tool, not at all, or perhaps."""

MAX_ENTRIES, MAX_BYTES = 10_000, 8 * 1024 * 1024
"""Entries, and their bytes, that wait to be written."""
MAX_ARGUMENTS = 4096
"""Characters of the arguments of one call, as JSON."""
CLOSE_TIMEOUT = 5.0
"""Seconds that closing waits for the last entries to be written."""
RETRY_DELAY = 1.0
"""Seconds until writing is tried again after it failed."""
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One request that was served or refused."""

    principal: str | None
    method: str
    outcome: Outcome
    duration: float
    """Seconds."""
    profile: str = ""
    server: str = ""
    tool: str = ""
    request_id: str | int | None = None
    error: str = ""
    """The type of the error, without its text."""
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    """Recorded only by a log that asks for them."""
    time: float = field(default_factory=time)
    """When the request came (seconds since the epoch)."""


def call_outcome(ended: CallResult | BaseException) -> Outcome:
    """How a call ended, by its result or by what it raised."""
    match ended:
        case CallResult():
            return "tool error" if ended.is_error else "ran"
        case InvalidResult():
            return "ran"
        case ToolkeepError(delivery=Delivery.ANSWERED):
            return "tool error"
        case ToolkeepError(delivery=Delivery.NOT_SENT | Delivery.REFUSED):
            return "did not run"
        case _:  # also: it was cancelled, or the gateway failed
            return "unknown"


class Stream(Protocol):
    """A text stream, such as `sys.stderr`."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class AuditLog:
    """Appends entries to a file, or writes them to a text stream.

    The file is made with access for its owner only. When it was renamed or removed, as log rotation
    does, a new one is made. Several processes may append to one file. Used from one thread at a
    time; `close` writes what is left.
    """

    def __init__(self, sink: str | Path | Stream, arguments: bool = False) -> None:
        self.arguments = arguments
        """Whether arguments are recorded."""
        self._sink = _File(Path(sink)) if isinstance(sink, str | Path) else sink
        self._lines: deque[str] = deque()
        self._bytes, self._untold = 0, 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    @classmethod
    def of(cls, settings: Audit) -> AuditLog:
        return cls(sys.stderr if settings.file == "-" else settings.file, settings.arguments)

    def __repr__(self) -> str:
        return f"<AuditLog, {self._dropped} dropped>"

    @property
    def dropped(self) -> int:
        """How many entries were not written since the log was made."""
        return self._dropped

    def record(self, entry: AuditEntry) -> None:
        """Queue an entry. Never waits, never raises."""
        line = _line(entry, self.arguments)
        with self._changed:
            if self._closing or not self._has_room(line):
                self._drop(1)
                return
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                name = "toolkeep-audit"
                self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Write what is left, for at most five seconds, and close the file. Blocks: call it in a
        thread (`asyncio.to_thread`)."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT)
        with self._changed:
            if self._lines:
                self._drop(len(self._lines))
                self._lines.clear()
        is_writing = self._thread is not None and self._thread.is_alive()
        if isinstance(self._sink, _File) and not is_writing:
            self._sink.close()
        if self._untold:
            logger.warning("audit: %d entries were not written", self._untold)

    def _has_room(self, line: str) -> bool:
        return len(self._lines) < MAX_ENTRIES and self._bytes + len(line) <= MAX_BYTES

    def _drop(self, number: int) -> None:
        if not self._untold:
            logger.warning("audit: entries are dropped, because they cannot be written fast enough")
        self._dropped += number
        self._untold += number

    # -- in the thread ----------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._closing):
                    self._changed.wait()
                batch = [self._lines.popleft() for _ in range(min(_BATCH, len(self._lines)))]
                self._bytes -= sum(map(len, batch))
                untold, is_last_try = self._untold, self._closing
                if not batch and not untold:
                    return
            told = [_dropped_line(untold)] if untold else []
            if self._write([*batch, *told]):
                with self._changed:
                    self._untold -= untold
                continue
            self._lose(len(batch))
            if is_last_try:
                return

    def _write(self, batch: list[str]) -> bool:
        try:
            self._sink.write("".join(batch))
            self._sink.flush()
        except Exception as error:  # of a stream that may be the user's own
            what = getattr(error, "strerror", None) or type(error).__name__
            logger.warning("audit: %d entries cannot be written: %s", len(batch), what)
            return False
        return True

    def _lose(self, number: int) -> None:
        """Count a batch as dropped, since a part of it may have been written, and wait a little."""
        with self._changed:
            self._dropped += number
            self._untold += number
            self._changed.wait_for(lambda: self._closing, RETRY_DELAY)


class _File:
    """A file that is appended to. Whole batches are written at once, so that the lines of several
    processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._path, self._torn = path, False
        self._opened = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            return os.open(self._path, flags, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the audit file {self._path} cannot be opened: {error.strerror}",
                key="gateway.audit.file",
                remedy="Name a file in a directory that this user may write",
            ) from None

    def write(self, text: str) -> None:
        self._reopen_if_moved()
        # A line that was cut off by a full disk must not spoil the next one.
        content = ("\n" + text if self._torn else text).encode()
        written = os.write(self._opened, content)
        while written < len(content):
            self._torn = True
            written += os.write(self._opened, content[written:])
        self._torn = False

    def flush(self) -> None:
        """Do nothing: no buffer."""

    def close(self) -> None:
        os.close(self._opened)

    def _reopen_if_moved(self) -> None:
        try:
            found = os.stat(self._path)
            if os.path.samestat(found, os.fstat(self._opened)):
                return
        except FileNotFoundError:
            pass
        try:
            opened = self._open()
        except ConfigError as error:
            raise OSError(error.problem) from None
        os.close(self._opened)
        self._opened = opened


def _line(entry: AuditEntry, with_arguments: bool) -> str:
    facts: dict[str, Any] = {
        "time": round(entry.time, 3),
        "principal": None if entry.principal is None else shown(entry.principal),
        "profile": shown(entry.profile),
        "method": shown(entry.method),
        "server": shown(entry.server),
        "tool": shown(entry.tool),
        "outcome": entry.outcome,
        "duration": round(entry.duration, 6),
        "request_id": shown(str(entry.request_id)) if entry.request_id is not None else None,
        "error": entry.error,
    }
    kept = {name: value for name, value in facts.items() if value not in ("", None)}
    kept["principal"] = facts["principal"]
    if with_arguments and entry.arguments is not None:
        kept["arguments"] = _arguments(entry.arguments)
    return json.dumps(kept) + "\n"


def _arguments(given: Mapping[str, Any]) -> Any:
    """The arguments, or the beginning of their JSON if they are long."""
    try:
        text = json.dumps(given)
    except (TypeError, ValueError, RecursionError):
        return "cannot be written as JSON"
    return given if len(text) <= MAX_ARGUMENTS else f"{text[:MAX_ARGUMENTS]}…"


def _dropped_line(number: int) -> str:
    return json.dumps({"time": round(time(), 3), "dropped": number}) + "\n"
