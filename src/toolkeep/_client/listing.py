"""What one server lists to one client: all pages of lists, what changed in them, and resources.

A call never lists by itself, except after a header mismatch. Importing this module loads neither
the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from toolkeep._client.options import ClientOptions, ToolsListed
from toolkeep._client.request import CallRequest, RequestSender
from toolkeep._client.shared_lists import FullList, SharedLists
from toolkeep._rules.classify import Era
from toolkeep._rules.limits import json_size_portions
from toolkeep.config import ServerSpec
from toolkeep.errors import CallRejected, RemoteProtocolError, StoreUnavailable, ToolkeepError
from toolkeep.events import Changed, Disconnected, Event
from toolkeep.state.shared import forgotten_mark, name_of

if TYPE_CHECKING:
    from toolkeep._client.notifications import Subscriptions
    from toolkeep._client.response_cache import CacheHints, ResponseCache
    from toolkeep._client.retry import RetryLoop
    from toolkeep._client.tool_list import ToolList

logger = logging.getLogger("toolkeep.client")

MAX_ITEMS = 10_000
"""Items of one list, over all pages: as many as the catalogue is made for."""
_MAX_PAGES = 1000
"""Pages of one list. A server with more is assumed to generate pages without end."""
_INVALID_PARAMS = -32602
_LIST_METHODS = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "resources"),
}
"""From a method to the key of its items, and to their name in `Changed.what`."""


class Listings:
    """What one server lists to one client: the owner of its tool list, and of what is cached of
    other lists and resources. Lives as long as the client."""

    def __init__(
        self,
        spec: ServerSpec,
        options: ClientOptions,
        subscriptions: Subscriptions,
        publish: Callable[[Event], None],
    ) -> None:
        self._spec, self._options, self._subscriptions = spec, options, subscriptions
        self._publish = publish
        self.sender: RequestSender
        """Sends the requests; set by the client, which makes both."""
        self.tool_list: ToolList | None = None
        self._may_be_outdated = False
        """Whether `tool_list` may be outdated."""
        self._tool_changes = 0
        """How often the server announced changed tools."""
        self._cache: ResponseCache | None = None
        self._shared: SharedLists | None = None
        """Kept by clients that hear of changes: those without a principal."""
        self._last_seen: dict[tuple[str, str], Any] = {}
        self._public: set[str] = set()

    @property
    def cache(self) -> ResponseCache:
        if self._cache is None:
            from toolkeep._client.response_cache import ResponseCache

            mark = forgotten_mark(self._options.principal)
            self._cache = ResponseCache(self._options.state, mark)
        return self._cache

    @property
    def _is_modern(self) -> bool:
        return self.sender.era is Era.MODERN

    # -- tools ----------------------------------------------------------------------------------

    async def list_tools(self, *, refresh: bool, since: int | None = None) -> ToolList:
        """The tool list, fetched if it is missing, expired or outdated. The list of a pooled client
        belongs to its owner, which gets it as an event. `since`: for `list_all`."""
        tools = self.tool_list
        if not refresh and tools is not None and not self._may_be_outdated and not tools.is_expired:
            return tools
        from toolkeep._client.tool_list import ToolList

        changes = self._tool_changes
        listed = await self.list_all("tools/list", "tools", refresh=refresh, since=since)
        tools = listed.parsed
        if tools is None:
            tools = await ToolList.of(self._spec.name, listed.items, modern=self._is_modern)
            tools.expires_at, tools.ttl, tools.public = listed.expires_at, listed.ttl, listed.public
            if listed.etag and not self._is_modern:
                self._options.state.tool_lists[self._spec.name, listed.etag] = tools
        self._may_be_outdated = changes != self._tool_changes  # they changed during the listing
        if not self._options.pooled:
            self.tool_list = tools
        self._publish(ToolsListed(server=self._spec.name, tool_list=tools))
        return tools

    def clear(self) -> None:
        """Drop the tool list, when the client is closed."""
        self.tool_list = None

    def is_public(self, method: str) -> bool:
        """Whether the server said that its last listing is the same for all principals."""
        return method in self._public

    # -- lists ----------------------------------------------------------------------------------

    async def list_all(
        self, method: str, key: str, *, refresh: bool = False, since: int | None = None
    ) -> FullList:
        """The items of all pages, from the cache if it has a fresh copy. With a store, another
        process may have fetched them since the call, or since a time of the store."""
        if self._options.state and self.sender.era is None:
            await self.sender.connect()  # only results of modern servers are cached
        if self._is_modern and not refresh:
            kept = await self.cache.get(self.sender.cache_partition, method)
            if (listed := _cached_list(kept)) is not None:
                return listed
        listed = await self._list_shared(method, key, since)
        if not self._options.pooled:
            self._remember(method, "", listed.items)
        self._public = self._public - {method} | ({method} if listed.public else set())
        return listed

    async def _list_shared(self, method: str, key: str, since: int | None) -> FullList:
        """The list, fetched by this process or by another that shares a store."""
        fetch = partial(self._fetch_list, method, key)
        if not (self._options.state and self.sender.shares_lists):
            return await fetch()
        options = self._options
        shared = self._shared or SharedLists(options.state, self._spec, options.principal)
        if options.identity_key is None:
            self._shared = shared
        tools = method == "tools/list" and options.pooled and not self._is_modern
        listed, changed = await shared.get(
            self._list_name(method),
            fetch,
            since=since,
            reuse=self._parsed_tools if tools else None,
        )
        if changed and shared is self._shared:
            await self._tell_of_list(method, changed)
        return listed

    def _list_name(self, method: str) -> str:
        return name_of("list", method, self.sender.cache_partition)

    def _parsed_tools(self, etag: str) -> ToolList | None:
        return self._options.state.tool_lists.get((self._spec.name, etag))

    async def _tell_of_list(self, method: str, began: int) -> None:
        news = self._options.state.news
        if news is not None:
            with contextlib.suppress(StoreUnavailable):
                await news.tell("listed", name=self._list_name(method), began=began)

    def hear_of_list(self, name: str, began: int) -> str:
        """Another process has found that a list has changed. Returns the name of its items in
        `Changed.what`; empty: it is not a list of this client."""
        if self.sender.protocol is None or not self.sender.shares_lists:
            return ""
        for method, (_, what) in _LIST_METHODS.items():
            if self._shared is not None and self._list_name(method) == name:
                self._shared.hear(name, began)
                return what
        return ""

    async def _fetch_list(self, method: str, key: str) -> FullList:
        ticket = self.cache.start_fetch(method)
        items, hints = await self._fetch(method, key)
        if not self._is_modern:  # known at the latest now: the first request connects
            return FullList(items)
        ttl = hints.ttl_ms
        expires_at, public = time.time() + ttl / 1000, hints.scope == "public"
        kept = {"items": items, "expires_at": expires_at, "ttl": ttl / 1000, "public": public}
        await self.cache.put(
            self.sender.cache_partition,
            method,
            "",
            ticket,
            kept,
            ttl_ms=ttl,
        )
        return FullList(items, expires_at, ttl / 1000, public)

    async def _fetch(self, method: str, key: str) -> tuple[list[Any], CacheHints]:
        """Fetch all pages, with one deadline, one retry budget and one limit of bytes."""
        retry_loop = self.sender.start(CallRequest(method=method, lenient=True))
        from toolkeep._client.response_cache import CacheHints

        pages = _PageCollector(self._spec.max_result_bytes)
        hints = CacheHints()
        for _ in range(_MAX_PAGES):
            page = await self._page(method, pages, retry_loop)
            if page is None:
                return pages.items, hints
            found = page.get(key)
            if not isinstance(found, list):
                raise self._invalid_list(method, f"must hold a list {key!r}")
            if pages.repeats_first_page(cast("list[Any]", found)):
                return pages.items, hints
            if problem := await pages.add(cast("list[Any]", found)):
                raise self._invalid_list(method, problem)
            hints.add(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return pages.items, hints
            if not isinstance(cursor, str):
                raise self._invalid_list(method, "has a cursor that is not a string")
            if not pages.advance(cursor):
                self._end_repeating(method, len(pages.items))
                return pages.items, hints
        raise self._invalid_list(method, f"has more than {_MAX_PAGES} pages")

    async def _page(
        self, method: str, pages: _PageCollector, retry_loop: RetryLoop
    ) -> dict[str, Any] | None:
        """The next page; None if the server refuses the empty cursor that it sent."""
        params = {} if pages.cursor is None else {"cursor": pages.cursor}
        try:
            return await retry_loop.run(params)
        except CallRejected as error:
            # Some servers end a list with an empty cursor and refuse it when it is sent back.
            if pages.cursor != "" or error.code != _INVALID_PARAMS:
                raise
        name = self._spec.name
        logger.warning("%s: %s ended with an empty cursor that the server refuses", name, method)
        return None

    def _end_repeating(self, method: str, items: int) -> None:
        """End a list whose server repeats a cursor. Raises in a strict client, because pages may be
        missing, and if nothing was read: an empty list would hide the fault."""
        problem = "repeats a cursor, so its pages would never end"
        if self._options.strict or not items:
            raise self._invalid_list(method, problem)
        text = "%s: the result of %s %s; the %d items up to there are used"
        logger.warning(text, self._spec.name, method, problem, items)

    def _invalid_list(self, method: str, problem: str) -> RemoteProtocolError:
        name = self._spec.name
        text = f"{name}: the result of {method} {problem}. This is a fault of the server"
        return RemoteProtocolError(text, server=name)

    # -- resources ------------------------------------------------------------------------------

    async def read(
        self, uri: str, headers: Mapping[str, str] | None = None, *, refresh: bool = False
    ) -> dict[str, Any]:
        """A resource, from the cache if it has a fresh copy. A result that took input rounds, or
        that was read with headers of its own, is not cached."""
        if headers:
            return (await self._read_now(uri, headers))[0]
        if self._is_modern and not refresh:
            kept = await self.cache.get(self.sender.cache_partition, "resources/read", uri)
            if kept is not None:
                return kept
        ticket = self.cache.start_fetch("resources/read", uri)
        raw, took_input = await self._read_now(uri, None)
        if self._is_modern and not took_input:
            from toolkeep._client.response_cache import CacheHints

            hints = CacheHints()
            hints.add(raw)
            partition = self.sender.cache_partition
            await self.cache.put(partition, "resources/read", uri, ticket, raw, ttl_ms=hints.ttl_ms)
        if uri in self._subscriptions.uris:
            self._remember("resources/read", uri, raw.get("contents"))
        return raw

    async def _read_now(
        self, uri: str, headers: Mapping[str, str] | None
    ) -> tuple[dict[str, Any], bool]:
        return await self.sender.send_with_rounds("resources/read", {"uri": uri}, headers)

    # -- changes --------------------------------------------------------------------------------

    def _remember(self, method: str, key: str, found: Any) -> None:
        if self._subscriptions.is_wanted:
            self._last_seen[method, key] = found

    def emit(self, event: Event) -> None:
        """Invalidate what the event makes outdated, and pass it on."""
        match event:
            case Changed():
                self._invalidate_changed(event)
            case Disconnected():
                self._may_be_outdated = True  # the next connection may reach a newer server
            case _:
                pass
        self._publish(event)

    def _invalidate_changed(self, event: Changed) -> None:
        if event.what == "tools":
            self._tool_changes += 1
            self.tool_list = None
        for method, (_, what) in _LIST_METHODS.items():
            if what == event.what:
                self._invalidate(method, "")
                if self._shared is not None:
                    self._shared.mark_changed(self._list_name(method))
        if event.what == "resource" and event.uri is not None:
            self._invalidate("resources/read", event.uri)

    def _invalidate(self, method: str, key: str) -> None:
        if self._cache is not None:
            self._cache.invalidate(method, key)

    async def emit_missed_changes(self, missed: frozenset[str]) -> None:
        """Fetch the known lists and resources again, and emit an event for each change. `missed`:
        resources whose changes could not be heard for a while. What was just read is not
        invalidated."""
        for event, was_read in await self._find_changes(missed):
            if was_read:
                self._publish(event)
            else:
                self.emit(event)

    async def _find_changes(self, missed: frozenset[str]) -> list[tuple[Changed, bool]]:
        """The changes since the last fetch, each with whether it was read again. What cannot be
        fetched counts as changed."""
        changes: dict[tuple[str, str | None], bool] = {}
        for (method, key), before in tuple(self._last_seen.items()):
            what, uri = (
                (_LIST_METHODS[method][1], None) if method in _LIST_METHODS else ("resource", key)
            )
            if uri is not None and uri not in self._subscriptions.uris:
                del self._last_seen[method, key]
                continue
            was_read = await self._refetch(method, key)
            if not was_read or self._last_seen[method, key] != before:
                changes[what, uri] = was_read and changes.get((what, uri), True)
        for uri in self._subscriptions.uris:
            if uri in missed and ("resources/read", uri) not in self._last_seen:
                changes["resource", uri] = False
        name = self._spec.name
        return [
            (Changed(server=name, what=cast("Any", what), uri=uri), was_read)
            for (what, uri), was_read in changes.items()
        ]

    async def _refetch(self, method: str, key: str) -> bool:
        """Fetch again into `_last_seen`; False if that failed."""
        try:
            if method == "tools/list":
                await self.list_tools(refresh=True)
            elif method in _LIST_METHODS:
                await self.list_all(method, _LIST_METHODS[method][0], refresh=True)
            else:
                await self.read(key, refresh=True)
        except ToolkeepError:
            return False
        return True


class _PageCollector:
    """Collects the pages of one list. Lives for one listing."""

    def __init__(self, max_bytes: int) -> None:
        self.items: list[Any] = []
        self.cursor: str | None = None
        """The cursor of the next page. The empty string is a valid cursor."""
        self._first: list[Any] | None = None
        self._cursors: set[str] = set()
        self._max_bytes = self._bytes_left = max_bytes

    def repeats_first_page(self, found: list[Any]) -> bool:
        """Whether this is the first page again: the server treats an empty cursor as none, and the
        list has ended."""
        return self.cursor == "" and found == self._first

    async def add(self, found: list[Any]) -> str:
        """Add the items of a page; returns the problem if there are too many. Counts in slices, so
        that a large page does not block the event loop."""
        if len(self.items) + len(found) > MAX_ITEMS:
            return f"has more than {MAX_ITEMS} items"
        for portion in json_size_portions(found):
            self._bytes_left -= portion
            if self._bytes_left < 0:
                return f"is larger than {self._max_bytes} bytes, all pages together"
            await asyncio.sleep(0)
        self._first = found if self._first is None else self._first
        self.items += found
        return ""

    def advance(self, cursor: str) -> bool:
        """Go to the next page; False if the cursor was used before."""
        is_known = cursor in self._cursors
        self._cursors.add(cursor)
        self.cursor = cursor
        return not is_known


def _cached_list(kept: dict[str, Any] | None) -> FullList | None:
    """A cached list; None if a shared store returned something else."""
    items, until = (kept or {}).get("items"), (kept or {}).get("expires_at")
    if not isinstance(items, list) or not isinstance(until, float):
        return None
    ttl, public = (kept or {}).get("ttl"), (kept or {}).get("public")
    has_ttl = isinstance(ttl, float)
    return FullList(cast("list[Any]", items), until, ttl if has_ttl else 0.0, public is True)
