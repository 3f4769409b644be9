"""An agent that sees the catalogue as it is at each turn, for whom the turn is."""

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.adapters._langchain import BOUND, DONE, HELLO, calling, house, model_of, thread, told
from toolkeep import Runtime
from toolkeep.adapters.langchain import live_tools, tools
from toolkeep.events import CatalogueChanged
from toolkeep.testing import ScriptedServer

NEW = {"name": "new", "description": "Just born.", "inputSchema": {"type": "object"}}


@tool
def mine() -> str:
    """Not a server's."""
    return "mine"


async def run(agent: Any, **more: Any) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        return await agent.ainvoke(HELLO, thread(**more))


async def change(kit: ScriptedServer, runtime: Runtime, *listed: Any, **more: Any) -> None:
    """Change what the server offers, and wait until the runtime knows."""
    changed = asyncio.Event()

    def hear(event: Any) -> None:
        if isinstance(event, CatalogueChanged):
            changed.set()

    observation = runtime.observe(hear)
    await kit.set_tools(list(listed), **more)
    await kit.notify("notifications/tools/list_changed")
    async with asyncio.timeout(BOUND):
        await changed.wait()
    observation.close()


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.requirement("A1")
async def test_a_tool_that_came_can_be_called_at_the_next_turn(era: str) -> None:
    async with house(f"http {era}") as (kit, runtime):
        model = model_of(DONE, calling(("kit__new", {}), ("mine", {})))
        live = live_tools(runtime)
        agent: Any = create_agent(model, [mine], middleware=[live], checkpointer=InMemorySaver())
        await run(agent)
        await change(kit, runtime, NEW)
        new, own = told(await run(agent))
        assert "kit__new" not in model.offered[0]
        assert {"kit__new", "kit__add", "mine"} <= set(model.offered[-1])
        assert (new.status, own.content) == ("success", "mine")
        assert await kit.executions("new") == 1


@pytest.mark.requirement("A1")
async def test_a_tool_that_is_gone_is_not_offered_and_not_called() -> None:
    async with house(server={"tools": [NEW]}) as (kit, runtime):
        call = calling(("kit__new", {}))
        model = model_of(call, DONE, call)
        agent: Any = create_agent(
            model,
            [mine, *await tools(runtime, ["new"])],
            middleware=[live_tools(runtime)],
            checkpointer=InMemorySaver(),
        )
        await run(agent)
        await change(kit, runtime)
        before, after = told(await run(agent))
        assert (before.status, after.status) == ("success", "error")
        assert "no such tool" in str(after.content)
        assert "kit__new" in model.offered[0]
        assert "kit__new" not in model.offered[-1]
        assert await kit.executions("new") == 1


@pytest.mark.requirement("A1")
async def test_each_user_is_offered_what_that_user_may_see() -> None:
    may = {"ada": ["kit.add"], "grace": ["kit.echo"]}
    async with house(permissions=may) as (_, runtime):
        model = model_of(DONE)
        agent: Any = create_agent(model, middleware=[live_tools(runtime)])
        await run(agent, principal="ada")
        await run(agent, principal="grace")
        assert model.offered == [["kit__add"], ["kit__echo"]]


async def test_only_what_was_named_is_offered() -> None:
    async with house() as (_, runtime):
        model = model_of()
        live = live_tools(runtime, ["kit.add", "not there yet"], errors="raise")
        await run(create_agent(model, middleware=[live]))
        assert model.offered == [["kit__add"]]
