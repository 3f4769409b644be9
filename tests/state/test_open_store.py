"""URLs of stores: checked before anything is opened, with errors that name the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from toolkeep.errors import ConfigError
from toolkeep.state import MemoryStore, RedisStore, SealedStore, SQLiteStore, open_store
from toolkeep.state.redis import parse


def test_a_url_names_the_driver(tmp_path: Path):
    assert isinstance(open_store("memory:"), MemoryStore)
    assert isinstance(open_store("redis://localhost"), RedisStore)
    assert isinstance(open_store(f"sqlite://{tmp_path}/a.db"), SQLiteStore)
    assert isinstance(open_store("memory:", keys=["00" * 32]), SealedStore)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_taken_as_it_is():
    store = MemoryStore()
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/x.db", "/var/lib/x.db"),
        ("sqlite:////var/lib/x.db", "/var/lib/x.db"),
        ("sqlite:/var/lib/a%20b.db", "/var/lib/a b.db"),
        ("sqlite:state/x.db", str(Path.cwd() / "state" / "x.db")),
        ("sqlite:~/x.db", str(Path.home() / "x.db")),
    ],
)
def test_the_path_of_an_sqlite_url(url: str, path: str):
    store = open_store(url)
    assert isinstance(store, SQLiteStore)
    assert Path(str(store.path).replace("//", "/")) == Path(path)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "has no scheme"),
        ("state.db", "has no scheme"),
        ("postgres://x", "'postgres'"),
        ("memory:something", "Write memory:"),
        ("sqlite:", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///state.db", "Write sqlite:state.db"),
        ("sqlite://host/state.db", "Write sqlite:///absolute/path"),
        ("sqlite:///a/b.db?mode=ro", "takes no options"),
        ("redis://", "a host is missing or invalid"),
        ("redis://a,b", "redis+sentinel:// or redis+cluster://"),
        ("redis://host/name", "not a database number"),
        ("redis://host:port", "a host is missing or invalid"),
        ("redis+cluster://host/3", "no numbered databases"),
        ("redis+sentinel://host", "the name of the primary is missing"),
        ("redis+sentinel://host/name/x", "not a database number"),
        ("redis+tcp://host", "is not a Redis scheme"),
        ("redis://host?db=3", "the option 'db' is unknown"),
        ("redis://host?ssl_cert_reqs=none", "the option 'ssl_cert_reqs' is unknown"),
        ("redis://host?ssl_ca_certs=x", "Write rediss://"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, says: str):
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert says in str(caught.value)
    assert caught.value.remedy


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "url",
    [
        "redis://ada:hunter2@host:x",
        "redis://ada:hunter2@a,b",
        "redis://ada:hunter2@host/name",
        "redis://ada:hunter2@host?unknown=hunter2",
        "postgres://ada:hunter2@host",
        "redis://ada:hunter2/3@host",
        "redis://ada:hunter2?@host",
        "redis://ada:hunter2#@host",
        "redis://ada:123/hunter2@host",
        "redis://[ada:hunter2@host",
    ],
)
def test_no_refusal_shows_a_password(url: str):
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_something_else_is_no_store():
    with pytest.raises(ConfigError, match="not dict"):
        open_store({})  # pyright: ignore[reportArgumentType]


def test_what_a_redis_url_says():
    found = parse(
        "rediss+sentinel://ada:p%40ss@[::1]:5,b/main/2?sentinel_password=s&ssl_ca_certs=/ca.pem"
    )
    assert (found.mode, found.master, found.db) == ("sentinel", "main", 2)
    assert found.hosts == (("::1", 5), ("b", 26379))
    assert found.name == "rediss+sentinel://[::1]:5,b/main/2"
    assert found.options == {
        "username": "ada",
        "password": "p@ss",
        "ssl": True,
        "ssl_ca_certs": "/ca.pem",
    }
    assert found.sentinel_options == {"password": "s", "ssl": True, "ssl_ca_certs": "/ca.pem"}
    assert "p@ss" not in repr(found)
    assert parse("redis://h").hosts == (("h", 6379),)


@pytest.mark.parametrize(
    ("library", "make", "extra"),
    [
        ("redis", lambda: open_store("redis://host"), "toolkeep[redis]"),
        ("cryptography", lambda: open_store("memory:", keys=["00" * 32]), "toolkeep[sealed]"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    library: str, make, extra: str, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError) as caught:
        make()
    assert extra in str(caught.value)


def test_importing_the_package_loads_neither_library():
    code = (
        "import sys, toolkeep.state.sealed; from toolkeep.state import sealed, open_store\n"
        "open_store('memory:'); assert callable(sealed)\n"
        "sys.exit(' '.join({'redis', 'cryptography'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stderr.strip() == ""
