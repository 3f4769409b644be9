"""States and legal transitions of connections and clients.

The transitions are data; the diagrams in the documentation are drawn from them. A connection is
used once: nothing follows CLOSED. A client replaces its connections and is idle again after
closing. This module defines what is legal and does no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

_State = TypeVar("_State", bound=enum.Enum)


class ConnectionState(enum.Enum):
    """State of one connection."""

    NEW = "new"
    OPENING = "opening"
    READY = "ready"
    DRAINING = "draining"
    """No new calls; running calls finish."""
    CLOSED = "closed"


class ClientState(enum.Enum):
    """State of a client, over all its connections."""

    IDLE = "idle"
    """No connection is open; the next call opens one."""
    OPENING = "opening"
    READY = "ready"
    REPLACING = "replacing"
    """A connection ended and the next one is being opened."""
    CLOSING = "closing"


CONNECTION_TRANSITIONS: Mapping[ConnectionState, frozenset[ConnectionState]] = MappingProxyType(
    {
        ConnectionState.NEW: frozenset({ConnectionState.OPENING, ConnectionState.CLOSED}),
        ConnectionState.OPENING: frozenset({ConnectionState.READY, ConnectionState.CLOSED}),
        ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.CLOSED}),
        ConnectionState.DRAINING: frozenset({ConnectionState.CLOSED}),
        ConnectionState.CLOSED: frozenset(),
    }
)

CLIENT_TRANSITIONS: Mapping[ClientState, frozenset[ClientState]] = MappingProxyType(
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


class IllegalTransition(RuntimeError):
    """A bug in toolkeep: the new state may not follow the current one."""

    def __init__(self, current: enum.Enum, to: enum.Enum) -> None:
        self.current, self.to = current, to
        super().__init__(f"{type(current).__name__}: {current.name} may not become {to.name}")


def transition_connection(current: ConnectionState, to: ConnectionState) -> ConnectionState:
    """Return the connection's next state, or raise `IllegalTransition`."""
    return _transition(CONNECTION_TRANSITIONS, current, to)


def transition_client(current: ClientState, to: ClientState) -> ClientState:
    """Return the client's next state, or raise `IllegalTransition`."""
    return _transition(CLIENT_TRANSITIONS, current, to)


def accepts_calls(state: ConnectionState) -> bool:
    return state is ConnectionState.READY


def is_final(state: ConnectionState) -> bool:
    return not CONNECTION_TRANSITIONS[state]


def _transition(legal: Mapping[_State, frozenset[_State]], current: _State, to: _State) -> _State:
    if to not in legal[current]:
        raise IllegalTransition(current, to)
    return to
