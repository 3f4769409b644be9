"""The states of connections and clients."""

import itertools

import pytest

from toolkeep._rules.states import (
    CLIENT_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    ClientState,
    ConnectionState,
    IllegalTransition,
    accepts_calls,
    is_final,
    transition_client,
    transition_connection,
)

PAIRS = list(itertools.product(ConnectionState, repeat=2))
CLIENT_PAIRS = list(itertools.product(ClientState, repeat=2))


@pytest.mark.parametrize(("current", "to"), PAIRS)
def test_a_connection_moves_only_along_the_table(current: ConnectionState, to: ConnectionState):
    if to in CONNECTION_TRANSITIONS[current]:
        assert transition_connection(current, to) is to
    else:
        with pytest.raises(IllegalTransition) as caught:
            transition_connection(current, to)
        assert (caught.value.current, caught.value.to) == (current, to)


@pytest.mark.parametrize(("current", "to"), CLIENT_PAIRS)
def test_a_client_moves_only_along_the_table(current: ClientState, to: ClientState):
    if to in CLIENT_TRANSITIONS[current]:
        assert transition_client(current, to) is to
    else:
        with pytest.raises(IllegalTransition):
            transition_client(current, to)


def reachable(legal, start):
    found, waiting = {start}, [start]
    while waiting:
        new = legal[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_every_state_has_a_row_and_can_be_reached():
    assert (
        set(CONNECTION_TRANSITIONS)
        == reachable(CONNECTION_TRANSITIONS, ConnectionState.NEW)
        == set(ConnectionState)
    )
    assert (
        set(CLIENT_TRANSITIONS)
        == reachable(CLIENT_TRANSITIONS, ClientState.IDLE)
        == set(ClientState)
    )


def test_a_connection_can_always_be_closed_and_is_never_revived():
    for state in set(ConnectionState) - {ConnectionState.CLOSED}:
        assert ConnectionState.CLOSED in CONNECTION_TRANSITIONS[state]
        assert state not in reachable(CONNECTION_TRANSITIONS, ConnectionState.CLOSED)
        # No way leads back: a generation is used once.
        assert all(
            state not in reachable(CONNECTION_TRANSITIONS, follower)
            for follower in CONNECTION_TRANSITIONS[state]
        )


def test_a_client_can_always_be_closed_and_used_again():
    for state in set(ClientState) - {ClientState.CLOSING}:
        assert ClientState.CLOSING in CLIENT_TRANSITIONS[state]
    for state in ClientState:
        assert reachable(CLIENT_TRANSITIONS, state) == set(ClientState)


def test_a_failed_opening_or_replacement_leaves_the_client_idle():
    assert transition_client(ClientState.OPENING, ClientState.IDLE) is ClientState.IDLE
    assert transition_client(ClientState.REPLACING, ClientState.IDLE) is ClientState.IDLE


def test_only_a_ready_connection_accepts_calls_and_only_a_closed_one_is_over():
    assert [s for s in ConnectionState if accepts_calls(s)] == [ConnectionState.READY]
    assert [s for s in ConnectionState if is_final(s)] == [ConnectionState.CLOSED]
