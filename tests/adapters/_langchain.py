"""What the tests of LangChain share: a model that does what a test says, and agents with it.

Nothing here asserts anything.
"""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field, PrivateAttr

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import ScriptedServer

BOUND = 10.0
"""Seconds after which a test gives up waiting."""
LONG = 20.0
"""Seconds that a tool takes which nobody waits for."""

Era = Literal["legacy", "modern"]
every_era = pytest.mark.parametrize("era", ["legacy", "modern"])
WAYS = ("http legacy", "http modern", "sse legacy", "stdio legacy", "stdio modern")
every_way = pytest.mark.parametrize("way", WAYS)


class ScriptedModel(BaseChatModel):
    """Says the steps one after the other, and remembers what it was given."""

    steps: list[AIMessage]
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    offered: list[list[str]] = Field(default_factory=list)
    """The names of the tools that were bound, each time they were."""

    _numbers: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.offered.append([convert_to_openai_tool(tool)["function"]["name"] for tool in tools])
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append(list(messages))
        step: AIMessage = self.steps.pop(0)
        calls = [{**call, "id": f"c{next(self._numbers)}"} for call in step.tool_calls]
        message = AIMessage(step.content, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def calling(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    """The model calls these tools at once. Its calls are numbered: c0, c1, and so on."""
    made = [{"name": name, "args": arguments, "id": ""} for name, arguments in calls]
    return AIMessage("", tool_calls=made)


DONE = AIMessage("done")


def model_of(*steps: AIMessage) -> ScriptedModel:
    return ScriptedModel(steps=[*steps, DONE])


def thread(name: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": name, **more}}


HELLO = {"messages": [("user", "hello")]}


async def agent_of(runtime: Runtime, *steps: AIMessage, saver: Any = None, **options: Any) -> Any:
    found = await tools(runtime, **options)
    return create_agent(model_of(*steps), found, checkpointer=saver or InMemorySaver())


def told(state: dict[str, Any]) -> list[ToolMessage]:
    """What the model was told by its tools, in order."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def runtime_for(*servers: ScriptedServer, **options: Any) -> Runtime:
    """The first is named `kit`, the next `kit2`."""
    specs = {f"kit{n or ''}": server.spec for n, server in enumerate(servers)}
    return Runtime({"mcpServers": specs}, **options)


def server_of(way: str, **options: Any) -> ScriptedServer:
    home, era = way.split()
    make: Any = ScriptedServer.stdio if home == "stdio" else ScriptedServer.local
    more = {"transport": "sse"} if home == "sse" else {}
    return make(era=era, **more, **options)


@asynccontextmanager
async def house(
    way: str = "http modern", *, server: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Runtime]]:
    async with (
        server_of(way, **(server or {})) as kit,
        runtime_for(kit, **options) as runtime,
    ):
        yield kit, runtime
