"""`Runtime` for threads without an event loop: its methods block.

The servers live in an event loop in a thread of their own. When a blocking call is interrupted, the
work in that thread is cancelled, and the call returns after it has ended. The thread does not keep
the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from dataclasses import fields, replace
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

from toolkeep._catalogue.tool import Tool as AsyncTool
from toolkeep._client.call import CallCancelled
from toolkeep._rules.limits import ReportBuffer, report_size
from toolkeep.errors import ServerUnavailable, WrongLoop
from toolkeep.events import CallEvent
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime as AsyncRuntime

if TYPE_CHECKING:
    from toolkeep._catalogue.catalogue import Catalogue
    from toolkeep._catalogue.tool import ToolCaller
    from toolkeep._client.call import Call as AsyncCall
    from toolkeep._client.observers import Observation
    from toolkeep._client.stats import Stats
    from toolkeep._runtime.options import RuntimeOptions
    from toolkeep._runtime.registry import ServerStatus
    from toolkeep._runtime.resolve import ToolName
    from toolkeep._runtime.session_pool import SessionStatus
    from toolkeep._transport.trace import OnTrace
    from toolkeep.config import Configuration
    from toolkeep.config.spec import ConfigInput
    from toolkeep.context import CallContext
    from toolkeep.events import Observer
    from toolkeep.state.shared import StateStatus

__all__ = ["Call", "Runtime", "Tool"]

T = TypeVar("T")
P = ParamSpec("P")
Work = Callable[[], Awaitable[T]]

POLL_INTERVAL = 0.1 if sys.platform == "win32" else None
"""Seconds between wake-ups: on Windows, Ctrl-C does not interrupt a thread that waits for a
lock."""
_STOP_GRACE = 1.0
"""Seconds for running work to end by itself after the runtime was closed; then it is cancelled."""


class LoopThread:
    """An event loop in a thread, for one opening of a runtime. Used from any thread that runs no
    event loop.

    anyio's portal does not fit: its futures end before the work that they cancel has ended, and the
    interpreter would wait at exit for a portal that was not stopped.
    """

    def __init__(self) -> None:
        self._lock, self._is_stopped = RLock(), False
        self._process = os.getpid()
        self._jobs: dict[Future[Any], asyncio.Task[Any]] = {}
        started = Future[asyncio.AbstractEventLoop]()
        target = functools.partial(asyncio.run, self._run_loop(started))
        self._thread = Thread(target=target, name="toolkeep-runtime", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def run(self, work: Work[T]) -> T:
        """Run `work` in the loop, and wait for its result."""
        check_no_running_loop()
        done = Future[T]()
        try:
            self.submit(work, done)
            while POLL_INTERVAL and not done.done():
                wait((done,), timeout=POLL_INTERVAL)
            return done.result()
        except BaseException:
            self.cancel(done)
            raise

    def submit(self, work: Work[T], done: Future[T]) -> None:
        """Run `work` in the loop, with the context variables of this thread."""
        if self.forked:
            text = "this runtime was opened in another process. Close it, or make a new one here"
            raise WrongLoop(text)
        if not self._call_soon(self._start, work, done, copy_context()):
            raise not_open_error()

    @property
    def forked(self) -> bool:
        """Whether the thread belongs to the parent process."""
        return self._process != os.getpid()

    def cancel(self, done: Future[Any]) -> None:
        """Cancel this work, and wait until it has ended."""
        if not done.done() and self._call_soon(self._cancel, done):
            wait((done,))

    def stop(self) -> None:
        """End running work, and the thread."""
        self._call_soon(self._end.set)
        self._thread.join()

    def _call_soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Call in the loop, in order. False: the loop has stopped."""
        if not self._thread.is_alive():
            return False  # in a forked process, the thread does not exist
        with self._lock:
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(function, *args)
            return not self._is_stopped

    # -- in the loop ----------------------------------------------------------------------------

    async def _run_loop(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._end = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        try:
            await self._end.wait()
        finally:
            with self._lock:
                self._is_stopped = True
            await asyncio.sleep(0)  # start what was submitted until now
            if self._jobs:
                await asyncio.wait(self._jobs.values(), timeout=_STOP_GRACE)
            for task in self._jobs.values():
                task.cancel()

    def _start(self, work: Work[Any], done: Future[Any], context: Context) -> None:
        async def job() -> Any:
            return await work()

        task = self._jobs[done] = self._loop.create_task(job(), context=context)
        task.add_done_callback(functools.partial(self._resolve, done))

    def _resolve(self, done: Future[Any], task: asyncio.Task[Any]) -> None:
        del self._jobs[done]
        error = _cancelled_error() if task.cancelled() else task.exception()
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())

    def _cancel(self, done: Future[Any]) -> None:
        task = self._jobs.get(done)
        if task is not None:
            task.cancel()
        elif not done.done():  # interrupted before it was submitted
            done.set_exception(not_open_error())


def not_open_error() -> ServerUnavailable:
    text = "the runtime is not open: use `with Runtime.open(…)`, or connect() first"
    return ServerUnavailable(text, server="runtime")


def _cancelled_error() -> CallCancelled:
    return CallCancelled("the call was cancelled; it may have run")


def check_no_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    text = "this thread runs an event loop, which must not block: use `toolkeep.Runtime` there"
    raise WrongLoop(text)


def _blocking(
    method: Callable[Concatenate[AsyncRuntime, P], Awaitable[T]],
) -> Callable[Concatenate[Runtime, P], T]:
    @functools.wraps(method)
    def blocking(self: Runtime, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(lambda inner: method(inner, *args, **kwargs))

    return blocking


def _like(
    method: Callable[Concatenate[AsyncRuntime, P], Any],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Runtime, P], T]]:
    """Give the function the signature and docstring of `method`."""
    return cast("Any", functools.wraps(method))


class Call:
    """A call that one thread watches; see `toolkeep.Call`. Leaving the block early cancels it.
    `InputNeeded` events may be answered from any thread."""

    def __init__(self, loop_thread: LoopThread, call: AsyncCall) -> None:
        self._loop_thread, self._call = loop_thread, call
        self._events = ReportBuffer[CallEvent](report_size)
        self._lock = Lock()
        self._news = SimpleQueue[bool]()
        """True for each event; False after the last."""
        self._done: Future[CallResult] | None = None

    def __repr__(self) -> str:
        return repr(self._call)

    def __enter__(self) -> Self:
        if self._done is not None:
            raise RuntimeError("a call runs once; stream again for another")
        check_no_running_loop()
        done = self._done = Future()
        done.add_done_callback(lambda _: self._news.put(False))
        try:
            self._loop_thread.submit(self._watch, done)
        except BaseException:
            self._loop_thread.cancel(done)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop_thread.cancel(self._running())

    def __iter__(self) -> Iterator[CallEvent]:
        return self

    def __next__(self) -> CallEvent:
        self._running()
        while True:
            try:
                more = self._news.get(timeout=POLL_INTERVAL)
            except Empty:
                continue
            if not more:
                self._news.put(False)
                raise StopIteration
            with self._lock:
                if self._events:  # else the event was dropped
                    return self._events.popleft()

    @property
    def dropped(self) -> int:
        """How many progress reports and log lines were dropped because they were not read in
        time."""
        return self._call.dropped + self._events.dropped

    def result(self) -> CallResult:
        """Wait for the result; raises what the call raised."""
        done = self._running()
        while POLL_INTERVAL and not done.done():
            wait((done,), timeout=POLL_INTERVAL)
        return done.result()

    def _running(self) -> Future[CallResult]:
        if self._done is None:
            raise RuntimeError("enter the call first: with runtime.stream(…) as call")
        return self._done

    async def _watch(self) -> CallResult:
        async with self._call as call:
            async for event in call:
                with self._lock:
                    self._events.append(event)
                self._news.put(True)
            return await call.result()


class Tool(AsyncTool):
    """A tool that a blocking runtime has resolved: its calls block."""

    __slots__ = ()

    @classmethod
    def of(cls, tool: AsyncTool, runtime: Runtime) -> Self:
        same = {field.name: getattr(tool, field.name) for field in fields(tool)}
        return replace(cls(**same), caller=cast("ToolCaller", runtime))

    # Incompatible on purpose: the runtime that resolved the tool decides whether calls block.
    @overload
    def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: None = None,
        **options: Any,
    ) -> CallResult: ...

    @overload
    def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: type[T],
        **options: Any,
    ) -> T: ...

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Any:
        """Call it. The options are those of `Runtime.call`."""
        caller = cast("Runtime", self.caller)
        return caller.call(self, arguments, context=context or self.context, **options)

    def stream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        """Call it and watch, as with `Runtime.stream`."""
        caller = cast("Runtime", self.caller)
        return caller.stream(self, arguments, context=context or self.context, **options)


class Runtime:
    """Many servers, used from any thread. Once closed, it may be opened again. Arguments and
    methods are those of `toolkeep.Runtime`, except that the methods block."""

    def __init__(self, config: ConfigInput = None, **options: Unpack[RuntimeOptions]) -> None:
        self._inner = AsyncRuntime(config, **options)
        self._lock = RLock()  # reentrant: a signal handler may run while it is held
        self._loop_thread: LoopThread | None = None

    @classmethod
    def open(cls, config: ConfigInput = None, **options: Unpack[RuntimeOptions]) -> Self:
        """A runtime that is open inside of the block: `with Runtime.open("mcp.json") as
        runtime`."""
        return cls(config, **options)

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    # -- opening and closing --------------------------------------------------------------------

    def connect(self) -> None:
        """Read the configuration and open all servers. Does nothing if the runtime is open."""
        check_no_running_loop()
        with self._lock:
            was_open = self._loop_thread is not None
            loop_thread = self._loop_thread = self._loop_thread or LoopThread()
        try:
            loop_thread.run(self._inner.connect)
        except BaseException:
            if not was_open:
                self._stop(loop_thread)
            raise

    def close(self) -> None:
        """Close everything, also running calls. May be called twice, from any thread."""
        check_no_running_loop()
        if (loop_thread := self._loop_thread) is not None:
            if loop_thread.forked:
                self._detach()
                return
            try:
                with contextlib.suppress(ServerUnavailable):  # another thread has closed it
                    loop_thread.run(self._inner.aclose)
            finally:
                self._stop(loop_thread)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _detach(self) -> None:
        """Let go after a fork: servers and lock belong to the parent process."""
        self._lock, self._loop_thread = RLock(), None
        asyncio.run(self._inner.aclose())

    def _stop(self, loop_thread: LoopThread) -> None:
        with self._lock:
            self._loop_thread = None if self._loop_thread is loop_thread else self._loop_thread
        loop_thread.stop()

    def run(self, work: Callable[[AsyncRuntime], Awaitable[T]]) -> T:
        """Do something that has no method here with the `toolkeep.Runtime` behind this one, and
        wait for it: `runtime.run(lambda runtime: run_code(runtime, source))`."""
        return self._require_open().run(lambda: work(self._inner))

    def _require_open(self) -> LoopThread:
        if (loop_thread := self._loop_thread) is None:
            raise not_open_error()
        return loop_thread

    # -- status: snapshots, from any thread -----------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    @property
    def configuration(self) -> Configuration:
        """The configuration that was read, with the origin of each value and the servers that need
        approval."""
        return self._inner.configuration

    @property
    def catalogue(self) -> Catalogue:
        """Everything that is offered to callers without identity, before filters and
        permissions."""
        return self._inner.catalogue

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """The state of all servers, in the order of the configuration."""
        return self._inner.servers

    @property
    def stats(self) -> Stats:
        """Counts and durations of the calls of every server and every tool."""
        return self._inner.stats

    @property
    def state(self) -> StateStatus | None:
        """Whether the store that processes share can be used; None: there is none."""
        return self._inner.state

    def summary(self) -> str:
        """`"2/3 servers healthy, 41 tools"`, and the store, if it is down."""
        return self._inner.summary()

    @property
    def sessions(self) -> tuple[SessionStatus, ...]:
        """The clients of all servers: the servers' own, and those of principals."""
        return self._inner.sessions

    def redact(self, server: str, value: Any) -> Any:
        """A copy of a JSON value of a server without the secrets that the server was given: keys,
        header values, environment variables. For what is shown to others than the caller."""
        return self._inner.redact(server, value)

    def trace(self, server: str, on_trace: OnTrace | None) -> None:
        """Call `on_trace`, in the thread of the loop, with what passes over the connections of one
        server from now on, without secrets. None: stop. Streams that are open already are not
        traced."""
        self._inner.trace(server, on_trace)

    def observe(self, observer: Observer) -> Observation:
        """Call `observer` with every event, in the thread of the loop, until the returned handle is
        closed."""
        return self._inner.observe(observer)

    # -- the methods of `toolkeep.Runtime` ------------------------------------------------------

    @_like(AsyncRuntime.stream)
    def stream(self, *args: Any, **kwargs: Any) -> Call:
        return Call(self._require_open(), self._inner.stream(*args, **kwargs))

    def resolve(self, names: Iterable[ToolName], context: CallContext | None = None) -> list[Tool]:
        """The tools of these names, in their order: all of them, or an error that names all that
        are missing. Their `call` acts for the same context."""
        found = self.run(lambda inner: inner.resolve(names, context))
        return [Tool.of(tool, self) for tool in found]

    @_like(AsyncRuntime.search)
    def search(self, *args: Any, **kwargs: Any) -> list[Tool]:
        found = self.run(lambda inner: inner.search(*args, **kwargs))
        return [Tool.of(tool, self) for tool in found]

    call = _blocking(AsyncRuntime.call)
    read_result = _blocking(AsyncRuntime.read_result)
    catalogue_for = _blocking(AsyncRuntime.catalogue_for)
    refresh = _blocking(AsyncRuntime.refresh)
    reconnect = _blocking(AsyncRuntime.reconnect)
    add = _blocking(AsyncRuntime.add)
    remove = _blocking(AsyncRuntime.remove)
    reload = _blocking(AsyncRuntime.reload)
    forget = _blocking(AsyncRuntime.forget)
    end_session = _blocking(AsyncRuntime.end_session)
    hand_over = _blocking(AsyncRuntime.hand_over)
    serve_console = _blocking(AsyncRuntime.serve_console)
    begin_login = _blocking(AsyncRuntime.begin_login)
    complete_login = _blocking(AsyncRuntime.complete_login)
    logout = _blocking(AsyncRuntime.logout)
    request = _blocking(AsyncRuntime.request)
    get_prompt = _blocking(AsyncRuntime.get_prompt)
    read_resource = _blocking(AsyncRuntime.read_resource)
    complete = _blocking(AsyncRuntime.complete)
    subscribe = _blocking(AsyncRuntime.subscribe)
    unsubscribe = _blocking(AsyncRuntime.unsubscribe)
