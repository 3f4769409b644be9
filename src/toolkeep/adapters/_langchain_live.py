"""The catalogue as it is now, for agents of `langchain.agents.create_agent`.

An agent is made once, with the tools that there are. This middleware shows each call of the model
the tools that there are then, to whoever the run is for, and has the tool that the model calls
looked up again. Tools that are not ours are left as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from toolkeep.adapters._telling import sentence
from toolkeep.errors import UnknownTool

Source = Callable[[RunnableConfig], Awaitable[list[BaseTool]]]
IsOurs = Callable[[object], bool]


class LiveTools(AgentMiddleware[Any, Any, Any]):
    """Made by `live_tools`. Belongs to no run: one serves all runs of an agent at once."""

    def __init__(self, source: Source, is_ours: IsOurs) -> None:
        super().__init__()
        self._source, self._is_ours = source, is_ours

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | AIMessage | Any:
        found = await self._source(ensure_config())
        others = [tool for tool in request.tools if not self._is_ours(tool)]
        return await handler(request.override(tools=[*others, *found]))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        if request.tool is not None and not self._is_ours(request.tool):
            return await handler(request)
        name = request.tool_call["name"]
        for tool in await self._source(ensure_config()):
            if tool.name == name:
                return await handler(request.override(tool=tool))
        told = sentence(UnknownTool(f"there is no tool {name[:200]!r}"), name)
        about = cast("str", request.tool_call["id"])
        return ToolMessage(told, name=name, tool_call_id=about, status="error")
