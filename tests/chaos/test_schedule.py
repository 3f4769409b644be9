"""What a soak does is a pure function of its seed."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from chaos.faults import FAULTS, OF_ONE, TROUBLES
from chaos.scene import BY_NAME, PLACES, PRINCIPALS, SERVERS
from chaos.schedule import Schedule
from chaos.soak import ENOUGH
from toolkeep.testing import Behaviour

ROOT = Path(__file__).resolve().parents[2]


def test_a_seed_is_a_schedule_in_every_process():
    command = [sys.executable, "-m", "chaos", "--plan", "--seed", "7", "--calls", "300"]
    printed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert printed.splitlines() == list(Schedule(7).lines(300))


def test_another_seed_is_another_schedule_and_a_longer_soak_begins_like_a_shorter_one():
    assert list(Schedule(7).lines(50)) != list(Schedule(8).lines(50))
    longer = list(Schedule(7).lines(200))
    assert list(islice(longer, 100)) == list(Schedule(7).lines(200))[:100]
    assert longer[: len(list(Schedule(7).lines(50)))] == list(Schedule(7).lines(50))


@pytest.mark.parametrize("seed", [1, 7, 2026])
def test_every_fault_and_every_trouble_is_due_within_a_long_soak(seed: int):
    schedule = Schedule(seed)
    events = [event for n in range(ENOUGH) if (event := schedule.event(n)) is not None]
    assert {schedule.step(n).fault for n in range(ENOUGH)} == {None, *FAULTS}
    assert {event.kind for event in events} == set(TROUBLES)
    of_a_place = {event.target for event in events if TROUBLES[event.kind].kinds}
    assert of_a_place == set(PLACES)


def test_faults_and_troubles_are_such_as_their_servers_can_have():
    schedule = Schedule(3)
    for number in range(3_000):
        step = schedule.step(number)
        if step.fault is not None:
            fault, server = FAULTS[step.fault], BY_NAME[step.server]
            assert server.kind in fault.kinds
            assert server.era in fault.eras
        event = schedule.event(number)
        if event is not None and TROUBLES[event.kind].kinds:
            assert PLACES[event.target].kind in TROUBLES[event.kind].kinds


def test_the_wishes_are_behaviours_of_the_kit_and_the_shares_are_percent():
    for fault in FAULTS.values():
        assert Behaviour(**fault.wish) != Behaviour()
    assert set(OF_ONE) | set(OF_ONE.values()) <= set(TROUBLES)
    assert sum(server.share for server in SERVERS) == 100


def test_every_way_to_reach_a_server_and_both_eras_take_part():
    assert {server.kind for server in SERVERS} == {"http", "sse", "stdio"}
    assert {(s.kind, s.era) for s in SERVERS} >= {
        ("http", "legacy"),
        ("http", "modern"),
        ("stdio", "legacy"),
        ("stdio", "modern"),
    }
    assert any(server.addresses > 1 for server in SERVERS)
    assert len(PRINCIPALS) > 3
