"""`Runtime`: all servers, one catalogue, calls for every user. The one object that users hold.

Making one does no I/O. It opens with `async with`, or with `connect` and `aclose` in a framework's
lifespan; a server that cannot be opened is tried again in the background, and the rest go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast

from toolkeep._catalogue.catalogue import Catalogue
from toolkeep._catalogue.tool import Tool
from toolkeep._engine.call import Call, Emit
from toolkeep._engine.figures import Figures
from toolkeep._engine.inputs import Inputs
from toolkeep._engine.observing import Observation
from toolkeep._engine.setup import Setup
from toolkeep._engine.wanted import OnProgress, Wanted
from toolkeep._runtime.asking import Asking
from toolkeep._runtime.desk import Desk, Resource
from toolkeep._runtime.errand import Errand
from toolkeep._runtime.gate import Gate
from toolkeep._runtime.house import House, Sources
from toolkeep._runtime.names import ToolName, named
from toolkeep._runtime.options import (
    OF_CLIENTS,
    OF_GROUP,
    OF_QUESTIONS,
    OF_SOURCES,
    Options,
    checked,
    chosen,
    functions_of,
)
from toolkeep._runtime.oversized import PART, ResultPart
from toolkeep._runtime.speaking import PATIENCE
from toolkeep._runtime.status import ServerStatus
from toolkeep.config import Configuration, Difference, ServerSpec
from toolkeep.context import CallContext
from toolkeep.events import Observer
from toolkeep.results import CallResult

logger = logging.getLogger("toolkeep.runtime")

Owned = TypeVar("Owned", bound=Resource)


class Runtime(Asking):
    """Many servers, used from any task of one event loop; once closed, also in another.

    `config`: a path, a URL, a mapping, a list, a `Configuration`; None looks in the usual places.
    The options are described at `Options`.
    """

    def __init__(self, config: object = None, **options: Unpack[Options]) -> None:
        given = checked(options)
        Inputs("runtime", PATIENCE, **chosen(given, OF_QUESTIONS))  # says what cannot be asked
        gate = Gate(given.get("permissions"), given.get("filter"))
        self._desk = Desk(
            gate,
            given.get("header_provider"),
            self,
            given.get("results"),
            authorized=given.get("auth") is not None,
        )
        self._house = House(
            self._desk,
            Sources(config, chosen(given, OF_SOURCES), functions_of(given)),
            Setup(**chosen(given, OF_CLIENTS), observers=self._desk.observers),
            chosen(given, OF_QUESTIONS),
            chosen(given, OF_GROUP),
            live=given.get("live", True),
            follow=given.get("follow", False),
        )

    @classmethod
    def open(cls, config: object = None, **options: Unpack[Options]) -> Self:
        """`async with Runtime.open("mcp.json") as runtime`: a runtime that is open inside of the
        block. The options are those of `Runtime`."""
        return cls(config, **options)

    def __del__(self) -> None:
        house: House | None = getattr(self, "_house", None)
        if house is not None and house.is_open:
            self._desk.home.close_dropped(self, house.close, house.abandon)

    def __repr__(self) -> str:
        return f"<Runtime {self.summary()}>" if self._desk.is_open else "<Runtime, not open>"

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        """Read the configuration and open all servers. Opening twice is opening once."""
        await self._house.open()
        logger.info("%s", self.summary())

    async def aclose(self) -> None:
        """Close everything, also what is under way. May be called twice, from any task."""
        await self._house.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def resource(self, kind: type[Owned]) -> Owned:
        """The one `kind()` of this runtime: made when it is first asked for, and closed (`aclose`)
        with the runtime, before its servers."""
        self._desk.check_open()
        held = self._desk.resources
        return cast("Owned", held[kind] if kind in held else held.setdefault(kind, kind()))

    # -- what is true now -----------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """What was read, with where each value came from and who still needs approval."""
        return self._house.configuration

    @property
    def catalogue(self) -> Catalogue:
        """All that is offered to callers without identity, whatever they may see of it."""
        return self._desk.catalogue

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """All servers as they are now, in the order of the configuration."""
        return self._house.status()

    @property
    def figures(self) -> Figures:
        """What every server and every tool was asked, and how it went."""
        return self._desk.figures

    def summary(self) -> str:
        """`"2/3 servers healthy, 41 tools"`."""
        return self._house.summary()

    # -- calling --------------------------------------------------------------------------------

    async def call(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> CallResult:
        """Call a tool by its name (`server.tool`, or what is unique without the server), on behalf
        of whoever the context says. Raises a `ToolkeepError` that says whether it ran."""
        wanted = Wanted(
            named(name),
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        return await Errand(self._desk, name, wanted, context).carry_out()

    def stream(
        self,
        name: ToolName,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        input: Literal["answer", "return"] = "answer",
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> Call:
        """Call a tool and watch it: `async with runtime.stream(…) as call`, then iterate the call
        for its events, as they happen; see `Call`."""
        wanted = Wanted(
            named(name),
            arguments,
            headers,
            meta,
            timeout,
            on_progress,
            input,
            input_responses,
            request_state,
        )
        errand = Errand(self._desk, name, wanted, context)

        # With a reference to the runtime: one that is still used is not dropped.
        def run(emit: Emit, _: Runtime = self) -> Awaitable[CallResult]:
            return errand.carry_out(emit)

        return Call(run)

    async def read_result(
        self,
        handle: str,
        start: int = 0,
        length: int = PART,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ResultPart:
        """Some characters of a result that was set aside (`oversized="spill"`), for the same caller
        as it was for. Whoever else asks for it is told that it is not there."""
        self._desk.check_open()
        return await self._desk.read_result(handle, start, length, context, headers)

    # -- finding --------------------------------------------------------------------------------

    async def catalogue_for(self, context: CallContext | None = None) -> Catalogue:
        """What this context may see: listed with its identity, filtered and permitted."""
        self._desk.check_open()
        return await self._desk.view(context)

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        context: CallContext | None = None,
        tags: Collection[str] | None = None,
    ) -> list[Tool]:
        """The tools that say the most about the query, the best first, of those that this context
        may see."""
        self._desk.check_open()
        return await self._desk.search(query, limit, context, tags)

    async def resolve(
        self, names: Iterable[ToolName], context: CallContext | None = None
    ) -> list[Tool]:
        """The tools of these names, in their order: all of them, or an error that names all that
        are missing. They can be called as they are, and then speak for the same context."""
        return await self._desk.resolve(names, context)

    # -- looking after the servers --------------------------------------------------------------

    async def refresh(self, server: str | None = None) -> Catalogue:
        """List again what this server offers, or what all do: each of them, even if one fails."""
        self._desk.check_open()
        chosen = list(self._desk.suppliers.values())
        if server is not None:
            chosen = [self._desk.supplier(server)]
        refreshing = (supplier.refresh() for supplier in chosen)
        ended = await asyncio.gather(*refreshing, return_exceptions=True)
        for failure in ended:
            if failure is not None:
                raise failure
        return self.catalogue

    async def reconnect(self, *, failed_only: bool = True) -> None:
        """Try the failed once more now, or close and open all."""
        await self._house.reconnect(failed_only=failed_only)

    async def add(self, server: object) -> None:
        """One more server: whatever describes one. It is opened at once."""
        await self._house.add(ServerSpec.parse(server))

    async def remove(self, name: str) -> None:
        """One less. Its calls under way end where they are; nobody waits for them here."""
        await self._house.remove(name)

    async def reload(self, config: object = None) -> Difference:
        """Read the configuration again, or another one, and apply what is different. Servers that
        did not change are not touched; calls under way end where they began."""
        return await self._house.reload(config)

    async def forget(self, principal: str) -> None:
        """End the sessions of this principal, also those that a store keeps, and forget what it was
        shown. What its calls under way bring is neither used again nor set aside."""
        await self._house.forget(principal)

    def observe(self, observer: Observer) -> Observation:
        """Have `observer` called with every event of calls, connections, servers and the
        catalogue, until the handle is closed."""
        observation = self._desk.observers.add(observer, listen=False)
        self._house.introduce(observation)
        return observation
