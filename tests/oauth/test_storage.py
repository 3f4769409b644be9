"""Where logins are kept: encrypted, private, and shared by processes."""

import asyncio
import sys
import warnings
from pathlib import Path

import pytest

from toolkeep import ConfigError
from toolkeep.auth.storage import FILE, KEY_VARIABLE, LoginStorage
from toolkeep.config.spec import ConfigWarning
from toolkeep.errors import SealBroken
from toolkeep.state import MemoryStore, SQLiteStore, sealed

pytestmark = pytest.mark.requirement("N7")
KEY, OTHER = "11" * 32, "22" * 32


def env_of(folder: Path, key: str = "") -> dict[str, str]:
    """An environment whose state is in this folder, on every system."""
    given = {"XDG_STATE_HOME": str(folder), "LOCALAPPDATA": str(folder)}
    return {**given, KEY_VARIABLE: key} if key else given


async def kept(env: dict[str, str], name: str = "the-key") -> bytes | None:
    storage = LoginStorage(env=env)
    try:
        found = await (await storage.open()).get(name)
        return None if found is None else found.value
    finally:
        await storage.aclose()


async def keep(env: dict[str, str], value: bytes = b"the-secret") -> None:
    storage = LoginStorage(env=env, must_persist=True)
    await (await storage.open(to_log_in=True)).put("the-key", value)
    await storage.aclose()


async def test_with_a_key_logins_are_in_a_private_file_that_shows_nothing(tmp_path: Path):
    env = env_of(tmp_path, KEY)
    await keep(env)
    (path,) = tmp_path.glob(f"**/{FILE}")
    assert b"the-secret" not in path.read_bytes()
    assert KEY.encode() not in path.read_bytes()
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o077 == 0
    assert KEY not in repr(LoginStorage(env=env))
    assert await kept(env) == b"the-secret"


async def test_keys_are_changed_one_after_the_other(tmp_path: Path):
    await keep(env_of(tmp_path, KEY))
    with pytest.raises(SealBroken):
        await kept(env_of(tmp_path, OTHER))
    assert await kept(env_of(tmp_path, f"{OTHER}, {KEY}")) == b"the-secret"
    await keep(env_of(tmp_path, f"{OTHER},{KEY}"))
    assert await kept(env_of(tmp_path, OTHER)) == b"the-secret"


async def test_a_key_that_is_no_key_is_a_mistake_that_is_not_quoted(tmp_path: Path):
    storage = LoginStorage(env=env_of(tmp_path, "correct horse battery staple"))
    with pytest.raises(ConfigError) as caught:
        await storage.open(to_log_in=True)
    assert caught.value.key == KEY_VARIABLE
    assert "horse" not in str(caught.value)


async def test_without_any_key_logins_end_with_the_process_and_a_warning_says_so(tmp_path: Path):
    env, storages = env_of(tmp_path), list[LoginStorage]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            storages.append(LoginStorage(env=env))
            await (await storages[-1].open(to_log_in=True)).put("test_storage", b"1")
    assert all(KEY_VARIABLE in str(one.message) for one in caught)
    assert len(caught) == 2
    found = await (await storages[0].open()).get("test_storage")
    assert found is not None, "all clients of a process share them"
    await (await storages[0].open()).delete("test_storage")
    assert list(tmp_path.glob("**/*.sqlite")) == []


async def test_what_must_persist_fails_and_names_what_to_set(tmp_path: Path):
    with pytest.raises(ConfigError, match=f"set {KEY_VARIABLE}"):
        await LoginStorage(env=env_of(tmp_path), must_persist=True).open(to_log_in=True)
    await keep(env_of(tmp_path, KEY))
    with pytest.raises(ConfigError, match="no key to decrypt them"):
        await kept(env_of(tmp_path))


async def test_reading_makes_no_file_and_asks_for_no_key(tmp_path: Path, os_keyring):
    assert await kept(env_of(tmp_path)) is None
    assert (list(tmp_path.iterdir()), os_keyring.entries) == ([], {})


async def test_the_store_of_a_runtime_is_used_and_left_open(tmp_path: Path):
    store = sealed(SQLiteStore(tmp_path / "state.sqlite"), [KEY])
    storage = LoginStorage(store)
    assert await storage.open() is store
    await storage.aclose()
    assert await storage.open() is store
    assert LoginStorage(MemoryStore()) is not None


async def test_a_store_that_encrypts_nothing_is_warned_about(tmp_path: Path):
    store = SQLiteStore(tmp_path / "plain.sqlite")
    storage = LoginStorage(lambda: store)
    assert await storage.open() is store
    with pytest.warns(ConfigWarning, match="without encryption"):
        await storage.open(to_log_in=True)


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


async def test_the_keyring_holds_a_small_key_and_the_file_the_rest(tmp_path: Path, os_keyring):
    await keep(env_of(tmp_path), b"x" * 10_000)
    assert [len(value) < 100 for value in os_keyring.entries.values()] == [True]
    assert await kept(env_of(tmp_path, OTHER)) == b"x" * 10_000


async def test_many_that_open_at_once_open_one_file(tmp_path: Path):
    storage = LoginStorage(env=env_of(tmp_path, KEY))
    opened = await asyncio.gather(*(storage.open(to_log_in=True) for _ in range(20)))
    assert len({id(one) for one in opened}) == 1
    await storage.aclose()
