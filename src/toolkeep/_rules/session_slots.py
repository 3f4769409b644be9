"""Allocate the sessions of one server to principals: a state machine without I/O.

Every event returns the actions to take now: which slots to grant, which to close. A slot
belongs to one key (a principal) for its whole life and serves any number of that key's calls at
once. All slots count, including those being closed, so the limit holds at the server too. Only
idle slots are closed, least recently used first, and only when a request waits. Requests are
served in order; a request whose key has a slot never waits, because another call of the same
principal may depend on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Slot:
    """Capacity for one session of one key."""

    key: Hashable = field(repr=False)
    single_use: bool = False
    """For one call only; closed when released."""
    users: int = 0
    """Calls that use it now."""
    uses: int = 0
    """Calls that have used it."""
    closing: bool = False


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """A slot for one waiting request."""

    ticket: int
    slot: Slot
    is_new: bool
    """Whether the caller must open a session in it."""


@dataclass(frozen=True, slots=True)
class PoolActions:
    """What the caller must do now."""

    grants: tuple[SlotGrant, ...] = ()
    close: tuple[Slot, ...] = ()
    """Close these sessions, then call `mark_closed` for each, even if closing failed."""


@dataclass(slots=True)
class _SlotRequest:
    ticket: int
    key: Hashable
    single_use: bool


class SlotAllocator:
    """The slots of one server: at most `limit`, including those that are being closed."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self.limit = limit
        self._open: OrderedDict[Hashable, Slot] = OrderedDict()
        """Shared slots by key, least recently used first; without those being closed."""
        self._unshared: set[Slot] = set()
        """Single-use slots, and all slots that are being closed."""
        self._queue: list[_SlotRequest] = []
        self._tickets = 0

    def __repr__(self) -> str:
        waiting = len(self._queue)
        return (
            f"<SlotAllocator {self.size} of {self.limit}, {self.in_use} in use, {waiting} waiting>"
        )

    @property
    def size(self) -> int:
        return len(self._open) + len(self._unshared)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (*self._open.values(), *self._unshared)

    @property
    def in_use(self) -> int:
        """Slots in use."""
        return sum(slot.users > 0 for slot in self.slots)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def acquire(self, key: Hashable) -> Slot | None:
        """Use the slot of this key, if there is one."""
        slot = self._open.get(key)
        if slot is not None:
            slot.users += 1
            slot.uses += 1
            self._open.move_to_end(key)
        return slot

    def request(self, key: Hashable, *, once: bool = False) -> tuple[int, PoolActions]:
        """Queue a request, with `once` for a single-use slot.

        Returns its ticket and the actions, which may include its grant.
        """
        self._tickets += 1
        self._queue.append(_SlotRequest(self._tickets, key, once))
        return self._tickets, self._assign()

    def cancel(self, ticket: int) -> PoolActions:
        """Withdraw a request that still waits."""
        self._queue = [waiting for waiting in self._queue if waiting.ticket != ticket]
        return PoolActions()

    def release(self, slot: Slot) -> PoolActions:
        """End one use of a slot."""
        assert slot.users > 0
        slot.users -= 1
        if slot.users:
            return PoolActions()
        if slot.single_use or slot.closing:
            slot.closing = True
            return PoolActions(close=(slot,))
        self._open.move_to_end(slot.key)  # used until now, for the order of eviction
        return PoolActions(close=self._evict())

    def drain(self, key: Hashable) -> PoolActions:
        """Give the slot of this key to no new call, and close it after its last use."""
        slot = self._open.pop(key, None)
        if slot is None:
            return PoolActions()
        self._start_draining(slot)
        return PoolActions(close=(slot,) if slot.users == 0 else ())

    def mark_closed(self, slot: Slot) -> PoolActions:
        """Record that the session of this slot is closed; its capacity is free."""
        assert slot.closing
        self._unshared.discard(slot)
        return self._assign()

    # -- decisions ------------------------------------------------------------------------------

    def _assign(self) -> PoolActions:
        """Grant what can be granted now, and evict idle slots for the rest of the queue."""
        grants: list[SlotGrant] = []
        waiting: list[_SlotRequest] = []
        for request in self._queue:
            grant = self._grant(request)
            grants.append(grant) if grant else waiting.append(request)
        self._queue = waiting
        return PoolActions(tuple(grants), self._evict())

    def _grant(self, request: _SlotRequest) -> SlotGrant | None:
        slot = None if request.single_use else self.acquire(request.key)
        if slot is not None:
            return SlotGrant(request.ticket, slot, is_new=False)
        if self.size >= self.limit:
            return None
        slot = Slot(request.key, single_use=request.single_use, users=1, uses=1)
        if request.single_use:
            self._unshared.add(slot)
        else:
            self._open[request.key] = slot
        return SlotGrant(request.ticket, slot, is_new=True)

    def _evict(self) -> tuple[Slot, ...]:
        """Take idle slots for the waiting requests, less the slots that are closing already."""
        if not self._queue:  # the usual case; thousands of slots may be released in turn
            return ()
        needed = len({one.ticket if one.single_use else one.key for one in self._queue})
        needed -= sum(slot.closing and not slot.users for slot in self._unshared)
        idle = [slot for slot in self._open.values() if not slot.users] if needed > 0 else []
        evicted = tuple(idle[:needed])
        for slot in evicted:
            del self._open[slot.key]
            self._start_draining(slot)
        return evicted

    def _start_draining(self, slot: Slot) -> None:
        slot.closing = True
        self._unshared.add(slot)
