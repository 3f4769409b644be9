"""Where logins are kept: encrypted, private, and shared by processes."""

import asyncio
import json
import sys
import time
import warnings
from pathlib import Path

import pytest

from toolkeep.auth.storage import (
    KEY_VARIABLE,
    Lease,
    LocalStorage,
    MemoryStorage,
    StorageUnavailable,
    open_storage,
)

pytestmark = pytest.mark.requirement("N7")
KEY = b"correct horse battery staple"


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStorage | LocalStorage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "s", KEY)


async def test_a_value_is_kept_under_a_version_that_grows(storage: MemoryStorage):
    assert await storage.get("a") is None
    first = await storage.put("a", b"1")
    second = await storage.put("a", b"2", if_version=first)
    assert first is not None
    assert second is not None
    assert second > first
    assert await storage.put("a", b"3", if_version=first) is None
    found = await storage.get("a")
    assert found is not None
    assert (found.value, found.version) == (b"2", second)
    assert not await storage.delete("a", if_version=first)
    assert await storage.delete("a", if_version=second)
    assert not await storage.delete("a")
    third = await storage.put("a", b"4", if_version=0)
    assert third is not None
    assert third > second, "a version is not used again"
    assert await storage.put("a", b"5", if_version=0) is None


async def test_what_has_expired_is_gone(storage: MemoryStorage):
    await storage.put("a", b"1", ttl=0.0)
    await storage.put("b", b"1", ttl=60)
    assert await storage.get("a") is None
    assert [key async for key in storage.scan("")] == ["b"]
    assert await storage.put("a", b"2", if_version=0) is not None


async def test_keys_are_found_by_their_beginning(storage: MemoryStorage):
    for key in ("x:1", "x:2", "y:1"):
        await storage.put(key, b"")
    assert sorted([key async for key in storage.scan("x:")]) == ["x:1", "x:2"]


async def test_a_lease_has_one_holder_until_it_is_released_or_has_expired(storage: MemoryStorage):
    held = await storage.lease("a", 60)
    assert held is not None
    assert await storage.lease("a", 60) is None
    assert await storage.lease("b", 60) is not None
    await storage.release(held)
    again = await storage.lease("a", 0.0)
    assert again is not None
    after = await storage.lease("a", 60)
    assert after is not None
    assert after.token > again.token > held.token
    await storage.release(held)  # a lease that was lost meanwhile
    assert not await storage.renew(held, 60)
    assert await storage.renew(after, 60)
    assert not await storage.renew(Lease("c", 1, "me"), 60)
    assert await storage.lease("a", 60) is None


async def test_a_file_shows_nothing_of_what_it_holds(tmp_path: Path):
    folder = tmp_path / "s"
    await LocalStorage(folder, KEY).put("the-key", b"the-secret")
    for path in folder.iterdir():
        content = path.read_bytes()
        assert b"the-" not in content + path.name.encode()
        assert KEY not in content
        if sys.platform != "win32":
            assert path.stat().st_mode & 0o077 == 0
    assert "horse" not in repr(LocalStorage(folder, KEY))
    found = await LocalStorage(folder, KEY).get("the-key")
    assert found is not None
    assert found.value == b"the-secret"


async def test_another_key_opens_nothing_and_is_told_from_damage_by_nobody(tmp_path: Path):
    storage = LocalStorage(tmp_path, KEY)
    await storage.put("a", b"1")
    with pytest.raises(StorageUnavailable, match="another key"):
        await LocalStorage(tmp_path, b"other").get("a")
    path = next(tmp_path.glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageUnavailable, match="another key"):
        await storage.get("a")
    path.write_bytes(b"")
    with pytest.raises(StorageUnavailable):
        await storage.get("a")


async def test_a_file_that_was_put_in_the_place_of_another_is_not_believed(tmp_path: Path):
    storage = LocalStorage(tmp_path, KEY)
    await storage.put("alice", b"1")
    alice = next(tmp_path.glob("*.bin"))
    await storage.put("bob", b"2")
    bob = next(path for path in tmp_path.glob("*.bin") if path != alice)
    bob.write_bytes(alice.read_bytes())
    with pytest.raises(StorageUnavailable):
        await storage.get("bob")


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
async def test_a_file_that_others_can_read_is_not_believed(tmp_path: Path):
    storage = LocalStorage(tmp_path, KEY)
    await storage.put("a", b"1")
    next(tmp_path.glob("*.bin")).chmod(0o644)
    with pytest.raises(StorageUnavailable, match="others than its owner"):
        await storage.get("a")


def test_a_key_of_the_environment_makes_encrypted_files(tmp_path: Path):
    made = open_storage(tmp_path, {KEY_VARIABLE: "secret"}, keyring=False)
    assert isinstance(made, LocalStorage)


def test_without_any_key_logins_are_kept_in_memory_with_a_warning(tmp_path: Path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert isinstance(open_storage(tmp_path, {"A": "b"}, keyring=False), MemoryStorage)
    assert [KEY_VARIABLE in str(one.message) for one in caught] == [True]


@pytest.fixture
def os_keyring():
    """A keyring that works, in memory."""
    import keyring
    from keyring.backend import KeyringBackend

    class Kept(KeyringBackend):
        priority = 1  # pyright: ignore[reportAssignmentType]

        def __init__(self) -> None:
            super().__init__()
            self.entries: dict[tuple[str, str], str] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.entries.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.entries[service, username] = password

    before = keyring.get_keyring()
    kept = Kept()
    keyring.set_keyring(kept)
    yield kept
    keyring.set_keyring(before)


async def test_the_keyring_holds_a_small_key_and_the_files_the_rest(tmp_path: Path, os_keyring):
    await open_storage(tmp_path, {}).put("a", b"x" * 10_000)
    assert [len(value) < 100 for value in os_keyring.entries.values()] == [True]
    found = await open_storage(tmp_path, {KEY_VARIABLE: "unused"}).get("a")
    assert found is not None
    assert len(found.value) == 10_000


def test_a_keyring_that_does_not_work_is_as_good_as_none(tmp_path: Path):
    import keyring
    from keyring.backends import fail

    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    try:
        made = open_storage(tmp_path, {KEY_VARIABLE: "secret"})
    finally:
        keyring.set_keyring(before)
    assert isinstance(made, LocalStorage)


COUNTING = """
import asyncio, json, sys
from pathlib import Path
from toolkeep.auth.storage import LocalStorage

async def main():
    storage = LocalStorage(Path(sys.argv[1]), b"key")
    for _ in range(20):
        while True:
            entry = await storage.get("count")
            value, version = (json.loads(entry.value), entry.version) if entry else (0, 0)
            new = json.dumps(value + 1).encode()
            if await storage.put("count", new, if_version=version) is not None:
                break

asyncio.run(main())
"""


async def test_processes_that_count_together_lose_no_number(tmp_path: Path):
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    running = [await asyncio.create_subprocess_exec(*command) for _ in range(4)]
    async with asyncio.timeout(50):
        assert [await process.wait() for process in running] == [0] * 4
    entry = await LocalStorage(tmp_path, b"key").get("count")
    assert entry is not None
    assert json.loads(entry.value) == 80
    assert entry.version <= time.time_ns()
