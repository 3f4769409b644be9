"""Whatever callers do, in any order: the pool keeps its bound, its fairness and its promises.

The model knows what it has been told and nothing of how the pool decides.
"""

from dataclasses import dataclass
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolkeep._rules.session_slots import PoolActions, Slot, SlotAllocator

KEYS = st.sampled_from("abcdef")
PICKS = st.integers(min_value=0, max_value=1000)
T = TypeVar("T")


@dataclass(eq=False)
class Room:
    """A place as the model knows it."""

    key: str
    once: bool
    lent: int
    used: int
    doomed: bool = False
    """Dismissed, or for one call: to be closed when nobody uses it."""
    closing: bool = False


class PoolInUse(RuleBasedStateMachine):
    """Callers of several keys, and an owner that takes its time to close."""

    @initialize(bound=st.integers(min_value=1, max_value=4))
    def build(self, bound: int) -> None:
        self.pool = SlotAllocator(bound)
        self.rooms: dict[Slot, Room] = {}
        self.queue: dict[int, tuple[str, bool]] = {}
        self.clock = 0

    # -- what happens ---------------------------------------------------------------------------

    @rule(key=KEYS)
    def lend(self, key: str) -> None:
        expected = self.open_room(key)
        place = self.pool.acquire(key)
        assert (place and self.rooms[place]) is expected
        if expected is not None:
            expected.lent += 1
            self.use(expected)

    @rule(key=KEYS, once=st.booleans())
    def ask(self, key: str, once: bool) -> None:
        ticket, orders = self.pool.request(key, once=once)
        assert ticket not in self.queue
        self.queue[ticket] = (key, once)
        self.obey(orders)

    @precondition(lambda self: self.queue)
    @rule(pick=PICKS)
    def withdraw(self, pick: int) -> None:
        ticket = self.one_of(list(self.queue), pick)
        del self.queue[ticket]
        self.obey(self.pool.cancel(ticket))

    @precondition(lambda self: self.lent())
    @rule(pick=PICKS)
    def give_back(self, pick: int) -> None:
        place = self.one_of(self.lent(), pick)
        room = self.rooms[place]
        room.lent -= 1
        self.use(room)
        orders = self.pool.release(place)
        if room.doomed and not room.lent:
            assert orders.close == (place,)
        self.obey(orders)

    @rule(key=KEYS)
    def dismiss(self, key: str) -> None:
        room = self.open_room(key)
        if room is not None:
            room.doomed = True
        orders = self.pool.drain(key)
        assert len(orders.close) == (room is not None and not room.lent)
        self.obey(orders)

    @precondition(lambda self: self.closings())
    @rule(pick=PICKS)
    def closed(self, pick: int) -> None:
        place = self.one_of(self.closings(), pick)
        del self.rooms[place]
        self.obey(self.pool.mark_closed(place))

    # -- what is ordered ------------------------------------------------------------------------

    def obey(self, orders: PoolActions) -> None:
        for grant in orders.grants:
            key, once = self.queue.pop(grant.ticket)  # nobody else is ever served
            assert grant.slot.key == key
            if grant.is_new:
                assert grant.slot not in self.rooms
                self.rooms[grant.slot] = Room(key, once, lent=0, used=0, doomed=once)
                assert all(waiting > grant.ticket for waiting in self.queue)
            else:
                assert not once
                assert self.rooms[grant.slot] is self.open_room(key)
            self.rooms[grant.slot].lent += 1
            self.use(self.rooms[grant.slot])
        for place in orders.close:
            self.close(self.rooms[place])

    def close(self, room: Room) -> None:
        assert not room.lent
        assert not room.closing
        room.closing = True
        if not room.doomed:  # evicted: somebody waits, and all that stay were used later
            assert self.queue
            assert all(room.used < other.used for other in self.idle())
            assert len(self.closings()) <= self.wanted()

    # -- what is true whenever nothing happens --------------------------------------------------

    @invariant()
    def the_bound_is_kept_and_every_place_counts(self) -> None:
        assert self.pool.size == len(self.rooms) <= self.pool.limit
        assert set(self.pool.slots) == set(self.rooms)
        assert self.pool.waiting == len(self.queue)
        assert self.pool.in_use == len({id(room) for room in self.rooms.values() if room.lent})
        assert all(place.users == room.lent for place, room in self.rooms.items())

    @invariant()
    def nobody_waits_without_need(self) -> None:
        for key, once in self.queue.values():
            assert once or self.open_room(key) is None
        if self.queue:
            assert len(self.rooms) == self.pool.limit
            assert not self.idle() or len(self.closings()) >= self.wanted()

    def teardown(self) -> None:
        """When everybody gives back what they have, everybody is served."""
        if not hasattr(self, "pool"):
            return
        for _ in range(1000):
            if not (self.queue or self.lent() or self.closings()):
                break
            self.give_back(0) if self.lent() else self.closed(0)
            self.the_bound_is_kept_and_every_place_counts()
            self.nobody_waits_without_need()
        assert not self.queue

    # -- the model ------------------------------------------------------------------------------

    def use(self, room: Room) -> None:
        self.clock += 1
        room.used = self.clock

    def open_room(self, key: str) -> Room | None:
        found = [r for r in self.rooms.values() if r.key == key and not (r.doomed or r.closing)]
        assert len(found) <= 1
        return found[0] if found else None

    def idle(self) -> list[Room]:
        return [r for r in self.rooms.values() if not (r.lent or r.doomed or r.closing)]

    def lent(self) -> list[Slot]:
        return [place for place, room in self.rooms.items() if room.lent]

    def closings(self) -> list[Slot]:
        return [place for place, room in self.rooms.items() if room.closing]

    def wanted(self) -> int:
        """Places that those who wait need: one for each key, one for each that wants its own."""
        return len({ticket if once else key for ticket, (key, once) in self.queue.items()})

    @staticmethod
    def one_of(things: list[T], pick: int) -> T:
        return things[pick % len(things)]


PoolInUse.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestPoolInUse = PoolInUse.TestCase
