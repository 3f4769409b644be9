"""What goes over a program's standard streams: one message to a line, in both directions."""

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from tests.wire.helpers_stdio import (
    BOUND,
    ECHO,
    STUCK,
    ending,
    line,
    message,
    messages,
    opened,
    say,
)
from toolkeep._rules.classify import FaultKind
from toolkeep._transport.base import Attempt, OversizedMessage, WireFault
from toolkeep._transport.framing import LineDecoder
from toolkeep._transport.stdio import StdioChannel

LOGGER = "toolkeep.server"
A, B = line(a=1), line(b=2)
BIG = line(id=1, fill="x" * 1_000_000).encode()
"""More than a pipe takes at once."""

LATE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
os.write(1, b'{"jsonrpc": "2.0", "pid": %d}\\n' % os.getpid())
signal.sigwait((signal.SIGUSR1,))
for line in sys.stdin.buffer:
    os.write(1, b'{"jsonrpc": "2.0", "read": %d}\\n' % len(line))
"""
"""Reads nothing until it is told to, and then says how long the lines are."""


def printing(output: str) -> str:
    return f"import os; os.write(1, {output.encode()!r})"


async def pid_of(channel: StdioChannel) -> int:
    [report] = await messages(channel, 1)
    assert isinstance(report, dict)
    return report["pid"]


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.requirement("S13")
@pytest.mark.parametrize(
    "output",
    [
        f"{A}\n{B}\n",
        f"{A}\r\n{B}\r\n",
        f"\n\r\n  \n{A}\n\n{B}\n",
        f"[{A}, {B}]\n",
        f'{A}\nnot json\n"a string"\n[]\n[1]\n{B}\n',
        f"{A}\n{B}",
        f'{A}\n{B}\n{{"half": ',
        f"\ufeff{A}\n{B}\n",
        f'{A}\n{{"level": 30, "msg": "hello"}}\n{B}\n',
    ],
)
async def test_messages_are_lines(output: str):
    async with opened(printing(output)) as channel:
        assert await ending(channel) == [message(a=1), message(b=2)]
        assert await channel.receive() is None


async def test_a_line_may_come_in_pieces():
    script = """
import os, sys, time
for piece in (b'{"jsonrpc": "2.0", "a"', b': "\\xc3', b'\\xa4"}', b'\\n{"jsonrpc": "2.0"}', b'\\n'):
    os.write(1, piece)
    time.sleep(0.02)
"""
    async with opened(script) as channel:
        assert await ending(channel) == [message(a="ä"), message()]


@pytest.mark.parametrize(
    ("form", "request_id"),
    [
        ('{"jsonrpc":"2.0","id":7,"result":{"fill":"%s"}}', 7),
        ('{"jsonrpc": "2.0", "id": "x\\u00e4", "error": {"fill": "%s"}}', "xä"),
        ('{"result":{"fill":"%s"},"jsonrpc":"2.0","id":7}', 7),
        ('{"jsonrpc":"2.0","result":{"fill":"%s","id":8}}', None),
        ('{"jsonrpc":"2.0","id":7,"method":"ask","params":{"fill":"%s"}}', None),
        ('{"jsonrpc":"2.0","method":"ask","params":{"fill":"%s"},"id":7}', None),
        ('{"jsonrpc":"2.0","id":true,"result":{"fill":"%s"}}', None),
        ('[{"jsonrpc":"2.0","id":7,"result":{"fill":"%s"}}]', None),
        ("%s", None),
    ],
)
@pytest.mark.parametrize("size", [1_100, 300_000])
async def test_what_is_too_long_is_thrown_away_and_its_owner_named(
    form: str, request_id: int | str | None, size: int
):
    script = f"print({form!r} % ({size} * 'x')); print({A!r})"
    async with opened(script, max_result_bytes=1_000) as channel:
        assert await ending(channel) == [OversizedMessage(request_id, 1_000), message(a=1)]


def test_what_is_too_long_is_not_kept():
    lines = LineDecoder(limit=1_000)
    for _ in range(1_000):
        assert lines.feed(b"x" * 10_000) == []
        assert sum(map(len, (lines.buffer, lines.head or b""))) <= 1_000
    assert lines.feed(b"\n{}\n") == [OversizedMessage(None, 1_000), b"{}"]


async def test_a_flood_waits_in_its_pipe_until_somebody_reads(tmp_path: Path):
    script = """
import os, sys
for n in range(100):
    os.write(1, b'{"jsonrpc": "2.0", "n": %d, "fill": "%s"}\\n' % (n, b"x" * 100_000))
    if n in (5, 99): open(f"{sys.argv[1]}/{n}", "w").close()
"""
    async with opened(script, str(tmp_path)) as channel:
        async with asyncio.timeout(BOUND):
            while not (tmp_path / "5").exists():
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # long enough for all of it, were it taken
        assert not (tmp_path / "99").exists()
        found = await ending(channel)
    assert [each["n"] for each in found if isinstance(each, dict)] == list(range(100))


async def test_chatter_on_the_output_is_logged_and_remembered(caplog: pytest.LogCaptureFixture):
    script = """
print("Starting with key sesame-open ...")
print("x" * 1000)
for n in range(100): print("chatter", n)
print('{"jsonrpc": "2.0"}')
"""
    with caplog.at_level(logging.WARNING, LOGGER):
        async with opened(script, env={"KEY": "sesame-open"}) as channel:
            assert channel.stray_output == ""
            assert await ending(channel) == [message()]
            assert "Starting with key" in channel.stray_output
            assert "sesame-open" not in channel.stray_output
            assert len(channel.stray_output) < 1000
            assert channel.stray_output in (await channel.close_reason()).detail
    assert 1 <= len(caplog.records) <= 5
    assert all(record.getMessage().startswith("small") for record in caplog.records)
    assert "sesame-open" not in caplog.text


# -- writing ------------------------------------------------------------------------------------


async def test_many_senders_at_once_do_not_mix_their_lines():
    bodies = [line(id=n, fill="x" * 50_000).encode() for n in range(40)]
    async with opened(ECHO) as channel:
        sending = asyncio.gather(*(say(channel, body) for body in bodies))
        found = await messages(channel, len(bodies))
        assert all(attempt.sent for attempt in await sending)
    assert [m["id"] for m in found if isinstance(m, dict)] == list(range(40))


@pytest.mark.requirement("P1")
async def test_what_waits_behind_another_when_the_pipe_breaks_was_not_sent():
    async with opened(LATE) as channel:
        pid = await pid_of(channel)
        first, second = await say(channel, BIG), Attempt()
        waiting = asyncio.create_task(channel.send(b'{"id": 2}', second, {}))
        await asyncio.wait((waiting,), timeout=0.05)
        assert (first.sent, second.sent, waiting.done()) == (True, False, False)
        os.kill(pid, signal.SIGKILL)
        await ending(channel)
        with pytest.raises(WireFault) as caught:
            await asyncio.wait_for(waiting, BOUND)
        assert caught.value.evidence.kind is FaultKind.CONNECT
        assert not caught.value.evidence.sent
        assert not second.sent


@pytest.mark.requirement("P1")
async def test_what_waits_when_the_server_closes_its_output_was_not_sent():
    script = LATE.replace("for line", "os.close(1); signal.pause()\nfor line")
    async with opened(script, timeouts={"close": 0.5}) as channel:
        pid = await pid_of(channel)
        await say(channel, BIG)
        attempt = Attempt()
        waiting = asyncio.create_task(channel.send(b'{"id": 2}', attempt, {}))
        os.kill(pid, signal.SIGUSR1)
        await ending(channel)
        with pytest.raises(WireFault):
            await asyncio.wait_for(waiting, BOUND)
        assert not attempt.sent


@pytest.mark.requirement("P1")
async def test_a_server_that_closed_its_input_was_sent_nothing():
    script = (
        'import os, signal; os.close(0); print(\'{"jsonrpc": "2.0"}\', flush=True); signal.pause()'
    )
    async with opened(script, timeouts={"close": 0.5}) as channel:
        await messages(channel, 1)
        attempt = Attempt()
        with pytest.raises(WireFault) as caught:
            await channel.send(b'{"id": 1}', attempt, {})
        assert not attempt.sent
        assert caught.value.evidence.kind is FaultKind.CONNECT


@pytest.mark.requirement("S14")
async def test_a_sender_that_goes_away_leaves_no_half_line():
    async with opened(LATE) as channel:
        pid = await pid_of(channel)
        await say(channel, BIG)  # its end is still here, its sender gone
        gone = asyncio.create_task(say(channel, b'{"never": 1}'))
        await asyncio.wait((gone,), timeout=0.05)
        gone.cancel()
        after = asyncio.create_task(say(channel, b'{"id": 3}'))
        os.kill(pid, signal.SIGUSR1)
        assert await messages(channel, 2) == [message(read=len(BIG) + 1), message(read=10)]
        await asyncio.wait_for(after, BOUND)
        assert gone.cancelled()


async def test_a_line_that_is_leaving_still_leaves_when_the_channel_closes(tmp_path: Path):
    script = f"""
import sys, time
print({A!r}, flush=True)
open({str(tmp_path / "read")!r}, "wb").write(sys.stdin.buffer.read())
"""
    async with opened(script) as channel:
        await messages(channel, 1)
        await say(channel, BIG)
    assert (tmp_path / "read").read_bytes() == BIG + b"\n"


async def test_a_program_that_never_reads_does_not_hold_up_the_close():
    async with opened(STUCK, timeouts={"close": 0.6}) as channel:
        await messages(channel, 1)
        await say(channel, BIG)
        waiting = asyncio.create_task(say(channel, b"{}"))
        began = time.monotonic()
        await channel.close()
        assert time.monotonic() - began < 1.6
        with pytest.raises(WireFault):
            await asyncio.wait_for(waiting, BOUND)
