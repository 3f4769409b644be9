"""The server itself: its state, its listening socket, and the requests a test makes of it.

Owns every connection and every running call, and ends them all in `hang_up`. What happens on a
connection is in `_exchange`; here is only what connections share.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from toolkeep.testing import _methods, _tools
from toolkeep.testing._calls import REQUEST_CANCELLED, Call
from toolkeep.testing._events import EventLog
from toolkeep.testing._http import MAX_HEAD, Connection, WatchedReader
from toolkeep.testing._journal import Journal, Wishes
from toolkeep.testing._listening import Audience
from toolkeep.testing._options import Settings
from toolkeep.testing._rounds import Desk
from toolkeep.testing._rulebook import Announced, Rulebook
from toolkeep.testing.script import Behaviour, Cancelled, JsonObject, Recorded

if TYPE_CHECKING:
    from toolkeep.testing._duplex import Channel

Serve = Callable[["Engine", Connection], Awaitable[None]]


class Engine:
    """One server. Created by a home (`_homes`), in whose event loop it lives."""

    def __init__(self, settings: Settings, serve: Serve) -> None:
        self.settings, self._serve = settings, serve
        self.port = settings.port
        self.rules = Rulebook()
        self._journal = Journal(settings.journal) if settings.journal else None
        self._wishes = Wishes(self._journal) if settings.wishes else None
        self.records: list[Recorded] = []
        self.ledger: Counter[str] = Counter()
        self.cancelled: list[Cancelled] = []
        self.sessions: set[str] = set()
        self.stranded: set[str] = set()
        self.channels: dict[str, Channel] = {}
        self.logs: dict[str, EventLog] = {}
        self.audience = Audience()
        self.desk = Desk(self._count)
        self.texts: dict[str, str] = {}
        self.hints = _methods.NO_CACHE
        self.calls: set[Call] = set()
        self.hurry = asyncio.Event()
        self.accepted = self.sequence = self._streams = 0
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self.use_tools(list(settings.tools), built_in=True, page_size=settings.page_size)

    def use_tools(self, tools: list[JsonObject], *, built_in: bool, page_size: int | None) -> None:
        own = {tool["name"] for tool in tools}
        kept = [spec for spec in _tools.SPECS if built_in and spec["name"] not in own]
        self.tools, self.page_size = [*kept, *tools], page_size
        self.tool_names = {tool["name"] for tool in self.tools}

    async def listen(self) -> None:
        context = None
        if self.settings.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.settings.tls)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol, "127.0.0.1", self.port, ssl=context, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(WatchedReader(MAX_HEAD), self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = Connection(cast(WatchedReader, reader), writer, self.accepted)
        self._open[connection] = asyncio.create_task(self._attend(connection))

    async def _attend(self, connection: Connection) -> None:
        try:
            await self._serve(self, connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.pop(connection, None)
            connection.writer.close()

    async def hang_up(self) -> None:
        """Stop listening, break every connection, end every call."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = [*self._open.values(), *(call.task for call in self.calls if call.task)]
        for connection in self._open:
            connection.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        if server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 5.0)
        await asyncio.sleep(0)
        if self._journal is not None:
            self._journal.close()

    async def restart(self) -> None:
        await self.hang_up()
        self.forget()
        self.rules.clear()
        await self.listen()

    def strand(self) -> None:
        """Answer requests of the sessions there are as a balancer does whose instance is gone."""
        self.stranded |= self.sessions

    def forget(self) -> None:
        self.sessions.clear()
        self.stranded.clear()
        self.logs.clear()
        self.audience.forget()

    def new_session(self) -> str:
        session = uuid.uuid4().hex
        self.sessions.add(session)
        return session

    def new_stream(self) -> str:
        self._streams += 1
        return f"s{self._streams}"

    def record(self, entry: Callable[[int, float], Recorded]) -> None:
        self.sequence += 1
        if self.settings.record:
            self.records.append(entry(self.sequence, time.monotonic()))

    def pick(
        self,
        http: str,
        message: JsonObject | None,
        named: Announced,
        *,
        refused: bool,
        passed: Announced | None = None,
    ) -> Behaviour | None:
        """What is to happen to this request: what it wishes, or what a rule says."""
        if self._wishes is not None:
            granted = self._wishes.grant(message, refused=refused)
            if granted is not None:
                return granted
        return self.rules.pick(http, *named, refused=refused, passed=passed)

    def _count(self, key: str) -> None:
        self.ledger[key] += 1

    def run(self, call: Call, params: JsonObject, headers: dict[str, str]) -> None:
        """Start a call. When this returns, a quick one is answered and a slow one has its task."""
        call.hints = self.hints
        try:
            outcome = self._outcome(call, params, headers)
        except _methods.RpcFault as fault:
            call.fail(fault)
            return
        except Exception as error:  # a tool's mistake is an answer, as in every server
            call.fail(_methods.RpcFault(-32602, f"{type(error).__name__}: {error}"))
            return
        if isinstance(outcome, dict):
            call.succeed(outcome)
            return
        self.calls.add(call)
        call.task = asyncio.create_task(call.finish(outcome))
        call.task.add_done_callback(lambda task: self._ended(call, outcome))

    def _ended(self, call: Call, work: Awaitable[JsonObject]) -> None:
        """A task cancelled before its first step has neither answered nor awaited its work."""
        self.calls.discard(call)
        if asyncio.iscoroutine(work):
            work.close()
        if not call.log.done:
            call.fail(_methods.RpcFault(REQUEST_CANCELLED, "Request cancelled"))

    def _outcome(
        self, call: Call, params: JsonObject, headers: dict[str, str]
    ) -> JsonObject | Awaitable[JsonObject]:
        if call.method == "tools/call":
            return self._tool(call, params, headers)
        if call.method == "tools/list":
            return _methods.page(self.tools, params, self.page_size)
        if call.method == "initialize" and not call.modern:
            return _methods.initialize(self.settings)
        if call.method.startswith("resources/"):
            return self._resource(call, params)
        return _methods.call(call.method, params, modern=call.modern)

    def _resource(self, call: Call, params: JsonObject) -> JsonObject:
        uri = str(params.get("uri"))
        match call.method.removeprefix("resources/"), call.modern:
            case "list", _:
                return _methods.listing(self.texts)
            case "read", _ if uri in self.texts:
                return _methods.contents(uri, self.texts[uri])
            case "subscribe", False:
                self.audience.subscribe(call.session, uri)
                return {}
            case "unsubscribe", False:
                self.audience.unsubscribe(call.session, uri)
                return {}
            case _:
                return _methods.call(call.method, params, modern=call.modern)

    def _tool(
        self, call: Call, params: JsonObject, headers: dict[str, str]
    ) -> JsonObject | Awaitable[JsonObject]:
        name = params.get("name")
        if name not in self.tool_names:
            raise _methods.RpcFault(-32602, f"Unknown tool: {name}")
        if name == "ask":
            return self.desk.leg(params) if call.modern else self.desk.converse(call.log, params)
        arguments: JsonObject = params.get("arguments") or {}
        key = str(arguments.get("key") or name)
        if self._journal is None:
            self.ledger[key] += 1
        else:
            self._journal.ran(key, cast(str, name), call.session, headers)
        meta: JsonObject = params.get("_meta") or {}
        run = _tools.Run(arguments, meta, headers, call.modern, call.emit, self.pause)
        return _tools.body_of(cast(str, name))(run)

    async def pause(self, seconds: float) -> None:
        """A tool takes its time; none any more, once there is a hurry."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.hurry.wait(), seconds)

    def gave_up(self, call: Call) -> None:
        """The client closed the stream: in the modern era that cancels, in the legacy era it must
        not.
        """
        self.cancelled.append(Cancelled(call.request_id, call.tool, "disconnect"))
        if call.modern and call.task is not None:
            call.task.cancel()

    def cancel(self, request_id: Any, session: str | None) -> None:
        tool = None
        for call in self.calls:
            if call.request_id == request_id and call.session == session and call.task is not None:
                tool = call.tool
                call.task.cancel()
        self.cancelled.append(Cancelled(request_id, tool, "notification"))

    def arrived(self, method: str | None, tool: str | None) -> int:
        return sum(
            method in (None, record.rpc_method) and tool in (None, record.tool)
            for record in self.records
        )

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def snapshot(self) -> JsonObject:
        return {
            "requests": [asdict(record) for record in self.records],
            "ledger": dict(self.ledger),
            "cancelled": [asdict(item) for item in self.cancelled],
            "accepted": self.accepted,
            "sequence": self.sequence,
        }
