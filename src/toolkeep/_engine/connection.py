"""One connection: a generation of one open channel, used once, never revived.

Its owner task opens it, holds it and closes it, in an empty context, so that nothing of the caller
who happened to come first lives on in it. The owner owns the lifetime, not the traffic: calls go
through the session in their callers' own tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Coroutine, Mapping
from contextvars import Context
from typing import Any, cast

from mcp.client.session import ClientSession, MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp_types import DiscoverResult, Implementation
from pydantic import ValidationError

from toolkeep._engine.negotiate import Agreement, adopt, negotiate
from toolkeep._engine.passing import (
    CALL,
    SLICE,
    AnyRequest,
    RawResult,
    check_call_result,
    first_problem,
    slices,
    stamped_call,
)
from toolkeep._rules.classify import Trouble
from toolkeep._rules.era import Era, probe_bound
from toolkeep._rules.lifecycle import ConnectionState, accepts_calls, is_over, move
from toolkeep._wire.attempt import Attempt, current_attempt
from toolkeep._wire.exchange import broken, unreadable
from toolkeep._wire.fault import InvalidAnswer, WireFault
from toolkeep._wire.wire import Wire
from toolkeep.config import ServerSpec
from toolkeep.errors import ToolkeepError
from toolkeep.stores import StoredSession

logger = logging.getLogger("toolkeep.client")

_FLUSH = 1.0
"""Seconds that cancellations under way get to reach the server when a connection closes."""


class Connection:
    """Made by an `Opener`, opened once, closed once."""

    def __init__(
        self,
        wire: Wire,
        spec: ServerSpec,
        generation: int,
        *,
        client_info: Implementation,
        known: Era | None,
        discovered: DiscoverResult | None,
        on_message: MessageHandlerFnT,
        callbacks: Mapping[str, Any],
        terminations: asyncio.Semaphore,
        stored: StoredSession | None = None,
    ) -> None:
        self.generation = generation
        self.wire = wire
        self.state = ConnectionState.NEW
        self.agreement: Agreement | None = None
        self.in_flight = 0
        self.stored = stored
        """What the session store keeps of this session; it outlives the connection."""
        self.broke = ""
        """Why it ended by itself, if it did."""
        self.lost = False
        """Whether there is no session at the server any more that could be ended."""
        self.faults = 0
        """Transport faults in a row; those that met requests at the same time count once."""
        self.checking: asyncio.Task[None] | None = None
        """A check of the session that is under way, for all who doubt it."""
        self._spec, self._known, self._discovered = spec, known, discovered
        self._terminations = terminations
        self.session = ClientSession(
            dispatcher=wire, message_handler=on_message, client_info=client_info, **callbacks
        )
        self._release = asyncio.Event()
        self._log_level: str | None = None
        self._ready: asyncio.Future[Exception | None] = asyncio.Future()
        self._owner: asyncio.Task[None] | None = None
        self._companions: set[asyncio.Task[None]] = set()

    @property
    def accepts_calls(self) -> bool:
        return accepts_calls(self.state)

    @property
    def is_over(self) -> bool:
        return is_over(self.state)

    @property
    def patience(self) -> float:
        """Seconds to wait for a server to agree to something."""
        return self._spec.timeouts.connect

    @property
    def era(self) -> Era | None:
        return self.agreement.era if self.agreement else None

    async def open(self, log_level: str | None = None) -> Exception | None:
        """Open, or say why not. The owner goes on if the one who waits here goes away."""
        self._log_level = log_level
        self.state = move(self.state, ConnectionState.OPENING)
        self._owner = asyncio.get_running_loop().create_task(self._own(), context=Context())
        return await asyncio.shield(self._ready)

    async def request(
        self, method: str, params: dict[str, Any] | None, attempt: Attempt, *, lenient: bool = False
    ) -> dict[str, Any]:
        """One request in the caller's task. `lenient`: the caller judges the result himself."""
        self.in_flight += 1
        token = current_attempt.set(attempt)
        try:
            if method == CALL and self.agreement is not None:
                checked = await self._call(params, self.agreement.version)
            else:
                session: Any = self.session
                checked = await session.send_request(AnyRequest(method, params), RawResult)
            return attempt.answer or checked
        except ValidationError as error:
            raw = attempt.answer or {}
            if lenient:
                return raw
            detail = f"the answer breaks the protocol: {first_problem(error)}"
            raise InvalidAnswer(detail, raw) from None
        finally:
            current_attempt.reset(token)
            self.in_flight -= 1
            if not self.in_flight and self.state is ConnectionState.DRAINING:
                self._release.set()

    async def _call(self, params: dict[str, Any] | None, version: str) -> dict[str, Any]:
        params, options = stamped_call(self.session, params)
        result = await self.wire.send_raw_request(CALL, params, options)
        content = result.get("content")
        if type(content) is list and len(cast("list[Any]", content)) > SLICE:
            for part in slices(result):
                check_call_result(part, version)
                await asyncio.sleep(0)
        else:
            check_call_result(result, version)
        return result

    async def notify(self, method: str) -> None:
        """Tell a legacy server something. A modern one is told nothing."""
        if self.era is Era.LEGACY:
            headers = {"mcp-protocol-version": self.agreement.version} if self.agreement else {}
            with contextlib.suppress(MCPError):
                await self.wire.notify(method, None, {"headers": headers})

    def retire(self, *, lost: bool) -> None:
        """Take no more calls; those that run finish here. `lost`: there is nothing to end."""
        self.lost = self.lost or lost
        if self.state is not ConnectionState.READY:
            return  # its owner was cancelled by somebody who cancels everything
        self.state = move(self.state, ConnectionState.DRAINING)
        if not self.in_flight:
            self._release.set()

    def accompany(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have this done beside the calls, until it ends or the connection does."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._companions.add(task)
        task.add_done_callback(self._companions.discard)
        if self.state is not ConnectionState.READY:
            task.cancel()
        return task

    def _dismiss(self) -> None:
        for task in self._companions:
            task.cancel()

    async def aclose(self, *, terminate: bool) -> None:
        """End it now, whatever it is doing; returns when the owner has finished."""
        if self._owner is None or self._owner.done():
            return
        self.lost = self.lost or not terminate
        if self.state is ConnectionState.OPENING:
            self._owner.cancel()
        self._release.set()
        await asyncio.wait((self._owner,))

    async def ended(self, within: float) -> None:
        """Wait for the owner to have let go of everything."""
        if self._owner is not None:
            await asyncio.wait((self._owner,), timeout=within)

    # -- the owner ------------------------------------------------------------------------------

    async def _own(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._spec.timeouts.connect
        try:
            if await self._step(self.wire.open(), deadline):
                async with self.session:
                    if await self._step(self._handshake(), deadline):
                        self.state = move(self.state, ConnectionState.READY)
                        self._ready.set_result(None)
                        await self._release.wait()
                        await self._wind_up()
        finally:
            if self.state is ConnectionState.OPENING and self.wire.session_id and not self.lost:
                await self._terminate()  # cancelled after the server had made a session
            await self._let_go()

    async def _step(self, step: Coroutine[Any, Any, None], deadline: float) -> bool:
        """Whether it worked; what went wrong is told to those who wait for the opening."""
        # A task group wraps what leaves its body into an ExceptionGroup: nothing leaves.
        failure: Exception
        try:
            async with asyncio.timeout_at(deadline):
                await step
            return True
        except TimeoutError:
            seconds = self._spec.timeouts.connect
            text = f"no handshake within {seconds:g} s; should it need more, raise timeouts.connect"
            said = f"; it printed: {self.wire.said}" if self.wire.said else ""
            failure = broken(text + said, Attempt())
        except WireFault as fault:
            failure = _told_at_opening(fault)
        except (MCPError, ToolkeepError) as error:
            failure = error
        except Exception as error:
            failure = unreadable(f"the handshake failed with {type(error).__name__}", None)
        self._ready.set_result(failure)
        return False

    async def _handshake(self) -> None:
        if self.stored is not None:
            self.agreement = adopt(self.session, self.stored.handshake)
            self.wire.resume(self.stored.session_id, self.agreement.version)
        else:
            self.agreement = await negotiate(
                self.session,
                mode=self._spec.mode,
                known=self._known,
                discovered=self._discovered,
                probe_within=probe_bound(self._spec.timeouts.connect),
            )
        if self._log_level is not None and self.era is Era.LEGACY:
            await self._ask_for_logs(self._log_level)

    async def _ask_for_logs(self, level: str) -> None:
        """A wish: a server that answers no is used all the same."""
        try:
            await self.request("logging/setLevel", {"level": level}, Attempt(), lenient=True)
        except WireFault as fault:
            # A stored session may turn out to be gone: the next call finds out, and asks again.
            if fault.evidence.error is None and self.stored is None:
                raise
            logger.warning("%s: no log level: %s", self._spec.name, fault)

    async def _wind_up(self) -> None:
        if self._companions:
            self._dismiss()
            await asyncio.wait(tuple(self._companions))
        self.wire.stop_answering()
        await self.wire.errands.flush(_FLUSH)
        if not self.lost:
            await self._terminate()

    async def _terminate(self) -> None:
        """Should this fail, or not have its turn in time, the server will forget the session by
        itself."""
        with contextlib.suppress(MCPError, TimeoutError):
            async with asyncio.timeout(self._spec.timeouts.close), self._terminations:
                await self.wire.terminate()

    async def _let_go(self) -> None:
        if self.state is ConnectionState.READY:
            self.state = ConnectionState.DRAINING  # cancelled by somebody who cancels everything
        if not self._ready.done():
            self._ready.set_result(broken("the client was closed while connecting", Attempt()))
        self._dismiss()
        try:
            await self.wire.close()
        except Exception:
            logger.exception("%s: closing failed", self._spec.name)
        finally:
            self.state = ConnectionState.CLOSED


def _told_at_opening(fault: WireFault) -> WireFault:
    """A process that ends before it is ready would do so again."""
    if fault.evidence.exit_code is None:
        return fault
    evidence = dataclasses.replace(fault.evidence, trouble=Trouble.EXITED, sent=False)
    return type(fault)(evidence)
