"""One conversation on a channel that both sides write to: a pipe, or an HTTP+SSE session.

All answers and notifications share the channel, so each call follows its own log and forwards what
it finds. The first request decides the era of the channel, as mcp 2.3.0's `serve_dual_era_loop`
does, and a cancelled call is never answered. A `MessageWriter` sends the bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from toolkeep.testing._protocol import (
    META,
    ErrorResponse,
    cut_position,
    large_answer,
    override,
    unsupported_version,
)
from toolkeep.testing._state import SUBSCRIPTION_ID, Call, Listener, ServerState
from toolkeep.testing.script import MODERN, Behaviour, Cancelled, JsonObject, params_of

_CLOSE_TIMEOUT = 5.0


class MessageWriter(Protocol):
    """The way to one client. A message is written between `head` and `tail`."""

    head: bytes
    tail: bytes

    def append(self, payload: bytes) -> None: ...
    def write(self, data: bytes) -> None: ...
    def cut(self, data: bytes, how: Behaviour) -> None:
        """Write this data, then break the channel."""
        ...


class Channel:
    """The conversation with one client. Lives until its pipe or stream ends; its owner calls
    `close`.
    """

    def __init__(
        self, state: ServerState, name: str, writer: MessageWriter, gone: asyncio.Future[None]
    ) -> None:
        self.name, self.writer = name, writer
        self._state, self._gone = state, gone
        self._modern: bool | None = None
        self._calls: dict[Any, Call] = {}
        self._answering: dict[Call, asyncio.Task[None]] = {}
        self._listeners: dict[Call | None, Listener] = {}

    def receive(self, message: JsonObject) -> None:
        """Take a notification, or the answer to a request of the server."""
        method = message.get("method")
        if method is None:
            self._state.client_requests.answered(message)
        elif method == "notifications/cancelled":
            self._cancel(params_of(message).get("requestId"))
        elif method == "notifications/initialized" and not self._modern:
            self._add_listener(None, Listener(self.writer, self.name))

    def _add_listener(self, call: Call | None, listener: Listener) -> None:
        if call not in self._listeners:
            self._listeners[call] = listener
            self._state.listeners.add(listener)

    def _remove_listener(self, call: Call | None) -> None:
        if (listener := self._listeners.pop(call, None)) is not None:
            self._state.listeners.remove(listener)

    def _cancel(self, request_id: Any) -> None:
        call = self._calls.get(request_id)
        self._state.cancelled.append(
            Cancelled(request_id, call.tool if call is not None else None, "notification")
        )
        if call is not None:
            for task in (call.task, self._answering.get(call)):
                if task is not None:
                    task.cancel()

    def check(self, message: JsonObject) -> ErrorResponse | None:
        """Why the protocol does not allow this request on this channel; None if it does."""
        era = self._state.settings.era
        meta: JsonObject = params_of(message).get("_meta") or {}
        enveloped, begins = f"{META}protocolVersion" in meta, message["method"] == "initialize"
        if self._modern is None:
            self._modern = era == "modern" or (era == "both" and enveloped and not begins)
        if not self._modern:
            if era == "both" and enveloped and not begins:
                return ErrorResponse(-32600, "this connection serves the handshake protocol era")
            return None
        if begins:
            return unsupported_version(params_of(message).get("protocolVersion"))
        if not self._state.settings.strict:
            return None
        if not enveloped or f"{META}clientCapabilities" not in meta:
            return ErrorResponse(-32602, "params._meta lacks its envelope keys")
        version = meta[f"{META}protocolVersion"]
        return None if version == MODERN else unsupported_version(version)

    def begin(self, message: JsonObject, how: Behaviour, headers: dict[str, str]) -> Call:
        """Run a request, unless its behaviour or the protocol forbids it."""
        refused = self.check(message)
        call = Call(
            message,
            modern=bool(self._modern),
            session=self.name,
            name=self._state.new_stream(),
        )
        self._calls[call.request_id] = call
        if not how.runs:
            call.succeed({})
        elif refused is not None:
            call.fail(refused)
        elif call.method == "subscriptions/listen" and call.modern:
            self._listen(call, params_of(message).get("notifications") or {})
        else:
            self._state.run(call, params_of(message), headers)
        return call

    def answer(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        task = asyncio.create_task(self._answer(call, message, how))
        self._answering[call] = task
        task.add_done_callback(lambda _: self.discard(call))

    def discard(self, call: Call) -> None:
        self._remove_listener(call)
        self._answering.pop(call, None)
        if self._calls.get(call.request_id) is call:
            del self._calls[call.request_id]

    def _listen(self, call: Call, wanted: JsonObject) -> None:
        """Listen until the call is cancelled. A broken listener ends with a result, as that of the
        SDK's server does.
        """
        meta = {SUBSCRIPTION_ID: call.request_id}
        call.emit(
            "notifications/subscriptions/acknowledged", {"notifications": wanted, "_meta": meta}
        )
        request: JsonObject = {"id": call.request_id, "filter": wanted}
        self._add_listener(
            call,
            Listener(call.log, self.name, request, lambda reset: call.succeed({"_meta": meta})),
        )

    async def _answer(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        if how.drop in ("before_body", "after_body"):
            await self._pause(how.delay)
            self.writer.cut(b"", how)
            return
        await self._forward_notifications(call)
        begins = call.method == "initialize"
        await self._pause(how.delay + begins * self._state.settings.initialize_delay)
        if how.hang:
            await asyncio.wait((self._gone,))
        if self._gone.done():
            return
        if how.drop == "after_run":
            self.writer.cut(b"", how)
        else:
            self._write(call, message, how)

    async def _forward_notifications(self, call: Call) -> None:
        """Send everything that the call emits before its answer."""
        position, log = 0, call.log
        while await log.has_event(position, self._gone):
            if log.done and position == len(log.events) - 1:
                return
            self.writer.append(log.events[position])
            position += 1

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await asyncio.wait((self._gone,), timeout=seconds)

    def _write(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        writer = self.writer
        if how.prefix_lines:
            writer.write(how.prefix_lines.encode("utf-8", "surrogateescape"))
        if how.body_bytes:
            for part in (writer.head, *large_answer(call.request_id, how.body_bytes), writer.tail):
                writer.write(part)
            return
        payload = override(how, message) or call.answer
        if how.body is not None:
            payload = how.body.encode("utf-8", "surrogateescape")
        whole = writer.head + payload + writer.tail
        if (cut := cut_position(how, len(whole))) is not None:
            writer.cut(whole[:cut], how)
        else:
            writer.write(whole)

    def client_left(self) -> None:
        """Record every running call as given up by the client."""
        for call in self._calls.values():
            if call not in self._listeners:
                self._state.cancelled.append(Cancelled(call.request_id, call.tool, "disconnect"))

    async def close(self) -> None:
        """End everything that runs for this client."""
        self._remove_listener(None)
        running = [call.task for call in self._calls.values() if call.task is not None]
        tasks = [*self._answering.values(), *running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
