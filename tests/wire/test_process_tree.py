"""Nothing that a server has started survives: not its end, not its client's, not ours."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.helpers_stdio import (
    BOUND,
    ECHO,
    FAMILY,
    STUCK,
    Undertaker,
    ending,
    family_of,
    line,
    message,
    messages,
    opened,
    say,
    spec_of,
)
from toolkeep._transport.stdio import StdioChannel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

QUICK = {"timeouts": {"close": 1.0}}

HOLDER = """
import asyncio, json, os, signal, sys
from toolkeep._transport.stdio import StdioChannel
from tests.wire.helpers_stdio import FAMILY, spec_of

how = sys.argv[1]

async def main():
    channel = StdioChannel(spec_of(FAMILY, "stubborn"))
    await channel.open()
    [report] = await channel.receive()
    sibling = None
    if how == "sibling":
        sibling = os.fork()
        if not sibling:
            while True:
                signal.pause()
    print(json.dumps({"pids": [os.getpid(), *report["pids"]], "sibling": sibling}), flush=True)
    if how != "return":
        await asyncio.Event().wait()
    return channel

loop = asyncio.new_event_loop()
channel = loop.run_until_complete(main())
"""
"""A program that opens a channel and never closes it."""


@pytest.fixture
def undertaker() -> Iterator[Undertaker]:
    undertaker = Undertaker()
    yield undertaker
    undertaker.bury()


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@pytest.mark.requirement("S16")
@pytest.mark.parametrize("manners", ["obedient", "stubborn"])
async def test_closing_ends_the_whole_tree(undertaker: Undertaker, manners: str):
    async with opened(FAMILY, manners, **QUICK) as channel:
        await family_of(channel, undertaker)
        began = time.monotonic()
        await channel.close()
        assert time.monotonic() - began < 2.0
    assert undertaker.alive == []


STOPPING = FAMILY.replace(
    "os.write(1, json.dumps(message)",
    """
os.read(0, 100)  # not before the supervisor has said that we run
supervisor = os.getppid()
if "orphan" in arguments:
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            os.kill(supervisor, signal.SIGSTOP)
os.kill(supervisor, signal.SIGSTOP)
os.write(1, json.dumps(message)""",
)
"""Stops its parent; as an `orphan`, a grandchild in a session of its own does so without end."""


@pytest.mark.requirement("S16")
@pytest.mark.parametrize("arguments", [(), ("stubborn",), ("orphan",), ("stubborn", "orphan")])
async def test_a_server_that_stops_its_supervisor_is_ended_all_the_same(
    undertaker: Undertaker, arguments: tuple[str, ...]
):
    async with opened(STOPPING, *arguments, **QUICK) as channel:
        await say(channel, b"{}")
        await family_of(channel, undertaker)
        await channel.close()
    await undertaker.all_gone()
    async with asyncio.timeout(BOUND):
        while has_children():  # no zombie either
            await asyncio.sleep(0.01)


@pytest.mark.requirement("S16")
async def test_a_close_that_is_cancelled_ends_a_server_that_stops_its_supervisor(
    undertaker: Undertaker,
):
    async with opened(STOPPING, "stubborn", timeouts={"close": 30.0}) as channel:
        await say(channel, b"{}")
        await family_of(channel, undertaker)
        closing = asyncio.ensure_future(channel.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        await undertaker.all_gone()


@pytest.mark.requirement("S16")
async def test_the_children_of_a_killed_server_go_with_it(undertaker: Undertaker):
    async with opened(FAMILY) as channel:
        os.kill(await family_of(channel, undertaker), signal.SIGKILL)
        await undertaker.all_gone()
        assert await ending(channel) == []
        assert (await channel.close_reason()).exit_code == -signal.SIGKILL


@pytest.mark.requirement("S16")
async def test_the_children_of_a_server_that_exits_go_with_it(undertaker: Undertaker):
    async with opened(FAMILY, "exit") as channel:
        [report] = await ending(channel)
        assert isinstance(report, dict)
        undertaker.know(report["pids"])
        assert (await channel.close_reason()).exit_code == 3
        await undertaker.all_gone()


@pytest.mark.requirement("S16")
@pytest.mark.parametrize("end", ["kill", "sibling", "return"])
async def test_the_tree_goes_when_the_program_goes(undertaker: Undertaker, end: str):
    """Killed; killed while a process forked from it holds its pipes; ended without a close."""
    path = os.pathsep.join(sys.path)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", HOLDER, end),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    undertaker.know([program.pid])
    try:
        assert program.stdout is not None
        async with asyncio.timeout(BOUND):
            line = await program.stdout.readline()
        found = json.loads(line)
        sibling = [found["sibling"]] if found["sibling"] else []
        undertaker.know([*found["pids"], *sibling])
        if end != "return":
            program.kill()
        await undertaker.all_gone(but=sibling)
        assert undertaker.alive == sibling
    finally:
        undertaker.bury()
        await program.communicate()


async def test_a_close_that_is_cancelled_still_kills(undertaker: Undertaker):
    async with opened(FAMILY, "stubborn", timeouts={"close": 60.0}) as channel:
        await family_of(channel, undertaker)
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,), timeout=BOUND)
        assert closing.cancelled()
        await undertaker.all_gone()


async def test_an_opening_that_is_cancelled_leaves_nothing():
    channel = StdioChannel(spec_of(STUCK))
    opening = asyncio.create_task(channel.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait((opening,), timeout=BOUND)
    assert opening.cancelled()
    async with asyncio.timeout(BOUND):
        while has_children():
            await asyncio.sleep(0.01)
    await channel.close()


async def test_the_loop_does_not_wait_for_a_process_that_is_let_go(undertaker: Undertaker):
    async with opened(STUCK) as channel:
        [report] = await messages(channel, 1)
        assert isinstance(report, dict)
        undertaker.know(report["pids"])
        supervisor = report["pids"][1]
        os.kill(supervisor, signal.SIGSTOP)  # it hears of nothing for a while
        began = time.monotonic()
        channel.detach(forked=False)
        assert time.monotonic() - began < 0.5
        with contextlib.suppress(ProcessLookupError):  # it may have been killed meanwhile
            os.kill(supervisor, signal.SIGCONT)
        await undertaker.all_gone()


async def test_a_killed_supervisor_takes_its_server_with_it(undertaker: Undertaker):
    async with opened(STUCK) as channel:
        [report] = await messages(channel, 1)
        assert isinstance(report, dict)
        undertaker.know(report["pids"])
        os.kill(report["pids"][1], signal.SIGKILL)
        deadline = time.monotonic() + BOUND
        while undertaker.alive and time.monotonic() < deadline:
            time.sleep(0.01)  # our loop stands still, so that the kernel alone can have done it
        assert undertaker.alive == []
        assert await ending(channel) == []
        assert (await channel.close_reason()).exit_code is None


async def test_children_in_the_group_of_a_killed_supervisors_server_go_too(undertaker: Undertaker):
    script = """
import os, signal
child = os.fork()
if child:
    os.write(1, b'{"jsonrpc": "2.0", "pids": [%d, %d, %d]}\\n' % (os.getpid(), os.getppid(), child))
while True:
    signal.pause()
"""
    async with opened(script) as channel:
        [report] = await messages(channel, 1)
        assert isinstance(report, dict)
        undertaker.know(report["pids"])
        os.kill(report["pids"][1], signal.SIGKILL)
        assert await ending(channel) == []
        await undertaker.all_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_supervisor_does_not_mind_signals_of_terminals(number: signal.Signals):
    script = (
        'import os; print(\'{"jsonrpc": "2.0", "pid": %d}\' % os.getppid(), flush=True)\n' + ECHO
    )
    async with opened(script) as channel:
        [report] = await messages(channel, 1)
        assert isinstance(report, dict)
        os.kill(report["pid"], number)
        await say(channel, line(id=1).encode())
        assert await messages(channel, 1) == [message(id=1)]


async def test_a_supervisor_holds_none_of_the_streams_and_the_server_none_of_the_supervisors():
    script = """
import json, os
def files(pid):
    found = [entry.path for entry in os.scandir(f"/proc/{pid}/fd")]
    return {os.path.basename(p): os.readlink(p) for p in found if os.path.lexists(p)}
input()
seen = {"own": files("self"), "supervisor": files(os.getppid())}
print(json.dumps({"jsonrpc": "2.0", **seen}), flush=True)
"""
    async with opened(script) as channel:
        await say(channel, b"{}")  # by now the supervisor has let go
        [report] = await messages(channel, 1)
    assert isinstance(report, dict)
    own = {report["own"][fd] for fd in "012"}
    assert not own & set(report["supervisor"].values())
    assert not [name for name in report["own"].values() if name.startswith("socket:")]


async def test_a_forked_process_lets_go_and_kills_nobody():
    async with opened(ECHO) as channel:
        with warnings.catch_warnings():
            # From 3.12 on, where there are threads; the child here does next to nothing.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                channel.detach(forked=True)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        await say(channel, line(id=1).encode())
        assert await messages(channel, 1) == [message(id=1)]


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_channel_is_abandoned_when_its_loop_is_gone(
    undertaker: Undertaker, forgotten: bool
):
    async def open_only() -> StdioChannel:
        channel = StdioChannel(spec_of(FAMILY, "stubborn"))
        await channel.open()
        await family_of(channel, undertaker)
        return channel

    def use() -> None:
        channel = asyncio.run(open_only())
        if not forgotten:
            channel.detach(forked=False)

    await asyncio.to_thread(use)
    gc.collect()
    await undertaker.all_gone()


async def test_there_is_no_thread():
    before = threading.active_count()
    async with opened(ECHO) as channel:
        await say(channel, line().encode())
        await messages(channel, 1)
        assert threading.active_count() <= before


@pytest.mark.parametrize("interpreter", ["", "/bin/false", "/nowhere/python", "python-that-fails"])
async def test_without_a_supervisor_the_process_group_is_killed(
    undertaker: Undertaker,
    interpreter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """An embedding program has no interpreter to run the supervisor with."""
    script = """
import json, os, signal
child = os.fork()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child:
    os.write(1, json.dumps({"jsonrpc": "2.0", "pids": [os.getpid(), child]}).encode() + b"\\n")
while True:
    signal.pause()
"""
    spec = spec_of(script, **QUICK).replace(name=f"plain{len(interpreter)}")
    failing = tmp_path / "python-that-fails"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", interpreter and str(tmp_path / interpreter))
    for _ in range(2):
        channel = StdioChannel(spec)
        with caplog.at_level(logging.WARNING, "toolkeep.server"):
            await channel.open()
        try:
            [report] = await messages(channel, 1)
            assert isinstance(report, dict)
            undertaker.know(report["pids"])
        finally:
            await channel.close()
        await undertaker.all_gone()
    assert len(caplog.records) == 1


async def test_without_a_supervisor_the_exit_code_is_known(monkeypatch: pytest.MonkeyPatch):
    spec = spec_of("import sys; sys.exit(5)")
    monkeypatch.setattr(sys, "executable", "")
    channel = StdioChannel(spec)
    await channel.open()
    try:
        assert await ending(channel) == []
        assert (await channel.close_reason()).exit_code == 5
    finally:
        await channel.close()
