"""One server as a runtime sees it: its sessions, and what it offers to whom.

Keeps the stock true: it is listed again when the server says that something changed, when what it
vouched for has expired, when a connection was replaced, when the server came back, or by hand; and
never twice at a time. During an outage the last stock stays, marked stale.

What the server's own client is told is shown to callers without identity, and to the others only
if the server says that it is public. Whoever has an identity is shown what was listed with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkeep._catalogue.guides import named_prompts
from toolkeep._catalogue.listing import Rest, rest_of, tools_of
from toolkeep._catalogue.offer import Offer
from toolkeep._catalogue.refreshing import Refreshing
from toolkeep._catalogue.site import Site
from toolkeep._catalogue.stock import KINDS, TOOLS, Dressing, Stock
from toolkeep._catalogue.stocks import OWN, Stocks
from toolkeep._catalogue.terms import Terms
from toolkeep._engine.tenancy import Lease
from toolkeep._rules.identity import Identity
from toolkeep.config import ServerSpec
from toolkeep.errors import Delivery, ToolkeepError
from toolkeep.events import Changed, Connected, Disconnected, Event

logger = logging.getLogger("toolkeep.catalogue")

if TYPE_CHECKING:
    from toolkeep._engine.toolbook import Toolbook

_LEAST_STOCKS = 256
"""Identities whose lists are remembered, at least."""


class Supplier(Site):
    """Lives as long as its server is configured so; the runtime's group opens and closes it."""

    def __init__(self, spec: ServerSpec, dressing: Dressing, terms: Terms) -> None:
        super().__init__(spec, terms)
        self.dressing = dressing
        self._named = named_prompts(spec.guides)
        self.name = spec.name
        self.health_interval = spec.health_interval
        self.connect_timeout = spec.timeouts.connect if spec.command else None
        self.stock: Stock | None = None
        """What its own client was told. None: it was never reached."""
        self.nothing = Offer(server=spec.name, stale=True)
        """What it offers until then."""
        self.missing = Offer(server=spec.name, stale=True, missing=True)
        """What it offers to a caller for whom it could not be asked."""
        self.stocks = Stocks(spec.name, max(_LEAST_STOCKS, 2 * spec.session_bound))
        self._refreshing = Refreshing(
            spec.name,
            self._list,
            ready=self._until_heard,
            failed=lambda: self.mark(stale=True),
        )
        self._report: Callable[[ToolkeepError | None], None] | None = None
        self._turn = asyncio.Lock()
        self._outages = 0

    def __repr__(self) -> str:
        return f"<Supplier {self.name!r}, {self.stock.shown if self.stock else 'not reached yet'}>"

    @property
    def is_stale(self) -> bool:
        """Whether it is not known to offer what is shown."""
        return self.stock is None or self.stock.shown.stale

    # -- for the group --------------------------------------------------------------------------

    async def connect(self) -> None:
        self._is_refused = True
        await self._reach()
        self._is_refused = False

    async def ping(self) -> float:
        took = await self.sessions.own.ping()
        if self._refreshing.due or self.is_stale:
            self.outdate(KINDS)
        return took

    async def _stop(self) -> None:
        await self._refreshing.stop()
        await self.stocks.stop()

    # -- what it offers, to whom ----------------------------------------------------------------

    def known(self, identity: Identity | None) -> Stock | None:
        """What this identity may be shown, if that is known."""
        own = self.stock
        if identity is None or self.spec.session == "shared" or (own and own.is_public):
            return own
        return self.stocks.get(identity.key)

    async def stock_for(
        self,
        identity: Identity | None,
        within: float,
        kinds: frozenset[str],
        lease: Lease | None = None,
    ) -> Stock:
        """What this identity may be shown; listed, if it is not known, with the `lease` that the
        caller has, or one for this alone."""
        known = self.known(identity)
        if known is not None and kinds <= known.listed:
            return known
        if identity is None or self.spec.session == "shared":
            return await self.stocks.fetch(OWN, self._reach, within)

        async def fetch() -> Stock:
            own = lease.again() if lease else await self.sessions.lend(identity, within)
            try:
                return await self._fetch(own, identity, kinds)
            finally:
                own.give_back()

        stock = await self.stocks.fetch(identity.key, fetch, within)
        return stock if kinds <= stock.listed else await fetch()  # who came first asked for less

    async def _reach(self) -> Stock:
        await self.sessions.connect()
        for uri in self.subscribed:
            try:
                await self.sessions.own.subscribe(uri)
            except ToolkeepError as error:
                logger.warning("%s: no longer told of %s: %s", self.name, uri, error)
        return await self._list(KINDS)

    async def _fetch(self, lease: Lease, identity: Identity, kinds: frozenset[str]) -> Stock:
        changes, before, own = self.stocks.changes, self.stocks.get(identity.key), self.stock
        with self.stocks.listing(identity.key):
            book = before.book if before else await tools_of(lease.core)
        rest = await rest_of(lease, kinds, Rest(), self._named)
        if own is not None and book.tools == own.book.tools:
            book = lease.core.book = own.book  # one copy for all who are told the same
        stock = await self.dressing.stock(book, rest, kinds | {TOOLS}, like=own)
        if changes == self.stocks.changes:
            self.stocks.keep(identity.key, stock)
        return stock

    def offers(self, tool: str) -> bool:
        """Whether it is a tool that is shown to callers without identity."""
        return self.stock is not None and tool in self.stock.tools

    # -- keeping it true ------------------------------------------------------------------------

    def outdate(self, kinds: frozenset[str]) -> None:
        """These may no longer be true: list them again, soon."""
        if not self.retired and self._sessions is not None:
            self._refreshing.start(kinds)

    async def refresh(self) -> None:
        """List everything again, now."""
        self.stocks.outdate()
        try:
            await self._reach()
        except ToolkeepError as error:
            if error.delivery is not Delivery.ANSWERED:
                self.mark(stale=True)
            raise

    def doubt(self) -> None:
        """A call found it out of reach: see whether it is."""
        if not self.is_stale:
            self.outdate(KINDS)

    async def forget(self, identity: Identity) -> None:
        """End the sessions of this identity, and forget what it was shown."""
        self.stocks.forget(identity.key)
        await self.sessions.end(identity)

    def mark(self, *, stale: bool) -> None:
        """The server is out of reach, or is so no longer."""
        self._outages += stale
        if self.stock is None or self.stock.shown.stale == stale:
            return
        if stale:
            self.stocks.age()
        else:
            self.stocks.outdate()
        self._publish(self.stock.aged(stale=stale))

    async def _list(self, kinds: frozenset[str]) -> Stock:
        """What the server tells its own client."""
        async with self._turn:
            return await self._list_now(kinds)

    async def _list_now(self, kinds: frozenset[str]) -> Stock:
        before, lease, outages = self.stock, self.sessions.lend_own(), self._outages
        try:
            with self.stocks.listing(OWN):
                book = before.book if before and TOOLS not in kinds else await tools_of(lease.core)
            known = before.rest if before else Rest()
            rest = await rest_of(lease, kinds, known, self._named)
        finally:
            lease.give_back()
        stock = await self.dressing.stock(book, rest, KINDS)
        if outages != self._outages:  # it went away meanwhile
            stock = stock.aged(stale=True)
        elif before is not None and before.shown.stale:
            self.stocks.outdate()
        self._publish(stock)
        self._refreshing.start_after(book.ttl, KINDS)
        return stock

    def _publish(self, stock: Stock) -> None:
        self.stock = stock
        self._terms.changed(self)

    # -- what clients hear ----------------------------------------------------------------------

    def hear(self, identity: Identity | None, event: Event) -> None:
        """The server's own client hears for all."""
        key = identity.key if identity else None
        match event:
            case Changed() if event.what in KINDS:
                self.stocks.outdate(key)
                if identity is None:
                    self.outdate(frozenset({event.what}))
            case Connected() if identity is None:
                if event.endpoint in self._connected:
                    self.stocks.outdate()
                    self.outdate(KINDS)
                self._connected.add(event.endpoint)
            case Disconnected(asked=False) if identity is not None:
                self.stocks.outdate(key)
            case _:
                pass

    def report_trouble(self, to: Callable[[ToolkeepError | None], None]) -> None:
        """For the group: have it told why calls fail, and None when one is answered again."""
        self._report = to

    def on_trouble(self, error: ToolkeepError | None) -> None:
        if self._report is not None:
            self._report(error)

    def on_gap(self, identity: Identity | None) -> None:
        """Changes may have been missed: of these lists, or of those of this identity."""
        if identity is None:
            self.outdate(KINDS)
        else:
            self.stocks.outdate(identity.key)

    async def _until_heard(self) -> None:
        """Wait a moment for the stream that tells of changes: what is listed after it stands need
        not be listed again."""
        if self._sessions is not None:
            await self._sessions.until_settled()

    def on_book(self, identity: Identity | None, book: Toolbook) -> None:
        """A call found the list out of date, and had it listed again."""
        key = identity.key if identity else OWN
        known = self.known(identity)
        if self.stocks.is_listing(key) or known is None:
            return
        stock = self.dressing.stock_now(book, known.rest, known.listed)
        if identity is None or (known is self.stock and book.public):
            self._publish(stock)
            return
        self.stocks.keep(key, stock)
        if known is self.stock:  # it was public, and is so no longer
            self.outdate(frozenset({TOOLS}))
