"""Which servers a runtime has: opened together, added, removed and replaced one by one.

A server that comes in the place of another is open before the other takes no more calls, and the
other's calls end where they began. Servers that did not change are not touched.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from toolkeep._catalogue.prompts import load_prompts
from toolkeep._catalogue.stock import KINDS, Dressing
from toolkeep._catalogue.supplier import Supplier
from toolkeep._catalogue.terms import Terms
from toolkeep._engine.credentials import check_headers
from toolkeep._engine.group import ServerGroup
from toolkeep._engine.group_terms import Dropped, HealthChanged, Joined
from toolkeep._rules.membership import Health
from toolkeep._runtime.desk import Desk
from toolkeep._runtime.events import Reloaded
from toolkeep.config import Configuration, Difference, ServerSpec
from toolkeep.errors import ServerUnavailable, UnknownServer
from toolkeep.events import Event

logger = logging.getLogger("toolkeep.runtime")


class Roster:
    """One for each opening of a runtime."""

    def __init__(self, desk: Desk, terms: Terms, **group: Any) -> None:
        self._desk, self._terms = desk, terms
        self.group: ServerGroup[Supplier] = ServerGroup(**group)
        self._observation = self.group.observe(self._on_group_event)
        self._order: tuple[str, ...] = ()
        self._departing: set[Supplier] = set()
        self._is_closing = False

    async def open(self, configuration: Configuration, more: Iterable[ServerSpec] = ()) -> None:
        """Open all; in a strict group, or none."""
        # The SDK and the HTTP library take a second to import: not in the loop.
        await asyncio.to_thread(importlib.import_module, "toolkeep._engine.keeper")
        self._order = configuration.order
        suppliers = [await self._supplier(spec) for spec in (*configuration.servers, *more)]
        for supplier in suppliers:
            await self.group.add(supplier)
        self._enlist({supplier.name: supplier for supplier in suppliers})
        if not self._is_closing:
            await self.group.connect_all()
        self._tell_skipped(*self._desk.suppliers)

    async def aclose(self) -> None:
        """Close everything now, the last one first; what is being opened, too."""
        self._is_closing = True
        for supplier in (*self._desk.suppliers.values(), *self._departing):
            supplier.hurry()
        await self.group.cleanup_all()
        everyone = (*self._desk.suppliers.values(), *self._departing)
        await asyncio.gather(*(supplier.gone() for supplier in everyone))
        self._observation.close()
        self._desk.clear()

    # -- coming and going -----------------------------------------------------------------------

    async def add(self, spec: ServerSpec) -> None:
        await self._add(await self._supplier(spec))

    async def _add(self, supplier: Supplier) -> None:
        if self._is_closing:
            raise ServerUnavailable("the runtime was closed meanwhile", server=supplier.name)
        # It may take its time to open; until then its name is known, and its tools are not.
        name = supplier.name
        self._enlist({**self._desk.suppliers, name: supplier}, unless=name)
        try:
            await self.group.add(supplier)
        except BaseException:
            await self._forget(supplier)
            raise
        self._tell_skipped(name)

    async def remove(self, name: str) -> None:
        supplier = self._desk.suppliers.get(name)
        if supplier is None:
            raise UnknownServer(f"there is no server {name!r} to remove")
        supplier.retire()
        self._departing.add(supplier)
        self._enlist({k: v for k, v in self._desk.suppliers.items() if k != name})
        await self.group.remove(name)
        await supplier.cleanup()
        self._depart(supplier)

    async def _replace(self, old: Supplier, new: Supplier) -> None:
        old.on_cleanup, new.subscribed = partial(self._swap, old, new), dict(old.subscribed)
        try:
            await self.group.replace(old.name, new)
            if not old.retired:  # it was not open, so nobody had to close it
                self._swap(old, new)
        finally:
            old.on_cleanup = None
            if old.retired:
                await old.cleanup()
            self._depart(old)

    async def apply(self, edit: Difference) -> None:
        """What an edit asks for, and nothing else. Servers may have been added or removed by hand
        since the last one: what counts is what is there."""
        wanted = [await self._supplier(spec) for spec in (*edit.changed, *edit.added)]
        self._order = edit.configuration.order
        for name in edit.removed:
            if name in self._desk.suppliers:
                await self.remove(name)
        for supplier in wanted:
            there = self._desk.suppliers.get(supplier.name)
            if there is None:
                await self._add(supplier)
            elif there.spec != supplier.spec:
                await self._replace(there, supplier)
        self._enlist(self._desk.suppliers)
        self._desk.observers.tell(
            Reloaded(
                server="",
                added=tuple(spec.name for spec in edit.added),
                removed=edit.removed,
                changed=tuple(spec.name for spec in edit.changed),
            )
        )

    def _swap(self, old: Supplier, new: Supplier) -> None:
        """The old one is about to be closed: from now on calls go to the new one."""
        old.retire()
        self._departing.add(old)
        self._enlist({name: new if it is old else it for name, it in self._desk.suppliers.items()})

    def _depart(self, supplier: Supplier) -> None:
        """Remember it until its last call is over."""
        if supplier in self._departing and not supplier.is_leaving:
            self._departing.discard(supplier)

    async def _forget(self, supplier: Supplier) -> None:
        kept = {k: v for k, v in self._desk.suppliers.items() if v is not supplier}
        self._enlist(kept)
        supplier.hurry()
        await supplier.cleanup()

    def _enlist(self, suppliers: dict[str, Supplier], unless: str | None = None) -> None:
        if unless is not None and unless in self._desk.suppliers:
            return  # the group says so
        places = {name: place for place, name in enumerate(self._order)}
        ordered = sorted(suppliers, key=lambda name: places.get(name, len(places)))
        self._desk.enlist({name: suppliers[name] for name in ordered})

    async def _supplier(self, spec: ServerSpec) -> Supplier:
        check_headers(spec)
        prompts = ()
        if spec.prompts_file:
            read = partial(load_prompts, spec.prompts_file, server=spec.name)
            prompts = await asyncio.to_thread(read)
        for observation in self._desk.observers:
            observation.know(spec)
        progressed = self._desk.figures.progressed
        return Supplier(spec, Dressing(spec, prompts, progressed), self._terms)

    # -- what happens to them -------------------------------------------------------------------

    def _tell_skipped(self, *names: str) -> None:
        for supplier, error in self.group.errors.items():
            if supplier.name in names:
                logger.warning("%s is skipped for now: %s", supplier.name, error)

    def _on_group_event(self, event: Event) -> None:
        supplier = self._desk.suppliers.get(event.server)
        if supplier is not None:
            match event:
                case Joined():
                    _tell_joined(supplier)
                case Dropped() | HealthChanged(health=Health.DOWN):
                    supplier.mark(stale=True)
                case HealthChanged(health=Health.HEALTHY) if supplier.is_stale:
                    supplier.outdate(KINDS)
                case _:
                    pass
        self._desk.observers.tell(event)


def _tell_joined(supplier: Supplier) -> None:
    stock = supplier.stock
    if stock is None:
        return
    shown = stock.shown
    logger.info(
        "%s is registered with %d tools, %d prompts, %d resources and %d resource templates",
        supplier.name,
        len(shown.tools),
        len(shown.prompts),
        len(shown.resources),
        len(shown.templates),
    )
