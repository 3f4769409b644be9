"""`ToolCalls`: calls of tools through a gateway: find the tool, take a rate, run the call, ask the
client what its server asks, and answer.

A call of a legacy client, or of one that cannot be asked, runs in the task of its request; one of a
modern client that can be asked runs in a task of its own, because it may outlive its request. A
call that needs a login asks the client to open the link, where it can, and goes on after the login.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, ErrorData

from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.server_requests import ELICITATION
from toolkeep.errors import (
    AuthNeeded,
    InvalidResult,
    NotOffered,
    NotPermitted,
    ResultTooLarge,
    ToolkeepError,
)
from toolkeep.events import CallEvent, InputNeeded, Log, Progress
from toolkeep.gateway.answers import is_passed_on, result_json, tool_error
from toolkeep.gateway.audit import Outcome, call_outcome
from toolkeep.gateway.errors import RATE_LIMITED, RpcError, invalid_params
from toolkeep.gateway.limits import CallRates
from toolkeep.gateway.offer import Offer
from toolkeep.gateway.protocol import (
    Exchange,
    Json,
    Peer,
    forwarded_meta,
    is_at_least,
    log_level,
    meta_of,
    progress_token,
)
from toolkeep.gateway.questions import ParkedCall, ParkedCalls, declined
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

__all__ = ["Record", "ToolCalls", "upstream_meta"]

logger = logging.getLogger("toolkeep.gateway")

LOGIN_WITHIN, LOGIN_POLL = 120.0, 1.0
"""Seconds for a user who has opened the link to log in, and between two looks."""


@dataclass(slots=True)
class Record:
    """What the audit stream and the metrics are told of one request."""

    server: str = ""
    tool: str = ""
    outcome: Outcome | None = None
    """None: it has not ended, or with a result."""
    error: str = ""
    arguments: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Request:
    """One `tools/call`, as its client sent it."""

    name: str
    arguments: Json
    params: Json
    responses: Json
    """Answers to what the server has asked before."""
    state: Json | None
    """The opened request state that came with them."""


class ToolCalls:
    """The calls of one gateway."""

    def __init__(
        self,
        runtime: Runtime,
        offers: Callable[[str], Offer],
        parked: ParkedCalls,
        rates: CallRates,
    ) -> None:
        self._runtime, self._offers, self._parked = runtime, offers, parked
        self.rates = rates

    async def call(self, params: Json, exchange: Exchange, record: Record) -> bytes:
        """The result as JSON, or what the client is asked first. Raises a `ToolkeepError` for what
        is no result."""
        peer, request = exchange.peer, self._read(params, exchange.peer)
        record.tool, record.arguments = request.name[:200], request.arguments
        state = request.state
        if state is not None and state["kind"] == "parked":
            record.outcome = "unknown"
            body = await self._parked.resume(state, exchange, request.name, request.responses)
            record.outcome = "ran"
            return body
        if peer.modern and peer.capabilities and exchange.can_stream:

            async def run(call: ParkedCall) -> bytes:
                return await self._run(request, CallEvents(request, call, self._parked), record)

            return await self._parked.run(exchange, request.name, run)
        asker = StreamAsker(exchange)
        try:
            return await self._run(request, CallEvents(request, asker, self._parked), record)
        finally:
            await asker.stop()

    def _read(self, params: Json, peer: Peer) -> Request:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise invalid_params("tools/call needs the name of a tool")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid_params("the arguments of a tool must be an object")
        state, responses = self._parked.continued(params, peer, name)
        return Request(name, cast("Json", arguments or {}), params, responses, state)

    # -- running --------------------------------------------------------------------------------

    async def _run(self, request: Request, events: CallEvents, record: Record) -> bytes:
        """Run a call, with a login on the way if it needs one."""
        try:
            return await self._run_once(request, events, record, is_first=True)
        except AuthNeeded as error:
            needed = error
        link = needed.login_url or await self._begin_login(needed, events.peer)
        needed.login_url = link
        record.outcome, record.error = call_outcome(needed), type(needed).__name__
        if not link or not await events.ask_login(link, needed):
            return tool_error(needed, events.peer)
        until = monotonic() + LOGIN_WITHIN
        while monotonic() < until:
            try:
                return await self._run_once(request, events, record, is_first=False)
            except AuthNeeded:
                await asyncio.sleep(LOGIN_POLL)
        return tool_error(needed, events.peer)

    async def _begin_login(self, needed: AuthNeeded, peer: Peer) -> str:
        """The link by which this caller logs in; empty: the runtime knows none."""
        try:
            begun = await self._runtime.begin_login(needed.server, peer.caller.principal)
        except ToolkeepError as error:
            logger.debug("%s: no login was begun: %s", needed.server, type(error).__name__)
            return ""
        return begun.url

    async def _run_once(
        self, request: Request, events: CallEvents, record: Record, *, is_first: bool
    ) -> bytes:
        """Find the tool and run one call upstream: the one place that does. Raises `AuthNeeded`,
        and what is no result."""
        peer = events.peer
        offer = self._offers(peer.profile)
        tool = await offer.tool(request.name, peer.context)
        record.server, record.tool = tool.server, tool.tool
        if is_first:
            events.check_call(tool)
            # Also when it goes on with answers: a request state can be sent many times, and each
            # time its server runs the tool.
            await self.take_rate(peer.caller.principal, tool)
        call = self._start(offer, tool, request, events)
        try:
            result = await call.run(events)
        except InvalidResult as error:
            record.outcome, record.error = "ran", type(error).__name__
            if isinstance(error.result, CallResult) and not isinstance(error, ResultTooLarge):
                return result_json(error.result.raw, peer)
            return tool_error(error, peer)
        except ToolkeepError as error:
            record.outcome, record.error = call_outcome(error), type(error).__name__
            raised = AuthNeeded | NotOffered | NotPermitted | RpcError
            if isinstance(error, raised) or is_passed_on(error):
                raise
            return tool_error(error, peer)
        except BaseException as error:
            record.outcome, record.error = "unknown", type(error).__name__
            raise
        record.outcome, record.error = call_outcome(result), ""
        if result.needs_input:
            return self._parked.pass_on(result.raw, peer, request.name, result.server)
        return result_json(result.raw, peer)

    async def take_rate(self, principal: str | None, tool: Tool) -> None:
        """Take one call of this principal. Raises `RpcError` if its rate is used up."""
        if not self.rates:
            return
        wait = await self.rates.take(principal, tool.server, tool.tool)
        if wait:
            headers = {"retry-after": f"{max(1, round(wait + 0.5))}"}
            text = f"the rate of calls is used up; wait {wait:.1f} s. Nothing was run"
            raise RpcError(RATE_LIMITED, text, {"retryAfter": round(wait, 3)}, headers=headers)

    def _start(self, offer: Offer, tool: Tool, request: Request, events: CallEvents) -> Call:
        peer, context = events.peer, events.peer.context
        if offer.is_own(tool) and offer.profile.mode == "code":
            return tool.stream(request.arguments, context=context)
        meta = upstream_meta(request.params, peer)
        if (level := events.upstream_level) is not None:
            meta[LOG_LEVEL_META_KEY] = level
        options: Json = {"meta": meta, "context": context}
        if peer.modern:
            state = request.state
            options["input"] = "return"
            options["input_responses"] = request.responses or None
            options["request_state"] = None if state is None else state.get("state")
        if offer.is_own(tool):
            return tool.stream(request.arguments, **options)
        return self._runtime.stream(tool.name, request.arguments, **options)


def upstream_meta(params: Json, peer: Peer) -> Json:
    """The `_meta` of a request to a server: a modern one sees what this client can answer."""
    meta = forwarded_meta(meta_of(params))
    meta[CLIENT_CAPABILITIES_META_KEY] = peer.capabilities
    return meta


# -- what happens during a call -------------------------------------------------------------------


class StreamAsker:
    """The client of a call that runs in the task of its request: it can be asked on the stream of
    the call, if it is a legacy one."""

    def __init__(self, exchange: Exchange) -> None:
        self.peer, self.exchange = exchange.peer, exchange
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def can_ask(self) -> bool:
        return not self.peer.modern and self.exchange.can_stream

    def ask(self, event: InputNeeded) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, event: InputNeeded) -> None:
        try:
            event.respond(await self.exchange.ask(event.method, event.params))
        except RpcError as error:
            event.respond(ErrorData(code=error.code, message=error.message))

    async def stop(self) -> None:
        """The call is over: its questions are, too."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class CallEvents:
    """Takes the events of one call, and passes on what its client is to see. Never waits."""

    def __init__(
        self, request: Request, client: StreamAsker | ParkedCall, parked: ParkedCalls
    ) -> None:
        meta = meta_of(request.params)
        self._request, self._client, self._parked = request, client, parked
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
        exchange, least = self._client.exchange, self._least_level("debug")
        if exchange is None or least is None or not is_at_least(event.level, least):
            return
        named = {} if event.logger is None else {"logger": event.logger}
        line = {"level": event.level, **named, "data": event.data}
        exchange.notify("notifications/message", line)

    @property
    def upstream_level(self) -> str | None:
        """The log level to ask of a modern server. A legacy client that has named none gets what
        servers usually send."""
        return self._least_level("info")

    def _least_level(self, default: str) -> str | None:
        """The level from which on the client wants log lines; None: it wants none. `default`: for a
        legacy client that has named none."""
        peer = self._client.peer
        if peer.modern:
            return self._wanted
        return (peer.session.level if peer.session else None) or default

    def check_call(self, tool: Tool) -> None:
        """Check what the transport repeats of the call. Raises `RpcError`."""
        if self._client.exchange is not None:
            self._client.exchange.check_call(tool, self._request.arguments)

    def _ask(self, event: InputNeeded) -> None:
        client = self._client
        can_wait = (
            client.can_ask
            if isinstance(client, StreamAsker)
            else self._parked.has_room(client.peer)
        )
        if can_wait and client.peer.can_answer(event.method, event.params):
            client.ask(event)
        else:
            declined(event)

    async def ask_login(self, link: str, needed: AuthNeeded) -> bool:
        """Ask the client to open a link. False: it cannot, or does not want to."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def reply(given: object) -> None:
            if not answer.done():
                answer.set_result(given)

        params = {
            "mode": "url",
            "url": link,
            "elicitationId": secrets.token_urlsafe(12),
            "message": f"Log in to {needed.server}, then come back.",
        }
        if not self.peer.can_answer(ELICITATION, params):
            return False
        self._ask(
            InputNeeded(
                server=needed.server,
                tool=self._request.name,
                call_id="",
                method=ELICITATION,
                params=params,
                reply=reply,
                waits=lambda: not answer.done(),
            )
        )
        given = await answer
        return isinstance(given, Mapping) and cast("Json", given).get("action") == "accept"
