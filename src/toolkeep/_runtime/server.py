"""`Server`: one configured server in a runtime, with its session pool and what it lists to each
identity.

Lists again after a change notification, an expiry, a reconnect or by hand, never twice at a time.
An identity is shown only what was listed with it, or what the server declares public.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkeep._catalogue.listing import (
    LISTING_KINDS,
    TOOLS,
    Listing,
    ListingContent,
    PromptsAndResources,
    ToolOverrides,
    fetch_prompts_and_resources,
    fetch_tools,
    prompts_in_guides,
)
from toolkeep._client.endpoint import common_failure
from toolkeep._client.options import (
    ChangesMissed,
    ClientOptions,
    ReachabilityChanged,
    ToolsListed,
)
from toolkeep._rules.identity import Identity
from toolkeep._runtime.listing_cache import ListingCache, ListingRefresher
from toolkeep._runtime.session_pool import AcquiredClient, DrainingPools, SessionPool, pool_closed
from toolkeep.auth.configured import ServerAuth
from toolkeep.config import ServerSpec
from toolkeep.errors import Delivery, ToolkeepError
from toolkeep.events import Changed, Connected, Disconnected, Event

if TYPE_CHECKING:
    from toolkeep._client.tool_list import ToolList
    from toolkeep._transport.base import Attempt
    from toolkeep._transport.redaction import Redactor
    from toolkeep._transport.shared_program import ProgramIdentity, SharedProgram
    from toolkeep._transport.trace import OnTrace
    from toolkeep.auth.storage import LoginStorage


logger = logging.getLogger("toolkeep.catalogue")

Kinds = frozenset[str]

OWN_KEY = ""
"""The cache key of the server's own client."""
_MIN_CACHED_LISTINGS = 256
"""Lower bound for the identities whose listings one server caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What all servers of a runtime share. Made once, with the runtime."""

    client_options: ClientOptions
    handlers: Mapping[str, Any]
    listen: bool
    """Whether to receive change notifications. Over HTTP this takes one stream per server."""
    on_listing_changed: Callable[[Server], None]
    """Called after `Server.listing` was replaced."""
    logins: LoginStorage


class Server:
    """One configured server: its session pool, its listings and their refreshing.

    Made by the registry, opened and closed by the runtime's group. A changed configuration makes a
    new `Server`; the old one drains.
    """

    def __init__(
        self, spec: ServerSpec, overrides: ToolOverrides, settings: ServerSettings
    ) -> None:
        self.spec, self.name, self._settings = spec, spec.name, settings
        self.auth = ServerAuth(spec, settings.logins)
        self._pool: SessionPool | None = None
        self._on_trace: OnTrace | None = None
        self._redactor: tuple[tuple[str, ...], Redactor] | None = None
        self._draining = DrainingPools()
        self._shared_program = self._share_program()
        self.on_cleanup: Callable[[], None] | None = None
        """Called when `cleanup` begins: no new call is to come here."""
        self.subscribed: dict[str, None] = {}
        """URIs of subscribed resources; subscribed again after every connect."""
        self._close_now = False
        self._own_client_refused = False
        """Whether the last connect of the own client failed."""
        self._endpoints_seen = set[str]()
        self.is_retired = False
        """Whether it takes no more calls: removed, replaced, or the runtime is closed."""
        self.overrides = overrides
        self._named = prompts_in_guides(spec.guides)
        self.health_interval = spec.health_interval
        self.connect_timeout = spec.timeouts.connect if spec.command else None
        self.listing: Listing | None = None
        """What the server told its own client. None: it was never reached."""
        self.empty_listing = ListingContent(server=spec.name, stale=True)
        """Shown until the first listing."""
        self.missing_listing = ListingContent(server=spec.name, stale=True, missing=True)
        """Shown to a caller whose own listing could not be fetched."""
        self.listings = ListingCache(spec.name, max(_MIN_CACHED_LISTINGS, 2 * spec.session_limit))
        self._refresher = ListingRefresher(
            spec.name,
            self._list,
            ready=self._wait_notifications,
            failed=lambda: self.set_stale(stale=True),
        )
        self._report_failure: Callable[[ToolkeepError | None], None] | None = None
        self._lock = asyncio.Lock()
        self._outages = 0

    def __repr__(self) -> str:
        return (
            f"<Server {self.name!r}, {self.listing.visible if self.listing else 'not reached yet'}>"
        )

    # -- opening and closing, for the group -----------------------------------------------------

    async def connect(self) -> None:
        self._own_client_refused = True
        await self._connect_and_list()
        self._own_client_refused = False

    async def ping(self) -> float:
        took = await self.pool.own_client.ping()
        if self._refresher.due or self.is_stale:
            self.refresh_soon(LISTING_KINDS)
        return took

    def report_failures(self, to: Callable[[ToolkeepError | None], None]) -> None:
        """For the group: call `to` with the error when calls fail, with None when they work
        again."""
        self._report_failure = to

    async def cleanup(self) -> None:
        """Close the pool: at once after `stop_now`, otherwise when its calls are over."""
        if self.on_cleanup is not None:
            self.on_cleanup()
        pool = self._pool
        if self._own_client_refused and not self.is_retired and pool and pool.slots.size:
            await pool.own_client.aclose()  # clients of principals may still work
            return
        self._pool = None
        await self._stop_background()
        if pool is not None and not self._close_now and pool.in_flight:
            self._draining.add(pool, self._give_up_program)
            return
        if pool is not None:
            await pool.aclose()
        if not self._draining:
            await self._give_up_program()

    def drain(self) -> None:
        """Take no more calls. The group's `cleanup` closes the pool."""
        self.is_retired = True
        if self._shared_program is not None:
            self._shared_program.stop_accepting()

    def stop_now(self) -> None:
        """Take no more calls and cut those that are running."""
        self.drain()
        self._close_now = True

    async def wait_closed(self) -> None:
        """Close, and wait for the last call; after `stop_now`, cut it."""
        await self.cleanup()
        await self._draining.wait(hurry=self._close_now)
        await self._give_up_program()
        await self.auth.aclose()

    def detach(self) -> None:
        """Let go without I/O: the event loop is gone, or belongs to the parent process."""
        self.is_retired = True
        if self._pool is not None:
            self._pool.detach()

    async def _stop_background(self) -> None:
        await self._refresher.stop()
        await self.listings.stop()

    # -- tracing --------------------------------------------------------------------------------

    def redact(self, value: Any) -> Any:
        """A JSON value without the secrets that this server was given."""
        from toolkeep._transport.redaction import Redactor

        secrets = self._pool.secrets if self._pool else ()
        if self._redactor is None or self._redactor[0] != secrets:
            self._redactor = secrets, Redactor(secrets)
        return self._redactor[1].redact(value)

    def trace(self, on_trace: OnTrace | None) -> None:
        """Report what passes over its connections from now on, without secrets. None: stop."""
        self._on_trace = on_trace
        for endpoint in self._pool.endpoints if self._pool else ():
            endpoint.tap.on_trace = on_trace

    # -- a program that one process runs for all ------------------------------------------------

    def _share_program(self) -> SharedProgram | None:
        state = self._settings.client_options.state
        if self.spec.replicas == "each" or not state:
            return None
        from toolkeep._transport.shared_program import SharedProgram

        return SharedProgram(self.spec, state, self._run_for_other)

    async def _run_for_other(
        self,
        identity: ProgramIdentity,
        method: str,
        params: dict[str, Any] | None,
        attempt: Attempt,
    ) -> dict[str, Any]:
        """Send a request of another process, which has checked that its caller may send it."""
        whose = None if identity.key is None else Identity(identity.key, identity.principal)
        acquired = await self.pool.acquire(whose, self.spec.timeouts.connect)
        try:
            return await acquired.client.relay(method, params, attempt)
        finally:
            acquired.release()

    async def hand_over(self, within: float) -> None:
        """Let another process run the program, if this one runs it for all."""
        if self._shared_program is not None:
            await self._shared_program.hand_over(within)

    async def _give_up_program(self) -> None:
        if self.is_retired and self._shared_program is not None:
            await self._shared_program.aclose()

    # -- sessions -------------------------------------------------------------------------------

    @property
    def pool(self) -> SessionPool:
        """The current session pool; made anew after the last one was closed. Raises `PoolClosed`
        once this server takes no more calls."""
        if self.is_retired:
            raise pool_closed(self.name)
        if self._pool is None or self._pool.is_draining:
            self._endpoints_seen = set[str]()
            settings = self._settings
            shared = {"server_auth": self.auth, "shared_program": self._shared_program}
            self._pool = SessionPool(
                self.spec,
                replace(settings.client_options, **shared),
                settings.handlers,
                listen=settings.listen,
                emit=self._on_client_event,
            )
            self.trace(self._on_trace)
        return self._pool

    @property
    def current_pool(self) -> SessionPool | None:
        """The session pool, if there is one now."""
        return self._pool

    def hear_of_breaker(self, about: Mapping[str, Any]) -> None:
        """Another process has told this about the breaker of an endpoint."""
        for endpoint in self._pool.endpoints if self._pool else ():
            endpoint.shared_breaker.hear(about)

    def hear_of_list(self, about: Mapping[str, Any]) -> None:
        """Another process has listed something anew, and it has changed."""
        name, began = about.get("name"), about.get("began")
        if self._pool is None or not isinstance(name, str) or not isinstance(began, int):
            return
        if what := self._pool.own_client.hear_of_list(name, began):
            self.listings.invalidate()
            self.refresh_soon(frozenset({what}))

    @property
    def is_draining(self) -> bool:
        """Whether calls are still running in pools that were closed to new ones."""
        return bool(self._draining)

    async def subscribe(self, uri: str) -> None:
        """Subscribe on the own client, now and after every reconnect."""
        await self.pool.own_client.subscribe(uri)
        self.subscribed[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        self.subscribed.pop(uri, None)
        await self.pool.own_client.unsubscribe(uri)

    async def forget_principal(self, identity: Identity) -> None:
        """End the sessions of this identity and drop its listing."""
        self.listings.remove(identity.key)
        await self.pool.end_sessions(identity)

    def drop_principal(self, identity: Identity) -> None:
        """Another process has ended the sessions of this identity: open new ones for later
        calls."""
        self.listings.remove(identity.key)
        if self._pool is not None:
            self._pool.retire_slot(identity.key)

    # -- listings -------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the listing is missing, or from before an outage."""
        return self.listing is None or self.listing.visible.stale

    def has_tool(self, tool: str) -> bool:
        """Whether callers without identity are shown this tool."""
        return self.listing is not None and tool in self.listing.tools

    def known_listing(self, identity: Identity | None) -> Listing | None:
        """What this identity may be shown, if it is cached and current."""
        own = self.listing
        if identity is None or self.spec.session == "shared" or (own and own.is_public):
            return own
        return self.listings.get(identity.key)

    async def listing_for(
        self,
        identity: Identity | None,
        within: float,
        kinds: frozenset[str],
        acquired: AcquiredClient | None = None,
    ) -> Listing:
        """What this identity may be shown. Lists it if it is not cached, through `acquired`, or
        through a client that is acquired for this alone."""
        known = self.known_listing(identity)
        if known is not None and kinds <= known.kinds:
            return known
        if identity is None or self.spec.session == "shared":
            return await self.listings.fetch(OWN_KEY, self._connect_and_list, within)

        async def fetch() -> Listing:
            own = (
                acquired.acquire_again() if acquired else await self.pool.acquire(identity, within)
            )
            try:
                return await self._list_for_identity(own, identity, kinds)
            finally:
                own.release()

        listing = await self.listings.fetch(identity.key, fetch, within)
        # A fetch that was joined may have asked for fewer kinds.
        return listing if kinds <= listing.kinds else await fetch()

    async def _connect_and_list(self) -> Listing:
        await self.pool.connect()
        for uri in self.subscribed:
            try:
                await self.pool.own_client.subscribe(uri)
            except ToolkeepError as error:
                logger.warning("%s: subscribing again to %s failed: %s", self.name, uri, error)
        return await self._list(LISTING_KINDS)

    async def _list_for_identity(
        self, acquired: AcquiredClient, identity: Identity, kinds: frozenset[str]
    ) -> Listing:
        invalidations, own = self.listings.invalidations, self.listing
        before = self.listings.get(identity.key)
        with self.listings.mark_listing(identity.key):
            # At first sight of an identity, what another process has listed will do.
            since = 0 if self.listings.get_any(identity.key) is None else None
            tool_list = (
                before.tool_list if before else await fetch_tools(acquired.client, since=since)
            )
        other = await fetch_prompts_and_resources(
            acquired.client, kinds, PromptsAndResources(), self._named
        )
        if own is not None and tool_list.tools == own.tool_list.tools:
            tool_list = own.tool_list  # share one copy among equal lists
        listing = await self.overrides.make_listing(tool_list, other, kinds | {TOOLS}, like=own)
        if invalidations == self.listings.invalidations:
            self.listings.put(identity.key, listing)
        return listing

    async def _list(self, kinds: frozenset[str]) -> Listing:
        """List through the own client, and publish the result."""
        async with self._lock:
            return await self._list_now(kinds)

    async def _list_now(self, kinds: frozenset[str]) -> Listing:
        before, acquired, outages = self.listing, self.pool.acquire_own(), self._outages
        try:
            with self.listings.mark_listing(OWN_KEY):
                tool_list = (
                    before.tool_list
                    if before and TOOLS not in kinds
                    else await fetch_tools(acquired.client)
                )
            known = before.other if before else PromptsAndResources()
            other = await fetch_prompts_and_resources(acquired.client, kinds, known, self._named)
        finally:
            acquired.release()
        listing = await self.overrides.make_listing(tool_list, other, LISTING_KINDS)
        if outages != self._outages:  # an outage began meanwhile
            listing = listing.with_stale(stale=True)
        elif before is not None and before.visible.stale:
            self.listings.invalidate()
        self._publish(listing)
        self._refresher.schedule(tool_list.ttl, LISTING_KINDS)
        return listing

    def _publish(self, listing: Listing) -> None:
        self.listing = listing
        self._settings.on_listing_changed(self)

    # -- refreshing -----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """List everything again, now."""
        self.listings.invalidate()
        try:
            await self._connect_and_list()
        except ToolkeepError as error:
            if error.delivery is not Delivery.ANSWERED:
                self.set_stale(stale=True)
            raise

    def refresh_soon(self, kinds: frozenset[str]) -> None:
        """Have these kinds listed again in the background."""
        if not self.is_retired and self._pool is not None:
            self._refresher.start(kinds)

    def verify_reachable(self) -> None:
        """A call could not reach the server: list again, to mark it stale or not."""
        if not self.is_stale:
            self.refresh_soon(LISTING_KINDS)

    def set_stale(self, *, stale: bool) -> None:
        """Mark the listings when the server goes out of reach, or comes back."""
        self._outages += stale
        if self.listing is None or self.listing.visible.stale == stale:
            return
        if stale:
            self.listings.mark_stale()
        else:
            self.listings.invalidate()
        self._publish(self.listing.with_stale(stale=stale))

    async def _wait_notifications(self) -> None:
        """Wait briefly for the notification stream: what is listed after it is open need not be
        listed again."""
        if self._pool is not None:
            await self._pool.wait_notifications()

    # -- what clients report --------------------------------------------------------------------

    def _on_client_event(self, identity: Identity | None, event: Event) -> None:
        """Keep listings current. Events of the server's own client count for all identities."""
        key = identity.key if identity else None
        match event:
            case Changed() if event.what in LISTING_KINDS:
                self.listings.invalidate(key)
                if identity is None:
                    self.refresh_soon(frozenset({event.what}))
            case Connected() if identity is None:
                if event.endpoint in self._endpoints_seen:
                    self.listings.invalidate()
                    self.refresh_soon(LISTING_KINDS)
                self._endpoints_seen.add(event.endpoint)
            case Disconnected(requested=False) if identity is not None:
                self.listings.invalidate(key)
            case ToolsListed():
                self._on_tools_listed(identity, event.tool_list)
            case ChangesMissed() if identity is None:
                self.refresh_soon(LISTING_KINDS)
            case ChangesMissed():
                self.listings.invalidate(key)
            case ReachabilityChanged() if self._report_failure is not None and self._pool:
                self._report_failure(common_failure(self._pool.endpoints))
            case _:
                pass

    def _on_tools_listed(self, identity: Identity | None, tool_list: ToolList) -> None:
        """Take over a tool list that was not asked for here: a call found its own outdated."""
        key = identity.key if identity else OWN_KEY
        known = self.known_listing(identity)
        if self.listings.is_listing(key) or known is None:
            return
        listing = self.overrides.make_listing_now(tool_list, known.other, known.kinds)
        if identity is None or (known is self.listing and tool_list.public):
            self._publish(listing)
            return
        self.listings.put(key, listing)
        if known is self.listing:  # it was public and is not any more
            self.refresh_soon(frozenset({TOOLS}))
