"""Servers that are none: they connect, fail, hang and clean up as a test says, and keep a journal.

And an event loop whose clock does not wait: when nothing is left to do, it is later.
"""

import asyncio
import selectors
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from toolkeep._rules.backoff import Backoff
from toolkeep.events import Event
from toolkeep.group import ServerGroup

caller: ContextVar[str] = ContextVar("caller", default="nobody")

BOUND = 5.0
QUICK = Backoff(first=0.01, cap=0.04)
LONG = 60.0

Manner = Literal["fine", "fails", "hangs", "astray", "fatal", "stubborn"]


class Broken(Exception):
    """What a fake raises when it is to fail."""


class Fatal(BaseException):
    """What nobody may take for a failure of one server."""


@dataclass(frozen=True)
class Entry:
    """One thing that was done to a fake."""

    name: str
    did: str
    task: Any
    context: str


class Fake:
    """Anything with `connect` and `cleanup`. `manner` is how it connects, `parting` how it closes;
    both may change while it is used.
    """

    def __init__(
        self, name: str, manner: Manner = "fine", journal: list[Entry] | None = None
    ) -> None:
        self.name = name
        self.manner: Manner = manner
        self.parting: Manner = "fine"
        self.journal = [] if journal is None else journal
        self.is_open = False
        self.misused: list[str] = []
        self.connecting, self.cleaning, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._holder: Any = None
        self.is_unclean = False
        """Whether its last cleanup failed."""

    def __repr__(self) -> str:
        return f"<Fake {self.name!r}, {self.manner}>"

    def did(self, what: str) -> int:
        return sum(entry.did == what and entry.name == self.name for entry in self.journal)

    def _note(self, what: str) -> None:
        self.journal.append(Entry(self.name, what, asyncio.current_task(), caller.get()))

    async def connect(self) -> None:
        if self._holder is not None:
            self.misused.append("connected twice without a cleanup")
        if self.is_unclean:
            self.misused.append("connected after a cleanup that failed")
        self._holder = asyncio.current_task()
        self._note("connect")
        self.connecting.set()
        await self._behave(self.manner)
        self.is_open = True
        self._note("connected")

    async def cleanup(self) -> None:
        if self._holder is not asyncio.current_task() and not self.is_unclean:
            self.misused.append("cleaned up by another task")
        self._note("cleanup")
        self.cleaning.set()
        self.is_unclean = True
        try:
            await self._behave(self.parting)
            self.is_unclean = False
        finally:
            self.is_open, self._holder = False, None
            self._note("cleaned")

    async def _behave(self, manner: Manner) -> None:
        await asyncio.sleep(0)
        match manner:
            case "fails":
                raise Broken(self.name)
            case "hangs":
                await self.go.wait()
            case "astray":
                raise asyncio.CancelledError("made by itself")
            case "fatal":
                raise Fatal(self.name)
            case "stubborn":
                await endure(self.go)
            case "fine":
                pass


async def endure(go: asyncio.Event) -> None:
    """Wait, whoever wants to stop it."""
    while not go.is_set():
        try:
            await go.wait()
        except asyncio.CancelledError:
            continue


def fakes(*manners: Manner) -> list[Fake]:
    """Named a, b, c and so on, with one journal."""
    journal: list[Entry] = []
    return [Fake(chr(ord("a") + n), manner, journal) for n, manner in enumerate(manners)]


def group_of(servers: Iterable[Any] = (), **options: Any) -> ServerGroup[Any]:
    """A group that is never patient for long, and tries again only when told to."""
    terms = {"connect_timeout": 0.2, "cleanup_timeout": 0.2, "backoff": None, **options}
    return ServerGroup(servers, **terms)


def names(servers: Iterable[Any]) -> str:
    return "".join(server.name for server in servers)


def views(group: ServerGroup[Any]) -> tuple[str, str, str]:
    """Who is connected, failed, and active."""
    assert names(group.errors) == names(group.failed)
    return names(group.connected), names(group.failed), names(group.active)


class Heard(list[Event]):
    """What a group told, and a place to wait for more of it."""

    def __init__(self, group: ServerGroup[Any]) -> None:
        super().__init__()
        self._news = asyncio.Event()
        self.observation = group.observe(self._hear)

    def _hear(self, event: Event) -> None:
        self.append(event)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND):
            while not true():
                self._news.clear()
                await self._news.wait()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]


class _Impatient(selectors.SelectSelector):
    """Does not wait for what does not come: it moves the clock instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for somebody"
            self.now += max(0.0, timeout)
        return ready


class ImpatientLoop(asyncio.SelectorEventLoop):
    """Virtual time, for tasks that only talk to each other. A deadlock is an error at once."""

    def __init__(self) -> None:
        self._clock = _Impatient()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
