"""What may follow what: the states of one connection, and of one client.

Everything that decides about states is in this file, and the legal moves are data, so that the
pictures of the documentation are drawn from them. A connection is used once and never revived: from
CLOSED nothing follows. A client replaces its connections, and after closing it is idle again and
may be used from scratch. This module only says what is legal; it opens and closes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

__all__ = [
    "CLIENT_LEGAL",
    "LEGAL",
    "ClientState",
    "ConnectionState",
    "IllegalMove",
    "accepts_calls",
    "is_over",
    "move",
    "move_client",
]


class ConnectionState(enum.Enum):
    """Where one generation of a channel stands."""

    NEW = "new"
    OPENING = "opening"
    READY = "ready"
    DRAINING = "draining"
    """No new calls; those running finish here."""
    CLOSED = "closed"


class ClientState(enum.Enum):
    """Where a client stands, over all its connections."""

    IDLE = "idle"
    """Nothing is open; the next call opens."""
    OPENING = "opening"
    READY = "ready"
    REPLACING = "replacing"
    """The next connection is being opened in place of a finished one."""
    CLOSING = "closing"


State = TypeVar("State", bound=enum.Enum)

LEGAL: Mapping[ConnectionState, frozenset[ConnectionState]] = MappingProxyType(
    {
        ConnectionState.NEW: frozenset({ConnectionState.OPENING, ConnectionState.CLOSED}),
        ConnectionState.OPENING: frozenset({ConnectionState.READY, ConnectionState.CLOSED}),
        ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.CLOSED}),
        ConnectionState.DRAINING: frozenset({ConnectionState.CLOSED}),
        ConnectionState.CLOSED: frozenset(),
    }
)

CLIENT_LEGAL: Mapping[ClientState, frozenset[ClientState]] = MappingProxyType(
    {
        ClientState.IDLE: frozenset({ClientState.OPENING, ClientState.CLOSING}),
        ClientState.OPENING: frozenset({ClientState.READY, ClientState.IDLE, ClientState.CLOSING}),
        ClientState.READY: frozenset({ClientState.REPLACING, ClientState.CLOSING}),
        ClientState.REPLACING: frozenset(
            {ClientState.READY, ClientState.IDLE, ClientState.CLOSING}
        ),
        ClientState.CLOSING: frozenset({ClientState.IDLE}),
    }
)


class IllegalMove(RuntimeError):
    """A bug of ours: a state was entered that may not follow the current one."""

    def __init__(self, current: enum.Enum, to: enum.Enum) -> None:
        self.current, self.to = current, to
        super().__init__(f"{type(current).__name__}: {current.name} may not become {to.name}")


def move(current: ConnectionState, to: ConnectionState) -> ConnectionState:
    """The connection's next state, if it is legal."""
    return _moved(LEGAL, current, to)


def move_client(current: ClientState, to: ClientState) -> ClientState:
    """The client's next state, if it is legal."""
    return _moved(CLIENT_LEGAL, current, to)


def accepts_calls(state: ConnectionState) -> bool:
    return state is ConnectionState.READY


def is_over(state: ConnectionState) -> bool:
    return not LEGAL[state]


def _moved(legal: Mapping[State, frozenset[State]], current: State, to: State) -> State:
    if to not in legal[current]:
        raise IllegalMove(current, to)
    return to
