"""Tools that toolkeep itself provides: the server `builtin` of Python functions, and the base of
tools that a runtime offers to models.

Calls of the latter are not counted in the statistics.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkeep._catalogue.tool import Tool, ToolCaller
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._rules.json_schema import compile_schema
from toolkeep._rules.names import model_name
from toolkeep.config import ServerSpec
from toolkeep.config.functions import as_tools, tool
from toolkeep.context import CallContext
from toolkeep.errors import CallNotSentInTime, Delivery, InvalidArguments
from toolkeep.events import Completed, Failed, Started
from toolkeep.results import CallResult

logger = logging.getLogger("toolkeep.chat")

OWN_SERVER = "toolkeep"
"""The server name of tools that a runtime itself offers to models."""
BUILTIN_SERVER = "builtin"
"""The server name of the user's Python functions."""
MAX_LOG_LINE = 10_000
"""Characters that a model may write into the log at once."""

Level = Literal["debug", "info", "warning", "error"]


def own_tool_name(tool: str) -> str:
    """The name of an own tool for models."""
    return model_name(OWN_SERVER, tool)


class OwnTool:
    """The definition of a tool that a runtime itself offers: name, schema, description."""

    def __init__(
        self,
        name: str,
        about: str,
        properties: Mapping[str, Any],
        required: str,
        *,
        reads: bool = True,
    ) -> None:
        self.name, self._description, self._read_only = name, about, reads
        self._schema: dict[str, Any] = {
            "type": "object",
            "properties": dict(properties),
            "required": [required],
            "additionalProperties": False,
        }
        self._defaults = {
            key: value["default"] for key, value in properties.items() if "default" in value
        }
        self._checker = compile_schema(self._schema, what=name)

    def tool(self, caller: ToolCaller, context: CallContext | None) -> Tool:
        import mcp_types

        hints = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        definition = mcp_types.Tool(
            name=self.name,
            description=self._description,
            input_schema=json.loads(json.dumps(self._schema)),
            annotations=hints if self._read_only else None,
        )
        return Tool(OWN_SERVER, definition, caller=caller, context=context)

    def check_arguments(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments with defaults filled in, or `InvalidArguments`. Null counts as missing:
        some providers make a model give every parameter."""
        given = {key: value for key, value in (arguments or {}).items() if value is not None}
        problems = self._checker.problems(given)
        if problems:
            text = f"{self.name} was not called: {'; '.join(problems)}"
            raise InvalidArguments(text, server=OWN_SERVER, tool=self.name, problems=problems)
        return {**self._defaults, **given}

    async def run_within(self, seconds: float | None, work: Awaitable[CallResult]) -> CallResult:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
        text = f"{self.name} timed out after {seconds:g} s. Nothing was changed"
        raise CallNotSentInTime(text, server=OWN_SERVER, tool=self.name, delivery=Delivery.NOT_SENT)

    def as_call(self, work: Callable[[], Awaitable[CallResult]]) -> Call:
        """A call that emits `Started`, and `Completed` or `Failed`."""

        async def run(emit: Emit) -> CallResult:
            about: Any = {"server": OWN_SERVER, "tool": self.name, "call_id": uuid.uuid4().hex}
            emit(Started(**about))
            try:
                result = await work()
            except BaseException as error:
                emit(Failed(error=error, **about))
                raise
            emit(Completed(result=result, **about))
            return result

        return Call(run)


def tool_result(
    tool: str, text: str, data: Any = None, duration: float = 0.0, *, is_error: bool = False
) -> CallResult:
    raw: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": is_error}
    if data is not None:
        raw["structuredContent"] = data
    return CallResult(raw, OWN_SERVER, tool, duration=duration)


def builtin_server(functions: Iterable[Callable[..., Any]] = ()) -> ServerSpec:
    """The server `builtin`: `echo`, `chat_log`, and these functions, sync or async, with typed
    parameters.

    A function named like one of ours replaces it. Use `tool(function, …)` to set name, hints or
    tags. Raises `ConfigError` for what cannot be a tool.
    """
    given = as_tools(functions)
    taken = {one.name for one in given}
    ours = tuple(one for one in _DEFAULT_TOOLS if one.name not in taken)
    return ServerSpec(name=BUILTIN_SERVER, server=(*ours, *given))


async def echo(text: Annotated[str, Field(description="What to give back.")]) -> str:
    """Give a text back, unchanged."""
    return text


def chat_log(
    message: Annotated[str, Field(description="What to write.")],
    level: Annotated[Level, Field(description="How grave it is.")] = "info",
) -> str:
    """Write a line into the log of the program that runs this chat, and give back what was
    written."""
    line = _one_line(message)
    logger.log(logging.getLevelNamesMapping()[level.upper()], "%s", line)
    return line


def _one_line(message: str) -> str:
    """Escape control characters: a log reader or a terminal could take them for more lines."""
    cut = message if len(message) <= MAX_LOG_LINE else f"{message[:MAX_LOG_LINE]}…"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


_DEFAULT_TOOLS = (
    tool(echo, read_only=True, idempotent=True, destructive=False, open_world=False),
    tool(chat_log, read_only=False, destructive=False, open_world=False),
)
