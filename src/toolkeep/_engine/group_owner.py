"""One opening of one server: a single task that connects it, holds it and cleans it up.

Libraries bind what they open to the task that opened it (anyio's cancel scopes), so all three
happen in one task, in an empty context, with the timeouts inside it. Whatever became of `connect`,
`cleanup` follows, once. An owner is used once: after it ended, the next opening gets a new task,
which no cancellation that a library left behind in the old one can reach.

Nothing is raised out of an owner: what happened is a value, for the seat that made it. Only an
error that is nobody's to recover from (`KeyboardInterrupt`), with nobody waiting, is let through.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol

from toolkeep._engine.group_terms import GRACE, Connectable, Terms
from toolkeep._rules.membership import is_recoverable
from toolkeep.errors import ServerUnavailable


class Witness(Protocol):
    """Whom an owner tells what happened, in this order."""

    def settled(self, owner: Owner, error: BaseException | None) -> None:
        """It is connected, or not."""
        ...

    def lost(self, owner: Owner, error: BaseException) -> None:
        """It was connected and is not any more, although nobody asked for that."""
        ...

    def ended(self, owner: Owner) -> None:
        """Nothing is open any more; `owner.trouble` is what closing it met."""
        ...


class Owner:
    """Made and started by a seat, at most one at a time for each server."""

    def __init__(
        self,
        server: Connectable,
        name: str,
        terms: Terms,
        witness: Witness,
        *,
        attended: bool,
        pulse: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        self._server, self._name, self._terms, self._witness = server, name, terms, witness
        self._pulse = pulse
        self.attended = attended
        """Whether somebody waits for the outcome, and will raise it if it has to be raised."""
        self.outcome: asyncio.Future[BaseException | None] = asyncio.Future()
        self.trouble: BaseException | None = None
        self._over = asyncio.Event()
        self._release = asyncio.Event()
        self._clock: asyncio.Timeout | None = None
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def can_be_joined(self) -> bool:
        """Whether it is opening, and is still wanted."""
        return not self.outcome.done() and not self.is_released

    @property
    def is_released(self) -> bool:
        return self._release.is_set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._own(), context=Context(), name=f"toolkeep {self._name}")
        self._task = task

    def release(self) -> None:
        """Close, now or as soon as it is open; an opening under way is cut short."""
        self._release.set()
        # Its own timeout, and not `Task.cancel`: that would stay counted in the task, and what
        # runs in it afterwards could not tell it from a cancellation of its own.
        if self._clock is not None and not self._clock.expired():
            self._clock.reschedule(asyncio.get_running_loop().time())

    async def settled(self) -> bool:
        """Wait for the outcome; False: it goes on although its time was over."""
        patience = self._terms.connect_timeout
        while not self.outcome.done() and patience > 0:
            await asyncio.wait((self.outcome,), timeout=patience)
            # Its time began when it was first run: a server that blocks the event loop (to import
            # a library, for example) takes none from the others.
            patience = self._due - asyncio.get_running_loop().time()
        if not self.outcome.done():
            await asyncio.wait((self.outcome,), timeout=GRACE)
        return self.outcome.done()

    async def over(self) -> bool:
        """Wait for its end after the release; False: it goes on although its time was over."""
        for within in (self._terms.cleanup_timeout, GRACE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._over.wait()
        return self._over.is_set()

    # -- the task -------------------------------------------------------------------------------

    async def _own(self) -> None:
        if self.is_released:
            self._settle(self._unavailable("it was closed before it was opened"))
            self._end()
            return
        error = await self._connect()
        self._settle(error)
        if error is None:
            await self._hold()
        self.trouble = await self._cleanup()
        self._end()
        if error is not None and not self.attended:
            _let_through(error)
        if self.trouble is not None and not self.is_released:
            _let_through(self.trouble)

    def _settle(self, error: BaseException | None) -> None:
        self.outcome.set_result(error)
        self._witness.settled(self, error)

    def _end(self) -> None:
        self._over.set()
        self._witness.ended(self)

    async def _connect(self) -> BaseException | None:
        within = self._terms.connect_within(self._server)
        self._due = asyncio.get_running_loop().time() + within
        clock = self._clock = asyncio.timeout_at(self._due)
        try:
            async with clock:
                await self._server.connect()
        except BaseException as error:
            return self._translated(error, clock, "connected", within)
        finally:
            self._clock = None
        return None

    async def _hold(self) -> None:
        """Until it is released, or a library ends it by itself."""
        async with self._companion():
            try:
                await self._release.wait()
            except asyncio.CancelledError as error:
                if not self.is_released:
                    self._witness.lost(self, self._astray(error))

    @contextlib.asynccontextmanager
    async def _companion(self) -> AsyncGenerator[None]:
        """The pulse runs meanwhile, in a task of its own."""
        beat = asyncio.get_running_loop().create_task(self._pulse()) if self._pulse else None
        yield
        if beat is not None:
            beat.cancel()
            # A library's cancel scope may cancel this task at every await until it was cleaned up.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((beat,), timeout=GRACE)

    async def _cleanup(self) -> BaseException | None:
        clock = asyncio.timeout(self._terms.cleanup_timeout)
        try:
            async with clock:
                await self._server.cleanup()
        except BaseException as error:
            return self._translated(error, clock, "closed", self._terms.cleanup_timeout)
        return None

    # -- what went wrong ------------------------------------------------------------------------

    def _translated(
        self, error: BaseException, clock: asyncio.Timeout, what: str, within: float
    ) -> BaseException:
        """Our own timeout and a library's own cancellation get words; the rest stays as it is."""
        if isinstance(error, asyncio.CancelledError):
            return self._astray(error)
        if not isinstance(error, TimeoutError) or not clock.expired():
            return error
        closed = self.is_released and what == "connected"
        text = "it was closed while connecting" if closed else f"not {what} within {within:g} s"
        return self._unavailable(text, error)

    def _astray(self, error: asyncio.CancelledError) -> BaseException:
        if not self._terms.suppress_cancelled:
            return error
        return self._unavailable("it was cancelled, and not by us", error)

    def _unavailable(self, why: str, cause: BaseException | None = None) -> ServerUnavailable:
        error = ServerUnavailable(f"{self._name}: {why}", server=self._name)
        error.__cause__ = cause
        return error


def _let_through(error: BaseException) -> None:
    """Raise what is no server's failure. A cancellation ends with the task that it was made in."""
    if not is_recoverable(error) and not isinstance(error, asyncio.CancelledError):
        raise error
