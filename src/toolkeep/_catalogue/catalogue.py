"""The catalogue: all that the servers offer, at one moment, in the order of the configuration.

A snapshot never changes and can be kept for as long as one likes; a change of what is offered is
another snapshot with a higher revision. Nothing here asks a server.

Making one costs next to nothing, and a tool found by its full name is one look-up. Whatever costs
more (short names, names for models, the index of the search) is made when first needed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from toolkeep._catalogue import names
from toolkeep._catalogue.offer import Offer, Prompt, Resource, Template
from toolkeep._catalogue.search import Index
from toolkeep._catalogue.sieve import Sieve, firsts
from toolkeep._catalogue.tool import Tool
from toolkeep._rules.naming import model_names, python_names

__all__ = ["Catalogue", "Offer", "Prompt", "Resource", "Template"]


@dataclass(frozen=True, eq=False, repr=False)
class Catalogue:
    """One snapshot, immutable. Made by a `Runtime`; read by anyone, in any thread."""

    offers: tuple[Offer, ...] = ()
    revision: int = 0
    """Grows with every change of what is offered."""
    claimed: frozenset[str] = frozenset()
    """Names of servers that were there before: no other's tool is to pass for one of theirs."""

    @classmethod
    def of(
        cls, offers: Iterable[Offer], revision: int, claimed: frozenset[str] = frozenset()
    ) -> Catalogue:
        return cls(tuple(offers), revision, claimed)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(self._prompts.values())

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        found = (Resource(offer.server, one) for offer in self.offers for one in offer.resources)
        return tuple(firsts(found).values())

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        found = (Template(offer.server, one) for offer in self.offers for one in offer.templates)
        return tuple(firsts(found).values())

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """The names of all servers of this snapshot, also of those that offer nothing."""
        return tuple(dict.fromkeys(offer.server for offer in self.offers))

    @cached_property
    def stale(self) -> tuple[str, ...]:
        """The servers that are out of reach, and of which this is what they last said."""
        return tuple(dict.fromkeys(offer.server for offer in self.offers if offer.stale))

    @cached_property
    def program_names(self) -> dict[str, Tool]:
        """The tools by their names in programs: those for models, with `_` for each `-`."""
        written = python_names(self._model_names)
        return {written[name]: tool for name, tool in self._model_names.items()}

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __contains__(self, tool: object) -> bool:
        """Whether it has this tool, given itself or by its full name."""
        return (tool.name if isinstance(tool, Tool) else tool) in self._tools

    def __repr__(self) -> str:
        stale = f" ({len(self.stale)} stale)" if self.stale else ""
        size = f"{len(self)} tools of {len(self.servers)} servers{stale}"
        return f"Catalogue({size}, revision {self.revision})"

    def tool(self, name: str) -> Tool:
        """The tool of this full name, name for models, or unique short name.

        Raises `AmbiguousTool` with the candidates, or `UnknownTool` with the nearest names.
        """
        found = self._tools.get(name)
        if found is None and "__" in name:
            found = self._model_names.get(name)
        if found is None:
            found = names.find(name, "tool", self._own_names, self._servers)
        if found is None:
            raise names.unknown(name, "tool", self._tools.keys(), self._servers)
        return found

    def for_model(self, name: str) -> Tool | None:
        """The tool of this name for models, if it is one."""
        return self._model_names.get(name)

    def bearing(self, name: str) -> tuple[Tool, ...]:
        """All tools that their servers call so."""
        return tuple(self._own_names.get(name, ()))

    def prompt(self, name: str) -> Prompt:
        """The prompt of this full or unique short name. Raises as `tool` does."""
        found = self._prompts.get(name)
        if found is None:
            own = names.by_own_name(self.prompts)
            found = names.find(name, "prompt", own, self._servers)
        if found is None:
            raise names.unknown(name, "prompt", self._prompts.keys(), self._servers)
        return found

    def groups(self) -> dict[str, tuple[Tool, ...]]:
        """The tools by their tags: with several in several groups, without any in none."""
        found: dict[str, list[Tool]] = {}
        for tool in self.tools:
            for tag in tool.tags:
                found.setdefault(tag, []).append(tool)
        return {tag: tuple(found[tag]) for tag in sorted(found)}

    def group(self, tag: str) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if tag in tool.tags)

    def search(
        self, query: str, limit: int = 10, *, tags: Collection[str] | None = None
    ) -> list[Tool]:
        """The tools that say the most about the query, the best first; with one of the tags."""
        if tags is None:
            hits = self._index.search(query, limit)
        else:
            wanted = frozenset(tags)
            hits = self._index.search(query, limit, lambda tool: not wanted.isdisjoint(tool.tags))
        return [hit.tool for hit in hits]

    def filtered(
        self,
        keep: Callable[[Tool], bool],
        *,
        keep_other: Callable[[Prompt | Resource | Template], bool] | None = None,
    ) -> Catalogue:
        """Another catalogue with only what is kept; this one stays as it is.

        A tool for which `keep` raises is left out, and said so in the log. The servers stay known,
        also those of which nothing is left.
        """
        sieve = Sieve(keep)
        offers = (_with_tools(offer, sieve) for offer in self.offers)
        if keep_other is not None:
            other = Sieve(keep_other)
            offers = [_with_others(offer, other) for offer in offers]
            other.report()
        kept = tuple(offers)
        sieve.report()
        return Catalogue(kept, self.revision, self.claimed)

    @cached_property
    def _tools(self) -> dict[str, Tool]:
        return firsts(tool for offer in self.offers for tool in offer.tools)

    @cached_property
    def _prompts(self) -> dict[str, Prompt]:
        return firsts(Prompt(offer.server, one) for offer in self.offers for one in offer.prompts)

    @cached_property
    def _servers(self) -> frozenset[str]:
        return self.claimed.union(self.servers)

    @cached_property
    def _own_names(self) -> dict[str, list[Tool]]:
        return names.by_own_name(self.tools)

    @cached_property
    def _model_names(self) -> dict[str, Tool]:
        tools = {tool.key: tool for tool in self.tools}
        return {name: tools[pair] for pair, name in model_names(tools).items()}

    @cached_property
    def _index(self) -> Index:
        return Index(self.tools)


def _with_tools(offer: Offer, sieve: Sieve[Tool]) -> Offer:
    kept = tuple(tool for tool in offer.tools if sieve.keeps(tool))
    return offer if len(kept) == len(offer.tools) else replace(offer, tools=kept)


def _with_others(offer: Offer, sieve: Sieve[Prompt | Resource | Template]) -> Offer:
    server = offer.server
    return replace(
        offer,
        prompts=tuple(one for one in offer.prompts if sieve.keeps(Prompt(server, one))),
        resources=tuple(one for one in offer.resources if sieve.keeps(Resource(server, one))),
        templates=tuple(one for one in offer.templates if sieve.keeps(Template(server, one))),
    )
