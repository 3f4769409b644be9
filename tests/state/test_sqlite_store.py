"""The SQLite driver: a private, bounded file that survives what happens to files and clocks."""

import asyncio
import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from toolkeep.errors import StoreUnavailable
from toolkeep.state import SQLiteStore

PATIENCE = 15.0
HOUR = 3600.0


@contextlib.asynccontextmanager
async def opened(path: Path, **options):
    store = SQLiteStore(path, **{"timeout": 5.0, **options})
    try:
        yield store
    finally:
        await store.aclose()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_file_and_its_directory_are_private(tmp_path: Path):
    path = tmp_path / "one" / "two" / "store.db"
    async with opened(path) as store:
        await store.put("key", b"x")
        assert [mode(folder) for folder in (path.parent.parent, path.parent)] == [0o700, 0o700]
        files = {file.name: mode(file) for file in path.parent.iterdir()}
        assert files == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)


@pytest.mark.parametrize("what", ["file", "directory", "link"])
async def test_what_others_can_reach_is_not_used(tmp_path: Path, what: str):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    path = folder / "store.db"
    async with opened(path) as store:
        await store.put("key", b"x")
    if what == "file":
        path.chmod(0o644)
    elif what == "directory":
        folder.chmod(0o755)
    else:
        path.rename(folder / "real.db")
        path.symlink_to(folder / "real.db")
    async with opened(path) as store:
        with pytest.raises(StoreUnavailable, match=r"cannot be trusted: .+ Use a file in a dir"):
            await store.get("key")


async def test_a_file_of_another_program_is_left_alone(tmp_path: Path):
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE important (x)")
    text = tmp_path / "notes.txt"
    text.write_text("no database at all, but long enough to be looked at" * 20)
    for path in (other, text):
        path.chmod(0o600)
        tmp_path.chmod(0o700)
        before = path.read_bytes() if path == text else b""
        async with opened(path) as store:
            with pytest.raises(StoreUnavailable, match="another program"):
                await store.put("key", b"x")
        assert path != text or path.read_bytes() == before


async def test_a_full_file_refuses_and_drops_what_has_expired(tmp_path: Path):
    async with opened(tmp_path / "s" / "store.db", max_bytes=400_000, timeout=5) as store:
        number = 0
        with pytest.raises(StoreUnavailable, match=r"the store is full .+ max_bytes"):
            for number in range(1000):
                await store.put(f"key{number}", bytes(10_000), ttl=5)
        entry = await store.get("key0")
        assert number > 10
        assert (tmp_path / "s" / "store.db").stat().st_size <= 400_000
        async with asyncio.timeout(PATIENCE):
            while entry is not None:
                await asyncio.sleep(0.05)
                entry = await store.get(f"key{number - 1}")
        assert await store.put("after", bytes(200_000))


async def test_a_file_that_was_removed_is_made_again(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path) as one, opened(path) as two, two.subscribe("channel") as messages:
        await one.put("key", b"x")
        for file in list(path.parent.iterdir()):
            file.unlink()
        assert await one.get("key") is None
        version = await one.put("key", b"y")
        entry = await two.get("key")
        assert entry is not None
        assert (entry.value, entry.version) == (b"y", version)
        publishing = asyncio.create_task(publish_always(one))
        try:
            assert await asyncio.wait_for(anext(messages), PATIENCE) == b"x"
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])


async def publish_always(store: SQLiteStore) -> None:
    while True:
        await store.publish("channel", b"x")
        await asyncio.sleep(0.05)


async def test_a_lock_that_is_kept_is_waited_for_no_longer_than_the_timeout(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path, timeout=0.25) as store:
        await until_it_works(store)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no response within|kept the file locked"):
                await store.put("key", b"y")
            results = await asyncio.gather(
                *(store.put("key", b"z") for _ in range(50)), return_exceptions=True
            )
            assert {type(result) for result in results} == {StoreUnavailable}
            assert time.monotonic() - started < 10
            other.execute("ROLLBACK")
        await until_it_works(store)


async def test_readers_do_not_wait_for_a_writer(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path) as store:
        await store.put("key", b"x")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            entry = await store.get("key")
            other.execute("ROLLBACK")
        assert entry is not None
        assert entry.value == b"x"


async def until_it_works(store: SQLiteStore) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.put("key", b"x")
                return
            await asyncio.sleep(0.02)


def set_clock_back(path: Path, seconds: float) -> None:
    """What is there looks as if it had been written by a clock that was ahead."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE cells SET until = until + ?", (seconds,))
        connection.execute("UPDATE cells SET version = version + ?", (int(seconds * 1e6),))
        connection.execute("UPDATE clock SET last = last + ?", (int(seconds * 1e6),))


async def test_versions_and_tokens_grow_when_the_clock_is_set_back(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path) as store:
        await store.put("key", b"x")
        lease = await store.lease("lease", 60)
        assert lease is not None
        set_clock_back(path, HOUR)
        before = await store.get("key")
        assert before is not None
        await store.delete("key")
        after = await store.put("key", b"y")
        assert after is not None
        assert after > before.version
        again = await store.lease("another", 60)
        assert again is not None
        assert again.token > lease.token + HOUR * 1e6


async def test_a_lease_outlives_a_clock_that_is_set_back_by_its_ttl_at_most(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path) as store:
        assert await store.lease("lease", 0.3)
        await store.put("value", b"x", ttl=0.3)
        assert await store.take("bucket", rate=10, burst=1) == 0.0
        set_clock_back(path, HOUR)
        assert await store.take("bucket", rate=10, burst=1) <= 0.1
    async with opened(path) as store:
        assert await store.lease("lease", 1) is None
        async with asyncio.timeout(PATIENCE):
            while not await store.lease("lease", 60):
                await asyncio.sleep(0.05)
            while await store.get("value"):
                await asyncio.sleep(0.05)


async def test_expired_rows_leave_the_file(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    async with opened(path) as store:
        await store.put("value", b"x", ttl=0.01)
        await store.append("log", b"x", max_entries=9, ttl=0.01)
        await store.lease("lease", 0.01)
        async with asyncio.timeout(PATIENCE):
            while rows(path):
                await asyncio.sleep(0.2)
                await store.release(await store.lease("probe", 60) or pytest.fail("held"))


def rows(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = ("cells", "entries")
        return sum(
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables
        )


def test_threads_and_event_loops_share_one_store(tmp_path: Path):
    store = SQLiteStore(tmp_path / "s" / "store.db", timeout=PATIENCE)

    async def count() -> None:
        for _ in range(25):
            while True:
                entry = await store.get("counter")
                number, version = (int(entry.value), entry.version) if entry else (0, 0)
                if await store.put("counter", b"%d" % (number + 1), if_version=version):
                    break

    threads = [threading.Thread(target=lambda: asyncio.run(count())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def counted() -> bytes | None:
        entry = await store.get("counter")
        await store.aclose()
        return entry and entry.value

    assert asyncio.run(counted()) == b"100"


FORKED = """
import asyncio, os, sys
from toolkeep.state import SQLiteStore

store = SQLiteStore(sys.argv[1], timeout=10)

async def put(key):
    async with store.subscribe("channel"):
        return await store.put(key, b"x")

first = asyncio.run(put("parent"))
child = os.fork()
if child == 0:
    ok = asyncio.run(put("child")) > first
    asyncio.run(store.aclose())
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.get("child")) is not None
assert asyncio.run(put("parent")) > first
asyncio.run(store.aclose())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_connection_of_its_own(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "s" / "store.db")],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_a_killed_writer_harms_nothing(tmp_path: Path):
    path = tmp_path / "s" / "store.db"
    program = (
        "import asyncio, sys\nfrom toolkeep.state import SQLiteStore\n"
        "async def main():\n"
        "    store = SQLiteStore(sys.argv[1])\n    n = 0\n"
        "    while True:\n"
        "        n += 1\n        await store.put('key', b'%d' % n)\n        print(n, flush=True)\n"
        "asyncio.run(main())\n"
    )
    async with opened(path, timeout=5) as store:
        for _ in range(3):
            writer = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", program, str(path)), stdout=asyncio.subprocess.PIPE
            )
            assert writer.stdout is not None
            said = b""
            for _ in range(20):
                said = await asyncio.wait_for(writer.stdout.readline(), PATIENCE)
            writer.kill()
            await writer.communicate()
            entry = await store.get("key")
            assert entry is not None
            assert int(entry.value) >= int(said)
            assert await store.put("mine", b"x")
