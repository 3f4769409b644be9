"""Conversation on one channel both ways: a pipe, or an HTTP+SSE session.

All answers and notifications share the channel, so each call follows its own log and passes on what
it finds. The first request decides the era for good, as mcp 2.3.0's `serve_dual_era_loop` does, and
a cancelled call is never answered. How bytes reach the client is the mouth's business.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from toolkeep.testing._answer import cut_at, large_parts, override_of
from toolkeep.testing._calls import Call
from toolkeep.testing._engine import Engine
from toolkeep.testing._listening import SUBSCRIPTION, Listener
from toolkeep.testing._methods import RpcFault
from toolkeep.testing._options import MODERN
from toolkeep.testing.script import Behaviour, Cancelled, JsonObject, params_of

_META = "io.modelcontextprotocol/"


class Mouth(Protocol):
    """The way to one client. A message is written between `head` and `tail`."""

    head: bytes
    tail: bytes

    def append(self, payload: bytes) -> None: ...
    def write(self, data: bytes) -> None: ...
    def cut(self, data: bytes, how: Behaviour) -> None:
        """Write that much, then break off."""
        ...


class Channel:
    """One client's conversation. Lives until its pipe or stream ends; its owner calls `leave`."""

    def __init__(self, engine: Engine, name: str, mouth: Mouth, gone: asyncio.Future[None]) -> None:
        self.name, self.mouth = name, mouth
        self._engine, self._gone = engine, gone
        self._modern: bool | None = None
        self._calls: dict[Any, Call] = {}
        self._answering: dict[Call, asyncio.Task[None]] = {}
        self._listening: dict[Call | None, Listener] = {}

    def hear(self, message: JsonObject) -> None:
        """A notification, or the answer to a question of ours."""
        method = message.get("method")
        if method is None:
            self._engine.desk.answered(message)
        elif method == "notifications/cancelled":
            self._cancel(params_of(message).get("requestId"))
        elif method == "notifications/initialized" and not self._modern:
            self._join(None, Listener(self.mouth, self.name))

    def _join(self, call: Call | None, listener: Listener) -> None:
        if call not in self._listening:
            self._listening[call] = listener
            self._engine.audience.join(listener)

    def _part(self, call: Call | None) -> None:
        if (listener := self._listening.pop(call, None)) is not None:
            self._engine.audience.leave(listener)

    def _cancel(self, request_id: Any) -> None:
        call = self._calls.get(request_id)
        self._engine.cancelled.append(
            Cancelled(request_id, call.tool if call is not None else None, "notification")
        )
        if call is not None:
            for task in (call.task, self._answering.get(call)):
                if task is not None:
                    task.cancel()

    def refusal(self, message: JsonObject) -> RpcFault | None:
        """Why the protocol does not allow this request, on this channel."""
        era = self._engine.settings.era
        meta: JsonObject = params_of(message).get("_meta") or {}
        enveloped, begins = f"{_META}protocolVersion" in meta, message["method"] == "initialize"
        if self._modern is None:
            self._modern = era == "modern" or (era == "both" and enveloped and not begins)
        if not self._modern:
            if era == "both" and enveloped and not begins:
                return RpcFault(-32600, "this connection serves the handshake protocol era")
            return None
        if begins:
            asked = params_of(message).get("protocolVersion")
            return _unsupported(asked)
        if not self._engine.settings.strict:
            return None
        if not enveloped or f"{_META}clientCapabilities" not in meta:
            return RpcFault(-32602, "params._meta lacks its envelope keys")
        version = meta[f"{_META}protocolVersion"]
        return None if version == MODERN else _unsupported(version)

    def begin(self, message: JsonObject, how: Behaviour, headers: dict[str, str]) -> Call:
        """Let a request run, unless behaviour or protocol forbid it."""
        refused = self.refusal(message)
        call = Call(
            message,
            modern=bool(self._modern),
            session=self.name,
            name=self._engine.new_stream(),
        )
        self._calls[call.request_id] = call
        if not how.runs:
            call.succeed({})
        elif refused is not None:
            call.fail(refused)
        elif call.method == "subscriptions/listen" and call.modern:
            self._listen(call, params_of(message).get("notifications") or {})
        else:
            self._engine.run(call, params_of(message), headers)
        return call

    def answer(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        task = asyncio.create_task(self._finish(call, message, how))
        self._answering[call] = task
        task.add_done_callback(lambda _: self.forget(call))

    def forget(self, call: Call) -> None:
        self._part(call)
        self._answering.pop(call, None)
        if self._calls.get(call.request_id) is call:
            del self._calls[call.request_id]

    def _listen(self, call: Call, wish: JsonObject) -> None:
        """Until it is cancelled; broken off, it ends with a result, as the SDK's server does."""
        meta = {SUBSCRIPTION: call.request_id}
        call.emit(
            "notifications/subscriptions/acknowledged", {"notifications": wish, "_meta": meta}
        )
        asked: JsonObject = {"id": call.request_id, "filter": wish}
        self._join(
            call,
            Listener(call.log, self.name, asked, lambda reset: call.succeed({"_meta": meta})),
        )

    async def _finish(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        if how.drop in ("before_body", "after_body"):
            await self._pause(how.delay)
            self.mouth.cut(b"", how)
            return
        await self._pass_on(call)
        begins = call.method == "initialize"
        await self._pause(how.delay + begins * self._engine.settings.initialize_delay)
        if how.hang:
            await asyncio.wait((self._gone,))
        if self._gone.done():
            return
        if how.drop == "after_run":
            self.mouth.cut(b"", how)
        else:
            self._write(call, message, how)

    async def _pass_on(self, call: Call) -> None:
        """Send what the call says before its answer."""
        position, log = 0, call.log
        while await log.beyond(position, self._gone):
            if log.done and position == len(log.events) - 1:
                return
            self.mouth.append(log.events[position])
            position += 1

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await asyncio.wait((self._gone,), timeout=seconds)

    def _write(self, call: Call, message: JsonObject, how: Behaviour) -> None:
        mouth = self.mouth
        if how.prefix_lines:
            mouth.write(how.prefix_lines.encode("utf-8", "surrogateescape"))
        if how.body_bytes:
            for part in (mouth.head, *large_parts(call.request_id, how.body_bytes), mouth.tail):
                mouth.write(part)
            return
        payload = override_of(how, message) or call.answer
        if how.body is not None:
            payload = how.body.encode("utf-8", "surrogateescape")
        whole = mouth.head + payload + mouth.tail
        if (cut := cut_at(how, len(whole))) is not None:
            mouth.cut(whole[:cut], how)
        else:
            mouth.write(whole)

    def give_up(self) -> None:
        """The client has left while calls ran."""
        for call in self._calls.values():
            if call not in self._listening:
                self._engine.cancelled.append(Cancelled(call.request_id, call.tool, "disconnect"))

    async def leave(self) -> None:
        """End everything that runs for this client."""
        self._part(None)
        running = [call.task for call in self._calls.values() if call.task is not None]
        tasks = [*self._answering.values(), *running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)


def _unsupported(asked: Any) -> RpcFault:
    data = {"supported": [MODERN], "requested": asked or ""}
    return RpcFault(-32022, "Unsupported protocol version", data=data)
