"""`serve`: all servers of a configuration as one MCP server, over HTTP or on standard streams.

Over HTTP, SIGTERM and Ctrl-C begin a drain: no new connections, running requests end, clients of
streams are sent elsewhere, programs that run for other processes are handed over, and the command
ends with code 0. A second signal ends it at once. `--workers` starts processes that share the
listening socket and a store; their parent only starts, stops and replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli.errors import FAILED, INTERRUPTED, OK, USAGE, UsageError, debugging
from toolkeep.cli.output import Output
from toolkeep.cli.source import NO_SERVERS, ServerSource, add_headers, request_approvals
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep import Runtime
    from toolkeep.config import Configuration
    from toolkeep.config.gateway import GatewaySettings
    from toolkeep.gateway.app import Gateway

REQUIRED = ("cryptography", "jwt", "starlette", "uvicorn")
"""What the extra `gateway` brings."""
BACKLOG = 2048
LAST_REQUESTS = 1.0
"""Seconds for which a connection may be idle in a drain: a request may be on its way."""
STALLED = 60.0
"""Seconds after which a connection ends whose client takes nothing of what was sent (Linux)."""
HEAD_WITHIN = 30.0
"""Seconds for the head of a request to arrive, from its first byte, or from the connection on."""
RESTART_PAUSE, RESTART_PAUSE_MAX = 0.5, 10.0
"""Seconds before a worker that died is replaced; doubled while they die at once."""
SHORT_LIFE = 10.0
"""Seconds of life below which a worker died at once."""
MAX_WORKERS = 64
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    output: Output,
    source: ServerSource,
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="Serve one client on standard input and output."),
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Listen at this address. Default: `host` of [gateway], or 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Listen at this port; 0: a free one. Default: `port` of [gateway], or 8000.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_WORKERS, help="Serve with so many processes."),
    ] = 1,
    console: Annotated[
        bool,
        typer.Option("--console", help="Show the servers and calls on a page of this machine."),
    ] = False,
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --stdio: serve this profile. Over HTTP, profiles are at /mcp/NAME.",
            show_default=False,
        ),
    ] = "",
) -> int | Coroutine[Any, Any, int]:
    """Serve all servers as one MCP server.

    \b
    toolkeep serve -c mcp.json --port 8000
    {"command": "toolkeep", "args": ["serve", "--stdio", "-c", "mcp.json"]}

    The second line is an entry for the mcp.json of Claude, Cursor, VS Code and others. Who may
    call, profiles, rates and the audit stream are configured in [gateway] of toolkeep.toml; edits
    are followed. Without access keys or tokens it listens on this machine only.

    The first Ctrl-C or SIGTERM ends it when running calls have ended, the second one at once.
    """
    _require_extra()
    if stdio and (host is not None or port is not None or workers > 1):
        raise UsageError("--stdio serves one client: give it without --host, --port and --workers")
    if profile and not stdio:
        raise UsageError(f"--profile is for --stdio: over HTTP, use the path /mcp/{profile}")
    if console and workers > 1:
        raise UsageError("--console shows one process: give it without --workers")
    plan = _plan(output, source, host, port)
    plan.with_console = console
    if stdio:
        return _serve_stdio(plan, profile)
    listener = listen(plan.settings.host, plan.settings.port)
    if workers == 1:
        return _serve_http(plan, listener)
    return _serve_with_workers(plan, listener, workers)


@dataclass
class Plan:
    """What is served, as it was when the command began."""

    output: Output
    source: ServerSource
    configuration: Configuration
    settings: GatewaySettings
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Further options of the runtime."""
    with_console: bool = False
    parent: int | None = None
    """In a worker: a descriptor that ends with the parent."""
    is_quiet: bool = False

    @property
    def keys(self) -> Any:
        return self.options.get("keys", self.configuration.state_keys)

    @property
    def follows_edits(self) -> bool:
        """Whether there is a file, and what watches it."""
        is_file = not self.source.is_one_server and not self.source.headers
        return is_file and importlib.util.find_spec("watchfiles") is not None

    def note(self, text: str) -> None:
        if not self.is_quiet:
            self.output.note(text)


def _require_extra() -> None:
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        text = f"`serve` needs {', '.join(missing)}: install toolkeep with its extra `gateway`"
        raise UsageError(f"{text}: toolkeep[gateway]")


def _plan(output: Output, source: ServerSource, host: str | None, port: int | None) -> Plan:
    """Everything that can be wrong is found before a socket is opened or a server started."""
    from toolkeep.gateway.access import access_for, check_exposure

    _log_to_stderr()
    found = source.load(output)
    settings = found.gateway_settings()
    given = {"host": host, "port": port}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = settings.model_copy(update=changes)
    check_exposure(access_for(settings), settings.host)
    if found.needs_approval:
        found = asyncio.run(request_approvals(found, output))
    if not (found.servers or found.needs_approval or found.disabled or found.invalid):
        raise UsageError(NO_SERVERS)
    return Plan(output, source, found, settings)


def _log_to_stderr() -> None:
    level = logging.INFO if debugging() else logging.WARNING
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level, format=form, stream=sys.stderr)


# -- the gateway --------------------------------------------------------------------------------


def _make_gateway(plan: Plan) -> Gateway:
    from toolkeep import Runtime
    from toolkeep.gateway.app import CLIENT_ANSWERS, Gateway

    what: Any = plan.source.to_load()
    options = dict(plan.options)
    if plan.follows_edits:
        options["auto_reload"] = True
    else:
        what = _without_file(plan)
    runtime = Runtime(what, **CLIENT_ANSWERS, **options)
    return Gateway(runtime, settings=plan.settings, keys=plan.keys)


def _without_file(plan: Plan) -> Configuration:
    from dataclasses import replace

    found = plan.configuration
    return replace(found, servers=add_headers(found.servers, plan.source.headers))


@contextmanager
def _following_edits(plan: Plan, gateway: Gateway) -> Generator[None]:
    """Apply edits of [gateway]. A wrong one is logged, and changes nothing."""
    from toolkeep.events import Event, Reloaded
    from toolkeep.gateway.access import access_for, check_exposure

    logger = logging.getLogger("toolkeep.gateway")
    seen = plan.configuration.gateway

    def apply() -> None:
        nonlocal seen
        found = gateway.runtime.configuration
        if found.gateway == seen or found.gateway_error is not None:
            return  # the runtime has logged what is wrong
        place = {"host": plan.settings.host, "port": plan.settings.port}
        settings = found.gateway_settings().model_copy(update=place)
        try:
            check_exposure(access_for(settings), settings.host)
            gateway.apply(settings)
        except ConfigError as error:
            logger.warning("an edit of [gateway] was not applied: %s", error)
            return
        seen = found.gateway
        logger.info("an edit of [gateway] was applied")

    def on_event(event: Event) -> None:
        if isinstance(event, Reloaded):
            asyncio.get_running_loop().call_soon(apply)  # the configuration is set right after it

    observation = gateway.runtime.observe(on_event)
    try:
        yield
    finally:
        observation.close()


@asynccontextmanager
async def _stop_signals(plan: Plan) -> AsyncGenerator[asyncio.Event]:
    """An event that the first signal sets, and the end of the parent. The second signal cancels
    this task."""
    stopping, task = asyncio.Event(), asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None

    def on_signal() -> None:
        if stopping.is_set():
            task.cancel()
        stopping.set()

    def on_parent_gone() -> None:
        assert plan.parent is not None
        loop.remove_reader(plan.parent)
        stopping.set()

    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels the task
        for one in SIGNALS:
            loop.add_signal_handler(one, on_signal)
    if plan.parent is not None:
        loop.add_reader(plan.parent, on_parent_gone)
    yield stopping


# -- standard streams ---------------------------------------------------------------------------


async def _serve_stdio(plan: Plan, profile: str) -> int:
    from toolkeep.gateway.stdio import serve_stdio, standard_streams

    if profile and profile not in plan.settings.profiles:
        known = ", ".join(plan.settings.profiles) or "none"
        raise UsageError(f"there is no profile {profile[:80]!r}; known: {known}")
    streams = standard_streams()
    async with _stop_signals(plan) as stopping:
        gateway = _make_gateway(plan)
        with _following_edits(plan, gateway):
            if plan.with_console:
                await gateway.runtime.connect()
                await _show_console(plan, gateway.runtime)
            await serve_stdio(gateway, streams, profile=profile, stopping=stopping)
    return OK


# -- HTTP ---------------------------------------------------------------------------------------


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    # asyncio does it only where a socket names its protocol. Without it, the body of each answer
    # waits 40 ms for the client's delayed acknowledgement of the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A whole answer is in the buffer of its connection at once: uvicorn closes that only when
        # the client has read it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED * 1000))
    return listener


async def _serve_http(plan: Plan, listener: socket.socket) -> int:
    gateway = _make_gateway(plan)
    async with _stop_signals(plan) as stopping:
        await gateway.start()
        try:
            with _following_edits(plan, gateway):
                await _announce(plan, listener, gateway.runtime)
                await _run_http(gateway, listener, stopping)
        finally:
            await gateway.stop()
    return OK


async def _run_http(gateway: Gateway, listener: socket.socket, stopping: asyncio.Event) -> None:
    server = _http_server(gateway)
    tasks = [
        asyncio.ensure_future(server.serve([listener])),
        asyncio.ensure_future(stopping.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            await _drain(gateway, server)
        server.should_exit = True
        await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def http_protocol() -> Any:
    """uvicorn's HTTP protocol, which closes a connection on which no request comes about: by itself
    it waits for a head without end."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Protocol(base):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            base.connection_made(self, transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            base.data_received(self, data)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            base.connection_lost(self, exc)
            self._end_wait()

        def _await_head(self) -> None:
            is_served = self.cycle is not None and not self.cycle.response_complete
            if is_served:
                self._end_wait()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_WITHIN, self._close_late)

        def _close_late(self) -> None:
            self._head_timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

        def _end_wait(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return Protocol


def _http_server(gateway: Gateway) -> Any:
    import uvicorn

    class Server(uvicorn.Server):
        """Without signal handlers of its own: a drain comes first."""

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start" and gateway.draining:
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await gateway(scope, receive, send_last)

    config = uvicorn.Config(
        app,
        http=http_protocol(),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return Server(config)


async def _drain(gateway: Gateway, server: Any) -> None:
    """Serve what has arrived, and nothing more. New connections are refused, so that a balancer
    goes on to the next replica; those that are open end with their next response."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + gateway.settings.limits.drain
    draining = asyncio.ensure_future(gateway.drain())
    await asyncio.sleep(0)  # accepts the connections that wait
    for one in server.servers:
        one.close()
    await draining
    idle_until = loop.time() + LAST_REQUESTS
    while server.server_state.connections and loop.time() < ends:
        if server.server_state.tasks:
            idle_until = loop.time() + LAST_REQUESTS
        elif loop.time() > idle_until:
            break
        await asyncio.sleep(0.02)
    await gateway.runtime.hand_over(max(ends - loop.time(), 1.0))


async def _announce(plan: Plan, listener: socket.socket, runtime: Runtime) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
    more = [f"{url}/{name}" for name in plan.settings.profiles]
    plan.note(f"serving {' '.join((url, *more))}")
    plan.note(runtime.summary())
    for one in runtime.servers:
        if one.error is not None:
            plan.note(f"  {one.name} is {one.health.value}: {one.error}")
    plan.note(f"callers: {_callers(plan.settings)}")
    await _show_console(plan, runtime)
    if not plan.follows_edits and not plan.source.is_one_server:
        plan.note("edits of the configuration are not followed: that needs toolkeep[watch]")


async def _show_console(plan: Plan, runtime: Runtime) -> None:
    if plan.with_console:
        from toolkeep.cli.console import show_console

        await show_console(runtime, plan.output)


def _callers(settings: GatewaySettings) -> str:
    who: list[str] = []
    if settings.keys:
        who.append(f"API keys of {', '.join(settings.keys)}")
    if settings.jwt is not None:
        who.append(f"access tokens of {settings.jwt.issuer}")
    return "; ".join(who) or "everybody on this machine"


# -- workers ------------------------------------------------------------------------------------


def _serve_with_workers(
    plan: Plan, listener: socket.socket, count: int
) -> int | Coroutine[Any, Any, int]:
    """In the parent: until all workers have ended. In a worker: what it is to run."""
    if not hasattr(os, "fork"):
        raise UsageError("--workers needs a system with fork; start several processes instead")
    folder = ""
    if plan.configuration.state is None:
        folder = tempfile.mkdtemp(prefix="toolkeep-")
        plan.options["state"] = f"sqlite://{folder}/state.db"
        plan.options["keys"] = [secrets.token_hex(32)]
    parent = Workers(count)
    if parent.run():
        plan.parent, plan.is_quiet = parent.life, parent.number > 0
        return _run_worker(plan, listener)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return parent.code


async def _run_worker(plan: Plan, listener: socket.socket) -> int:
    """Ends the process without its finalizers: after a fork they take seconds."""
    code = INTERRUPTED
    with contextlib.suppress(asyncio.CancelledError):
        code = await _serve_http(plan, listener)
    sys.stderr.flush()
    os._exit(code)


class Workers:
    """The processes of `--workers`, as their parent sees them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running: dict[int, tuple[int, float]] = {}
        """Number and begin of each, by process id."""
        self._signals = 0
        self._pause = RESTART_PAUSE
        self.life, self._keeps_alive = os.pipe()
        self.number = 0
        self.code = OK

    def run(self) -> bool:
        """Start them, and stay until all have ended. True in a worker."""
        before = {one: signal.signal(one, self._on_signal) for one in SIGNALS}
        for number in range(self._count):
            if self._start(number):
                return True
        while self._running:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            number, began = self._running.pop(pid, (0, 0.0))
            if self._ended(number, os.waitstatus_to_exitcode(status), time.monotonic() - began):
                return True
        for one, handler in before.items():
            signal.signal(one, handler)
        for descriptor in (self.life, self._keeps_alive):
            os.close(descriptor)
        return False

    def _start(self, number: int) -> bool:
        pid = os.fork()
        if pid:
            self._running[pid] = number, time.monotonic()
            return False
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on
        os.close(self._keeps_alive)
        self.number, self._running = number, {}
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        return True

    def _ended(self, number: int, code: int, lived: float) -> bool:
        """A worker has ended: replace it, unless all are to end."""
        if self._signals:
            # A worker that did not serve yet is ended by the signal itself.
            self.code = self.code or (OK if code in (OK, -signal.SIGTERM) else FAILED)
            return False
        if code == USAGE:  # it would be so for each
            self.code = code
            self._pass_on(signal.SIGTERM)
            self._signals = 1
            return False
        logging.getLogger("toolkeep.gateway").warning("worker %d ended with %d", number, code)
        self._pause = (
            min(self._pause * 2, RESTART_PAUSE_MAX) if lived < SHORT_LIFE else RESTART_PAUSE
        )
        time.sleep(self._pause)
        return not self._signals and self._start(number)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for pid in tuple(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
