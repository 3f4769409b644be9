"""From nothing to a connection: which way to take, which era, which session to take up again.

An opener remembers what one opening learned for the next: the era of its server, that its HTTP is
of 2024-11-05, which sessions are gone. It opens one connection at a time, for its keeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp_types import DiscoverResult, Implementation

from toolkeep._engine.connection import Connection
from toolkeep._engine.ground import Ground
from toolkeep._engine.negotiate import DiedOfProbe
from toolkeep._engine.resuming import Resuming
from toolkeep._rules.era import Era
from toolkeep._rules.recovery import Channel
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import broken
from toolkeep._wire.fault import WireFault
from toolkeep._wire.heading import Credentials
from toolkeep._wire.lines import line_for
from toolkeep._wire.wire import Line
from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError
from toolkeep.stores import StoredSession

if TYPE_CHECKING:
    from toolkeep._wire.tap import Tap

_NO_STREAMABLE_HTTP = (400, 404, 405)
"""What a server of 2024-11-05 answers to a handshake by POST, as the specification has it."""


class Opener:
    """One for each keeper, from its first opening to its close."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        ground: Ground,
        client_info: Implementation,
        callbacks: Mapping[str, Any],
        resuming: Resuming | None,
        on_message: MessageHandlerFnT,
        on_lost: Callable[[Connection, str], None],
        tap: Tap | None = None,
    ) -> None:
        self._spec, self._headers, self._credentials = spec, headers, credentials
        self._ground, self._tap = ground, tap
        self._client_info, self._callbacks = client_info, callbacks
        self._resuming, self._on_message, self._on_lost = resuming, on_message, on_lost
        self._line: Line | None = None
        self._ends_anyway = False
        """Whether the process also ends when it is not asked for its era."""
        self._agreed = False
        """Whether a handshake on this line has worked."""
        self.alive: list[Connection] = []
        self.closing = False
        """Set when nothing may be opened any more."""

    @property
    def channel(self) -> Channel:
        return self._line.channel if self._line else Channel.REQUESTS

    async def open(self, generation: int, log_level: str | None) -> Connection | Exception:
        """The next connection, or why there is none."""
        try:
            self._line = self._line or self._make_line(older=self._ground.older)
        except ConfigError as error:
            return error
        await self._bury(self._line)
        resumable = self._line.resumable and self._spec.mode != "modern"
        resuming = self._resuming if resumable else None
        stored = await resuming.load() if resuming else None
        outcome = await self._open_on(self._line, generation, log_level, stored=stored)
        if isinstance(outcome, DiedOfProbe) and not self._ends_anyway:
            outcome = await self._open_on(self._line, generation, log_level, known=Era.LEGACY)
            self._ends_anyway = not isinstance(outcome, Connection)
        elif self._may_be_older(outcome):
            outcome = await self._open_older(outcome, generation, log_level)
        if isinstance(outcome, Connection):
            await self._settle(outcome)
        return outcome

    async def _open_on(
        self,
        line: Line,
        generation: int,
        log_level: str | None,
        *,
        known: Era | None = None,
        stored: StoredSession | None = None,
    ) -> Connection | Exception:
        if self.closing:  # while something else was waited for
            return broken("the client was closed while connecting", Attempt())
        connection = Connection(
            line.wire(lambda reason: self._note_end(connection, reason)),
            self._spec,
            generation,
            client_info=self._client_info,
            known=known or (self._ground.era if line.speaks_modern else Era.LEGACY),
            # A process has to be asked in any case: whether it is up to anything is not known.
            discovered=self._ground.discovery if line.resumable else None,
            on_message=self._on_message,
            callbacks=self._callbacks,
            terminations=self._ground.terminations,
            stored=stored,
        )
        self.alive = [*(c for c in self.alive if not c.is_over), connection]
        return await connection.open(log_level) or connection

    def _note_end(self, connection: Connection, reason: str) -> None:
        connection.broke = reason
        self._on_lost(connection, reason)

    async def _settle(self, connection: Connection) -> None:
        """Remember what the opening learned."""
        self._ground.era = connection.era
        said = connection.agreement.result if connection.agreement else None
        self._ground.discovery = said if isinstance(said, DiscoverResult) else None
        self._agreed = self._agreed or connection.stored is None
        resumable = self._line is not None and self._line.resumable
        if self._resuming is not None and resumable and connection.era is Era.LEGACY:
            await self._resuming.keep(connection)

    def lost(self, connection: Connection) -> None:
        """Its session is gone or given up: no client is to take it up again."""
        if self._resuming is not None and connection.wire.session_id is not None:
            self._resuming.gone(connection.wire.session_id)

    async def drop(self, connection: Connection) -> None:
        """Its session is being ended: the store is not to keep it."""
        if self._resuming is not None:
            await self._resuming.drop(connection)

    async def is_stored(self) -> bool:
        return self._resuming is not None and await self._resuming.load() is not None

    # -- ways -----------------------------------------------------------------------------------

    def _make_line(self, *, older: bool) -> Line:
        link, tap = self._ground.link(), self._tap
        return line_for(
            self._spec, self._headers, self._credentials, older=older, link=link, tap=tap
        )

    async def _bury(self, line: Line) -> None:
        """Two processes of one server might fight over what they lock: let the last one end."""
        for connection in self.alive if line.exclusive else ():
            if connection.lost and not connection.in_flight:
                await connection.ended(within=self._spec.timeouts.close)

    def _may_be_older(self, outcome: Connection | Exception) -> bool:
        spec = self._spec
        if not isinstance(outcome, WireFault) or outcome.evidence.error is not None:
            return False
        open_question = bool(spec.url) and spec.transport is None and not self._agreed
        refused = outcome.evidence.status in _NO_STREAMABLE_HTTP
        return open_question and refused and spec.mode != "modern"

    async def _open_older(
        self, refusal: Connection | Exception, generation: int, log_level: str | None
    ) -> Connection | Exception:
        older = self._make_line(older=True)
        outcome = await self._open_on(older, generation, log_level)
        given_up = self._line if isinstance(outcome, Connection) else older
        if isinstance(outcome, Connection):
            self._line, self._ground.older = older, True
        if given_up is not None:
            await given_up.aclose()
        return outcome if isinstance(outcome, Connection) else refusal

    async def knock(self) -> int | None:
        """The status that a plain GET brings; None: nothing comes, or there is no HTTP."""
        try:
            return await self._line.knock() if self._line else None
        except MCPError:
            return None

    # -- the end --------------------------------------------------------------------------------

    async def aclose(self) -> None:
        if self._line is not None:
            await self._line.aclose()

    def forget(self, *, forked: bool) -> None:
        if self._line is not None:
            self._line.forget(forked=forked)
