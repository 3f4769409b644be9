"""`Console`: a page that shows one runtime at work, as an ASGI application.

It reads from a `Recorder` and from the runtime's own snapshots, and passes actions on to the
runtime, if they are allowed. What servers say leaves as JSON, cut to a size and without the secrets
that the servers were given. It never opens a connection of its own.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from time import time
from typing import Any, Literal, cast

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolkeep._rules.json_schema import SchemaValidator, compile_schema
from toolkeep._version import __version__
from toolkeep.config.fields import thaw
from toolkeep.console.calls import CallRecord
from toolkeep.console.guard import Authenticate, Guard, Refused, SecureHeaders, ask
from toolkeep.console.recorder import MAX_CALLS, Change, Recorder
from toolkeep.console.values import MAX_VALUE, cut_redacted, dump
from toolkeep.console.views import (
    KINDS,
    catalogue_json,
    find_item,
    latency_json,
    server_json,
    session_json,
    whole_item_json,
)
from toolkeep.console.wire import STREAMED_BODY
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, InvalidArguments, NotOffered, ToolkeepError, UnknownServer
from toolkeep.runtime import Runtime

logger = logging.getLogger("toolkeep.console")

STATIC = Path(__file__).with_name("static")
MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

MAX_BODY = 1024 * 1024
MAX_RUNNING = 16
"""Calls that the page may have running at once."""
MAX_STREAMS = 32
BATCH_INTERVAL = 0.1
"""Seconds between two batches of a stream, at least."""
KEEP_ALIVE = 15.0
STREAM_SECONDS = 20.0
"""Seconds after which a stream ends, and the page opens the next: a web server that shuts down
waits for its responses."""
UNREAD_SECONDS = 10.0
"""Seconds after its end in which a viewer must have read a stream."""
ACTION_TIMEOUT = 300.0

ActionKind = Literal[
    "show", "call", "prompt", "resource", "reconnect", "end session", "answer", "login"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a viewer wants to do, or to see (`show`: arguments and results)."""

    kind: ActionKind
    server: str = ""
    name: str = ""
    """The tool, prompt or resource."""
    principal: str | None = None
    """For whom."""
    request: Request = field(repr=False)
    """The request of the browser."""


AllowCalls = bool | Callable[[Action], bool | Awaitable[bool]]


class Console:
    """An ASGI application with the page of one runtime. Mount it, or let `Runtime.serve_console`
    serve it.

    `allow_calls`: whether the page may act and show arguments and results; a function decides for
    each `Action`. `token`: opens the page (default: a new one for each start; see `link`).
    `authenticate` replaces the token: the embedding application's own check of each request.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        allow_calls: AllowCalls = False,
        token: str | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._runtime, self._allow_calls = runtime, allow_calls
        self.token = token or secrets.token_urlsafe(32)
        """What opens the page."""
        self._guard = Guard(self.token, authenticate)
        self._streams: list[Recorder] = []
        """What each open stream reads from."""
        self._is_closed = False
        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/callback", self._login_callback),
            *(
                Route(f"/api/{path}", partial(self._answer, handler), methods=[method])
                for method, path, handler in self._routes()
            ),
            Route("/api/login", partial(self._answer, self._log_in, login=True), methods=["POST"]),
            Route("/api/events", self._events),
        ]
        self._app = SecureHeaders(Starlette(routes=routes))

    def __repr__(self) -> str:
        return f"<Console of {self._runtime!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the event streams: the server of the page ends."""
        self._is_closed = True
        for recorder in self._streams:
            recorder.next_version()  # wakes its viewers

    def link(self, url: str) -> str:
        """The link that opens the page, for the URL at which it is served. Keep it secret."""
        return f"{url.rstrip('/')}/#token={self.token}"

    def _routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "state", self._state),
            ("GET", "calls/{id}", self._call),
            ("GET", "ticks", self._ticks),
            ("GET", "catalogue", self._catalogue),
            ("GET", "item", self._item),
            ("GET", "changes", self._changes),
            ("GET", "changes/{id:int}", self._change),
            ("GET", "sessions", self._sessions),
            ("GET", "latency", self._latency),
            ("GET", "wire", self._wire),
            ("GET", "wire/{id:int}", self._exchange),
            ("GET", "servers/{name}/wire.jsonl", self._wire_lines),
            ("POST", "check", self._check),
            ("POST", "call", self._make_call),
            ("POST", "calls/{id}/cancel", self._cancel_call),
            ("POST", "prompt", self._prompt),
            ("POST", "resource", self._resource),
            ("POST", "servers/{name}/reconnect", self._reconnect),
            ("POST", "servers/{name}/login", self._begin_login),
            ("POST", "servers/{name}/trace", self._trace),
            ("POST", "sessions/{id:path}/end", self._end_session),
            ("POST", "questions/{id}", self._answer_question),
        ]

    @property
    def _recorder(self) -> Recorder:
        return self._runtime.component(Recorder)

    # -- every request --------------------------------------------------------------------------

    async def _answer(self, handler: Handler, request: Request, login: bool = False) -> Response:
        """Check a request, run its handler, and turn errors into answers."""
        try:
            self._guard.check_origin(request)
            if not login:
                await self._guard.check_login(request)
            body = await _read_body(request) if request.method == "POST" else {}
            async with asyncio.timeout(ACTION_TIMEOUT):
                found = await handler(request, body)
            return found if isinstance(found, Response) else to_json(found)
        except Exception as error:
            return self._error_response(error)

    def _error_response(self, error: Exception) -> Response:
        match error:
            case Refused():
                refused = error
            case InvalidArguments():
                problems = list(error.problems)
                refused = Refused(400, "InvalidArguments", str(error), problems=problems)
            case ConfigError():
                refused = Refused(400, "ConfigError", str(error))
            case UnknownServer() | NotOffered():
                refused = Refused(404, type(error).__name__, str(error))
            case ToolkeepError():
                delivery, status = error.delivery.value, error.status
                refused = Refused(
                    502, type(error).__name__, str(error), delivery=delivery, status=status
                )
            case TimeoutError():
                refused = Refused(504, "TimedOut", "it took too long, and was given up")
            case ClientDisconnect():
                refused = Refused(400, "Disconnected", "the browser went away")
            case _:
                logger.exception("a request of the console failed")
                refused = Refused(500, type(error).__name__, "the console failed; see the log")
        message, remedy = self._message(error, refused.message), refused.remedy or None
        told = {"type": refused.kind, "message": message, "remedy": remedy, **refused.more}
        return to_json({"error": told}, status=refused.http_status)

    def _message(self, error: Exception, text: str) -> str:
        server = getattr(error, "server", None)
        return (self._runtime.redact(server, text) if isinstance(server, str) else text)[:2000]

    async def _require(self, request: Request, kind: ActionKind, **about: Any) -> None:
        """Raises `Refused` unless this action is allowed."""
        if not await self._allows(request, kind, **about):
            remedy = "Start it with --allow-calls, or give Console(allow_calls=…)"
            raise Refused(403, "NotAllowed", "this console only shows; it may not act", remedy)

    async def _allows(self, request: Request, kind: ActionKind, **about: Any) -> bool:
        decide = self._allow_calls
        if isinstance(decide, bool):
            return decide
        return await ask(lambda: decide(Action(kind=kind, request=request, **about)))

    # -- the page -------------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        return self._file(request, "index.html")

    async def _static(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        """A file of the page. It holds nothing secret, so no login is needed."""
        try:
            self._guard.check_origin(request)
        except Refused as refused:
            return self._error_response(refused)
        return static_file(request, name)

    async def _log_in(self, request: Request, body: Body) -> Response:
        return self._guard.log_in(request, body.get("token"))

    # -- the event stream -----------------------------------------------------------------------

    async def _events(self, request: Request) -> ASGIApp:
        try:
            self._guard.check_origin(request)
            await self._guard.check_login(request)
            values, recorder = await self._allows(request, "show"), self._recorder
            if len(self._streams) >= MAX_STREAMS:
                raise Refused(429, "TooMany", "too many pages are open")
        except Exception as error:
            return self._error_response(error)
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        stream = self._stream(recorder, given, values=values)
        headers = {"x-accel-buffering": "no"}
        response = StreamingResponse(stream, media_type="text/event-stream", headers=headers)
        return partial(self._send_events, recorder, response)

    async def _send_events(
        self, recorder: Recorder, response: Response, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send a stream, as long as its viewer reads it."""
        self._streams.append(recorder)
        try:
            with recorder.viewing(self._runtime):
                async with asyncio.timeout(STREAM_SECONDS + UNREAD_SECONDS):
                    await response(scope, receive, send)
        except TimeoutError:
            logger.warning("a page of the console does not read its events; it is disconnected")
        finally:
            self._streams.remove(recorder)

    async def _stream(
        self, recorder: Recorder, last_id: str, *, values: bool
    ) -> AsyncGenerator[str]:
        instance, _, number = last_id.partition("-")
        resumed = instance == recorder.instance and number.isdecimal() and len(number) < 16
        version, first = int(number) if resumed else 0, True
        loop = asyncio.get_running_loop()
        end = loop.time() + STREAM_SECONDS
        hello = {"process": self._process(recorder), "resumed": resumed}
        yield f"retry: 500\n{sse('hello', hello)}"
        if last_id and not resumed:
            yield sse("gap", {"missed": None, "reason": "restart"})
        while loop.time() < end and not (recorder.is_closed or self._is_closed):
            batch = recorder.batch(version, values=values, first=first)
            first = False
            event_id = f"{recorder.instance}-{batch.version}"
            if batch.gap is not None:
                yield sse("gap", batch.gap, event_id)
            if batch.data:
                yield sse("batch", batch.data, event_id)
            version = batch.version
            await asyncio.sleep(BATCH_INTERVAL)
            if batch.is_complete and recorder.version <= version:
                left = min(KEEP_ALIVE, max(end - loop.time(), 0.0))
                await recorder.wait_changed(version, left)
                if recorder.version <= version:
                    yield ": keep-alive\n\n"
        if recorder.is_closed or self._is_closed:
            yield sse("end", {"reason": "closing"})

    def _process(self, recorder: Recorder) -> dict[str, Any]:
        return {
            "instance": recorder.instance,
            "pid": os.getpid(),
            "started": _STARTED,
            "program": Path(sys.argv[0] or "python").name,
            "version": __version__,
            "now": time(),
        }

    # -- what is there --------------------------------------------------------------------------

    async def _state(self, request: Request, body: Body) -> object:
        recorder, runtime = self._recorder, self._runtime
        values = await self._allows(request, "show")
        traced = recorder.wire.servers
        servers = [
            server_json(one, partial(runtime.redact, one.name), traced=one.name in traced)
            for one in runtime.servers
        ]
        return {
            "process": self._process(recorder),
            "allowed": self._allow_calls is not False,
            "summary": runtime.summary(),
            "revision": runtime.catalogue.revision,
            "recording_since": recorder.since,
            "servers": servers,
            "questions": recorder.questions(values=values),
            "limits": {"calls": MAX_CALLS, "value_bytes": MAX_VALUE},
        }

    async def _call(self, request: Request, body: Body) -> object:
        record = self._recorder.calls.get(request.path_params["id"])
        if record is None:
            remedy = f"The last {MAX_CALLS} calls are kept"
            raise Refused(404, "UnknownCall", "this call is not known any more", remedy)
        values = request.query_params.get("values") == "1"
        if values:
            await self._require(request, "call" if record.console else "show", **call_facts(record))
        return record.detail(partial(self._runtime.redact, record.server), values=values)

    async def _ticks(self, request: Request, body: Body) -> object:
        return {"ticks": list(self._recorder.ticks)}

    async def _latency(self, request: Request, body: Body) -> object:
        return latency_json(self._runtime, request.query_params.get("server"))

    async def _sessions(self, request: Request, body: Body) -> object:
        sessions = self._runtime.sessions
        shown = [session_json(one) for one in sessions[:MAX_CALLS]]
        return {"sessions": shown, "dropped": len(sessions) - len(shown)}

    async def _catalogue(self, request: Request, body: Body) -> object:
        query = request.query_params
        return catalogue_json(
            self._runtime,
            _kind(query),
            query=query.get("q", "")[:200],
            server=query.get("server", ""),
            tag=query.get("tag", ""),
            offset=_number(query, "offset", 0),
            limit=_number(query, "limit", 100),
            changed_at=self._recorder.changed_at(),
        )

    async def _item(self, request: Request, body: Body) -> object:
        query = request.query_params
        item = find_item(self._runtime.catalogue, _kind(query), query.get("name", ""))
        if item is None:
            raise Refused(404, "NotOffered", "no server offers this now")
        redact = partial(self._runtime.redact, item.server)
        return whole_item_json(item, redact, whole=query.get("whole") == "1")

    async def _changes(self, request: Request, body: Body) -> object:
        query, changes = request.query_params, list(self._recorder.changes)[::-1]
        offset = _number(query, "offset", 0)
        page = changes[offset : offset + min(_number(query, "limit", 100), 200)]
        return {"total": len(changes), "changes": [self._change_json(one) for one in page]}

    async def _change(self, request: Request, body: Body) -> object:
        number = request.path_params["id"]
        for change in self._recorder.changes:
            if change.facts["id"] == number:
                return self._change_json(change, whole=True)
        raise Refused(404, "UnknownChange", "this change is not known any more")

    def _change_json(self, change: Change, *, whole: bool = False) -> dict[str, Any]:
        return change.as_dict(partial(self._runtime.redact, change.server), whole=whole)

    # -- the wire -------------------------------------------------------------------------------

    async def _wire(self, request: Request, body: Body) -> object:
        values = await self._allows(request, "show")
        found = self._recorder.wire.of(request.query_params.get("server", ""))
        return {"exchanges": [one.as_dict(limit=STREAMED_BODY, values=values) for one in found]}

    async def _exchange(self, request: Request, body: Body) -> object:
        found = self._recorder.wire.find(request.path_params["id"])
        if found is None:
            raise Refused(404, "UnknownExchange", "this exchange is not known any more")
        return found.as_dict(values=await self._allows(request, "show", server=found.server))

    async def _wire_lines(self, request: Request, body: Body) -> object:
        server = request.path_params["name"]
        values = await self._allows(request, "show", server=server)
        found = self._recorder.wire.of(server)
        # Megabytes: not in the event loop.
        lines = await asyncio.to_thread(lambda: [dump(one.as_dict(values=values)) for one in found])
        headers = {"content-disposition": 'attachment; filename="wire.jsonl"'}
        text = "".join(f"{line}\n" for line in lines)
        return Response(text, media_type="application/jsonl", headers=headers)

    async def _trace(self, request: Request, body: Body) -> object:
        if self._recorder.since is None:
            raise Refused(409, "NotFollowed", "no open page follows the events")
        self._recorder.trace(request.path_params["name"], on=body.get("on") is True)
        return Response(status_code=204)

    # -- actions --------------------------------------------------------------------------------

    async def _check(self, request: Request, body: Body) -> object:
        """What is wrong with arguments, as the call itself would say it. Nothing is sent."""
        item = find_item(self._runtime.catalogue, "tools", _text(body, "name"))
        if item is None:
            raise Refused(404, "NotOffered", "no server offers this now")
        schema = thaw(cast("Any", item.definition).input_schema)
        found = compiled(dump(schema)).check(_mapping(body, "arguments"))
        return {"problems": list(found.problems)}

    async def _make_call(self, request: Request, body: Body) -> object:
        name, principal = _text(body, "name"), _principal(body)
        server = name.partition(".")[0]
        await self._require(request, "call", server=server, name=name, principal=principal)
        arguments, timeout = _mapping(body, "arguments"), body.get("timeout")
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 3600):
            raise Refused(400, "BadRequest", "timeout must be seconds, from 0 to 3600")
        recorder = self._recorder
        if len(recorder.console_calls) >= MAX_RUNNING:
            raise Refused(429, "TooMany", f"{MAX_RUNNING} calls of this page are running")
        loop = asyncio.get_running_loop()
        started: asyncio.Future[str] = loop.create_future()

        async def run() -> None:
            context = CallContext(principal=principal) if principal else None
            running = self._runtime.stream(name, arguments, context=context, timeout=timeout)
            with recorder.viewing(self._runtime):
                async with running:
                    async for event in running:
                        if not started.done():
                            recorder.mark_console(task, event.call_id)
                            started.set_result(event.call_id)
                    await running.result()

        task = loop.create_task(run())
        recorder.console_calls[task] = ""
        task.add_done_callback(lambda _: recorder.console_calls.pop(task))
        task.add_done_callback(_retrieve)
        try:
            await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not started.done():
                task.cancel()
        if not started.done():  # it failed before it had an id
            task.result()
        return to_json({"id": started.result()}, status=202)

    async def _cancel_call(self, request: Request, body: Body) -> object:
        number, recorder = request.path_params["id"], self._recorder
        record = recorder.calls.get(number)
        found = [task for task, of in recorder.console_calls.items() if of == number]
        if not found or record is None:
            raise Refused(404, "UnknownCall", "no running call of this page has this id")
        await self._require(request, "call", **call_facts(record))
        found[0].cancel()
        return Response(status_code=204)

    async def _prompt(self, request: Request, body: Body) -> object:
        name, principal = _text(body, "name"), _principal(body)
        server = name.partition(".")[0]
        await self._require(request, "prompt", server=server, name=name, principal=principal)
        context = CallContext(principal=principal) if principal else None
        result = await self._runtime.get_prompt(name, _mapping(body, "arguments"), context=context)
        return self._result(server, result)

    async def _resource(self, request: Request, body: Body) -> object:
        uri, principal = _text(body, "uri"), _principal(body)
        server = _text(body, "server") if body.get("server") else ""
        await self._require(request, "resource", server=server, name=uri, principal=principal)
        context = CallContext(principal=principal) if principal else None
        found = self._runtime.read_resource(uri, server=server or None, context=context)
        return self._result(server, await found)

    def _result(self, server: str, result: Any) -> dict[str, Any]:
        raw = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        redact = partial(self._runtime.redact, server)
        shown, truncated = cut_redacted(raw, redact, 4 * MAX_VALUE)
        return {"result": shown, "truncated": truncated}

    async def _reconnect(self, request: Request, body: Body) -> object:
        server = request.path_params["name"]
        await self._require(request, "reconnect", server=server)
        status = self._status(server)
        await self._runtime.reconnect(server, failed_only=status.error is not None)
        redact = partial(self._runtime.redact, server)
        traced = server in self._recorder.wire.servers
        return {"server": server_json(self._status(server), redact, traced=traced)}

    def _status(self, server: str) -> Any:
        for status in self._runtime.servers:
            if status.name == server:
                return status
        raise UnknownServer(f"there is no server {server[:200]!r}")

    async def _begin_login(self, request: Request, body: Body) -> object:
        server = request.path_params["name"]
        await self._require(request, "login", server=server)
        self._status(server)
        login = await self._runtime.begin_login(server, redirect_uri=_callback_url(request))
        return {"url": login.url}

    async def _login_callback(self, request: Request) -> Response:
        """Where the browser comes back to. It comes from another site, so without our cookie: what
        protects this is the state of the login that was begun."""
        try:
            self._guard.check_origin(request)
            async with asyncio.timeout(ACTION_TIMEOUT):
                login = await self._runtime.complete_login(str(request.url), principal=None)
        except Refused as refused:
            return self._error_response(refused)
        except (ToolkeepError, TimeoutError) as error:
            reason = self._message(error, str(error) or "it took too long")
            return PlainTextResponse(f"The login failed: {reason}", status_code=400)
        return PlainTextResponse(f"Logged in to {login.server}. You can close this tab.")

    async def _end_session(self, request: Request, body: Body) -> object:
        number = request.path_params["id"]
        for session in self._runtime.sessions:
            if session_json(session)["id"] == number and not session.is_own:
                about = {"server": session.server, "principal": session.principal}
                await self._require(request, "end session", **about)
                if await self._runtime.end_session(session):
                    return Response(status_code=204)
        raise Refused(404, "UnknownSession", "this session is gone, or cannot be ended")

    async def _answer_question(self, request: Request, body: Body) -> object:
        question = self._recorder.question(request.path_params["id"])
        if question is None:
            raise Refused(404, "UnknownQuestion", "this question is not known any more")
        await self._require(request, "answer", server=question.server, name=question.tool)
        if not question.is_open:
            raise Refused(409, "Answered", "this question does not wait for an answer any more")
        match body.get("action"):
            case None if "result" in body:
                question.respond(_mapping(body, "result"))
            case "accept":
                question.accept(_mapping(body, "content") if "content" in body else None)
            case "decline":
                question.decline()
            case "cancel":
                question.respond({"action": "cancel"})
            case _:
                raise Refused(400, "BadRequest", "give an action (accept, decline) or a result")
        return Response(status_code=204)


@lru_cache(maxsize=16)
def compiled(schema: str) -> SchemaValidator:
    """A validator that is kept for the next check of a form."""
    return compile_schema(json.loads(schema), what="arguments")


@lru_cache(maxsize=64)
def _packed(name: str, changed: int) -> tuple[bytes, str]:
    """A file of the page, compressed, and its ETag."""
    whole = (STATIC / name).read_bytes()
    return gzip.compress(whole), f'"{hashlib.sha256(whole).hexdigest()[:32]}"'


def static_file(request: Request, name: str) -> Response:
    path = STATIC / name
    media_type = MEDIA_TYPES.get(path.suffix)
    if media_type is None or path.parent != STATIC or not path.is_file():
        return PlainTextResponse("there is no such file", status_code=404)
    packed, tag = _packed(name, path.stat().st_mtime_ns)
    headers = {"cache-control": "no-cache", "etag": tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type=media_type, headers=headers)
    headers["content-encoding"] = "gzip"
    return Response(packed, media_type=media_type, headers=headers)


Body = dict[str, Any]
Handler = Callable[[Request, Body], Awaitable[object]]
_STARTED = time()


def to_json(value: object, status: int = 200) -> Response:
    return Response(dump(value), status_code=status, media_type="application/json")


def sse(event: str, data: Mapping[str, Any], event_id: str = "") -> str:
    number = f"id: {event_id}\n" if event_id else ""
    return f"{number}event: {event}\ndata: {dump(data)}\n\n"


def call_facts(record: CallRecord) -> dict[str, str | None]:
    """What an `Action` says of a call."""
    name = f"{record.server}.{record.tool}"
    return {"server": record.server, "name": name, "principal": record.principal}


def _retrieve(task: asyncio.Task[Any]) -> None:
    """How the call ended is in the recorder."""
    if not task.cancelled():
        task.exception()


def _callback_url(request: Request) -> str:
    root = request.scope.get("root_path", "")
    return f"{request.url.scheme}://{request.url.netloc}{root}/callback"


# -- reading requests ---------------------------------------------------------------------------


async def _read_body(request: Request) -> Body:
    """The JSON object of a POST. Raises `Refused`."""
    read = b""
    async for chunk in request.stream():
        read += chunk
        if len(read) > MAX_BODY:
            raise Refused(413, "TooLarge", f"a body may have {MAX_BODY} bytes")
    try:
        found: Any = json.loads(read or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "BadRequest", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "BadRequest", "the body must be a JSON object")
    return cast("Body", found)


def _text(body: Body, key: str) -> str:
    found = body.get(key)
    if not isinstance(found, str) or not found:
        raise Refused(400, "BadRequest", f"{key} must be a text")
    return found


def _principal(body: Body) -> str | None:
    return _text(body, "principal") if body.get("principal") else None


def _mapping(body: Body, key: str) -> dict[str, Any]:
    found = body.get(key, {})
    if not isinstance(found, dict):
        raise Refused(400, "BadRequest", f"{key} must be an object")
    return cast("dict[str, Any]", found)


def _kind(query: QueryParams) -> str:
    kind = query.get("kind", "tools")
    if kind not in KINDS:
        raise Refused(400, "BadRequest", f"kind must be one of {', '.join(KINDS)}")
    return kind


def _number(query: QueryParams, key: str, default: int) -> int:
    found = query.get(key, "")
    if not found:
        return default
    if not found.isdecimal() or len(found) > 9:
        raise Refused(400, "BadRequest", f"{key} must be a number")
    return int(found)
