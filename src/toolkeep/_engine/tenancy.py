"""Who has a session in a pool, how it speaks, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toolkeep._engine.client import Client
from toolkeep._engine.core import Core
from toolkeep._engine.setup import Voice
from toolkeep._rules.admission import Place
from toolkeep._rules.identity import Identity
from toolkeep.errors import ServerUnavailable, ToolkeepError
from toolkeep.events import Event

if TYPE_CHECKING:
    from toolkeep._engine.toolbook import Toolbook


NOBODY = Identity("", "nobody in particular")


class Superseded(ServerUnavailable):
    """These sessions are being closed; there may be others in their place."""


def superseded(server: str) -> Superseded:
    return Superseded(f"{server} was closed", server=server)


class Ears(Protocol):
    """Told what the client of an identity meets outside of calls. None: the server's own."""

    def hear(self, identity: Identity | None, event: Event) -> None: ...

    def on_book(self, identity: Identity | None, book: Toolbook) -> None: ...

    def on_gap(self, identity: Identity | None) -> None: ...

    def on_trouble(self, error: ToolkeepError | None) -> None: ...


@dataclass(slots=True)
class Tenant:
    """Who has a place: the client, and what it says of itself."""

    client: Client
    core: Core
    voice: Voice | None
    for_good: bool = False
    """Whether its session is to be ended at the server whoever keeps it."""


class Lender(Protocol):
    """Whoever lends clients."""

    def take_back(self, place: Place | None) -> None: ...

    def lend_again(self, lease: Lease) -> Lease: ...


class Lease:
    """A client for one call. To be given back, once."""

    __slots__ = ("_sessions", "client", "core", "place", "tenant")

    def __init__(self, sessions: Lender, tenant: Tenant, place: Place | None) -> None:
        self._sessions, self.tenant, self.place = sessions, tenant, place
        self.client, self.core = tenant.client, tenant.core

    def give_back(self) -> None:
        self._sessions.take_back(self.place)

    def again(self) -> Lease:
        """Another for the same client, to be given back by itself."""
        return self._sessions.lend_again(self)
