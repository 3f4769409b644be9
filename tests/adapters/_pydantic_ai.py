"""What the tests of the Pydantic AI adapter share: a model that says what it is told, and a run.

Nothing here asserts anything. The model is Pydantic AI's `FunctionModel`: no test needs a network.
"""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import ToolDefinition

from tests.adapters._servers import Turn, wait_for


class Script:
    """Takes its turns in order; remembers what it was shown. Calls are numbered: "1", "2", …"""

    def __init__(self, *turns: Turn) -> None:
        self._turns, self._numbers = list(turns), itertools.count(1)
        self.offered: list[dict[str, ToolDefinition]] = []
        self.messages: list[ModelMessage] = []
        self.model = FunctionModel(self._respond, stream_function=self._stream)

    @property
    def left(self) -> int:
        return len(self._turns)

    @property
    def returns(self) -> dict[str, ToolReturnPart]:
        """What tools answered, by the number of the call, as the model saw it last."""
        parts = [part for message in self.messages for part in message.parts]
        return {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}

    @property
    def outcomes(self) -> dict[str, tuple[str, Any]]:
        return {number: (one.outcome, one.content) for number, one in self.returns.items()}

    async def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.messages = list(messages)
        self.offered.append({tool.name: tool for tool in info.function_tools})
        turn = self._turns.pop(0)
        while callable(turn):
            await turn()
            turn = self._turns.pop(0)
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        calls = [ToolCallPart(name, args, str(next(self._numbers))) for name, args in turn]
        return ModelResponse(parts=calls)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        said = await self._respond(messages, info)
        for place, part in enumerate(said.parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                args = part.args if isinstance(part.args, str) else json.dumps(part.args)
                yield {place: DeltaToolCall(part.tool_name, args, tool_call_id=part.tool_call_id)}


async def run(script: Script, *toolsets: Any, **options: Any) -> Any:
    """The output of one run."""
    agent: Agent[Any, str] = Agent(script.model, toolsets=toolsets)
    return (await wait_for(agent.run("Go on.", **options))).output
