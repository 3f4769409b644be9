"""`ToolResolver`: from a name and a context to the tool, its server, the caller's identity and its
access.

Also builds the catalogue that a context may see. Opens and closes no server. A name never
resolves to another server's tool while its own server cannot be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from toolkeep._catalogue.catalogue import Catalogue, compare_catalogues
from toolkeep._catalogue.listing import (
    LISTING_KINDS,
    TOOLS,
    Listing,
    ListingContent,
    Prompt,
    Resource,
    Template,
)
from toolkeep._catalogue.tool import Tool, ToolCaller
from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.loop_guard import LoopGuard
from toolkeep._client.observers import Observers
from toolkeep._client.stats import Stats
from toolkeep._rules.headers import merge_headers
from toolkeep._rules.identity import Identity
from toolkeep._runtime.access_policy import AccessPolicy
from toolkeep._runtime.caller import (
    USER_FUNCTION_TIMEOUT,
    CallerIdentity,
    HeaderProvider,
    identify_caller,
    identify_caller_now,
)
from toolkeep._runtime.large_results import ResultPart, ResultSpool, read_part, unknown_result
from toolkeep._runtime.result_cache import ResultCache
from toolkeep._runtime.server import Server
from toolkeep._runtime.session_pool import AcquiredClient, PoolClosed
from toolkeep.context import CallContext
from toolkeep.errors import (
    CallError,
    CallNotSentInTime,
    ConfigError,
    Delivery,
    InvalidArguments,
    NotOffered,
    NotPermitted,
    ServerUnavailable,
    ToolkeepError,
    UnknownServer,
    UnknownTool,
)
from toolkeep.events import CatalogueChanged
from toolkeep.state.shared import SharedState

if TYPE_CHECKING:
    from toolkeep._client.tool_list import ListedTool

logger = logging.getLogger("toolkeep.runtime")

_MAX_SNAPSHOTS = 32
"""Catalogues that are kept for identities with listings of their own."""
_CHECKS_PER_SLICE = 500
"""Access checks between two turns of the event loop."""
_INDEX_IN_THREAD_ABOVE = 500
"""Tools above which the search index is built in a thread."""
_MAX_SERVER_SWAPS = 5
"""How often a server may be replaced while one listing is fetched."""

Item = TypeVar("Item", bound=Tool | Prompt | Resource | Template)
ToolName = str | Tool
"""`server.tool`, a name that is unique without its server, a name for models, or a `Tool`."""


def display_name(name: object) -> str:
    """The name of a call in messages, before its tool is found."""
    if type(name) is str:
        return name
    return name.name if isinstance(name, Tool) else str(name)


def split_name(name: ToolName) -> tuple[str, str]:
    """Server and tool; the server is empty for a short name or a name for models."""
    if isinstance(name, str):
        server, dot, tool = name.partition(".")
        return (server, tool) if dot else ("", name)
    if not isinstance(cast("object", name), Tool):
        text = f"a tool's name must be a str or a Tool, not {type(name).__name__}"
        raise InvalidArguments(text, server="", tool="")
    return name.key


@dataclass(slots=True)
class ResolvedTool:
    """A tool with its server, its listing, and the caller it was resolved for. Never modified."""

    server: Server
    listing: Listing
    tool: Tool
    listed: ListedTool | None
    """The tool as its server listed it, with its compiled schemas."""
    caller: CallerIdentity
    headers: Mapping[str, str] | None = field(repr=False)
    client: AcquiredClient | None = None
    """The client that was acquired to list it, if any. The caller releases it."""


class ResolvedToolCache:
    """Tools resolved for callers without identity, by name. An entry is valid while its listing is
    the current one of its server."""

    def __init__(self, max_size: int = 10_000) -> None:
        self._found: dict[str, ResolvedTool] = {}
        self._max_size = max_size

    def __len__(self) -> int:
        return len(self._found)

    def get(self, name: str) -> ResolvedTool | None:
        found = self._found.get(name)
        return found if found is not None and found.listing is found.server.listing else None

    def put(self, name: str, found: ResolvedTool) -> None:
        if len(self._found) >= self._max_size:
            self._found.clear()
        self._found[name] = found

    def clear(self) -> None:
        """Drop all: servers were added or removed."""
        self._found.clear()


async def fetch_listing(
    server: Server,
    identity: Identity | None,
    within: float,
    acquired: AcquiredClient | None = None,
) -> Listing:
    """What is offered to this identity. A failure is `ServerUnavailable`: no tool was called."""
    try:
        return await server.listing_for(identity, within, frozenset({TOOLS}), acquired)
    except CallError as error:
        failed = error
    text = f"{server.name} could not list its tools ({failed.failure or 'no answer'})."
    raise ServerUnavailable(
        f"{text} It did not run", server=server.name, last_failure=failed.failure
    ) from failed


def _snapshot_key(listings: Sequence[ListingContent], tools_only: bool) -> tuple[object, ...]:
    """Equal for equal listings. Uses object ids: the snapshot that is kept under the key keeps the
    objects alive."""
    if not tools_only:
        return tuple(map(id, listings))
    return tuple((one.server, one.missing, one.stale, id(one.tools)) for one in listings)


def own_listing(server: Server) -> ListingContent:
    """What callers without identity are shown of this server."""
    listing = server.listing
    return server.empty_listing if listing is None else listing.visible


def _tool_in(name: str, view: Catalogue) -> Tool:
    return view.tool(name)


def new_loop_guard() -> LoopGuard:
    return LoopGuard("runtime", "runtime")


class RuntimeResource(Protocol):
    """Something that lives as long as a runtime is open."""

    async def aclose(self) -> None: ...


class ToolResolver:
    """Resolves names to tools, and builds catalogues, for one runtime and as long as that lives.

    Also holds what the parts of a runtime share: servers by name, access policy, result cache,
    observers and statistics.
    """

    def __init__(
        self,
        access: AccessPolicy,
        header_provider: HeaderProvider | None,
        runtime: ToolCaller,
        state: SharedState,
        *,
        authorized: bool = False,
    ) -> None:
        if header_provider is not None and not callable(header_provider):
            remedy = "Give a function of a context and a server's name"
            raise ConfigError("it must be a function", remedy=remedy, key="header_provider")
        self.access = access
        self._header_provider = header_provider
        # Weak: open servers keep the resolver alive, but must not keep a dropped runtime alive.
        self._runtime_ref = weakref.ref(runtime)
        self.is_open = False
        self.loop_guard = new_loop_guard()
        self.servers: dict[str, Server] = {}
        """By name, in the order of the configuration."""
        self.catalogue = Catalogue()
        """What is offered to callers without identity."""
        self.cache = ResolvedToolCache()
        self._snapshots: dict[tuple[object, ...], Catalogue] = {}
        """Catalogues of identities with listings of their own, the oldest first."""
        self.state = state
        """What processes share."""
        self.result_cache, self.spool = ResultCache(state, authorized=authorized), ResultSpool()
        self.observers = Observers("runtime")
        self.stats = Stats()
        self.resources: dict[type[RuntimeResource], RuntimeResource] = {}
        """Closed with the runtime, before its servers."""
        self._known_server_names: frozenset[str] = frozenset()
        """The names of all servers since the runtime was opened, also of removed ones."""

    @property
    def _runtime(self) -> ToolCaller | None:
        return self._runtime_ref()

    # -- state of the runtime -------------------------------------------------------------------

    def check_open(self) -> None:
        if self.loop_guard.loop is not None:
            self.loop_guard.check()
        if not self.is_open:
            text = "the runtime is not open: use `async with Runtime.open(…)`, or connect() first"
            raise ServerUnavailable(text, server="runtime")

    def server(self, name: str) -> Server:
        """The server of this name. Raises `UnknownServer`."""
        found = self.servers.get(name)
        if found is None:
            known = ", ".join(self.servers) or "none"
            raise UnknownServer(f"there is no server {name!r}; configured: {known}")
        return found

    def set_servers(self, servers: Mapping[str, Server]) -> None:
        """Replace the servers, and emit what changed in the catalogue."""
        before, self.servers = self.servers, dict(servers)
        self.cache.clear()
        self._known_server_names = self._known_server_names.union(servers)
        self._snapshots.clear()
        for name, server in before.items():
            if servers.get(name) is not server:
                self._publish_changes(name)
            if name not in servers:
                self.stats.remove_server(name)
        self._publish_changes("")

    def on_listing_changed(self, server: Server) -> None:
        """A server replaced its listing: make a new catalogue."""
        if self.servers.get(server.name) is server:
            self._publish_changes(server.name)

    def _publish_changes(self, server_name: str) -> None:
        old = self.catalogue
        listings = [own_listing(server) for server in self.servers.values()]
        new = Catalogue.of(listings, old.revision + 1, self._known_server_names)
        changes = compare_catalogues(old, new)
        if not changes and old.stale == new.stale:
            self.catalogue = Catalogue.of(listings, old.revision, self._known_server_names)
            return
        self.catalogue = new
        if server_name:
            event = CatalogueChanged(
                server=server_name,
                revision=new.revision,
                changes=changes,
                stale=server_name in new.stale,
            )
            self.observers.emit(event)

    def clear(self) -> None:
        """Drop everything at the end of an opening, without events."""
        self.resources.clear()
        self.servers = {}
        self.cache.clear()
        self.catalogue = Catalogue.of((), self.catalogue.revision + 1)
        self._known_server_names = frozenset()
        self._snapshots.clear()
        self.spool.clear()

    async def close_resources(self) -> None:
        """Close all resources. One that fails is logged, and the others are closed."""
        while self.resources:
            kind, resource = self.resources.popitem()
            try:
                await resource.aclose()
            except Exception:
                logger.exception("%s could not be closed", kind.__name__)

    def forget_principal(self, identity: Identity) -> None:
        """Drop the spooled results of this identity."""
        self.spool.remove_owner(identity.key)

    # -- finding the tool of a call -------------------------------------------------------------

    async def identify(
        self,
        server: Server,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        within: float = USER_FUNCTION_TIMEOUT,
    ) -> CallerIdentity:
        return await identify_caller(server.spec, context, headers, self._header_provider, within)

    def try_find(
        self, name: ToolName, context: CallContext | None, headers: Mapping[str, str] | None
    ) -> ResolvedTool | None:
        """What `find` returns; None if that takes I/O or a function of the user."""
        if (
            self._header_provider is not None
            or not self.access.allows_all
            or not isinstance(name, str)
        ):
            return None
        anonymous = context is None and not headers
        if anonymous and (found := self.cache.get(name)) is not None:
            return found
        server_name, tool_name = split_name(name)
        server = self.servers.get(server_name)
        if server is None:
            return None
        caller = identify_caller_now(server.spec, context, headers)
        listing = server.known_listing(caller.identity)
        tool = listing.tools.get(tool_name) if listing is not None else None
        if listing is None or tool is None:
            return None
        sent = caller.headers(server.spec, tool.headers)
        listed = listing.tool_list.get(tool_name)
        found = ResolvedTool(server, listing, tool, listed, caller, sent)
        if anonymous:
            self.cache.put(name, found)
        return found

    async def find(
        self,
        name: ToolName,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        deadline: RequestDeadline,
    ) -> ResolvedTool:
        """The tool of this name, as this caller is shown it. Raises why it cannot be called."""
        if isinstance(name, Tool):
            return await self._find_tool(name, context, headers, deadline)
        server_name, tool_name = split_name(name)
        if not server_name and (tool := self.catalogue.by_model_name(tool_name)) is not None:
            server_name, tool_name = tool.key  # unique among all servers: no other is asked
        server = self.servers.get(server_name)
        if server is not None:
            found = await self._find_at(server, tool_name, context, headers, deadline)
            if found is not None:
                return found
        whole = await self.full_catalogue(context, deadline=deadline)
        async with self._time_limit(display_name(name), deadline):
            self._check_missing(whole, display_name(name))
            tool = await self.find_visible(whole, partial(_tool_in, display_name(name)), context)
        server = self.server(tool.server)
        found = await self._find_at(server, tool.tool, context, headers, deadline)
        if found is None:
            raise NotPermitted(f"{tool.name} may be seen but not called in this context")
        return found

    async def _find_tool(
        self,
        tool: Tool,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        deadline: RequestDeadline,
    ) -> ResolvedTool:
        """Find a `Tool` by its key alone, at its own server."""
        server = self.servers.get(tool.server)
        if server is None:
            raise UnknownTool(f"there is no tool {tool.name[:200]!r}: its server was removed")
        if tool.own_headers and server.spec.url:  # they identify the caller, like the call's
            headers = merge_headers(headers, tool.own_headers)
        found = await self._find_at(server, tool.tool, context, headers, deadline)
        if found is not None:
            return found
        async with self._time_limit(tool.name, deadline):
            if server.has_tool(tool.tool) and await self.access.allows("see", tool, context):
                raise NotPermitted(f"{tool.name[:200]} may be seen but not called in this context")
        raise UnknownTool(f"there is no tool {tool.name[:200]!r} any more")

    async def _find_at(
        self,
        server: Server,
        tool_name: str,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
        deadline: RequestDeadline,
    ) -> ResolvedTool | None:
        within = deadline.remaining_or(USER_FUNCTION_TIMEOUT)
        caller = await self.identify(server, context, headers, within)
        identity, acquired = caller.identity, None
        listing = server.known_listing(identity)
        try:
            if listing is None:
                default = server.spec.timeouts.call
                if identity is not None and server.spec.session != "shared":
                    acquired = await server.pool.acquire(identity, deadline.remaining_or(default))
                listing = await fetch_listing(
                    server, identity, deadline.remaining_or(default), acquired
                )
            tool = listing.tools.get(tool_name)
            if tool is None or not await self._may_call(tool, context, deadline):
                return None
            sent = caller.headers(server.spec, tool.headers)
            listed = listing.tool_list.get(tool_name)
            found = ResolvedTool(server, listing, tool, listed, caller, sent, acquired)
            acquired = None  # the receiver of `found` releases it
            return found
        finally:
            if acquired is not None:
                acquired.release()

    def _check_missing(self, whole: Catalogue, name: str) -> None:
        """Raise if the name may belong to a server whose listing is missing: another server's tool
        must not be called in its place."""
        missing = {listing.server for listing in whole.listings if listing.missing}
        if not missing:
            return
        candidates = [*self.catalogue.tools_named(name)]
        if (meant := self.catalogue.by_model_name(name)) is not None:
            candidates = [meant]
        owners = {name.partition(".")[0], *(tool.server for tool in candidates)}
        for server in sorted(owners & missing):
            text = f"{server} could not list its tools for this caller; {name[:200]} may be one"
            raise ServerUnavailable(f"{text}. It did not run", server=server)

    async def _may_call(
        self, tool: Tool, context: CallContext | None, deadline: RequestDeadline
    ) -> bool:
        if self.access.allows_all:
            return True
        async with self._time_limit(tool.name, deadline):
            return await self.access.allows("call", tool, context)

    @contextlib.asynccontextmanager
    async def _time_limit(
        self, name: str, deadline: RequestDeadline | None = None
    ) -> AsyncGenerator[None]:
        """Bound the user's filters and permissions by the time that the call has left."""
        limit = asyncio.timeout(
            deadline.remaining_or(USER_FUNCTION_TIMEOUT) if deadline else USER_FUNCTION_TIMEOUT
        )
        try:
            async with limit:
                yield
            return
        except TimeoutError:
            if not limit.expired():
                raise
        text = f"{name[:200]}: a filter or permission did not answer in time. It did not run"
        raise CallNotSentInTime(text, server="", tool=name, delivery=Delivery.NOT_SENT)

    def invalid_call(self, what: object, why: str) -> InvalidArguments:
        text = f"{what} was not sent: {why}"
        return InvalidArguments(text, server="", tool=str(what))

    # -- resolving and searching ----------------------------------------------------------------

    async def resolve(self, given: Iterable[ToolName], context: CallContext | None) -> list[Tool]:
        self.check_open()
        if isinstance(given, str):
            raise self.invalid_call(given, "names must be a list; write a single one as [name]")
        names = list(given)
        resolved = await asyncio.gather(
            *(self._resolve_one(name, context) for name in names), return_exceptions=True
        )
        found: list[Tool] = []
        missing: list[LookupError] = []
        for name, tool in zip(names, resolved, strict=True):
            if isinstance(tool, UnknownTool):
                missing.append(tool)
            elif isinstance(tool, BaseException):
                raise tool
            else:
                own = name.own_headers if isinstance(name, Tool) else tool.own_headers
                found.append(replace(tool, own_headers=own, caller=self._runtime, context=context))
        if len(missing) == 1:
            raise missing[0]
        if missing:
            text = (
                f"{len(missing)} of {len(names)} tools are missing: {'; '.join(map(str, missing))}"
            )
            raise UnknownTool(text)
        return found

    async def _resolve_one(self, name: ToolName, context: CallContext | None) -> Tool:
        """At its server if the name says which, otherwise among all that this caller is shown."""
        server_name, tool_name = split_name(name)
        if not server_name and (tool := self.catalogue.by_model_name(tool_name)) is not None:
            server_name, tool_name = tool.key
        listing = await self._listing_at(server_name, context)
        async with self._time_limit(display_name(name)):
            found = listing.tools.get(tool_name) if listing else None
            if found is not None and await self.access.allows("see", found, context):
                return found
        if isinstance(name, Tool):
            raise UnknownTool(f"there is no tool {name.name[:200]!r} any more")
        whole = await self.full_catalogue(context)
        async with self._time_limit(display_name(name)):
            self._check_missing(whole, display_name(name))
            return await self.find_visible(whole, partial(_tool_in, display_name(name)), context)

    async def _listing_at(
        self, server_name: str, context: CallContext | None, tries: int = _MAX_SERVER_SWAPS
    ) -> Listing | None:
        """What the server of this name offers this caller; None: no such server."""
        server = self.servers.get(server_name)
        if server is None:
            return None
        try:
            caller = await self.identify(server, context, None)
            return await fetch_listing(server, caller.identity, server.spec.timeouts.call)
        except PoolClosed:
            if not (self.is_open and tries):
                raise
        return await self._listing_at(server_name, context, tries - 1)

    async def search(
        self, query: str, limit: int, context: CallContext | None, tags: Collection[str] | None
    ) -> list[Tool]:
        hits = await self._search_visible(query, limit, context, tags)
        return [replace(hit, caller=self._runtime, context=context) for hit in hits]

    async def _search_visible(
        self, query: str, limit: int, context: CallContext | None, tags: Collection[str] | None
    ) -> list[Tool]:
        whole = await self.full_catalogue(context)
        if len(whole) > _INDEX_IN_THREAD_ABOVE:
            await asyncio.to_thread(whole.search, "")  # builds the index
        wide, done = limit, 0
        seen: list[Tool] = []
        with contextlib.suppress(TimeoutError):  # tools that were not checked by then are left out
            async with asyncio.timeout(USER_FUNCTION_TIMEOUT):
                while len(seen) < limit:
                    hits = whole.search(query, wide, tags=tags)
                    for hit in hits[done:]:
                        if await self.access.allows("see", hit, context):
                            seen.append(hit)
                    if len(hits) < wide:
                        break
                    done, wide = len(hits), wide * 4
        return seen[:limit]

    async def read_result(
        self,
        handle: str,
        start: int,
        length: int,
        context: CallContext | None,
        headers: Mapping[str, str] | None,
    ) -> ResultPart:
        """A part of a spooled result. Other callers than its owner get the same error as for an
        unknown handle."""
        spooled = self.spool.get(handle)
        server = self.servers.get(spooled.tool.server)
        if server is None:
            raise unknown_result(handle)
        caller = (await self.identify(server, context, headers)).identity
        if spooled.owner != (caller.key if caller else None):
            raise unknown_result(handle)
        if not await self.access.allows("call", spooled.tool, context):
            raise unknown_result(handle)
        return read_part(spooled, start, length)

    # -- catalogues -----------------------------------------------------------------------------

    async def catalogue_for(
        self,
        context: CallContext | None,
        *,
        kinds: frozenset[str] = LISTING_KINDS,
    ) -> Catalogue:
        """What this caller may see: listed with its identity, and allowed by the access policy."""
        whole = await self.full_catalogue(context, kinds=kinds)
        return whole if self.access.allows_all else await self._filter_visible(whole, context)

    async def full_catalogue(
        self,
        context: CallContext | None,
        *,
        deadline: RequestDeadline | None = None,
        kinds: frozenset[str] = frozenset({TOOLS}),
    ) -> Catalogue:
        """The same before the access policy; not to be shown to a caller. All servers are asked, so
        headers of a single call are not used for it."""
        listings = await self._listings(context, deadline, kinds)
        return self._snapshot_for(listings, tools_only=kinds == frozenset({TOOLS}))

    async def find_visible(
        self, whole: Catalogue, find: Callable[[Catalogue], Item], context: CallContext | None
    ) -> Item:
        """The item that `find` returns, if this caller may see it. Checks that item alone; only the
        suggestions of an error need the filtered catalogue."""
        try:
            found = find(whole)
        except NotOffered:
            found = None
        if found is not None and await self.access.allows("see", found, context):
            return found
        return find(await self._filter_visible(whole, context))

    async def _filter_visible(self, whole: Catalogue, context: CallContext | None) -> Catalogue:
        seen: set[tuple[type, str]] = set()
        kinds = (whole.tools, whole.prompts, whole.resources, whole.templates)
        try:
            async with asyncio.timeout(USER_FUNCTION_TIMEOUT):
                for number, item in enumerate(chain.from_iterable(kinds)):
                    if not number % _CHECKS_PER_SLICE:
                        await asyncio.sleep(0)
                    if await self.access.allows("see", item, context):
                        seen.add((type(item), item.name))
        except TimeoutError:
            logger.warning(
                "a filter or permission did not answer in time; the remaining items are withheld"
            )
        return whole.filtered(
            lambda tool: (type(tool), tool.name) in seen,
            keep_other=lambda item: (type(item), item.name) in seen,
        )

    def _snapshot_for(self, listings: Sequence[ListingContent], *, tools_only: bool) -> Catalogue:
        """One catalogue for all callers with equal listings, so that they share its indexes."""
        key = _snapshot_key(listings, tools_only)
        if key == _snapshot_key(self.catalogue.listings, tools_only):
            return self.catalogue
        found = self._snapshots.pop(key, None)
        if found is None:
            found = Catalogue.of(listings, self.catalogue.revision, self.catalogue.known_servers)
        self._snapshots[key] = found
        if len(self._snapshots) > _MAX_SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]
        return found

    async def _listings(
        self,
        context: CallContext | None,
        deadline: RequestDeadline | None,
        kinds: frozenset[str],
    ) -> list[ListingContent]:
        servers = tuple(self.servers.values())
        return await asyncio.gather(
            *(self._listing_of(server, context, deadline, kinds) for server in servers)
        )

    async def _listing_of(
        self,
        server: Server,
        context: CallContext | None,
        deadline: RequestDeadline | None,
        kinds: frozenset[str],
        tries: int = _MAX_SERVER_SWAPS,
    ) -> ListingContent:
        """The listing of one server. One that cannot be reached gives its last listing, or
        `missing_listing`."""
        default = USER_FUNCTION_TIMEOUT
        try:
            within = deadline.remaining_or(default) if deadline else default
            caller = await self.identify(server, context, None, within)
        except InvalidArguments:
            raise  # the context itself is wrong, for every server
        except ToolkeepError:
            return server.missing_listing  # the identity is unknown, so nothing may be shown
        known = server.known_listing(caller.identity)
        if known is not None and kinds <= known.kinds:
            return known.visible
        if caller.identity is None:
            return own_listing(server)  # reconnecting is up to the group
        within = server.spec.timeouts.connect
        if not server.listings.failed_recently(caller.identity.key):
            try:
                within = min(within, deadline.remaining) if deadline else within
                return (await server.listing_for(caller.identity, within, kinds)).visible
            except PoolClosed:
                successor = self.servers.get(server.name)
                if successor is not None and not successor.is_retired and tries:
                    return await self._listing_of(successor, context, deadline, kinds, tries - 1)
            except ToolkeepError:
                server.listings.record_failure(caller.identity.key)
        last = server.listings.get_any(caller.identity.key)
        return last.with_stale(stale=True).visible if last else server.missing_listing
