"""What one server listed to each identity: `ListingCache`, and when to list again:
`ListingRefresher`.

During an outage the last listings stay, marked stale. An identity gets only what was listed with
it; `Server` decides what is public.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from time import monotonic
from typing import Any

from toolkeep._catalogue.listing import MIN_REFRESH_INTERVAL, Listing, StaleTools
from toolkeep._rules.backoff import Backoff, Pacer
from toolkeep._runtime.session_pool import pool_closed
from toolkeep._tasks import cancellation_count, was_cancelled
from toolkeep.errors import ServerUnavailable, ToolkeepError

logger = logging.getLogger("toolkeep.catalogue")

Kinds = frozenset[str]

_FETCH_GRACE = 0.05
"""Seconds that a waiter adds to the time of the fetch itself, so that the fetch times out first:
its error says what it waited for."""
_FAILURE_COOLDOWN = 5.0
"""Seconds after a failed listing in which building a catalogue does not ask again."""
_REFRESH_BACKOFF = Backoff(first=0.5, cap=30.0)
_MAX_TRIES = 6
"""Failed refreshes in a row; after these the last listing stays until the next event. A server that
changes whenever it is listed is listed at growing intervals."""


class ListingCache:
    """The listings of one server by identity key, the least recently used dropped first.

    Belongs to its `Server` and lives as long. `fetch` does not store: the fetching function calls
    `put`.
    """

    def __init__(self, server: str, max_size: int) -> None:
        self._server, self._max_size = server, max_size
        self._listings: OrderedDict[str, Listing] = OrderedDict()
        self._outdated: set[str] = set()
        self._failed_until: dict[str, float] = {}
        self.invalidations = 0
        """Counts invalidations, so that a fetch can tell whether one happened meanwhile."""
        self._fetching: dict[tuple[str, int], asyncio.Task[Listing]] = {}
        """By key and by `invalidations` at the start."""
        self._listing: Counter[str] = Counter()
        self._waiting: Counter[asyncio.Task[Listing]] = Counter()

    def __len__(self) -> int:
        return len(self._listings)

    def get(self, key: str) -> Listing | None:
        """The listing, unless it is outdated or expired."""
        found = self._listings.get(key)
        if found is None or key in self._outdated or found.is_expired:
            return None
        self._listings.move_to_end(key)
        return found

    def get_any(self, key: str) -> Listing | None:
        """The last listing, however old."""
        return self._listings.get(key)

    def put(self, key: str, listing: Listing) -> None:
        self._outdated.discard(key)
        self._failed_until.pop(key, None)
        self._listings[key] = listing
        self._listings.move_to_end(key)
        while len(self._listings) > self._max_size:
            self._outdated.discard(self._listings.popitem(last=False)[0])

    def invalidate(self, key: str | None = None) -> None:
        """Mark one listing, or all, as outdated; also those being fetched."""
        self.invalidations += 1
        self._outdated |= self._listings.keys() if key is None else self._listings.keys() & {key}

    def mark_stale(self) -> None:
        """Mark all listings as stale: the server is out of reach."""
        known: dict[int, StaleTools] = {}
        for key, listing in self._listings.items():
            self._listings[key] = listing.as_stale(known)

    def record_failure(self, key: str) -> None:
        """Remember a failed listing, so that the next catalogue does not wait for it again."""
        now = monotonic()
        self._failed_until = {
            one: until for one, until in self._failed_until.items() if until > now
        }
        self._failed_until[key] = now + _FAILURE_COOLDOWN

    def failed_recently(self, key: str) -> bool:
        return self._failed_until.get(key, 0) > monotonic()

    def remove(self, key: str) -> None:
        self.invalidations += 1
        self._listings.pop(key, None)
        self._outdated.discard(key)

    async def fetch(
        self, key: str, work: Callable[[], Coroutine[Any, Any, Listing]], within: float
    ) -> Listing:
        """Run `work`, or join a fetch of this key that is already running.

        The work is cancelled when its last waiter leaves.
        """
        fetch_key = key, self.invalidations
        task = self._fetching.get(fetch_key)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(work(), context=Context())
            self._fetching[fetch_key] = task
            task.add_done_callback(lambda done: self._ended(fetch_key, done))
        self._waiting[task] += 1
        before = cancellation_count()
        try:
            async with asyncio.timeout(within + _FETCH_GRACE):
                return await asyncio.shield(task)
        except TimeoutError:
            text = f"{self._server} has not listed its tools within {within:.3g} s"
            raise ServerUnavailable(text, server=self._server) from None
        except asyncio.CancelledError:
            if was_cancelled(before) or not task.cancelled():
                raise
            raise pool_closed(self._server) from None
        finally:
            self._stop_waiting(task)

    def _stop_waiting(self, task: asyncio.Task[Listing]) -> None:
        self._waiting[task] -= 1
        if not self._waiting[task]:
            del self._waiting[task]
            task.cancel()

    @contextlib.contextmanager
    def mark_listing(self, key: str) -> Generator[None]:
        """While open, `is_listing(key)` is true: tool lists that arrive for this key are not
        news."""
        self._listing[key] += 1
        try:
            yield
        finally:
            self._listing[key] -= 1
            if not self._listing[key]:
                del self._listing[key]

    def is_listing(self, key: str) -> bool:
        return key in self._listing

    async def stop(self) -> None:
        """Mark everything as outdated and cancel running fetches."""
        self.invalidate()
        fetching = tuple(self._fetching.values())
        for task in fetching:
            task.cancel()
        if fetching:
            await asyncio.wait(fetching)

    def _ended(self, fetch_key: tuple[str, int], task: asyncio.Task[Listing]) -> None:
        if self._fetching.get(fetch_key) is task:
            del self._fetching[fetch_key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the last waiter may have left


class ListingRefresher:
    """Lists a server again in the background, never twice at a time.

    Belongs to its `Server`. `work` lists some kinds, after `ready` returned; `failed` is called
    after each failure.
    """

    def __init__(
        self,
        server: str,
        work: Callable[[Kinds], Awaitable[object]],
        *,
        ready: Callable[[], Awaitable[None]],
        failed: Callable[[], None],
    ) -> None:
        self._server, self._work, self._ready, self._on_failure = server, work, ready, failed
        self.due: Kinds = frozenset()
        """Kinds that must be listed again."""
        self._pace = Pacer(MIN_REFRESH_INTERVAL)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, kinds: Kinds) -> None:
        """List these kinds again, soon."""
        self.due |= kinds
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), context=Context())

    def schedule(self, ttl: float, kinds: Kinds) -> None:
        """List these kinds again when their time to live is over; 0: only when an event asks for
        it."""
        if self._timer is not None:
            self._timer.cancel()
        if ttl:
            wait = max(ttl, MIN_REFRESH_INTERVAL)
            self._timer = asyncio.get_running_loop().call_later(wait, self.start, kinds)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        tries, clock = 0, asyncio.get_running_loop().time
        while self.due and tries < _MAX_TRIES:
            await asyncio.sleep(self._pace.delay(clock()))
            await self._ready()
            kinds, self.due = self.due, frozenset()
            try:
                await self._work(kinds)
                tries = 0
                self._pace.mark_done(clock())
            except ToolkeepError as error:
                self.due |= kinds
                tries += 1
                logger.warning("%s: listing again failed: %s", self._server, error)
                self._on_failure()
                await asyncio.sleep(_REFRESH_BACKOFF.delay(tries, random.random()))
