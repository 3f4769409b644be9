"""The file store: private from the first byte, and whom it does not believe."""

import asyncio
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkeep.stores import FileSessionStore, StoredSession

posix_only = pytest.mark.skipif(os.name == "nt", reason="there access is no matter of modes")
root_only = pytest.mark.skipif(
    os.name == "nt" or os.geteuid() != 0, reason="only root gives files away"
)


def a_session(session_id: str) -> StoredSession:
    return StoredSession(
        session_id=session_id, handshake={"serverInfo": {}}, binding="b", saved_at=12.5
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def files(directory: Path) -> FileSessionStore:
    return FileSessionStore(directory)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.levelname) for record in caplog.records]


ONCE = [("toolkeep.stores", "WARNING")]


async def a_kept_record(files: FileSessionStore, directory: Path) -> Path:
    assert await files.save("kit", "ann", a_session("one"), replacing=None)
    (path,) = directory.glob("*.json")
    return path


async def test_nothing_is_made_before_something_is_saved(files: FileSessionStore, directory: Path):
    assert await files.load("kit", None) is None
    assert not await files.drop("kit", None, "one")
    assert not directory.exists()


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@posix_only
async def test_only_the_owner_has_access_whatever_the_umask(no_umask: None, tmp_path: Path):
    top = tmp_path / "new"
    store = FileSessionStore(top / "er" / "sessions")
    await store.save("kit", "ann", a_session("one"), replacing=None)
    made = [top, *top.rglob("*")]
    assert len(made) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}


async def test_file_names_tell_neither_server_nor_principal(
    files: FileSessionStore, directory: Path
):
    await files.save("payroll", "ann@example.org", a_session("one"), replacing=None)
    names = " ".join(path.name for path in directory.iterdir())
    assert not any(word in names for word in ("payroll", "ann", "example"))


RECORD = {"format": 1, "session_id": "s3cret", "handshake": {}, "binding": "", "saved_at": 1.5}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"session_id": "s3cret", ',
        *(json.dumps({**RECORD, name: None}).encode() for name in RECORD),
        json.dumps({**RECORD, "format": 2}).encode(),
        json.dumps({**RECORD, "saved_at": float("inf")}).encode(),
        json.dumps({**RECORD, "handshake": []}).encode(),
    ],
)
async def test_a_corrupt_record_is_told_once_and_replaced(
    files: FileSessionStore,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
):
    path = await a_kept_record(files, directory)
    path.write_bytes(content)
    assert await files.load("kit", "ann") is None
    assert not await files.drop("kit", "ann", "s3cret")
    assert not await files.save("kit", "ann", a_session("two"), replacing="s3cret")
    assert told(caplog) == ONCE
    assert "s3cret" not in caplog.text
    assert await files.save("kit", "ann", a_session("two"), replacing=None)
    assert await files.load("kit", "ann") == a_session("two")


def make_a_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def give_away(path: Path) -> None:
    os.chown(path, 54321, -1)


@posix_only
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.chmod(0o640), id="readable by its group"),
        pytest.param(lambda path: path.chmod(0o604), id="readable by all"),
        pytest.param(lambda path: path.chmod(0o602), id="writable by all"),
        pytest.param(lambda path: os.truncate(path, 10**10), id="huge"),
        pytest.param(make_a_link, id="a link"),
        pytest.param(make_a_pipe, id="a pipe"),
        pytest.param(give_away, id="foreign", marks=root_only),
    ],
)
async def test_a_file_that_is_not_its_owners_alone_is_not_believed_and_replaced(
    files: FileSessionStore,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
):
    path = await a_kept_record(files, directory)
    spoil(path)
    for _ in range(2):
        assert await asyncio.wait_for(files.load("kit", "ann"), 5) is None
    assert not await files.save("kit", "ann", a_session("two"), replacing="one")
    assert told(caplog) == ONCE
    assert await files.save("kit", "ann", a_session("two"), replacing=None)
    assert await files.load("kit", "ann") == a_session("two")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600


@posix_only
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.chmod(0o750), id="open to its group"),
        pytest.param(lambda path: path.chmod(0o701), id="open to all"),
        pytest.param(make_a_link, id="a link"),
        pytest.param(give_away, id="foreign", marks=root_only),
    ],
)
async def test_a_directory_that_is_not_its_owners_alone_is_not_used(
    files: FileSessionStore,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
):
    path = await a_kept_record(files, directory)
    before = path.read_bytes()
    spoil(directory)
    assert await files.load("kit", "ann") is None
    assert not await files.save("kit", "ann", a_session("two"), replacing="one")
    assert not await files.save("kit", "bob", a_session("two"), replacing=None)
    assert not await files.drop("kit", "ann", "one")
    assert told(caplog) == ONCE
    assert {p.name: p.read_bytes() for p in directory.glob("*.json")} == {path.name: before}


async def test_a_place_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path):
    (tmp_path / "file").write_text("")
    store = FileSessionStore(tmp_path / "file" / "sessions")
    assert await store.load("kit", None) is None
    with pytest.raises(OSError):
        await store.save("kit", None, a_session("one"), replacing=None)


async def test_a_store_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = FileSessionStore("sessions")
    monkeypatch.chdir("/")
    await store.save("kit", None, a_session("one"), replacing=None)
    assert (tmp_path / "sessions").is_dir()


async def test_a_store_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    await FileSessionStore("~/sessions").save("kit", None, a_session("one"), replacing=None)
    assert (tmp_path / "home" / "sessions").is_dir()
    assert not (tmp_path / "~").exists()
