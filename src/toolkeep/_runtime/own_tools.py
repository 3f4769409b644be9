"""Tools that a runtime itself offers to models, beside those of its servers: what they share.

They look like any other tool to an adapter. What they do is no call of a server, so nothing of it
is in the figures.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toolkeep._catalogue.tool import Caller, Tool
from toolkeep._engine.call import Call, Emit
from toolkeep._rules.naming import model_name
from toolkeep._rules.schema import compile
from toolkeep.context import CallContext
from toolkeep.errors import CallNotSentInTime, Delivery, InvalidArguments
from toolkeep.events import Completed, Failed, Started
from toolkeep.results import CallResult

SERVER = "toolkeep"


def shown_name(tool: str) -> str:
    """What a model calls it."""
    return model_name(SERVER, tool)


class Kind:
    """What one of them is: its name, its schema, what a model is told about it."""

    def __init__(
        self,
        name: str,
        about: str,
        properties: Mapping[str, Any],
        required: str,
        *,
        reads: bool = True,
    ) -> None:
        self.name, self._about, self._reads = name, about, reads
        self._schema: dict[str, Any] = {
            "type": "object",
            "properties": dict(properties),
            "required": [required],
            "additionalProperties": False,
        }
        self._defaults = {
            key: value["default"] for key, value in properties.items() if "default" in value
        }
        self._checker = compile(self._schema, what=name)

    def tool(self, caller: Caller, context: CallContext | None) -> Tool:
        import mcp_types

        hints = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        definition = mcp_types.Tool(
            name=self.name,
            description=self._about,
            input_schema=json.loads(json.dumps(self._schema)),
            annotations=hints if self._reads else None,
        )
        return Tool(SERVER, definition, caller=caller, context=context)

    def checked(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments with what is missing filled in, or `InvalidArguments`. What a model says
        to be null is missing: some providers have it say something about every parameter."""
        given = {key: value for key, value in (arguments or {}).items() if value is not None}
        problems = self._checker.problems(given)
        if problems:
            text = f"{self.name} was not called: {'; '.join(problems)}"
            raise InvalidArguments(text, server=SERVER, tool=self.name, problems=problems)
        return {**self._defaults, **given}

    async def within(self, seconds: float | None, work: Awaitable[CallResult]) -> CallResult:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
        text = f"{self.name} was given up after {seconds:g} s. Nothing was changed"
        raise CallNotSentInTime(text, server=SERVER, tool=self.name, delivery=Delivery.NOT_SENT)

    def watched(self, work: Callable[[], Awaitable[CallResult]]) -> Call:
        """As a call with the two events that there are."""

        async def run(emit: Emit) -> CallResult:
            about: Any = {"server": SERVER, "tool": self.name, "call_id": uuid.uuid4().hex}
            emit(Started(**about))
            try:
                result = await work()
            except BaseException as error:
                emit(Failed(error=error, **about))
                raise
            emit(Completed(result=result, **about))
            return result

        return Call(run)


def answer(
    tool: str, text: str, data: Any = None, duration: float = 0.0, *, is_error: bool = False
) -> CallResult:
    raw: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": is_error}
    if data is not None:
        raw["structuredContent"] = data
    return CallResult(raw, SERVER, tool, duration=duration)
