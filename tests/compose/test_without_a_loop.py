"""A plan for callers without an event loop: on the runtime behind the blocking one."""

import asyncio

import pytest

from tests.compose._plans import PATIENCE, record, slow, states
from toolkeep import Runtime, blocking
from toolkeep.compose import Account, Plan, PlanEvent, State, run
from toolkeep.testing import ScriptedServer


@pytest.mark.requirement("F2", "A6")
def test_a_plan_runs_without_an_event_loop() -> None:
    async def serve() -> ScriptedServer:
        return await ScriptedServer.spawn().__aenter__()

    with asyncio.Runner() as runner:
        server = runner.run(serve())
        try:
            told: list[PlanEvent] = []
            plan = Plan(record("a"), slow("b", 0.01))
            with blocking.Runtime.open({"mcpServers": {"one": server.spec}}) as runtime:
                account: Account = runtime.run(
                    lambda inner: run(inner, plan, timeout=PATIENCE, on_event=told.append)
                )
                with pytest.raises(LookupError):
                    runtime.run(broken)
            assert runner.run(server.ledger()) == {"a": 1, "b": 1}
        finally:
            runner.run(server.__aexit__(None, None, None))
    assert account.ok
    assert set(states(account).values()) == {State.COMPLETED}
    assert len(told) == 5


async def broken(runtime: Runtime) -> None:
    raise LookupError
