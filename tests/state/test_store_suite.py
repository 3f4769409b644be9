"""Every driver passes the public suite, plain and sealed."""

import secrets
from pathlib import Path

import pytest

from tests.state.servers import Server
from toolkeep.state import MemoryStore, RedisStore, SQLiteStore, Store, sealed
from toolkeep.testing.store_suite import CHECKS, Factory

pytestmark = pytest.mark.requirement("D1")

KEYS = [secrets.token_hex(32)]


@pytest.fixture(params=["plain", "sealed"])
def wrapped(request: pytest.FixtureRequest):
    def wrap(factory: Factory) -> Factory:
        return factory if request.param == "plain" else lambda: sealed(factory(), KEYS)

    return wrap


@pytest.mark.parametrize("name", CHECKS)
async def test_the_store_in_memory(name: str, wrapped):
    store = MemoryStore()
    await CHECKS[name](wrapped(lambda: store))


@pytest.mark.parametrize("name", CHECKS)
async def test_the_store_in_sqlite(name: str, wrapped, tmp_path: Path):
    await CHECKS[name](wrapped(lambda: SQLiteStore(tmp_path / "state" / "store.db", timeout=5)))


@pytest.mark.parametrize("name", CHECKS)
async def test_the_store_in_redis(name: str, wrapped, redis: Server):
    await CHECKS[name](wrapped(lambda: RedisStore(redis.url, timeout=5)))


def test_every_driver_is_a_store(tmp_path: Path):
    drivers = [MemoryStore(), SQLiteStore(tmp_path / "x"), RedisStore("redis://127.0.0.1:1")]
    assert all(isinstance(one, Store) for one in [*drivers, sealed(drivers[0], KEYS)])


class Forgetful(MemoryStore):
    """Wrong in one thing: it takes every version for the current one."""

    async def put(self, key, value, *, ttl=None, if_version=None):
        return await super().put(key, value, ttl=ttl)


async def test_a_store_that_is_wrong_fails_the_check_of_it():
    store = Forgetful()
    with pytest.raises(AssertionError, match="expected None"):
        await CHECKS["a_put_with_a_version_needs_that_version"](lambda: store)
