"""`SQLiteStore`: a store for one machine, in an SQLite file that processes of one user share.

One connection in one thread serves the operations of a store; each is one transaction. Only the
owner may access the file and its directory. Messages are rows for which each store polls.

Times are wall-clock times, because the file outlives a reboot. Setting the clock back extends a
ttl, by that ttl at most. Setting it forward ends leases early: use the fencing tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from toolkeep._files import distrust_reason, make_private_directory
from toolkeep._rules.limits import take_tokens
from toolkeep.state.memory import Channels
from toolkeep.state.store import (
    TIMEOUT,
    Entry,
    Lease,
    StoreUnavailable,
    check_append,
    check_lease,
    check_message,
    check_name,
    check_put,
    check_read,
    check_take,
    check_version,
)

__all__ = ["SQLiteStore"]

T = TypeVar("T")

APPLICATION, SCHEMA = 0x746B6570, 1
"""`application_id` ("tkep") and `user_version` of the file."""

TABLES = """
CREATE TABLE cells (kind TEXT, name TEXT, content BLOB, version INTEGER, until REAL, ttl REAL);
CREATE UNIQUE INDEX cells_name ON cells (kind, name);
CREATE INDEX cells_until ON cells (until) WHERE until IS NOT NULL;
CREATE TABLE entries (log TEXT, position INTEGER, entry BLOB, PRIMARY KEY (log, position));
CREATE TABLE messages
  (number INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT, message BLOB, origin BLOB, at REAL);
CREATE TABLE clock (last INTEGER);
INSERT INTO clock VALUES (0);
"""
"""`cells`: values, leases, buckets (only `until`: when it is full again) and the expiry of logs.
`clock`: the greatest version, token or position in use, so that none is used twice."""

LOCK_PAUSE = 0.001
"""Seconds between attempts to get the write lock. SQLite's own busy handler sleeps up to 100 ms;
with eight writers, some waited longer than the timeout."""

POLL_INTERVAL = 0.04
"""Seconds between polls for messages of other processes."""

MESSAGE_TTL, MAX_MESSAGES = 10.0, 10_000
"""Seconds that a message is kept, and how many are kept at most."""

SWEEP_INTERVAL, SWEEP_ROWS = 5.0, 500
"""Seconds between sweeps by one process, and the expired rows that one sweep deletes."""

MAX_QUEUED = 1000
"""Operations that may wait for the thread of one store."""

BATCH = 500
"""Names in one batch of a scan."""

PAGE_SIZE = 4096

CLOSE_TIMEOUT = 1.0
"""Seconds that closing waits for a thread."""

_opening = threading.Lock()
"""Held while a file is made: on POSIX, closing a file that this process has also opened through
SQLite drops SQLite's locks on it."""

_inherited: list[object] = []
"""Connections of the parent process. SQLite forbids a forked child to use or close them, so they
are kept here, out of reach of the garbage collector."""


class SQLiteStore:
    """A store in the file `path`, which is made, with its directory, when it is first used.

    May be used from any thread and event loop, and after a fork. `max_bytes` limits the file: if
    deleting expired rows does not make enough room, writing raises `StoreUnavailable`. A commit
    survives a crash of the process; the last ones may be lost if the machine crashes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 1024 * 1024 * 1024,
        timeout: float = TIMEOUT,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self.max_bytes, self.timeout = max_bytes, timeout
        self._name = f"sqlite://{self.path}"
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._poller: Poller | None = None
        self._channels, self._origin = Channels(), secrets.token_bytes(8)

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    async def get(self, key: str) -> Entry | None:
        check_name(key)

        def get(db: Database) -> Entry | None:
            found = db.live("value", key)
            return Entry(found[0], found[1]) if found else None

        return await self._read(get)

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        check_put(key, value, ttl, if_version)

        def put(db: Database) -> int | None:
            if if_version is not None:
                found = db.live("value", key)
                if if_version != (found[1] if found else 0):
                    return None
            version = db.next_number()
            db.keep("value", key, value, version, ttl)
            return version

        return await self._write(put)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        check_version(key, if_version)

        def delete(db: Database) -> bool:
            found = db.live("value", key)
            if found is None or if_version not in (None, found[1]):
                return False
            db.drop("value", key)
            return True

        return await self._write(delete)

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        last, names = "", [prefix]
        while names:
            names = await self._read(lambda db, last=last: db.names("value", prefix, last))
            for name in names:
                yield name
            last = names[-1] if names else ""

    async def lease(self, key: str, ttl: float) -> Lease | None:
        check_lease(key, ttl)

        def lease(db: Database) -> Lease | None:
            if db.live("lease", key):
                return None
            made = Lease(key, db.next_number(), secrets.token_hex(16))
            db.keep("lease", key, made.holder.encode(), made.token, ttl)
            return made

        return await self._write(lease)

    async def renew(self, lease: Lease, ttl: float) -> bool:
        check_lease(lease.key, ttl)

        def renew(db: Database) -> bool:
            if not db.holds(lease):
                return False
            db.keep("lease", lease.key, lease.holder.encode(), lease.token, ttl)
            return True

        return await self._write(renew)

    async def release(self, lease: Lease) -> None:
        def release(db: Database) -> None:
            if db.holds(lease):
                db.drop("lease", lease.key)

        await self._write(release)

    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        check_take(key, rate, burst, cost)

        def take(db: Database) -> float:
            now, found = time.time(), db.live("bucket", key)
            full_at = found[2] if found else now
            full_at, wait = take_tokens(full_at, now, rate=rate, burst=burst, cost=cost)
            if not wait:
                db.keep_until("bucket", key, b"", 0, full_at, None)
            return wait

        return await self._write(take)

    async def append(self, log: str, entry: bytes, *, max_entries: int, ttl: float) -> int:
        check_append(log, entry, max_entries, ttl)

        def append(db: Database) -> int:
            if db.live("log", log) is None:
                db.drop("log", log)
            position = db.next_number()
            db.keep("log", log, b"", position, ttl)
            db.append(log, position, entry, max_entries)
            return position

        return await self._write(append)

    async def read(self, log: str, after: int = 0, *, limit: int = 100) -> list[tuple[int, bytes]]:
        check_read(log, limit)

        def read(db: Database) -> list[tuple[int, bytes]]:
            return db.entries(log, after, limit) if db.live("log", log) else []

        return await self._read(read)

    async def publish(self, channel: str, message: bytes) -> None:
        check_message(channel, message)
        await self._write(lambda db: db.publish(channel, message, self._origin))
        self._channels.deliver(channel, message)

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        check_name(channel)
        with self._channels.subscription(channel) as messages:
            last = await self._read(lambda db: db.last_message())
            with self._lock:
                if self._poller is None or not self._poller.is_alive():
                    deliver = self._channels.deliver
                    self._poller = Poller(self.path, self._name, self._origin, deliver, last)
                    self._poller.start()
            try:
                yield messages
            finally:
                messages.leave()
                await self._stop_poller(only_if_idle=True)

    async def aclose(self) -> None:
        self._channels.close()
        await self._stop_poller()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _stop_poller(self, *, only_if_idle: bool = False) -> None:
        with self._lock:
            if only_if_idle and self._channels.names():
                return
            poller, self._poller = self._poller, None
        if poller is not None:
            await poller.stop()

    async def _write(self, work: Callable[[Database], T]) -> T:
        return await self._in_thread(lambda db: db.transaction(work))

    async def _read(self, work: Callable[[Database], T]) -> T:
        return await self._in_thread(lambda db: db.retry_while_locked(lambda: work(db)))

    async def _in_thread(self, work: Callable[[Database], T]) -> T:
        with self._lock:
            worker = self._worker
            if worker is None or worker.process != os.getpid():
                _inherited.extend(part for part in (worker, self._poller) if part is not None)
                self._poller = None
                worker = self._worker = Worker(self.path, self.max_bytes, self._name)
        try:
            async with asyncio.timeout(self.timeout):
                return await worker.run(work, time.monotonic() + self.timeout)
        except TimeoutError:
            raise self._unavailable(f"no response within {self.timeout:g} s") from None
        except sqlite3.Error as error:
            raise self._unavailable(*_problem_and_remedy(error, self.max_bytes)) from error
        except OSError as error:
            raise self._unavailable(f"the file cannot be opened: {error.strerror}") from error

    def _unavailable(self, problem: str, remedy: str = "") -> StoreUnavailable:
        return StoreUnavailable(problem, store=self._name, remedy=remedy)


def _problem_and_remedy(error: sqlite3.Error, max_bytes: int) -> tuple[str, str]:
    match getattr(error, "sqlite_errorname", "").split("_")[1:2]:
        case ["FULL"]:
            remedy = "Raise max_bytes of the SQLiteStore, or use shorter ttls"
            return f"the store is full ({max_bytes} bytes, or the disk)", remedy
        case ["BUSY"]:
            return "other processes kept the file locked", ""
        case ["NOTADB" | "CORRUPT"]:
            return (
                "the file is damaged or belongs to another program",
                "Remove it, or use another file",
            )
        case _:
            return f"SQLite failed: {error}", ""


class Worker:
    """The thread of one store in one process, and its connection. Lives until `close`."""

    def __init__(self, path: Path, max_bytes: int, name: str) -> None:
        self.process = os.getpid()
        self._opening = path, max_bytes, name
        self._thread = ThreadPoolExecutor(1, "toolkeep-sqlite")
        self._lock, self._queued = threading.Lock(), 0
        self._db: Database | None = None

    async def run(self, work: Callable[[Database], T], deadline: float) -> T:
        """Run `work` in the thread. Raises TimeoutError at the deadline or if the queue is full."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._queued >= MAX_QUEUED:
                raise TimeoutError
            self._queued += 1
        # Not `run_in_executor`: cancelled work would never be subtracted from `_queued`.
        try:
            self._thread.submit(self._serve, work, deadline, loop, future)
        except RuntimeError:
            raise StoreUnavailable(
                "the store was closed meanwhile", store=self._opening[2]
            ) from None
        return await future

    def _serve(
        self,
        work: Callable[[Database], T],
        deadline: float,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[T],
    ) -> None:
        with self._lock:
            self._queued -= 1
        try:
            result, error = self._work(work, deadline), None
        except Exception as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_resolve, future, result, error)

    def _work(self, work: Callable[[Database], T], deadline: float) -> T:
        if time.monotonic() > deadline:
            raise TimeoutError
        if self._db is not None and not self._db.is_current():
            self._close(self._db)
        if self._db is None:
            self._db = Database(*self._opening, deadline)
        self._db.deadline = deadline
        return work(self._db)

    def _close(self, db: Database) -> None:
        db.close()
        self._db = None

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError, StoreUnavailable, sqlite3.Error, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._db is not None:
                    await self.run(self._close, time.monotonic() + CLOSE_TIMEOUT)
        self._thread.shutdown(wait=False)


def _resolve(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():  # the caller has stopped waiting
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class Poller(threading.Thread):
    """A thread that polls for messages of other stores, on its own connection, until stopped."""

    def __init__(
        self, path: Path, name: str, origin: bytes, deliver: Callable[[str, bytes], None], last: int
    ) -> None:
        super().__init__(name="toolkeep-sqlite-poll", daemon=True)
        self._path, self._store, self._origin = path, name, origin
        self._deliver, self._last = deliver, last
        self._stopping = threading.Event()
        self._db: Database | None = None

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self.join, CLOSE_TIMEOUT)

    def run(self) -> None:
        while not self._stopping.wait(POLL_INTERVAL):
            try:
                self._deliver_new()
            except (sqlite3.Error, OSError, StoreUnavailable):
                self._close()  # the next poll opens it again
        self._close()

    def _deliver_new(self) -> None:
        if self._db is not None and not self._db.is_current():
            self._close()
            self._last = 0  # a new file numbers its messages from the start
        if self._db is None:
            self._db = Database(self._path, 0, self._store, time.monotonic() + TIMEOUT)
        while found := self._db.messages(self._last):
            for self._last, channel, message, origin in found:
                if origin != self._origin:
                    self._deliver(channel, message)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class Database:
    """A connection and the SQL statements of the operations. Belongs to one thread."""

    def __init__(self, path: Path, max_bytes: int, name: str, deadline: float) -> None:
        self._path, self._store, self.deadline = path, name, deadline
        self._swept_at = time.monotonic()
        with _opening:
            self._identity = _make_private_file(path, name)
            # Mode `rw`: a file removed meanwhile is not made again with other permissions.
            self._connection = sqlite3.connect(
                f"{path.as_uri()}?mode=rw",
                uri=True,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            self._prepare(max_bytes)
        except BaseException:
            self.close()
            raise

    def _prepare(self, max_bytes: int) -> None:
        (mode,) = self.retry_while_locked(lambda: self._one("PRAGMA journal_mode = WAL"))
        if mode != "wal":
            raise StoreUnavailable(
                "SQLite cannot share this file between processes (WAL is unavailable)",
                store=self._store,
                remedy="Use a file on a local disk",
            )
        for pragma in (
            "synchronous = NORMAL",
            "journal_size_limit = 4194304",
            "trusted_schema = OFF",
            f"max_page_count = {max(16, max_bytes // PAGE_SIZE)}"
            if max_bytes
            else "query_only = ON",
        ):
            self._execute(f"PRAGMA {pragma}")
        if max_bytes and self._made_by() != (APPLICATION, SCHEMA):
            self.transaction(Database._make_tables)

    def _made_by(self) -> tuple[int, int]:
        return self._one("PRAGMA application_id")[0], self._one("PRAGMA user_version")[0]

    def _make_tables(self) -> None:
        made_by, tables = self._made_by(), self._one("SELECT count(*) FROM sqlite_schema")[0]
        if made_by == (APPLICATION, SCHEMA):
            return  # another process was faster
        if tables or made_by != (0, 0):
            raise StoreUnavailable(
                "the file belongs to another program or another version of toolkeep",
                store=self._store,
                remedy="Use another file, or remove it",
            )
        for statement in TABLES.strip().split(";")[:-1]:
            self._execute(statement)
        self._execute(f"PRAGMA application_id = {APPLICATION}")
        self._execute(f"PRAGMA user_version = {SCHEMA}")

    def is_current(self) -> bool:
        """Whether the file is still the one that was opened."""
        try:
            return _identity(os.stat(self._path)) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        self._connection.close()

    def transaction(self, work: Callable[[Database], T]) -> T:
        """Run `work` in a transaction. If the file is full, delete expired rows and try again."""
        try:
            return self._transaction(work)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
        self._transaction(Database._sweep_all)
        return self._transaction(work)

    def _transaction(self, work: Callable[[Database], T]) -> T:
        self.retry_while_locked(lambda: self._execute("BEGIN IMMEDIATE"))
        try:
            result = work(self)
            if time.monotonic() > self._swept_at + SWEEP_INTERVAL:
                self._swept_at = time.monotonic()
                self.sweep()
            self._execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
            raise
        return result

    def retry_while_locked(self, work: Callable[[], T]) -> T:
        """Repeat `work` while another process holds the lock, until `deadline`."""
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not locked or time.monotonic() > self.deadline:
                    raise
            time.sleep(LOCK_PAUSE)

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _one(self, statement: str, *values: object) -> Any:
        return self._execute(statement, *values).fetchone()

    # -- rows --

    def live(self, kind: str, name: str) -> tuple[bytes, int, float] | None:
        """The content, version and expiry of a row, unless it is absent or expired."""
        return self._one(
            "SELECT content, version, until FROM cells"
            " WHERE kind = ? AND name = ? AND (until IS NULL OR until > ?)",
            *(kind, name, time.time()),
        )

    def keep(self, kind: str, name: str, content: bytes, version: int, ttl: float | None) -> None:
        until = None if ttl is None else time.time() + ttl
        self.keep_until(kind, name, content, version, until, ttl)

    def keep_until(
        self,
        kind: str,
        name: str,
        content: bytes,
        version: int,
        until: float | None,
        ttl: float | None,
    ) -> None:
        self._execute(
            "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET"
            " content = excluded.content, version = excluded.version,"
            " until = excluded.until, ttl = excluded.ttl",
            *(kind, name, content, version, until, ttl),
        )

    def drop(self, kind: str, name: str) -> None:
        self._execute("DELETE FROM cells WHERE kind = ? AND name = ?", kind, name)
        if kind == "log":
            self._execute("DELETE FROM entries WHERE log = ?", name)

    def names(self, kind: str, prefix: str, last: str) -> list[str]:
        """One batch of names that begin with `prefix` and come after `last`."""
        found = self._execute(
            "SELECT name FROM cells WHERE kind = ? AND name >= ? AND name > ?"
            " AND (until IS NULL OR until > ?) ORDER BY name LIMIT ?",
            *(kind, prefix, last, time.time(), BATCH),
        )
        return [name for (name,) in found if name.startswith(prefix)]

    def next_number(self) -> int:
        """The next version, fencing token or position."""
        return self._one(
            "UPDATE clock SET last = max(last + 1, ?) RETURNING last", time.time_ns() // 1000
        )[0]

    def holds(self, lease: Lease) -> bool:
        found = self.live("lease", lease.key)
        return found is not None and found[0] == lease.holder.encode()

    def sweep(self, rows: int = SWEEP_ROWS) -> None:
        """Delete expired rows. After the clock was set back, cut each row's time to its ttl."""
        now = time.time()
        if self._one("SELECT last FROM clock")[0] > (now + 1) * 1_000_000:
            self._execute("UPDATE cells SET until = ? + ttl WHERE until > ? + ttl", now, now)
        dropped = self._execute(
            "DELETE FROM cells WHERE rowid IN (SELECT rowid FROM cells WHERE until <= ? LIMIT ?)"
            " RETURNING kind, name",
            *(now, rows),
        ).fetchall()
        for kind, name in dropped:
            if kind == "log":
                self._execute("DELETE FROM entries WHERE log = ?", name)

    def _sweep_all(self) -> None:
        self.sweep(-1)
        self._execute("DELETE FROM messages WHERE at < ?", time.time() - MESSAGE_TTL)

    # -- logs and messages --

    def append(self, log: str, position: int, entry: bytes, max_entries: int) -> None:
        self._execute("INSERT INTO entries VALUES (?, ?, ?)", log, position, entry)
        self._execute(
            "DELETE FROM entries WHERE log = ? AND position <= (SELECT position FROM entries"
            " WHERE log = ? ORDER BY position DESC LIMIT 1 OFFSET ?)",
            *(log, log, max_entries),
        )

    def entries(self, log: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        return self._execute(
            "SELECT position, entry FROM entries WHERE log = ? AND position > ?"
            " ORDER BY position LIMIT ?",
            *(log, after, limit),
        ).fetchall()

    def publish(self, channel: str, message: bytes, origin: bytes) -> None:
        now = time.time()
        number = self._execute(
            "INSERT INTO messages (channel, message, origin, at) VALUES (?, ?, ?, ?)",
            *(channel, message, origin, now),
        ).lastrowid
        self._execute(
            "DELETE FROM messages WHERE number IN ("
            "SELECT number FROM (SELECT number, at FROM messages ORDER BY number LIMIT 10)"
            " WHERE number <= ? OR at < ? OR at > ?)",
            *((number or 0) - MAX_MESSAGES, now - MESSAGE_TTL, now + MESSAGE_TTL),
        )

    def last_message(self) -> int:
        found = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
        return found[0] if found else 0

    def messages(self, after: int) -> list[tuple[int, str, bytes, bytes]]:
        return self._execute(
            "SELECT number, channel, message, origin FROM messages WHERE number > ?"
            " ORDER BY number LIMIT 1000",
            after,
        ).fetchall()


def _make_private_file(path: Path, store: str) -> tuple[int, int]:
    """Make the file and its directory if missing, check both, and return the file's identity."""
    make_private_directory(path.parent)
    _check_private(path.parent, stat.S_ISDIR, store, "chmod 700")
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    return _identity(_check_private(path, stat.S_ISREG, store, "chmod 600"))


def _check_private(
    path: Path, is_expected: Callable[[int], bool], store: str, command: str
) -> os.stat_result:
    found = os.lstat(path)
    reason = distrust_reason(found, is_expected)
    if reason:
        remedy = f"Use a file in a directory of your own, or run: {command} {path}"
        raise StoreUnavailable(f"{path} cannot be trusted: {reason}", store=store, remedy=remedy)
    return found


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
