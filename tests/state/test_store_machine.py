"""Any sequence of operations does the same in SQLite and in Redis as in memory.

Time is left out: what has a ttl has a long one. Versions, tokens and positions are compared by
what they are: which of them are equal, and their order.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.state.servers import programs, running
from toolkeep.state import Lease, MemoryStore, RedisStore, SQLiteStore, Store

KEYS = st.sampled_from(["a", "b", "a:b", "ä{x}*"])
VALUES = st.binary(max_size=20)
LONG = 600.0
RATE = 0.0001
"""Too slow to give a token while the test runs."""

pytestmark = pytest.mark.requirement("D1")


class Twins(RuleBasedStateMachine):
    """Every operation is done to both, and the answers compared."""

    make: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: Store = MemoryStore()
        self.real: Store = type(self).make()
        self.space = secrets.token_hex(6)
        self.versions: dict[str, tuple[int, int]] = {}
        self.highest: dict[str, int] = {}
        self.leases: list[tuple[Lease, Lease]] = []
        self.places: dict[str, list[tuple[int, int]]] = {}

    def teardown(self) -> None:
        self.loop.run_until_complete(self.real.aclose())
        self.loop.close()

    def both(self, method: str, *parts: Any, **options: Any) -> tuple[Any, Any]:
        def call(store: Store) -> Coroutine[Any, Any, Any]:
            return getattr(store, method)(*parts, **options)

        expected = self.loop.run_until_complete(call(self.model))
        return expected, self.loop.run_until_complete(call(self.real))

    def name(self, key: str) -> str:
        return f"{self.space}:{key}"

    def grown(self, what: str, number: int) -> None:
        assert number > self.highest.get(what, 0)
        self.highest[what] = number

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        expected, found = self.both("get", self.name(key))
        assert (expected and expected.value) == (found and found.value)
        if found:
            assert (expected.version, found.version) == self.versions[key]

    @rule(key=KEYS, value=VALUES, ttl=st.sampled_from([None, LONG]))
    def put(self, key: str, value: bytes, ttl: float | None) -> None:
        self.kept(key, self.both("put", self.name(key), value, ttl=ttl))

    def kept(self, key: str, versions: tuple[int | None, int | None]) -> None:
        expected, found = versions
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            self.versions[key] = expected, found
            self.grown(f"value {key}", found)

    @rule(key=KEYS, value=VALUES, current=st.sampled_from(["absent", "current", "old"]))
    def put_if(self, key: str, value: bytes, current: str) -> None:
        expected, found = self.version(key, current)
        name = self.name(key)
        modelled = self.loop.run_until_complete(self.model.put(name, value, if_version=expected))
        real = self.loop.run_until_complete(self.real.put(name, value, if_version=found))
        self.kept(key, (modelled, real))

    def version(self, key: str, current: str) -> tuple[int, int]:
        expected, found = self.versions.get(key, (0, 0)) if current != "absent" else (0, 0)
        return (max(0, expected - 1), max(0, found - 1)) if current == "old" else (expected, found)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        expected, found = self.both("delete", self.name(key))
        assert expected == found

    @rule(key=KEYS, current=st.sampled_from(["absent", "current", "old"]))
    def delete_if(self, key: str, current: str) -> None:
        expected, found = self.version(key, current)
        name = self.name(key)
        modelled = self.loop.run_until_complete(self.model.delete(name, if_version=expected))
        assert modelled == self.loop.run_until_complete(self.real.delete(name, if_version=found))

    @rule(key=KEYS)
    def lease(self, key: str) -> None:
        expected, found = self.both("lease", self.name(key), LONG)
        assert (expected is None) == (found is None)
        if expected and found:
            self.leases.append((expected, found))
            self.grown(f"lease {key}", found.token)

    @rule(data=st.data(), what=st.sampled_from(["renew", "release"]))
    def renew_or_release(self, data: st.DataObject, what: str) -> None:
        if not self.leases:
            return
        expected, found = data.draw(st.sampled_from(self.leases))
        more = (LONG,) if what == "renew" else ()
        modelled = self.loop.run_until_complete(getattr(self.model, what)(expected, *more))
        assert modelled == self.loop.run_until_complete(getattr(self.real, what)(found, *more))

    @rule(key=KEYS, cost=st.sampled_from([1, 2, 5]))
    def take(self, key: str, cost: int) -> None:
        expected, found = self.both("take", self.name(key), rate=RATE, burst=5, cost=cost)
        assert found == pytest.approx(expected, abs=60)
        assert (expected == 0) == (found == 0)

    @rule(log=KEYS, entry=VALUES, most=st.integers(1, 4))
    def append(self, log: str, entry: bytes, most: int) -> None:
        expected, found = self.both("append", self.name(log), entry, max_entries=most, ttl=LONG)
        self.places.setdefault(log, []).append((expected, found))
        self.grown(f"log {log}", found)

    @rule(log=KEYS, data=st.data(), limit=st.integers(1, 5))
    def read(self, log: str, data: st.DataObject, limit: int) -> None:
        places = [(0, 0), *self.places.get(log, [])]
        expected, found = data.draw(st.sampled_from(places))
        name = self.name(log)
        modelled = self.loop.run_until_complete(self.model.read(name, expected, limit=limit))
        real = self.loop.run_until_complete(self.real.read(name, found, limit=limit))
        assert [entry for _, entry in modelled] == [entry for _, entry in real]
        assert {(one[0], two[0]) for one, two in zip(modelled, real, strict=True)} <= set(places)

    @invariant()
    def the_same_keys_are_there(self) -> None:
        async def keys(store: Store) -> set[str]:
            return {key async for key in store.scan(f"{self.space}:")}

        expected, found = (
            self.loop.run_until_complete(keys(store)) for store in (self.model, self.real)
        )
        assert expected == found


@pytest.mark.parametrize("name", ["sqlite", *programs()])
def test_any_sequence_of_operations_does_as_in_memory(name: str):
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if name == "sqlite":

            def make() -> Store:
                return SQLiteStore(home / "store.db", timeout=20)

        else:
            server = stack.enter_context(running(programs()[name], home))

            def make() -> Store:
                return RedisStore(server.url, timeout=20)

        machine = type("Machine", (Twins,), {"make": staticmethod(make)})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=25,
                stateful_step_count=40,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
