"""`ServerGroup`: opens, watches, replaces and closes many servers of any kind.

Operations run one at a time, each in its own task: an opening that is cancelled is reverted, a
closing always completes. A group never sends a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from time import time
from types import TracebackType
from typing import Any, Generic, Never, Protocol, Self, TypeVar, cast

from toolkeep._client.loop_guard import LoopGuard, run_to_completion
from toolkeep._client.observers import Observation, Observers
from toolkeep._rules.backoff import Backoff
from toolkeep._rules.health import (
    Member,
    MemberState,
    active_servers,
    configured_servers,
    connected_servers,
    errors_by_server,
    failed_servers,
    health_after,
    health_check_delay,
    health_summary,
    is_recoverable,
    member_retry_delay,
)
from toolkeep._tasks import foreign_code
from toolkeep.client import ping_timeout
from toolkeep.config import redact_url
from toolkeep.errors import ConfigError, ServerUnavailable, UnknownServer
from toolkeep.events import (
    Event,
    Health,
    HealthChanged,
    Observer,
    ServerAdded,
    ServerLost,
    ServerRemoved,
)

__all__ = ["Backoff", "Connectable", "Member", "MemberState", "ServerGroup"]

logger = logging.getLogger("toolkeep.group")

CANCEL_GRACE = 1.0
"""Seconds beyond a timeout after which a server that ignores its cancellation is abandoned."""
_REOPEN_BACKOFF = Backoff(first=0.5, cap=30.0)
_CLOSED_BEFORE = "it was closed before it was opened"
_PING_SHARE = 0.9
"""The ping's share of a health check. In the rest the client handles a ping without an answer."""

_DURATIONS = ("connect_timeout", "cleanup_timeout", "health_interval")

_URL = re.compile(r"https?://\S+")

Ping = Callable[[], Awaitable[Any]]


class Connectable(Protocol):
    """Anything that can be opened and closed. After a failed or cancelled `connect`, `cleanup` is
    called once, in the same task, and closes whatever was opened by then. If it fails, it is called
    again, by the next attempt: `connect` follows only a `cleanup` that succeeded.

    Optional attributes: `name` identifies it. `connect_timeout` asks for more time than the group
    grants. `ping()` makes the group check its health; it must use the open session and may return
    the seconds it took. `report_failures(to)` is given a function to call with an error when calls
    fail, and with None when they are answered again: meanwhile it is among the failed.
    """

    def connect(self) -> Awaitable[Any]: ...

    def cleanup(self) -> Awaitable[Any]: ...


S = TypeVar("S", bound=Connectable)


@dataclass(slots=True, kw_only=True)
class GroupSettings:
    """The options of a group, the same for all members. A change is checked at once and counts from
    the next opening or closing on."""

    strict: bool
    """Whether one failure reverts an operation and is raised."""
    drop_failed: bool
    """Whether `active` leaves out the servers that are not connected."""
    parallel: bool
    """Whether servers are opened in parallel, or one after the other."""
    connect_timeout: float
    cleanup_timeout: float
    health_interval: float | None
    """Seconds between two health checks; None: no health checks."""
    backoff: Backoff | None
    """The pauses between attempts to reopen a failed member; None: only `reconnect` reopens it."""
    suppress_cancelled: bool
    """Whether a `CancelledError` that a server's library raised by itself is a failure of that
    server; if False, it is raised."""

    def __setattr__(self, key: str, value: Any) -> None:
        off = key == "health_interval" and value is None
        if key in _DURATIONS and not off and not _is_duration(value):
            remedy = "Give a finite number above 0: every wait of a group is bounded"
            raise ConfigError("it must be a positive number of seconds", remedy=remedy, key=key)
        object.__setattr__(self, key, value)

    def connect_timeout_for(self, server: object) -> float:
        """The connect timeout of one server. A server may ask for more time than the others: a
        program that is downloaded first, for example."""
        own: object = getattr(server, "connect_timeout", None)
        if not isinstance(own, int | float) or isinstance(own, bool):
            return self.connect_timeout
        return max(float(own), self.connect_timeout)

    @property
    def slow_retry_interval(self) -> float:
        """Seconds between two attempts after a failure that will not pass soon."""
        return self.health_interval or 60.0


def _is_duration(seconds: Any) -> bool:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return number and 0 < seconds <= sys.float_info.max


@dataclass(frozen=True, slots=True)
class HealthCheckResult:
    """The result of one health check."""

    health: Health
    error: BaseException | None = None
    latency: float | None = None


async def run_health_checks(
    ping: Ping,
    interval: float,
    within: float,
    backoff: Backoff,
    report: Callable[[HealthCheckResult], None],
    check_now: asyncio.Event,
) -> Never:
    """Check a member's health until cancelled: at every interval, and soon after `check_now` is
    set."""
    misses, wait = 0, interval * random.random()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await check_now.wait()
                await asyncio.sleep(backoff.delay(1, random.random()))
        check_now.clear()
        result = await check_health(ping, within)
        misses = misses + 1 if result.health is Health.DOWN else 0
        report(result)
        wait = health_check_delay(
            result.health, misses, backoff, interval=interval, jitter=random.random()
        )


async def check_health(ping: Ping, within: float) -> HealthCheckResult:
    loop = asyncio.get_running_loop()
    started = loop.time()
    token = ping_timeout.set(within * _PING_SHARE)
    try:
        async with asyncio.timeout(within):
            with foreign_code():
                answer = await ping()
    except Exception as error:
        return HealthCheckResult(health_after(error), error, None)
    finally:
        ping_timeout.reset(token)
    took = answer if isinstance(answer, float) else loop.time() - started
    return HealthCheckResult(Health.HEALTHY, latency=took)


def find_ping(server: object) -> Ping | None:
    ping = getattr(server, "ping", None)
    return cast("Ping", ping) if callable(ping) else None


class MemberTaskListener(Protocol):
    """Receives what happens to a `MemberTask`, in this order."""

    def on_opened(self, task: MemberTask, error: BaseException | None) -> None:
        """The server is connected, or failed to connect."""
        ...

    def on_lost(self, task: MemberTask, error: BaseException) -> None:
        """The connection ended, and its release was not requested."""
        ...

    def on_ended(self, task: MemberTask) -> None:
        """Everything is closed; `task.close_error` is what closing it raised."""
        ...


class MemberTask:
    """The task that opens one server, holds it and closes it. Made by a `GroupMember`, at most one
    at a time for each server; used once."""

    def __init__(
        self,
        server: Connectable,
        name: str,
        settings: GroupSettings,
        listener: MemberTaskListener,
        *,
        awaited: bool,
        clean_first: bool,
        health_checks: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        """`clean_first`: the last `cleanup` failed, so that one must succeed before `connect`."""
        self._server, self._name, self._settings, self._listener = server, name, settings, listener
        self._health_checks, self._clean_first = health_checks, clean_first
        self.is_awaited = awaited
        """Whether a caller waits for the outcome, and raises it if necessary."""
        self.outcome: asyncio.Future[BaseException | None] = asyncio.Future()
        self.close_error: BaseException | None = None
        self._ended = asyncio.Event()
        self._release = asyncio.Event()
        self._connect_timer: asyncio.Timeout | None = None
        self._deadline = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_joinable(self) -> bool:
        """Whether it is opening and was not released."""
        return not self.outcome.done() and not self.is_released

    @property
    def is_released(self) -> bool:
        return self._release.is_set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(), context=Context(), name=f"toolkeep {self._name}")
        self._task = task

    def release(self) -> None:
        """Close the server, now or as soon as it is open; an opening is cut short."""
        self._release.set()
        # Use the timeout, not `Task.cancel`: a cancellation stays counted in the task, and later
        # code in it could not tell it from a cancellation of its own.
        if self._connect_timer is not None and not self._connect_timer.expired():
            self._connect_timer.reschedule(asyncio.get_running_loop().time())

    async def wait_opened(self) -> bool:
        """Wait for the outcome; False: it is still opening after its timeout."""
        time_left = self._settings.connect_timeout
        while not self.outcome.done() and time_left > 0:
            await asyncio.wait((self.outcome,), timeout=time_left)
            # Its time starts when the task first runs: a server that blocks the event loop (with a
            # slow import, for example) takes none from the others.
            time_left = self._deadline - asyncio.get_running_loop().time()
        if not self.outcome.done():
            await asyncio.wait((self.outcome,), timeout=CANCEL_GRACE)
        return self.outcome.done()

    async def wait_ended(self) -> bool:
        """Wait for the end after `release`; False: it is still closing after its timeout."""
        for within in (self._settings.cleanup_timeout, CANCEL_GRACE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._ended.wait()
        return self._ended.is_set()

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        obstacle = await self._clean_up_before()
        error = await self._connect() if obstacle is None else obstacle
        self._resolve(error)
        if error is None:
            await self._hold()
        if obstacle is None:
            self.close_error = await self._cleanup()
        self._finish()
        if error is not None and not self.is_awaited:
            _reraise_fatal(error)
        if self.close_error is not None and not self.is_released:
            _reraise_fatal(self.close_error)

    async def _clean_up_before(self) -> BaseException | None:
        """Close what an earlier attempt may have left open. Returns why it must not connect."""
        if self._clean_first:
            settings = self._settings
            seconds = settings.cleanup_timeout + settings.connect_timeout_for(self._server)
            self._deadline = asyncio.get_running_loop().time() + seconds
            self.close_error = await self._cleanup()
        if self.close_error is not None:
            return self.close_error
        return self._unavailable(_CLOSED_BEFORE) if self.is_released else None

    def _resolve(self, error: BaseException | None) -> None:
        self.outcome.set_result(error)
        self._listener.on_opened(self, error)

    def _finish(self) -> None:
        self._ended.set()
        self._listener.on_ended(self)

    async def _connect(self) -> BaseException | None:
        within = self._settings.connect_timeout_for(self._server)
        self._deadline = asyncio.get_running_loop().time() + within
        timer = self._connect_timer = asyncio.timeout_at(self._deadline)
        try:
            async with timer:
                await self._server.connect()
        except BaseException as error:
            return self._to_error(error, timer, "connected", within)
        finally:
            self._connect_timer = None
        return None

    async def _hold(self) -> None:
        """Hold the server open until it is released, or a library cancels this task."""
        async with self._health_check_task():
            try:
                await self._release.wait()
            except asyncio.CancelledError as error:
                if not self.is_released:
                    self._listener.on_lost(self, self._stray_cancellation(error))

    @contextlib.asynccontextmanager
    async def _health_check_task(self) -> AsyncGenerator[None]:
        """Run the health checks in a task of their own meanwhile."""
        result = (
            asyncio.get_running_loop().create_task(self._health_checks())
            if self._health_checks
            else None
        )
        yield
        if result is not None:
            result.cancel()
            # A library's cancel scope may cancel this task at every await until `cleanup`.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((result,), timeout=CANCEL_GRACE)

    async def _cleanup(self) -> BaseException | None:
        timer = asyncio.timeout(self._settings.cleanup_timeout)
        try:
            async with timer:
                await self._server.cleanup()
        except BaseException as error:
            return self._to_error(error, timer, "closed", self._settings.cleanup_timeout)
        return None

    # -- errors ---------------------------------------------------------------------------------

    def _to_error(
        self, error: BaseException, timer: asyncio.Timeout, what: str, within: float
    ) -> BaseException:
        """Turn our own timeout and a library's cancellation into `ServerUnavailable`; keep the
        rest."""
        if isinstance(error, asyncio.CancelledError):
            return self._stray_cancellation(error)
        if not isinstance(error, TimeoutError) or not timer.expired():
            return error
        closed = self.is_released and what == "connected"
        text = "it was closed while connecting" if closed else f"not {what} within {within:g} s"
        return self._unavailable(text, error)

    def _stray_cancellation(self, error: asyncio.CancelledError) -> BaseException:
        if not self._settings.suppress_cancelled:
            return error
        return self._unavailable("a library cancelled it by itself", error)

    def _unavailable(self, why: str, cause: BaseException | None = None) -> ServerUnavailable:
        error = ServerUnavailable(f"{self._name}: {why}", server=self._name)
        error.__cause__ = cause
        return error


def _reraise_fatal(error: BaseException) -> None:
    """Raise an error that is not a server's failure. A cancellation ends with its own task."""
    if not is_recoverable(error) and not isinstance(error, asyncio.CancelledError):
        raise error


class GroupMember(Generic[S]):
    """One server in a group: its status, its task and its reopening. Belongs to one group; used by
    the operation that runs and by its own timer."""

    def __init__(
        self, server: S, name: str, settings: GroupSettings, emit: Callable[[Event], None]
    ) -> None:
        self.status: Member[S] = Member(name, server)
        self._settings, self.emit = settings, emit
        self._task: MemberTask | None = None
        self._failed_cleanups = 0
        """How often `cleanup` has failed since it was last connected: what it had opened may still
        be open."""
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._opened_at = 0.0
        self._check_now = asyncio.Event()

    def __repr__(self) -> str:
        return f"<GroupMember {self.name!r}, {self.status.state.value}>"

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def _is_open(self) -> bool:
        """Whether it is open, even if its calls fail."""
        task = self._task
        opened = task is not None and task.outcome.done() and task.outcome.result() is None
        return opened and task is not None and not task.is_released

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, and nothing will be opened by itself."""
        return self.status.state is MemberState.IDLE

    # -- opening --------------------------------------------------------------------------------

    async def open(self) -> BaseException | None:
        """Open it, unless it is open; returns the error, or None. One attempt, shared with the
        timer's."""
        self.cancel_reopen()
        if self.status.is_connected:
            return None
        if self._task is not None and not self._task.is_joinable:
            if self._is_open:  # its calls fail: close it and open it again
                self._task.release()
            await self._task.wait_ended()
            self.cancel_reopen()
        task = self._task
        if task is not None and task.is_joinable:
            task.is_awaited = True
            return await self._outcome(task)
        self._set_status(self.status.opening())
        if task is not None:
            return self._fail_with("its previous connection is still closing")
        return await self._outcome(self._begin(awaited=True))

    def reopen(self) -> None:
        """Open it in the background, if nothing is open."""
        if self.is_idle and self._task is None:
            self._reopen_now()

    def detach_caller(self) -> None:
        """The caller that waited for the attempt is gone; the attempt goes on."""
        if self._task is not None:
            self._task.is_awaited = False

    async def _outcome(self, task: MemberTask) -> BaseException | None:
        if await task.wait_opened():
            return task.outcome.result()
        task.release()
        return self._fail_with("connecting timed out, and it ignores its cancellation")

    def _fail_with(self, why: str) -> BaseException:
        error = ServerUnavailable(f"{self.name}: {why}", server=self.name)
        self._fail(error)
        return error

    def _begin(self, *, awaited: bool) -> MemberTask:
        self._tries += 1
        server, health_checks = self.status.server, self._health_checks()
        report_failures = getattr(server, "report_failures", None)
        if callable(report_failures):
            report_failures(self._on_failure_report)
        self._task = task = MemberTask(
            server,
            self.name,
            self._settings,
            self,
            awaited=awaited,
            clean_first=self._failed_cleanups > 0,
            health_checks=health_checks,
        )
        task.start()
        return task

    def _health_checks(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        ping, interval, settings = find_ping(self.status.server), self._interval(), self._settings
        self._check_now = asyncio.Event()
        if ping is None or not interval:
            return None
        within, backoff = min(interval, settings.connect_timeout), settings.backoff or Backoff()
        report, check_now = self._on_health_check, self._check_now
        return partial(run_health_checks, ping, interval, within, backoff, report, check_now)

    def _interval(self) -> float | None:
        """Seconds between two health checks. The server's own value wins, if health is checked at
        all."""
        own = getattr(self.status.server, "health_interval", None)
        common = self._settings.health_interval
        return own if common is not None and isinstance(own, int | float) else common

    # -- reopening in the background ------------------------------------------------------------

    def _reopen_now(self) -> None:
        """Start an attempt that no caller awaits."""
        self._timer = None
        self._set_status(self.status.opening())
        self._begin(awaited=False)

    def _schedule(self) -> None:
        """Schedule the next attempt, if the failure may pass."""
        error, backoff = self.status.error, self._settings.backoff
        if error is None or backoff is None or not is_recoverable(error):
            return
        jitter = random.random()
        wait = member_retry_delay(
            error, self._tries, backoff, slow=self._settings.slow_retry_interval, jitter=jitter
        )
        if self._failed_cleanups > 1:  # a cleanup that fails again will not succeed soon
            wait = max(wait, _REOPEN_BACKOFF.delay(self._failed_cleanups, jitter))
        self._timer = asyncio.get_running_loop().call_later(wait, self._reopen_now)

    def cancel_reopen(self) -> None:
        """Cancel the scheduled attempt."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what its task reports ------------------------------------------------------------------

    def on_opened(self, task: MemberTask, error: BaseException | None) -> None:
        if task.is_released or task is not self._task:
            return
        if error is not None:
            self._fail(error)
            return
        self._opened_at, self._failed_cleanups = asyncio.get_running_loop().time(), 0
        self._set_status(self.status.opened(), ServerAdded(server=self.name, attempt=self._tries))

    def on_lost(self, task: MemberTask, error: BaseException) -> None:
        if task is not self._task or not (self.status.is_connected or self.status.is_failed):
            return
        lasted = asyncio.get_running_loop().time() - self._opened_at
        if self._settings.backoff is None or lasted > self._settings.backoff.cap:
            self._tries = 0
        self._fail(error)

    def on_ended(self, task: MemberTask) -> None:
        if task is not self._task:
            return
        self._task = None
        self._failed_cleanups = 0 if task.close_error is None else self._failed_cleanups + 1
        if task.close_error is not None:
            text = "%s: closing failed, so it must succeed before the server is opened again: %s"
            logger.warning(text, self.name, _without_secrets(repr(task.close_error)))
        self._schedule()

    def _fail(self, error: BaseException) -> None:
        if self.status.state is MemberState.OPENING and is_recoverable(error):
            why = _without_secrets(str(error)) or type(error).__name__
            logger.warning("%s is skipped for now: %s", self.name, why)
        is_open = self.status.state is MemberState.FAILED  # open, but its calls fail
        failed = self.status.still_failing(error) if is_open else self.status.failing(error)
        self._set_status(failed, ServerLost(server=self.name, error=error))

    def _on_health_check(self, result: HealthCheckResult) -> None:
        if self.status.is_failed and self._is_open and result.health is not Health.DOWN:
            self._set_status(
                self.status.opened().checked(result.health, result.error, result.latency)
            )
        elif self.status.is_connected:
            self._set_status(self.status.checked(result.health, result.error, result.latency))

    def _on_failure_report(self, error: BaseException | None) -> None:
        """Calls fail, or are answered again. The member stays open: a client replaces its
        connections."""
        if not self._is_open:
            return
        if error is not None and self.status.is_connected:
            self._set_status(self.status.failing(error))
            self._check_now.set()
        elif error is None and self.status.is_failed:
            self._set_status(self.status.opened())

    def _set_status(self, status: Member[S], event: Event | None = None) -> None:
        before = self.status.health
        self.status = status if status.health is before else replace(status, health_since=time())
        if event is not None:
            self.emit(event)
        if status.health is not before:
            changed = HealthChanged(
                server=self.name,
                health=status.health,
                before=before,
                error=status.last_error if status.is_unhealthy else None,
                latency=status.latency,
            )
            self.emit(changed)

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> BaseException | None:
        """Close what is open, or could not be closed before, within the timeout; returns the error
        that closing raised."""
        self.cancel_reopen()
        self._tries = 0
        if self.is_idle:
            return await self._close_task()
        self._set_status(self.status.closing())
        error = await self._close_task()
        self._set_status(self.status.closed(error), ServerRemoved(server=self.name, error=error))
        return error

    async def _close_task(self) -> BaseException | None:
        task = self._task
        if task is None and self._failed_cleanups:
            task = self._begin(awaited=True)
        if task is None:
            return None
        task.release()
        if await task.wait_ended():
            return task.close_error
        # Its task is abandoned: it ignores its cancellation.
        error = ServerUnavailable(
            f"{self.name}: closing timed out, and it ignores its cancellation", server=self.name
        )
        logger.warning("%s", error)
        return error

    def give_up_cleanup(self) -> None:
        """Forget a `cleanup` that failed or does not end, so that the server can be opened."""
        self._failed_cleanups = 0
        if self._task is not None and self._task.is_released:
            self._task = None

    def detach(self) -> None:
        """Drop everything without closing it: its event loop is gone."""
        self._task = self._timer = None
        self._failed_cleanups = 0
        self._tries = 0
        self.status = Member(self.name, self.status.server)


Work = Callable[[], Awaitable[None]]
Confirm = Callable[[], Awaitable[None]]
"""Returns when the caller knows the result; until then the work may have to be reverted."""
RevertibleWork = Callable[[Confirm], Awaitable[None]]
Operation = asyncio.Task[BaseException | None]


class OperationQueue:
    """Runs the operations of one group one at a time. Belongs to an event loop while something is
    open or running in it.

    `is_idle` says whether the group has nothing open; `detach` is called when what was open is lost
    with its event loop.
    """

    def __init__(self, is_idle: Callable[[], bool], detach: Callable[[], None]) -> None:
        self._is_idle, self._detach = is_idle, detach
        self._running: set[Operation] = set()
        self._revertible: set[Operation] = set()
        self._reverted: set[Operation] = set()
        self._lock, self._loop_guard = asyncio.Lock(), LoopGuard("group", "group", "cleanup_all()")

    async def run_revertible(self, work: RevertibleWork) -> bool:
        """Run work that reverts itself when cancelled: with its caller, or by `revert_all`. False:
        it was reverted by `revert_all`."""
        ready: asyncio.Future[None] = asyncio.Future()
        acknowledged: asyncio.Future[None] = asyncio.Future()

        async def confirmed() -> None:
            # The caller may be cancelled between the end of the operation and its own next step:
            # then it would never know that something is open.
            ready.set_result(None)
            await acknowledged

        operation = self._begin(lambda: work(confirmed))
        self._revertible.add(operation)
        try:
            await asyncio.wait((operation, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not acknowledged.done() and operation not in self._reverted:
                acknowledged.set_result(None)
                return True
            await asyncio.wait((operation,))
            if operation not in self._reverted:
                _raise_outcome(operation)
            return operation not in self._reverted
        except asyncio.CancelledError:
            operation.cancel()
            await asyncio.wait((operation,))
            raise
        finally:
            self._revertible.discard(operation)
            self._reverted.discard(operation)

    async def run_to_end(self, work: Work, *, detaching: bool = False) -> None:
        """Run work that goes on when its caller is cancelled. `detaching`: a forked process may run
        it, since it only drops what belongs to its parent."""
        operation = self._begin(work, detaching=detaching)
        await asyncio.wait((operation,))
        _raise_outcome(operation)

    def revert_all(self) -> None:
        """Revert every revertible operation, also those in the queue."""
        for operation in self._revertible - self._reverted:
            self._reverted.add(operation)
            operation.cancel()

    def _begin(self, work: Work, *, detaching: bool = False) -> Operation:
        self._check_loop(detaching=detaching)
        loop = asyncio.get_running_loop()
        operation = loop.create_task(self._run_exclusive(work), context=Context())
        self._running.add(operation)
        operation.add_done_callback(self._running.discard)
        return operation

    def _check_loop(self, *, detaching: bool) -> None:
        if self._loop_guard.is_unreachable and (detaching or not self._loop_guard.is_forked):
            self._running.clear()
            self._detach()
        if not self._running and self._is_idle():
            self._lock, self._loop_guard = (
                asyncio.Lock(),
                LoopGuard("group", "group", "cleanup_all()"),
            )
        self._loop_guard.check()

    async def _run_exclusive(self, work: Work) -> BaseException | None:
        try:
            async with self._lock:
                await work()
        except BaseException as error:
            return error
        return None


def _raise_outcome(operation: Operation) -> None:
    error = asyncio.CancelledError() if operation.cancelled() else operation.result()
    if error is not None:
        raise error


GroupMembers = Sequence[GroupMember[Any]]


async def open_members(
    members: GroupMembers,
    *,
    parallel: bool,
    strict: bool,
    confirmed: Confirm | None = None,
    keep: GroupMembers = (),
) -> None:
    """Open the members that are not open. On an error, those that were idle before are closed
    again; those that were open or failed before (`keep`) reopen in the background."""
    idle = [member for member in members if member.is_idle and member not in keep]
    try:
        attempt = _open_in_parallel if parallel else _open_in_sequence
        error = first_fatal(await attempt(members, strict), strict)
        if error is not None:
            raise error
        if confirmed is not None:
            await confirmed()
    except BaseException:
        for member in members:
            member.detach_caller()
        await close_members(idle)
        raise


async def _open_in_parallel(members: GroupMembers, strict: bool) -> list[BaseException]:
    tasks = [asyncio.ensure_future(member.open()) for member in members]
    pending = set(tasks)
    try:
        while pending and not first_fatal(_errors_of(tasks), strict):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    return _errors_of(tasks)


def _errors_of(tasks: Sequence[asyncio.Task[BaseException | None]]) -> list[BaseException]:
    """The errors of the finished tasks, in configured order."""
    results = [task.result() for task in tasks if task.done() and not task.cancelled()]
    return [error for error in results if error is not None]


async def _open_in_sequence(members: GroupMembers, strict: bool) -> list[BaseException]:
    errors: list[BaseException] = []
    for member in members:
        error = await member.open()
        errors += [error] if error is not None else []
        if first_fatal(errors, strict):
            break
    return errors


def first_fatal(errors: Sequence[BaseException], strict: bool) -> BaseException | None:
    """The error that ends an opening, or None."""
    fatal = [error for error in errors if not is_recoverable(error)]
    return next(iter(fatal or (errors if strict else [])), None)


async def close_members(members: GroupMembers) -> None:
    """Close all members, the last one first, despite errors. Raises the first fatal error at the
    end."""
    for member in members:
        member.cancel_reopen()
    fatal: list[BaseException] = []

    async def close_in_reverse() -> None:
        for member in reversed(members):
            error = await member.close()
            if error is not None and not is_recoverable(error):
                fatal.append(error)

    await run_to_completion(close_in_reverse())
    if fatal:
        raise fatal[0]


class ServerGroup(Generic[S]):
    """Many servers, of which some may fail. May be used from any task of one event loop; once
    closed, also in another.

    `servers`: anything with `connect()` and `cleanup()`; see `Connectable`. Not `strict`: failed
    servers are recorded and reopened in the background, with `backoff` (None: only by `reconnect`).
    `strict`: one failure reverts the operation and is raised. `suppress_cancelled`: a
    `CancelledError` that a server's library raised by itself is a failure of that server; if False,
    it is raised. All options can be changed later, in `settings`.
    """

    def __init__(
        self,
        servers: Iterable[S] = (),
        *,
        strict: bool = False,
        drop_failed: bool = True,
        parallel: bool = True,
        connect_timeout: float = 10.0,
        cleanup_timeout: float = 10.0,
        health_interval: float | None = 60.0,
        backoff: Backoff | None = _REOPEN_BACKOFF,
        suppress_cancelled: bool = True,
    ) -> None:
        self.settings = GroupSettings(
            strict=strict,
            drop_failed=drop_failed,
            parallel=parallel,
            connect_timeout=connect_timeout,
            cleanup_timeout=cleanup_timeout,
            health_interval=health_interval,
            backoff=backoff,
            suppress_cancelled=suppress_cancelled,
        )
        self._observers = Observers("group")
        self._is_open = False
        self._operations = OperationQueue(self._is_idle, self._detach)
        self._group_members: tuple[GroupMember[S], ...] = ()
        for server in servers:
            self._group_members = (
                *self._group_members,
                self._new_member(server, self._group_members),
            )

    def __repr__(self) -> str:
        return f"<ServerGroup {self.summary()}>"

    # -- state ----------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[Member[S], ...]:
        """The status of every server. The other properties are computed from it."""
        return tuple(member.status for member in self._group_members)

    @property
    def configured(self) -> list[S]:
        return configured_servers(self.members)

    @property
    def connected(self) -> list[S]:
        return connected_servers(self.members)

    @property
    def failed(self) -> list[S]:
        """The servers that failed, also while they are being reopened."""
        return failed_servers(self.members)

    @property
    def active(self) -> list[S]:
        """The servers to give to an agent: the connected ones, or all when `drop_failed` is
        False."""
        return active_servers(self.members, drop_failed=self.settings.drop_failed)

    @property
    def errors(self) -> dict[S, BaseException]:
        """Why each failed server is not connected."""
        return errors_by_server(self.members)

    def status(self, name: str) -> Member[S]:
        """The status of one server: state, health, last error, latency."""
        return self._find(name).status

    def summary(self) -> str:
        """`"14/20 servers healthy"`."""
        return health_summary(self.members)

    def observe(self, observer: Observer) -> Observation:
        """Call `observer` with `ServerAdded`, `ServerLost`, `ServerRemoved` and `HealthChanged`
        events, until the returned handle is closed."""
        return self._observers.add(observer, listen=False)

    # -- opening and closing --------------------------------------------------------------------

    async def connect_all(self) -> list[S]:
        """Open all servers that are not connected; returns the active ones."""
        await self._run_revertible(self._connect_all)
        return self.active

    async def reconnect(
        self, name: str | None = None, *, failed_only: bool = True, force: bool = False
    ) -> list[S]:
        """Retry the failed servers now, or close and open all; returns the active ones. `name`:
        this server alone. `force`: open also those whose `cleanup` failed or does not end."""
        work = self._connect_failed if failed_only else self._reopen
        await self._run_revertible(partial(work, name, force))
        return self.active

    async def cleanup_all(self) -> None:
        """Close all servers, the last one first, despite errors. May be called twice."""
        self._operations.revert_all()
        await self._operations.run_to_end(self._cleanup_all, detaching=True)

    async def __aenter__(self) -> Self:
        await self.connect_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cleanup_all()

    # -- adding and removing --------------------------------------------------------------------

    async def add(self, server: S) -> Member[S]:
        """Add a server at the end; it is opened at once if the group is open."""
        added: list[GroupMember[S]] = []

        async def work(confirmed: Confirm) -> None:
            member = self._new_member(server, self._group_members)
            added.append(member)
            self._group_members = (*self._group_members, member)
            try:
                await self._open_new(member, confirmed)
            except BaseException:
                self._remove_member(member)
                raise

        await self._run_revertible(work, required=True)
        return added[0].status

    async def remove(self, name: str) -> None:
        """Close and remove a server. The others are not touched."""

        async def work() -> None:
            member = self._find(name)
            try:
                await close_members([member])
            finally:
                self._remove_member(member)

        await self._operations.run_to_end(work)

    async def replace(self, name: str, server: S) -> Member[S]:
        """Replace a server. The new one is opened before the old one is closed; in a strict group
        the old one stays if that fails. The others are not touched."""
        added: list[GroupMember[S]] = []

        async def work(_: Confirm) -> None:
            old = self._find(name)
            others = [each for each in self._group_members if each is not old]
            member = self._new_member(server, others, default_name=name)
            events: list[Event] = []
            member.emit = events.append  # held back until it is a member
            await self._open_new(member)
            added.append(member)
            self._group_members = tuple(
                member if each is old else each for each in self._group_members
            )
            member.emit = self._observers.emit
            for event in events:
                member.emit(event)
            await close_members([old])

        await self._run_revertible(work, required=True)
        return added[0].status

    # -- operations -----------------------------------------------------------------------------

    async def _connect_all(self, confirmed: Confirm) -> None:
        was_open, self._is_open = self._is_open, True
        try:
            await self._open(self._group_members, confirmed)
        except BaseException:
            self._is_open = was_open
            raise

    def _chosen(self, name: str | None) -> tuple[GroupMember[S], ...]:
        return self._group_members if name is None else (self._find(name),)

    async def _connect_failed(self, name: str | None, force: bool, _: Confirm) -> None:
        failed = [member for member in self._chosen(name) if member.status.is_failed]
        _give_up_cleanups(failed, force)
        await self._open(failed)

    async def _reopen(self, name: str | None, force: bool, _: Confirm) -> None:
        chosen = self._chosen(name)
        wanted = [member for member in chosen if not member.is_idle]
        was_open, self._is_open = self._is_open, True
        try:
            await close_members(chosen)
            _give_up_cleanups(chosen, force)
            await self._open(chosen, keep=wanted)
        except BaseException:
            self._is_open = was_open
            for member in wanted:
                member.reopen()
            raise

    async def _cleanup_all(self) -> None:
        self._is_open = False
        await close_members(self._group_members)

    async def _open_new(self, member: GroupMember[S], confirmed: Confirm | None = None) -> None:
        if self._is_open:
            await self._open([member], confirmed)

    async def _open(
        self,
        members: Sequence[GroupMember[S]],
        confirmed: Confirm | None = None,
        keep: Sequence[GroupMember[S]] = (),
    ) -> None:
        parallel, strict = self.settings.parallel, self.settings.strict
        await open_members(
            members, parallel=parallel, strict=strict, confirmed=confirmed, keep=keep
        )

    async def _run_revertible(self, work: RevertibleWork, *, required: bool = False) -> None:
        """Run the work in the queue. `required`: raise if it was reverted, even in a group that is
        not strict."""
        if not await self._operations.run_revertible(work) and (required or self.settings.strict):
            raise ServerUnavailable("the group was closed while opening", server="group")

    # -- members --------------------------------------------------------------------------------

    def _new_member(
        self, server: S, others: Sequence[GroupMember[S]], default_name: str | None = None
    ) -> GroupMember[S]:
        """A member for the server, under its own name, or `default_name`, or a generated one."""
        taken = [member.name for member in others]
        own = getattr(server, "name", None)
        if isinstance(own, str) and own:
            name = _without_secrets(own)
        else:
            name = default_name or _generated_name(server, taken)
        if name in taken:
            remedy = "Give each server a name of its own"
            raise ConfigError(
                "the group already has a server with this name", remedy=remedy, server=name
            )
        if any(member.status.server == server for member in others):
            raise ConfigError(
                "the server is in the group already", remedy="Add it once", server=name
            )
        if getattr(server, "__hash__", None) is None:
            remedy = "Give its class a __hash__: `errors` is keyed by server"
            raise ConfigError("the server is not hashable", remedy=remedy, server=name)
        return GroupMember(server, name, self.settings, self._observers.emit)

    def _find(self, name: str) -> GroupMember[S]:
        for member in self._group_members:
            if member.name == _without_secrets(name):
                return member
        known = ", ".join(member.name for member in self._group_members) or "none"
        raise UnknownServer(f"the group has no server {name!r}; it has: {known}")

    def _remove_member(self, member: GroupMember[S]) -> None:
        self._group_members = tuple(each for each in self._group_members if each is not member)

    def _is_idle(self) -> bool:
        return all(member.is_idle for member in self._group_members)

    def _detach(self) -> None:
        self._is_open = False
        for member in self._group_members:
            member.detach()


def _give_up_cleanups(members: GroupMembers, force: bool) -> None:
    for member in members if force else ():
        member.give_up_cleanup()


def _without_secrets(name: str) -> str:
    """The name with the secrets of URLs in it hidden: errors, events and log lines hold it. OpenAI
    Agents (0.24) names its servers after their URLs."""
    return _URL.sub(lambda found: redact_url(found[0]), name)


def _generated_name(server: object, taken: Sequence[str]) -> str:
    kind, number = type(server).__name__.lower(), len(taken) + 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"
