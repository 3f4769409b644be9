"""The same runtime for callers without an event loop.

    with Runtime.open("mcp.json") as runtime:
        runtime.call("weather.forecast", {"city": "Oslo"})

Each open runtime has one thread with an event loop, where all of its work is done. May be used
from any number of threads at once, and from none that runs an event loop itself. Whatever is given
to be called back (`on_progress`, filters, observers) is called in the loop's thread: it must not
block, and cannot use this runtime. Plain functions that answer a server's questions are called in
threads of their own, and may do both. Errors are those of `toolkeep.Runtime`.

Whoever is interrupted while waiting (Ctrl-C) has the work cancelled, at the server, too, and goes
on when that has ended. A runtime that was not closed does not keep the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import fields, replace
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from toolkeep._catalogue.tool import Tool as AsyncTool
from toolkeep._rules.unread import Unread, size_of_report
from toolkeep._runtime.portal import GLANCE, Portal, not_open, refuse_loops
from toolkeep.errors import ServerUnavailable
from toolkeep.events import CallEvent
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime as AsyncRuntime

if TYPE_CHECKING:
    from toolkeep._catalogue.catalogue import Catalogue
    from toolkeep._catalogue.tool import Caller
    from toolkeep._engine.call import Call as AsyncCall
    from toolkeep._engine.figures import Figures
    from toolkeep._engine.observing import Observation
    from toolkeep._runtime.names import ToolName
    from toolkeep._runtime.options import Options
    from toolkeep._runtime.status import ServerStatus
    from toolkeep.config import Configuration
    from toolkeep.context import CallContext
    from toolkeep.events import Observer

__all__ = ["Call", "Runtime", "Tool"]

P = ParamSpec("P")
T = TypeVar("T")


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
    """With the signature of that one."""
    return cast("Any", functools.wraps(method))


class Call:
    """A call that is watched, by one thread; see `toolkeep.Call`. Leaving the block early cancels
    the call. Questions among its events may be answered in any thread."""

    def __init__(self, portal: Portal, call: AsyncCall) -> None:
        self._portal, self._call = portal, call
        self._events = Unread[CallEvent](size_of_report)
        self._lock = Lock()
        self._news = SimpleQueue[bool]()
        """True for each event that came; False: that was the last."""
        self._done: Future[CallResult] | None = None

    def __enter__(self) -> Self:
        if self._done is not None:
            raise RuntimeError("a call runs once; stream again for another")
        refuse_loops()
        done = self._done = Future()
        done.add_done_callback(lambda _: self._news.put(False))
        try:
            self._portal.submit(self._watch, done)
        except BaseException:
            self._portal.give_up(done)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.give_up(self._running())

    def __iter__(self) -> Iterator[CallEvent]:
        return self

    def __next__(self) -> CallEvent:
        self._running()
        while True:
            try:
                more = self._news.get(timeout=GLANCE)
            except Empty:
                continue
            if not more:
                self._news.put(False)
                raise StopIteration
            with self._lock:
                if self._events:  # else it was dropped
                    return self._events.popleft()

    @property
    def dropped(self) -> int:
        """How many progress reports and log lines were dropped, because they were not read."""
        return self._call.dropped + self._events.dropped

    def result(self) -> CallResult:
        """The result; raises what the call raised."""
        done = self._running()
        while GLANCE and not done.done():
            wait((done,), timeout=GLANCE)
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
    """A tool that a blocking runtime has resolved: its calls block, too."""

    __slots__ = ()

    @classmethod
    def of(cls, tool: AsyncTool, runtime: Runtime) -> Self:
        same = {field.name: getattr(tool, field.name) for field in fields(tool)}
        return replace(cls(**same), caller=cast("Caller", runtime))

    # A call that blocks cannot stand in for one that is awaited: who resolves knows which it has.
    def call(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
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
    """Many servers, used from any thread; once closed, it may be opened again. The arguments, and
    whatever is not said here, are those of `toolkeep.Runtime`."""

    def __init__(self, config: object = None, **options: Unpack[Options]) -> None:
        self._inner = AsyncRuntime(config, **options)
        self._turn = RLock()  # a signal may come while it is held
        self._portal: Portal | None = None

    @classmethod
    def open(cls, config: object = None, **options: Unpack[Options]) -> Self:
        """`with Runtime.open("mcp.json") as runtime`: one that is open inside of the block."""
        return cls(config, **options)

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    # -- opening and closing --------------------------------------------------------------------

    def connect(self) -> None:
        """Read the configuration and open all servers. Opening twice is opening once."""
        refuse_loops()
        with self._turn:
            was_open = self._portal is not None
            portal = self._portal = self._portal or Portal()
        try:
            portal.run(self._inner.connect)
        except BaseException:
            if not was_open:
                self._leave(portal)
            raise

    def close(self) -> None:
        """Close everything, also what is under way. May be called twice, from any thread."""
        refuse_loops()
        if (portal := self._portal) is not None:
            if portal.forked:
                self._let_go()
                return
            try:
                with contextlib.suppress(ServerUnavailable):  # somebody else has closed it
                    portal.run(self._inner.aclose)
            finally:
                self._leave(portal)

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

    def _let_go(self) -> None:
        """What is open is the parent process's. Whoever held the lock there is not here."""
        self._turn, self._portal = RLock(), None
        asyncio.run(self._inner.aclose())

    def _leave(self, portal: Portal) -> None:
        with self._turn:
            self._portal = None if self._portal is portal else self._portal
        portal.stop()

    def run(self, work: Callable[[AsyncRuntime], Awaitable[T]]) -> T:
        """Do what has no method here, with the `toolkeep.Runtime` behind this one, and wait for it:
        `runtime.run(lambda runtime: run_code(runtime, source))`."""
        return self._open_portal().run(lambda: work(self._inner))

    def _open_portal(self) -> Portal:
        if (portal := self._portal) is None:
            raise not_open()
        return portal

    # -- what is true now: snapshots, made in any thread ----------------------------------------

    @property
    def configuration(self) -> Configuration:
        """What was read, with where each value came from and who still needs approval."""
        return self._inner.configuration

    @property
    def catalogue(self) -> Catalogue:
        """All that is offered to callers without identity, whatever they may see of it."""
        return self._inner.catalogue

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """All servers as they are now, in the order of the configuration."""
        return self._inner.servers

    @property
    def figures(self) -> Figures:
        """What every server and every tool was asked, and how it went."""
        return self._inner.figures

    def summary(self) -> str:
        """`"2/3 servers healthy, 41 tools"`."""
        return self._inner.summary()

    def observe(self, observer: Observer) -> Observation:
        """Have `observer` told every event, in the loop's thread, until the handle is closed."""
        return self._inner.observe(observer)

    # -- everything else ------------------------------------------------------------------------

    @_like(AsyncRuntime.stream)
    def stream(self, *args: Any, **kwargs: Any) -> Call:
        return Call(self._open_portal(), self._inner.stream(*args, **kwargs))

    def resolve(self, names: Iterable[ToolName], context: CallContext | None = None) -> list[Tool]:
        """The tools of these names, in their order: all of them, or an error that names all that
        are missing. They can be called as they are, and then speak for the same context."""
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
    request = _blocking(AsyncRuntime.request)
    get_prompt = _blocking(AsyncRuntime.get_prompt)
    read_resource = _blocking(AsyncRuntime.read_resource)
    complete = _blocking(AsyncRuntime.complete)
    subscribe = _blocking(AsyncRuntime.subscribe)
    unsubscribe = _blocking(AsyncRuntime.unsubscribe)
