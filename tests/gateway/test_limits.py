"""Rates of principals: counted for all processes that share a store."""

import asyncio
from pathlib import Path

import pytest

from toolkeep.gateway.limits import CallRates
from toolkeep.state import MemoryStore, SQLiteStore, StoreUnavailable
from toolkeep.state.shared import SharedState

pytestmark = pytest.mark.requirement("W5")


async def accepted(rates: CallRates, number: int, principal: str | None = "alice") -> int:
    """How many of some calls in a row are accepted."""
    return sum([not await rates.take(principal, "pay", "refund") for _ in range(number)])


async def test_calls_above_the_rate_are_refused_with_the_time_to_wait() -> None:
    rates = CallRates(SharedState(), {"principal": "100/h"})  # a twentieth of it at once
    assert await accepted(rates, 20) == 5
    assert 0 < await rates.take("alice", "pay", "refund") <= 36


async def test_principals_do_not_use_up_each_others_rate() -> None:
    rates = CallRates(SharedState(), {"principal": "100/h"})
    assert [await accepted(rates, 9, who) for who in ("alice", "bob", None)] == [5, 5, 5]


async def test_a_rate_may_be_for_some_tools() -> None:
    rates = CallRates(SharedState(), {"tool:pay.*": "40/h", "principal": "100/h"})
    assert await accepted(rates, 9) == 2
    assert not await rates.take("alice", "mail", "send")
    # What the narrow rate refused cost nothing of the wide one.
    assert sum([not await rates.take("alice", "mail", "send") for _ in range(9)]) == 2


async def test_without_rates_everything_is_accepted() -> None:
    rates = CallRates(SharedState(), {})
    assert not rates
    assert await accepted(rates, 1000) == 1000


async def test_processes_that_share_a_store_count_together(tmp_path: Path) -> None:
    stores = [SQLiteStore(tmp_path / "store.db") for _ in range(3)]
    replicas = [CallRates(SharedState(one), {"principal": "200/h"}) for one in stores]
    try:
        found = await asyncio.gather(*(accepted(one, 8) for one in replicas))
    finally:
        for one in stores:
            await one.aclose()
    assert sum(found) == 10


class Down(MemoryStore):
    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        raise StoreUnavailable("connection refused", store="a store")


async def test_while_the_store_is_down_each_process_counts_by_itself() -> None:
    replicas = [CallRates(SharedState(Down()), {"principal": "100/h"}) for _ in range(2)]
    assert [await accepted(one, 9) for one in replicas] == [5, 5]
