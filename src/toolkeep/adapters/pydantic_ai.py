"""Pydantic AI: the tools of a runtime as a toolset.

    agent = Agent(model, toolsets=[RuntimeToolset(runtime)])

The toolset looks at the catalogue before each request to the model, on behalf of whoever the run
speaks for, so that what comes and goes between two turns is seen. It opens and closes nothing: the
runtime is its owner's.

- The model is asked to try again (`ModelRetry`) only where nothing ran and the fault is its own.
  All else that goes wrong is a result that failed (`ToolFailed`): it says whether the tool ran, and
  uses up no retries. With `errors="raise"` the run ends with the error instead. It always ends with
  a `ConfigError`: no model can mend it.
- A definition never has a `timeout`: Pydantic AI (2.66) answers one with a request to try again,
  also when the tool has run. The runtime's own deadlines know better.
- Progress is an event of the run's stream: `ToolProgress`.
"""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.schema import strip_none
from toolkeep.adapters._offered import Offered, Source, Speaker, Speaks
from toolkeep.adapters._telling import can_mend, sentence, tool_error
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError
from toolkeep.results import CallResult

try:
    from pydantic_ai import CustomEvent, ModelRetry, RunContext, ToolReturn
    from pydantic_ai.exceptions import ToolFailed, UserError
    from pydantic_ai.messages import BinaryContent
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError as missing:
    remedy = "Install toolkeep with its extra `pydantic-ai`"
    raise ConfigError("pydantic-ai is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from mcp_types import ContentBlock

__all__ = ["RuntimeToolset", "ToolProgress"]

_AN_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
"""Whatever else the arguments have to be, the runtime checks."""


@dataclass(kw_only=True)
class ToolProgress(CustomEvent, name="toolkeep.progress"):
    """A step that a tool's server reported. Pydantic AI adds the tool and the call."""

    progress: float
    total: float | None = None
    message: str | None = None


class RuntimeToolset(AbstractToolset[AgentDepsT]):
    """For one agent or many, and any number of runs at once.

    `source`: a runtime, or tools that it resolved. `names`: those to offer, or else all that the
    run may see. `context`: for whom to call, or a function of the `RunContext` that says so; by
    default the run's `deps`, if they are a `CallContext`. `id`: unique among an agent's toolsets.
    """

    def __init__(
        self,
        source: Source,
        names: Iterable[str] | None = None,
        *,
        id: str = "toolkeep",
        context: Speaks[RunContext[AgentDepsT]] | None = None,
        errors: Literal["tell", "raise"] = "tell",
        max_retries: int | None = None,
    ) -> None:
        if errors not in ("tell", "raise"):
            raise ConfigError("it is neither", key="errors", remedy="Say 'tell' or 'raise'")
        self._offered, self._speaker = Offered(source, names), Speaker(context)
        self._id, self._raises, self._max_retries = id, errors == "raise", max_retries

    @property
    def id(self) -> str:
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        tools = await self._offered.tools(await self._context(ctx))
        return {tool.model_name: self._listed(_definition(tool), ctx) for tool in tools}

    async def get_tool_for_tool_def(
        self, tool_def: ToolDefinition, ctx: RunContext[AgentDepsT]
    ) -> ToolsetTool[AgentDepsT]:
        return self._listed(tool_def, ctx)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        said = ctx.tool_name or name
        try:
            result = await self._call(name, tool_args, ctx)
        except ConfigError:
            raise
        except ToolkeepError as error:
            if can_mend(error):
                raise ModelRetry(sentence(error, said)) from error
            if self._raises:
                raise
            raise ToolFailed(sentence(error, said)) from error
        if result.is_error:
            raise ToolFailed(tool_error(result, said))
        return ToolReturn(return_value=_value(result), metadata=_metadata(result))

    async def _call(
        self, name: str, arguments: dict[str, Any], ctx: RunContext[AgentDepsT]
    ) -> CallResult:
        context = await self._context(ctx)
        tool = await self._offered.find(name, context)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            # A run without a stream, or a toolset of a capability, may not emit (2.66).
            with contextlib.suppress(UserError):
                await ctx.emit(ToolProgress(progress=progress, total=total, message=message))

        given = strip_none(arguments, tool.definition.input_schema)
        return await tool.call(given, context=context, on_progress=on_progress)

    async def _context(self, ctx: RunContext[AgentDepsT]) -> CallContext | None:
        return await self._speaker.of(ctx, ctx.deps)

    def _listed(
        self, definition: ToolDefinition, ctx: RunContext[AgentDepsT]
    ) -> ToolsetTool[AgentDepsT]:
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return ToolsetTool(
            toolset=self, tool_def=definition, max_retries=retries, args_validator=_AN_OBJECT
        )


def _definition(tool: Tool) -> ToolDefinition:
    """On copies. Pydantic AI makes it strict itself, where the provider wants that."""
    marks = tool.definition.annotations
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
            "annotations": marks.model_dump(by_alias=True, exclude_none=True) if marks else None,
            "meta": copy.deepcopy(dict(tool.meta)),
        },
    )


# -- results ------------------------------------------------------------------------------------


def _value(result: CallResult) -> Any:
    """For the model: the structured content, unless there is more to see than text."""
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
            held = block.resource
            blob = getattr(held, "blob", None)
            if blob is None:
                return getattr(held, "text", "")
            return _binary(blob, held.mime_type or "application/octet-stream")


def _binary(data: str, media_type: str) -> str | BinaryContent:
    try:
        held = BinaryContent(data=base64.b64decode(data), media_type=media_type)
    except ValueError:
        return f"[{media_type} that cannot be read]"  # the tool has run: the rest must not be lost
    return BinaryContent.narrow_type(held)


def _metadata(result: CallResult) -> dict[str, Any]:
    """For the application: the model never sees it, and a history can store it."""
    about: dict[str, Any] = {"server": result.server, "tool": result.tool}
    if result.data is not None:
        about["structured_content"] = result.data
    if result.meta:
        about["meta"] = dict(result.meta)
    return about
