"""`RedisStore`: a store for many machines, in Redis 6.2 or newer, or Valkey.

Works with a single server, Sentinel and Cluster. Every operation is one command with one key, so it
takes one round trip and runs in any slot of a cluster. Multi-step operations are Lua scripts.
Nothing is sent twice: redis-py's retries are off, because a command whose response was lost may
have run. The clock is that of the Redis server.

A key in Redis is the kind, a colon and the name: `v:` values, `l:` leases, `b:` buckets, `s:` logs
(streams). A channel is `c`, the number of the database, a colon and the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import math
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from toolkeep._tasks import cancellation_count, was_cancelled
from toolkeep.errors import ConfigError, WrongLoop
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

__all__ = ["RedisStore"]

STAMP_DIGITS = 16
"""Digits of the version or token that precedes the content. Enough until the year 2286."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function stamp(number) return string.format('%016.0f', number) end
"""

PUT = f"""{NOW}
local last = tonumber(redis.call('GETRANGE', KEYS[1], 0, 15)) or 0
if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= last then return false end
local version = math.max(last + 1, now)
if ARGV[2] == '' then
  redis.call('SET', KEYS[1], stamp(version) .. ARGV[1])
else
  redis.call('SET', KEYS[1], stamp(version) .. ARGV[1], 'PX', ARGV[2])
end
return version
"""

DELETE = """
local last = tonumber(redis.call('GETRANGE', KEYS[1], 0, 15)) or 0
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= last then return 0 end
return redis.call('DEL', KEYS[1])
"""

LEASE = f"""{NOW}
local kept = redis.call('GET', KEYS[1])
if kept and #kept > 16 then return false end
local token = math.max(now, (tonumber(kept) or 0) + 1)
redis.call('SET', KEYS[1], stamp(token) .. ARGV[1], 'PX', ARGV[2])
return token
"""

RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

# The token stays for a minute, so that the next one is greater even if the clock is set back or a
# replica with another clock takes over. A server that is out of memory refuses SET, but not DEL.
RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local kept = redis.pcall('SET', KEYS[1], string.sub(ARGV[1], 1, 16), 'PX', 60000)
if type(kept) == 'table' and kept.err then redis.call('DEL', KEYS[1]) end
return 1
"""

# The same as `_rules.limits.take_tokens`, in microseconds.
TAKE = f"""{NOW}
local rate, burst, cost = ARGV[1] / 1000000, tonumber(ARGV[2]), tonumber(ARGV[3])
local full = tonumber(redis.call('GET', KEYS[1])) or now
full = math.min(math.max(full, now), now + burst / rate)
local wait = full + (cost - burst) / rate - now
if wait > 1 then return string.format('%.0f', wait) end
full = full + cost / rate
redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil((full - now) / 1000))
return '0'
"""

APPEND = f"""{NOW}
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local position = now
if last then position = math.max(now, tonumber(string.match(last[1], '%d+')) + 1) end
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], string.format('%.0f-0', position), 'e', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return position
"""

SCRIPT_DIGESTS = {
    script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    for script in (PUT, DELETE, LEASE, RENEW, RELEASE, TAKE, APPEND)
}
"""The SHA-1 digests by which EVALSHA names the scripts."""

KEY_POSITION = {"GET": 1, "XRANGE": 1, "EVAL": 3, "EVALSHA": 3}
"""The position of the key among the parts of a command."""

BATCH = 500
"""Names that one SCAN examines."""

PING_INTERVAL = 5.0
"""Seconds of silence after which the listener sends a ping; after twice that it reconnects."""

FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds between attempts to reconnect the listener."""

CANCEL_PAUSE = 0.1
"""Seconds between attempts to end the listener."""

SENTINEL_PORT = 26379

OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sentinel_username", "sentinel_password")
"""The options that the query of a URL may hold, named as in redis-py."""


@dataclass(frozen=True)
class Address:
    """A parsed URL."""

    mode: str
    """"", "sentinel" or "cluster"."""
    hosts: tuple[tuple[str, int], ...]
    master: str
    db: int
    name: str
    """The URL without its secrets."""
    options: dict[str, Any] = field(repr=False)
    sentinel_options: dict[str, Any] = field(repr=False)


def parse(url: str) -> Address:
    """Parse the URL of a store. Raises ConfigError, which quotes no secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid("it cannot be parsed", "Write redis://host:6379/0") from None
    if parts.fragment or "@" in f"{parts.path}{parts.query}":
        # Quotes nothing: what looks like a path may be the password.
        raise _invalid(
            "the user or the password contains a character that is special in URLs",
            "Write / as %2F, ? as %3F, # as %23 and @ as %40",
        )
    scheme = re.fullmatch(r"(rediss?)(?:\+(sentinel|cluster))?", parts.scheme)
    if scheme is None:
        raise _invalid(f"{parts.scheme!r} is not a Redis scheme", "Write redis:// or rediss://")
    mode = scheme[2] or ""
    login, _, authority = parts.netloc.rpartition("@")
    port = SENTINEL_PORT if mode == "sentinel" else 6379
    hosts = tuple(_host(one, port) for one in authority.split(","))
    if len(hosts) > 1 and not mode:
        raise _invalid(
            "only Sentinel and Cluster take several hosts",
            "Write redis+sentinel:// or redis+cluster://",
        )
    master, db = _path(parts.path, mode)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in query:
        if option not in OPTIONS:
            raise _invalid(f"the option {option!r} is unknown", f"Use one of {', '.join(OPTIONS)}")
    username, _, password = login.partition(":")
    options = {"username": unquote(username) or None, "password": unquote(password) or None}
    tls: dict[str, Any] = {"ssl": True} if scheme[1] == "rediss" else {}
    tls |= {name: value for name, value in query.items() if name.startswith("ssl_")}
    if tls and "ssl" not in tls:
        raise _invalid("TLS options need TLS", "Write rediss://")
    sentinel = {
        name.removeprefix("sentinel_"): value
        for name, value in query.items()
        if name.startswith("sentinel_")
    }
    name = f"{parts.scheme}://{authority}{parts.path}"
    return Address(mode, hosts, master, db, name, options | tls, sentinel | tls)


def _host(text: str, port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::(\d{1,5}))?", text)
    if found is None:
        raise _invalid("a host is missing or invalid", "Write redis://host:6379/0")
    return found[1].strip("[]"), int(found[2] or port)


def _path(path: str, mode: str) -> tuple[str, int]:
    master, rest = "", path.strip("/")
    if mode == "sentinel":
        master, _, rest = rest.partition("/")
    if mode == "sentinel" and not master:
        raise _invalid(
            "the name of the primary is missing", "Write redis+sentinel://host1,host2/name"
        )
    if rest and not rest.isdecimal():
        raise _invalid(f"{rest!r} is not a database number", "Write redis://host:6379/0")
    if mode == "cluster" and rest not in ("", "0"):
        raise _invalid("a cluster has no numbered databases", "Write redis+cluster://host1,host2")
    return unquote(master), int(rest or 0)


def _invalid(problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"the URL of the store: {problem}", remedy=remedy)


class RedisStore:
    """A store in Redis or Valkey, for the event loop and the process that first uses it.

    Use a server without eviction (`maxmemory-policy noeviction`): an evicted lease could be held
    twice. A failover may lose the last writes, including a lease: use the fencing tokens.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT, max_connections: int = 32) -> None:
        self._address = parse(url)
        self._library = _library()
        self.timeout, self.max_connections = timeout, max_connections
        self._channels = Channels()
        self._session: Session | None = None

    def __repr__(self) -> str:
        return f"<RedisStore {self._address.name}>"

    async def get(self, key: str) -> Entry | None:
        check_name(key)
        found = await self._command("GET", f"v:{key}")
        if found is None:
            return None
        if not found[:STAMP_DIGITS].isdigit():
            raise self._unavailable(
                f"{key!r} holds a value that toolkeep did not write", "Delete it"
            )
        return Entry(found[STAMP_DIGITS:], int(found[:STAMP_DIGITS]))

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        check_put(key, value, ttl, if_version)
        expiry = "" if ttl is None else _milliseconds(ttl)
        return await self._script(PUT, f"v:{key}", value, expiry, _or_empty(if_version))

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        check_version(key, if_version)
        return bool(await self._script(DELETE, f"v:{key}", _or_empty(if_version)))

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        pattern = "v:" + re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
        for target in await self._scan_targets():
            cursor = b"0"
            while True:
                cursor, names = await self._command(
                    *("SCAN", cursor, "MATCH", pattern, "COUNT", BATCH), **target
                )
                if isinstance(cursor, dict):  # a cluster returns one for each node
                    (cursor,) = cast("dict[str, int]", cursor).values()
                for name in names:
                    yield name.decode()[2:]
                if int(cursor) == 0:
                    break

    async def lease(self, key: str, ttl: float) -> Lease | None:
        check_lease(key, ttl)
        holder = secrets.token_hex(16)
        token = await self._script(LEASE, f"l:{key}", holder, _milliseconds(ttl))
        return None if token is None else Lease(key, token, holder)

    async def renew(self, lease: Lease, ttl: float) -> bool:
        check_lease(lease.key, ttl)
        return bool(
            await self._script(RENEW, f"l:{lease.key}", _lease_content(lease), _milliseconds(ttl))
        )

    async def release(self, lease: Lease) -> None:
        await self._script(RELEASE, f"l:{lease.key}", _lease_content(lease))

    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        check_take(key, rate, burst, cost)
        return int(await self._script(TAKE, f"b:{key}", rate, burst, cost)) / 1_000_000

    async def append(self, log: str, entry: bytes, *, max_entries: int, ttl: float) -> int:
        check_append(log, entry, max_entries, ttl)
        return await self._script(APPEND, f"s:{log}", entry, max_entries, _milliseconds(ttl))

    async def read(self, log: str, after: int = 0, *, limit: int = 100) -> list[tuple[int, bytes]]:
        check_read(log, limit)
        found = await self._command("XRANGE", f"s:{log}", f"{after + 1}-0", "+", "COUNT", limit)
        return [(int(stream_id.partition(b"-")[0]), fields[b"e"]) for stream_id, fields in found]

    async def publish(self, channel: str, message: bytes) -> None:
        check_message(channel, message)
        await self._command("PUBLISH", self._channel(channel), message)

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        check_name(channel)
        listener, name = self._open().listener, self._channel(channel)
        with self._channels.subscription(name) as messages:
            try:
                async with self._errors_mapped():
                    await listener.add(name)
                yield messages
            finally:
                messages.leave()
                await listener.remove(name)

    async def aclose(self) -> None:
        self._channels.close()
        if self._session is not None and not self._session.is_gone():
            session = self._open()
            self._session = None
            await session.aclose()

    def _channel(self, name: str) -> str:
        # Channels belong to the whole server, not to one of its numbered databases.
        return f"c{self._address.db}:{name}"

    def _open(self) -> Session:
        session = self._session
        if session is None or session.is_gone():
            session = self._session = Session(
                self._address, self._library, self._channels, self.timeout, self.max_connections
            )
        elif not session.is_here():
            raise WrongLoop(
                f"{self._address.name}: this store was opened in another event loop."
                " Close it there with aclose(), or open another one here"
            )
        return session

    async def _scan_targets(self) -> list[dict[str, Any]]:
        """The arguments that select the nodes to scan: none, or each primary of a cluster."""
        if self._address.mode != "cluster":
            return [{}]
        session = self._open()
        async with self._errors_mapped():
            await session.discover_nodes()
        return [{"target_nodes": node} for node in session.client.get_primaries()]

    async def _script(self, script: str, key: str, *values: object) -> Any:
        try:
            return await self._command("EVALSHA", SCRIPT_DIGESTS[script], 1, key, *values)
        except self._library.exceptions.NoScriptError:
            return await self._command("EVAL", script, 1, key, *values)  # which also loads it

    async def _command(self, *parts: object, **target: Any) -> Any:
        session, before = self._open(), cancellation_count()
        async with self._errors_mapped(), session.free:
            found = await session.execute(parts, target)
            if was_cancelled(before):
                # redis-py sends with `asyncio.wait_for`, which swallows this in Python 3.11.
                raise asyncio.CancelledError
            return found

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        """Apply the timeout, and raise StoreUnavailable for what redis-py raises."""
        errors = self._library.exceptions
        try:
            async with asyncio.timeout(self.timeout):
                yield
        except TimeoutError:
            raise self._unavailable(f"no response within {self.timeout:g} s") from None
        except errors.NoScriptError:
            raise
        # Not chained: an error message of Redis may quote what was sent.
        except (errors.RedisError, OSError) as error:
            raise self._unavailable(*_problem_and_remedy(error, errors)) from None

    def _unavailable(self, problem: str, remedy: str = "") -> StoreUnavailable:
        return StoreUnavailable(problem, store=self._address.name, remedy=remedy)


class Session:
    """The connections of one store in one event loop, until the store is closed."""

    def __init__(
        self,
        address: Address,
        library: Any,
        channels: Channels,
        timeout: float,
        max_connections: int,
    ) -> None:
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._address, self._library = address, library
        self.free = asyncio.Semaphore(max_connections)
        self._options: dict[str, Any] = {
            **address.options,
            # Less than ours, so that redis-py itself notices that a node of a cluster is gone.
            "socket_timeout": timeout * 0.9,
            "socket_connect_timeout": timeout * 0.6,
            "retry": library.asyncio.retry.Retry(library.backoff.NoBackoff(), 0),
            "max_connections": max_connections + 2,
            "protocol": 2,
        }
        self._sentinels: list[Any] = []
        self._discovery: asyncio.Task[Any] | None = None
        self.client = self._connect()
        self.listener = Listener(self, channels)

    def _connect(self) -> Any:
        asyncio_, address = self._library.asyncio, self._address
        if address.mode == "cluster":
            nodes = [asyncio_.cluster.ClusterNode(*host) for host in address.hosts]
            # With the default, five redirections close all connections, even those in use.
            return asyncio_.RedisCluster(startup_nodes=nodes, reinitialize_steps=0, **self._options)
        if address.mode == "sentinel":
            share = self._options["socket_timeout"] / (len(address.hosts) + 1)
            sentinel = asyncio_.Sentinel(
                address.hosts,
                sentinel_kwargs={
                    **self._options,
                    "username": None,
                    "password": None,
                    **address.sentinel_options,
                    "socket_timeout": share,
                    "socket_connect_timeout": share,
                },
            )
            self._sentinels = sentinel.sentinels
            return sentinel.master_for(address.master, db=address.db, **self._options)
        return self._single(*address.hosts[0])

    def _single(self, host: str, port: int) -> Any:
        return self._library.asyncio.Redis(
            host=host, port=port, db=self._address.db, **self._options
        )

    async def execute(self, parts: tuple[Any, ...], target: dict[str, Any]) -> Any:
        if self._address.mode == "cluster" and not target and parts[0] in KEY_POSITION:
            # redis-py 8.1 sends some scripts to a wrong node first, and follows the redirection.
            await self.discover_nodes()
            target = {"target_nodes": self.client.get_node_from_key(parts[KEY_POSITION[parts[0]]])}
        return await self.client.execute_command(*parts, **target)

    async def discover_nodes(self) -> None:
        """Discover the nodes of the cluster, if they are not known yet.

        Runs in a task of its own: if a timeout of the waiting operation cancelled it, discovery
        would start again each time, and might never finish on a slow machine.
        """
        if self._discovery is None or self._discovery.done():
            self._discovery = asyncio.create_task(self._discover(), context=Context())
        if failed := await asyncio.shield(self._discovery):
            raise failed

    async def _discover(self) -> Exception | None:
        try:
            await self.client.initialize()
        except Exception as failed:
            return failed
        return None

    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop() and self._process == os.getpid()

    def is_gone(self) -> bool:
        return self._loop.is_closed() or self._process != os.getpid()

    async def aclose(self) -> None:
        await self.listener.aclose()
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait([self._discovery])
        for client in (self.client, *self._sentinels):
            with contextlib.suppress(self._library.exceptions.RedisError, OSError):
                await client.aclose()

    @asynccontextmanager
    async def subscriber(self) -> AsyncGenerator[Any]:
        """A connection for subscriptions. In a cluster, every node receives every message."""
        client = self.client
        if self._address.mode == "cluster":
            await self.discover_nodes()
            node = client.get_random_node()
            client = self._single(node.host, node.port)
        subscriber = client.pubsub()
        try:
            yield subscriber
        finally:
            await subscriber.aclose()
            if client is not self.client:
                await client.aclose()


class Listener:
    """A task that receives messages and reconnects, as long as there are subscriptions."""

    def __init__(self, session: Session, channels: Channels) -> None:
        self._session, self._channels = session, channels
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._subscriber: Any = None
        self._confirmed: dict[str, asyncio.Event] = {}
        """By channel: set when Redis has confirmed the subscription on this connection."""

    async def add(self, channel: str) -> None:
        """Subscribe, and return when Redis has confirmed it. The caller limits the wait."""
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        async with self._lock:
            if self._task is None:
                # An empty context: the task outlives the caller.
                self._task = asyncio.create_task(self._run(), context=Context())
            elif self._subscriber is not None and not confirmed.is_set():
                await self._subscriber.subscribe(channel)
        await confirmed.wait()

    async def remove(self, channel: str) -> None:
        async with self._lock:
            if channel in self._channels.names():
                return
            self._confirmed.pop(channel, None)
            if not self._channels.names():
                await self._stop()
            elif self._subscriber is not None:
                with contextlib.suppress(Exception):  # the task notices, and reconnects
                    await self._subscriber.unsubscribe(channel)

    async def aclose(self) -> None:
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()  # again, as long as redis-py swallows it
            await asyncio.wait([task], timeout=CANCEL_PAUSE)

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._session.subscriber() as subscriber:
                    await subscriber.subscribe(*self._confirmed)
                    self._subscriber = subscriber
                    async for _ in self._receive(subscriber):
                        pause = FIRST_PAUSE
            except Exception:
                # Any error: the subscribers keep waiting, and the next attempt follows.
                pause = min(2 * pause, MAX_PAUSE)
            finally:
                self._subscriber = None
                for confirmed in self._confirmed.values():
                    confirmed.clear()
            await asyncio.sleep(pause)

    async def _receive(self, subscriber: Any) -> AsyncGenerator[None]:
        """Handle messages and yield after each. Ends if the connection stays silent."""
        received_at = time.monotonic()
        while True:
            message = await subscriber.get_message(timeout=PING_INTERVAL)
            silence = time.monotonic() - received_at
            if message is None and silence >= 2 * PING_INTERVAL:
                return
            if message is None and silence >= PING_INTERVAL:
                await subscriber.ping()
            if message is None:
                continue
            received_at = time.monotonic()
            self._handle(message)
            yield

    def _handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "message":
                self._channels.deliver(message["channel"].decode(), message["data"])
            case "subscribe":
                if confirmed := self._confirmed.get(message["channel"].decode()):
                    confirmed.set()
            case _:
                pass


def _library() -> Any:
    try:
        library: Any = importlib.import_module("redis")
        importlib.import_module("redis.asyncio")
    except ImportError:
        remedy = "Install toolkeep with its extra: pip install 'toolkeep[redis]'"
        raise ConfigError("a Redis store needs the package redis", remedy=remedy) from None
    return library


def _milliseconds(ttl: float) -> int:
    return math.ceil(ttl * 1000)


def _or_empty(version: int | None) -> int | str:
    return "" if version is None else version


def _lease_content(lease: Lease) -> str:
    return f"{lease.token:0{STAMP_DIGITS}d}{lease.holder}"


def _problem_and_remedy(error: Exception, errors: Any) -> tuple[str, str]:
    """Explain an error of redis-py. Its text is left out: it may quote what was sent."""
    text = str(error)
    if isinstance(error, errors.OutOfMemoryError) or re.search(r"\bOOM\b", text):
        return "Redis is out of memory", "Raise maxmemory of Redis, or use shorter ttls"
    refused = errors.ResponseError, errors.AuthenticationError, errors.AuthorizationError
    if isinstance(error, refused):
        code = re.match(r"-?([A-Z]{4,})\b", text)
        return f"Redis refused the command: {code[1] if code else type(error).__name__}", ""
    return f"no connection ({type(error.__cause__ or error).__name__})", ""
