"""`HttpEndpoint`: the MCP endpoint of a gateway, streamable HTTP in both eras, as raw ASGI.

Checks a request before it reads its body, reads that within a bound, and finds the era, the caller
and the session; `McpServer` does the rest. A result is answered as JSON, or as an event stream from
the first thing that comes before it. In the legacy era a client that leaves does not end its call:
what the call sends is kept, so that the client can come back for it. In the modern era it does.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from time import time
from typing import Any, cast
from urllib.parse import urlsplit

from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least
from pydantic_core import from_json, to_json

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.protocol_headers import METHOD_HEADER, NAME_HEADER, param_headers
from toolkeep.config.fields import is_loopback
from toolkeep.config.gateway import GatewaySettings
from toolkeep.errors import StoreUnavailable
from toolkeep.gateway.access import Access, Caller, Denied
from toolkeep.gateway.errors import (
    CANCELLED,
    FORBIDDEN,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
    unavailable,
)
from toolkeep.gateway.offer import Offer, declared_headers
from toolkeep.gateway.protocol import (
    Exchange,
    Json,
    Peer,
    check_mirrored,
    check_param_headers,
    initialize_peer,
    is_modern_version,
    meta_of,
    modern_peer,
    unsupported_version,
)
from toolkeep.gateway.questions import Questions
from toolkeep.gateway.replicas import GatewayStore, Replicas
from toolkeep.gateway.server import McpServer
from toolkeep.gateway.sessions import Session, Sessions
from toolkeep.gateway.streams import (
    KEEP_ALIVE,
    Changes,
    EventLog,
    Listener,
    Send,
    SseStream,
    opening,
)

__all__ = ["HttpEndpoint", "respond"]

logger = logging.getLogger("toolkeep.gateway")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Scope = Mapping[str, Any]
Headers = dict[str, str]

BODY_WITHIN = 30.0
"""Seconds for the body of a request to arrive."""
WATCH_AFTER = 0.02
"""Seconds after which a modern request is watched for its client to leave. Most end before."""
MAX_LISTENING = 86_400.0
"""Seconds after which a notification stream ends, and its client opens the next one."""
MAX_HEADERS = 32 * 1024
"""Bytes of all headers of a request."""
MAX_REQUEST_ID = 1000
"""Characters of the id of a request. It is logged, kept for lost streams, and told to replicas."""

SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
_ROUTING = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)
_SINGLE = ("authorization", "host", "origin", "content-type", "last-event-id")
"""Headers that a request may have once. A proxy that checks another one than the gateway would
check nothing. The same holds for all `Mcp-*`."""
_HOST = re.compile(r"(?:\[([0-9a-f:.%]*)\]|([^:/@\[\]]*))(?::[0-9]*)?")
_LISTEN_ID = "listen."
_IN_SESSION = (INVALID_PARAMS, METHOD_NOT_FOUND, INTERNAL_ERROR)
"""Errors of methods, which legacy clients expect with HTTP 200."""
_CORS = {
    "access-control-allow-methods": "POST, GET, DELETE",
    "access-control-allow-headers": "authorization, content-type, accept, last-event-id, "
    f"{SESSION_HEADER}, {', '.join(_ROUTING)}",
    "access-control-max-age": "600",
}


async def respond(
    send: Send, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole HTTP response."""
    given = {"content-length": str(len(body)), **(headers or {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


class HttpExchange(Exchange):
    """One request over HTTP, and its answer. Belongs to the task that serves it."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        peer: Peer,
        request_id: str | int,
        headers: Headers,
        receive: Receive,
        send: Send,
        cors: Mapping[str, str],
    ) -> None:
        self.peer, self.request_id, self.headers = peer, request_id, headers
        self._endpoint, self._receive, self._send, self._cors = endpoint, receive, send, cors
        self.can_stream = accepts(headers, "text/event-stream")
        self._stream: SseStream | None = None
        self._writer: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.is_cancelled = self.has_left = False
        """Whether the client has cancelled the request, or no answer can reach it any more."""
        self._task = asyncio.current_task()

    # -- while it runs --------------------------------------------------------------------------

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self.can_stream:
            self._timers.append(loop.call_later(KEEP_ALIVE, self.open_stream))
        if self.peer.modern:
            self._timers.append(loop.call_later(WATCH_AFTER, self._watch))

    def cancel(self) -> None:
        """The client has cancelled it."""
        if self._task is not None:
            self.is_cancelled = True
            self._task.cancel()

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        if self.can_stream:
            self._put({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        session = self.peer.session
        if session is None:
            return await super().ask(method, params)
        return await self._endpoint.questions.ask(session, self._put, method, params)

    def check_call(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        if not self.peer.modern:
            return
        declared = declared_headers(tool)
        if declared:
            given = param_headers(declared, arguments)
            wanted = {header: given.get(header) for header in declared.values()}
            check_param_headers(self.headers, wanted, arguments)

    def _put(self, message: Mapping[str, Any]) -> None:
        self.open_stream().put(to_json(message, inf_nan_mode="null"))

    def open_stream(self) -> SseStream:
        """The event stream of the answer, from now on."""
        if self._stream is None:
            endpoint, session = self._endpoint, self.peer.session
            log = None
            if session is not None:
                log = EventLog.new(endpoint.store, session.id, endpoint.replicas.id)
            self._stream = SseStream(
                self._send,
                max_bytes=endpoint.settings.limits.stream_bytes,
                headers=[(k.encode(), v.encode()) for k, v in self._cors.items()],
                log=log,
                prime=session is not None and is_version_at_least(self.peer.version, "2025-11-25"),
                on_cut=self.leave if self.peer.modern else None,
            )
            entry = opening(self.request_id) if log is not None else None
            loop = asyncio.get_running_loop()
            writing = endpoint.write(self._stream, entry, self.peer.caller)
            self._writer = loop.create_task(writing)
        return self._stream

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait_left())

    async def _wait_left(self) -> None:
        await client_left(self._receive)
        self.leave()

    def leave(self) -> None:
        """Cancel it without an answer: there is no client any more, or no gateway."""
        if self._task is not None:
            self.has_left = True
            self._task.cancel()

    # -- the answer -----------------------------------------------------------------------------

    async def finish(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with a whole JSON-RPC response."""
        self._task = None  # what comes now is too late to cancel it
        if self._stream is None:
            kind = {"content-type": "application/json", **self._cors, **(headers or {})}
            await respond(self._send, status, body, kind)
            return
        self._stream.put(body)
        self._stream.close()
        assert self._writer is not None
        await asyncio.wait((self._writer,))

    async def end(self) -> None:
        """Stop everything that belongs to it."""
        for timer in self._timers:
            timer.cancel()
        tasks = [one for one in (self._watcher, self._writer) if one is not None and not one.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class HttpEndpoint:
    """Streamable HTTP of one gateway. Its owner is `Gateway`, which gives it what it needs."""

    def __init__(
        self,
        server: McpServer,
        *,
        settings: GatewaySettings,
        access: Access,
        sessions: Sessions,
        questions: Questions,
        changes: Changes,
        store: GatewayStore,
        replicas: Replicas,
    ) -> None:
        self.settings, self.access = settings, access
        self.store, self.replicas, self.questions = store, replicas, questions
        self._server, self._sessions, self._changes = server, sessions, changes
        self.is_draining = False
        self._exchanges: set[HttpExchange] = set()
        """Requests in work."""
        self._running: dict[tuple[str, str | int], HttpExchange] = {}
        """Those of legacy sessions, which can be cancelled by their ids."""
        self._streams: dict[SseStream, str | None] = {}
        """The open streams, with their principals."""
        self._listening: dict[str, SseStream] = {}
        """The notification stream of each session that has one here."""
        self._posts: Counter[str | None] = Counter()
        """Messages that are read, in work or being answered, by principal."""
        replicas.hear("cancel", self._on_cancel)

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    @property
    def message_count(self) -> int:
        """Messages that are read, in work or being answered."""
        return self._posts.total()

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, offer: Offer, profile: str
    ) -> None:
        """Serve one request to the path of a profile."""
        headers = decode_headers(scope)
        if headers is None:
            await respond(send, 431)
            return
        verb, caller = scope["method"], None
        cors: Mapping[str, str] = {}
        try:
            cors = self.check_origin(scope, headers)
            if verb == "OPTIONS" and cors:
                await respond(send, 204, headers={**cors, **_CORS})
                return
            modern = is_modern_version(headers.get(VERSION_HEADER))
            if verb not in ("POST", "GET", "DELETE") or (modern and verb != "POST"):
                allowed = "POST" if modern else "POST, GET, DELETE"
                await respond(send, 405, headers={"allow": allowed})
                return
            caller = await self.access.authenticate(headers)
            if verb == "POST":
                with self._admitted(caller.principal):
                    await self._post(headers, receive, send, caller, profile, cors)
            elif verb == "GET":
                await self._get(headers, receive, send, caller, profile, offer, cors)
            else:
                session = await self._session(headers, caller, profile)
                await self._end_session(session)
                await respond(send, 200, headers=cors)
        except Denied as denied:
            error = RpcError(denied.code, denied.message, status=denied.status)
            self._server.record_refusal(None, verb, profile, denied)
            await send_error(send, error, None, {**cors, **denied.headers})
        except StoreUnavailable:
            await send_error(send, unavailable("the store cannot be used now"), None, cors)
        except RpcError as error:
            self._server.record_refusal(caller, verb, profile, error)
            await send_error(send, error, None, cors)
        except Exception:
            logger.exception("a request failed in the gateway")
            error = RpcError(INTERNAL_ERROR, "the gateway failed", status=500)
            with suppress(RuntimeError):  # the answer has begun
                await send_error(send, error, None, cors)

    # -- checks before the body -----------------------------------------------------------------

    def check_origin(self, scope: Scope, headers: Headers) -> dict[str, str]:
        """Refuse pages that reach a local gateway through a name of their own (DNS rebinding),
        pages that are not allowed, and requests that say twice who they are from. Returns the
        headers by which a browser lets a page read the answer."""
        check_single(scope)
        settings, host = self.settings, _host_of(headers.get("host", ""))
        server = scope.get("server") or ("", None)
        is_local = is_loopback(str(server[0]).strip("[]")) or not server[1]
        allowed = {one.lower() for one in settings.allowed_hosts}
        if settings.jwt is not None:
            allowed.add(urlsplit(settings.jwt.public_url).hostname or "")
        whole = headers.get("host", "").lower()
        known = host in allowed or whole in allowed or "*" in allowed
        local_name = is_local and is_loopback(host)
        if (allowed or is_local) and not known and not local_name:
            text = f"the host {whole[:100]!r} is not allowed; add it to allowed_hosts"
            raise RpcError(FORBIDDEN, text)
        origin = headers.get("origin")
        if origin is None:
            return {}
        place = origin.partition("://")[2].lower()
        named = _host_of(place)
        same = named != "" and place == whole
        if not (same or origin in settings.allowed_origins or (is_local and is_loopback(named))):
            text = f"the origin {origin[:100]!r} is not allowed; add it to allowed_origins"
            raise RpcError(FORBIDDEN, text)
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": f"{SESSION_HEADER}, www-authenticate",
            "vary": "origin",
        }

    async def _session(self, headers: Headers, caller: Caller, profile: str) -> Session:
        text = headers.get(SESSION_HEADER)
        if text is None:
            why = "the request has no Mcp-Session-Id: send initialize first"
            raise RpcError(INVALID_REQUEST, why)
        return await self._sessions.open(text, caller, profile)

    # -- POST -----------------------------------------------------------------------------------

    @contextmanager
    def _admitted(self, principal: str | None) -> Generator[None]:
        """Count a message from before its body is read until it is answered: both take memory, and
        as long as the client likes. Raises `RpcError` if there are too many."""
        limits, posts = self.settings.limits, self._posts
        if self.message_count >= limits.requests + limits.streams:
            raise unavailable(f"{self.message_count} messages are in work already")
        mine = posts[principal]
        if principal is not None and mine >= 2 * limits.requests_per_principal:
            raise unavailable(f"{mine} messages of this principal are in work already")
        posts[principal] += 1
        try:
            yield
        finally:
            posts[principal] -= 1
            if not posts[principal]:
                del posts[principal]

    async def _post(
        self,
        headers: Headers,
        receive: Receive,
        send: Send,
        caller: Caller,
        profile: str,
        cors: Mapping[str, str],
    ) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RpcError(INVALID_REQUEST, "the body must be application/json", status=415)
        if not accepts(headers, "application/json"):
            raise RpcError(INVALID_REQUEST, "the client must accept application/json", status=406)
        body = await read_body(receive, headers, self.settings.limits.body_bytes)
        message = decode(body)
        method, request_id = message.get("method"), message.get("id")
        params = cast("Json", message.get("params") or {})
        modern = is_modern_version(headers.get(VERSION_HEADER))
        try:
            if "id" not in message or method is None:
                await self._accept(message, headers, caller, profile, modern=modern)
                await respond(send, 202, headers=cors)
                return
            assert isinstance(method, str)
            assert isinstance(request_id, str | int)
            if modern:
                peer = self._modern_peer(headers, method, params, caller, profile)
            elif method == "initialize":
                peer = initialize_peer(params, caller, profile)
            else:
                if "io.modelcontextprotocol/protocolVersion" in meta_of(params):
                    text = f"the header {VERSION_HEADER} does not match the body"
                    raise RpcError(HEADER_MISMATCH, text)
                peer = (await self._session(headers, caller, profile)).peer
        except RpcError as error:
            self._server.record_refusal(caller, str(method or "response"), profile, error)
            shown = request_id if isinstance(request_id, str | int) else None
            await send_error(send, error, shown, cors)
            return
        exchange = HttpExchange(self, peer, request_id, headers, receive, send, cors)
        await self._answer(exchange, method, params)

    def _modern_peer(
        self,
        headers: Headers,
        method: str,
        params: Json,
        caller: Caller,
        profile: str,
    ) -> Peer:
        version = headers[VERSION_HEADER]
        if version not in MODERN_PROTOCOL_VERSIONS:
            raise unsupported_version(version)
        claimed = meta_of(params).get("io.modelcontextprotocol/protocolVersion")
        if isinstance(claimed, str):
            check_mirrored(headers, method, params)
        peer = modern_peer(params, caller, profile)
        if method == "subscriptions/listen" and not accepts(headers, "text/event-stream"):
            raise RpcError(INVALID_REQUEST, "the client must accept text/event-stream", status=406)
        return peer

    async def _accept(
        self, message: Json, headers: Headers, caller: Caller, profile: str, *, modern: bool
    ) -> None:
        """A notification, or the answer to a question."""
        method = message.get("method")
        if modern:
            version = headers[VERSION_HEADER]
            if version not in MODERN_PROTOCOL_VERSIONS:
                raise unsupported_version(version)
            if method is None:
                raise RpcError(INVALID_REQUEST, "a modern client answers in its next request")
            return
        session = await self._session(headers, caller, profile)
        if method is None:
            await self.questions.answered(session, message)
        elif method == "notifications/cancelled":
            params = cast("Json", message.get("params") or {})
            await self._cancel(session, params.get("requestId"))
        else:
            params = cast("Json", message.get("params") or {})
            await self._server.notified(str(method), params, session.peer)

    async def _answer(self, exchange: HttpExchange, method: str, params: Json) -> None:
        """Run one request, and answer it."""
        peer, stream = exchange.peer, None
        key = (peer.session.id, exchange.request_id) if peer.session is not None else None
        if key is not None:
            self._running[key] = exchange
        headers: dict[str, str] = {}
        status = 200
        self._exchanges.add(exchange)
        try:
            exchange.begin()
            if method == "subscriptions/listen":
                stream = self._admit_stream(exchange)
            result = await self._server.handle(method, params, exchange)
            if method == "initialize":
                headers[SESSION_HEADER] = self._sessions.issue(peer)[0]
            body = encode_result(exchange.request_id, result)
        except RpcError as error:
            body, status = error.to_json(exchange.request_id), error.http_status
            headers = error.headers
            if not peer.modern and error.code in _IN_SESSION:
                status = 200
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if exchange.has_left or exchange.is_cancelled:
                assert task is not None
                task.uncancel()
            if exchange.has_left:
                return
            if not exchange.is_cancelled:
                raise
            error = RpcError(CANCELLED, "the request was cancelled")
            body = error.to_json(exchange.request_id)
        finally:
            self._exchanges.discard(exchange)
            if key is not None and self._running.get(key) is exchange:
                del self._running[key]
            if stream is not None:
                self._streams.pop(stream, None)
            if exchange.has_left:
                await exchange.end()
        try:
            await exchange.finish(body, status, headers)
        finally:
            await exchange.end()

    def _admit_stream(self, exchange: HttpExchange) -> SseStream:
        self._check_streams(exchange.peer.caller)
        stream = exchange.open_stream()
        self._streams[stream] = exchange.peer.caller.principal
        return stream

    def _check_streams(self, caller: Caller) -> None:
        """Whether this caller may open one more stream to listen on. Raises `RpcError`."""
        limits, principal = self.settings.limits, caller.principal
        if self.is_draining:
            raise unavailable("the gateway is stopping")
        if len(self._streams) >= limits.streams:
            raise unavailable(f"{len(self._streams)} streams are open already")
        mine = sum(one == principal for one in self._streams.values())
        if principal is not None and mine >= limits.requests_per_principal:
            raise unavailable(f"{mine} streams of this principal are open already")

    async def write(self, stream: SseStream, entry: bytes | None, caller: Caller) -> None:
        """Write the stream of a call until it ends."""
        self._streams[stream] = caller.principal
        try:
            await stream.run(entry)
        finally:
            self._streams.pop(stream, None)

    # -- cancelling -----------------------------------------------------------------------------

    async def _cancel(self, session: Session, request_id: Any) -> None:
        if not is_request_id(request_id):
            return
        running = self._running.get((session.id, request_id))
        if running is not None:
            running.cancel()
        else:
            await self.replicas.tell_all("cancel", [session.id, request_id])

    def _on_cancel(self, about: Any) -> None:
        session, request_id = about
        running = self._running.get((session, request_id))
        if running is not None:
            running.cancel()

    # -- GET and DELETE -------------------------------------------------------------------------

    async def _get(
        self,
        headers: Headers,
        receive: Receive,
        send: Send,
        caller: Caller,
        profile: str,
        offer: Offer,
        cors: Mapping[str, str],
    ) -> None:
        if not accepts(headers, "text/event-stream"):
            why = "the client must accept text/event-stream"
            raise RpcError(INVALID_REQUEST, why, status=406)
        session = await self._session(headers, caller, profile)
        self._check_streams(caller)
        last = headers.get("last-event-id", "")
        resumed = None
        if last and not last.startswith(_LISTEN_ID):
            resumed = EventLog.of(self.store, session.id, last)
            if resumed is None or not await resumed[0].read(0):
                raise RpcError(INVALID_REQUEST, "there is no stream to go on with")
        stream = SseStream(
            send,
            max_bytes=self.settings.limits.stream_bytes,
            headers=[(name.encode(), value.encode()) for name, value in cors.items()],
            prime=False if resumed else f"{_LISTEN_ID}0",
        )
        self._streams[stream] = caller.principal
        expiry = end_with(caller, stream.close)
        leaving = asyncio.get_running_loop().create_task(_close_when_left(receive, stream))
        try:
            if resumed is not None:
                await self._follow(stream, *resumed)
            else:
                await self._listen(stream, session, offer, missed=bool(last))
        finally:
            self._streams.pop(stream, None)
            expiry.cancel()
            leaving.cancel()
            await asyncio.wait((leaving,))

    async def _follow(self, stream: SseStream, log: EventLog, after: int) -> None:
        """The rest of a call's stream."""

        async def read() -> None:
            try:
                async for event_id, entry in log.follow(after, self.replicas):
                    stream.put(entry, event_id=event_id)
                    if stream.is_cut:
                        break
            except StoreUnavailable as error:
                logger.warning("a stream cannot be resumed: %s", error)
            stream.close()

        reading = asyncio.get_running_loop().create_task(read())
        try:
            await stream.run()
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _listen(
        self, stream: SseStream, session: Session, offer: Offer, *, missed: bool
    ) -> None:
        """The notification stream of a session. A newer one takes its place."""
        number = 0

        def send(method: str, params: Json) -> None:
            nonlocal number
            number += 1
            message: Json = {"jsonrpc": "2.0", "method": method}
            if params:
                message["params"] = params
            data = to_json(message)
            stream.put(data, key=data.decode(), event_id=f"{_LISTEN_ID}{number}")

        listener = Listener(session.peer, offer.profile.covers, send)
        before = self._listening.get(session.id)
        if before is not None:
            before.close()
        self._listening[session.id] = stream
        try:
            with self._changes.listening(listener):
                self._changes.on_session(session)
                if missed:
                    listener.tell_missed()
                await stream.run()
        finally:
            if self._listening.get(session.id) is stream:
                del self._listening[session.id]

    def on_session(self, session: Session) -> None:
        """A session has changed, here or at another replica."""
        stream = self._listening.get(session.id)
        if session.ended and stream is not None:
            stream.close()

    async def _end_session(self, session: Session) -> None:
        for (owner, _), exchange in tuple(self._running.items()):
            if owner == session.id:
                exchange.cancel()
        await self._sessions.end(session)

    # -- ending ---------------------------------------------------------------------------------

    def end_listening(self) -> None:
        """End the notification streams."""
        for stream in tuple(self._listening.values()):
            stream.close()

    def stop(self) -> None:
        """Cancel all requests, without an answer: their clients find out that the outcome is
        unknown. End all streams."""
        for exchange in tuple(self._exchanges):
            exchange.leave()
        for stream in tuple(self._streams):
            stream.close()


# -- reading requests -----------------------------------------------------------------------------


def decode_headers(scope: Scope) -> Headers | None:
    """The headers of a request, names in lower case. Of several with one name, the first. None:
    there are too many."""
    found: Headers = {}
    size = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found if size <= MAX_HEADERS else None


def check_single(scope: Scope) -> None:
    """Refuse a request with two of a header that says who or what it is for."""
    seen: set[bytes] = set()
    for raw, _ in scope["headers"]:
        if raw in seen:
            name = raw.decode("latin-1")
            if name in _SINGLE or name.startswith("mcp-"):
                code = HEADER_MISMATCH if name in _ROUTING else INVALID_REQUEST
                raise RpcError(code, f"the header {name[:100]} appears more than once")
        seen.add(raw)


def is_request_id(given: object) -> bool:
    """Whether a request may have this id."""
    if isinstance(given, str):
        return len(given) <= MAX_REQUEST_ID
    return isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63


def accepts(headers: Headers, kind: str) -> bool:
    """Whether the client takes answers of this type. Without `Accept` it takes all."""
    given = headers.get("accept", "*/*").lower()
    family = kind.partition("/")[0]
    return any(one in given for one in (kind, f"{family}/*", "*/*"))


def _host_of(text: str) -> str:
    """The name of a Host header, without its port. Empty: it is malformed."""
    found = _HOST.fullmatch(text.lower())
    return (found[1] or found[2] or "") if found else ""


async def read_body(receive: Receive, headers: Headers, most: int) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RpcError(INVALID_REQUEST, "the client has left")
                part = cast("bytes", message.get("body", b""))
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        text = f"the body did not arrive within {BODY_WITHIN:g} s"
        raise RpcError(INVALID_REQUEST, text, status=408) from None


def _too_large(most: int) -> RpcError:
    text = f"the body has more than {most} bytes, the limit of this gateway"
    return RpcError(INVALID_REQUEST, text, status=413)


def decode(body: bytes) -> Json:
    """The one JSON-RPC message of a body. Raises `RpcError`."""
    try:
        found: Any = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise RpcError(PARSE_ERROR, "the body is not JSON") from None
    if isinstance(found, list):
        raise RpcError(INVALID_REQUEST, "batches are not supported: send one message")
    if not isinstance(found, dict):
        raise RpcError(INVALID_REQUEST, "the body is not a JSON-RPC message")
    message = cast("Json", found)
    method, params = message.get("method"), message.get("params")
    is_message = (isinstance(method, str) and method) or (
        method is None and ("result" in message) != ("error" in message)
    )
    has_id = is_request_id(message.get("id", 0))
    if message.get("jsonrpc") != "2.0" or not is_message or not has_id:
        raise RpcError(INVALID_REQUEST, "the body is not a JSON-RPC message")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "params must be an object")
    return message


def encode_result(request_id: str | int, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + to_json(request_id) + b',"result":' + result + b"}"


async def send_error(
    send: Send, error: RpcError, request_id: str | int | None, headers: Mapping[str, str]
) -> None:
    kind = {"content-type": "application/json", **headers, **error.headers}
    await respond(send, error.http_status, error.to_json(request_id), kind)


def end_with(caller: Caller, end: Callable[[], None]) -> asyncio.TimerHandle:
    """Call `end` when the credential of the caller does not count any more."""
    left = MAX_LISTENING if caller.expires is None else max(0.0, caller.expires - time())
    return asyncio.get_running_loop().call_later(min(left, MAX_LISTENING), end)


async def client_left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close_when_left(receive: Receive, stream: SseStream) -> None:
    with suppress(Exception):
        await client_left(receive)
    stream.close()
