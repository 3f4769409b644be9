"""A server in this process as a `Duct`: the SDK's own, or one made of functions.

The server runs in a task of its own, in an empty context, one run for each duct; its lifespan is
entered and left with it. Nothing that a tool does reaches a caller but its answer. There is no
bound on the size of a message: it is in this process's memory already when it gets here.

The import of `mcp.server` is dear, so this module is imported by whoever needs it, when he does.
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

from toolkeep._wire.attempt import Attempt, current_attempt
from toolkeep._wire.duct import Epitaph, Received
from toolkeep._wire.exchange import broken
from toolkeep.config import ServerSpec
from toolkeep.config.functions import ToolFunction, as_tools
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.wire")

_LAST_BREATH = 1.0
"""Seconds for a server that has closed its stream to say why."""
_GRACE = 0.6
"""The part of `timeouts.close` in which a server may end by itself."""

_cut_off: ContextVar[bool] = ContextVar("toolkeep_cut_off", default=False)
"""Set where a request was handled that the server, not its handler, has ended."""

Item = SessionMessage | Exception


class LocalDuct:
    """One run of one server."""

    kind = "memory"
    answers_apart = False
    heard_at = 0.0
    session_id = None
    said = ""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        # Unbounded, so that to send is to have handed over: where `send` could wait, a
        # cancellation would leave open whether it had. Calls in flight are bounded elsewhere.
        self._outgoing, self._server_reads = create_context_streams[Item](math.inf)
        self._server_writes, self._incoming = create_context_streams[Item](1)
        self._running: asyncio.Task[None] | None = None
        self._failure = ""

    async def open(self) -> None:
        # The copy shares everything but the list of middleware, which is its user's.
        server = copy.copy(_server_of(self._spec))
        server.middleware = [_contain, *server.middleware]
        loop = asyncio.get_running_loop()
        self._running = loop.create_task(self._run(server), context=Context())

    async def _run(self, server: Server[Any]) -> None:
        try:
            options = server.create_initialization_options()
            await server.run(self._server_reads, self._server_writes, options)
        except Exception as error:
            logger.exception("%s: the server in this process failed", self._spec.name)
            self._failure = f" with {type(_first(error)).__name__}"
        finally:
            # A lifespan that fails leaves them open.
            self._server_reads.close()
            self._server_writes.close()

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        message = SessionMessage(jsonrpc_message_adapter.validate_json(body, by_name=False))
        # The tool runs in a copy of the caller's context; what it calls has attempts of its own.
        token = current_attempt.set(None)
        try:
            await self._outgoing.send(message)
            attempt.sent = True
            return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            current_attempt.reset(token)
        raise broken("the server in this process has ended", attempt)

    async def receive(self) -> Sequence[Received] | None:
        while True:
            try:
                item = await self._incoming.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                return None
            if isinstance(item, SessionMessage) and not _is_excuse(self._incoming.last_context):
                message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                return [message]

    async def epitaph(self) -> Epitaph:
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=_LAST_BREATH)
        return Epitaph(f"the server in this process ended{self._failure}")

    async def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()
        if self._running is not None:
            await self._end(self._running, self._spec.timeouts.close)
        self._server_reads.close()
        self._server_writes.close()  # wakes whoever still receives

    async def _end(self, running: asyncio.Task[None], budget: float) -> None:
        await asyncio.wait((running,), timeout=budget * _GRACE)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=budget * (1 - _GRACE))
        if not running.done():
            logger.warning("%s: a tool in a thread cannot be stopped", self._spec.name)

    def abandon(self, *, forked: bool) -> None:
        """A task without its loop never runs again; what it held may go."""
        streams = (self._outgoing, self._incoming, self._server_reads, self._server_writes)
        for stream in streams:
            with contextlib.suppress(RuntimeError):  # somebody waits on it, in a closed loop
                stream.close()


def _server_of(spec: ServerSpec) -> Server[Any]:
    given = spec.server
    if isinstance(given, Server):
        return cast("Server[Any]", given)
    if isinstance(given, MCPServer):
        return _under(cast("MCPServer[Any]", given))
    try:
        functions = as_tools(
            cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
        )
    except ConfigError as error:
        raise ConfigError(
            error.problem, remedy=error.remedy, server=spec.name, key="server"
        ) from None
    made = _new_server(spec.name)
    for function in functions:
        _add(made, function, spec.name)
    return _under(made)


def _new_server(name: str) -> MCPServer[Any]:
    # The SDK (2.3.0) sets up the logging of the whole process, unless somebody has before.
    root, somebody = logging.getLogger(), logging.NullHandler()
    root.addHandler(somebody)
    try:
        return MCPServer(name)
    finally:
        root.removeHandler(somebody)


def _under(server: MCPServer[Any]) -> Server[Any]:
    return server._lowlevel_server  # pyright: ignore[reportPrivateUsage]


def _add(server: MCPServer[Any], tool: ToolFunction, name: str) -> None:
    hints = ToolAnnotations(
        read_only_hint=tool.read_only,
        destructive_hint=tool.destructive,
        idempotent_hint=tool.idempotent,
        open_world_hint=tool.open_world,
    )
    try:
        server.add_tool(
            _unblocking(tool),
            name=tool.name,
            title=tool.title,
            description=tool.description,
            annotations=hints if hints != ToolAnnotations() else None,
        )
    except Exception as error:
        what = f"{tool.name} cannot be a tool: {error}"
        remedy = "Give an MCPServer of the SDK, or functions with typed parameters"
        raise ConfigError(what, server=name, key="server", remedy=remedy) from None


def _unblocking(tool: ToolFunction) -> Callable[..., Awaitable[Any]]:
    """What the SDK calls, by names alone, and reads as if it were the function.

    A sync function runs in a thread. The SDK (2.3.0) would do so, too, but when the call is
    cancelled it waits for the thread, however long that takes.
    """
    signature, is_async = tool.signature(), tool.is_async
    by_place = [
        one.name for one in signature.parameters.values() if one.kind is one.POSITIONAL_ONLY
    ]

    async def run(**arguments: Any) -> Any:
        placed = [arguments.pop(name) for name in by_place]
        if is_async:
            return await tool(*placed, **arguments)
        call = functools.partial(tool, *placed, **arguments)
        found = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await found if inspect.isawaitable(found) else found

    run.__name__ = run.__qualname__ = tool.name
    run.__signature__ = signature
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    if signature.return_annotation is not signature.empty:
        run.__annotations__["return"] = signature.return_annotation
    return run


async def _contain(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Handle one message in a task group of its own.

    A handler that raises `CancelledError` (awaiting a task that somebody cancelled is enough)
    would otherwise cancel the group of the SDK's dispatcher (2.3.0), and so every other call.
    """
    outcome: list[HandlerResult] = []
    failure: list[Exception] = []

    async def handle() -> None:
        try:
            outcome.append(await call_next(ctx))
        except Exception as error:
            failure.append(error)
        except SystemExit:  # wrapped command lines raise it; it would end the whole program
            failure.append(MCPError(INTERNAL_ERROR, "the handler ended with SystemExit"))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle)
    except asyncio.CancelledError:
        _cut_off.set(True)
        raise
    if failure:
        raise failure[0]
    if not outcome:
        raise MCPError(INTERNAL_ERROR, "the handler was cancelled, though not by its caller")
    return outcome[0]


def _is_excuse(sender: Context | None) -> bool:
    """A server that ends answers what it has cut off with an error (SDK 2.3.0), as if that had
    been refused. It may have run, and the end of the duct says so."""
    return sender is not None and sender.get(_cut_off, False)


def _first(error: BaseException) -> BaseException:
    """What a group of exceptions is about."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
