"""Keeps one server reachable: opens its connection, replaces it when it is lost, closes it.

Two phases. The link (the HTTP client with its sockets) is made once and outlives connections; a
connection is a handshake on it. Openings are single-flight: however many calls find no connection,
or lose the same one, one handshake is made. A failed opening is a value, handed to each who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, cast

from mcp.client.session import IncomingMessage
from mcp_types import Implementation

from mainstay._engine.connection import Connection
from mainstay._engine.negotiate import Agreement
from mainstay._rules.breaker import Breaker
from mainstay._rules.budget import TokenBucket
from mainstay._rules.classify import SessionRow
from mainstay._rules.era import Era
from mainstay._rules.headers import check, conflict, identity, split_ignored
from mainstay._rules.lifecycle import ClientState, move_client
from mainstay._wire.attempt import Attempt
from mainstay._wire.exchange import broken
from mainstay._wire.http import HttpDispatcher
from mainstay._wire.link import Link
from mainstay.auth import Authorizer
from mainstay.config import ServerSpec
from mainstay.errors import ConfigError, NotPermitted, WrongLoop
from mainstay.events import Connected, Disconnected, Event, Notice


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
        terminate_on_close: bool,
        emit: Callable[[Event], None],
        log_level: Callable[[], str | None],
        wants_notices: Callable[[], bool],
    ) -> None:
        self.spec, self.auth, self.session_rows = spec, auth, session_rows
        self._headers, self._client_info = headers, client_info
        self._terminate = terminate_on_close
        self._principal, self._log_level = principal, log_level
        self._emit = emit
        self._wants_notices = wants_notices
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
        self._closed = asyncio.Event()
        self.auth_lock = asyncio.Lock()
        self.auth_epoch = 0
        self._era: Era | None = None
        self._link: Link | None = None
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._opening: asyncio.Task[Connection | Exception] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._alive: list[Connection] = []
        self.identity = dict(identity(self._headers, spec.neutral_headers))
        """On whose behalf this client speaks, as far as headers tell. Only ever grows."""
        if self.auth is not None:
            self.identity["authorization"] = ""

    @property
    def agreement(self) -> Agreement | None:
        """What the current connection settled on; None: there is none."""
        connection = self.connection
        return connection.agreement if connection and connection.accepts_calls else None

    @property
    def session_id(self) -> str | None:
        connection = self.connection
        return connection.wire.session_id if connection and connection.accepts_calls else None

    def bind(self, headers: Mapping[str, str]) -> None:
        """A legacy session belongs to one principal: refuse a call that speaks for another."""
        wanted = identity(headers, self.spec.neutral_headers)
        differing = conflict(self.identity, wanted)
        if differing is not None:
            raise NotPermitted(
                f"{self.spec.name}: the header {differing!r} differs from the one that this"
                " client's session belongs to. Use one client a user, or list it in"
                " neutral_headers"
            )
        self.identity.update(wanted)

    # -- opening --------------------------------------------------------------------------------

    async def ready(self) -> Connection | Exception:
        """The connection for the next call, opened if need be; or why there is none."""
        connection = self.connection
        if connection is not None and connection.accepts_calls:
            return connection
        if self._closing is not None:
            await asyncio.shield(self._closing)
        self.check_home()
        if connection is not None:
            self.retire(connection, lost=True, reason="it ended by itself")
        if self._opening is None or self._opening.done():  # done: a task that started eagerly
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open_next(), context=Context())
        return await asyncio.shield(self._opening)

    def check_home(self) -> None:
        """A client belongs to one loop and one process."""
        here = (asyncio.get_running_loop(), os.getpid())
        if self._home is None:
            self._home = here
        elif self._home != here:
            what = "process" if self._home[1] != here[1] else "event loop"
            raise WrongLoop(
                f"{self.spec.name}: this client was opened in another {what}. Close it there with"
                " aclose(), or make a client here"
            )

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
        return outcome

    async def _open_one(self) -> Connection | Exception:
        try:
            link = self._link = self._link or Link(self.spec)
        except ConfigError as error:
            return error
        self._generation += 1
        wire = HttpDispatcher(
            link,
            headers=self._headers,
            max_result_bytes=self.spec.max_result_bytes,
            credentials=self._credentials if self.auth else None,
            on_lost=lambda: self._lost_while_listening(connection),
        )
        connection = Connection(
            wire,
            self.spec,
            self._generation,
            client_info=self._client_info,
            known=self._era,
            on_message=self._on_message,
        )
        self._alive = [*(c for c in self._alive if not c.is_over), connection]
        return await connection.open(self._log_level()) or connection

    def _welcome(self, connection: Connection) -> None:
        agreement = connection.agreement
        assert agreement is not None
        self._era = agreement.era
        if self._wants_notices():
            connection.listen()
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

    async def pause(self, seconds: float) -> None:
        """Sleep before a replay; closing the client ends it early."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    # -- losing ---------------------------------------------------------------------------------

    def retire(self, connection: Connection, *, lost: bool, reason: str) -> None:
        """Give up a connection. Only the first loser of a generation does anything."""
        if self.connection is not connection:
            return
        self.connection = None
        self.state = move_client(self.state, ClientState.REPLACING)
        connection.retire(lost=lost)
        self._emit(
            Disconnected(server=self.spec.name, generation=connection.generation, reason=reason)
        )

    def renegotiate(self, connection: Connection, reason: str) -> None:
        """The era verdict was wrong, or is no longer true: the next opening probes again."""
        if self.connection is connection:
            self._era = None
            self.retire(connection, lost=False, reason=reason)

    def _lost_while_listening(self, connection: Connection) -> None:
        """A GET found the session gone: those who only listen need the next one, too."""
        if self.connection is not connection:
            return
        self.retire(connection, lost=True, reason="a GET found no session")
        if self._wants_notices() and self._opening is None and self._closing is None:
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open_next(), context=Context())

    # -- what the server says on its own account ------------------------------------------------

    def listen(self) -> None:
        """Somebody wants notices from now on."""
        if self.connection is not None:
            self.connection.listen()

    async def _on_message(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            found = message.model_dump(by_alias=True, mode="json", exclude_none=True)
            params = cast("dict[str, Any]", found.get("params") or {})
            self._emit(Notice(server=self.spec.name, method=found["method"], params=params))

    # -- closing --------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Release everything. From any task, twice, during a handshake: always, and promptly."""
        if self._home is None:
            return
        loop, process = self._home
        if process != os.getpid() or loop.is_closed():
            self._forget()
            return
        self.check_home()
        if self._closing is None:
            self._closing = loop.create_task(self._close(), context=Context())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.state = move_client(self.state, ClientState.CLOSING)
        self._generation += 1
        self.epoch = self._generation
        self._closed.set()
        connection, self.connection = self.connection, None
        alive = [c.aclose(terminate=self._terminate) for c in reversed(self._alive)]
        await asyncio.gather(*alive, return_exceptions=True)
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._link is not None:
            await self._link.aclose()
        if connection is not None:
            generation = connection.generation
            self._emit(Disconnected(server=self.spec.name, generation=generation, reason="closed"))
        self._reset()

    def _forget(self) -> None:
        """The loop is gone, or belongs to the parent process: there is nobody left to close."""
        if self._link is not None:
            self._link.forget()
        self._generation += 1
        self._reset()
