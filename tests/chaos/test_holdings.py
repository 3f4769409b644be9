"""What is left behind is seen: a task, a socket, a process; and what only grows."""

import asyncio
import dataclasses
import socket
import subprocess
import sys

import pytest

from chaos.calm import BACK, recovered
from chaos.faults import FAULTS, TROUBLES
from chaos.holdings import GROWS, LEFT, ROOM, Holdings, growth, held, leftovers
from chaos.judge import Judge, Said
from chaos.schedule import Schedule
from chaos.soak import ENOUGH, INJECTED, USEFUL, Findings, missing, too_few
from toolkeep import Runtime

linux = pytest.mark.skipif(sys.platform != "linux", reason="files and processes are counted there")
NOW = Holdings(tasks=20, files=30, children=4, memory=90 << 20)


async def test_a_task_that_is_left_is_seen():
    before = held()
    assert not list(leftovers(before, held()))
    left = asyncio.create_task(asyncio.sleep(600))
    (broken,) = leftovers(before, held())
    assert broken.invariant == LEFT
    left.cancel()
    await asyncio.wait((left,))
    assert not list(leftovers(before, held()))


@linux
async def test_a_socket_that_is_left_is_seen():
    before = held()
    with socket.socket():
        (broken,) = leftovers(before, held())
        assert broken.invariant == LEFT
    assert not list(leftovers(before, held()))


@linux
async def test_a_process_that_is_left_is_seen():
    before = held()
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (broken,) = leftovers(before, held())
        assert broken.invariant == LEFT
    finally:
        left.kill()
        left.wait(10)
    assert not list(leftovers(before, held()))


@pytest.mark.parametrize("what", ROOM)
def test_what_grows_with_the_calls_is_seen_and_what_comes_and_goes_is_not(what: str):
    first, room = getattr(NOW, what), ROOM[what]
    growing = [dataclasses.replace(NOW, **{what: first + n * room // 2}) for n in range(8)]
    (broken,) = growth(growing)
    assert broken.invariant == GROWS
    coming = [dataclasses.replace(NOW, **{what: first + n % 2 * 3 * room}) for n in range(8)]
    assert not list(growth(coming))


async def test_a_server_that_does_not_come_back_is_seen():
    async with Runtime.open({"gone": "http://127.0.0.1:9/mcp"}) as runtime:
        seconds, unserved = await recovered(runtime, ["gone"], 0, 0.3)
        assert {broken.invariant for broken in unserved} == {BACK}
        assert seconds == 0.3


def completed(share: float, calls: int = 2_000) -> tuple[Findings, Judge]:
    judge = Judge(Schedule(1))
    for number in range(calls):
        judge.begins(number, 0)
        judge.ends(number, Said.COMPLETED if number < share * calls else Said.NOT_RUN, "", 0)
    return Findings(calls=calls), judge


def test_a_client_that_says_no_to_most_is_of_no_use():
    assert not list(too_few(*completed(0.6)))
    (broken,) = too_few(*completed(0.4))
    assert broken.invariant == USEFUL


def test_a_fault_that_never_came_proves_nothing():
    findings, judge = Findings(calls=ENOUGH), Judge(Schedule(1))
    judge.granted.update(FAULTS)
    findings.hits.update(TROUBLES)
    assert not list(missing(findings, judge))
    del findings.hits["restart"]
    (broken,) = missing(findings, judge)
    assert broken.invariant == INJECTED
    assert "restart" in broken.ledger
