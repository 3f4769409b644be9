"""Transports to a program that one process runs for all (`shared_program`).

A transport runs the program itself where this process is its owner, and forwards to the owner
otherwise. Which it is, is found out when it is opened, and stays so until it is closed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mcp_types import RequestId

from toolkeep._rules.recovery import TransportKind
from toolkeep._tasks import BackgroundTasks
from toolkeep._transport.base import (
    NO_HEADERS,
    Attempt,
    InboundHandler,
    OnLost,
    Transport,
    TransportFactory,
    WireFault,
    connection_fault,
)
from toolkeep._transport.jsonrpc import RpcExchange
from toolkeep._transport.shared_program import Message, ProgramIdentity, SharedProgram

_LISTEN = "subscriptions/listen"
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_NOT_PASSED_ON = ("notifications/cancelled", _ACKNOWLEDGED)
_SUBSCRIPTION_ID_KEY = "io.modelcontextprotocol/subscriptionId"


class _Tap:
    """Passes the program's notifications on to the other processes, too."""

    def __init__(
        self, handler: InboundHandler, program: SharedProgram, identity: ProgramIdentity
    ) -> None:
        self._handler, self._program, self._identity = handler, program, identity

    async def on_request(
        self, method: str, params: Mapping[str, Any] | None, attempt: Attempt
    ) -> Mapping[str, Any]:
        return await self._handler.on_request(method, params, attempt)

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        await self._handler.on_notification(method, params)
        if method not in _NOT_PASSED_ON:
            self._program.broadcast(self._identity.key, method, params)


class SharedProgramTransport:
    """A connection to a program that one process runs for all: to the program itself where this
    process is the owner, and otherwise to the owner."""

    session_id: str | None = None

    def __init__(
        self,
        program: SharedProgram,
        create_own: Callable[[], Transport],
        identity: ProgramIdentity,
        on_lost: OnLost,
    ) -> None:
        """`create_own`: a transport on which this process runs the program."""
        self._program, self._create_own, self._on_lost = program, create_own, on_lost
        self._identity = identity
        self._own: Transport | None = None
        self._handler: InboundHandler | None = None
        self._closed = asyncio.Event()
        self._lost_because = ""
        self.background_tasks = BackgroundTasks()

    @property
    def stray_output(self) -> str:
        return self._own.stray_output if self._own is not None else ""

    async def open(self, handler: InboundHandler) -> None:
        owner = await self._program.enter(self)
        self._handler = handler
        if not owner:
            self._own = self._create_own()
            self.background_tasks = self._own.background_tasks
            await self._own.open(_Tap(handler, self._program, self._identity))

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        attempt: Attempt,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        request_id: RequestId | None = None,
        cancellable: bool = True,
    ) -> Message:
        if self._lost_because or self._handler is None:
            raise connection_fault(self._lost_because or "it is not open", attempt)
        if self._own is not None:
            options: Any = {"request_id": request_id, "cancellable": cancellable}
            try:
                return await self._own.request(method, params, attempt, headers=headers, **options)
            except WireFault as fault:
                if not self._lost_because or fault.evidence.error is not None:
                    raise
                raise WireFault(replace(fault.evidence, detail=self._lost_because)) from None
        if method == _LISTEN:
            return await self._listen(self._handler, str(request_id))
        if method == "resources/unsubscribe":
            return {}  # other processes may still want to hear of it
        exchange = RpcExchange(uuid.uuid4().hex, method, attempt, headers, cancellable)
        return await self._program.forward(self._identity, exchange, params, self._handler)

    async def _listen(self, handler: InboundHandler, request_id: str) -> Message:
        """The owner hears the program's notifications, and passes them on."""
        changes = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
        params = {
            "_meta": {_SUBSCRIPTION_ID_KEY: request_id},
            "notifications": dict.fromkeys(changes, True),
        }
        await handler.on_notification(_ACKNOWLEDGED, params)
        await self._closed.wait()
        return {}

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """The owner's own session notifies the program."""
        if self._own is not None:
            await self._own.notify(method, params, headers=headers)

    def resume(self, session_id: str, version: str) -> None:
        """Never called: the session ends with the program (`TransportFactory.resumable`)."""

    async def listen(self, on_open: Callable[[], None]) -> None:
        on_open()

    def hear(self, key: str | None, method: str, params: Mapping[str, Any] | None) -> None:
        """The owner has passed on a notification for the session of this identity."""
        if self._own is None and self._handler is not None and key == self._identity.key:
            self.background_tasks.start(self._handler.on_notification(method, params))

    def lose(self, reason: str) -> None:
        """The process that ran the program does so no longer."""
        if self._handler is not None and not self._lost_because:
            self._lost_because = reason
            self._on_lost(reason)

    async def stop_program(self, reason: str) -> None:
        """This process is no longer the owner."""
        if self._own is not None:
            self.lose(reason)
            await self._own.close()

    def stop_replying(self) -> None:
        if self._own is not None:
            self._own.stop_replying()

    async def terminate(self) -> None:
        """Do nothing: the session ends with the program."""

    async def close(self) -> None:
        self._closed.set()
        self._handler = None
        if self._own is not None:
            await self._own.close()
        else:
            self.background_tasks.cancel()


class SharedProgramFactory:
    """Creates the transports of one client to a program that one process runs for all."""

    kind = TransportKind.DUPLEX
    resumable = False
    exclusive = True
    supports_modern = True

    def __init__(
        self, program: SharedProgram, own: TransportFactory, identity: ProgramIdentity
    ) -> None:
        """`own`: creates transports on which this process runs the program."""
        self._program, self._own, self._identity = program, own, identity

    def create(self, on_lost: OnLost) -> Transport:
        create_own = partial(self._own.create, on_lost)
        return SharedProgramTransport(self._program, create_own, self._identity, on_lost)

    async def probe(self) -> None:
        """None: there is no HTTP endpoint to probe."""

    def detach(self, *, forked: bool) -> None:
        self._own.detach(forked=forked)
