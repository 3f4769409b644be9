"""Listening on one connection: the stream on which a server speaks outside of calls.

Legacy servers speak on a stream of its own, or on the pipe; modern ones on a subscription that
names what is wanted. Either is opened again when it ends, for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError

from toolkeep._engine.connection import Connection
from toolkeep._rules.budget import Backoff
from toolkeep._rules.classify import Evidence
from toolkeep._rules.era import Era
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.fault import WireFault

logger = logging.getLogger("toolkeep.client")

_BACKOFF = Backoff()
_MAY_PASS = (401, 403, 408, 429)

OnOpen = Callable[["Listening"], None]
"""Told whenever the stream stands and may have missed something before."""


class Listening:
    """One for each stream that a `Watch` wants; ends with its connection, or when stopped."""

    def __init__(self, server: str, connection: Connection, uris: tuple[str, ...]) -> None:
        self._server, self.connection = server, connection
        self.uris = uris
        """The resources it asks for."""
        self.covered: frozenset[str] = frozenset()
        """Those of which the server has promised to tell."""
        self.stands = False
        self.offered = True
        """False: the server has nothing of the kind to offer."""
        self.settled = asyncio.Event()
        """Set when it stands for the first time, or never will."""
        self._task: asyncio.Task[None] | None = None

    def start(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        """`subscribe`: resources that a legacy server is to be asked for on this connection."""
        self._task = self.connection.accompany(self._run(on_open, subscribe))

    def stop(self) -> None:
        self.stands = False
        self.settled.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        try:
            if self.connection.era is Era.LEGACY:
                await self._legacy(on_open, subscribe)
            else:
                await self._modern(on_open)
        except Exception:
            logger.exception("%s: listening failed", self._server)
        finally:
            self.settled.set()

    def _opened(self, on_open: OnOpen, covered: Iterable[str]) -> None:
        self.covered = frozenset(covered)
        self.stands = True
        on_open(self)
        self.settled.set()

    # -- legacy ---------------------------------------------------------------------------------

    async def _legacy(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        for uri in subscribe:
            try:
                await self.connection.request("resources/subscribe", {"uri": uri}, Attempt())
            except MCPError as error:
                logger.warning("%s: no word of %s any more: %s", self._server, uri, error)
        # Whatever ends it here, the next call will find out.
        with contextlib.suppress(MCPError):
            await self.connection.wire.listen(lambda: self._opened(on_open, self.uris))

    # -- modern ---------------------------------------------------------------------------------

    async def _modern(self, on_open: OnOpen) -> None:
        loop, fruitless = asyncio.get_running_loop(), 0
        while self.offered and self.connection.accepts_calls:
            begun = loop.time()
            await self._subscribe(on_open)
            self.stands = False
            lasted = loop.time() - begun
            fruitless = 1 if lasted > _BACKOFF.cap else fruitless + 1
            await asyncio.sleep(_BACKOFF.delay(fruitless, random.random()))

    async def _subscribe(self, on_open: OnOpen) -> None:
        """One subscription, to its end."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self.connection.patience):
                    subscribing = listen(
                        self.connection.session,
                        tools_list_changed=True,
                        prompts_list_changed=True,
                        resources_list_changed=True,
                        resource_subscriptions=self.uris,
                    )
                    subscription = await stack.enter_async_context(subscribing)
                self._opened(on_open, subscription.honored.resource_subscriptions or ())
                async for _ in subscription:
                    pass  # they come as notifications, like those of a legacy server
        except WireFault as fault:
            self.offered = not _is_refusal(fault.evidence)
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            logger.debug("%s: a subscription ended: %s", self._server, error)


def _is_refusal(evidence: Evidence) -> bool:
    """Whether the server has no subscriptions to offer, rather than trouble."""
    status = evidence.status or 200
    return evidence.error is not None or (400 <= status < 500 and status not in _MAY_PASS)
