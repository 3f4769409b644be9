"""Where everything that a call needs is found: the servers, the catalogue, the rules of the house.

The face is `Runtime`; this is what it, its calls and its reloading have in common. Nothing here
opens or closes a server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.difference import difference
from toolkeep._catalogue.supplier import Supplier
from toolkeep._catalogue.tool import Caller
from toolkeep._engine.figures import Figures
from toolkeep._engine.observing import Observers
from toolkeep._rules.identity import Identity
from toolkeep._runtime.events import CatalogueChanged
from toolkeep._runtime.finding import Finding
from toolkeep._runtime.gate import Gate
from toolkeep._runtime.oversized import ResultPart, Spill, gone, part
from toolkeep._runtime.reuse import Reuse
from toolkeep._runtime.speaking import HeaderProvider
from toolkeep._runtime.views import offer_of
from toolkeep.context import CallContext
from toolkeep.stores.results import ResultStore

logger = logging.getLogger("toolkeep.runtime")


class Resource(Protocol):
    """Something that lives as long as a runtime is open."""

    async def aclose(self) -> None: ...


class Desk(Finding):
    """One for each runtime."""

    def __init__(
        self,
        gate: Gate,
        provider: HeaderProvider | None,
        caller: Caller,
        results: ResultStore | None = None,
        *,
        authorized: bool = False,
    ) -> None:
        super().__init__(gate, provider, caller)
        self.reuse, self.spill = Reuse(results, authorized=authorized), Spill()
        self.observers = Observers("runtime")
        self.figures = Figures()
        self.resources: dict[type[Resource], Resource] = {}
        """Closed with the runtime, before its servers."""
        self._claimed: frozenset[str] = frozenset()
        """The names of all servers since the opening."""

    # -- servers --------------------------------------------------------------------------------

    def enlist(self, suppliers: Mapping[str, Supplier]) -> None:
        """These are the servers now."""
        before, self.suppliers = self.suppliers, dict(suppliers)
        self.at_hand.clear()
        self._claimed = self._claimed.union(suppliers)
        self._whole.clear()
        for name, supplier in before.items():
            if suppliers.get(name) is not supplier:
                self._tell_changes(name)
            if name not in suppliers:
                self.figures.forget(name)
        self._tell_changes("")

    async def close_resources(self) -> None:
        """One that fails to close keeps nothing else open."""
        while self.resources:
            kind, resource = self.resources.popitem()
            try:
                await resource.aclose()
            except Exception:
                logger.exception("%s could not be closed", kind.__name__)

    def clear(self) -> None:
        """There are none any more; nobody has to be told."""
        self.resources.clear()
        self.suppliers = {}
        self.at_hand.clear()
        self.catalogue = Catalogue.of((), self.catalogue.revision + 1)
        self._claimed = frozenset()
        self._whole.clear()
        self.spill.clear()

    async def read_result(
        self,
        handle: str,
        start: int,
        length: int,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
    ) -> ResultPart:
        """Some of what was set aside, for whoever it was set aside for."""
        aside = self.spill.get(handle)
        supplier = self.suppliers.get(aside.tool.server)
        if supplier is None:
            raise gone(handle)
        caller = (await self.speaker(supplier, context, headers)).identity
        if aside.owner != (caller.key if caller else None):
            raise gone(handle)
        if not await self.gate.lets("call", aside.tool, context):
            raise gone(handle)
        return part(aside, start, length)

    def forget(self, identity: Identity) -> None:
        """Nothing that was kept of this identity's results is shown again."""
        self.spill.forget(identity.key)
        self.reuse.forget()

    def publish(self, supplier: Supplier) -> None:
        """A server's stock is another one."""
        if self.suppliers.get(supplier.name) is supplier:
            self._tell_changes(supplier.name)

    def _tell_changes(self, server: str) -> None:
        old = self.catalogue
        offers = [offer_of(supplier) for supplier in self.suppliers.values()]
        new = Catalogue.of(offers, old.revision + 1, self._claimed)
        changes = difference(old, new)
        if not changes and old.stale == new.stale:
            self.catalogue = Catalogue.of(offers, old.revision, self._claimed)
            return
        self.catalogue = new
        if server:
            event = CatalogueChanged(
                server=server, revision=new.revision, changes=changes, stale=server in new.stale
            )
            self.observers.tell(event)
