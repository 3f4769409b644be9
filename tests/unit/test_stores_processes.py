"""The file store between processes: they race, they stall, they are killed."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolkeep
from toolkeep.stores import FileSessionStore, StoredSession

BOUND = 40.0
CLIMBERS, WINS, KILLS = 4, 60, 10

CLIMB = """
import asyncio, json, sys
from toolkeep.stores import FileSessionStore, StoredSession

async def climb(directory, name, wins):
    store, won = FileSessionStore(directory), []
    print("ready", flush=True)
    sys.stdin.readline()
    while len(won) < wins:
        seen = await store.load("kit", "ann")
        old, new = seen and seen.session_id, f"{name}-{len(won)}"
        session = StoredSession(session_id=new, handshake={}, binding="b", saved_at=1.5)
        if await store.save("kit", "ann", session, replacing=old):
            won.append((old, new))
    print(json.dumps(won))

asyncio.run(climb(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

SAVE_ON_AND_ON = """
import asyncio, sys
from toolkeep.stores import FileSessionStore, StoredSession

async def save_on_and_on(directory):
    store, number = FileSessionStore(directory), 0
    seen = await store.load("kit", "ann")
    old = seen and seen.session_id
    while True:
        new, number = f"{number}", number + 1
        handshake = {"instructions": new * 200_000}
        session = StoredSession(session_id=new, handshake=handshake, binding="b", saved_at=1.5)
        assert await store.save("kit", "ann", session, replacing=old)
        old = new
        print("saved", flush=True)

asyncio.run(save_on_and_on(sys.argv[1]))
"""

HOLD_THE_LOCK = """
import sys
from toolkeep import _files
from pathlib import Path

with _files.locked(Path(sys.argv[1], "lock")):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def running(program: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process of its own, killed at the end whatever happened."""
    source = str(Path(toolkeep.__file__).parents[1])
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    """The next line, or nothing if the process has ended. The test's own timeout bounds it."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def a_session(session_id: str) -> StoredSession:
    return StoredSession(session_id=session_id, handshake={}, binding="b", saved_at=1.5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def store(directory: Path) -> FileSessionStore:
    return FileSessionStore(directory)


def test_of_processes_that_race_exactly_one_replaces_each_session(
    store: FileSessionStore, directory: Path, caplog: pytest.LogCaptureFixture
):
    with contextlib.ExitStack() as stack:
        racers = [
            stack.enter_context(running(CLIMB, directory, name, WINS)) for name in range(CLIMBERS)
        ]
        assert [line_of(racer) for racer in racers] == ["ready"] * CLIMBERS
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        while any(racer.poll() is None for racer in racers):
            asyncio.run(store.load("kit", "ann"))
        won = [pair for racer in racers for pair in json.loads(line_of(racer))]
    successor = dict(won)
    assert len(successor) == len(won) == CLIMBERS * WINS
    last = None
    while last in successor:
        last = successor.pop(last)
    assert not successor  # one unbroken line, from nothing to what is kept now
    assert asyncio.run(store.load("kit", "ann")) == a_session(str(last))
    assert not caplog.records  # at no moment was there half a record


def test_a_process_killed_while_saving_leaves_a_whole_record_and_no_lock(
    store: FileSessionStore, directory: Path, caplog: pytest.LogCaptureFixture
):
    kept = None
    for kill in range(KILLS):
        with running(SAVE_ON_AND_ON, directory) as process:
            assert line_of(process) == "saved"
            time.sleep(kill * 0.0007)  # not to settle: to strike at different moments
            process.kill()
            process.wait(BOUND)
        kept = asyncio.run(store.load("kit", "ann"))
        assert kept is not None
        assert kept.handshake == {"instructions": kept.session_id * 200_000}
    old = kept and kept.session_id
    assert asyncio.run(store.save("kit", "ann", a_session("mine"), replacing=old))
    assert not caplog.records
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".json"]


async def test_what_a_killed_process_had_half_written_goes_with_the_next_save(
    store: FileSessionStore, directory: Path
):
    await store.save("kit", "ann", a_session("one"), replacing=None)
    (path,) = directory.glob("*.json")
    path.with_suffix(".part").write_bytes(path.read_bytes()[:20])
    assert await store.load("kit", "ann") == a_session("one")
    assert await store.save("kit", "ann", a_session("two"), replacing="one")
    assert await store.load("kit", "ann") == a_session("two")
    assert not list(directory.glob("*.part"))


async def test_who_waits_too_long_for_another_process_is_told(
    store: FileSessionStore, directory: Path
):
    await store.save("kit", "ann", a_session("one"), replacing=None)
    with running(HOLD_THE_LOCK, directory) as process:
        assert line_of(process) == "locked"
        waiting = (
            store.load("kit", "ann"),
            store.save("kit", "ann", a_session("two"), replacing="one"),
            store.drop("kit", "ann", "one"),
        )
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), BOUND)
        assert [type(end) for end in ends] == [TimeoutError] * 3
        process.kill()
        process.wait(BOUND)
        assert await store.load("kit", "ann") == a_session("one")


async def test_who_waits_goes_on_when_the_other_process_is_done(
    store: FileSessionStore, directory: Path
):
    await store.save("kit", "ann", a_session("one"), replacing=None)
    with running(HOLD_THE_LOCK, directory) as process:
        assert line_of(process) == "locked"
        saving = asyncio.create_task(store.save("kit", "ann", a_session("two"), replacing="one"))
        assert not (await asyncio.wait((saving,), timeout=0.1))[0]
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(saving, BOUND)
