"""`ConsoleServer`: a console on a port of its own, in the event loop of its runtime.

Listens at loopback only. Ends with the runtime, or when it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Generator
from contextvars import Context
from typing import TYPE_CHECKING

import uvicorn

from toolkeep.console.app import AllowCalls, Console
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep.runtime import Runtime

logger = logging.getLogger("toolkeep.console")

HOST = "127.0.0.1"
VARIABLE = "TOOLKEEP_CONSOLE"
MAX_CONNECTIONS = 100
CLOSE_TIMEOUT = 2
"""Seconds for responses that are under way, when it closes."""
START_TIMEOUT = 10.0


class _Uvicorn(uvicorn.Server):
    """A server without signal handlers: those are the program's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening, self._ended = asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, which wakes ten times as often."""
        seconds = 0
        while not await self.on_tick(10 * seconds):
            seconds += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ConsoleServer:
    """The console of one runtime on a port: `Runtime.serve_console`. One for each runtime."""

    def __init__(self) -> None:
        self.url = ""
        """The link that opens the page, with its token. Keep it secret."""
        self._console: Console | None = None
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ConsoleServer {self.url.partition('#')[0] or 'not started'}>"

    async def start(
        self, runtime: Runtime, port: int, *, allow_calls: AllowCalls, token: str | None
    ) -> None:
        """Begin to listen. Raises `ConfigError`, for example if the port is taken."""
        if self._task is not None:
            remedy = "Close the first one, or open its url"
            raise ConfigError(f"the runtime has a console at {self!r}", remedy=remedy)
        console = self._console = Console(runtime, allow_calls=allow_calls, token=token)
        listener = _listen(port)
        config = uvicorn.Config(
            console,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=CLOSE_TIMEOUT,
        )
        server = self._server = _Uvicorn(config)
        loop = asyncio.get_running_loop()
        serving = server.serve(sockets=[listener])
        self._task = loop.create_task(serving, context=Context(), name="toolkeep console")
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await server.is_listening.wait()
        except BaseException:
            await self.aclose()
            raise
        self.url = console.link(f"http://{HOST}:{listener.getsockname()[1]}")

    async def wait_closed(self) -> None:
        """Return when it has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Stop listening, and end what is under way."""
        task, server, console = self._task, self._server, self._console
        if task is None or server is None or console is None:
            return
        self._task, self.url = None, ""
        server.end()
        console.close()
        try:
            await asyncio.wait((task,), timeout=CLOSE_TIMEOUT + 1)
        finally:
            task.cancel()
        await asyncio.wait((task,))


def _listen(port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is named: else each answer takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(64)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"the console cannot listen at {HOST}:{port}: {reason}"
        raise ConfigError(problem, key="port", remedy="Choose another port, or 0") from None
    return listener


async def serve_from_environment(runtime: Runtime) -> None:
    """Serve the console where TOOLKEEP_CONSOLE asks for it. A failure is a warning: the program
    works without."""
    given = os.environ.get(VARIABLE, "")
    try:
        if not given.isdecimal():
            raise ConfigError(f"{VARIABLE} must be a port, not {given[:20]!r}")
        server = runtime.component(ConsoleServer)
        if server.url:
            return  # it was opened before
        await server.start(runtime, int(given), allow_calls=False, token=None)
    except Exception as error:
        logger.warning("the console is not served: %s", error)
        return
    # Not through logging: the link holds the token.
    sys.stderr.write(f"toolkeep console (pid {os.getpid()}): {server.url}\n")
    sys.stderr.flush()
