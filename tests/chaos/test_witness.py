"""Whoever listens knows a call that ends twice, a token that is shown, a loop that stood still."""

import asyncio
import logging
import time
from typing import Any

import pytest

from chaos.judge import HUSHED
from chaos.scene import token
from chaos.witness import CAUGHT, ONE_END, Witness
from toolkeep import CallResult
from toolkeep.events import Completed, Failed, Log, Progress, Started

ABOUT: dict[str, Any] = {"server": "s", "tool": "t", "call_id": "1"}
STARTED = Started(**ABOUT)
ENDED = Completed(result=CallResult(server="s", tool="t", raw={"content": []}), **ABOUT)
LINE = Log(level="info", data="x", **ABOUT)


@pytest.mark.parametrize(
    ("heard", "fine"),
    [
        ([STARTED, LINE, ENDED], True),
        ([ENDED], True),  # refused before it began
        ([STARTED, ENDED, ENDED], False),
        ([STARTED, ENDED, LINE], False),
        ([STARTED, STARTED, ENDED], False),
        ([STARTED, LINE], False),
    ],
)
def test_a_call_has_one_end_and_nothing_after(heard: list[Any], fine: bool):
    witness = Witness()
    for event in heard:
        witness(event)
    found = {broken.invariant for broken in witness.findings(quiet=True)}
    assert found == (set[str]() if fine else {ONE_END})


def test_while_calls_are_under_way_none_has_to_have_ended():
    witness = Witness()
    witness(STARTED)
    assert not witness.findings(quiet=False)
    witness(ENDED)
    assert not witness.findings(quiet=True)


async def test_a_token_in_an_event_or_in_the_log_is_seen():
    witness = Witness()
    log = logging.getLogger("toolkeep.anything")
    for event in (
        Failed(error=ValueError(f"refused: {token('ada', 1)}"), **ABOUT),
        Progress(progress=1.0, message=token("ada", 2), **ABOUT),
    ):
        witness(event)
        found = witness.findings(quiet=False)
        assert {broken.invariant for broken in found} >= {HUSHED}
    async with witness.listening():
        log.warning("sent %s", token("ben", 2))
        log.debug("sent %s", token("ben", 3))
    heard = [broken.client for broken in witness.findings(quiet=True) if "sent" in broken.client]
    assert heard == [f"sent {token('ben', 2)}", f"sent {token('ben', 3)}"]
    assert not log.isEnabledFor(logging.DEBUG)


async def test_what_fails_where_nobody_looks_is_seen():
    async def forgotten() -> None:
        pass

    witness = Witness()
    async with witness.listening():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        forgotten()  # pyright: ignore[reportUnusedCoroutine]
        await asyncio.sleep(0.01)
    assert [broken.invariant for broken in witness.findings(quiet=True)] == [CAUGHT, CAUGHT]


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.12])
async def test_only_the_time_in_which_the_loop_stood_still_is_counted_and_only_since_then(
    pause: float,
):
    """Whether or not the ticking has had its turn since."""
    witness, loop = Witness(), asyncio.get_running_loop()
    async with witness.listening():
        await asyncio.sleep(0.1)
        time.sleep(0.4)
        await asyncio.sleep(0.2)
        middle = loop.time()
        time.sleep(0.3)
        await asyncio.sleep(pause)
        stood, until = witness.stood_since(middle), loop.time()
    assert 0.2 < stood <= until - middle
    assert witness.stood_since(until) <= 0.1
    assert witness.lag >= 0.3
