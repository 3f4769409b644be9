"""Results that are used again, where the configuration asks for it.

Only of tools that are marked read-only, only for the same caller with the same arguments and
headers, never an error, never a question. Equal calls at the same time are one call: the others
wait for it. If its caller goes away, one of those who wait makes it in its place; if it comes to
nothing, each makes its own, since a failure is nobody else's. Whatever this runtime writes to a
server (a call of a tool that is not read-only) ends what was kept of that server, both when it is
sent and when it is over. What other processes write there is not known here: the time that results
are kept for bounds that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

from toolkeep._engine.belonging import told_apart
from toolkeep._engine.wanted import Wanted
from toolkeep._rules.headers import identity
from toolkeep._rules.patterns import glob
from toolkeep._runtime.found import Found
from toolkeep._runtime.shelving import Shelving
from toolkeep.config import ServerSpec
from toolkeep.results import CallResult
from toolkeep.stores.results import ResultStore

Make = Callable[[], Awaitable[CallResult]]

_ABANDONED: Final = b""
"""What a call leaves to those who wait for it when its own caller goes away: no result is empty."""


class Reuse:
    """One for each runtime. `authorized`: somebody gives its requests credentials, which tells it
    from other runtimes where no principal is named."""

    def __init__(self, store: ResultStore | None, *, authorized: bool = False) -> None:
        self._shelving, self._authorized = Shelving(store), authorized
        self._under_way: dict[str, asyncio.Future[bytes | None]] = {}
        self._stamps: dict[str, str] = {}
        """For each server that something was written to: another one each time."""
        self._stamp = ""
        self._own = uuid.uuid4().hex

    def forget(self) -> None:
        """Nothing that was kept so far is used again, by anybody here."""
        self._stamp = uuid.uuid4().hex

    async def settle(self) -> None:
        """What is being kept is kept, or given up."""
        await self._shelving.settle()

    def abandon(self) -> None:
        self._shelving.abandon()
        self._under_way.clear()

    async def answer(
        self, found: Found, wanted: Wanted, make: Make, *, joins: bool, within: float
    ) -> CallResult:
        """What is kept, what an equal call is about to bring, or what `make` brings. `joins`: it
        may wait for another call, since nobody watches it. Raises `TimeoutError` if that does not
        end `within` its own time."""
        if not found.tool.read_only:
            return await self._write(found.supplier.name, make)
        seconds = _seconds(found.supplier.spec, found.tool.tool) if _is_plain(wanted) else None
        began, key = monotonic(), self._key(found, wanted) if seconds else None
        until = began + within
        if seconds is None or key is None:
            return await make()
        left: bytes | None = _ABANDONED
        while left == _ABANDONED:
            kept = await self._shelving.load(key, until - monotonic())
            other = self._under_way.get(key) if joins and kept is None else None
            if other is not None:
                async with asyncio.timeout(until - monotonic()):
                    left = await asyncio.shield(other)
            elif kept is not None and (raw := _read(kept)) is not None:
                return _again(found, raw, began)
            else:
                break
        raw = _read(left) if left else None
        if raw is not None:
            return _again(found, raw, began)
        return await self._make(key, make, seconds, until)

    async def _write(self, server: str, make: Make) -> CallResult:
        self._stamps[server] = uuid.uuid4().hex
        try:
            return await make()
        finally:
            self._stamps[server] = uuid.uuid4().hex

    async def _make(self, key: str, make: Make, seconds: float, until: float) -> CallResult:
        under_way: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        first = self._under_way.setdefault(key, under_way) is under_way
        value: bytes | None = _ABANDONED
        try:
            result = await make()
            value = _written(result)
        except Exception:
            value = None
            raise
        finally:
            if first:
                del self._under_way[key]
                under_way.set_result(value)
        if value is not None:
            await self._shelving.save(key, value, seconds, until - monotonic())
        return result

    def _key(self, found: Found, wanted: Wanted) -> str | None:
        """Of who asks what, where; None: that cannot be said. What credentials a named principal
        brings changes nothing, nor does the order of arguments; 1, 1.0 and true are three."""
        tool = found.tool
        what = [tool.tool, wanted.arguments or {}, tool.definition.model_dump_json()]
        facts = [self._stamp, self._stamps.get(tool.server, ""), self._whose(found), what]
        try:
            written = json.dumps([*facts, *_where(found.supplier.spec)], sort_keys=True)
        except (TypeError, ValueError, RecursionError):  # so it cannot be sent, either
            return None
        return hashlib.sha256(written.encode()).hexdigest()

    def _whose(self, found: Found) -> list[Any]:
        """What has no address is this runtime's alone: the same command in another directory, or
        with another environment, is another program."""
        spec, caller = found.supplier.spec, found.speaker.identity
        named = caller is not None and caller.principal is not None
        told = told_apart(identity(found.headers or {}, spec.neutral_headers), named=named)
        only_here = not (spec.url or spec.urls) or (self._authorized and not named)
        return [caller.key if caller else None, told, self._own if only_here else ""]


def _where(spec: ServerSpec) -> list[Any]:
    """The server, and as whom it is asked: another account has other results."""
    key = spec.api_key.get_secret_value() if spec.api_key else ""
    account = [sorted(spec.headers.items()), key, spec.tls.client_cert, spec.tls.client_key]
    program = [spec.command, spec.args, sorted(spec.env.items()), spec.cwd]
    return [spec.name, spec.url, spec.urls, spec.transport, program, account]


def _written(result: CallResult) -> bytes | None:
    """As it is kept; None: it is not."""
    if not result.success:
        return None
    try:
        return json.dumps(dict(result.raw)).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def _read(kept: bytes) -> dict[str, Any] | None:
    """What was kept, if that is what it is: a store is somebody else's code."""
    try:
        raw: Any = json.loads(kept)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("content", []), list):  # pyright: ignore[reportUnknownMemberType]
        return None
    return raw if CallResult(raw, "", "").success else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _again(found: Found, raw: dict[str, Any], began: float) -> CallResult:
    server, tool = found.tool.key
    return CallResult(raw, server, tool, 0, monotonic() - began, cached=True)


def _is_plain(wanted: Wanted) -> bool:
    """Whether nothing but its arguments and its caller tells it from others."""
    goes_on = wanted.request_state is not None or wanted.input_responses is not None
    return wanted.input == "answer" and wanted.meta is None and not goes_on


def _seconds(spec: ServerSpec, tool: str) -> float | None:
    """The shortest of those that are said for this tool."""
    said = [seconds for pattern, seconds in spec.cache_results.items() if glob(pattern).match(tool)]
    return min(said, default=None)
