"""What each caller is shown: the servers' offers, listed with its identity, and past the gate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.offer import Offer, Prompt, Resource, Template
from toolkeep._catalogue.stock import KINDS, TOOLS
from toolkeep._catalogue.supplier import Supplier
from toolkeep._catalogue.tool import Tool
from toolkeep._engine.tenancy import Superseded
from toolkeep._runtime.gate import Gate
from toolkeep._runtime.speaking import PATIENCE, Speaker
from toolkeep.context import CallContext
from toolkeep.errors import InvalidArguments, NotOffered, ToolkeepError

Item = TypeVar("Item", bound=Tool | Prompt | Resource | Template)

logger = logging.getLogger("toolkeep.runtime")

_MOST_SNAPSHOTS = 32
_AT_ONCE = 500
"""Items that are judged without letting others have their turn."""
_MANY = 500
"""Tools above which an index is made in a thread."""


class Views:
    """The part of a desk that shows."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.suppliers: dict[str, Supplier] = {}
        """By name, in the order of the configuration."""
        self.catalogue = Catalogue()
        """What is offered to callers without identity."""
        self._whole: dict[tuple[object, ...], Catalogue] = {}
        """Snapshots for identities that are offered something else."""

    @abstractmethod
    async def speaker(
        self,
        supplier: Supplier,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        within: float | None = None,
    ) -> Speaker: ...

    async def view(
        self,
        context: CallContext | None,
        *,
        timeout: float | None = None,
        kinds: frozenset[str] = KINDS,
    ) -> Catalogue:
        """What this caller is shown: listed with its identity, and past the gate."""
        whole = await self.whole(context, timeout=timeout, kinds=kinds)
        return whole if self.gate.is_open else await self._past_gate(whole, context)

    async def whole(
        self,
        context: CallContext | None,
        *,
        timeout: float | None = None,
        kinds: frozenset[str] = frozenset({TOOLS}),
    ) -> Catalogue:
        """The same before the gate: not to be shown to anybody. All servers are asked, so nothing
        that was meant for a single call goes with it."""
        offers = await self._offers(context, timeout, kinds)
        return self._put_together(offers, tools_only=kinds == frozenset({TOOLS}))

    async def seen(
        self, whole: Catalogue, find: Callable[[Catalogue], Item], context: CallContext | None
    ) -> Item:
        """What is meant, if this caller may see it. The gate is asked about that one alone; only
        who is told what else there is, is told from what it may see."""
        try:
            found = find(whole)
        except NotOffered:
            found = None
        if found is not None and await self.gate.lets("see", found, context):
            return found
        return find(await self._past_gate(whole, context))

    def _put_together(self, offers: Sequence[Offer], *, tools_only: bool) -> Catalogue:
        """One snapshot for all who are offered the same: what it has worked out is theirs, too."""
        key = _key(offers, tools_only)
        if key == _key(self.catalogue.offers, tools_only):
            return self.catalogue
        found = self._whole.pop(key, None)
        if found is None:
            found = Catalogue.of(offers, self.catalogue.revision, self.catalogue.claimed)
        self._whole[key] = found
        if len(self._whole) > _MOST_SNAPSHOTS:
            del self._whole[next(iter(self._whole))]
        return found

    async def search(
        self, query: str, limit: int, context: CallContext | None, tags: Collection[str] | None
    ) -> list[Tool]:
        whole = await self.whole(context)
        if len(whole) > _MANY:
            await asyncio.to_thread(whole.search, "")  # makes the index, which takes a while
        wide, done = limit, 0
        seen: list[Tool] = []
        with contextlib.suppress(TimeoutError):  # what is not decided by then is withheld
            async with asyncio.timeout(PATIENCE):
                while len(seen) < limit:
                    hits = whole.search(query, wide, tags=tags)
                    for hit in hits[done:]:
                        if await self.gate.lets("see", hit, context):
                            seen.append(hit)
                    if len(hits) < wide:
                        break
                    done, wide = len(hits), wide * 4
        return seen[:limit]

    async def _offers(
        self, context: CallContext | None, timeout: float | None, kinds: frozenset[str]
    ) -> list[Offer]:
        suppliers = tuple(self.suppliers.values())
        return await asyncio.gather(
            *(self._shown(supplier, context, timeout, kinds) for supplier in suppliers)
        )

    async def _shown(
        self,
        supplier: Supplier,
        context: CallContext | None,
        timeout: float | None,
        kinds: frozenset[str],
        tries: int = 5,
    ) -> Offer:
        """A server that cannot be reached offers what it last did, or nothing; the rest go on."""
        try:
            speaker = await self.speaker(supplier, context, None, timeout)
        except InvalidArguments:
            raise  # the context is wrong, whatever the server
        except ToolkeepError:
            return supplier.missing  # as whom it would be asked is not known
        known = supplier.known(speaker.identity)
        if known is not None and kinds <= known.listed:
            return known.shown
        if speaker.identity is None:
            return offer_of(supplier)  # the group knows better when to try again
        within = supplier.spec.timeouts.connect
        if not supplier.stocks.is_shunned(speaker.identity.key):
            try:
                within = within if timeout is None else min(within, timeout)
                return (await supplier.stock_for(speaker.identity, within, kinds)).shown
            except Superseded:
                successor = self.suppliers.get(supplier.name)
                if successor is not None and not successor.retired and tries:
                    return await self._shown(successor, context, timeout, kinds, tries - 1)
            except ToolkeepError:
                supplier.stocks.shun(speaker.identity.key)
        last = supplier.stocks.last(speaker.identity.key)
        return last.aged(stale=True).shown if last else supplier.missing

    async def _past_gate(self, whole: Catalogue, context: CallContext | None) -> Catalogue:
        seen: set[tuple[type, str]] = set()
        kinds = (whole.tools, whole.prompts, whole.resources, whole.templates)
        try:
            async with asyncio.timeout(PATIENCE):
                for number, item in enumerate(chain.from_iterable(kinds)):
                    if not number % _AT_ONCE:
                        await asyncio.sleep(0)
                    if await self.gate.lets("see", item, context):
                        seen.add((type(item), item.name))
        except TimeoutError:
            logger.warning("a filter or permission has not answered; the rest is withheld")
        return whole.filtered(
            lambda tool: (type(tool), tool.name) in seen,
            keep_other=lambda item: (type(item), item.name) in seen,
        )


def _key(offers: Sequence[Offer], tools_only: bool) -> tuple[object, ...]:
    """What is the same is the same object: the snapshot that is found by it keeps it alive."""
    if not tools_only:
        return tuple(map(id, offers))
    return tuple((one.server, one.missing, one.stale, id(one.tools)) for one in offers)


def offer_of(supplier: Supplier) -> Offer:
    stock = supplier.stock
    return supplier.nothing if stock is None else stock.shown
