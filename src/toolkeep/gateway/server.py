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
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from toolkeep._catalogue.listing import Prompt, Resource, Template
from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._version import __version__
from toolkeep.errors import (
    AuthNeeded,
    CallRejected,
    Delivery,
    InvalidResult,
    NotOffered,
    NotPermitted,
    ResultTooLarge,
    ToolkeepError,
)
from toolkeep.events import CallEvent, InputNeeded, Log, Progress
from toolkeep.gateway.access import Caller
from toolkeep.gateway.audit import AuditEntry, AuditLog, Outcome, call_outcome
from toolkeep.gateway.errors import (
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RATE_LIMITED,
    RESOURCE_NOT_FOUND,
    UNAVAILABLE,
    URL_ELICITATION_REQUIRED,
    RpcError,
    invalid_params,
    unavailable,
)
from toolkeep.gateway.limits import CallRates
from toolkeep.gateway.metrics import Metrics
from toolkeep.gateway.offer import Kind, ListPage, Offer
from toolkeep.gateway.protocol import (
    LEVELS,
    Exchange,
    Json,
    Peer,
    forwarded_meta,
    is_at_least,
    log_level,
    meta_of,
    progress_token,
    required_capability,
)
from toolkeep.gateway.questions import ParkedCall, ParkedCalls, declined
from toolkeep.gateway.sessions import MAX_URIS, Sessions
from toolkeep.gateway.streams import ALL_LISTS, Changes, Listener
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

__all__ = ["McpServer"]

logger = logging.getLogger("toolkeep.gateway")

SERVER_INFO: Json = {"name": "toolkeep", "title": "toolkeep gateway", "version": __version__}
CAPABILITIES: Json = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
INSTRUCTIONS_WITHIN = 2.0
"""Seconds that a handshake waits for what servers tell models."""
MAX_ROUNDS = 10
"""Input rounds of one request for a prompt or a resource, for a legacy client."""
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

_LATER_FIELDS = ("resultType", "ttlMs", "cacheScope", "inputRequests", "requestState")
"""Fields of results that 2026-07-28 added."""
_PASSED_CODES = (
    INVALID_PARAMS,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
"""Codes of a server's errors that mean the same at the gateway. Others of the reserved range would
be taken for the gateway's own."""

Work = Callable[[Json, Exchange, "Record"], Awaitable[bytes]]
Ready = Callable[[], bool]


@dataclass(slots=True)
class Record:
    """What the audit stream and the metrics are told of one request."""

    server: str = ""
    tool: str = ""
    outcome: Outcome | None = None
    """None: it has not ended, or with a result."""
    error: str = ""
    arguments: Mapping[str, Any] | None = None


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
        self.rates, self.metrics, self.audit = rates, metrics, audit
        self.max_requests, self.max_per_principal = max_requests, max_per_principal
        self.in_flight = 0
        self._by_principal: dict[str, int] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self._levels: dict[tuple[str | None, str], str] = {}
        """The least log level that was asked of a server, by principal."""
        both: dict[str, Work] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
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
        return _modern_json(result, cacheable=True)

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
        return _page_json(kind, page, modern=peer.modern)

    # -- calling tools --------------------------------------------------------------------------

    async def _call_tool(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        peer, name, arguments = exchange.peer, params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise invalid_params("tools/call needs the name of a tool")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid_params("the arguments of a tool must be an object")
        given = cast("Json", arguments or {})
        record.tool, record.arguments = name[:200], given if self.audit else None
        state, responses = self._continued(params, peer, name)
        if state is not None and state["kind"] == "parked":
            return await self._resume(state, exchange, name, responses, record)
        offer = self._offers(peer.profile)
        tool = await offer.tool(name, peer.context)
        record.server, record.tool = tool.server, tool.tool
        exchange.check_call(tool, given)
        if self.rates and state is None:
            await self._take_rate(peer, tool)
        start = _starter(self._runtime, offer, tool, given, params, exchange.peer, responses, state)
        if peer.modern and peer.capabilities and exchange.can_stream:

            async def run(call: ParkedCall) -> bytes:
                events = CallEvents(params, call, self._parked)
                return await self._run_call(start(events), events, name, record)

            return await self._parked.run(exchange, name, run)
        events = CallEvents(params, LegacyAsker(exchange), self._parked)
        try:
            return await self._run_call(start(events), events, name, record)
        finally:
            await events.stop()

    async def _run_call(self, call: Call, events: CallEvents, name: str, record: Record) -> bytes:
        """Run one call upstream: the one place that does."""
        peer = events.peer
        try:
            result = await call.run(events)
        except InvalidResult as error:
            record.outcome, record.error = "ran", type(error).__name__
            if isinstance(error.result, CallResult) and not isinstance(error, ResultTooLarge):
                return self._result_json(error.result.raw, peer, name, record.server)
            return _tool_error(error, peer)
        except RpcError:
            raise
        except ToolkeepError as error:
            record.outcome, record.error = call_outcome(error), type(error).__name__
            if isinstance(error, NotOffered | NotPermitted) or _passes(error):
                raise
            return _tool_error(error, peer)
        except BaseException as error:
            record.outcome, record.error = "unknown", type(error).__name__
            raise
        record.outcome = call_outcome(result)
        return self._result_json(result.raw, peer, name, result.server)

    async def _resume(
        self, state: Json, exchange: Exchange, name: str, responses: Json, record: Record
    ) -> bytes:
        try:
            return await self._parked.resume(state, exchange, name, responses)
        except RpcError as error:
            record.outcome = "unknown"
            record.error = str(error.code)
            raise

    async def _take_rate(self, peer: Peer, tool: Tool) -> None:
        wait = await self.rates.take(peer.caller.principal, tool.server, tool.tool)
        if wait:
            headers = {"retry-after": f"{max(1, round(wait + 0.5))}"}
            text = f"the rate of calls is used up; wait {wait:.1f} s. Nothing was run"
            raise RpcError(RATE_LIMITED, text, {"retryAfter": round(wait, 3)}, headers=headers)

    def _continued(self, params: Json, peer: Peer, name: str) -> tuple[Json | None, Json]:
        """The state that a request brings back, opened, and the answers that come with it."""
        responses = params.get("inputResponses")
        if responses is not None and not isinstance(responses, dict):
            raise invalid_params("inputResponses must be an object")
        text = params.get("requestState") if peer.modern else None
        state = None if text is None else self._parked.open_state(text, peer, name)
        return state, cast("Json", responses or {})

    def _result_json(self, raw: Mapping[str, Any], peer: Peer, name: str, server: str) -> bytes:
        if not peer.modern:
            return to_json(_legacy_result(raw), inf_nan_mode="null")
        if raw.get("resultType") == "input_required":
            return self._input_required(raw, peer, name, server)
        return _modern_json(raw)

    def _input_required(self, raw: Mapping[str, Any], peer: Peer, name: str, server: str) -> bytes:
        """What a modern server asks, for a modern client: passed on with the server's state sealed
        in ours. Raises `RpcError` for what the client cannot answer."""
        for one in cast("dict[str, Any]", raw.get("inputRequests") or {}).values():
            asked = cast("Json", one) if isinstance(one, dict) else {}
            method, given = str(asked.get("method")), asked.get("params")
            about = cast("Json", given) if isinstance(given, dict) else {}
            lacking = required_capability(method, about, peer.capabilities)
            if lacking is not None:
                text = f"{server} asks for {method}, which the client does not support"
                raise RpcError(
                    MISSING_CAPABILITY,
                    f"{text}. The call ran up to there",
                    {"requiredCapabilities": lacking},
                )
        state = raw.get("requestState")
        kept = state if isinstance(state, str) else None
        sealed = self._parked.seal_upstream(peer, name, server, kept)
        return to_json({**raw, "requestState": sealed}, inf_nan_mode="null")

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
            raise _resource_not_found(str(error), uri, peer) from None
        except CallRejected as error:
            if error.code != RESOURCE_NOT_FOUND:
                raise
            record.outcome = "tool error"
            raise _resource_not_found(_message_of(error), uri, peer) from None

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
        state, responses = self._continued(params, peer, name)
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
            return to_json(_legacy_result(raw), inf_nan_mode="null")
        if raw.get("resultType") == "input_required":
            return self._input_required(raw, peer, name, what.server)
        return _modern_json(raw, cacheable=method == "resources/read", given=raw, peer=peer)

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
        uri, peer = _text(params, "uri"), exchange.peer
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

        def send(method: str, about: Json) -> None:
            exchange.notify(method, {**about, **meta})

        offer = self._offers(peer.profile)
        listener = Listener(peer, offer.profile.covers, send, lists)
        uris = await self._subscribe_all(listener, offer, wanted.get("resourceSubscriptions"))
        covered: Json = {f"{kind}ListChanged": True for kind in sorted(lists)}
        if uris:
            covered["resourceSubscriptions"] = uris
        send("notifications/subscriptions/acknowledged", {"notifications": covered})
        try:
            with self._changes.listening(listener) as ended:
                await ended.wait()
        finally:
            record.outcome = "ran"
        return to_json({"resultType": "complete", **meta})

    async def _subscribe_all(self, listener: Listener, offer: Offer, given: object) -> list[str]:
        """The resources of a subscription that servers agree to report."""
        context, kept = listener.peer.context, list[str]()
        wanted = cast("list[Any]", given)[:MAX_URIS] if isinstance(given, list) else []
        for uri in wanted:
            if not isinstance(uri, str):
                continue
            try:
                resource = await offer.resource(uri, context)
                await self._changes.subscribe(listener, resource.server, uri, context)
            except ToolkeepError as error:
                logger.debug("%s is not subscribed to: %s", uri[:200], type(error).__name__)
                continue
            kept.append(uri)
        return kept


# -- one call -----------------------------------------------------------------------------------


class LegacyAsker:
    """The client of a call that can be asked on the call's own stream, or not at all."""

    def __init__(self, exchange: Exchange) -> None:
        self.peer, self.exchange = exchange.peer, exchange
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, event: InputNeeded) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, event: InputNeeded) -> None:
        try:
            event.respond(await self.exchange.ask(event.method, event.params))
        except RpcError as error:
            event.respond(error_data(error))

    async def stop(self) -> None:
        """The call is over: its questions are, too."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def error_data(error: RpcError) -> Any:
    from mcp_types import ErrorData

    return ErrorData(code=error.code, message=error.message)


class CallEvents:
    """Takes the events of one call, and passes on what its client is to see. Never waits."""

    def __init__(self, params: Json, client: LegacyAsker | ParkedCall, parked: ParkedCalls) -> None:
        meta = meta_of(params)
        self._client, self._parked = client, parked
        self._token, self._wanted = progress_token(meta), log_level(meta)

    @property
    def peer(self) -> Peer:
        return self._client.peer

    def __call__(self, event: CallEvent) -> None:
        match event:
            case Progress():
                self._progress(event)
            case Log():
                self._log(event)
            case InputNeeded(answer_required=True):
                self._ask(event)
            case _:
                pass

    def _progress(self, event: Progress) -> None:
        exchange = self._client.exchange
        if self._token is None or exchange is None:
            return
        facts = {"progress": event.progress, "total": event.total, "message": event.message}
        known = {key: value for key, value in facts.items() if value is not None}
        exchange.notify("notifications/progress", {"progressToken": self._token, **known})

    def _log(self, event: Log) -> None:
        exchange, least = self._client.exchange, self.least_level
        if exchange is None or least is None or not is_at_least(event.level, least):
            return
        named = {} if event.logger is None else {"logger": event.logger}
        line = {"level": event.level, **named, "data": event.data}
        exchange.notify("notifications/message", line)

    @property
    def least_level(self) -> str | None:
        """The level from which on the client is sent log lines; None: it wants none."""
        peer = self._client.peer
        if peer.modern:
            return self._wanted
        session = peer.session
        return (session.level if session else None) or "debug"

    @property
    def upstream_level(self) -> str | None:
        """The level to ask of a modern server. A legacy client that has not said gets what servers
        usually send."""
        peer = self._client.peer
        if peer.modern:
            return self._wanted
        return (peer.session.level if peer.session else None) or "info"

    def _ask(self, event: InputNeeded) -> None:
        peer, client = self._client.peer, self._client
        exchange = client.exchange
        can_wait = isinstance(client, LegacyAsker) or exchange is not None or True
        if not peer.can_answer(event.method, event.params) or not can_wait:
            declined(event)
        elif isinstance(client, LegacyAsker):
            if peer.modern or exchange is None or not exchange.can_stream:
                declined(event)
            else:
                client.ask(event)
        elif self._parked.has_room(peer):
            client.ask(event)
        else:
            declined(event)

    async def stop(self) -> None:
        if isinstance(self._client, LegacyAsker):
            await self._client.stop()


def _starter(
    runtime: Runtime,
    offer: Offer,
    tool: Tool,
    arguments: Json,
    params: Json,
    peer: Peer,
    responses: Json,
    state: Json | None,
) -> Callable[[CallEvents], Call]:
    """Makes the upstream call of a request, once it is known who takes its events."""

    def start(events: CallEvents) -> Call:
        meta = upstream_meta(params, peer)
        if (level := events.upstream_level) is not None:
            meta[LOG_LEVEL_META_KEY] = level
        options: Json = {"meta": meta, "context": peer.context}
        if offer.is_own(tool):
            if offer.profile.mode == "code":
                return tool.stream(arguments, context=peer.context)
            return tool.stream(arguments, **options)
        if peer.modern:
            options["input"] = "return"
            options["input_responses"] = responses or None
            options["request_state"] = None if state is None else state.get("state")
        return runtime.stream(tool.name, arguments, **options)

    return start


def upstream_meta(params: Json, peer: Peer) -> Json:
    """The `_meta` of a request to a server: a modern one sees what this client can answer."""
    meta = forwarded_meta(meta_of(params))
    meta[CLIENT_CAPABILITIES_META_KEY] = peer.capabilities
    return meta


async def _ask_all(raw: Mapping[str, Any], exchange: Exchange, server: str) -> Json:
    """The answers of a legacy client to what a modern server asks in one round."""
    answers: Json = {}
    for key, one in cast("dict[str, Any]", raw.get("inputRequests") or {}).items():
        asked = cast("Json", one) if isinstance(one, dict) else {}
        method, given = str(asked.get("method")), asked.get("params")
        params = cast("Json", given) if isinstance(given, dict) else {}
        if exchange.can_stream and exchange.peer.can_answer(method, params):
            answers[key] = dict(await exchange.ask(method, params))
        elif method == "elicitation/create":
            answers[key] = {"action": "decline"}
        else:
            text = f"{server} asks for {method}, which the client does not support"
            raise RpcError(MISSING_CAPABILITY, f"{text}. The request ran up to there")
    return answers


# -- results ------------------------------------------------------------------------------------


def _text(params: Mapping[str, Any], key: str) -> str:
    found = params.get(key)
    if not isinstance(found, str) or not found:
        raise invalid_params(f"{key} must be a text")
    return found


def _legacy_result(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result as a legacy client reads it: without what 2026-07-28 added."""
    structured = raw.get("structuredContent")
    odd = structured is not None and not isinstance(structured, dict)
    if not odd and not any(field in raw for field in _LATER_FIELDS):
        return raw
    left_out = (*_LATER_FIELDS, "structuredContent") if odd else _LATER_FIELDS
    return {key: value for key, value in raw.items() if key not in left_out}


def _modern_json(
    raw: Mapping[str, Any],
    *,
    cacheable: bool = False,
    given: Mapping[str, Any] | None = None,
    peer: Peer | None = None,
) -> bytes:
    """A result as a modern client reads it. `given`: a server's own cache hints. What one principal
    is shown is never public."""
    result: Json = {"resultType": "complete", **raw}
    if cacheable:
        hints = given or {}
        is_open = peer is not None and peer.caller.principal is None
        result["ttlMs"] = hints.get("ttlMs", 0)
        result["cacheScope"] = hints.get("cacheScope", "private") if is_open else "private"
    found = raw.get("_meta")
    meta = cast("Json", found) if isinstance(found, dict) else {}
    if meta.get(SERVER_INFO_META_KEY) is None:
        result["_meta"] = {**meta, SERVER_INFO_META_KEY: SERVER_INFO}
    return to_json(result, inf_nan_mode="null")


def _page_json(kind: Kind, page: ListPage, *, modern: bool) -> bytes:
    rest: Json = {}
    if page.cursor is not None:
        rest["nextCursor"] = page.cursor
    meta: Json = {}
    if page.unavailable:
        meta["toolkeep/unavailable"] = list(page.unavailable)
    if modern:
        rest |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        meta[SERVER_INFO_META_KEY] = SERVER_INFO
    if meta:
        rest["_meta"] = meta
    tail = b"," + to_json(rest)[1:] if rest else b"}"
    return b'{"' + kind.encode() + b'":[' + page.items + b"]" + tail


def _tool_error(error: ToolkeepError, peer: Peer) -> bytes:
    """A failing server, as a tool error that says whether the call ran."""
    meta: Json = {"toolkeep/delivery": error.delivery.value, "toolkeep/error": type(error).__name__}
    text = _error_text(error)
    if isinstance(error, AuthNeeded) and error.login_url:
        meta["toolkeep/login"] = error.login_url
        if error.login_url not in text:
            text = f"{text} Log in at {error.login_url}"
    result: Json = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}
    return _modern_json(result) if peer.modern else to_json(result)


def _error_text(error: ToolkeepError) -> str:
    """The text of an error, without what a program wrote to stderr: that is for its operator."""
    text, said = str(error), error.stderr.strip()
    if said:
        text = text.partition("; last line of stderr: ")[0]
    known = (
        Delivery.NOT_SENT,
        Delivery.REFUSED,
    )
    if error.delivery in known and "not run" not in text and "not sent" not in text:
        text = f"{text.rstrip('.')}. It did not run"
    elif error.delivery is Delivery.UNKNOWN and "may have run" not in text:
        text = f"{text.rstrip('.')}. It may have run"
    return text


def _passes(error: ToolkeepError) -> bool:
    """Whether a server's JSON-RPC error means the same at the gateway."""
    if not isinstance(error, CallRejected) or error.code is None:
        return False
    return error.code in _PASSED_CODES or not -32768 <= error.code <= -32000


def _message_of(error: CallRejected) -> str:
    """What the server said, without ours."""
    return error.failure.message if error.failure else str(error)


def _resource_not_found(message: str, uri: str, peer: Peer) -> RpcError:
    """2026-07-28 has no code of its own for it."""
    code = INVALID_PARAMS if peer.modern else RESOURCE_NOT_FOUND
    return RpcError(code, message, {"uri": uri})


def to_rpc_error(error: ToolkeepError) -> RpcError:
    """The JSON-RPC error for a request that is not a call, or that never became one."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, NotOffered):
        near = [one[:200] for one in error.suggestions[:10]]
        return invalid_params(str(error), {"suggestions": near} if near else None)
    if isinstance(error, NotPermitted):
        return RpcError(FORBIDDEN, str(error), status=200)
    delivery = {"toolkeep/delivery": error.delivery.value}
    if isinstance(error, CallRejected) and _passes(error):
        return RpcError(error.code or INTERNAL_ERROR, _message_of(error), error.data)
    return RpcError(UNAVAILABLE, _error_text(error), delivery, status=200)
