"""Keeps one server reachable: opens its connection, replaces it when it is lost, closes it.

Two phases. The line (an HTTP client with its sockets) is made once and outlives connections; a
connection is a handshake on it. Openings are single-flight: however many calls find no connection,
or lose the same one, one handshake is made. A failed opening is a value, handed to each who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextvars import Context
from typing import Any, cast

from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation

from toolkeep._engine.belonging import Belonging
from toolkeep._engine.connection import Connection
from toolkeep._engine.credentials import basic_auth, credentials
from toolkeep._engine.ground import Ground
from toolkeep._engine.home import Home
from toolkeep._engine.negotiate import Agreement
from toolkeep._engine.opening import Opener
from toolkeep._engine.renewing import Renewing
from toolkeep._engine.resuming import Resuming
from toolkeep._engine.reviving import Reviving
from toolkeep._engine.setup import Keeping
from toolkeep._engine.watching import as_event
from toolkeep._rules.classify import SESSION_ROWS, classify
from toolkeep._rules.lifecycle import ClientState, move_client
from toolkeep._rules.recovery import Channel, survives
from toolkeep._version import __version__
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import broken
from toolkeep._wire.fault import WireFault
from toolkeep.config import ServerSpec
from toolkeep.errors import Failure, FailureKind
from toolkeep.events import Connected, Disconnected

CLIENT_INFO = {"name": "toolkeep", "version": __version__}


class Keeper:
    """One for each address of a client's server. Belongs to the event loop in which it was first
    used, until closed."""

    def __init__(
        self,
        whose: Keeping,
        spec: ServerSpec,
        ground: Ground | None,
        *,
        headers: Mapping[str, str],
        renewing: Renewing,
        endpoint: str = "",
    ) -> None:
        self.spec, self.renewing, self._endpoint = spec, renewing, endpoint
        self._whose, self._setup, self._shared_ground = whose, whose.setup, ground
        self.session_rows = (*whose.setup.session_rows, *SESSION_ROWS)
        self._headers = {**basic_auth(spec.url), **headers}
        self._store, self.terminate = whose.setup.store, whose.setup.terminate_on_close
        self._inputs, self._emit, self._watch = whose.inputs, whose.emit, whose.watch
        self._generation = 0
        self.opened_in = 0
        """With the credentials of which epoch it was last opened, or tried to."""
        self._reset()

    def _reset(self) -> None:
        spec = self.spec
        self.state = ClientState.IDLE
        self.connection: Connection | None = None
        self.epoch = self._generation
        own = Ground(spec, shared=False, on_trouble=self._whose.tell_trouble)
        self.ground = self._shared_ground or own
        one_by_one = spec.serialize and not spec.url
        self.gate = asyncio.Semaphore(1) if one_by_one else self.ground.gate
        self.closed = asyncio.Event()
        self.home = Home(self.spec.name)
        self._opening: asyncio.Task[Connection | Exception] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.belonging = Belonging(
            spec,
            self._headers,
            authorized=self.renewing.auth is not None,
            settled=self._store is not None and self._setup.principal is None,
            vouched=self._setup.vouched,
        )
        self.opener = self._make_opener()
        self._reviving = Reviving(self._revive, self.pause)

    def _make_opener(self) -> Opener:
        store, principal, offers = self._store, self._setup.principal, self._inputs.offers
        known, resuming = self.belonging.secrets, None
        if store is not None and self.spec.url:
            resuming = Resuming(store, self.spec, principal, identity=known, offers=offers)
        return Opener(
            self.spec,
            headers=self._headers,
            credentials=credentials(self.spec, self._setup, self.renewing.auth),
            ground=self.ground,
            client_info=Implementation.model_validate(self._setup.client_info or CLIENT_INFO),
            callbacks=self._inputs.callbacks(),
            resuming=resuming,
            on_message=self._on_message,
            on_lost=self._ended_by_itself,
            tap=self._setup.tap,
        )

    @property
    def channel(self) -> Channel:
        return self.opener.channel

    @property
    def _leads(self) -> bool:
        return self._whose.keeper() is self

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        connection = self.connection
        return connection.agreement if connection and connection.accepts_calls else None

    @property
    def is_open(self) -> bool:
        """Whether it holds anything that has to be closed, and is not being closed."""
        opening = self._opening is not None
        return self._closing is None and (opening or self.connection is not None)

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
            loop, self.opened_in = asyncio.get_running_loop(), self.renewing.epoch
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

    async def settled(self) -> None:
        """Wait for an opening under way."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))

    async def _open_one(self) -> Connection | Exception:
        self._generation += 1
        outcome = await self.opener.open(self._generation, self._whose.log_level)
        if isinstance(outcome, Connection) and self._leads:
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
                endpoint=self._endpoint,
            )
        )

    async def knock(self) -> int | None:
        """The status that a plain GET brings, where there is HTTP."""
        async with asyncio.timeout(self.spec.timeouts.connect):
            return await self.opener.knock()

    async def pause(self, seconds: float) -> None:
        """Sleep before a replay; closing the client ends it early."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closed.wait()

    # -- losing ---------------------------------------------------------------------------------

    def retire(self, connection: Connection, *, lost: bool, reason: str) -> None:
        """Give up a connection. Only the first loser of a generation does anything. `lost`: there
        is no session to be ended at the server."""
        if self.connection is not connection:
            return
        self.connection = None
        self.state = move_client(self.state, ClientState.REPLACING)
        self.opener.lost(connection)
        connection.retire(lost=lost)
        self._tell_end(connection, reason, asked=False)

    async def check(self, connection: Connection, within: float) -> bool:
        """Whether a session that is in doubt is gone, and given up. One ping answers all who ask
        at the same time; it carries no caller's headers."""
        if self.connection is connection:
            if connection.checking is None or connection.checking.done():
                connection.checking = connection.accompany(self._check(connection))
            await asyncio.wait((connection.checking,), timeout=max(0.0, within))
        return self.connection is not connection

    async def _check(self, connection: Connection) -> None:
        attempt, failure = Attempt(), None
        try:
            async with asyncio.timeout(connection.patience), self.gate:
                await connection.request("ping", None, attempt, lenient=True)
            return
        except TimeoutError:
            if not attempt.sent:
                return  # it never got its turn
        except WireFault as fault:
            failure = classify(fault.evidence, rows=self.session_rows)
        except MCPError:
            return  # it answered, or our own credentials are what is wrong
        self.doubt(connection, failure)

    def doubt(self, connection: Connection | None, failure: Failure | None) -> None:
        """A check of this session failed; None: it was not answered. Unless that shows life all the
        same, the next request opens a new one."""
        if connection is None or connection.wire.session_id is None or survives(failure):
            return
        lost = failure is not None and failure.kind is FailureKind.SESSION_LOST
        why = failure.kind.value if failure else "no answer"
        self.give_up(connection, f"its check failed: {why}", lost=lost)

    def give_up(self, connection: Connection, reason: str, *, lost: bool = False) -> None:
        """Retire a session that may still be there: it is ended at the server, unless a store keeps
        it, and so others may use it."""
        self.retire(connection, lost=lost or connection.stored is not None, reason=reason)

    def _tell_end(self, connection: Connection, reason: str, *, asked: bool) -> None:
        about: Any = {"server": self.spec.name, "endpoint": self._endpoint}
        number = connection.generation
        self._emit(Disconnected(generation=number, reason=reason, asked=asked, **about))

    def renegotiate(self, connection: Connection, reason: str) -> None:
        """The era verdict was wrong, or is no longer true: the next opening probes again."""
        if self.connection is connection:
            self.ground.era = self.ground.discovery = None
            self.retire(connection, lost=False, reason=reason)

    def _ended_by_itself(self, connection: Connection, reason: str) -> None:
        """Nobody's call found out. Those who only listen need the next connection, too."""
        if self.connection is not connection:
            return
        self.retire(connection, lost=True, reason=reason)
        if self._watch.wanted and self._closing is None and self._leads:
            self._reviving.start()

    async def _revive(self) -> bool:
        """Whether there is nothing left to do for those who listen."""
        done = self.connection is not None or not (self._watch.wanted and self._leads)
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
        opener = self.opener
        opener.closing = True
        await self._reviving.stop()
        await asyncio.gather(
            *(self._close_one(each) for each in reversed(opener.alive)), return_exceptions=True
        )
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        await opener.aclose()
        if connection is not None:
            self._tell_end(connection, "closed", asked=True)
        self._reset()

    async def _close_one(self, connection: Connection) -> None:
        """A session that the store keeps is left at the server, unless told otherwise."""
        kept = connection.stored is not None
        terminate = not kept if self.terminate is None else self.terminate
        if terminate and kept:
            await self.opener.drop(connection)
        await connection.aclose(terminate=terminate)

    def abandon(self) -> None:
        if self.home.loop is not None:
            self._forget(forked=self.home.forked)

    def _forget(self, *, forked: bool) -> None:
        """The loop is gone, or belongs to the parent process: there is nobody left to close."""
        self.opener.forget(forked=forked)
        self._generation += 1
        self._reset()
