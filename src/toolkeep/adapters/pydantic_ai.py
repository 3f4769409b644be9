"""Pydantic AI: the tools of a runtime as a toolset.

    agent = Agent(model, toolsets=[RuntimeToolset(runtime)])

The toolset reads the catalogue before each request to the model, with the context of the run, so
that changes between two turns are seen. It does not open or close the runtime.

- The model is asked to try again (`ModelRetry`) only if nothing ran and the mistake is its own. Any
  other failure is a failed result (`ToolFailed`): it says whether the tool ran, and uses up no
  retries. With `errors="raise"` the run ends with the error instead. A `ConfigError` always ends
  the run, because no model can fix it.
- A definition never has a `timeout`: Pydantic AI (2.66) would answer it with a request to try
  again, even if the tool has run. The runtime has deadlines of its own.
- Progress is an event of the run's stream: `ToolProgress`.
- The model is given the instructions of the servers whose tools it has (`instructions=False`: not).
  `sampling` makes a handler that has a model of Pydantic AI answer a server's sampling requests.
"""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkeep._catalogue.tool import Tool
from toolkeep._client.server_requests import RequestHandler
from toolkeep._rules.json_schema import strip_none
from toolkeep.adapters._common import (
    ContextOption,
    ContextResolver,
    Sample,
    SampledMessage,
    SamplingRequest,
    Source,
    ToolSource,
    check_errors_option,
    error_message,
    instructions_by_server,
    join_instructions,
    model_can_fix,
    sampling_handler,
    tool_error_message,
)
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError
from toolkeep.results import CallResult

try:
    from pydantic_ai import CustomEvent, ModelRetry, RunContext, ToolReturn
    from pydantic_ai.direct import model_request
    from pydantic_ai.exceptions import ToolFailed, UserError
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        UserPromptPart,
    )
    from pydantic_ai.models import Model, infer_model
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError as missing:
    remedy = "Install toolkeep with its extra `pydantic-ai`"
    raise ConfigError("pydantic-ai is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from mcp_types import ContentBlock

__all__ = ["RuntimeToolset", "ToolProgress", "sampling"]

_JSON_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
"""Checks that the arguments are an object. The runtime checks them against the schema."""


@dataclass(kw_only=True)
class ToolProgress(CustomEvent, name="toolkeep.progress"):
    """Progress that a tool's server reported. Pydantic AI adds the tool and the call."""

    progress: float
    total: float | None = None
    message: str | None = None


class RuntimeToolset(AbstractToolset[AgentDepsT]):
    """A toolset for any number of agents, and any number of runs at once.

    `source`: a runtime, or tools that it resolved. `names`: the tools to offer; by default all that
    the run may see. `context`: for whom to call, or a function of the `RunContext`; by default the
    run's `deps`, if they are a `CallContext`. `instructions`: whether the model is given what the
    tools' servers say about them. `id`: unique among an agent's toolsets.
    """

    def __init__(
        self,
        source: Source,
        names: Iterable[str] | None = None,
        *,
        id: str = "toolkeep",
        context: ContextOption[RunContext[AgentDepsT]] | None = None,
        errors: Literal["tell", "raise"] = "tell",
        max_retries: int | None = None,
        instructions: bool = True,
    ) -> None:
        check_errors_option(errors)
        self._given, self._with_instructions = source, instructions
        self._source, self._contexts = ToolSource(source, names), ContextResolver(context)
        self._id, self._raises, self._max_retries = id, errors == "raise", max_retries

    @property
    def id(self) -> str:
        return self._id

    async def get_instructions(self, ctx: RunContext[AgentDepsT]) -> str | None:
        if not (self._with_instructions and self._source.is_live):
            return None
        context = await self._context(ctx)
        known = await instructions_by_server(self._given, context)
        return join_instructions(known, await self._source.tools(context) if known else ()) or None

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        tools = await self._source.tools(await self._context(ctx))
        return {tool.model_name: self._toolset_tool(_definition(tool), ctx) for tool in tools}

    async def get_tool_for_tool_def(
        self, tool_def: ToolDefinition, ctx: RunContext[AgentDepsT]
    ) -> ToolsetTool[AgentDepsT]:
        return self._toolset_tool(tool_def, ctx)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        called = ctx.tool_name or name
        try:
            result = await self._call(name, tool_args, ctx)
        except ConfigError:
            raise
        except ToolkeepError as error:
            if model_can_fix(error):
                raise ModelRetry(error_message(error, called)) from error
            if self._raises:
                raise
            raise ToolFailed(error_message(error, called)) from error
        if result.is_error:
            raise ToolFailed(tool_error_message(result, called))
        return ToolReturn(return_value=_value(result), metadata=_metadata(result))

    async def _call(
        self, name: str, arguments: dict[str, Any], ctx: RunContext[AgentDepsT]
    ) -> CallResult:
        context = await self._context(ctx)
        tool = await self._source.find(name, context)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            # A run without a stream, or a toolset of a capability, cannot emit (2.66).
            with contextlib.suppress(UserError):
                await ctx.emit(ToolProgress(progress=progress, total=total, message=message))

        given = strip_none(arguments, tool.definition.input_schema)
        return await tool.call(given, context=context, on_progress=on_progress)

    async def _context(self, ctx: RunContext[AgentDepsT]) -> CallContext | None:
        return await self._contexts.resolve(ctx, ctx.deps)

    def _toolset_tool(
        self, definition: ToolDefinition, ctx: RunContext[AgentDepsT]
    ) -> ToolsetTool[AgentDepsT]:
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return ToolsetTool(
            toolset=self, tool_def=definition, max_retries=retries, args_validator=_JSON_OBJECT
        )


def _definition(tool: Tool) -> ToolDefinition:
    """The definition, on copies. Pydantic AI makes it strict where the provider wants that."""
    annotations = tool.definition.annotations
    return ToolDefinition(
        name=tool.model_name,
        description=tool.description or tool.title,
        parameters_json_schema=copy.deepcopy(tool.input_schema),
        return_schema=copy.deepcopy(tool.output_schema),
        metadata={
            "server": tool.server,
            "tool": tool.tool,
            "title": tool.title,
            "tags": sorted(tool.tags),
            "annotations": annotations.model_dump(by_alias=True, exclude_none=True)
            if annotations
            else None,
            "meta": copy.deepcopy(dict(tool.meta)),
        },
    )


# -- results ------------------------------------------------------------------------------------


def _value(result: CallResult) -> Any:
    """The value for the model: the structured content, or all parts if one is not text."""
    blocks = result.content
    if result.data is not None and all(block.type == "text" for block in blocks):
        return result.data
    parts = [_part(block) for block in blocks]
    return parts[0] if len(parts) == 1 else parts


def _part(block: ContentBlock) -> str | BinaryContent:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return _binary(block.data, block.mime_type)
        case "resource_link":
            return f"{block.name}: {block.uri}"
        case "resource":
            resource = block.resource
            blob = getattr(resource, "blob", None)
            if blob is None:
                return getattr(resource, "text", "")
            return _binary(blob, resource.mime_type or "application/octet-stream")


def _binary(data: str, media_type: str) -> str | BinaryContent:
    try:
        content = BinaryContent(data=base64.b64decode(data), media_type=media_type)
    except ValueError:
        return f"[{media_type} with invalid data]"  # the tool has run: keep the rest of its result
    return BinaryContent.narrow_type(content)


def _metadata(result: CallResult) -> dict[str, Any]:
    """Metadata for the application, as plain data. The model does not see it."""
    about: dict[str, Any] = {"server": result.server, "tool": result.tool}
    if result.data is not None:
        about["structured_content"] = result.data
    if result.meta:
        about["meta"] = dict(result.meta)
    return about


# -- sampling -----------------------------------------------------------------------------------


def sampling(model: str | Model) -> RequestHandler:
    """A handler for `Runtime(sampling=…)`: this model of Pydantic AI answers the sampling requests
    of servers."""
    chosen = infer_model(model)

    async def ask(request: SamplingRequest) -> Sample:
        settings = ModelSettings(max_tokens=request.max_tokens)
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.stop:
            settings["stop_sequences"] = list(request.stop)
        messages = [_sampling_message(message) for message in request.messages]
        if request.system:
            messages.insert(0, ModelRequest(parts=[SystemPromptPart(content=request.system)]))
        said = await model_request(chosen, messages, model_settings=settings)
        name = said.model_name or chosen.model_name
        return Sample(said.text or "", name, said.finish_reason == "length")

    return sampling_handler(ask)


def _sampling_message(message: SampledMessage) -> ModelMessage:
    if message.role == "assistant":
        texts = [part for part in message.parts if isinstance(part, str)]
        if len(texts) < len(message.parts):
            raise ValueError("media in a model's own messages cannot be passed on")
        return ModelResponse(parts=[TextPart(content=text) for text in texts])
    parts = [
        part
        if isinstance(part, str)
        else BinaryContent.narrow_type(BinaryContent(data=part.data, media_type=part.mime_type))
        for part in message.parts
    ]
    return ModelRequest(parts=[UserPromptPart(content=parts)])
