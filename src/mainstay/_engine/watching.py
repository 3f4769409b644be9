"""Hearing what a server says outside of calls, over as many connections as it takes.

Legacy servers say it on a stream of its own, or on the pipe; modern ones on a subscription that
names what it wants. Either is opened again after a loss, and then what may have changed in
the meantime is fetched and compared: nobody has to know that there was a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, cast

from mainstay._rules.budget import Backoff
from mainstay._rules.era import Era
from mainstay.events import Changed, Event, Notice

if TYPE_CHECKING:
    from mainstay._engine.connection import Connection
    from mainstay._rules.classify import Evidence

logger = logging.getLogger("mainstay.client")

_BACKOFF = Backoff()
_MAY_PASS = (401, 403, 408, 429)
_STAND = 1.0
"""Seconds for a server to open the stream on which it may ask something."""
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


def _is_refusal(evidence: Evidence) -> bool:
    """Whether the server has no subscriptions to offer, rather than trouble."""
    status = evidence.status or 200
    return evidence.error is not None or (400 <= status < 500 and status not in _MAY_PASS)


class Watch:
    """What one client wants to hear. Outlives connections; `listen` runs on each."""

    def __init__(
        self,
        server: str,
        *,
        asked: Callable[[], bool],
        answers: bool,
        catch_up: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self._server, self._asked, self._catch_up = server, asked, catch_up
        self._answers = answers
        """Whether the client answers questions, which legacy servers ask outside of calls, too."""
        self._standing = asyncio.Event()
        self.uris: dict[str, None] = {}
        """Resources to be told about."""
        self._heard = False
        """Whether somebody listened before, so that there is a gap to close."""
        self._generation = 0
        """Of the connection on which we listen; 0: on none."""
        self._asked_for: tuple[str, ...] = ()
        """The resources of the last modern subscription."""
        self.covered: frozenset[str] = frozenset()
        """The resources of which we are told, or would have been until the stream ended."""
        self._stands = False
        self._replacing = False
        """Whether a stream that stands is left only when the next one does, so without a gap."""
        self.turn = asyncio.Lock()
        """Who subscribes waits for those who did before."""
        self._expected = ""
        self._honoured: asyncio.Future[frozenset[str]] | None = None

    @property
    def wanted(self) -> bool:
        return self._asked() or bool(self.uris)

    def wanted_on(self, connection: Connection) -> bool:
        return self.wanted or (self._answers and connection.era is Era.LEGACY)

    async def stand(self, connection: Connection) -> None:
        """Listen. Where the server may ask something, not before it can be heard: what a server
        asks while nobody listens is lost."""
        if not self.wanted_on(connection):
            return
        self._standing.clear()
        connection.listen(self.listen)
        if self._answers and connection.era is Era.LEGACY:
            await self.until_it_stands()

    async def until_it_stands(self) -> None:
        """Wait for the stream that was asked for, for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STAND):
                await self._standing.wait()

    def replace(self, connection: Connection) -> None:
        """Listen anew, to what is wanted now; to the old until the new stands."""
        self._replacing = self._stands
        if not self._stands:
            connection.stop_listening()
        self._standing.clear()
        connection.listen(self.listen)

    def covers(self, connection: Connection) -> bool:
        """Whether what is listened to on it already brings all that is wanted."""
        same = connection.era is Era.LEGACY or self._asked_for == tuple(self.uris)
        return self._generation == connection.generation and same

    def stop(self, connection: Connection) -> None:
        """Nobody wants to hear anything any more."""
        self._generation = 0
        self._stands = False
        connection.stop_listening()

    def reset(self) -> None:
        """The client is closed: the next opening begins from scratch."""
        self._heard = self._stands = self._replacing = False
        self._generation = 0
        self.covered, self.turn = frozenset(), asyncio.Lock()

    def expect(self, uri: str) -> asyncio.Future[frozenset[str]]:
        """Done when a modern subscription that asks for this one stands, with all it covers."""
        self._expected = uri
        self._honoured = asyncio.get_running_loop().create_future()
        return self._honoured

    async def listen(self, connection: Connection) -> None:
        """For as long as the connection lasts, or the server has something to offer."""
        again, self._generation = self._generation, connection.generation
        try:
            async with asyncio.TaskGroup() as chores:
                if connection.era is Era.LEGACY:
                    await self._legacy(connection, chores, fresh=again != connection.generation)
                else:
                    await self._modern(connection, chores)
        except Exception:
            logger.exception("%s: listening failed", self._server)
        finally:
            self._standing.set()

    # -- legacy ---------------------------------------------------------------------------------

    async def _legacy(
        self, connection: Connection, chores: asyncio.TaskGroup, *, fresh: bool
    ) -> None:
        from mcp.shared.exceptions import MCPError

        from mainstay._wire.attempt import Attempt

        for uri in tuple(self.uris) if self._heard and fresh else ():
            if uri not in self.uris:
                continue  # unsubscribed meanwhile
            try:
                await connection.request(
                    "resources/subscribe", {"uri": uri}, Attempt(), lenient=True
                )
            except MCPError as error:
                logger.warning("%s: no word of %s any more: %s", self._server, uri, error)
        # Whatever ends it here, the next call will find out.
        with contextlib.suppress(MCPError):
            await connection.wire.listen(lambda: self._opened(connection, chores, self.uris))

    # -- modern ---------------------------------------------------------------------------------

    async def _modern(self, connection: Connection, chores: asyncio.TaskGroup) -> None:
        fruitless = 0
        while connection.accepts_calls:
            begun = asyncio.get_running_loop().time()
            if not await self._subscribe(connection, chores):
                return
            lasted = asyncio.get_running_loop().time() - begun
            fruitless = 1 if lasted > _BACKOFF.delay(10, 1.0) else fruitless + 1
            await asyncio.sleep(_BACKOFF.delay(fruitless, random.random()))

    async def _subscribe(self, connection: Connection, chores: asyncio.TaskGroup) -> bool:
        """One subscription, to its end. False: the server has none to offer."""
        from mcp.client.subscriptions import SubscriptionLost, listen
        from mcp.shared.exceptions import MCPError

        from mainstay._wire.fault import WireFault

        asked_for = self._asked_for = tuple(self.uris)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(connection.patience):
                    subscribing = listen(
                        connection.session,
                        tools_list_changed=True,
                        prompts_list_changed=True,
                        resources_list_changed=True,
                        resource_subscriptions=asked_for,
                    )
                    subscription = await stack.enter_async_context(subscribing)
                honoured = subscription.honored.resource_subscriptions or ()
                self._opened(connection, chores, honoured)
                self._honour(asked_for, honoured)
                async for _ in subscription:
                    pass  # they come as notifications, like those of a legacy server
        except WireFault as fault:
            self._honour(asked_for, ())
            self._stands = False
            if _is_refusal(fault.evidence):
                self._generation = 0
                return False
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            logger.debug("%s: a subscription ended: %s", self._server, error)
        self._stands = False
        return True

    def _honour(self, asked_for: tuple[str, ...], uris: Any) -> None:
        waiting = self._honoured
        if waiting is not None and not waiting.done() and self._expected in asked_for:
            waiting.set_result(frozenset(cast("list[str]", uris)))

    # -- gaps -----------------------------------------------------------------------------------

    def _opened(
        self, connection: Connection, chores: asyncio.TaskGroup, covered: Iterable[str]
    ) -> None:
        """A stream stands. Before it was another, or a gap, or nothing."""
        self._standing.set()
        missed, self.covered = self.covered, frozenset(covered)
        if self._replacing:
            connection.stop_listening(but=asyncio.current_task())
        elif self._heard:
            chores.create_task(self._close_gap(missed))
        self._heard = self._stands = True
        self._replacing = False

    async def _close_gap(self, missed: frozenset[str]) -> None:
        try:
            await self._catch_up(missed)
        except Exception as error:
            logger.warning("%s: what changed meanwhile is not known: %s", self._server, error)
