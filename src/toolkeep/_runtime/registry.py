"""`ServerRegistry`: the servers of one runtime, from reading the configuration to closing.

Opens and watches them through a `ServerGroup`, applies configuration edits, and reports status.
Servers that an edit does not change are not touched.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep._catalogue.listing import LISTING_KINDS, ToolOverrides
from toolkeep._catalogue.prompts import load_prompts
from toolkeep._client.auth import check_configured_headers
from toolkeep._client.endpoint import Endpoint, EndpointStatus, endpoint_statuses
from toolkeep._client.loop_guard import run_to_completion
from toolkeep._client.observers import Observation
from toolkeep._client.options import ClientOptions
from toolkeep._client.stats import ServerStats, Stats
from toolkeep._rules.breaker import BreakerState
from toolkeep._rules.health import Member, MemberState, health_summary
from toolkeep._rules.identity import Identity, identify
from toolkeep._runtime.builtin import builtin_server
from toolkeep._runtime.resolve import ToolResolver, new_loop_guard, own_listing
from toolkeep._runtime.server import Server, ServerSettings
from toolkeep._runtime.session_pool import SessionStatus
from toolkeep.config import (
    Configuration,
    Difference,
    ServerSpec,
    difference,
    load,
    redact_url,
    watch,
)
from toolkeep.config.watcher import require_watchfiles
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ServerUnavailable, ToolkeepError, UnknownServer
from toolkeep.events import (
    Event,
    Health,
    HealthChanged,
    Reloaded,
    ReloadFailed,
    ServerAdded,
    ServerLost,
)
from toolkeep.group import ServerGroup
from toolkeep.state.news import News

if TYPE_CHECKING:
    from toolkeep.auth.oauth import OAuth

logger = logging.getLogger("toolkeep.runtime")

_WATCH_RETRY_DELAY = 1.0
"""Seconds before watching the configuration again, after it failed."""
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerStatus:
    """The state of one server at one time."""

    name: str
    transport: str
    """`http`, `sse`, `stdio` or `local`."""
    target: str = ""
    """Where it is: its URL without secrets, or its program."""
    state: MemberState
    health: Health
    error: BaseException | None = None
    """Why it is not connected; None while it is."""
    last_error: BaseException | None = None
    """The last failure, however long ago."""
    latency: float | None = None
    """Seconds that the last successful health check took."""
    era: str | None = None
    protocol_version: str | None = None
    server_version: str | None = None
    """Name and version, as the server gives them."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    stale: bool = False
    """Whether the server is out of reach, and these counts are from its last listing."""
    sessions: int = 0
    """Sessions of principals, without the server's own."""
    in_flight: int = 0
    can_log_in: bool = False
    """Whether `begin_login` is possible."""
    since: float | None = None
    """Since when its health is what it is (seconds since the epoch)."""
    breaker: BreakerState | None = None
    """The circuit breaker of its address; of several, that of the most usable one."""
    endpoints: tuple[EndpointStatus, ...] = ()
    """The addresses of a server that has several."""
    stats: ServerStats

    def __repr__(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"<ServerStatus {self.name!r}, {self.health.value}, {self.tools} tools{why}>"


def server_status(member: Member[Server], stats: Stats) -> ServerStatus:
    server, pool = member.server, member.server.current_pool
    client = pool.own_client if pool else None
    listing = own_listing(server)
    return ServerStatus(
        name=member.name,
        transport=_transport_name(server),
        target=redact_url(server.spec.url) if server.spec.url else server.spec.command or "",
        state=member.state,
        health=member.health,
        error=member.error,
        last_error=member.last_error,
        latency=member.latency,
        era=client.era if client else None,
        protocol_version=client.protocol_version if client else None,
        server_version=_server_version(client.handshake if client else None),
        tools=len(listing.tools),
        prompts=len(listing.prompts),
        resources=len(listing.resources),
        stale=listing.stale,
        sessions=pool.slots.size if pool else 0,
        in_flight=stats.server(member.name).in_flight,
        can_log_in=server.auth.has_login,
        since=member.health_since,
        breaker=_breaker(pool.endpoints) if pool else None,
        endpoints=endpoint_statuses(pool.endpoints) if pool else (),
        stats=stats.server(member.name),
    )


def _breaker(endpoints: Iterable[Endpoint]) -> BreakerState:
    states = {endpoint.breaker.state for endpoint in endpoints}
    return next(state for state in _BREAKER_ORDER if state in states)


def _server_version(handshake: Any) -> str | None:
    """From the handshake of legacy servers, or the `_meta` of modern ones."""
    if handshake is None:
        return None
    info: Any = getattr(handshake, "server_info", None)
    if info is not None:
        return f"{info.name} {info.version}"
    meta: Mapping[str, Any] = handshake.meta or {}
    found = meta.get(_SERVER_INFO)
    if not isinstance(found, Mapping):
        return None
    given = cast("Mapping[str, Any]", found)
    return " ".join(str(given[key]) for key in ("name", "version") if given.get(key)) or None


def _transport_name(server: Server) -> str:
    spec, pool = server.spec, server.current_pool
    if spec.transport is not None:
        return spec.transport
    if spec.url:
        return "sse" if pool and pool.endpoints[0].is_old_sse else "http"
    return "stdio" if spec.command else "local"


_BREAKER_ORDER = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


class OpenServers:
    """The servers of one opening of a runtime, and the group that opens and watches them."""

    def __init__(self, resolver: ToolResolver, settings: ServerSettings, **group: Any) -> None:
        self._resolver, self._settings = resolver, settings
        self.servers: dict[str, Server] = {}
        """By name, in the order of the configuration. Replaced, never changed."""
        self.group: ServerGroup[Server] = ServerGroup(**group)
        self._observation = self.group.observe(self._on_group_event)
        self._order: tuple[str, ...] = ()
        self._draining: set[Server] = set()
        self._is_closing = False

    async def open(self, configuration: Configuration, more: Iterable[ServerSpec] = ()) -> None:
        """Open all servers. In a strict group one failure closes all again."""
        # Importing the SDK and the HTTP library takes a second, so it runs in a thread.
        await asyncio.to_thread(importlib.import_module, "toolkeep._client.connection_manager")
        self._order = configuration.order
        servers = [await self._make_server(spec) for spec in (*configuration.servers, *more)]
        for server in servers:
            await self.group.add(server)
        self._set_servers({server.name: server for server in servers})
        if not self._is_closing:
            await self.group.connect_all()

    async def aclose(self) -> None:
        """Close all servers now, the last one first, also those that are being opened."""
        self._is_closing = True
        for server in (*self.servers.values(), *self._draining):
            server.stop_now()
        await self.group.cleanup_all()
        servers = (*self.servers.values(), *self._draining)
        await asyncio.gather(*(server.wait_closed() for server in servers))
        self._observation.close()
        self.servers = {}
        self._resolver.clear()

    # -- changes --------------------------------------------------------------------------------

    async def add(self, spec: ServerSpec) -> None:
        await self._add(await self._make_server(spec))

    async def _add(self, server: Server) -> None:
        if self._is_closing:
            raise ServerUnavailable(
                "the runtime was closed while a server was added", server=server.name
            )
        # Opening may take long; the name is known from now on, so no other server gets its calls.
        name = server.name
        self._set_servers({**self.servers, name: server}, unless=name)
        try:
            await self.group.add(server)
        except BaseException:
            await self._discard(server)
            raise

    async def remove(self, name: str) -> None:
        server = self.servers.get(name)
        if server is None:
            raise UnknownServer(f"there is no server {name!r} to remove")
        server.drain()
        self._draining.add(server)
        self._set_servers({k: v for k, v in self.servers.items() if k != name})
        await self.group.remove(name)
        await server.cleanup()
        self._forget_drained(server)

    async def _replace(self, old: Server, new: Server) -> None:
        old.on_cleanup, new.subscribed = partial(self._swap, old, new), dict(old.subscribed)
        try:
            await self.group.replace(old.name, new)
            if not old.is_retired:  # it was not open, so the group did not close it
                self._swap(old, new)
        finally:
            old.on_cleanup = None
            if old.is_retired:
                await old.cleanup()
            self._forget_drained(old)

    async def apply(self, edit: Difference) -> None:
        """Apply an edit of the configuration. Servers may have been added or removed by hand since
        the last one, so each step looks at what is there now."""
        wanted = [await self._make_server(spec) for spec in (*edit.changed, *edit.added)]
        self._order = edit.configuration.order
        for name in edit.removed:
            if name in self.servers:
                await self.remove(name)
        for server in wanted:
            there = self.servers.get(server.name)
            if there is None:
                await self._add(server)
            elif there.spec != server.spec:
                await self._replace(there, server)
        self._set_servers(self.servers)
        self._resolver.observers.emit(
            Reloaded(
                server="",
                added=tuple(spec.name for spec in edit.added),
                removed=edit.removed,
                changed=tuple(spec.name for spec in edit.changed),
            )
        )

    def _swap(self, old: Server, new: Server) -> None:
        """Send calls to the new server from now on; the old one is about to be closed."""
        old.drain()
        self._draining.add(old)
        self._set_servers({name: new if it is old else it for name, it in self.servers.items()})

    def _forget_drained(self, server: Server) -> None:
        """Stop tracking a server whose last call is over."""
        if server in self._draining and not server.is_draining:
            self._draining.discard(server)

    async def _discard(self, server: Server) -> None:
        kept = {k: v for k, v in self.servers.items() if v is not server}
        self._set_servers(kept)
        server.stop_now()
        await server.cleanup()

    def _set_servers(self, servers: dict[str, Server], unless: str | None = None) -> None:
        """Publish the servers in the order of the configuration, unless `unless` is known
        already."""
        if unless is not None and unless in self.servers:
            return  # `group.add` raises for the second one
        places = {name: place for place, name in enumerate(self._order)}
        ordered = sorted(servers, key=lambda name: places.get(name, len(places)))
        self.servers = {name: servers[name] for name in ordered}
        self._resolver.set_servers(self.servers)

    async def _make_server(self, spec: ServerSpec) -> Server:
        check_configured_headers(spec)
        prompts = ()
        if spec.prompts_file:
            read = partial(load_prompts, spec.prompts_file, server=spec.name)
            prompts = await asyncio.to_thread(read)
        for observation in self._resolver.observers:
            observation.add_server(spec)
        progressed = self._resolver.stats.tools_with_progress
        return Server(spec, ToolOverrides(spec, prompts, progressed), self._settings)

    # -- events ---------------------------------------------------------------------------------

    def _on_group_event(self, event: Event) -> None:
        server = self.servers.get(event.server)
        if server is not None:
            match event:
                case ServerAdded():
                    _log_added(server)
                case ServerLost() | HealthChanged(health=Health.DOWN):
                    server.set_stale(stale=True)
                case HealthChanged(health=Health.HEALTHY) if server.is_stale:
                    server.refresh_soon(LISTING_KINDS)
                case _:
                    pass
        self._resolver.observers.emit(event)


def _log_added(server: Server) -> None:
    if server.listing is None:
        return
    shown = server.listing.visible
    logger.info(
        "%s is registered with %d tools, %d prompts, %d resources and %d resource templates",
        server.name,
        len(shown.tools),
        len(shown.prompts),
        len(shown.resources),
        len(shown.templates),
    )


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the configuration comes from, and how to read it."""

    config: object = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    """Options of `load`."""
    functions: Iterable[Callable[..., Any]] | None

    async def read(self, config: object = None) -> Configuration:
        source = self.config if config is None else config
        if isinstance(source, Configuration):
            if self.options.get("strict") and source.invalid:
                raise source.invalid[0]
            return source
        return await asyncio.to_thread(load, source, **self.options)

    @property
    def builtin(self) -> tuple[ServerSpec, ...]:
        return () if self.functions is None else (builtin_server(self.functions),)


def _identity_of(principal: str) -> Identity | None:
    return identify(CallContext(principal=principal).principal, call={}, task={})


class ServerRegistry:
    """The servers of one runtime: opens, changes and closes them. Lives as long as the runtime,
    over several openings."""

    def __init__(
        self,
        resolver: ToolResolver,
        source: ConfigSource,
        client_options: ClientOptions,
        handlers: Mapping[str, Any],
        group_options: Mapping[str, Any],
        *,
        listen: bool,
        watch_config: bool,
    ) -> None:
        from toolkeep.auth.storage import LoginStorage

        self._resolver, self._source, self._group_options = resolver, source, group_options
        self._watches_config = watch_config
        self._settings = ServerSettings(
            client_options=client_options,
            handlers=handlers,
            listen=listen,
            on_listing_changed=resolver.on_listing_changed,
            logins=LoginStorage(lambda: resolver.state.store),
        )
        self.configuration = Configuration()
        self._news = News(resolver.state, self._on_news)
        self._servers: OpenServers | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._close_requests = 0
        """Counts calls of `close`, so that `open` notices one that came while it read."""
        self._reloads = self._reloaded = 0
        """The number of the last requested and of the last applied reload."""
        self._lock = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether it is open, and not being closed."""
        return self._servers is not None and self._resolver.is_open

    # -- opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        self._check_loop()
        closes = self._close_requests
        if self._servers is not None and self._resolver.is_open:
            return
        configuration = await self._source.read()  # may ask the user, so without the lock
        async with self._lock:
            if self._servers is not None:
                return
            if closes != self._close_requests:
                text = "the runtime was closed while opening"
                raise ServerUnavailable(text, server="runtime")
            if self._watches_config and not isinstance(self._source.config, str | Path | None):
                remedy = "Give the path of a file, or nothing to look in the usual places"
                raise ConfigError("only a file can be watched", remedy=remedy, key="auto_reload")
            if self._watches_config:
                require_watchfiles()
            self._resolver.state.open(configuration.state, configuration.state_keys)
            await self._news.start()
            self._servers = OpenServers(self._resolver, self._settings, **self._group_options)
            self._resolver.is_open = True
            try:
                await self._open(self._servers, configuration)
            except BaseException:
                await run_to_completion(self._close())
                raise

    async def _open(self, servers: OpenServers, configuration: Configuration) -> None:
        await servers.open(configuration, self._source.builtin)
        self._resolver.check_open()  # it may have been closed meanwhile
        self.configuration = configuration
        for pending in configuration.needs_approval:
            logger.warning("%s needs approval and is not started", pending.name)
        for error in configuration.invalid:
            logger.warning("a server is skipped: %s", error)
        if self._watches_config:
            loop = asyncio.get_running_loop()
            self._watch_task = loop.create_task(self._watch_config(), context=Context())

    async def close(self) -> None:
        """Close everything. Once begun, closing goes on even if the caller is cancelled."""
        loop_guard = self._resolver.loop_guard
        if loop_guard.loop is None:
            return
        if loop_guard.is_unreachable:
            self.detach()
            return
        loop_guard.check()
        self._close_requests += 1
        self._resolver.is_open = False
        if self._closing is None or self._closing.done():
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close_in_turn(), context=Context())
        await asyncio.shield(self._closing)

    async def _close_in_turn(self) -> None:
        await self._resolver.close_resources()
        if self._servers is not None:
            await self._servers.aclose()  # ends an `open` that holds the lock
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        self._resolver.is_open = False
        watching, self._watch_task = self._watch_task, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait((watching,))
        await self._resolver.close_resources()
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.aclose()
        await self._resolver.result_cache.wait_saved()
        await self._settings.logins.aclose()
        await self._news.stop()
        await self._resolver.state.aclose()
        self._resolver.loop_guard = new_loop_guard()

    def _check_loop(self) -> None:
        if self._resolver.loop_guard.is_unreachable and not self._resolver.loop_guard.is_forked:
            self.detach()
        if self._resolver.loop_guard.loop is None:
            self._lock = asyncio.Lock()
        self._resolver.loop_guard.check()

    def detach(self) -> None:
        """Let go without I/O: the event loop is gone, or belongs to the parent process."""
        for server in self._resolver.servers.values():
            server.detach()
        self._resolver.clear()
        self._resolver.result_cache.detach()
        self._news.detach()
        self._resolver.is_open, self._resolver.loop_guard = False, new_loop_guard()
        self._servers = self._watch_task = self._closing = None

    def _require_open(self) -> OpenServers:
        self._resolver.check_open()
        assert self._servers is not None
        return self._servers

    # -- status ---------------------------------------------------------------------------------

    def status(self) -> tuple[ServerStatus, ...]:
        if self._servers is None:
            return ()
        members = {member.name: member for member in self._servers.group.members}
        names = [name for name in self._resolver.servers if name in members]
        return tuple(server_status(members[name], self._resolver.stats) for name in names)

    def summary(self) -> str:
        members = self._servers.group.members if self._servers else ()
        count = len(self._resolver.catalogue)
        counts = f"{health_summary(members)}, {count} {'tool' if count == 1 else 'tools'}"
        state = self._resolver.state.status
        down = state is not None and not state.available
        return f"{counts}; {state.store} is down: {state.problem}" if state and down else counts

    # -- changes --------------------------------------------------------------------------------

    async def reconnect(self, name: str | None, *, failed_only: bool) -> None:
        await self._require_open().group.reconnect(name, failed_only=failed_only)

    def sessions(self) -> tuple[SessionStatus, ...]:
        pools = (server.current_pool for server in self._resolver.servers.values())
        return tuple(session for pool in pools if pool for session in pool.sessions)

    async def end_session(self, server: str, session: str) -> bool:
        """False: there is no such session."""
        self._resolver.check_open()
        found = self._resolver.server(server)
        pool = found.current_pool
        identity = pool.owner_of(session) if pool else None
        if identity is None:
            return False
        self._resolver.forget_principal(identity)
        await found.forget_principal(identity)
        return True

    async def hand_over(self, within: float) -> None:
        servers = tuple(self._require_open().servers.values())
        await asyncio.gather(*(server.hand_over(within) for server in servers))

    async def add(self, spec: ServerSpec) -> None:
        await self._require_open().add(spec)

    async def remove(self, name: str) -> None:
        await self._require_open().remove(name)

    async def forget_principal(self, principal: str) -> None:
        self._resolver.check_open()
        identity = _identity_of(principal)
        if identity is None:
            return
        self._resolver.forget_principal(identity)
        await self._resolver.result_cache.forget(principal)
        servers = tuple(self._resolver.servers.values())
        await asyncio.gather(*(server.forget_principal(identity) for server in servers))
        if self._resolver.state:
            await self._news.tell("forgotten", principal=principal)

    async def _on_news(self, what: str, about: Mapping[str, Any]) -> None:
        """Another process tells what it has done, or found out."""
        servers = tuple(self._resolver.servers.values())
        match what:
            case "breaker":
                for server in servers:
                    server.hear_of_breaker(about)
            case "listed":
                for server in servers:
                    server.hear_of_list(about)
            case "forgotten" if identity := _identity_of(str(about.get("principal", ""))):
                self._resolver.forget_principal(identity)
                for server in servers:
                    server.drop_principal(identity)
            case _:
                pass

    # -- logins ---------------------------------------------------------------------------------

    def login_at(self, name: str) -> OAuth:
        """What logs people in to this server. Raises `ConfigError` if that is not possible."""
        self._resolver.check_open()
        login = self._resolver.server(name).auth.login
        if login is None:
            problem = "users cannot log in to this server: it has other credentials, or is no URL"
            remedy = "Remove them, or set 'auth' to \"oauth\""
            raise ConfigError(problem, server=name, key="auth", remedy=remedy)
        return login

    async def login_of(self, callback_url: str) -> OAuth:
        """What completes the login that this callback belongs to."""
        from toolkeep.auth.login import server_of

        self._resolver.check_open()
        name, _ = await server_of(self._settings.logins, callback_url)
        return self.login_at(name)

    async def reopen(self, name: str) -> None:
        """Open a server now if it failed: a user has logged in."""
        if self._require_open().group.status(name).is_failed:
            await self.reconnect(name, failed_only=True)

    async def forget_at(self, name: str, principal: str) -> None:
        """End the sessions of this principal at one server, and drop its listings and results."""
        identity = identify(CallContext(principal=principal).principal, call={}, task={})
        if identity is not None:
            self._resolver.forget_principal(identity)
            await self._resolver.server(name).forget_principal(identity)

    def describe_servers(self, observation: Observation) -> None:
        """Tell a new observer of the servers that are there."""
        for server in self._resolver.servers.values():
            observation.add_server(server.spec)

    async def reload(self, config: object = None) -> Difference:
        self._require_open()
        self._reloads += 1
        number = self._reloads
        wanted = await self._source.read(config)
        async with self._lock:
            if number < self._reloaded:  # a later reload was applied already
                return difference(self.configuration, self.configuration)
            edit = difference(self.configuration, wanted)
            await self._apply(self._require_open(), edit)
            self._reloaded = number
            return edit

    async def _apply(self, servers: OpenServers, edit: Difference) -> None:
        await servers.apply(edit)
        self.configuration = edit.configuration

    async def _watch_config(self) -> None:
        """Apply edits as they come; go on after a failure."""
        while True:
            try:
                return await self._apply_edits()
            except Exception as error:
                # For example from a function of the user that supplies inputs.
                unread = ConfigError(f"it could not be read ({type(error).__name__})")
                self._reload_failed(unread)
            await asyncio.sleep(_WATCH_RETRY_DELAY)

    def _reload_failed(self, error: ConfigError) -> None:
        logger.warning("an edit of the configuration was not applied: %s", error)
        self._resolver.observers.emit(ReloadFailed(server="", error=error))

    async def _apply_edits(self) -> None:
        """Apply each edit. One that cannot be read or applied changes nothing else."""
        servers = self._require_open()
        path = cast("Path | str | None", self._source.config)
        edits = watch(path, since=self.configuration, **self._source.options)
        async with aclosing(edits):
            async for edit in edits:
                try:
                    if isinstance(edit, ConfigError):
                        raise edit
                    async with self._lock:
                        await self._apply(servers, edit)
                except ConfigError as error:
                    self._reload_failed(error)
                except ToolkeepError as error:
                    logger.warning("an edit of the configuration was applied in part: %s", error)
