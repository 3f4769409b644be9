"""`Catalogue`: one immutable snapshot of everything that the servers offer, with name look-up and
comparison.

A change makes a new snapshot with a higher revision. Never asks a server. A short name that
begins with a known server's name is looked up at that server only.
"""

from __future__ import annotations

import heapq
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from toolkeep._catalogue.listing import ListingContent, Prompt, Resource, Template
from toolkeep._catalogue.search import SearchIndex
from toolkeep._catalogue.tool import Tool, same_for_models
from toolkeep._rules.names import model_names, python_names
from toolkeep.errors import AmbiguousTool, NotOffered, UnknownPrompt, UnknownTool
from toolkeep.events import CatalogueChanges, NameChanges

logger = logging.getLogger("toolkeep.catalogue")

MAX_NAME_SHOWN = 80
"""Characters of a name that are compared or shown. Model providers allow 64."""

MAX_CANDIDATES = 20_000
"""Names that are considered for suggestions: about 30 ms, twice the largest known catalogue."""

MAX_NGRAMS = 24
"""Letters and letter pairs of a name that are compared to make the shortlist."""

SHORTLIST_SIZE = 16
"""Names that are compared with `SequenceMatcher`, at up to 0.3 ms each."""

MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.6
"""From 0 to 1: the cutoff of `difflib.get_close_matches`."""

MAX_LISTED = 10
"""Candidates in an error message. The error object holds all."""


class Named(Protocol):
    @property
    def key(self) -> tuple[str, str]: ...
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)
Contra = TypeVar("Contra", bound=Named, contravariant=True)


def by_short_name(items: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.key[1], []).append(item)
    return found


def find_by_short_name(
    name: str, what: str, own: Mapping[str, list[Item]], servers: Collection[str]
) -> Item | None:
    """The one item of this short name; None: there is none. Raises if several servers have one."""
    found = own.get(name, [])
    owner = claiming_server(name, servers)
    if owner is not None:
        found = [item for item in found if item.key[0] == owner]
    if len(found) > 1:
        raise ambiguous_error(name, what, tuple(item.name for item in found))
    return found[0] if found else None


def claiming_server(name: str, servers: Collection[str]) -> str | None:
    """The server whose name this name begins with, as a full name or a name for models would."""
    for separator in (".", "__"):
        server, parting, _ = name.partition(separator)
        if parting and server in servers:
            return server
    return None


def ambiguous_error(name: str, what: str, candidates: tuple[str, ...]) -> NotOffered:
    shown = ", ".join(shorten(candidate) for candidate in candidates[:MAX_LISTED])
    more = f", and {len(candidates) - MAX_LISTED} more" if len(candidates) > MAX_LISTED else ""
    text = f"{len(candidates)} servers have a {what} {shorten(name)!r}; name one of: {shown}{more}"
    if what == "prompt":
        return UnknownPrompt(text, suggestions=candidates)
    return AmbiguousTool(text, candidates=candidates)


def unknown_error(
    name: str, what: str, names: Collection[str], servers: Collection[str] = ()
) -> NotOffered:
    near = closest_names(name, (one for one in names if not is_misleading(one, servers)))
    if near:
        hint = f"did you mean {' or '.join(shorten(one) for one in near)}?"
    else:
        hint = "no name is similar" if names else f"no server lists any {what}"
    kind = UnknownPrompt if what == "prompt" else UnknownTool
    return kind(f"there is no {what} {shorten(name)!r}: {hint}", suggestions=near)


def is_misleading(name: str, servers: Collection[str]) -> bool:
    """Whether a tool's own name begins with the name of another server. Such a tool is never
    suggested."""
    owner, _, own = name.partition(".")
    claimed = claiming_server(own, servers)
    return claimed is not None and claimed != owner


def closest_names(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """The full names most similar to `name`, the best first."""
    wanted = name[:MAX_NAME_SHOWN].casefold()
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    scored = [(similarity(matcher, candidate), candidate) for candidate in shortlist(wanted, names)]
    # Of equal scores, tools of the named server come first: the others could pass for them.
    owner = f"{name.partition('.')[0]}."
    good = [
        (-score, not candidate.startswith(owner), candidate)
        for score, candidate in scored
        if score >= MIN_SIMILARITY
    ]
    return tuple(candidate for *_, candidate in sorted(good)[:MAX_SUGGESTIONS])


def shortlist(wanted: str, names: Iterable[str]) -> list[str]:
    """The names that share most pieces with `wanted`: a cheap filter before the comparison."""
    pieces = ngrams_of(wanted)
    scored: list[tuple[int, int, str]] = []
    for _, candidate in zip(range(MAX_CANDIDATES), names, strict=False):
        text = candidate[:MAX_NAME_SHOWN].casefold()
        shared = sum([piece in text for piece in pieces])
        if shared:
            length_gap = abs(len(text) - text.find(".") - 1 - len(wanted))
            scored.append((-shared, length_gap, candidate))
    return [candidate for _, _, candidate in heapq.nsmallest(SHORTLIST_SIZE, scored)]


def ngrams_of(text: str) -> list[str]:
    """Its letter pairs; for a short text its letters too, since swapped letters share no pair."""
    letters = text if len(text) <= MAX_NGRAMS // 2 else ""
    pairs = (text[i : i + 2] for i in range(len(text) - 1))
    return list(dict.fromkeys((*letters, *pairs)))[:MAX_NGRAMS]


def similarity(matcher: SequenceMatcher[str], candidate: str) -> float:
    """The better score of the full name and of the name without its server."""
    whole = candidate[:MAX_NAME_SHOWN].casefold()
    own = candidate.partition(".")[2][:MAX_NAME_SHOWN].casefold()
    return max(ratio(matcher, whole), ratio(matcher, own))


def ratio(matcher: SequenceMatcher[str], text: str) -> float:
    matcher.set_seq1(text)
    bound = min(matcher.real_quick_ratio(), matcher.quick_ratio())
    return matcher.ratio() if bound >= MIN_SIMILARITY else 0.0


def shorten(text: str) -> str:
    return text if len(text) <= MAX_NAME_SHOWN else f"{text[:MAX_NAME_SHOWN]}…"


class SafeFilter(Generic[Contra]):
    """A filter function of the user for one pass over one snapshot. Where it raises, the item is
    left out."""

    def __init__(self, keep: Callable[[Contra], bool]) -> None:
        self._keep = keep
        self._failed = 0
        self._first = ""

    def keeps(self, item: Contra) -> bool:
        try:
            return bool(check_verdict(self._keep(item)))
        except Exception as error:
            self._failed += 1
            self._first = self._first or f"{shorten(item.name)}: {type(error).__name__}"
            return False

    def log_failures(self) -> None:
        if self._failed:
            logger.warning(
                "a filter failed for %d items, which are left out (%s)", self._failed, self._first
            )


def check_verdict(verdict: object) -> object:
    """The verdict, unless it is awaitable: a coroutine is truthy, and would keep everything."""
    if not inspect.isawaitable(verdict):
        return verdict
    if inspect.iscoroutine(verdict):
        verdict.close()
    raise TypeError("the filter must not be asynchronous")


def first_by_name(items: Iterable[Item]) -> dict[str, Item]:
    """Items by full name; the first of several with the same name."""
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item.name, item)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Catalogue:
    """An immutable snapshot of what the servers offer. Made by a `Runtime`; safe to read in any
    thread."""

    listings: tuple[ListingContent, ...] = ()
    revision: int = 0
    """Increases with every change of what is offered."""
    known_servers: frozenset[str] = frozenset()
    """Names of all servers since the runtime was opened, also of removed ones: a tool of another
    server must not pass for one of theirs."""

    @classmethod
    def of(
        cls,
        listings: Iterable[ListingContent],
        revision: int,
        known_servers: frozenset[str] = frozenset(),
    ) -> Catalogue:
        return cls(tuple(listings), revision, known_servers)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(self._prompts.values())

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        found = (
            Resource(listing.server, one) for listing in self.listings for one in listing.resources
        )
        return tuple(first_by_name(found).values())

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        found = (
            Template(listing.server, one) for listing in self.listings for one in listing.templates
        )
        return tuple(first_by_name(found).values())

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """The names of all servers of this snapshot, also of those that offer nothing."""
        return tuple(dict.fromkeys(listing.server for listing in self.listings))

    @cached_property
    def stale(self) -> tuple[str, ...]:
        """The servers that are out of reach. Their last listing is shown."""
        return tuple(dict.fromkeys(listing.server for listing in self.listings if listing.stale))

    @cached_property
    def python_names(self) -> dict[str, Tool]:
        """The tools by their names in Python programs: the names for models, with `_` for each
        `-`."""
        written = python_names(self._model_names)
        return {written[name]: tool for name, tool in self._model_names.items()}

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __contains__(self, tool: object) -> bool:
        """Whether it has this tool, given as a `Tool` or by its full name."""
        return (tool.name if isinstance(tool, Tool) else tool) in self._tools

    def __repr__(self) -> str:
        stale = f" ({len(self.stale)} stale)" if self.stale else ""
        return (
            f"<Catalogue, tools: {len(self)}, servers: {len(self.servers)}{stale},"
            f" revision {self.revision}>"
        )

    def tool(self, name: str) -> Tool:
        """The tool of this full name, name for models, or unique short name.

        Raises `AmbiguousTool` with the candidates, or `UnknownTool` with the nearest names.
        """
        found = self._tools.get(name)
        if found is None and "__" in name:
            found = self._model_names.get(name)
        if found is None:
            found = find_by_short_name(name, "tool", self._own_names, self._servers)
        if found is None:
            raise unknown_error(name, "tool", self._tools.keys(), self._servers)
        return found

    def by_model_name(self, name: str) -> Tool | None:
        """The tool with this name for models, if there is one."""
        return self._model_names.get(name)

    def tools_named(self, name: str) -> tuple[Tool, ...]:
        """All tools with this name at their servers."""
        return tuple(self._own_names.get(name, ()))

    def prompt(self, name: str) -> Prompt:
        """The prompt of this full or unique short name. Raises as `tool` does."""
        found = self._prompts.get(name)
        if found is None:
            own = by_short_name(self.prompts)
            found = find_by_short_name(name, "prompt", own, self._servers)
        if found is None:
            raise unknown_error(name, "prompt", self._prompts.keys(), self._servers)
        return found

    def by_tag(self) -> dict[str, tuple[Tool, ...]]:
        """The tools of each tag."""
        found: dict[str, list[Tool]] = {}
        for tool in self.tools:
            for tag in tool.tags:
                found.setdefault(tag, []).append(tool)
        return {tag: tuple(found[tag]) for tag in sorted(found)}

    def with_tag(self, tag: str) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if tag in tool.tags)

    def search(
        self, query: str, limit: int = 10, *, tags: Collection[str] | None = None
    ) -> list[Tool]:
        """The tools that match the query best, the best first; with `tags`, only those with one of
        them."""
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
        """A catalogue with only the tools that `keep` keeps.

        A tool for which `keep` raises is left out, and logged. All servers stay known, also those
        without tools.
        """
        tool_filter = SafeFilter(keep)
        listings = (_with_tools(listing, tool_filter) for listing in self.listings)
        if keep_other is not None:
            other = SafeFilter(keep_other)
            listings = [_with_others(listing, other) for listing in listings]
            other.log_failures()
        kept = tuple(listings)
        tool_filter.log_failures()
        return Catalogue(kept, self.revision, self.known_servers)

    @cached_property
    def _tools(self) -> dict[str, Tool]:
        return first_by_name(tool for listing in self.listings for tool in listing.tools)

    @cached_property
    def _prompts(self) -> dict[str, Prompt]:
        return first_by_name(
            Prompt(listing.server, one) for listing in self.listings for one in listing.prompts
        )

    @cached_property
    def _servers(self) -> frozenset[str]:
        return self.known_servers.union(self.servers)

    @cached_property
    def _own_names(self) -> dict[str, list[Tool]]:
        return by_short_name(self.tools)

    @cached_property
    def _model_names(self) -> dict[str, Tool]:
        tools = {tool.key: tool for tool in self.tools}
        return {name: tools[pair] for pair, name in model_names(tools).items()}

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex(self.tools)


def _with_tools(listing: ListingContent, tool_filter: SafeFilter[Tool]) -> ListingContent:
    kept = tuple(tool for tool in listing.tools if tool_filter.keeps(tool))
    return listing if len(kept) == len(listing.tools) else replace(listing, tools=kept)


def _with_others(
    listing: ListingContent, tool_filter: SafeFilter[Prompt | Resource | Template]
) -> ListingContent:
    server = listing.server
    return replace(
        listing,
        prompts=tuple(one for one in listing.prompts if tool_filter.keeps(Prompt(server, one))),
        resources=tuple(
            one for one in listing.resources if tool_filter.keeps(Resource(server, one))
        ),
        templates=tuple(
            one for one in listing.templates if tool_filter.keeps(Template(server, one))
        ),
    )


def compare_catalogues(old: Catalogue, new: Catalogue) -> CatalogueChanges:
    """What was added, removed or changed from `old` to `new`. Listings that both share cost
    nothing."""
    shared = {id(listing) for listing in old.listings} & {id(listing) for listing in new.listings}
    before, after = _without_listings(old, shared), _without_listings(new, shared)
    return CatalogueChanges(
        tools=_compare_items(before.tools, after.tools, same_for_models),
        prompts=_compare_items(before.prompts, after.prompts),
        resources=_compare_items(before.resources, after.resources),
        templates=_compare_items(before.templates, after.templates),
    )


def _without_listings(catalogue: Catalogue, listings: set[int]) -> Catalogue:
    return Catalogue.of((one for one in catalogue.listings if id(one) not in listings), 0)


def _equal(one: object, other: object) -> bool:
    return one == other


def _compare_items(
    before: Sequence[Item], after: Sequence[Item], same: Callable[[Item, Item], bool] = _equal
) -> NameChanges:
    old, new = _by_name(before), _by_name(after)
    return NameChanges(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(
            name for name, item in new.items() if name in old and not same(old[name], item)
        ),
    )


def _by_name(items: Iterable[Item]) -> dict[str, Item]:
    return {item.name: item for item in items}
