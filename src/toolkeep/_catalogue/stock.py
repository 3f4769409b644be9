"""What one server offers to one identity, as it was last listed, and what its user made of it.

The listing is kept whole; what the configuration leaves out (`include_tools`, `exclude_tools`) is
left out of a copy, and tags, headers, guides and prompts of the user's own stand beside what the
server said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from toolkeep._catalogue.guides import guides_for
from toolkeep._catalogue.listing import Rest
from toolkeep._catalogue.offer import Offer
from toolkeep._catalogue.prompts import LocalPrompt, beside
from toolkeep._catalogue.tool import Tool
from toolkeep._rules.patterns import Selection
from toolkeep.config import ServerSpec

if TYPE_CHECKING:
    import mcp_types

    from toolkeep._engine.toolbook import Toolbook

logger = logging.getLogger("toolkeep.catalogue")

TOOLS, PROMPTS, RESOURCES = "tools", "prompts", "resources"
KINDS = frozenset({TOOLS, PROMPTS, RESOURCES})
"""What can be listed, in the words of `Changed`."""

SHORTEST_TTL = 5.0
"""Seconds between two listings, whatever a server vouches for."""

_SLICE = 500
"""Tools that are dressed at a time: about 3 ms."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Aged(NamedTuple):
    """The tools of a stock, marked."""

    whole: tuple[Tool, ...]
    shown: tuple[Tool, ...]
    by_name: Mapping[str, Tool]


@dataclass(frozen=True, slots=True)
class Stock:
    """Frozen: the next listing makes the next one."""

    book: Toolbook
    whole: Offer
    """All that the server listed."""
    shown: Offer
    """What the configuration leaves of it."""
    tools: Mapping[str, Tool] = field(repr=False)
    """Those that are shown, by the server's own names."""
    rest: Rest = field(repr=False)
    listed: frozenset[str] = frozenset({TOOLS})
    """What of it was asked for; the rest is not known."""

    @property
    def expired(self) -> bool:
        """Whether the server vouched for it, and does so no longer."""
        if not self.book.ttl:
            return False
        longer = max(0.0, SHORTEST_TTL - self.book.ttl)
        return time.time() >= (self.book.expires_at or 0) + longer

    @property
    def is_public(self) -> bool:
        """Whether the server says that everybody is told the same."""
        return self.book.public and self.rest.public

    def aged(self, *, stale: bool) -> Stock:
        """The same, of a server that is out of reach, or is so no longer."""
        if self.shown.stale == stale:
            return self
        tools = tuple(replace(tool, stale=stale) for tool in self.whole.tools)
        shown = tuple(tool for tool in tools if tool.tool in self.tools)
        by_name = {tool.tool: tool for tool in shown}
        return self._with(Aged(tools, shown, by_name), stale=stale)

    def aged_like(self, known: dict[int, Aged]) -> Stock:
        """The same, out of reach; with the tools of another that had the same, if there is one."""
        if self.shown.stale:
            return self
        found = known.get(id(self.whole.tools))
        if found is not None:
            return self._with(found, stale=True)
        stock = self.aged(stale=True)
        known[id(self.whole.tools)] = Aged(stock.whole.tools, stock.shown.tools, stock.tools)
        return stock

    def _with(self, aged: Aged, *, stale: bool) -> Stock:
        return replace(
            self,
            whole=replace(self.whole, stale=stale, tools=aged.whole),
            shown=replace(self.shown, stale=stale, tools=aged.shown),
            tools=aged.by_name,
        )


@dataclass(frozen=True, slots=True)
class Dressing:
    """What the user's configuration makes of what one server lists."""

    spec: ServerSpec
    prompts: tuple[LocalPrompt, ...] = ()
    """The user's own, beside the server's."""
    progressed: Container[tuple[str, str]] = frozenset[tuple[str, str]]()

    async def stock(
        self, book: Toolbook, rest: Rest, listed: frozenset[str], like: Stock | None = None
    ) -> Stock:
        """`like`: another, whose tools are used again if they are the same. Made in slices: the
        loop does not stand still for a long list."""
        if like is not None and like.book is book and like.rest.texts == rest.texts:
            offered = self._offer(rest, like.whole.tools)
            shown = replace(offered, tools=like.shown.tools)
            return replace(like, whole=offered, shown=shown, rest=rest, listed=listed)
        tools: list[Tool] = []
        for tool in self._all_dressed(book, rest):
            tools.append(tool)
            if len(tools) % _SLICE == 0:
                await asyncio.sleep(0)
        return self._stock(book, rest, listed, tuple(tools))

    def stock_now(self, book: Toolbook, rest: Rest, listed: frozenset[str]) -> Stock:
        """As `stock`, for those who cannot wait."""
        return self._stock(book, rest, listed, tuple(self._all_dressed(book, rest)))

    def _all_dressed(self, book: Toolbook, rest: Rest) -> Iterator[Tool]:
        texts = {**{one.name: one.text for one in self.prompts}, **rest.texts}
        file = [one.text for one in self.prompts]
        given = self.spec.guides
        guides = guides_for(book.tools, given, texts, file) if given else {}
        return (self._dressed(one, guides.get(one.name, "")) for one in book.tools)

    def _stock(
        self, book: Toolbook, rest: Rest, listed: frozenset[str], tools: tuple[Tool, ...]
    ) -> Stock:
        spec = self.spec
        selection = Selection.of(spec.include_tools, spec.exclude_tools, server=spec.name)
        shown = tuple(tool for tool in tools if selection.keeps(tool.tool))
        whole = self._offer(rest, tools)
        return Stock(
            book,
            whole,
            shown=replace(whole, tools=shown),
            tools={tool.tool: tool for tool in shown},
            rest=rest,
            listed=listed,
        )

    def _offer(self, rest: Rest, tools: tuple[Tool, ...]) -> Offer:
        return Offer(
            server=self.spec.name,
            tools=tools,
            prompts=(*rest.prompts, *self._own_prompts(rest)),
            resources=rest.resources,
            templates=rest.templates,
            instructions=rest.instructions,
        )

    def prompt(self, name: str, rest: Rest) -> LocalPrompt | None:
        """The user's own prompt of this name, unless the server has one."""
        if any(prompt.name == name for prompt in rest.prompts):
            return None
        return next((prompt for prompt in self.prompts if prompt.name == name), None)

    def _dressed(self, definition: mcp_types.Tool, guide: str) -> Tool:
        spec, name = self.spec, definition.name
        tags = spec.tags
        for pattern, more in spec.tool_tags.items():
            if fnmatchcase(name, pattern):
                tags |= frozenset(more)
        return Tool(
            spec.name,
            definition,
            tags=tags,
            headers=spec.tool_headers.get(name, _NO_HEADERS),
            guide=guide,
            progressed=self.progressed,
        )

    def _own_prompts(self, rest: Rest) -> tuple[mcp_types.Prompt, ...]:
        added, yielding = beside(self.prompts, {prompt.name for prompt in rest.prompts})
        for name in yielding:
            logger.warning("%s: the server has a prompt %r of its own", self.spec.name, name)
        return tuple(prompt.definition for prompt in added)
