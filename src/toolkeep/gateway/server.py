"""`McpServer`: the methods of a gateway, the same for every transport and both eras.

Takes one decoded request with its `Exchange`, and returns the JSON of its result, or raises
`RpcError`. Results of servers pass through unchanged in meaning. A failing server is a tool error
that says whether the call ran; what the gateway itself refuses is a JSON-RPC error. Credentials of
callers are never passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any, cast

from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._client.server_requests import ELICITATION
from toolkeep.context import CallContext
from toolkeep.errors import CallRejected, NotOffered, ToolkeepError
from toolkeep.gateway.access import Caller
from toolkeep.gateway.answers import (
    SERVER_INFO,
    legacy_json,
    message_of,
    modern_json,
    page_json,
    resource_not_found,
    to_rpc_error,
)
from toolkeep.gateway.audit import AuditEntry, AuditLog, call_outcome
from toolkeep.gateway.calls import Record, ToolCalls, upstream_meta
from toolkeep.gateway.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    RpcError,
    invalid_params,
    unavailable,
)
from toolkeep.gateway.limits import CallRates
from toolkeep.gateway.metrics import Metrics
from toolkeep.gateway.offer import Ended, Kind, Offer
from toolkeep.gateway.profiles import Profile
from toolkeep.gateway.protocol import (
    LEVELS,
    Exchange,
    Json,
    Peer,
    is_at_least,
    required_capability,
)
from toolkeep.gateway.questions import ParkedCalls, lacks_capability, questions_of
from toolkeep.gateway.sessions import MAX_URI, MAX_URIS, Sessions
from toolkeep.gateway.streams import ALL_LISTS, Changes, Listener
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

__all__ = ["McpServer"]

logger = logging.getLogger("toolkeep.gateway")

CAPABILITIES: Json = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
MAX_LISTENING = 86_400.0
"""Seconds after which a subscription ends, and its client makes the next one."""
INSTRUCTIONS_WITHIN = 2.0
"""Seconds that a handshake waits for what servers tell models."""
MAX_ROUNDS = 10
"""Input rounds of one request for a prompt or a resource, for a legacy client."""
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

Work = Callable[[Json, Exchange, Record], Awaitable[bytes]]


class McpServer:
    """The methods of a gateway. Used in one event loop; its owner is `Gateway`."""

    def __init__(
        self,
        runtime: Runtime,
        offers: Callable[[str], Offer],
        *,
        sessions: Sessions,
        parked: ParkedCalls,
        changes: Changes,
        rates: CallRates,
        metrics: Metrics,
        audit: AuditLog | None,
        max_requests: int,
        max_per_principal: int,
    ) -> None:
        """`offers`: from the name of a profile to what it offers."""
        self._runtime, self._offers = runtime, offers
        self._sessions, self._parked, self._changes = sessions, parked, changes
        self.calls = ToolCalls(runtime, offers, parked, rates)
        self.metrics, self.audit = metrics, audit
        self.max_requests, self.max_per_principal = max_requests, max_per_principal
        self.in_flight = 0
        self._by_principal: dict[str, int] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self._levels: dict[tuple[str | None, str], str] = {}
        """The least log level that was asked of a server, by principal."""
        both: dict[str, Work] = {
            "tools/list": self._list_tools,
            "tools/call": self.calls.call,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "completion/complete": self._complete,
        }
        self._legacy: dict[str, Work] = {
            **both,
            "initialize": self._initialize,
            "ping": self._ping,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }
        self._modern: dict[str, Work] = {
            **both,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
        }

    # -- requests -------------------------------------------------------------------------------

    async def handle(self, method: str, params: Json, exchange: Exchange) -> bytes:
        """The JSON of the result. Raises `RpcError`. Cancelling the task cancels the request
        upstream."""
        peer, record, began = exchange.peer, Record(), monotonic()
        work = (self._modern if peer.modern else self._legacy).get(method)
        try:
            if work is None:
                raise RpcError(METHOD_NOT_FOUND, f"there is no method {method[:200]!r}")
            self._enter(peer.caller.principal, method)
            try:
                return await work(params, exchange, record)
            finally:
                self._leave(peer.caller.principal, method)
        except ToolkeepError as error:
            ended = "tool error" if isinstance(error, CallRejected) else "did not run"
            record.outcome = record.outcome or ended
            record.error = record.error or type(error).__name__
            raise to_rpc_error(error) from error
        except asyncio.CancelledError:
            record.outcome, record.error = "unknown", "cancelled"
            raise
        except Exception:
            logger.exception("%s failed in the gateway", method[:200])
            record.outcome, record.error = "unknown", "internal error"
            raise RpcError(INTERNAL_ERROR, "the gateway failed") from None
        finally:
            self._record(method, exchange, record, monotonic() - began)

    async def notified(self, method: str, params: Json, peer: Peer) -> None:
        """A notification of a client. Those that the gateway has no use for are dropped."""

    def _enter(self, principal: str | None, method: str) -> None:
        if method == "subscriptions/listen":
            return  # a stream, which has limits of its own
        if self.in_flight >= self.max_requests:
            raise unavailable(f"{self.max_requests} requests run already")
        if principal is not None:
            mine = self._by_principal.get(principal, 0)
            if mine >= self.max_per_principal:
                raise unavailable(f"{mine} requests of this principal run already")
            self._by_principal[principal] = mine + 1
        self.in_flight += 1
        self.idle.clear()

    def _leave(self, principal: str | None, method: str) -> None:
        if method == "subscriptions/listen":
            return
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()
        if principal is not None:
            left = self._by_principal[principal] - 1
            if left:
                self._by_principal[principal] = left
            else:
                del self._by_principal[principal]

    async def begin_nested(
        self, tool: Tool, profile: Profile, context: CallContext | None
    ) -> Ended:
        """A tool of the modes `search` or `code` calls another one. Raises `RpcError`."""
        principal, began = context.principal if context else None, monotonic()
        await self.calls.take_rate(principal, tool)

        def ended(outcome: CallResult | BaseException) -> None:
            how, seconds = call_outcome(outcome), monotonic() - began
            self.metrics.observe_call(tool.server, tool.tool, how, seconds)
            if self.audit is not None:
                failed = isinstance(outcome, BaseException)
                self.audit.record(
                    AuditEntry(
                        principal=principal,
                        method="tools/call",
                        outcome=how,
                        duration=seconds,
                        profile=profile.name,
                        server=tool.server,
                        tool=tool.tool,
                        error=type(outcome).__name__ if failed else "",
                    )
                )

        return ended

    def record_refusal(
        self, caller: Caller | None, method: str, profile: str, error: ToolkeepError
    ) -> None:
        """Write down a request that was refused before it came to its method."""
        if self.audit is not None:
            self.audit.record(
                AuditEntry(
                    principal=caller.principal if caller else None,
                    method=method[:200],
                    outcome="did not run",
                    duration=0.0,
                    profile=profile,
                    error=type(error).__name__,
                )
            )

    def _record(self, method: str, exchange: Exchange, record: Record, seconds: float) -> None:
        outcome = record.outcome or "ran"
        if record.server and method == "tools/call":
            self.metrics.observe_call(record.server, record.tool, outcome, seconds)
        if self.audit is None:
            return
        self.audit.record(
            AuditEntry(
                principal=exchange.peer.caller.principal,
                method=method[:200],
                outcome=outcome,
                duration=seconds,
                profile=exchange.peer.profile,
                server=record.server,
                tool=record.tool,
                request_id=exchange.request_id,
                error=record.error,
                arguments=record.arguments,
            )
        )

    # -- the handshake --------------------------------------------------------------------------

    async def _initialize(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        result: Json = {
            "protocolVersion": exchange.peer.version,
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
        }
        return to_json({**result, **await self._instructions(exchange.peer)})

    async def _discover(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        result: Json = {
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": CAPABILITIES,
            **await self._instructions(exchange.peer),
        }
        return modern_json(result, cacheable=True)

    async def _instructions(self, peer: Peer) -> Json:
        try:
            async with asyncio.timeout(INSTRUCTIONS_WITHIN):
                found = await self._offers(peer.profile).instructions(peer.context)
        except (TimeoutError, ToolkeepError) as error:
            logger.debug("the instructions of servers are left out: %s", type(error).__name__)
            return {}
        return {"instructions": found} if found else {}

    async def _ping(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        return b"{}"

    # -- lists ----------------------------------------------------------------------------------

    async def _list_tools(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        return await self._list("tools", params, exchange.peer)

    async def _list_prompts(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        return await self._list("prompts", params, exchange.peer)

    async def _list_resources(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        return await self._list("resources", params, exchange.peer)

    async def _list_templates(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        return await self._list("resourceTemplates", params, exchange.peer)

    async def _list(self, kind: Kind, params: Json, peer: Peer) -> bytes:
        offer = self._offers(peer.profile)
        page = await offer.page(kind, params.get("cursor"), peer.context, modern=peer.modern)
        return page_json(kind, page, modern=peer.modern)

    # -- prompts, resources, completions --------------------------------------------------------

    async def _get_prompt(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        name, peer = _text(params, "name"), exchange.peer
        prompt = await self._offers(peer.profile).prompt(name, peer.context)
        record.server, record.tool = prompt.server, prompt.prompt
        return await self._forward(prompt, "prompts/get", {"name": prompt.prompt}, params, exchange)

    async def _read_resource(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        uri, peer = _text(params, "uri"), exchange.peer
        try:
            resource = await self._offers(peer.profile).resource(uri, peer.context)
            record.server, record.tool = resource.server, uri[:200]
            own: Json = {"uri": uri}
            return await self._forward(resource, "resources/read", own, params, exchange)
        except NotOffered as error:
            raise resource_not_found(str(error), uri, peer) from None
        except CallRejected as error:
            if error.code != RESOURCE_NOT_FOUND:
                raise
            record.outcome = "tool error"
            raise resource_not_found(message_of(error), uri, peer) from None

    async def _complete(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        given, peer = params.get("ref"), exchange.peer
        ref = cast("Json", given) if isinstance(given, dict) else {}
        offer = self._offers(peer.profile)
        if ref.get("type") == "ref/prompt":
            found: Prompt | Template = await offer.prompt(_text(ref, "name"), peer.context)
            own: Json = {**ref, "name": found.key[1]}
        elif ref.get("type") == "ref/resource":
            found = await offer.template(_text(ref, "uri"), peer.context)
            own = ref
        else:
            raise invalid_params("ref must be a ref/prompt or a ref/resource")
        record.server, record.tool = found.server, found.key[1][:200]
        return await self._forward(found, "completion/complete", {"ref": own}, params, exchange)

    async def _forward(
        self,
        what: Prompt | Resource | Template,
        method: str,
        own: Json,
        params: Json,
        exchange: Exchange,
    ) -> bytes:
        """Send a request about something of a server. Modern servers may ask for input first."""
        peer, name = exchange.peer, f"{method} {what.name}"
        state, responses = self._parked.continued(params, peer, name)
        left_out = ("_meta", "inputResponses", "requestState")
        sent = {key: value for key, value in params.items() if key not in left_out}
        sent.update(own)
        sent["_meta"] = upstream_meta(params, peer)
        if responses:
            sent["inputResponses"] = responses
        if state is not None and state.get("state") is not None:
            sent["requestState"] = state["state"]
        raw = await self._runtime.forward(what, method, sent, context=peer.context)
        rounds = 0
        while raw.get("resultType") == "input_required" and not peer.modern:
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise RpcError(INTERNAL_ERROR, f"{what.server} asks for input again and again")
            sent["inputResponses"] = await _ask_all(raw, exchange, what.server)
            sent.pop("requestState", None)
            if isinstance(raw.get("requestState"), str):
                sent["requestState"] = raw["requestState"]
            raw = await self._runtime.forward(what, method, sent, context=peer.context)
        if not peer.modern:
            return legacy_json(raw)
        if raw.get("resultType") == "input_required":
            return self._parked.pass_on(raw, peer, name, what.server)
        public = peer.caller.principal is None
        return modern_json(raw, cacheable=method == "resources/read", public=public)

    # -- subscriptions and levels ---------------------------------------------------------------

    async def _set_level(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        level, peer = params.get("level"), exchange.peer
        if level not in LEVELS:
            raise invalid_params(f"level must be one of: {', '.join(LEVELS)}")
        if peer.session is not None:
            await self._sessions.set_level(peer.session, str(level))
        await self._lower_levels(peer, str(level))
        return b"{}"

    async def _lower_levels(self, peer: Peer, level: str) -> None:
        """Ask the legacy servers of the profile for lines of this level, where a higher one was
        asked for before. Their sessions are shared, so the gateway filters for each client."""
        offer, principal = self._offers(peer.profile), peer.caller.principal

        async def ask(server: str) -> None:
            key = principal, server
            known = self._levels.get(key)
            if known is not None and is_at_least(level, known):
                return
            self._levels[key] = level
            try:
                async with asyncio.timeout(INSTRUCTIONS_WITHIN):
                    given = {"level": level}
                    await self._runtime.request(
                        server, "logging/setLevel", given, context=peer.context, repeatable=True
                    )
            except (ToolkeepError, TimeoutError) as error:
                logger.debug("%s: the log level was not set: %s", server, type(error).__name__)

        servers = [
            one.name
            for one in self._runtime.servers
            if one.era == "legacy" and offer.profile.covers(one.name)
        ]
        await asyncio.gather(*map(ask, servers))

    async def _subscribe(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        """If the stream of the session is at another replica, that one subscribes at the server."""
        uri, peer = _text(params, "uri"), exchange.peer
        if len(uri) > MAX_URI:
            raise invalid_params(f"a URI that is subscribed to has at most {MAX_URI} characters")
        resource = await self._offers(peer.profile).resource(uri, peer.context)
        record.server, record.tool = resource.server, uri[:200]
        session = peer.session
        here = self._listener_of(peer)
        if here is not None:
            await self._changes.subscribe(here, resource.server, uri, peer.context)
        if session is not None:
            if len(session.uris) >= MAX_URIS:
                raise unavailable(f"a session may subscribe to {MAX_URIS} resources")
            await self._sessions.set_uris(session, {**session.uris, uri: resource.server})
        return b"{}"

    async def _unsubscribe(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        uri, peer = _text(params, "uri"), exchange.peer
        here = self._listener_of(peer)
        if here is not None:
            self._changes.unsubscribe(here, uri)
        if peer.session is not None and uri in peer.session.uris:
            left = {one: server for one, server in peer.session.uris.items() if one != uri}
            await self._sessions.set_uris(peer.session, left)
        return b"{}"

    def _listener_of(self, peer: Peer) -> Listener | None:
        """The stream of this client, if it is open here."""
        for one in self._changes.listeners:
            if one.peer is peer or (peer.session and one.peer.session is peer.session):
                return one
        return None

    async def _listen(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        """A modern subscription. Ends when its task is cancelled, or the gateway drains."""
        peer = exchange.peer
        if not exchange.can_stream:
            raise invalid_params("subscriptions/listen needs a client that accepts a stream")
        given = params.get("notifications")
        wanted = cast("Json", given) if isinstance(given, dict) else {}
        lists = frozenset(kind for kind in ALL_LISTS if wanted.get(f"{kind}ListChanged") is True)
        meta = {"_meta": {SUBSCRIPTION_ID: exchange.request_id}}

        early: dict[str, tuple[str, Json]] | None = {}
        """What changes before the acknowledgement, which comes first."""

        def send(method: str, about: Json) -> None:
            if early is None:
                exchange.notify(method, {**about, **meta})
            else:
                early[f"{method} {about.get('uri')}"] = method, about

        offer = self._offers(peer.profile)
        listener = Listener(peer, offer.profile.covers, send, lists)
        left = MAX_LISTENING
        if peer.caller.expires is not None:
            left = min(left, max(0.0, peer.caller.expires - time()))
        with self._changes.listening(listener) as ended, suppress(TimeoutError):
            uris = await self._subscribe_all(listener, offer, wanted.get("resourceSubscriptions"))
            covered: Json = {f"{kind}ListChanged": True for kind in sorted(lists)}
            if uris:
                covered["resourceSubscriptions"] = uris
            told, early = early, None
            send("notifications/subscriptions/acknowledged", {"notifications": covered})
            for one in told.values():
                send(*one)
            async with asyncio.timeout(left):
                await ended.wait()
        return to_json({"resultType": "complete", **meta})

    async def _subscribe_all(self, listener: Listener, offer: Offer, given: object) -> list[str]:
        """The resources of a subscription that servers agree to report."""
        context, kept = listener.peer.context, list[str]()
        wanted = cast("list[Any]", given)[:MAX_URIS] if isinstance(given, list) else []
        for uri in wanted:
            if not isinstance(uri, str) or len(uri) > MAX_URI:
                continue
            try:
                resource = await offer.resource(uri, context)
                await self._changes.subscribe(listener, resource.server, uri, context)
            except ToolkeepError as error:
                logger.debug("%s is not subscribed to: %s", uri[:200], type(error).__name__)
                continue
            kept.append(uri)
        return kept


async def _ask_all(raw: Mapping[str, Any], exchange: Exchange, server: str) -> Json:
    """The answers of a legacy client to what a modern server asks in one round."""
    answers: Json = {}
    for key, (method, params) in questions_of(raw).items():
        lacking = required_capability(method, params, exchange.peer.capabilities)
        if exchange.can_stream and lacking is None:
            answers[key] = dict(await exchange.ask(method, params))
        elif method == ELICITATION:
            answers[key] = {"action": "decline"}
        else:
            raise lacks_capability(method, server, lacking or {})
    return answers


def _text(params: Mapping[str, Any], key: str) -> str:
    found = params.get(key)
    if not isinstance(found, str) or not found:
        raise invalid_params(f"{key} must be a text")
    return found
