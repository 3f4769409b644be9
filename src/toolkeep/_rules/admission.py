"""Who gets a session: the pool of one server's sessions, as a state machine without I/O.

Every event is answered by what has to be done now: whom to grant a place, which place to close. A
place belongs to one key (a principal) for its whole life, and is lent to any number of that key's
calls at once. All places count, those being closed included, so the bound holds at the server, too.
Places are closed only when nobody uses them, the least recently used first, and only when somebody
waits for one. Who waits is served in the order of coming; a call for whose key there is a place
never waits: it may be the one for which another call of the same principal is waiting.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["Admission", "Grant", "Orders", "Place"]


@dataclass(slots=True, eq=False)
class Place:
    """Room for one session."""

    key: Hashable = field(repr=False)
    once: bool = False
    """Closed as soon as it is given back."""
    lent: int = 0
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A place for one who waited."""

    ticket: int
    place: Place
    fresh: bool
    """Whether nobody has used it before."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done now."""

    grants: tuple[Grant, ...] = ()
    close: tuple[Place, ...] = ()
    """Their `closed` is to be told when that is done, whatever came of it."""


@dataclass(slots=True)
class _Waiting:
    ticket: int
    key: Hashable
    once: bool
    """Wants a place that nobody else ever uses."""


class Admission:
    """One for each server. `bound` is the most places there ever are."""

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ValueError("a pool needs room for one session at least")
        self.bound = bound
        self._open: OrderedDict[Hashable, Place] = OrderedDict()
        """By key, the least recently used first; without those that are being closed."""
        self._others: set[Place] = set()
        """Places for one call each, and those that are being closed."""
        self._queue: list[_Waiting] = []
        self._tickets = 0

    def __repr__(self) -> str:
        waiting = len(self._queue)
        return f"<Admission {self.size} of {self.bound}, {self.lent} lent, {waiting} waiting>"

    @property
    def size(self) -> int:
        return len(self._open) + len(self._others)

    @property
    def places(self) -> tuple[Place, ...]:
        return (*self._open.values(), *self._others)

    @property
    def lent(self) -> int:
        """Places in use."""
        return sum(place.lent > 0 for place in self.places)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def lend(self, key: Hashable) -> Place | None:
        """At once, if there is a place of this key."""
        place = self._open.get(key)
        if place is not None:
            place.lent += 1
            self._open.move_to_end(key)
        return place

    def ask(self, key: Hashable, *, once: bool = False) -> tuple[int, Orders]:
        """A ticket, and what is to be done; the grant may be among it. `once`: a place that nobody
        else ever uses."""
        self._tickets += 1
        self._queue.append(_Waiting(self._tickets, key, once))
        return self._tickets, self._assign()

    def withdraw(self, ticket: int) -> Orders:
        """Whoever has this ticket waits no longer."""
        self._queue = [waiting for waiting in self._queue if waiting.ticket != ticket]
        return Orders()

    def give_back(self, place: Place) -> Orders:
        assert place.lent > 0
        place.lent -= 1
        if place.lent:
            return Orders()
        if place.once or place.closing:
            place.closing = True
            return Orders(close=(place,))
        self._open.move_to_end(place.key)  # a use lasts until it is given back
        return Orders(close=self._evict())

    def dismiss(self, key: Hashable) -> Orders:
        """Lend the place of this key no more, and close it when nobody uses it."""
        place = self._open.pop(key, None)
        if place is None:
            return Orders()
        self._retire(place)
        return Orders(close=(place,) if place.lent == 0 else ())

    def closed(self, place: Place) -> Orders:
        """It is gone: there is room again."""
        assert place.closing
        self._others.discard(place)
        return self._assign()

    # -- decisions ------------------------------------------------------------------------------

    def _assign(self) -> Orders:
        """All that can be done for those who wait, without anybody waiting for it here."""
        grants: list[Grant] = []
        waiting: list[_Waiting] = []
        for one in self._queue:
            grant = self._grant(one)
            grants.append(grant) if grant else waiting.append(one)
        self._queue = waiting
        return Orders(tuple(grants), self._evict())

    def _grant(self, waiting: _Waiting) -> Grant | None:
        place = None if waiting.once else self.lend(waiting.key)
        if place is not None:
            return Grant(waiting.ticket, place, fresh=False)
        if self.size >= self.bound:
            return None
        place = Place(waiting.key, once=waiting.once, lent=1)
        if waiting.once:
            self._others.add(place)
        else:
            self._open[waiting.key] = place
        return Grant(waiting.ticket, place, fresh=True)

    def _evict(self) -> tuple[Place, ...]:
        """As many idle places as are wanted, beyond those that are being closed already."""
        if not self._queue:  # as mostly; thousands may be closed one after the other
            return ()
        wanted = len({one.ticket if one.once else one.key for one in self._queue})
        wanted -= sum(place.closing and not place.lent for place in self._others)
        idle = [place for place in self._open.values() if not place.lent] if wanted > 0 else []
        chosen = tuple(idle[:wanted])
        for place in chosen:
            del self._open[place.key]
            self._retire(place)
        return chosen

    def _retire(self, place: Place) -> None:
        place.closing = True
        self._others.add(place)
