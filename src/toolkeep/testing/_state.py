"""The state of one scripted server, shared by its transports: rules, records, sessions, listeners,
running calls.

A call that takes time runs in a task of its own, which `ServerState` owns: a broken connection does
not end it unless the era says so. What a call sends goes to an `EventLog` and never to a socket, so
a resumed stream reads the rest from the same log. `run_command` is how a test reaches the state,
from this process or from another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from toolkeep.testing import _protocol
from toolkeep.testing._protocol import META, ErrorResponse, encode
from toolkeep.testing.script import (
    Behaviour,
    Cancelled,
    JsonObject,
    Recorded,
    RequestName,
    Rule,
    RuleSet,
    Settings,
    params_of,
)

SUBSCRIPTION_ID = f"{META}subscriptionId"
RESOURCE_UPDATED = "notifications/resources/updated"
_FILTERS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
_CLOSE_TIMEOUT = 5.0


# -- event logs and calls -----------------------------------------------------------------------


class EventLog:
    """The messages of one stream, in order. Written by one producer, read by any number of
    followers.
    """

    __slots__ = ("_waiting", "done", "events", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[bytes] = []
        self.done = False
        self._waiting: set[asyncio.Future[None]] = set()

    def append(self, payload: bytes) -> None:
        self.events.append(payload)
        self._wake()

    def finish(self) -> None:
        self.done = True
        self._wake()

    async def has_event(self, position: int, gone: asyncio.Future[None]) -> bool:
        """Wait for the event at `position`. False when the log ends before it, or when the
        follower's client leaves (`gone`).
        """
        while position >= len(self.events) and not self.done and not gone.done():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await asyncio.wait((change, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting.discard(change)
        return position < len(self.events) and not gone.done()

    def event_id(self, position: int) -> str:
        """Counts from 1, so that an id is also the position to resume from, and 0 can prime a
        stream.
        """
        return f"{self.name}.{position + 1}"

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def parse_event_id(value: str) -> tuple[str, int] | None:
    name, _, position = value.rpartition(".")
    return (name, int(position)) if name and position.isdigit() else None


class Call:
    """One request being answered. Its log holds every notification and, last, the answer."""

    __slots__ = (
        "answer",
        "cache_hints",
        "log",
        "method",
        "modern",
        "request_id",
        "session",
        "status",
        "task",
        "tool",
    )

    def __init__(
        self, message: JsonObject, *, modern: bool, session: str | None, name: str = ""
    ) -> None:
        self.method: str = message["method"]
        self.request_id: Any = message["id"]
        _, self.tool = _protocol.request_name(message)
        self.modern, self.session = modern, session
        self.log = EventLog(name)
        self.answer: bytes = b""
        self.status = 200
        self.cache_hints = _protocol.NO_CACHE
        self.task: asyncio.Task[None] | None = None

    def emit(self, method: str, params: JsonObject) -> None:
        self.log.append(encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def succeed(self, result: JsonObject) -> None:
        if self.modern:
            result = _protocol.modern_result(result, self.method, self.cache_hints)
        self._end({"jsonrpc": "2.0", "id": self.request_id, "result": result})

    def fail(self, error: ErrorResponse) -> None:
        self.status = error.status
        self._end({"jsonrpc": "2.0", "id": self.request_id, "error": error.as_error()})

    def _end(self, message: JsonObject) -> None:
        self.answer = encode(message)
        self.log.append(self.answer)
        self.log.finish()

    async def finish(self, work: Awaitable[JsonObject]) -> None:
        try:
            self.succeed(await work)
        except ErrorResponse as error:
            self.fail(error)
        except asyncio.CancelledError:
            self.fail(ErrorResponse(_protocol.REQUEST_CANCELLED, "Request cancelled"))
            raise
        except Exception as error:  # a server answers with its tool's error
            self.fail(ErrorResponse(-32602, f"{type(error).__name__}: {error}"))


# -- listeners ----------------------------------------------------------------------------------


class MessageSink(Protocol):
    """Where messages to one client go: a stream's log, or a pipe."""

    def append(self, payload: bytes) -> None: ...


@dataclass(eq=False, slots=True)
class Listener:
    """One open stream. `request` is that of a modern listener; None means legacy."""

    sink: MessageSink
    session: str | None = None
    request: JsonObject | None = None
    end: Callable[[bool], None] | None = None
    """Breaks the stream; True: with RST. None: the stream cannot be broken by itself."""
    receives: bool = True
    """False for a stream that is listed only so that `break_streams` finds it."""

    def wants(self, method: str, params: JsonObject) -> bool:
        if self.request is None:
            return self.receives
        if method == RESOURCE_UPDATED:
            return params.get("uri") in self.uris
        return bool(self.request["filter"].get(_FILTERS.get(method, "")))

    @property
    def uris(self) -> list[str]:
        if self.request is None:
            return []
        return self.request["filter"].get("resourceSubscriptions") or []

    def send(self, method: str, params: JsonObject) -> None:
        if self.request is not None:
            meta = {**params.get("_meta", {}), SUBSCRIPTION_ID: self.request["id"]}
            params = {**params, "_meta": meta}
        self.sink.append(encode({"jsonrpc": "2.0", "method": method, "params": params}))


class Listeners:
    """Every listener of one server, and every legacy subscription.

    A legacy stream receives every notification, a modern listener those that it asked for. News of
    a resource go to the clients that subscribed to it.
    """

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self._subscribed: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return sum(listener.receives for listener in self._listeners)

    def add(self, listener: Listener) -> None:
        self._listeners[listener] = None

    def remove(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def subscribe(self, session: str | None, uri: str) -> None:
        self._subscribed.setdefault(session or "", set()).add(uri)

    def unsubscribe(self, session: str | None, uri: str) -> None:
        self._subscribed.get(session or "", set()).discard(uri)

    def clear_subscriptions(self) -> None:
        self._subscribed.clear()

    def subscriptions(self) -> dict[str, list[str]]:
        """By session, and by the id of a modern listener's request."""
        known = {session: set(uris) for session, uris in self._subscribed.items()}
        for listener in self._listeners:
            if listener.request is not None and listener.uris:
                known.setdefault(str(listener.request["id"]), set()).update(listener.uris)
        return {session: sorted(uris) for session, uris in known.items() if uris}

    def notify(self, method: str, params: JsonObject) -> int:
        """Send to every listener that wants it; returns how many."""
        reached = [listener for listener in self._listeners if listener.wants(method, params)]
        for listener in reached:
            listener.send(method, params)
        return len(reached)

    def subscribers(self, uri: str) -> list[Listener]:
        return [listener for listener in self._listeners if self._follows(listener, uri)]

    def _follows(self, listener: Listener, uri: str) -> bool:
        legacy = self._subscribed.get(listener.session or "", ())
        return listener.receives and uri in (legacy if listener.request is None else listener.uris)

    def resource_updated(self, uri: str) -> int:
        reached = self.subscribers(uri)
        for listener in reached:
            listener.send(RESOURCE_UPDATED, {"uri": uri})
        return len(reached)

    @property
    def newest(self) -> Listener | None:
        """The legacy stream that was opened last."""
        legacy = [each for each in self._listeners if each.request is None and each.receives]
        return legacy[-1] if legacy else None

    def break_all(self, reset: bool) -> int:
        """Break every stream that can be broken; returns how many."""
        ended = [listener for listener in self._listeners if listener.end is not None]
        for listener in ended:
            self.remove(listener)
            if listener.end is not None:
                listener.end(reset)
        return len(ended)


# -- requests to the client ---------------------------------------------------------------------

STATE_BYTES = 4096
_CHECKSUM_LENGTH = 64
_STATE_END = "\n\n"
_FRAGILE_CHARACTERS = "\"\\'{}[]/\t\n\u2028 é ß 漢 😀 %22 \\u0041 &amp; +=;"


class ClientRequests:
    """The requests of one server to its clients: the tool `ask`, and `ScriptedServer.ask_client`.

    The legacy era sends requests and waits for their answers. The modern era asks in rounds
    (SEP-2322) and keeps nothing between them: a `requestState` holds everything, so any process of
    a server can continue the call. `count` adds to the ledger.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._sent = 0
        self._open: dict[str, asyncio.Future[JsonObject]] = {}
        self._asked: dict[str, asyncio.Future[JsonObject]] = {}

    def answered(self, message: JsonObject) -> None:
        waiting = self._open.get(str(message.get("id")))
        if waiting is None or waiting.done():
            return
        waiting.set_result(
            {"error": message["error"]} if "error" in message else message.get("result", {})
        )

    def _send(
        self, sink: MessageSink, method: str, params: JsonObject | None
    ) -> tuple[str, asyncio.Future[JsonObject]]:
        self._sent += 1
        request_id = f"kit-{self._sent}"
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._open[request_id] = answer
        answer.add_done_callback(lambda _: self._open.pop(request_id, None))
        request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
        sink.append(encode(request))
        return request_id, answer

    def ask(self, sink: MessageSink, method: str, params: JsonObject) -> str:
        """Ask outside of any call. Returns the request's id, for `reply`."""
        request_id, answer = self._send(sink, method, params)
        self._asked[request_id] = answer
        return request_id

    def reply(self, request_id: str) -> JsonObject | None:
        answer = self._asked[request_id]
        return answer.result() if answer.done() else None

    async def ask_legacy(self, sink: MessageSink, params: JsonObject) -> JsonObject:
        """The tool `ask` in the legacy era: all requests of a round at once, round by round."""
        key, requests, rounds = self._begin(params)
        answers: list[JsonObject] = []
        for _ in range(rounds):
            asked = {
                name: self._send(sink, request["method"], request.get("params"))[1]
                for name, request in requests.items()
            }
            try:
                await asyncio.gather(*asked.values())
            finally:
                for waiting in asked.values():
                    waiting.cancel()
            answers.append({name: waiting.result() for name, waiting in asked.items()})
        return self._result(key, answers)

    def ask_modern(self, params: JsonObject) -> JsonObject:
        """The tool `ask` in the modern era: one round trip of it."""
        key, requests, rounds = self._begin(params)
        retry = "requestState" in params or "inputResponses" in params
        answers = _answers_so_far(params) if retry else []
        if not retry and params["arguments"].get("state_only"):
            return {"resultType": "input_required", "requestState": _request_state(answers, {})}
        if len(answers) >= rounds:
            return self._result(key, answers)
        state = _request_state(answers, requests)
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    def _begin(self, params: JsonObject) -> tuple[str, JsonObject, int]:
        arguments: JsonObject = params.get("arguments") or {}
        key = str(arguments.get("key") or "ask")
        requests: JsonObject = arguments.get("requests") or {}
        self._count(f"{key}:legs")
        return key, requests, int(arguments.get("rounds", 1)) if requests else 0

    def _result(self, key: str, answers: list[JsonObject]) -> JsonObject:
        self._count(key)
        structured = {"answers": answers}
        return _protocol.text_result(f"{len(answers)} rounds", structuredContent=structured)


def _request_state(answers: list[JsonObject], requests: JsonObject) -> str:
    """The answers so far, padded with characters that are easily damaged, and a checksum."""
    known = {"leg": uuid.uuid4().hex, "answers": answers, "keys": sorted(requests)}
    state = json.dumps(known, ensure_ascii=False) + _STATE_END
    while len(state.encode()) < STATE_BYTES:
        state += _FRAGILE_CHARACTERS
    return state + _checksum(state)


def _answers_so_far(params: JsonObject) -> list[JsonObject]:
    """The answers in the request state, with those that this retry adds."""
    state = str(params.get("requestState"))
    whole, checksum = state[:-_CHECKSUM_LENGTH], state[-_CHECKSUM_LENGTH:]
    if _checksum(whole) != checksum:
        raise ErrorResponse(-32602, "requestState is not what was sent, byte for byte")
    known: Any = json.loads(whole.partition(_STATE_END)[0])
    responses: JsonObject = params.get("inputResponses") or {}
    if sorted(responses) != known["keys"]:
        raise ErrorResponse(-32602, "inputResponses do not answer the inputRequests")
    return [*known["answers"], responses] if known["keys"] else known["answers"]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- journal and behaviours of calls ------------------------------------------------------------

_MAX_REMEMBERED_KEYS = 10_000
"""Keys whose behaviour was applied already. A retry comes long before so many other calls do."""


class Journal:
    """A file of what a server ran, which survives a killed process.

    Each line is written with one write before a tool's body starts: `["ran", key, tool, session,
    headers]` or `["behaviour", key]`. The headers are `authorization` and those that begin with
    `x-`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def ran(self, key: str, tool: str, session: str | None, headers: dict[str, str]) -> None:
        chosen = {
            name: value
            for name, value in headers.items()
            if name == "authorization" or name.startswith("x-")
        }
        self.write("ran", key, tool, session, chosen)

    def write(self, *line: Any) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class CallBehaviours:
    """Behaviours that calls carry in their argument `behaviour`.

    Each is applied to the first request with the call's `key`, so that a retry succeeds.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._applied: dict[str, None] = {}

    def pick(self, message: JsonObject | None, *, refused: bool) -> Behaviour | None:
        arguments: JsonObject = params_of(message).get("arguments") or {}
        fields, key = arguments.get("behaviour"), str(arguments.get("key"))
        if not fields or key in self._applied:
            return None
        how = Behaviour(**fields)
        if refused and how.runs:
            return None
        self._remember(key)
        return how

    def _remember(self, key: str) -> None:
        self._applied[key] = None
        if len(self._applied) > _MAX_REMEMBERED_KEYS:
            del self._applied[next(iter(self._applied))]
        if self._journal is not None:
            self._journal.write("behaviour", key)


# -- the server ---------------------------------------------------------------------------------


class ServerState:
    """Everything that a server knows, apart from its sockets. Lives in one event loop, until
    `close`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rules = RuleSet()
        self._journal = Journal(settings.journal) if settings.journal else None
        self._call_behaviours = CallBehaviours(self._journal) if settings.call_behaviours else None
        self.records: list[Recorded] = []
        self.ledger: Counter[str] = Counter()
        self.cancelled: list[Cancelled] = []
        self.sessions: set[str] = set()
        self.stranded: set[str] = set()
        self.logs: dict[str, EventLog] = {}
        self.listeners = Listeners()
        self.client_requests = ClientRequests(self._count)
        self.resources: dict[str, str] = {}
        self.cache_hints = _protocol.NO_CACHE
        self.skip_delays = asyncio.Event()
        self.accepted = self.open_connections = self.sequence = self._streams = 0
        self._calls: set[Call] = set()
        self.use_tools(list(settings.tools), built_in=True, page_size=settings.page_size)

    def use_tools(self, tools: list[JsonObject], *, built_in: bool, page_size: int | None) -> None:
        added = {tool["name"] for tool in tools}
        kept = [
            definition
            for definition in _protocol.TOOL_DEFINITIONS
            if built_in and definition["name"] not in added
        ]
        self.tools, self.page_size = [*kept, *tools], page_size
        self._tool_names = {tool["name"] for tool in self.tools}

    async def close(self, connections: Iterable[asyncio.Task[None]] = ()) -> None:
        """End every call, and the tasks of these connections."""
        tasks = [*connections, *(call.task for call in self._calls if call.task)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
        if self._journal is not None:
            self._journal.close()

    def reset(self) -> None:
        """Forget rules, sessions and streams, as a restarted server does."""
        self.forget_sessions()
        self.rules.clear()

    def forget_sessions(self) -> None:
        self.sessions.clear()
        self.stranded.clear()
        self.logs.clear()
        self.listeners.clear_subscriptions()

    def new_session(self) -> str:
        session = uuid.uuid4().hex
        self.sessions.add(session)
        return session

    def new_stream(self) -> str:
        self._streams += 1
        return f"s{self._streams}"

    # -- requests -------------------------------------------------------------------------------

    def record(self, entry: Callable[[int, float], Recorded]) -> None:
        self.sequence += 1
        if self.settings.record:
            self.records.append(entry(self.sequence, time.monotonic()))

    def pick_behaviour(
        self,
        http: str,
        message: JsonObject | None,
        name: RequestName,
        *,
        refused: bool,
        announced: RequestName | None = None,
    ) -> Behaviour | None:
        """The behaviour for this request: the one that it carries, or that of a rule."""
        if self._call_behaviours is not None:
            carried = self._call_behaviours.pick(message, refused=refused)
            if carried is not None:
                return carried
        return self.rules.pick(http, *name, refused=refused, announced=announced)

    def run(self, call: Call, params: JsonObject, headers: dict[str, str]) -> None:
        """Start a call. When this returns, a quick one is answered and a slow one has its task."""
        call.cache_hints = self.cache_hints
        try:
            outcome = self._outcome(call, params, headers)
        except ErrorResponse as error:
            call.fail(error)
            return
        except Exception as error:  # a server answers with its tool's error
            call.fail(ErrorResponse(-32602, f"{type(error).__name__}: {error}"))
            return
        if isinstance(outcome, dict):
            call.succeed(outcome)
            return
        self._calls.add(call)
        call.task = asyncio.create_task(call.finish(outcome))
        call.task.add_done_callback(lambda task: self._ended(call, outcome))

    def _ended(self, call: Call, work: Awaitable[JsonObject]) -> None:
        # A task that is cancelled before its first step has neither answered nor awaited its work.
        self._calls.discard(call)
        if asyncio.iscoroutine(work):
            work.close()
        if not call.log.done:
            call.fail(ErrorResponse(_protocol.REQUEST_CANCELLED, "Request cancelled"))

    def _outcome(
        self, call: Call, params: JsonObject, headers: dict[str, str]
    ) -> JsonObject | Awaitable[JsonObject]:
        if call.method == "tools/call":
            return self._call_tool(call, params, headers)
        if call.method == "tools/list":
            return _protocol.list_tools(self.tools, params, self.page_size)
        if call.method == "initialize" and not call.modern:
            return _protocol.initialize(self.settings)
        if call.method.startswith("resources/"):
            return self._resource(call, params)
        return _protocol.call_method(call.method, params, modern=call.modern)

    def _resource(self, call: Call, params: JsonObject) -> JsonObject:
        uri = str(params.get("uri"))
        match call.method.removeprefix("resources/"), call.modern:
            case "list", _:
                return _protocol.list_resources(self.resources)
            case "read", _ if uri in self.resources:
                return _protocol.resource_contents(uri, self.resources[uri])
            case "subscribe", False:
                self.listeners.subscribe(call.session, uri)
                return {}
            case "unsubscribe", False:
                self.listeners.unsubscribe(call.session, uri)
                return {}
            case _:
                return _protocol.call_method(call.method, params, modern=call.modern)

    def _call_tool(
        self, call: Call, params: JsonObject, headers: dict[str, str]
    ) -> JsonObject | Awaitable[JsonObject]:
        name = params.get("name")
        if name not in self._tool_names:
            raise ErrorResponse(-32602, f"Unknown tool: {name}")
        if name == "ask":
            if call.modern:
                return self.client_requests.ask_modern(params)
            return self.client_requests.ask_legacy(call.log, params)
        arguments: JsonObject = params.get("arguments") or {}
        key = str(arguments.get("key") or name)
        if self._journal is None:
            self._count(key)
        else:
            self._journal.ran(key, cast(str, name), call.session, headers)
        meta: JsonObject = params.get("_meta") or {}
        run = _protocol.ToolRun(arguments, meta, headers, call.modern, call.emit, self._pause)
        return _protocol.tool_body(cast(str, name))(run)

    def _count(self, key: str) -> None:
        self.ledger[key] += 1

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.skip_delays.wait(), seconds)

    def client_left(self, call: Call) -> None:
        """The client closed the stream. In the modern era that cancels the call; in the legacy era
        it must not.
        """
        self.cancelled.append(Cancelled(call.request_id, call.tool, "disconnect"))
        if call.modern and call.task is not None:
            call.task.cancel()

    def cancel(self, request_id: Any, session: str | None) -> None:
        tool = None
        for call in self._calls:
            if call.request_id == request_id and call.session == session and call.task is not None:
                tool = call.tool
                call.task.cancel()
        self.cancelled.append(Cancelled(request_id, tool, "notification"))

    def snapshot(self) -> JsonObject:
        return {
            "requests": [asdict(record) for record in self.records],
            "ledger": dict(self.ledger),
            "cancelled": [asdict(item) for item in self.cancelled],
            "accepted": self.accepted,
            "sequence": self.sequence,
        }


# -- commands of a test -------------------------------------------------------------------------

LASTING_COMMANDS = {"set_tools", "set_resource", "set_cache"}
"""Commands whose effect survives a restart of the server."""


def run_command(state: ServerState, command: str, details: JsonObject) -> Any:
    """Do what a test asks of the server, from whichever process the command comes."""
    match command:
        case "snapshot":
            return state.snapshot()
        case "ledger":
            return dict(state.ledger)
        case "count_requests":
            method, tool = details["method"], details["tool"]
            return sum(
                method in (None, record.rpc_method) and tool in (None, record.tool)
                for record in state.records
            )
        case "count_cancelled":
            return len(state.cancelled)
        case "count_connections":
            return state.accepted, state.open_connections
        case "count_listeners":
            return len(state.listeners)
        case "count_subscribers":
            return len(state.listeners.subscribers(details["uri"]))
        case "count_replies":
            return int(state.client_requests.reply(details["request_id"]) is not None)
        case "reply":
            return state.client_requests.reply(details["request_id"])
        case "subscriptions":
            return state.listeners.subscriptions()
        case _:
            return _change(state, command, details)


def _change(state: ServerState, command: str, details: JsonObject) -> Any:
    match command:
        case "script":
            state.rules.add(Rule.from_json(raw) for raw in details["rules"])
        case "clear":
            state.rules.clear()
            state.records.clear()
        case "skip_delays":
            state.skip_delays.set()
        case "forget_sessions":
            state.forget_sessions()
        case "strand_sessions":
            state.stranded |= state.sessions
        case "set_tools":
            size = details.get("page_size", state.page_size)
            state.use_tools(details["tools"], built_in=details["built_in"], page_size=size)
        case "set_resource":
            state.resources[details["uri"]] = details["text"]
        case "set_cache":
            state.cache_hints = {"ttlMs": details["ttl_ms"], "cacheScope": details["scope"]}
        case "notify":
            return state.listeners.notify(details["method"], details["params"])
        case "resource_updated":
            return state.listeners.resource_updated(details["uri"])
        case "break_streams":
            return state.listeners.break_all(details["reset"])
        case "ask_client":
            return _ask_client(state, details["method"], details["params"])
        case _:
            raise ValueError(f"unknown command: {command}")
    return None


def _ask_client(state: ServerState, method: str, params: JsonObject) -> str:
    if (listener := state.listeners.newest) is None:
        raise RuntimeError("no client listens")
    return state.client_requests.ask(listener.sink, method, params)
