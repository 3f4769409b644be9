"""`Gateway`: a runtime as one MCP server, an ASGI app.

Owns the parts of a gateway and their life: messages between replicas, sessions, streams, the MCP
endpoint, and the pages beside it (`/healthz`, `/readyz`, `/metrics`, the metadata of OAuth). Reads
of a request no more than its path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from toolkeep._catalogue.tool import Tool
from toolkeep.config.gateway import GatewaySettings
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError
from toolkeep.gateway.access import Access, Denied, access_for
from toolkeep.gateway.audit import AuditLog
from toolkeep.gateway.errors import RpcError
from toolkeep.gateway.http import HttpEndpoint, Receive, Scope, decode_headers, respond, send_error
from toolkeep.gateway.limits import CallRates
from toolkeep.gateway.metrics import CONTENT_TYPE, Metrics
from toolkeep.gateway.offer import Ended, Offer
from toolkeep.gateway.profiles import Profile
from toolkeep.gateway.questions import ParkedCalls, Questions
from toolkeep.gateway.replicas import GatewayStore, Replicas
from toolkeep.gateway.server import McpServer
from toolkeep.gateway.sessions import Seal, Session, Sessions
from toolkeep.gateway.streams import Changes, Send
from toolkeep.runtime import Runtime
from toolkeep.state.sealed import GENERATE_KEY

__all__ = ["CLIENT_ANSWERS", "Gateway"]

logger = logging.getLogger("toolkeep.gateway")

CLIENT_ANSWERS: dict[str, Any] = {
    "sampling": "caller",
    "elicitation": "caller",
    "roots": "caller",
}
"""Options of a `Runtime` whose servers ask the clients of a gateway."""

PARKED_WITHIN = 10.0
"""Seconds that draining waits for clients to come back with answers. They may never do so."""

METADATA_PATH = "/.well-known/oauth-protected-resource"
_MCP_PATH = re.compile(r"/mcp(?:/([A-Za-z0-9][A-Za-z0-9_-]{0,63}))?/?")


class Gateway:
    """A runtime as one MCP server: `app = Gateway(runtime)`, for any ASGI server.

    `settings`: by default those of the runtime's configuration. `keys` seal session ids and what
    replicas tell each other: 32 random bytes each, as for `state`; the first seals, all open. By
    default those of the runtime's store, and without a store random ones. `access` replaces what
    the settings say about who may call.

    Opens the runtime if it is not open, and then closes it, too. To have servers ask the clients,
    give the runtime the options `CLIENT_ANSWERS`.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        settings: GatewaySettings | None = None,
        keys: Sequence[str | bytes] | None = None,
        access: Access | None = None,
    ) -> None:
        self.runtime = runtime
        self._given, self._keys, self._access = settings, keys, access
        self._owns_runtime = self._started = False
        self._offers: dict[str, Offer] = {}
        self.draining = False
        self.settings: GatewaySettings
        self.access: Access
        self.server: McpServer
        self.replicas: Replicas
        self.changes: Changes
        self.sessions: Sessions
        self.endpoint: HttpEndpoint
        self.metrics = Metrics()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "started" if self._started else "not started"
        return f"<Gateway, {state}>"

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything. Raises `ConfigError`. Does nothing if it is started."""
        if self._started:
            return
        self._owns_runtime = not self.runtime.is_open
        await self.runtime.connect()
        try:
            await self._start()
        except BaseException:
            if self._owns_runtime:
                await self.runtime.aclose()
            raise
        self._started = True

    async def _start(self) -> None:
        runtime = self.runtime
        self.settings = settings = self._given or runtime.configuration.gateway_settings()
        self.access = self._access or access_for(settings)
        state = runtime.shared_state
        keys = self._keys or state.keys
        if keys is None and state:
            raise ConfigError(
                "replicas that share a store need common keys for sessions",
                key="state_keys",
                remedy=f"Give keys. {GENERATE_KEY}",
            )
        keys = keys or [secrets.token_bytes(32)]
        store, seal = GatewayStore(state, keys), Seal(keys)
        self.replicas = replicas = Replicas(store)
        known = settings.limits.sessions
        self.sessions = sessions = Sessions(seal, store, replicas, max_known=known)
        questions, self.parked = Questions(seal, replicas), ParkedCalls(seal, replicas)
        self.changes = Changes(runtime)
        self._offers = self._make_offers(settings)
        self.server = McpServer(
            runtime,
            self.offers,
            sessions=sessions,
            parked=self.parked,
            changes=self.changes,
            rates=CallRates(state, settings.rate),
            metrics=self.metrics,
            audit=AuditLog.of(settings.audit) if settings.audit else None,
            max_requests=settings.limits.requests,
            max_per_principal=settings.limits.requests_per_principal,
        )
        self.endpoint = HttpEndpoint(
            self.server,
            settings=settings,
            access=self.access,
            sessions=sessions,
            questions=questions,
            changes=self.changes,
            store=store,
            replicas=replicas,
        )
        sessions.on_changed = self._on_session_changed
        self._add_gauges(sessions, questions)
        await replicas.start()
        self.changes.start()
        self.draining = False

    def _on_session_changed(self, session: Session) -> None:
        self.changes.on_session(session)
        self.endpoint.on_session(session)

    def _add_gauges(self, sessions: Sessions, questions: Questions) -> None:
        self.metrics = metrics = self.server.metrics = Metrics()
        metrics.gauge("sessions", "Sessions known to this process.", lambda: len(sessions))
        metrics.gauge("streams", "Open streams.", lambda: self.endpoint.stream_count)
        metrics.gauge("requests", "Requests in work.", lambda: self.server.in_flight)
        metrics.gauge("parked_calls", "Calls that wait for clients.", lambda: len(self.parked))
        metrics.gauge("questions", "Questions that wait for clients.", lambda: len(questions))

    @property
    def in_flight(self) -> int:
        """Requests in work."""
        return self.server.in_flight

    async def drain(self, within: float | None = None) -> bool:
        """Take no new streams, end those of notifications, and wait for running requests, and for
        some seconds for calls whose clients are to come back with answers. False: some are left
        after `within` seconds (default: `limits.drain`)."""
        self.draining = self.endpoint.is_draining = True
        self.endpoint.end_listening()
        self.changes.end_all()
        limit = self.settings.limits.drain if within is None else within
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                # A client that comes back makes a new request, which may be asked again.
                with suppress(TimeoutError):
                    async with asyncio.timeout(PARKED_WITHIN):
                        while self.server.in_flight or len(self.parked):
                            await self.server.idle.wait()
                            await self.parked.idle.wait()
                await self.server.idle.wait()
        return not self.server.in_flight and not len(self.parked)

    async def stop(self) -> None:
        """Close everything, also running requests. May be called twice."""
        if not self._started:
            return
        self._started = False
        self.draining = True
        self.changes.end_all()
        self.endpoint.stop()
        await self.parked.stop()
        self.changes.stop()
        await self.replicas.stop()
        if self.server.audit is not None:
            await asyncio.to_thread(self.server.audit.close)
        if self._owns_runtime:
            await self.runtime.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def apply(self, settings: GatewaySettings) -> None:
        """Use other settings from now on: who may call, profiles, rates, limits. Host, port and
        audit stay. Raises `ConfigError`, and then nothing has changed."""
        access = self._access or access_for(settings)
        offers = self._make_offers(settings)
        rates = CallRates(self.runtime.shared_state, settings.rate)
        self.settings, self.access, self._offers = settings, access, offers
        self.server.calls.rates = rates
        self.server.max_requests = settings.limits.requests
        self.server.max_per_principal = settings.limits.requests_per_principal
        self.endpoint.settings, self.endpoint.access = settings, access
        # The new settings may refuse a client that listens now: clients open their streams again.
        self.endpoint.end_listening()
        self.changes.end_all()

    def _make_offers(self, settings: GatewaySettings) -> dict[str, Offer]:
        named = {name: Profile.of(one) for name, one in settings.profiles.items()}

        def begin(tool: Tool, profile: Profile, context: CallContext | None) -> Awaitable[Ended]:
            return self.server.begin_nested(tool, profile, context)

        profiles = {"": Profile(), **named}
        return {name: Offer(self.runtime, one, begin) for name, one in profiles.items()}

    def offers(self, profile: str) -> Offer:
        """What a profile offers. Raises `RpcError` if there is no such profile any more."""
        found = self._offers.get(profile)
        if found is None:
            raise RpcError(-32600, f"there is no profile {profile!r}", status=404)
        return found

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether it can serve, and why not, for a load balancer."""
        servers = self.runtime.servers if self._started else ()
        healthy = sum(one.error is None for one in servers)
        state = self.runtime.state if self._started else None
        problems = [
            *(["it is not started"] if not self._started else []),
            *(["it is stopping"] if self.draining else []),
            *(["no server can be reached"] if servers and not healthy else []),
        ]
        about: dict[str, Any] = {"ready": not problems, "servers": len(servers), "healthy": healthy}
        if problems:
            about["problems"] = problems
        if state is not None and not state.available:
            # All replicas share the store: without it each serves what it can.
            about["degraded"] = ["the store cannot be used"]
        return not problems, about

    # -- ASGI -----------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    known = isinstance(error, ToolkeepError)
                    text = str(error) if known else type(error).__name__
                    await send({"type": "lifespan.startup.failed", "message": text})
                    if not known:
                        logger.exception("the gateway could not be started")
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        found = _MCP_PATH.fullmatch(path)
        if found is not None and self._started:
            profile = found[1] or ""
            offer = self._offers.get(profile)
            if offer is not None:
                await self.endpoint.serve(scope, receive, send, offer, profile)
                return
        page = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 404 if found is None or self._started else 503)
        elif path in page:
            await page[path](scope, send)
        elif self._started and (path == METADATA_PATH or path.startswith(f"{METADATA_PATH}/")):
            await self._resource_metadata(scope, send)
        else:
            await respond(send, 404)

    async def _healthz(self, scope: Scope, send: Send) -> None:
        await respond(send, 200, b"ok\n", {"content-type": "text/plain"})

    async def _readyz(self, scope: Scope, send: Send) -> None:
        is_ready, about = self.readiness()
        body = json.dumps(about).encode() + b"\n"
        await respond(send, 200 if is_ready else 503, body, {"content-type": "application/json"})

    async def _metrics(self, scope: Scope, send: Send) -> None:
        headers = decode_headers(scope) or {}
        try:
            if self._started:
                self.endpoint.check_origin(scope, headers)
                await self.access.authenticate(headers)
        except Denied as denied:
            error = RpcError(denied.code, denied.message, status=denied.status)
            await send_error(send, error, None, denied.headers)
            return
        except RpcError as error:
            await send_error(send, error, None, {})
            return
        await respond(send, 200, self.metrics.render().encode(), {"content-type": CONTENT_TYPE})

    async def _resource_metadata(self, scope: Scope, send: Send) -> None:
        about = self.access.metadata(str(scope["path"]))
        if about is None:
            await respond(send, 404)
            return
        headers = {"content-type": "application/json", "access-control-allow-origin": "*"}
        await respond(send, 200, json.dumps(about).encode(), headers)
