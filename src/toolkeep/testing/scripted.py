"""`ScriptedServer`: an MCP server that a test scripts and inspects.

A backend runs it: in the test's event loop, in a child process, or as a program that clients start
(`_stdio`). Each backend takes the same commands, so that a test reads the same with any of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack

from toolkeep.testing._http import HttpServer, StreamableHttp
from toolkeep.testing._sse import HttpSse
from toolkeep.testing._state import LASTING_COMMANDS, ServerState, run_command
from toolkeep.testing._stdio import KILL, StdioBackend
from toolkeep.testing.script import (
    Cancelled,
    JsonObject,
    Launch,
    ProcessOptions,
    ProcessSettings,
    Recorded,
    Rule,
    ServerOptions,
    Settings,
    StdioOptions,
)

_COMMAND_TIMEOUT = 15.0
_CLOSE_TIMEOUT = 5.0
_POLL_INTERVAL = 0.005
_ROOT = str(Path(__file__).resolve().parents[2])


class Backend(Protocol):
    """Where a server runs. `command` takes the commands of `_state.run_command`."""

    port: int

    @property
    def pid(self) -> int: ...
    async def open(self) -> None: ...
    async def command(self, name: str, **details: Any) -> Any: ...
    async def restart(self) -> None: ...
    async def close(self) -> None: ...


class ScriptedServer:
    """An MCP server that behaves as a test says.

    Use `spawn` (a process of its own), `local` (this event loop) or `stdio` (a program that clients
    start) as an async context manager; it lives as long as the block. A method waits for at most 15
    seconds.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend, self._settings = backend, settings

    @classmethod
    def spawn(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in a child process, which ends with the block or with this process.

        It speaks streamable HTTP, or HTTP+SSE (2024-11-05) with `transport="sse"`; then `endpoint`
        replaces the address of messages that the stream names.
        """
        settings = Settings(**options)
        return cls(ProcessBackend(settings), settings)

    @classmethod
    def local(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in the current event loop, with the options of `spawn`."""
        settings = Settings(**options)
        return cls(LocalBackend(ServerState(settings)), settings)

    @staticmethod
    def stdio(**options: Unpack[StdioOptions]) -> ScriptedProgram:
        """A server that clients start, any number of times. Its processes take the options of
        `ProcessSettings`.
        """
        given: dict[str, Any] = {**options}
        of_process = {
            name: given.pop(name) for name in options if name in ProcessOptions.__annotations__
        }
        settings = Settings(**given)
        return ScriptedProgram(StdioBackend(settings, ProcessSettings(**of_process)), settings)

    def __repr__(self) -> str:
        return f"<ScriptedServer {self._settings.era}, {self._settings.transport}>"

    async def __aenter__(self) -> Self:
        try:
            await self._backend.open()
        except BaseException:
            await self._backend.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._backend.close()

    @property
    def port(self) -> int:
        return self._backend.port

    @property
    def url(self) -> str:
        scheme = "https" if self._settings.tls else "http"
        path = "sse" if self._settings.transport == "sse" else "mcp"
        return f"{scheme}://127.0.0.1:{self.port}/{path}"

    @property
    def pid(self) -> int:
        """The process of a spawned server. A test may kill it."""
        return self._backend.pid

    @property
    def spec(self) -> JsonObject:
        """The server in the form of a configuration file."""
        kind = {"type": "sse"} if self._settings.transport == "sse" else {}
        return {"url": self.url, **kind}

    async def script(self, *rules: Rule) -> None:
        """Add rules after the existing ones."""
        await self._backend.command("script", rules=[rule.to_json() for rule in rules])

    async def requests(
        self,
        method: str | None = None,
        tool: str | None = None,
        *,
        at_least: int = 0,
        within: float = 5.0,
    ) -> list[Recorded]:
        """The requests so far, all or those of one JSON-RPC method or tool.

        First waits until `at_least` of them have arrived, or raises TimeoutError.
        """
        await self._wait_until(at_least, within, "count_requests", method=method, tool=tool)
        seen = (await self._backend.command("snapshot"))["requests"]
        records = [Recorded(**raw) for raw in seen]
        return [r for r in records if method in (None, r.rpc_method) and tool in (None, r.tool)]

    async def ledger(self) -> dict[str, int]:
        """How often tool bodies ran, by key (a call's argument "key", else the tool's name)."""
        return await self._backend.command("ledger")

    async def executions(self, key: str) -> int:
        return (await self.ledger()).get(key, 0)

    async def cancelled(self, *, at_least: int = 0, within: float = 5.0) -> list[Cancelled]:
        """The calls that the client gave up. First waits until there are `at_least` of them."""
        await self._wait_until(at_least, within, "count_cancelled")
        return [Cancelled(**raw) for raw in (await self._backend.command("snapshot"))["cancelled"]]

    async def skip_delays(self) -> None:
        """From now on `slow` and `steps` take no time; those that run now end at once."""
        await self._backend.command("skip_delays")

    async def forget_sessions(self) -> None:
        """Make every session id that was issued so far unknown."""
        await self._backend.command("forget_sessions")

    async def strand_sessions(self) -> None:
        """Answer 502 to requests of the current sessions, as a balancer does whose instance is gone
        (streamable HTTP). New sessions are served. `forget_sessions` ends it.
        """
        await self._backend.command("strand_sessions")

    async def set_tools(
        self, tools: Sequence[JsonObject], *, built_in: bool = True, **paging: int | None
    ) -> None:
        """Replace the tools that the test added. They answer with their arguments.

        `built_in=False` hides the built-in tools. `page_size=` replaces the page size.
        """
        if unknown := set(paging) - {"page_size"}:
            raise TypeError(f"unknown options: {', '.join(unknown)}")
        await self._backend.command("set_tools", tools=list(tools), built_in=built_in, **paging)

    async def notify(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        listeners: int = 1,
        within: float = 5.0,
    ) -> int:
        """Send a notification on every open GET stream, and to modern listeners that asked for it.

        First waits until there are that many `listeners`. Returns how many it was sent to.
        """
        await self._wait_until(listeners, within, "count_listeners")
        return await self._backend.command("notify", method=method, params=params or {})

    async def break_streams(self, *, reset: bool = False) -> int:
        """Break every stream for notifications: GET streams, those of HTTP+SSE, modern listeners.
        Returns how many. `reset` breaks them with RST.

        On a pipe a modern listener ends with its result.
        """
        return await self._backend.command("break_streams", reset=reset)

    async def ask_client(
        self, method: str, params: JsonObject | None = None, *, within: float = 5.0
    ) -> JsonObject:
        """Send a request (legacy) on the stream or pipe that was opened last, and wait for its
        result, or for `{"error": ...}`.
        """
        await self._wait_until(1, within, "count_listeners")
        sent = await self._backend.command("ask_client", method=method, params=params or {})
        await self._wait_until(1, within, "count_replies", request_id=sent)
        return await self._backend.command("reply", request_id=sent)

    async def subscriptions(self) -> dict[str, list[str]]:
        """The resources subscribed to, by session (on a pipe: the process id), or by the id of a
        modern listener's request.
        """
        return await self._backend.command("subscriptions")

    async def resource_updated(self, uri: str, *, listeners: int = 1, within: float = 5.0) -> int:
        """Notify the subscribers of a resource that it has changed; returns how many.

        First waits until the resource has that many `listeners`.
        """
        await self._wait_until(listeners, within, "count_subscribers", uri=uri)
        return await self._backend.command("resource_updated", uri=uri)

    async def set_resource(self, uri: str, text: str) -> None:
        """List the resource, with this text. No notification is sent."""
        await self._backend.command("set_resource", uri=uri, text=text)

    async def set_cache(self, ttl_ms: int, scope: Literal["public", "private"] = "public") -> None:
        """Set the hints of every cacheable modern result. The default is 0 and public."""
        await self._backend.command("set_cache", ttl_ms=ttl_ms, scope=scope)

    async def restart(self) -> None:
        """Break every connection and start again on the same port, without sessions and rules.

        The ledger, the recorded requests and the cancellations stay.
        """
        await self._backend.restart()

    async def clear(self) -> None:
        """Drop rules and recorded requests; sessions and the ledger stay."""
        await self._backend.command("clear")

    async def connections(self) -> int:
        """TCP connections accepted so far."""
        return (await self._count_connections())[0]

    async def open_connections(self) -> int:
        return (await self._count_connections())[1]

    async def _wait_until(self, least: int, within: float, command: str, **details: Any) -> None:
        if least <= 0:
            return
        async with asyncio.timeout(within):
            # Polled, because the server may run in another process.
            while await self._backend.command(command, **details) < least:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_INTERVAL)

    async def _count_connections(self) -> Any:
        return await self._backend.command("count_connections")


class ScriptedProgram(ScriptedServer):
    """A scripted server over stdio. Its state outlives its processes."""

    _backend: StdioBackend

    @property
    def url(self) -> str:
        raise TypeError("a stdio server has no URL; use its spec")

    @property
    def spec(self) -> JsonObject:
        """Command, arguments and environment. Each start of it is a process of this server."""
        return self._backend.spec

    async def script(self, *rules: Rule) -> None:
        """Add rules after the existing ones. Raises ValueError for rules that need HTTP."""
        for rule in rules:
            if rule.do.status or rule.do.redirect or rule.do.endless or rule.http != "POST":
                raise ValueError(f"the rule needs HTTP, and this server speaks stdio: {rule}")
        await super().script(*rules)

    async def processes(self, *, at_least: int = 0, within: float = 5.0) -> list[int]:
        """The ids of the processes that run now; first waits for `at_least`."""
        await self._wait_until(at_least, within, "count_processes")
        return self._backend.running("server")

    async def children(self, *, at_least: int = 0, within: float = 5.0) -> list[int]:
        """The ids of the child processes that run now; first waits for `at_least`."""
        await self._wait_until(at_least, within, "count_children")
        return self._backend.running("child")

    async def starts(self, *, at_least: int = 0, within: float = 5.0) -> int:
        """How often it was started; first waits for `at_least`."""
        await self._wait_until(at_least, within, "count_starts")
        return len(self._backend.launches)

    async def launches(self) -> list[Launch]:
        """Every start, with the directory and the environment that the client gave it."""
        return self._backend.launches

    def kill(self, pid: int | None = None, signal: Signals = KILL) -> None:
        """Send a signal to one process or child, or to every process (not to its children)."""
        self._backend.kill(pid, signal)


# -- where a server runs ------------------------------------------------------------------------


def http_server(state: ServerState) -> HttpServer:
    sse = state.settings.transport == "sse"
    return HttpServer(state, HttpSse(state) if sse else StreamableHttp(state))


class LocalBackend:
    """A server in the caller's event loop."""

    def __init__(self, state: ServerState) -> None:
        self._server = http_server(state)
        self.port = 0

    @property
    def pid(self) -> int:
        raise TypeError("a local server has no process of its own; use spawn")

    async def open(self) -> None:
        await self._server.listen()
        self.port = self._server.port

    async def command(self, name: str, **details: Any) -> Any:
        return run_command(self._server.state, name, details)

    async def restart(self) -> None:
        await self._server.restart()

    async def close(self) -> None:
        await self._server.close()


@dataclass(slots=True)
class _History:
    """What earlier processes of a restarted server have seen."""

    requests: list[JsonObject] = field(default_factory=list[JsonObject])
    ledger: dict[str, int] = field(default_factory=dict[str, int])
    cancelled: list[JsonObject] = field(default_factory=list[JsonObject])
    accepted: int = 0
    sequence: int = 0


class ProcessBackend:
    """A server in a child process (`_server_process`), which ends when its stdin closes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.port = settings.port
        self._commands_sent = 0
        self._lasting: dict[tuple[str, str], JsonObject] = {}
        self._history = _History()

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the scripted server is not running")
        return self._child.pid

    async def open(self) -> None:
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolkeep.testing._server_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            limit=1 << 30,
            start_new_session=True,
        )
        history = self._history
        first = {"sequence": history.sequence, "accepted": history.accepted}
        settings = {**self._settings.to_json(), "port": self.port}
        commands = [(name, details) for (name, _), details in self._lasting.items()]
        start = {"settings": settings, "first": first, "commands": commands}
        self.port = await self._exchange(start)

    async def command(self, name: str, **details: Any) -> Any:
        answer = await self._exchange({"command": name, "details": details})
        if name in LASTING_COMMANDS:
            self._lasting[name, details.get("uri", "")] = details
        return self._with_history(name, details, answer)

    async def _exchange(self, line: JsonObject) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise RuntimeError("the scripted server is not running")
        async with self._lock, asyncio.timeout(_COMMAND_TIMEOUT):
            self._commands_sent += 1
            child.stdin.write(json.dumps({**line, "number": self._commands_sent}).encode() + b"\n")
            await child.stdin.drain()
            answer = await self._answer(child.stdout)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    async def _answer(self, lines: asyncio.StreamReader) -> JsonObject:
        """The answer to the last command. Skips answers to commands whose caller was cancelled."""
        while raw := await lines.readline():
            answer: JsonObject = json.loads(raw)
            if answer["number"] == self._commands_sent:
                return answer
        raise RuntimeError("the scripted server's process has ended")

    def _with_history(self, name: str, details: JsonObject, answer: Any) -> Any:
        history = self._history
        if name == "clear":
            history.requests = []
        if name == "count_requests":
            return answer + sum(_matches(raw, **details) for raw in history.requests)
        if name == "count_cancelled":
            return answer + len(history.cancelled)
        if name == "ledger":
            return _summed(history.ledger, answer)
        if name == "snapshot":
            return {
                **answer,
                "requests": history.requests + answer["requests"],
                "ledger": _summed(history.ledger, answer["ledger"]),
                "cancelled": history.cancelled + answer["cancelled"],
            }
        return answer

    async def restart(self) -> None:
        self._history = _History(**await self.command("snapshot"))
        await self._end(kill=True)
        await self.open()

    async def close(self) -> None:
        await self._end(kill=False)

    async def _end(self, *, kill: bool) -> None:
        child, self._child = self._child, None
        if child is None or child.stdin is None or child.stdout is None:
            return
        if kill and child.returncode is None:
            child.kill()
        child.stdin.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await child.stdout.read()
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.stdout.read()
            await child.wait()


def _matches(raw: JsonObject, method: str | None, tool: str | None) -> bool:
    return method in (None, raw["rpc_method"]) and tool in (None, raw["tool"])


def _summed(one: JsonObject, other: JsonObject) -> JsonObject:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
