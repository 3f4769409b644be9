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
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, cast

from mainstay._rules.budget import Backoff
from mainstay._rules.era import Era
from mainstay.events import Changed, Event, Notice

if TYPE_CHECKING:
    from mainstay._engine.connection import Connection

logger = logging.getLogger("mainstay.client")

_BACKOFF = Backoff()
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


class Watch:
    """What one client wants to hear. Outlives connections; `listen` runs on each."""

    def __init__(
        self,
        server: str,
        *,
        asked: Callable[[], bool],
        answers: bool,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._server, self._asked, self._catch_up = server, asked, catch_up
        self._answers = answers
        """Whether the client answers questions, which legacy servers ask outside of calls, too."""
        self._standing = asyncio.Event()
        self.uris: dict[str, None] = {}
        """Resources to be told about."""
        self._heard = False
        """Whether somebody listened before, so that there is a gap to close."""
        self._asked_for: tuple[str, ...] = ()
        """The resources of the last modern subscription."""
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STAND):
                    await self._standing.wait()

    def covers(self, connection: Connection) -> bool:
        """Whether what is listened to on it already brings all that is wanted."""
        same = connection.era is Era.LEGACY or self._asked_for == tuple(self.uris)
        return connection.is_listening and same

    def reset(self) -> None:
        """The client is closed: the next opening begins from scratch."""
        self._heard = False

    def expect(self) -> asyncio.Future[frozenset[str]]:
        """Done when the next modern subscription stands, with the resources it covers."""
        self._honoured = asyncio.get_running_loop().create_future()
        return self._honoured

    async def listen(self, connection: Connection) -> None:
        """For as long as the connection lasts, or the server has something to offer."""
        try:
            async with asyncio.TaskGroup() as chores:
                if connection.era is Era.LEGACY:
                    await self._legacy(connection, chores)
                else:
                    await self._modern(connection, chores)
        except Exception:
            logger.exception("%s: listening failed", self._server)
        finally:
            self._standing.set()

    # -- legacy ---------------------------------------------------------------------------------

    async def _legacy(self, connection: Connection, chores: asyncio.TaskGroup) -> None:
        from mcp.shared.exceptions import MCPError

        from mainstay._wire.attempt import Attempt

        for uri in tuple(self.uris) if self._heard else ():
            try:
                await connection.request(
                    "resources/subscribe", {"uri": uri}, Attempt(), lenient=True
                )
            except MCPError as error:
                logger.warning("%s: no word of %s any more: %s", self._server, uri, error)
        # Whatever ends it here, the next call will find out.
        with contextlib.suppress(MCPError):
            await connection.wire.listen(lambda: self._opened(chores))

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

        self._asked_for = tuple(self.uris)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(connection.patience):
                    subscribing = listen(
                        connection.session,
                        tools_list_changed=True,
                        prompts_list_changed=True,
                        resources_list_changed=True,
                        resource_subscriptions=self._asked_for,
                    )
                    subscription = await stack.enter_async_context(subscribing)
                self._honour(subscription.honored.resource_subscriptions or ())
                self._opened(chores)
                async for _ in subscription:
                    pass  # they come as notifications, like those of a legacy server
        except WireFault as fault:
            self._honour(())
            return fault.evidence.error is None
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            logger.debug("%s: a subscription ended: %s", self._server, error)
        return True

    def _honour(self, uris: Any) -> None:
        if self._honoured is not None and not self._honoured.done():
            self._honoured.set_result(frozenset(cast("list[str]", uris)))

    # -- gaps -----------------------------------------------------------------------------------

    def _opened(self, chores: asyncio.TaskGroup) -> None:
        """A stream stands. After the first one, there was a gap."""
        self._standing.set()
        if self._heard:
            chores.create_task(self._close_gap())
        self._heard = True

    async def _close_gap(self) -> None:
        try:
            await self._catch_up()
        except Exception as error:
            logger.warning("%s: what changed meanwhile is not known: %s", self._server, error)
