"""`ResultCache`: results of read-only tools that equal calls reuse, where the configuration asks
for it.

Never caches an error or a result that needed input, and never shares between callers. A failing
store is a miss, never a failed call.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from toolkeep._client.auth import distinguishing_headers
from toolkeep._client.request import CallRequest
from toolkeep._rules.access import compile_glob
from toolkeep._rules.identity import identity_headers
from toolkeep.config import ServerSpec
from toolkeep.results import CallResult
from toolkeep.state.cache import Cache, Stamp
from toolkeep.state.shared import SharedState, forgotten_mark, name_of

if TYPE_CHECKING:
    from toolkeep._runtime.resolve import ResolvedTool
    from toolkeep._runtime.server import Server

_CALLER_GONE: Final = b""
"""What waiters get from a call whose own caller was cancelled. An encoded result is never empty."""

MakeCall = Callable[[], Awaitable[CallResult]]


class ResultCache:
    """The cached results of one runtime. `authorized`: an authorizer adds credentials to requests,
    so results without a principal are not shared with other runtimes."""

    def __init__(self, state: SharedState, *, authorized: bool = False) -> None:
        self._authorized, self._state, self._values = authorized, state, Cache(state)
        self._running: dict[str, asyncio.Future[bytes | None]] = {}
        self._saving: set[asyncio.Task[bool]] = set()
        self._instance_id = uuid.uuid4().hex

    async def forget(self, principal: str) -> None:
        """Use no result of this principal again, in any process."""
        await self._values.move(forgotten_mark(principal))

    async def wait_saved(self) -> None:
        """Wait until running saves are done or given up: a moment."""
        if self._saving:
            await asyncio.wait(self._saving)

    def detach(self) -> None:
        """The event loop is gone, and the running saves with it."""
        self._saving.clear()
        self._running.clear()

    async def get_or_call(
        self,
        found: ResolvedTool,
        request: CallRequest,
        make: MakeCall,
        *,
        joins: bool,
        within: float,
    ) -> CallResult:
        """A cached result, that of an equal running call, or that of `make`.

        `joins`: it may wait for another call, because nothing observes it. Raises `TimeoutError` if
        the other call does not end `within` the time of this one.
        """
        if not found.tool.read_only:
            return await self._call_uncached(found, make)
        seconds = _ttl(found.server.spec, found.tool.tool) if _is_cacheable(request) else None
        began, key = monotonic(), self._key(found, request) if seconds else None
        until = began + within
        if seconds is None or key is None:
            return await make()
        left: bytes | None = _CALLER_GONE
        stamp = Stamp()
        while left == _CALLER_GONE:
            kept, stamp = await self._load(key, self._marks(found), until - monotonic())
            other = self._running.get(key) if joins and kept is None else None
            if other is not None:
                async with asyncio.timeout(until - monotonic()):
                    left = await asyncio.shield(other)
            elif kept is not None and (raw := _decode_result(kept)) is not None:
                return _cached_result(found, raw, began)
            else:
                break
        raw = _decode_result(left) if left else None
        if raw is not None:
            return _cached_result(found, raw, began)
        return await self._call_and_save(key, found.server, make, stamp, seconds, until)

    async def _call_uncached(self, found: ResolvedTool, make: MakeCall) -> CallResult:
        """A call that may change what other tools of the server return."""
        await self._values.move(_write_mark(found))
        try:
            return await make()
        finally:
            await self._values.move(_write_mark(found))

    async def _load(
        self, key: str, marks: Sequence[str], within: float
    ) -> tuple[bytes | None, Stamp]:
        """From the store within half of the time: the other half is for the call."""
        if not self._state:
            return await self._values.load(key, marks)
        try:
            async with asyncio.timeout(within / 2):
                return await self._values.load(key, marks)
        except TimeoutError:
            return None, Stamp()

    async def _save(
        self, key: str, value: bytes, stamp: Stamp, seconds: float, within: float
    ) -> None:
        """Save, and wait `within` the time for it; after that saving goes on in the background."""
        saving = self._values.save(key, value, stamp, seconds)
        if not self._state:
            await saving
            return
        task = asyncio.get_running_loop().create_task(saving, context=Context())
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)
        await asyncio.wait((task,), timeout=max(within, 0))

    async def _call_and_save(
        self,
        key: str,
        server: Server,
        make: MakeCall,
        stamp: Stamp,
        seconds: float,
        until: float,
    ) -> CallResult:
        was_in_use = server.auth.is_in_use
        under_way: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        first = self._running.setdefault(key, under_way) is under_way
        value: bytes | None = _CALLER_GONE
        try:
            result = await make()
            value = _encode_result(result)
        except Exception:
            value = None
            raise
        finally:
            if first:
                del self._running[key]
                under_way.set_result(value)
        if value is not None and server.auth.is_in_use == was_in_use:
            await self._save(key, value, stamp, seconds, until - monotonic())
        return result

    def _key(self, found: ResolvedTool, request: CallRequest) -> str | None:
        """A hash of caller, tool, arguments and server; None: the arguments are not JSON. The
        credentials of a named principal and the order of arguments do not count; 1, 1.0 and true
        differ."""
        tool = found.tool
        what = [tool.tool, request.arguments or {}, tool.definition.model_dump_json()]
        facts = [self._owner_facts(found), what, *_server_facts(found.server.spec)]
        try:
            written = json.dumps(facts, sort_keys=True)
        except (TypeError, ValueError, RecursionError):  # such arguments cannot be sent, either
            return None
        return name_of("result", written)

    def _marks(self, found: ResolvedTool) -> tuple[str, ...]:
        caller = found.caller.identity
        named = caller is not None and caller.principal is not None
        forgotten = (forgotten_mark(caller.principal),) if caller and named else ()
        return (_write_mark(found), *forgotten)

    def _owner_facts(self, found: ResolvedTool) -> list[Any]:
        """The caller. Results of a server without an address are not shared with other runtimes:
        the same command in another directory or environment is another program."""
        spec, caller = found.server.spec, found.caller.identity
        named = caller is not None and caller.principal is not None
        headers = distinguishing_headers(
            identity_headers(found.headers or {}, spec.non_identity_headers), named=named
        )
        authorized = self._authorized or found.server.auth.is_in_use
        private = not (spec.url or spec.urls) or (authorized and not named)
        return [caller.key if caller else None, headers, self._instance_id if private else ""]


def _server_facts(spec: ServerSpec) -> list[Any]:
    """The server and the account that it is used with."""
    key = spec.api_key.get_secret_value() if spec.api_key else ""
    account = [sorted(spec.headers.items()), key, spec.tls.client_cert, spec.tls.client_key]
    program = [spec.command, spec.args, sorted(spec.env.items()), spec.cwd]
    return [spec.name, spec.url, spec.urls, spec.transport, program, account]


def _write_mark(found: ResolvedTool) -> str:
    return name_of("writes", *_server_facts(found.server.spec))


def _encode_result(result: CallResult) -> bytes | None:
    """The result for the store; None: it must not be cached."""
    if not result.success:
        return None
    try:
        return json.dumps(dict(result.raw)).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def _decode_result(kept: bytes) -> dict[str, Any] | None:
    """The stored result; None if it is not one: a store may return anything."""
    try:
        raw: Any = json.loads(kept)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("content", []), list):  # pyright: ignore[reportUnknownMemberType]
        return None
    return raw if CallResult(raw, "", "").success else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _cached_result(found: ResolvedTool, raw: dict[str, Any], began: float) -> CallResult:
    server, tool = found.tool.key
    return CallResult(raw, server, tool, 0, monotonic() - began, cached=True)


def _is_cacheable(request: CallRequest) -> bool:
    """Whether only arguments and caller tell the call from others."""
    continues = request.request_state is not None or request.input_responses is not None
    return request.input == "answer" and request.meta is None and not continues


def _ttl(spec: ServerSpec, tool: str) -> float | None:
    """The shortest time of all patterns that match the tool."""
    times = [
        seconds
        for pattern, seconds in spec.cache_results.items()
        if compile_glob(pattern).match(tool)
    ]
    return min(times, default=None)
