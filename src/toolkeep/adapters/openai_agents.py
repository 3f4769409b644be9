"""OpenAI Agents: the tools of a runtime as one of the agent's `mcp_servers`, or as function tools.

    agent = Agent(name="…", mcp_servers=[RuntimeServer(runtime)])
    agent = Agent(name="…", tools=await tools(runtime, ["search", "files.read"]))

The server is alive: the SDK lists it at each turn, and so does every run with its own identity.
Function tools stay what they were when they were made; a call finds the tool as it is then.

- Names are those for models, `server__tool`. The SDK (0.24) need not prefix them.
- Approval fails closed: a tool that a map does not name, and a function that raises or answers
  anything but False, mean that the user is asked.
- What goes wrong is told in one honest sentence, never in the SDK's own ("… Please try again").
  A failure function of the user's gets the error itself; None raises. A `ConfigError` is always
  raised: no model can mend it.
- Where the agent wants strict schemas, it gets ours, if they are: made on copies, with optional
  arguments nullable. The nulls are taken out before the call.
- The SDK's stream has no place for what happens inside a tool: `ProgressFeed` puts it there.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.schema import strip_none
from toolkeep._rules.strict import is_strict
from toolkeep.adapters._offered import Offered, Source, Speaker, Speaks
from toolkeep.adapters._telling import tool_error
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, NotPermitted
from toolkeep.runtime import Runtime

try:
    import mcp_types
    from agents import FunctionTool
    from agents.agent import AgentBase
    from agents.mcp import MCPServer, MCPToolMetaContext, MCPUtil

    from toolkeep.adapters._openai_agents import (
        Approval,
        ProgressFeed,
        Run,
        ToolProgress,
        asking,
        handing_on,
        on_progress,
        tell,
    )
except ImportError as missing:
    remedy = "Install toolkeep with its extra `openai-agents`"
    raise ConfigError("openai-agents is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from agents.mcp import MCPToolCustomDataExtractor, MCPToolMetaResolver
    from agents.tool import ToolErrorFunction
    from agents.tool_guardrails import ToolInputGuardrail, ToolOutputGuardrail

__all__ = ["Approval", "ProgressFeed", "RuntimeServer", "ToolProgress", "tell", "tools"]


class Extras(TypedDict, total=False):
    """What the SDK's servers can be told besides, and what we hand on."""

    use_structured_content: bool
    tool_meta_resolver: MCPToolMetaResolver | None
    custom_data_extractor: MCPToolCustomDataExtractor | None
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None


class RuntimeServer(MCPServer):
    """For one agent or many, and any number of runs at once.

    `source`: a runtime, or tools that it resolved. `names`: those to offer, or else all that the
    run may see. `context`: for whom to call, or a function of the run's `RunContextWrapper`; by
    default the run's own context, if that is a `CallContext`. `owned`: whether `cleanup` closes
    the runtime; without, it is its owner's.
    """

    def __init__(
        self,
        source: Source,
        names: Iterable[str] | None = None,
        *,
        name: str = "toolkeep",
        context: Speaks[Run] | None = None,
        require_approval: Approval = None,
        failure_error_function: ToolErrorFunction | None = tell,
        owned: bool = False,
        **extras: Unpack[Extras],
    ) -> None:
        self._offered, self._speaker = Offered(source, names), Speaker(context)
        self._name, self._owned = name, owned
        self.approval = asking(require_approval)
        super().__init__(
            require_approval=cast("Any", self.approval),
            failure_error_function=handing_on(failure_error_function),
            **extras,
        )
        self._meta = extras.get("tool_meta_resolver")
        self.tool_meta_resolver = self._note_run

    @property
    def name(self) -> str:
        return self._name

    async def connect(self) -> None:
        """Open the runtime, unless it is open."""
        if self._offered.is_live:
            await self._offered.runtime.connect()

    async def cleanup(self) -> None:
        if self._owned and self._offered.is_live:
            await self._offered.runtime.aclose()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    # -- tools ----------------------------------------------------------------------------------

    async def list_tools(
        self, run_context: Run | None = None, agent: AgentBase | None = None
    ) -> list[mcp_types.Tool]:
        strict = agent is not None and agent.mcp_config.get("convert_schemas_to_strict", False)
        offered = await self._offered.tools(await self._context(run_context))
        return [_shown(tool, strict=strict) for tool in offered]

    async def call_tool(
        self,
        tool_name: str,
        arguments: dict[str, Any] | None,
        meta: dict[str, Any] | None = None,
    ) -> mcp_types.CallToolResult:
        run = self._run()
        context = await self._context(run)
        tool = await self._offered.find(tool_name, context)
        given = strip_none(arguments or {}, tool.definition.input_schema)
        result = await tool.call(
            given, context=context, meta=meta, on_progress=on_progress(run, tool_name)
        )
        content = list(result.content)
        if result.is_error and not content:
            content.append(mcp_types.TextContent(type="text", text=tool_error(result, tool_name)))
        answer = mcp_types.CallToolResult(
            content=content, structured_content=result.data, is_error=result.is_error
        )
        return answer.model_copy(update={"meta": dict(result.meta) or None})

    async def _note_run(self, noted: MCPToolMetaContext) -> dict[str, Any] | None:
        """The SDK calls this right before `call_tool`, which is told nothing of the run, and starts
        that in a copy of the context variables as they are then."""
        _RUN.set((self, noted.run_context))
        try:
            made = self._meta(noted) if self._meta else None
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            raise NotPermitted(f"{noted.tool_name}: its `_meta` could not be made") from error

    def _run(self) -> Run | None:
        server, run = _RUN.get()
        return run if server is self else None

    async def _context(self, run: Run | None) -> CallContext | None:
        return await self._speaker.of(run, None if run is None else run.context)

    # -- prompts and resources ------------------------------------------------------------------

    async def list_prompts(self) -> mcp_types.ListPromptsResult:
        """All, by their full names: `server.prompt`."""
        view = await self._offered.runtime.catalogue_for(await self._context(self._run()))
        named = [one.definition.model_copy(update={"name": one.name}) for one in view.prompts]
        return mcp_types.ListPromptsResult(prompts=named)

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None
    ) -> mcp_types.GetPromptResult:
        context = await self._context(self._run())
        return await self._offered.runtime.get_prompt(name, arguments, context=context)

    async def list_resources(self, cursor: str | None = None) -> mcp_types.ListResourcesResult:
        """All at once: there is no second page."""
        view = await self._offered.runtime.catalogue_for(await self._context(self._run()))
        return mcp_types.ListResourcesResult(resources=[one.definition for one in view.resources])

    async def list_resource_templates(
        self, cursor: str | None = None
    ) -> mcp_types.ListResourceTemplatesResult:
        view = await self._offered.runtime.catalogue_for(await self._context(self._run()))
        found = [one.definition for one in view.templates]
        return mcp_types.ListResourceTemplatesResult(resource_templates=found)

    async def read_resource(self, uri: str) -> mcp_types.ReadResourceResult:
        context = await self._context(self._run())
        return await self._offered.runtime.read_resource(uri, context=context)


_RUN: ContextVar[tuple[RuntimeServer | None, Run | None]] = ContextVar("run", default=(None, None))


async def tools(
    source: Source,
    names: Iterable[str] | None = None,
    *,
    context: Speaks[Run] | None = None,
    require_approval: Approval = None,
    failure_error_function: ToolErrorFunction | None = tell,
    strict: bool = True,
    **extras: Unpack[Extras],
) -> list[FunctionTool]:
    """Function tools for an agent's `tools`. The arguments are those of `RuntimeServer`.

    They are listed for `context`, if it is one, and called for whoever each run speaks for. A
    function for approvals gets None for the agent: the SDK does not tell.
    """
    given = source if isinstance(source, Runtime) else list(source)
    seen = context if isinstance(context, CallContext) else None
    found = await Offered(given, names).tools(seen)
    server = RuntimeServer(
        given,
        context=context,
        require_approval=require_approval,
        failure_error_function=failure_error_function,
        **extras,
    )
    return [_function_tool(server, tool, strict=strict) for tool in found]


def _function_tool(server: RuntimeServer, tool: Tool, *, strict: bool) -> FunctionTool:
    shown = _shown(tool, strict=strict)
    made = MCPUtil.to_function_tool(shown, server, strict and is_strict(shown.input_schema))
    asks = server.approval
    if callable(asks):  # without an agent the SDK would not ask it, and always want approval

        async def needs_approval(run: Run, arguments: dict[str, Any], call_id: str) -> bool:
            return await asks(run, None, shown)

        made.needs_approval = needs_approval
    return made


def _shown(tool: Tool, *, strict: bool) -> mcp_types.Tool:
    """A copy for the SDK, which nothing is shared with that the SDK could alter."""
    copied = tool.definition.model_copy(deep=True)
    schema = tool.strict_schema() if strict else None
    changes: dict[str, Any] = {"name": tool.model_name, "description": tool.description or None}
    if schema is not None and is_strict(schema):
        changes["input_schema"] = schema
    return copied.model_copy(update=changes)
