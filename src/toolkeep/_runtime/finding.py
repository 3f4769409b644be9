"""Finding the tool that is meant, as the caller is shown it, and whoever the call is for.

A full name, or a `Tool`, is looked for at its server and nowhere else. Other names are looked for
in all that the caller is shown. What was given with a single call goes to the server of its tool
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.stock import Stock
from toolkeep._catalogue.supplier import Supplier
from toolkeep._catalogue.tool import Caller, Tool
from toolkeep._engine.home import Home
from toolkeep._engine.tenancy import Superseded
from toolkeep._rules import headers as header_rules
from toolkeep._runtime.found import AtHand, Found, asked
from toolkeep._runtime.gate import Gate
from toolkeep._runtime.names import ToolName, named, parts
from toolkeep._runtime.speaking import (
    PATIENCE,
    HeaderProvider,
    Left,
    Speaker,
    speaker_for,
    speaker_without,
)
from toolkeep._runtime.views import Views
from toolkeep.context import CallContext
from toolkeep.errors import (
    CallNotSentInTime,
    ConfigError,
    Delivery,
    InvalidArguments,
    NotPermitted,
    ServerUnavailable,
    UnknownServer,
    UnknownTool,
)


class Finding(Views):
    """The part of a desk that finds."""

    def __init__(self, gate: Gate, provider: HeaderProvider | None, caller: Caller) -> None:
        super().__init__(gate)
        if provider is not None and not callable(provider):
            remedy = "Give a function of a context and a server's name"
            raise ConfigError("it is no function", remedy=remedy, key="header_provider")
        self._provider = provider
        # Weak: what is open keeps a desk alive, and a runtime that is dropped must be noticed.
        self._caller_ref = weakref.ref(caller)
        self.is_open = False
        self.home = new_home()
        self.at_hand = AtHand()

    @property
    def _caller(self) -> Caller | None:
        return self._caller_ref()

    def supplier(self, name: str) -> Supplier:
        found = self.suppliers.get(name)
        if found is None:
            known = ", ".join(self.suppliers) or "none"
            raise UnknownServer(f"there is no server {name!r}; there is: {known}")
        return found

    def check_open(self) -> None:
        if self.home.loop is not None:
            self.home.check()
        if not self.is_open:
            text = "the runtime is not open: use `async with Runtime.open(…)`, or connect() first"
            raise ServerUnavailable(text, server="runtime")

    def refused(self, what: object, why: str) -> InvalidArguments:
        text = f"{what} was not sent: {why}"
        return InvalidArguments(text, server="", tool=str(what))

    async def speaker(
        self,
        supplier: Supplier,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        within: float | None = None,
    ) -> Speaker:
        return await speaker_for(supplier.spec, context, headers, self._provider, within)

    def find_now(
        self, name: ToolName, context: CallContext | None, headers: Mapping[str, str] | None
    ) -> Found | None:
        """What `find` would find; None if somebody might have to be asked for it."""
        if self._provider is not None or not self.gate.is_open or not isinstance(name, str):
            return None
        nobody = context is None and not headers
        if nobody and (found := self.at_hand.get(name)) is not None:
            return found
        server, tool = parts(name)
        supplier = self.suppliers.get(server)
        if supplier is None:
            return None
        speaker = speaker_without(supplier.spec, context, headers)
        stock = supplier.known(speaker.identity)
        meant = stock.tools.get(tool) if stock is not None else None
        if stock is None or meant is None:
            return None
        sent = speaker.headers(supplier.spec, meant.headers)
        found = Found(supplier, stock, meant, speaker, sent)
        if nobody:
            self.at_hand.put(name, found)
        return found

    async def find(
        self,
        name: ToolName,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Found:
        """The tool that is meant, as this caller is shown it. Raises what says why not."""
        if isinstance(name, Tool):
            return await self._find_tool(name, context, headers, timeout)
        left = Left(timeout)
        server, tool = parts(name)
        if not server and (meant := self.catalogue.for_model(tool)) is not None:
            server, tool = meant.key  # unique whatever else there is: no other has to be asked
        supplier = self.suppliers.get(server)
        if supplier is not None:
            found = await self._find_at(supplier, tool, context, headers, timeout)
            if found is not None:
                return found
        whole = await self.whole(context, timeout=left())
        async with self._patiently(named(name), left()):
            self._check_missing(whole, named(name))
            meant = await self.seen(whole, partial(_tool, named(name)), context)
        supplier = self.supplier(meant.server)
        found = await self._find_at(supplier, meant.tool, context, headers, left())
        if found is None:
            raise NotPermitted(f"{meant.name} may be seen, but not be called, in this context")
        return found

    async def _find_tool(
        self,
        tool: Tool,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Found:
        """A tool is the pair of its server and its name, and nothing else is taken for it."""
        supplier = self.suppliers.get(tool.server)
        if supplier is None:
            raise UnknownTool(f"there is no tool {tool.name[:200]!r}: its server was removed")
        if tool.own_headers and supplier.spec.url:  # whoever puts them there says who is calling
            headers = header_rules.merge(headers, tool.own_headers)
        left = Left(timeout)
        found = await self._find_at(supplier, tool.tool, context, headers, timeout)
        if found is not None:
            return found
        async with self._patiently(tool.name, left()):
            if supplier.offers(tool.tool) and await self.gate.lets("see", tool, context):
                raise NotPermitted(f"{tool.name[:200]} may be seen, but not be called, here")
        raise UnknownTool(f"there is no tool {tool.name[:200]!r} any more")

    async def _find_at(
        self,
        supplier: Supplier,
        tool: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Found | None:
        left = Left(timeout)
        speaker = await self.speaker(supplier, context, headers, timeout)
        identity, lease = speaker.identity, None
        stock = supplier.known(identity)
        try:
            if stock is None:
                within = left if timeout is not None else Left(supplier.spec.timeouts.call)
                if identity is not None and supplier.spec.session != "shared":
                    lease = await supplier.sessions.lend(identity, within() or 0)
                stock = await asked(supplier, identity, within() or 0, lease)
            meant = stock.tools.get(tool)
            if meant is None or not await self._may_call(meant, context, left()):
                return None
            sent = speaker.headers(supplier.spec, meant.headers)
            found = Found(supplier, stock, meant, speaker, sent, lease)
            lease = None  # whoever gets what was found gives it back
            return found
        finally:
            if lease is not None:
                lease.give_back()

    def _check_missing(self, whole: Catalogue, name: str) -> None:
        """What is left must not be taken for what is meant while a server cannot be asked."""
        missing = {offer.server for offer in whole.offers if offer.missing}
        if not missing:
            return
        named_so = [*self.catalogue.bearing(name)]
        if (meant := self.catalogue.for_model(name)) is not None:
            named_so = [meant]
        owners = {name.partition(".")[0], *(tool.server for tool in named_so)}
        for server in sorted(owners & missing):
            text = f"{server} cannot be asked just now what it offers this caller; {name[:200]}"
            raise ServerUnavailable(f"{text} may be its. It did not run", server=server)

    async def _may_call(
        self, tool: Tool, context: CallContext | None, timeout: float | None
    ) -> bool:
        if self.gate.is_open:
            return True
        async with self._patiently(tool.name, timeout):
            return await self.gate.lets("call", tool, context)

    @contextlib.asynccontextmanager
    async def _patiently(self, name: str, timeout: float | None) -> AsyncGenerator[None]:
        """As long as the call has, a function of the user's may take."""
        limit = asyncio.timeout(PATIENCE if timeout is None else timeout)
        try:
            async with limit:
                yield
            return
        except TimeoutError:
            if not limit.expired():
                raise
        text = f"{name[:200]} was given up: a filter or permission has not answered. It did not run"
        raise CallNotSentInTime(text, server="", tool=name, delivery=Delivery.NOT_SENT)

    async def resolve(self, given: Iterable[ToolName], context: CallContext | None) -> list[Tool]:
        self.check_open()
        if isinstance(given, str):
            raise self.refused(given, "names are a list; one alone is written [name]")
        names = list(given)
        at_their_servers = await asyncio.gather(
            *(self._resolved(name, context) for name in names), return_exceptions=True
        )
        found: list[Tool] = []
        missing: list[LookupError] = []
        for name, tool in zip(names, at_their_servers, strict=True):
            if isinstance(tool, UnknownTool):
                missing.append(tool)
            elif isinstance(tool, BaseException):
                raise tool
            else:
                own = name.own_headers if isinstance(name, Tool) else tool.own_headers
                found.append(replace(tool, own_headers=own, caller=self._caller, context=context))
        if len(missing) == 1:
            raise missing[0]
        if missing:
            text = f"{len(missing)} of {len(names)} tools: {'; '.join(map(str, missing))}"
            raise UnknownTool(text)
        return found

    async def _resolved(self, name: ToolName, context: CallContext | None) -> Tool:
        """At its server, if the name says which; otherwise among all that this caller is shown."""
        server, tool = parts(name)
        if not server and (meant := self.catalogue.for_model(tool)) is not None:
            server, tool = meant.key
        stock = await self._stock_at(server, context)
        async with self._patiently(named(name), None):
            found = stock.tools.get(tool) if stock else None
            if found is not None and await self.gate.lets("see", found, context):
                return found
        if isinstance(name, Tool):
            raise UnknownTool(f"there is no tool {name.name[:200]!r} any more")
        whole = await self.whole(context)
        async with self._patiently(named(name), None):
            self._check_missing(whole, named(name))
            return await self.seen(whole, partial(_tool, named(name)), context)

    async def _stock_at(
        self, server: str, context: CallContext | None, tries: int = 5
    ) -> Stock | None:
        """What the server of this name offers this caller; None: there is none."""
        supplier = self.suppliers.get(server)
        if supplier is None:
            return None
        try:
            speaker = await self.speaker(supplier, context, None)
            return await asked(supplier, speaker.identity, supplier.spec.timeouts.call)
        except Superseded:
            if not (self.is_open and tries):
                raise
        return await self._stock_at(server, context, tries - 1)

    async def search(
        self, query: str, limit: int, context: CallContext | None, tags: Collection[str] | None
    ) -> list[Tool]:
        hits = await super().search(query, limit, context, tags)
        return [replace(hit, caller=self._caller, context=context) for hit in hits]


def _tool(name: str, view: Catalogue) -> Tool:
    return view.tool(name)


def new_home() -> Home:
    return Home("runtime", "runtime")
