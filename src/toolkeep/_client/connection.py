"""One connection: one open transport with one MCP session, used once and never reopened.

An owner task opens it, holds it and closes it in an empty context. Requests run in their
callers' tasks. A connection never replaces itself; `connection_manager` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from mcp_types import DiscoverResult, Implementation

from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.session import NegotiatedProtocol, OnNotification, ProtocolSession
from toolkeep._client.shared_stream import SharedStream
from toolkeep._client.stored_session import StoredSession
from toolkeep._rules.classify import Era, FaultKind, probe_timeout
from toolkeep._rules.states import ConnectionState, accepts_calls, is_final, transition_connection
from toolkeep._transport.base import (
    Attempt,
    RequestFault,
    Transport,
    WireFault,
    connection_fault,
    unreadable_fault,
)
from toolkeep.config import ServerSpec
from toolkeep.errors import ToolkeepError

logger = logging.getLogger("toolkeep.client")

_CANCEL_FLUSH_TIMEOUT = 1.0
"""Seconds that cancellations under way get to reach the server when a connection closes."""


class Connection:
    """One open channel to one endpoint and the MCP session on it. Made by a `ConnectionManager`;
    opened once, closed once, never reopened."""

    def __init__(
        self,
        transport: Transport,
        spec: ServerSpec,
        generation: int,
        *,
        client_info: Implementation,
        known_era: Era | None,
        discovered: DiscoverResult | None,
        on_notification: OnNotification,
        request_handlers: ServerRequestHandlers,
        terminations: asyncio.Semaphore,
        stored: StoredSession | None = None,
    ) -> None:
        self.generation = generation
        self.transport = transport
        self.state = ConnectionState.NEW
        self.in_flight = 0
        self.stored = stored
        """The stored record of this session, if a store holds it. The session then outlives the
        connection."""
        self.shared_stream: SharedStream | None = None
        """Where other processes hear the notifications of this session, and this one theirs."""
        self.close_reason = ""
        """Why the connection ended by itself; empty if it did not."""
        self.session_lost = False
        """Whether the server has no session left that could be terminated."""
        self.consecutive_faults = 0
        """Consecutive transport faults; those that hit concurrent requests count once."""
        self.check_task: asyncio.Task[None] | None = None
        """The session check under way, shared by all requests that need it."""
        self._spec, self._known_era, self._discovered = spec, known_era, discovered
        self._terminations = terminations
        self.session = ProtocolSession(
            transport,
            client_info=client_info,
            handlers=request_handlers,
            extensions=spec.extensions,
            on_notification=on_notification,
        )
        self._released = asyncio.Event()
        self._log_level: str | None = None
        self._ready: asyncio.Future[Exception | None] = asyncio.Future()
        self._owner: asyncio.Task[None] | None = None
        self._companions: set[asyncio.Task[None]] = set()

    @property
    def accepts_calls(self) -> bool:
        return accepts_calls(self.state)

    @property
    def is_closed(self) -> bool:
        return is_final(self.state)

    @property
    def protocol(self) -> NegotiatedProtocol | None:
        """The era and version that were agreed on; None before."""
        return self.session.protocol

    @property
    def connect_timeout(self) -> float:
        """Seconds for a handshake or a subscription."""
        return self._spec.timeouts.connect

    @property
    def era(self) -> Era | None:
        return self.protocol.era if self.protocol else None

    async def open(self, log_level: str | None = None) -> Exception | None:
        """Open the connection; returns the failure, or None. The owner task goes on if the waiting
        task is cancelled."""
        self._log_level = log_level
        self.state = transition_connection(self.state, ConnectionState.OPENING)
        self._owner = asyncio.get_running_loop().create_task(self._run_owner(), context=Context())
        return await asyncio.shield(self._ready)

    async def request(
        self, method: str, params: dict[str, Any] | None, attempt: Attempt, *, lenient: bool = False
    ) -> dict[str, Any]:
        """Send one request in the caller's task. `lenient`: return a malformed result instead of
        raising `InvalidResponse`."""
        self.in_flight += 1
        try:
            return await self.session.request(method, params, attempt, lenient=lenient)
        finally:
            self.in_flight -= 1
            if not self.in_flight and self.state is ConnectionState.DRAINING:
                self._released.set()

    async def notify(self, method: str) -> None:
        """Send a notification to a legacy server; a modern one gets none. A failure is ignored."""
        with contextlib.suppress(RequestFault):
            await self.session.notify(method)

    def drain(self, *, lost: bool) -> None:
        """Take no more calls; running ones finish here. `lost`: there is no session to
        terminate."""
        self.session_lost = self.session_lost or lost
        if self.state is not ConnectionState.READY:
            return  # the owner task was cancelled from outside, with all tasks of the loop
        self.state = transition_connection(self.state, ConnectionState.DRAINING)
        if not self.in_flight:
            self._released.set()

    def start_companion(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task of its own, until it ends or the connection does."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._companions.add(task)
        task.add_done_callback(self._companions.discard)
        if self.state is not ConnectionState.READY:
            task.cancel()
        return task

    def _cancel_companions(self) -> None:
        for task in self._companions:
            task.cancel()

    async def aclose(self, *, terminate: bool) -> None:
        """Close it now, in any state; returns when the owner task has ended."""
        if self._owner is None or self._owner.done():
            return
        self.session_lost = self.session_lost or not terminate
        if self.state is ConnectionState.OPENING:
            self._owner.cancel()
        self._released.set()
        await asyncio.wait((self._owner,))

    async def wait_closed(self, within: float) -> None:
        """Wait until the owner task has released everything."""
        if self._owner is not None:
            await asyncio.wait((self._owner,), timeout=within)

    # -- the owner task -------------------------------------------------------------------------

    async def _run_owner(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._spec.timeouts.connect
        collected = False
        try:
            if await self._run_step(self._handshake(), deadline):
                self.state = transition_connection(self.state, ConnectionState.READY)
                self._ready.set_result(None)
                await self._wait_released()
                await self._finish()
        except GeneratorExit:
            # Its event loop is closed, and the task was garbage-collected. `detach` has let go of
            # everything; an await here would run in whatever loop is running now.
            collected = True
            raise
        finally:
            if not collected:
                await self._end()

    async def _end(self) -> None:
        if (
            self.state is ConnectionState.OPENING
            and self.transport.session_id
            and not self.session_lost
        ):
            await self._terminate()  # cancelled after the server had made a session
        await self._release_transport()

    async def _wait_released(self) -> None:
        # The event loop refers to its tasks weakly, and to its timers strongly. Without a timer, an
        # open connection could be collected together with the client that has to close it.
        anchor = asyncio.get_running_loop().call_later(math.inf, self._released.set)
        try:
            await self._released.wait()
        finally:
            anchor.cancel()

    async def _run_step(self, step: Coroutine[Any, Any, None], deadline: float) -> bool:
        """Whether the step succeeded. A failure goes to `open`, which waits for it."""
        failure: Exception
        try:
            async with asyncio.timeout_at(deadline):
                await step
            return True
        except TimeoutError:
            seconds, output = self._spec.timeouts.connect, self.transport.stray_output
            text = f"no handshake within {seconds:g} s"
            if output:
                text += f"; it printed: {output}"
            text += "; if it needs more time, raise timeouts.connect"
            failure = connection_fault(text, Attempt())
        except WireFault as fault:
            failure = _as_startup_fault(fault)
        except (RequestFault, ToolkeepError) as error:
            failure = error
        except Exception as error:
            failure = unreadable_fault(f"the handshake failed with {type(error).__name__}", None)
        self._ready.set_result(failure)
        return False

    async def _handshake(self) -> None:
        await self.transport.open(self.session)
        if self.stored is not None:
            self.session.resume(self.stored.handshake)
            version = self.stored.handshake["protocolVersion"]
            self.transport.resume(self.stored.session_id, version)
        else:
            await self.session.negotiate(
                mode=self._spec.mode,
                known_era=self._known_era,
                discovered=self._discovered,
                probe_within=probe_timeout(self._spec.timeouts.connect),
            )
        if self._log_level is not None and self.era is Era.LEGACY:
            await self._set_log_level(self._log_level)

    async def _set_log_level(self, level: str) -> None:
        """Ask a legacy server for log lines. A server that refuses is used all the same."""
        try:
            await self.request("logging/setLevel", {"level": level}, Attempt(), lenient=True)
        except WireFault as fault:
            # A stored session may be gone: the next call finds out, reconnects and asks again.
            if fault.evidence.error is None and self.stored is None:
                raise
            logger.warning("%s: setting the log level failed: %s", self._spec.name, fault)

    async def _finish(self) -> None:
        if self._companions:
            self._cancel_companions()
            await asyncio.wait(tuple(self._companions))
        self.transport.stop_replying()
        await self.transport.background_tasks.flush(_CANCEL_FLUSH_TIMEOUT)
        if not self.session_lost:
            await self._terminate()

    async def _terminate(self) -> None:
        """Terminate the session. If that fails or takes too long, the server will expire the
        session by itself."""
        with contextlib.suppress(RequestFault, TimeoutError):
            async with asyncio.timeout(self._spec.timeouts.close), self._terminations:
                await self.transport.terminate()

    async def _release_transport(self) -> None:
        if self.state is ConnectionState.READY:
            self.state = ConnectionState.DRAINING  # the owner task was cancelled from outside
        if not self._ready.done():
            self._ready.set_result(
                connection_fault("the client was closed while connecting", Attempt())
            )
        self._cancel_companions()
        try:
            await self.transport.close()
        except Exception:
            logger.exception("%s: closing the transport failed", self._spec.name)
        finally:
            self.state = ConnectionState.CLOSED


def _as_startup_fault(fault: WireFault) -> WireFault:
    """Mark a process that exits during the handshake: it would exit again, and nothing was
    delivered."""
    if fault.evidence.exit_code is None:
        return fault
    evidence = dataclasses.replace(fault.evidence, kind=FaultKind.EXITED, sent=False)
    return type(fault)(evidence)
