"""Where one server is reached: its sessions, one opening after the other.

A server that could not be opened is tried again by whoever needs it. Closing waits for nobody's
call, unless there is no time: sessions that are in use are closed when their calls are over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkeep._catalogue.terms import Terms
from toolkeep._engine.farewells import Farewells
from toolkeep._engine.sessions import Sessions
from toolkeep._engine.tenancy import superseded
from toolkeep._rules.identity import Identity
from toolkeep.config import ServerSpec
from toolkeep.errors import ToolkeepError
from toolkeep.events import Event

if TYPE_CHECKING:
    from toolkeep._engine.toolbook import Toolbook


class Site(ABC):
    """The part of a `Supplier` that opens and closes."""

    def __init__(self, spec: ServerSpec, terms: Terms) -> None:
        self.spec, self.name, self._terms = spec, spec.name, terms
        self._sessions: Sessions | None = None
        self._farewells = Farewells()
        self.on_cleanup: Callable[[], None] | None = None
        """Called once it takes no more calls."""
        self.subscribed: dict[str, None] = {}
        """Resources to be told about, now and after the next opening."""
        self._hurry = False
        self._is_refused = False
        """Whether the server has just refused its own client."""
        self._connected = set[str]()
        self.retired = False
        """Whether it is of no more use: removed, replaced, or the runtime is closed."""

    @abstractmethod
    def hear(self, identity: Identity | None, event: Event) -> None: ...

    @abstractmethod
    def on_book(self, identity: Identity | None, book: Toolbook) -> None: ...

    @abstractmethod
    def on_gap(self, identity: Identity | None) -> None: ...

    @abstractmethod
    def on_trouble(self, error: ToolkeepError | None) -> None: ...

    @abstractmethod
    async def _stop(self) -> None:
        """Have nothing done any more beside the calls."""

    @property
    def sessions(self) -> Sessions:
        """Those of now. A server that could not be opened is tried again by whoever needs it."""
        if self.retired:
            raise superseded(self.name)
        if self._sessions is None or self._sessions.leaving:
            self._connected = set[str]()
            setup, answers = self._terms.setup, self._terms.answers
            self._sessions = Sessions(self.spec, setup, answers, listen=self._terms.live, ears=self)
        return self._sessions

    @property
    def now(self) -> Sessions | None:
        """The sessions, if there are any now."""
        return self._sessions

    @property
    def is_leaving(self) -> bool:
        """Whether calls are still under way in sessions that are lent no more."""
        return bool(self._farewells)

    async def subscribe(self, uri: str) -> None:
        """On the server's own client, and on that of its next opening."""
        await self.sessions.own.subscribe(uri)
        self.subscribed[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        self.subscribed.pop(uri, None)
        await self.sessions.own.unsubscribe(uri)

    async def cleanup(self) -> None:
        """Close; clients that are in use, when their calls are over, unless there is no time."""
        if self.on_cleanup is not None:
            self.on_cleanup()
        sessions = self._sessions
        if self._is_refused and not self.retired and sessions and sessions.admission.size:
            await sessions.own.aclose()  # principals may be served all the same
            return
        self._sessions = None
        await self._stop()
        if sessions is None:
            return
        if self._hurry or not sessions.in_flight:
            await sessions.aclose()
        else:
            self._farewells.begin(sessions)

    def retire(self) -> None:
        """Take no more calls. The group's `cleanup` does the rest."""
        self.retired = True

    def hurry(self) -> None:
        """Take no more calls, and let those under way end now."""
        self.retired = self._hurry = True

    def abandon(self) -> None:
        """Its event loop is gone, or belongs to the parent process."""
        self.retired = True
        if self._sessions is not None:
            self._sessions.abandon()

    async def gone(self) -> None:
        """Wait until its last call is over; end it, if there is no time."""
        await self.cleanup()
        await self._farewells.end(hurry=self._hurry)
