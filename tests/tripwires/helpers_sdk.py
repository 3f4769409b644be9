"""A dispatcher with ready answers, under a session of the SDK's. Nothing here asserts anything."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from pydantic import RootModel

MODERN = "2026-07-28"
INFO = {"name": "kit", "version": "1"}
INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO}
DISCOVERED = {"supportedVersions": [MODERN], "capabilities": {}, "resultType": "complete"}
DISCOVERED |= {"ttlMs": 0, "cacheScope": "public"}
CALLED = {"content": [], "structuredContent": {"n": "x"}, "resultType": "complete"}
LISTED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
NUMBERS = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}

where: ContextVar[str] = ContextVar("where", default="nowhere")


class Raw(RootModel[dict[str, Any]]):
    pass


class Canned:
    """A dispatcher with ready answers, or faults, by method."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"initialize": INITIALIZED, "server/discover": DISCOVERED, **answers}
        self.sent: list[tuple[str, Any, CallOptions]] = []
        self.tasks: list[Any] = []
        self.contexts: list[str] = []

    async def run(
        self,
        on_request: Any,
        on_notify: Any,
        on_notify_intercept: Any = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        await anyio.sleep_forever()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        self.sent.append((method, params, opts or {}))
        self.tasks.append(asyncio.current_task())
        self.contexts.append(where.get())
        answer = self.answers[method]
        if isinstance(answer, BaseException):
            raise answer
        return dict(answer)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        self.sent.append((method, params, opts or {}))

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.sent]


@asynccontextmanager
async def session_on(
    wire: Canned, adopted: dict[str, Any] | None = None, **callbacks: Any
) -> AsyncIterator[Any]:
    session = ClientSession(dispatcher=wire, **callbacks)
    async with session:
        if adopted is INITIALIZED:
            session.adopt(types.InitializeResult.model_validate(adopted))
        elif adopted is not None:
            session.adopt(types.DiscoverResult.model_validate(adopted))
        yield session
