"""Calls: a JSON-RPC request on its way to an answer, whoever is still listening.

A call that takes time runs in a task of its own, owned by the engine, so that a broken connection
does not end it unless the era says so. Its log holds every notification and, last, the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from toolkeep.testing._events import EventLog, encode
from toolkeep.testing._methods import NO_CACHE, RpcFault, dress
from toolkeep.testing.script import JsonObject, params_of

# What mcp 2.3.0's server answers to a request that was cancelled (server/streamable_http.py).
REQUEST_CANCELLED = -32800


class Call:
    """One request being answered. Lives until its answer is in the log."""

    __slots__ = (
        "answer",
        "hints",
        "log",
        "method",
        "modern",
        "request_id",
        "session",
        "status",
        "task",
        "tool",
    )

    def __init__(
        self, message: JsonObject, *, modern: bool, session: str | None, name: str
    ) -> None:
        self.method: str = message["method"]
        self.request_id: Any = message["id"]
        self.tool: str | None = (
            params_of(message).get("name") if self.method == "tools/call" else None
        )
        self.modern, self.session = modern, session
        self.log = EventLog(name)
        self.answer: bytes = b""
        self.status = 200
        self.hints = NO_CACHE
        self.task: asyncio.Task[None] | None = None

    def emit(self, method: str, params: JsonObject) -> None:
        self.log.append(encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def succeed(self, result: JsonObject) -> None:
        dressed = dress(result, self.method, self.hints) if self.modern else result
        self._end({"jsonrpc": "2.0", "id": self.request_id, "result": dressed})

    def fail(self, fault: RpcFault) -> None:
        self.status = fault.status
        self._end({"jsonrpc": "2.0", "id": self.request_id, "error": fault.as_error()})

    def _end(self, message: JsonObject) -> None:
        self.answer = encode(message)
        self.log.append(self.answer)
        self.log.finish()

    async def finish(self, work: Awaitable[JsonObject]) -> None:
        try:
            self.succeed(await work)
        except RpcFault as fault:
            self.fail(fault)
        except asyncio.CancelledError:
            self.fail(RpcFault(REQUEST_CANCELLED, "Request cancelled"))
            raise
        except Exception as error:  # a tool's mistake is an answer, as in every server
            self.fail(RpcFault(-32602, f"{type(error).__name__}: {error}"))
