"""What a client has listed and read, for as long as it may be taken for true.

Modern servers say how long an answer may be kept (`ttlMs`); what they say, the response cache
keeps. Beside it, what was last seen is remembered while somebody listens, so that after a gap
only what is really different is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from toolkeep._rules.size import portions
from toolkeep.config import ServerSpec
from toolkeep.errors import CallRejected, Failure, RemoteProtocolError, ToolkeepError
from toolkeep.events import Changed

if TYPE_CHECKING:
    from mcp.client.caching import ResponseCacheStore

    from toolkeep._engine.caching import ResponseCache
    from toolkeep._engine.setup import Setup
    from toolkeep._engine.watching import Watch

logger = logging.getLogger("toolkeep.client")

_MOST_PAGES = 1000
"""A server with more pages than this is not listing, it is counting."""
MOST_ITEMS = 10_000
"""Items of one list, over all pages: as many as the catalogue is made for."""
_INVALID_PARAMS = -32602
_LISTS = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "resources"),
}
"""From a method to the key of its items, and to what a `Changed` calls them."""


Fetch = Callable[[], Awaitable[tuple[dict[str, Any], bool]]]
"""Brings a result, and whether the server asked something on the way."""


class Asks(Protocol):
    """As much of a `Core` as is needed here."""

    spec: ServerSpec
    setup: Setup
    watch: Watch

    @property
    def era(self) -> str | None: ...
    @property
    def partition(self) -> str: ...

    async def pursue(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        timeout: float | None = None,
        **known: Any,
    ) -> dict[str, Any]: ...

    async def read(self, uri: str, *, refresh: bool) -> dict[str, Any]: ...

    async def list_tools(self, *, refresh: bool) -> object: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """All pages of a list."""

    items: list[Any]
    expires_at: float | None
    """Seconds since the epoch. None: not before somebody says so."""
    ttl: float = 0.0
    """Seconds that a modern server vouches for it; 0: it does not say."""
    public: bool = False
    """Whether the server says that everybody is told the same."""


class Shelf:
    """One for each client."""

    def __init__(self, asks: Asks, store: ResponseCacheStore | None) -> None:
        self._asks, self._store = asks, store
        self._cache: ResponseCache | None = None
        self._seen: dict[tuple[str, str], Any] = {}
        self._public: set[str] = set()

    @property
    def cache(self) -> ResponseCache:
        if self._cache is None:
            from toolkeep._engine.caching import ResponseCache

            self._cache = ResponseCache(self._store)
        return self._cache

    def is_public(self, method: str) -> bool:
        """Whether the server said so of the last listing."""
        return method in self._public

    # -- lists ----------------------------------------------------------------------------------

    async def all_pages(self, method: str, key: str, *, refresh: bool = False) -> Listed:
        """Everything from all pages, within one deadline; from the cache, if it may be."""
        if self._store is not None and self._asks.era is None:
            await self._asks.pursue("", None)  # only a modern server's answers are kept
        modern = self._asks.era == "modern"
        if modern and not refresh:
            kept = await self.cache.get(self._asks.partition, method)
            if (listed := _listed(kept)) is not None:
                return listed
        ticket = self.cache.begin(method)
        items, hints = await self._fetch(method, key)
        listed = Listed(items, None)
        if self._asks.era == "modern":
            ttl = hints.ttl_ms
            expires_at, public = time.time() + ttl / 1000, hints.scope == "public"
            listed = Listed(items, expires_at, ttl / 1000, public)
            kept = {"items": items, "expires_at": expires_at, "ttl": ttl / 1000, "public": public}
            await self.cache.put(
                self._asks.partition, method, "", ticket, kept, ttl_ms=ttl, scope=hints.scope
            )
        if self._asks.setup.on_gap is None:
            self._remember(method, "", items)
        self._public = self._public - {method} | ({method} if listed.public else set())
        return listed

    async def _fetch(self, method: str, key: str) -> tuple[list[Any], Hints]:
        """All pages, within one deadline, one budget of replays and one of bytes."""
        deadline = time.monotonic() + self._asks.spec.timeouts.call
        pages = _Pages(self._asks.spec.max_result_bytes)
        hints = Hints()
        for _ in range(_MOST_PAGES):
            left = max(deadline - time.monotonic(), 0.001)
            page = await self._page(method, pages, left)
            if page is None:
                return pages.items, hints
            found = page.get(key)
            if not isinstance(found, list):
                raise self._bad_list(method, f"holds no list {key!r}")
            if pages.begin_again(cast("list[Any]", found)):
                return pages.items, hints
            if problem := await pages.take(cast("list[Any]", found)):
                raise self._bad_list(method, problem)
            hints.take(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return pages.items, hints
            if not isinstance(cursor, str):
                raise self._bad_list(method, "has a cursor that is no text")
            if not pages.turn_to(cursor):
                raise self._bad_list(method, "repeats a cursor: its pages have no end")
        raise self._bad_list(method, f"has more than {_MOST_PAGES} pages")

    async def _page(self, method: str, pages: _Pages, left: float) -> dict[str, Any] | None:
        """The next page. None: there is none, says the server."""
        params = {} if pages.cursor is None else {"cursor": pages.cursor}
        try:
            return await self._asks.pursue(
                method,
                params,
                timeout=left,
                lenient=True,
                replayed=pages.replays,
                on_replay=pages.count_replay,
            )
        except CallRejected as error:
            # Servers that end a list with an empty cursor may not know it when they see it.
            if pages.cursor != "" or error.code != _INVALID_PARAMS:
                raise
        name = self._asks.spec.name
        logger.warning("%s: %s ended with an empty cursor, which the server refuses", name, method)
        return None

    def _bad_list(self, method: str, problem: str) -> RemoteProtocolError:
        name = self._asks.spec.name
        text = f"{name}: the answer to {method} {problem}. The server is at fault"
        return RemoteProtocolError(text, server=name)

    # -- resources ------------------------------------------------------------------------------

    async def read(self, uri: str, fetch: Fetch, *, refresh: bool) -> dict[str, Any]:
        """A resource; from the cache, if it may be. What took questions is never kept."""
        modern = self._asks.era == "modern"
        if modern and not refresh:
            kept = await self.cache.get(self._asks.partition, "resources/read", uri)
            if kept is not None:
                return kept
        ticket = self.cache.begin("resources/read", uri)
        raw, asked = await fetch()
        if self._asks.era == "modern" and not asked:
            hints = Hints()
            hints.take(raw)
            ttl, scope = hints.ttl_ms, hints.scope
            partition = self._asks.partition
            await self.cache.put(
                partition, "resources/read", uri, ticket, raw, ttl_ms=ttl, scope=scope
            )
        if uri in self._asks.watch.uris:
            self._remember("resources/read", uri, raw.get("contents"))
        return raw

    # -- changes --------------------------------------------------------------------------------

    def _remember(self, method: str, key: str, found: Any) -> None:
        if self._asks.watch.wanted:
            self._seen[method, key] = found

    def outdate(self, event: Changed) -> None:
        """The server says that this is no longer true."""
        for method, (_, what) in _LISTS.items():
            if what == event.what:
                self._forget(method, "")
        if event.what == "resource" and event.uri is not None:
            self._forget("resources/read", event.uri)

    def _forget(self, method: str, key: str) -> None:
        if self._cache is not None:
            self._cache.outdate(method, key)

    async def differences(self, missed: frozenset[str]) -> list[tuple[Changed, bool]]:
        """What is no longer as it was last seen, and whether it was read to find out. What cannot
        be fetched may have changed."""
        changes: dict[tuple[str, str | None], bool] = {}
        for (method, key), before in tuple(self._seen.items()):
            what, uri = (_LISTS[method][1], None) if method in _LISTS else ("resource", key)
            if uri is not None and uri not in self._asks.watch.uris:
                del self._seen[method, key]
                continue
            was_read = await self._read_again(method, key)
            if not was_read or self._seen[method, key] != before:
                changes[what, uri] = was_read and changes.get((what, uri), True)
        for uri in self._asks.watch.uris:
            if uri in missed and ("resources/read", uri) not in self._seen:
                changes["resource", uri] = False
        name = self._asks.spec.name
        return [
            (Changed(server=name, what=cast("Any", what), uri=uri), was_read)
            for (what, uri), was_read in changes.items()
        ]

    async def _read_again(self, method: str, key: str) -> bool:
        """Whether it worked; what was read is in `_seen`."""
        try:
            if method == "tools/list":
                await self._asks.list_tools(refresh=True)
            elif method in _LISTS:
                await self.all_pages(method, _LISTS[method][0], refresh=True)
            else:
                await self._asks.read(key, refresh=True)
        except ToolkeepError:
            return False
        return True


class _Pages:
    """The pages of one list as they come. Lives for one listing."""

    def __init__(self, most_bytes: int) -> None:
        self.items: list[Any] = []
        self.cursor: str | None = None
        """Where the next page begins. The empty text is a cursor like any other."""
        self.replays = 0
        self._first: list[Any] | None = None
        self._cursors: set[str] = set()
        self._most = self._left = most_bytes

    def count_replay(self, attempt: int, after: float, failure: Failure) -> None:
        self.replays += 1

    def begin_again(self, found: list[Any]) -> bool:
        """Whether this is the first page once more, because the server reads an empty cursor as
        none. Then it meant that there are no more."""
        return self.cursor == "" and found == self._first

    async def take(self, found: list[Any]) -> str:
        """Keep the items; says what is wrong if they are too many. Counts in slices, so that the
        loop never stands still for a page."""
        if len(self.items) + len(found) > MOST_ITEMS:
            return f"has more than {MOST_ITEMS} items"
        for portion in portions(found):
            self._left -= portion
            if self._left < 0:
                return f"is larger than {self._most} bytes, all pages together"
            await asyncio.sleep(0)
        self._first = found if self._first is None else self._first
        self.items += found
        return ""

    def turn_to(self, cursor: str) -> bool:
        """False: it was there before."""
        known = cursor in self._cursors
        self._cursors.add(cursor)
        self.cursor = cursor
        return not known


def _listed(kept: dict[str, Any] | None) -> Listed | None:
    """What the cache kept of a list. A shared store may hold what is not ours."""
    items, until = (kept or {}).get("items"), (kept or {}).get("expires_at")
    if not isinstance(items, list) or not isinstance(until, float):
        return None
    ttl, public = (kept or {}).get("ttl"), (kept or {}).get("public")
    known = isinstance(ttl, float)
    return Listed(cast("list[Any]", items), until, ttl if known else 0.0, public is True)


class Hints:
    """How long, and for whom, the pages of one answer may be kept: the strictest counts."""

    def __init__(self) -> None:
        self.ttl_ms = float("inf")
        self.scope = "public"

    def take(self, page: Mapping[str, Any]) -> None:
        ttl = page.get("ttlMs")
        if not isinstance(ttl, int | float) or isinstance(ttl, bool):
            ttl = 0
        self.ttl_ms = min(self.ttl_ms, max(0.0, ttl))
        if page.get("cacheScope") != "public":
            self.scope = "private"
