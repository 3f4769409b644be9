"""A server in this process as a `MessageChannel`: the SDK's own, FastMCP's, or one made of
functions.

The server runs in its own task and an empty context, once per channel; its lifespan begins and
ends with it. Messages have no size limit: they are in memory already. A tool must never affect
a caller except through its response. `mcp.server` is slow to import, so the factory imports
this module on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any, cast

import anyio
import anyio.to_thread
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.shared._context_streams import create_context_streams
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ToolAnnotations, jsonrpc_message_adapter

from toolkeep._transport.base import (
    Attempt,
    CloseReason,
    ReceivedMessage,
    connection_fault,
)
from toolkeep.config import ServerSpec
from toolkeep.config.functions import ToolFunction, as_tools
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.transport")

_END_TIMEOUT = 1.0
"""Seconds from the end of the server's stream to the end of its task, which tells the reason."""
_GRACE_SHARE = 0.6
"""The part of `timeouts.close` in which a server may end by itself."""

_cancelled_by_server: ContextVar[bool] = ContextVar("toolkeep_cancelled_by_server", default=False)
"""Set in the context of a request that the server, and not its handler, has cancelled."""

_StreamItem = SessionMessage | Exception


class InProcessChannel:
    """One run of one server, in a task of this process."""

    replies_during_send = False
    last_received_at = 0.0
    session_id = None
    stray_output = ""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        # Unbounded, so that `send` never waits: a cancellation while it waits would leave open
        # whether the message was handed over. The calls in flight are limited elsewhere.
        self._to_server, self._server_reads = create_context_streams[_StreamItem](math.inf)
        self._server_writes, self._from_server = create_context_streams[_StreamItem](1)
        self._server_task: asyncio.Task[None] | None = None
        self._failure = ""

    async def open(self) -> None:
        # A copy, because the list of middleware belongs to the user. All else is shared.
        server = copy.copy(_resolve_server(self._spec))
        server.middleware = [_isolate_handler, *server.middleware]
        loop = asyncio.get_running_loop()
        self._server_task = loop.create_task(self._run(server), context=Context())

    async def _run(self, server: Server[Any]) -> None:
        try:
            options = server.create_initialization_options()
            async with _outer_lifespan(self._spec.server):
                await server.run(self._server_reads, self._server_writes, options)
        except Exception as error:
            logger.exception("%s: the server in this process failed", self._spec.name)
            self._failure = f" with {type(_innermost(error)).__name__}"
        finally:
            # The SDK leaves the streams open when a lifespan fails.
            self._server_reads.close()
            self._server_writes.close()

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        message = SessionMessage(jsonrpc_message_adapter.validate_json(body, by_name=False))
        try:
            await self._to_server.send(message)
            attempt.sent = True
            return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        raise connection_fault("the server in this process has ended", attempt)

    async def receive(self) -> Sequence[ReceivedMessage] | None:
        while True:
            try:
                item = await self._from_server.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                return None
            if isinstance(item, SessionMessage) and not _is_shutdown_error(
                self._from_server.last_context
            ):
                message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                return [message]

    async def close_reason(self) -> CloseReason:
        if self._server_task is not None:
            await asyncio.wait((self._server_task,), timeout=_END_TIMEOUT)
        return CloseReason(f"the server in this process ended{self._failure}")

    async def close(self) -> None:
        self._to_server.close()
        self._from_server.close()
        if self._server_task is not None:
            await self._end(self._server_task, self._spec.timeouts.close)
        self._server_reads.close()
        self._server_writes.close()  # wakes a task that still receives

    async def _end(self, running: asyncio.Task[None], budget: float) -> None:
        await asyncio.wait((running,), timeout=budget * _GRACE_SHARE)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=budget * (1 - _GRACE_SHARE))
        if not running.done():
            logger.warning(
                "%s: the server still runs, because a tool in a thread cannot be stopped",
                self._spec.name,
            )

    def detach(self, *, forked: bool) -> None:
        """Close the streams. The server's task never runs again without its event loop."""
        streams = (self._to_server, self._from_server, self._server_reads, self._server_writes)
        for stream in streams:
            with contextlib.suppress(RuntimeError):  # a task of the closed loop waits on it
                stream.close()


def _resolve_server(spec: ServerSpec) -> Server[Any]:
    given = spec.server
    if isinstance(given, Server):
        return cast("Server[Any]", given)
    if isinstance(given, MCPServer):
        return _lowlevel_server(cast("MCPServer[Any]", given))
    wrapped = getattr(given, "_mcp_server", None)
    if isinstance(wrapped, Server):  # of FastMCP (4.1)
        return cast("Server[Any]", wrapped)
    try:
        functions = as_tools(
            cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
        )
    except ConfigError as error:
        raise ConfigError(
            error.problem, remedy=error.remedy, server=spec.name, key="server"
        ) from None
    server = _create_server(spec.name)
    for function in functions:
        _add_tool(server, function, spec.name)
    return _lowlevel_server(server)


def _outer_lifespan(given: object) -> contextlib.AbstractAsyncContextManager[Any]:
    """What has to be open while a server of FastMCP (4.1) runs, shared by all its runs. The SDK's
    servers open their own lifespans."""
    manager: Any = getattr(given, "_lifespan_manager", contextlib.nullcontext)
    return manager()


def _create_server(name: str) -> MCPServer[Any]:
    # The SDK (2.3.0) configures the logging of the whole process unless the root logger already
    # has a handler.
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        return MCPServer(name)
    finally:
        root.removeHandler(handler)


def _lowlevel_server(server: MCPServer[Any]) -> Server[Any]:
    return server._lowlevel_server  # pyright: ignore[reportPrivateUsage]


def _add_tool(server: MCPServer[Any], tool: ToolFunction, name: str) -> None:
    hints = ToolAnnotations(
        read_only_hint=tool.read_only,
        destructive_hint=tool.destructive,
        idempotent_hint=tool.idempotent,
        open_world_hint=tool.open_world,
    )
    try:
        server.add_tool(
            _as_async(tool),
            name=tool.name,
            title=tool.title,
            description=tool.description,
            annotations=hints if hints != ToolAnnotations() else None,
        )
    except Exception as error:
        problem = f"{tool.name} cannot be a tool: {error}"
        remedy = "Give an MCPServer of the SDK, or functions with typed parameters"
        raise ConfigError(problem, server=name, key="server", remedy=remedy) from None


def _as_async(tool: ToolFunction) -> Callable[..., Awaitable[Any]]:
    """An async function with the tool's signature, for the SDK, which passes keywords only.

    A sync function runs in a thread. The SDK (2.3.0) would do so, too, but when the call is
    cancelled it waits for the thread, however long that takes.
    """
    signature, is_async = tool.signature(), tool.is_async
    positional = [
        one.name for one in signature.parameters.values() if one.kind is one.POSITIONAL_ONLY
    ]

    async def run(**arguments: Any) -> Any:
        args = [arguments.pop(name) for name in positional]
        if is_async:
            return await tool(*args, **arguments)
        call = functools.partial(tool, *args, **arguments)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result

    run.__name__ = run.__qualname__ = tool.name
    run.__signature__ = signature
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    if signature.return_annotation is not signature.empty:
        run.__annotations__["return"] = signature.return_annotation
    return run


async def _isolate_handler(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Handle one message in a task group of its own.

    A handler that raises `CancelledError` (awaiting a cancelled task is enough) would otherwise
    cancel the task group of the SDK's dispatcher (2.3.0), and so every other call.
    """
    outcome: list[HandlerResult] = []
    failure: list[Exception] = []

    async def handle() -> None:
        try:
            outcome.append(await call_next(ctx))
        except Exception as error:
            failure.append(error)
        except SystemExit:  # wrapped command lines raise it; it would end this whole process
            failure.append(MCPError(INTERNAL_ERROR, "the handler raised SystemExit"))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle)
    except asyncio.CancelledError:
        _cancelled_by_server.set(True)
        raise
    if failure:
        raise failure[0]
    if not outcome:
        raise MCPError(INTERNAL_ERROR, "the handler was cancelled, but not by its caller")
    return outcome[0]


def _is_shutdown_error(sender: Context | None) -> bool:
    """Whether a message is the error that a server sends for a request it cancels when it ends.

    The error (SDK 2.3.0) reads as if the request had been refused. It may have run, so the
    message is dropped, and the end of the channel makes the outcome unknown.
    """
    return sender is not None and sender.get(_cancelled_by_server, False)


def _innermost(error: BaseException) -> BaseException:
    """The first plain exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
