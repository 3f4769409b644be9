"""`serve_stdio`: a gateway on the standard streams of this process, for one client, in both eras.

One line is one JSON-RPC message. A client that says `initialize` has a session for as long as the
pipe lasts; a request that carries its protocol version in `_meta` stands alone. Both may be mixed.

Nothing but the protocol may reach standard output: `standard_streams` keeps the descriptors for
this module, and gives everything else in the process (prints, programs that are started) standard
error instead. The pipe has no credentials: its client acts as who started the process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from mcp_types import PROTOCOL_VERSION_META_KEY
from pydantic_core import to_json

from toolkeep._tasks import BackgroundTasks, finish_or_cancel
from toolkeep._transport.base import Attempt, OversizedMessage, WireFault
from toolkeep._transport.framing import LineDecoder
from toolkeep._transport.jsonrpc import as_request_id, canonical_id, decode_messages
from toolkeep._transport.subprocess import ThreadedPipeReader, ThreadedPipeWriter
from toolkeep.gateway.access import Caller
from toolkeep.gateway.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    RpcError,
    unavailable,
)
from toolkeep.gateway.protocol import Exchange, Peer, initialize_peer, meta_of, modern_peer
from toolkeep.gateway.streams import Listener

if TYPE_CHECKING:
    from toolkeep.gateway.app import Gateway

__all__ = ["serve_stdio", "standard_streams"]

logger = logging.getLogger("toolkeep.gateway")

Json = dict[str, Any]
RequestId = str | int

MAX_UNREAD = 1000
"""Messages that are read and not handled yet, before reading pauses."""
END_GRACE = 1.0
"""Seconds for running requests after the end of the input: `printf … | toolkeep serve --stdio`."""
OPEN_WITHIN = 2.0
"""Seconds that a handshake waits for slow servers. Lists and calls wait until all are open."""
OPENING_METHODS = ("initialize", "server/discover", "ping")
"""What is answered before all servers are open."""
MODERN_METHODS = ("server/discover", "subscriptions/listen")


def standard_streams() -> tuple[int, int]:
    """Descriptors of standard input and output, for the protocol alone. From now on, everything
    else in this process reads nothing and writes to standard error."""
    streams = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return streams


async def serve_stdio(
    gateway: Gateway,
    streams: tuple[int, int],
    *,
    profile: str = "",
    stopping: asyncio.Event | None = None,
) -> None:
    """Serve one client until its input ends, or `stopping` is set. Opens and closes the gateway
    with its runtime, and closes the descriptors."""
    stopping, runtime = stopping or asyncio.Event(), gateway.runtime
    opening = asyncio.ensure_future(runtime.connect())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await _wait((opening, stopped), OPEN_WITHIN)
        if not (opening.done() or runtime.is_open):  # it still reads the configuration
            await _wait((opening, stopped), None)
        if opening.done():
            opening.result()
        if not stopping.is_set():
            await gateway.start()
            await _Pipe(gateway, *streams, profile, opening).run(stopping)
    finally:
        opening.cancel()
        stopped.cancel()
        await asyncio.wait((opening, stopped))
        await gateway.stop()
        await runtime.aclose()


async def _wait(works: Iterable[asyncio.Future[Any]], within: float | None) -> None:
    await asyncio.wait(works, timeout=within, return_when=asyncio.FIRST_COMPLETED)


class _PipeExchange(Exchange):
    """One request on the pipe."""

    def __init__(self, pipe: _Pipe, peer: Peer, request_id: RequestId) -> None:
        self._pipe, self.peer, self.request_id = pipe, peer, request_id

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self._pipe.notify(method, params)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._pipe.ask(method, params)


class _Pipe:
    """The connection to the one client. Lives in one event loop, until the input ends."""

    def __init__(
        self,
        gateway: Gateway,
        source: int,
        target: int,
        profile: str,
        opened: asyncio.Future[None],
    ) -> None:
        """`opened`: ends when all servers are open."""
        self._gateway, self._profile, self._opened = gateway, profile, opened
        self._limits = gateway.settings.limits
        self._caller = Caller(None)
        self._peer: Peer | None = None
        """The client after its `initialize`."""
        self._decoder = LineDecoder(self._limits.body_bytes)
        self._unread: asyncio.Queue[bytes | OversizedMessage | None] = asyncio.Queue()
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._asked: dict[RequestId, asyncio.Future[Json]] = {}
        self._ask_ids = itertools.count(1)
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._outgoing_bytes = 0
        self._listening, self._background = ExitStack(), BackgroundTasks()
        self._writer = ThreadedPipeWriter(target)
        self._reader = ThreadedPipeReader(source, self._on_data, lambda: self._put(None))

    async def run(self, stopping: asyncio.Event) -> None:
        create = asyncio.get_running_loop().create_task
        works: list[asyncio.Task[Any]] = [
            *(create(self._read()), create(self._write())),
            *(create(stopping.wait()), create(self._watch_opening())),
        ]
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            if self._running:
                within = self._limits.drain if stopping.is_set() else END_GRACE
                await asyncio.wait(self._running.values(), timeout=within)
            await self._flush()
            for work in done:
                work.result()
        finally:
            for task in (*self._running.values(), *works):
                task.cancel()
            await asyncio.wait((*self._running.values(), *works))
            self._background.cancel()
            self._listening.close()
            self._reader.close()
            self._writer.finish()

    async def _watch_opening(self) -> None:
        """Ends only by raising what opening the gateway raised."""
        await asyncio.wait((self._opened,))
        self._opened.result()
        await asyncio.Event().wait()

    # -- reading --------------------------------------------------------------------------------

    def _on_data(self, chunk: bytes) -> None:
        for line in self._decoder.feed(chunk):
            self._put(line)

    def _put(self, line: bytes | OversizedMessage | None) -> None:
        self._unread.put_nowait(line)
        if self._unread.qsize() >= MAX_UNREAD:
            self._reader.pause()

    async def _read(self) -> None:
        while (line := await self._unread.get()) is not None:
            if self._unread.empty():
                self._reader.resume()
            if isinstance(line, OversizedMessage):
                text = f"a message has more than {line.limit} bytes"
                self._send_error(None, RpcError(INVALID_REQUEST, text))
            else:
                self._take(line)
            await asyncio.sleep(0)

    def _take(self, line: bytes) -> None:
        try:
            messages = decode_messages(line)
        except (ValueError, RecursionError):
            self._send_error(None, RpcError(PARSE_ERROR, "the line is not a JSON object"))
            return
        message, method = messages[0], messages[0].get("method")
        request_id = as_request_id(message.get("id"))
        if line.startswith(b"["):
            self._send_error(None, RpcError(INVALID_REQUEST, "batches are not supported"))
        elif not isinstance(method, str):
            self._take_answer(message, request_id)
        elif request_id is not None:
            self._start(request_id, method, _params_of(message))
        elif "id" in message:
            self._send_error(None, RpcError(INVALID_REQUEST, "the id is not a text or a number"))
        else:
            self._take_notification(method, _params_of(message))

    def _take_answer(self, message: Json, request_id: RequestId | None) -> None:
        waiting = self._asked.get(request_id) if request_id is not None else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif "result" not in message and "error" not in message:
            self._send_error(request_id, RpcError(INVALID_REQUEST, "the message has no method"))

    def _take_notification(self, method: str, params: Json | None) -> None:
        if method == "notifications/cancelled":
            request_id = as_request_id((params or {}).get("requestId"))
            task = self._running.get(canonical_id(request_id)) if request_id is not None else None
            if task is not None:
                task.cancel()
            return
        if self._peer is not None:
            self._background.start(self._notified(method, params or {}, self._peer))

    async def _notified(self, method: str, params: Json, peer: Peer) -> None:
        await asyncio.wait((self._opened,))
        await self._gateway.server.notified(method, params, peer)

    # -- requests -------------------------------------------------------------------------------

    def _start(self, request_id: RequestId, method: str, params: Json | None) -> None:
        key = canonical_id(request_id)
        if key in self._running:
            self._send_error(request_id, RpcError(INVALID_REQUEST, "a request has this id already"))
        elif len(self._running) >= self._limits.requests:
            self._send_error(request_id, unavailable("too many requests at once"))
        else:
            work = self._answer(request_id, method, params)
            self._keep(key, asyncio.get_running_loop().create_task(work, context=Context()))

    def _keep(self, key: RequestId, task: asyncio.Task[None]) -> None:
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def _answer(self, request_id: RequestId, method: str, params: Json | None) -> None:
        """Handle one request. A request that its client cancelled gets no answer."""
        try:
            peer = self._peer_of(method, params)
            if method not in OPENING_METHODS:
                await asyncio.wait((self._opened,))
            if method == "initialize":
                peer = self._begin_session(peer)
            exchange = _PipeExchange(self, peer, request_id)
            result = await self._gateway.server.handle(method, params or {}, exchange)
        except RpcError as error:
            self._send_error(request_id, error)
        except Exception:
            logger.exception("the request %s failed in the gateway", method)
            self._send_error(request_id, RpcError(INTERNAL_ERROR, "the gateway failed"))
        else:
            written = to_json(request_id)
            self._put_line(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (written, result))

    def _peer_of(self, method: str, params: Json | None) -> Peer:
        if method == "initialize":
            return initialize_peer(params or {}, self._caller, self._profile)
        if method in MODERN_METHODS or PROTOCOL_VERSION_META_KEY in meta_of(params):
            return modern_peer(params, self._caller, self._profile)
        if self._peer is not None:
            return self._peer
        if method == "ping":
            return Peer(self._caller, self._profile)
        raise RpcError(INVALID_REQUEST, "send initialize first")

    def _begin_session(self, peer: Peer) -> Peer:
        """The session of a legacy client, which is told of changes until the pipe ends."""
        gateway = self._gateway
        _, session = gateway.sessions.issue(peer)
        self._peer = session.peer
        self._listening.close()
        covers = gateway.offers(self._profile).profile.covers
        listener = Listener(session.peer, covers, self.notify)
        self._listening.enter_context(gateway.changes.listening(listener))
        return session.peer

    # -- questions ------------------------------------------------------------------------------

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        request_id = f"ask-{next(self._ask_ids)}"
        waiting = self._asked[request_id] = asyncio.get_running_loop().create_future()
        self._send({"id": request_id, "method": method, "params": dict(params)})
        try:
            answer = await waiting
        except asyncio.CancelledError:
            self.notify("notifications/cancelled", {"requestId": request_id})
            raise
        finally:
            del self._asked[request_id]
        error, result = answer.get("error"), answer.get("result")
        if isinstance(error, dict):
            found = cast("Json", error)
            code = found.get("code")
            text = str(found.get("message", ""))
            raise RpcError(code if isinstance(code, int) else 0, text, found.get("data"))
        return cast("Json", result) if isinstance(result, dict) else {}

    # -- writing --------------------------------------------------------------------------------

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Dropped while the client does not read: it would pile up."""
        if self._outgoing_bytes < self._limits.stream_bytes:
            self._send({"method": method, "params": dict(params)})

    def _send(self, message: Json) -> None:
        self._put_line(to_json({"jsonrpc": "2.0", **message}, inf_nan_mode="null"))

    def _send_error(self, request_id: RequestId | None, error: RpcError) -> None:
        self._put_line(error.to_json(request_id))

    def _put_line(self, line: bytes) -> None:
        self._outgoing_bytes += len(line)
        self._outgoing.put_nowait(line)

    async def _write(self) -> None:
        """Ends when the client has closed its end."""
        try:
            while True:
                line = await self._outgoing.get()
                await self._writer.send(line + b"\n", Attempt())
                self._outgoing_bytes -= len(line)
                self._outgoing.task_done()
        except WireFault:
            logger.debug("the client does not read any more")

    async def _flush(self) -> None:
        writing = asyncio.ensure_future(self._outgoing.join())
        await finish_or_cancel(writing, END_GRACE)


def _params_of(message: Mapping[str, Any]) -> Json | None:
    found = message.get("params")
    return cast("Json", found) if isinstance(found, dict) else None
