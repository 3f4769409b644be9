"""Keeps one server reachable: opens its connection, replaces it when it is lost, closes it.

Two phases. The line (an HTTP client with its sockets) is made once and outlives connections; a
connection is a handshake on it. Openings are single-flight: however many calls find no connection,
or lose the same one, one handshake is made. A failed opening is a value, handed to each who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, cast

from mcp.client.session import IncomingMessage
from mcp_types import Implementation

from mainstay._engine.belonging import Belonging
from mainstay._engine.connection import Connection
from mainstay._engine.home import Home
from mainstay._engine.inputs import Inputs
from mainstay._engine.negotiate import Agreement
from mainstay._engine.opening import Opener
from mainstay._engine.resuming import Resuming
from mainstay._engine.reviving import Reviving
from mainstay._engine.watching import Watch, as_event
from mainstay._rules.breaker import Breaker
from mainstay._rules.budget import TokenBucket
from mainstay._rules.classify import SessionRow
from mainstay._rules.headers import check, split_ignored
from mainstay._rules.lifecycle import ClientState, move_client
from mainstay._rules.recovery import Channel
from mainstay._wire.attempt import Attempt
from mainstay._wire.exchange import broken
from mainstay.auth import Authorizer
from mainstay.config import ServerSpec
from mainstay.events import Connected, Disconnected, Event
from mainstay.stores import SessionStore


class Keeper:
    """One for each client. Belongs to the event loop in which it was first used, until closed."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        headers: Mapping[str, str],
        auth: Authorizer | None,
        principal: str | None,
        client_info: Implementation,
        session_rows: Sequence[SessionRow],
        store: SessionStore | None,
        terminate_on_close: bool | None,
        inputs: Inputs,
        emit: Callable[[Event], None],
        log_level: Callable[[], str | None],
        watch: Watch,
    ) -> None:
        self.spec, self.auth, self.session_rows = spec, auth, session_rows
        self._headers, self._client_info = headers, client_info
        self._store, self._terminate, self._inputs = store, terminate_on_close, inputs
        self._principal, self._log_level = principal, log_level
        self._emit, self._watch = emit, watch
        self._generation = 0
        self._reset()

    def _reset(self) -> None:
        spec = self.spec
        self.state = ClientState.IDLE
        self.connection: Connection | None = None
        self.epoch = self._generation
        self.gate = asyncio.Semaphore(1 if spec.serialize else spec.max_in_flight)
        cooldown = spec.breaker_cooldown
        self.breaker = Breaker(spec.breaker_threshold, cooldown, longest=max(30.0, cooldown))
        self.bucket = TokenBucket(spec.replay_burst, spec.replay_rate)
        self.troubled_since: float | None = None
        """Since when nothing but transport faults came back (seconds since the epoch)."""
        self.closed = asyncio.Event()
        self.auth_lock = asyncio.Lock()
        self.auth_epoch = 0
        self.home = Home(self.spec.name)
        self._opening: asyncio.Task[Connection | Exception] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.belonging = Belonging(
            spec,
            self._headers,
            authorized=self.auth is not None,
            settled=self._store is not None and self._principal is None,
        )
        self._opener = self._make_opener()
        self._reviving = Reviving(self._revive, self.pause)

    def _make_opener(self) -> Opener:
        resuming = None
        if self._store is not None and self.spec.url:
            resuming = Resuming(
                self._store,
                self.spec,
                self._principal,
                identity=self.belonging.secrets,
                offers=self._inputs.offers,
            )
        return Opener(
            self.spec,
            headers=self._headers,
            credentials=self._credentials if self.auth else None,
            client_info=self._client_info,
            callbacks=self._inputs.callbacks(),
            resuming=resuming,
            on_message=self._on_message,
            on_lost=self._ended_by_itself,
        )

    @property
    def channel(self) -> Channel:
        return self._opener.channel

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        connection = self.connection
        return connection.agreement if connection and connection.accepts_calls else None

    @property
    def session_id(self) -> str | None:
        connection = self.connection
        return connection.wire.session_id if connection and connection.accepts_calls else None

    # -- opening --------------------------------------------------------------------------------

    async def ready(self) -> Connection | Exception:
        """The connection for the next call, opened if need be; or why there is none."""
        connection = self.connection
        if connection is not None and connection.accepts_calls:
            return connection
        if self._closing is not None:
            await asyncio.shield(self._closing)
        self.home.check()
        if connection is not None:
            self.retire(connection, lost=True, reason="it ended by itself")
        if self._opening is None or self._opening.done():  # done: a task that started eagerly
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open_next(), context=Context())
        return await asyncio.shield(self._opening)

    async def _open_next(self) -> Connection | Exception:
        if self.state is ClientState.IDLE:
            self.state = move_client(self.state, ClientState.OPENING)
        try:
            outcome = await self._open_one()
        finally:
            self._opening = None
        if self.state is ClientState.CLOSING:
            return broken("the client was closed while connecting", Attempt())
        opened = isinstance(outcome, Connection)
        self.connection = outcome if opened else None
        self.state = move_client(self.state, ClientState.READY if opened else ClientState.IDLE)
        if isinstance(outcome, Connection):
            self._welcome(outcome)
            if outcome.broke:  # before anybody could be told
                self._ended_by_itself(outcome, outcome.broke)
        return outcome

    async def _open_one(self) -> Connection | Exception:
        self._generation += 1
        outcome = await self._opener.open(self._generation, self._log_level())
        if isinstance(outcome, Connection):
            await self._watch.stand(outcome)
        return outcome

    def _welcome(self, connection: Connection) -> None:
        agreement = connection.agreement
        assert agreement is not None
        self._emit(
            Connected(
                server=self.spec.name,
                generation=connection.generation,
                era=agreement.era.value,
                protocol_version=agreement.version,
                session_id=connection.wire.session_id,
            )
        )

    async def _credentials(self, method: str) -> Mapping[str, str]:
        assert self.auth is not None
        given = await self.auth.headers(self.spec.name, self._principal, method, self.spec.url)
        return split_ignored(check(given, origin="the authorizer"))[0]

    async def knock(self) -> int | None:
        """The status that a plain GET brings, where there is HTTP."""
        async with asyncio.timeout(self.spec.timeouts.connect):
            return await self._opener.knock()

    async def pause(self, seconds: float) -> None:
        """Sleep before a replay; closing the client ends it early."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closed.wait()

    # -- losing ---------------------------------------------------------------------------------

    def retire(self, connection: Connection, *, lost: bool, reason: str) -> None:
        """Give up a connection. Only the first loser of a generation does anything."""
        if self.connection is not connection:
            return
        self.connection = None
        self.state = move_client(self.state, ClientState.REPLACING)
        if lost:
            self._opener.lost(connection)
        connection.retire(lost=lost)
        self._emit(
            Disconnected(server=self.spec.name, generation=connection.generation, reason=reason)
        )

    def renegotiate(self, connection: Connection, reason: str) -> None:
        """The era verdict was wrong, or is no longer true: the next opening probes again."""
        if self.connection is connection:
            self._opener.era = None
            self.retire(connection, lost=False, reason=reason)

    def _ended_by_itself(self, connection: Connection, reason: str) -> None:
        """Nobody's call found out. Those who only listen need the next connection, too."""
        if self.connection is not connection:
            return
        self.retire(connection, lost=True, reason=reason)
        if self._watch.wanted and self._closing is None:
            self._reviving.start()

    async def _revive(self) -> bool:
        """Whether there is nothing left to do for those who listen."""
        done = self.connection is not None or not self._watch.wanted
        return done or isinstance(await self.ready(), Connection)

    # -- what the server says on its own account ------------------------------------------------

    def listen(self) -> None:
        """Hear what the server says outside of calls, if somebody wants to."""
        if self.connection is not None:
            self._watch.update(self.connection)

    async def _on_message(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            found = message.model_dump(by_alias=True, mode="json", exclude_none=True)
            params = cast("dict[str, Any]", found.get("params") or {})
            self._emit(as_event(self.spec.name, found["method"], params))

    # -- closing --------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Release everything. From any task, twice, during a handshake: always, and promptly."""
        if self.home.loop is None:
            return
        if self.home.is_gone:
            self._forget(forked=self.home.forked)
            return
        self.home.check()
        loop = self.home.loop
        if self._closing is None or self._closing.done():  # done: a task that started eagerly
            self._closing = loop.create_task(self._close(), context=Context())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.state = move_client(self.state, ClientState.CLOSING)
        self._generation += 1
        self.epoch = self._generation
        self.closed.set()
        connection, self.connection = self.connection, None
        opener = self._opener
        opener.closing = True
        await self._reviving.stop()
        await asyncio.gather(
            *(self._close_one(each) for each in reversed(opener.alive)), return_exceptions=True
        )
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        await opener.aclose()
        if connection is not None:
            generation = connection.generation
            self._emit(Disconnected(server=self.spec.name, generation=generation, reason="closed"))
        self._reset()

    async def _close_one(self, connection: Connection) -> None:
        """A session that the store keeps is left at the server, unless told otherwise."""
        kept = connection.stored is not None
        terminate = not kept if self._terminate is None else self._terminate
        if terminate and kept:
            await self._opener.drop(connection)
        await connection.aclose(terminate=terminate)

    def _forget(self, *, forked: bool) -> None:
        """The loop is gone, or belongs to the parent process: there is nobody left to close."""
        self._opener.forget(forked=forked)
        self._generation += 1
        self._reset()
