"""Hearing what a server says outside of calls, over as many connections as it takes.

After a loss, what may have changed in the meantime is fetched and compared: nobody has to know
that there was a gap. When something else is wanted than before, the old stream is left only when
the new one stands: there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from toolkeep._rules.budget import Pace
from toolkeep._rules.era import Era
from toolkeep.events import Changed, Event, Notice

if TYPE_CHECKING:
    from toolkeep._engine.connection import Connection
    from toolkeep._engine.listening import Listening

logger = logging.getLogger("toolkeep.client")

_PATIENCE = 1.0
"""Seconds for a server to open the stream on which it may ask something."""
_LONGEST_GAP_PAUSE = 5.0
"""Seconds: how often what is known is fetched again, at most, while one stream after the other
ends."""
_CHANGES: dict[str, Literal["tools", "prompts", "resources", "resource"]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
    "notifications/resources/updated": "resource",
}


def as_event(server: str, method: str, params: dict[str, Any]) -> Event:
    """What a notification says, the same for both eras."""
    what = _CHANGES.get(method)
    if what is None:
        return Notice(server=server, method=method, params=params)
    return Changed(server=server, what=what, uri=params.get("uri") if what == "resource" else None)


class Watch:
    """What one client wants to hear. Outlives connections."""

    def __init__(
        self,
        server: str,
        *,
        asked: Callable[[], bool],
        answers: bool,
        on_gap: Callable[[], None],
        catch_up: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        """`on_gap` is told as soon as a stream stands before which something may have been missed;
        `catch_up` then fetches what may have changed, one gap at a time, with pauses."""
        self._server, self._asked = server, asked
        self._on_gap, self._catch_up = on_gap, catch_up
        self._answers = answers
        """Whether the client answers questions, which legacy servers ask outside of calls, too."""
        self.uris: dict[str, None] = {}
        """Resources to be told about."""
        self._now: Listening | None = None
        self._before: Listening | None = None
        """Left as soon as the one that replaces it stands."""
        self._covered: frozenset[str] | None = None
        """The resources of the last stream that stood. None: none ever did."""
        self._missed: frozenset[str] | None = None
        """The resources of gaps that are still to be closed. None: there are no such gaps."""
        self._closing_gaps: tuple[Connection, asyncio.Task[None]] | None = None
        self._pace = Pace(_LONGEST_GAP_PAUSE)

    @property
    def wanted(self) -> bool:
        return self._asked() or bool(self.uris)

    def reset(self) -> None:
        """The client is closed: the next opening begins from scratch."""
        self._now = self._before = self._covered = None
        self._missed = self._closing_gaps = None

    # -- listening ------------------------------------------------------------------------------

    async def stand(self, connection: Connection) -> None:
        """Listen on a new connection. Where the server may ask something, not before it can be
        heard: what a server asks while nobody listens is lost."""
        self.update(connection)
        if self._now is not None and self._answers and connection.era is Era.LEGACY:
            await _settled(self._now, _PATIENCE)

    def update(self, connection: Connection) -> None:
        """Have done on this connection what is wanted now."""
        if not self.wanted and not (self._answers and connection.era is Era.LEGACY):
            self._stop()
        elif not self._suffices(connection):
            self._replace(connection)

    async def covers(self, uri: str, within: float) -> bool:
        """Whether the server has agreed to tell of this resource; waits for its answer."""
        deadline = asyncio.get_running_loop().time() + within
        listening = None
        while self._now is not None and listening is not self._now:
            listening = self._now  # somebody else may replace it while we wait
            await _settled(listening, deadline - asyncio.get_running_loop().time())
        return listening is not None and uri in listening.covered

    async def until_settled(self) -> None:
        """Wait a moment for the stream that was asked for last."""
        if self._now is not None:
            await _settled(self._now, _PATIENCE)

    def cover(self, uri: str) -> None:
        """A legacy server has agreed to tell of this resource, too."""
        if self._covered is not None:
            self._covered |= {uri}

    def _suffices(self, connection: Connection) -> bool:
        now = self._now
        if now is None or now.connection is not connection or not now.offered:
            return False
        return connection.era is Era.LEGACY or now.uris == tuple(self.uris)

    def _replace(self, connection: Connection) -> None:
        from toolkeep._engine.listening import Listening

        fresh = self._now is None or self._now.connection is not connection
        if self._now is not None and not fresh and self._now.stands:
            self._before = self._now
        elif self._now is not None:
            self._now.stop()
        again = tuple(self.uris) if fresh and self._covered is not None else ()
        self._now = Listening(self._server, connection, tuple(self.uris))
        self._now.start(self._opened, again)

    def _stop(self) -> None:
        for listening in (self._now, self._before):
            if listening is not None:
                listening.stop()
        self._now = self._before = None

    # -- gaps -----------------------------------------------------------------------------------

    def _opened(self, listening: Listening) -> None:
        """A stream stands. Before it was another, or a gap, or nothing."""
        legacy = listening.connection.era is Era.LEGACY
        covered = frozenset(self.uris) if legacy else listening.covered
        missed, self._covered = self._covered, covered
        before, self._before = self._before, None
        if before is not None and before.stands:
            before.stop()
        elif missed is not None:
            self._on_gap()
            self._missed = missed | (self._missed or frozenset())
            self._start_closing_gaps(listening.connection)

    def _start_closing_gaps(self, connection: Connection) -> None:
        before = self._closing_gaps
        if before is not None and before[0] is connection and not before[1].done():
            return
        if before is not None:
            before[1].cancel()
        self._closing_gaps = connection, connection.accompany(self._close_gaps())

    async def _close_gaps(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._missed is not None:
            await asyncio.sleep(self._pace.wait(clock()))
            missed, self._missed = self._missed or frozenset(), None
            try:
                await self._catch_up(missed)
            except asyncio.CancelledError:  # the next connection closes this gap, too
                self._missed = missed | (self._missed or frozenset())
                raise
            except Exception as error:
                logger.warning("%s: what changed meanwhile is not known: %s", self._server, error)
            self._pace.done(clock())


async def _settled(listening: Listening, within: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await listening.settled.wait()
