"""Tools for agents of Google ADK: declared by their own schemas, called for the user who is served.

`tools` gives them to an agent before it is made, `update_tools` swaps them; a `Toolset` is for
agents whose tools are to follow the catalogue, and asks it before every turn of the model.

- A tool is declared as its server describes it; only its name is the one for models.
- A call speaks for ADK's user (`call_context`), unless `context` says for whom.
- The model gets `{status: "success", result, tool_name, namespace, execution_time}`, with `media`
  and `resources` if there are any, or `{status: "error", error, tool_name}`: an honest sentence, or
  the tool's own words. With `errors="raise"` a call without a result raises.
- Progress, log lines and replays are partial events of ADK's own stream, in `custom_metadata`
  under `toolkeep`. They are shown as they come, and are no part of the session.
- A server's questions are answered by the runtime's functions. ADK has nobody else to ask: with
  `elicitation="caller"` they are declined.
- What needs a confirmation never runs without one. A cancelled run cancels its calls, and no answer
  is made of that.
- Tools that cannot be listed are told to the model, or raised: never simply missing.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._engine.call import Call
from toolkeep._rules.schema import strip_none
from toolkeep.adapters import _telling
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError, UnknownTool
from toolkeep.events import InputNeeded, Log, Progress, Replaying
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

try:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
    from google.adk.tools.tool_context import ToolContext
    from google.adk.workflow import BaseNode
    from google.genai import types

    from toolkeep.adapters._adk_terms import Options, Terms, call_context
except ImportError as missing:
    remedy = "Install toolkeep with its extra `adk`"
    raise ConfigError("Google ADK 2 is not installed", remedy=remedy) from missing

__all__ = ["ADKTool", "Options", "Toolset", "call_context", "tools", "update_tools"]


# -- tools ------------------------------------------------------------------------------------


async def tools(
    source: Runtime | Iterable[Tool], names: Iterable[str] | None = None, **options: Unpack[Options]
) -> list[ADKTool]:
    """For `Agent(tools=[…])`: those of these names, all that are offered, or resolved ones as they
    are. Raises `UnknownTool` with all that are missing."""
    return await _made(source, names, Terms(**options))


async def update_tools(
    agent: LlmAgent,
    source: Runtime | Iterable[Tool],
    names: Iterable[str] | None = None,
    **options: Unpack[Options],
) -> None:
    """Swap the tools that `tools` made for these, from the next turn of the model on. The agent's
    other tools stay; options that are not given are those of the tools so far."""
    had = cast("list[Any]", cast("Any", agent).tools)
    before = next((tool.terms for tool in had if isinstance(tool, ADKTool)), Terms())
    made = await _made(source, names, replace(before, **options))
    had = cast("list[Any]", cast("Any", agent).tools)  # whoever else has changed them meanwhile
    agent.tools = [*(tool for tool in had if not isinstance(tool, ADKTool)), *made]


async def _made(
    source: Runtime | Iterable[Tool], names: Iterable[str] | None, terms: Terms
) -> list[ADKTool]:
    if isinstance(source, Runtime):
        source = await _resolved(source, names, terms.given)
    elif names is not None:
        raise ConfigError("names are looked up in a runtime", key="names")
    return [ADKTool(tool, terms) for tool in source]


async def _resolved(
    runtime: Runtime, names: Iterable[str] | None, context: CallContext | None
) -> list[Tool]:
    wanted = await runtime.catalogue_for(context) if names is None else names
    return await runtime.resolve(wanted, context)


class ADKTool(BaseTool):
    """One tool for any number of agents and runs. Its name may be changed, as ADK's prefixes do."""

    def __init__(self, tool: Tool, terms: Terms) -> None:
        about = {"server": tool.server, "tool": tool.tool, "title": tool.title}
        super().__init__(name=tool.model_name, description=tool.description, custom_metadata=about)
        self.tool, self.terms = tool, terms

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            # A copy: what ADK does with a declaration must not reach the catalogue.
            parameters_json_schema=copy.deepcopy(self.tool.input_schema),
        )

    async def check_require_confirmation(
        self, args: dict[str, Any], tool_context: ToolContext
    ) -> bool:
        return await self.terms.must_confirm(self.tool, args, tool_context)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        if await self.check_require_confirmation(args, tool_context):  # whoever else has looked
            confirmation = tool_context.tool_confirmation
            if confirmation is None or not confirmation.confirmed:
                return self._error(f"{self.name} was not called: it has not been confirmed.")
        try:
            context = await self.terms.speaking(tool_context, self.tool.context)
            result = await self._call(
                strip_none(args, self.tool.definition.input_schema), context, tool_context
            )
        except ToolkeepError as error:
            if not self.terms.is_told(error):
                raise
            return self._error(_telling.sentence(error, self.name))
        if result.is_error:
            return self._error(_telling.tool_error(result, self.name))
        return {
            "status": "success",
            **_brought(result),
            "tool_name": self.tool.tool,
            "namespace": self.tool.server,
            "execution_time": result.duration,
        }

    async def _call(
        self, args: Mapping[str, Any], context: CallContext, adk: ToolContext
    ) -> CallResult:
        if not _can_show(adk):
            return await self.tool.call(args, context=context)
        call_id = adk.function_call_id or ""
        call = self.tool.stream(args, context=context)
        # Under a workflow, ADK 2.13 keeps ids of digits alone for itself.
        run_id = call_id if call_id and not call_id.isdigit() else None
        await adk.run_node(Watched(name="toolkeep", call=call, call_id=call_id), run_id=run_id)
        return await call.result()

    def _error(self, sentence: str) -> dict[str, Any]:
        return {"status": "error", "error": sentence, "tool_name": self.tool.tool}

    def _detect_error_in_response(self, response: object) -> str | None:
        """Asked by ADK's telemetry (2.13)."""
        failed = isinstance(response, dict) and "error" in response
        return "TOOL_ERROR" if failed else None


class Watched(BaseNode):
    """A call as a node of ADK's: what a node yields is in the runner's stream. It has no output and
    raises nothing, since ADK would keep both in the session: the call has its result."""

    call: Call
    call_id: str

    async def _run_impl(self, *, ctx: ToolContext, node_input: Any) -> AsyncGenerator[Event, None]:
        ctx.event_author = ctx.agent_name
        async with self.call as call:
            async for event in call:
                if isinstance(event, Progress | Log | Replaying):
                    told = {"function_call_id": self.call_id, **event.as_dict()}
                    yield Event(partial=True, custom_metadata={"toolkeep": told})
                elif isinstance(event, InputNeeded) and event.awaited:
                    event.decline()


def _can_show(adk: ToolContext) -> bool:
    """Whether ADK (2.13) lets a tool have nodes, and a runner hears of them: not in live sessions,
    nor outside of a runner, nor in a workflow's node that would not be run again."""
    running, within = adk.get_invocation_context(), adk.node
    is_heard = getattr(running, "_event_queue", None) is not None
    is_kept = within is None or within.rerun_on_resume
    return is_heard and is_kept and running.live_request_queue is None


def _brought(result: CallResult) -> dict[str, Any]:
    """What the model is to see. ADK takes media out, and hands them on as parts."""
    blocks = cast("list[dict[str, Any]]", result.raw.get("content") or [])
    media = [part for block in blocks if (part := _media(block)) is not None]
    resources = [
        block.get("resource") or {key: block[key] for key in block if key not in ("type", "_meta")}
        for block in blocks
        if block.get("type") in ("resource", "resource_link")
    ]
    found = {"result": result.text if result.data is None else result.data}
    more = {"media": media, "resources": resources}
    return found | {key: value for key, value in more.items() if value}


def _media(block: dict[str, Any]) -> types.Part | str | None:
    if block.get("type") not in ("image", "audio"):
        return None
    try:
        data = base64.b64decode(block["data"], validate=True)
    except ValueError:
        return f"{block['type']} that cannot be read"
    return types.Part.from_bytes(data=data, mime_type=block["mimeType"])


# -- a toolset --------------------------------------------------------------------------------


class Toolset(BaseToolset):
    """Tools that follow the catalogue: before each turn of the model, those that the user of that
    run may see. For any number of agents, in one event loop.

    `names` as in `tools`; filter and prefix are ADK's, over names for models. With `owned` the
    toolset opens its runtime when first asked, and closes it with itself.
    """

    def __init__(
        self,
        runtime: Runtime,
        names: Iterable[str] | None = None,
        *,
        owned: bool = False,
        tool_filter: ToolPredicate | list[str] | None = None,
        tool_name_prefix: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        self._use_invocation_cache = False  # a run has many turns, and the catalogue lives
        self._runtime, self._owned = runtime, owned
        self._names = None if names is None else list(names)
        self._terms = Terms(**options)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        try:
            found, missing = await self._look(readonly_context)
        except Exception as error:  # ADK 2.13 would log it, and not tell the model
            return [Missing(["Your tools"], error, self._terms)]
        made = [ADKTool(tool, self._terms) for tool in found]
        chosen = [tool for tool in made if self._is_tool_selected(tool, readonly_context)]
        if not missing:
            return list[BaseTool](chosen)
        return [*chosen, Missing(list(missing), next(iter(missing.values())), self._terms)]

    async def close(self) -> None:
        if self._owned:
            await self._runtime.aclose()

    async def _look(self, adk: ReadonlyContext | None) -> tuple[list[Tool], dict[str, UnknownTool]]:
        if self._owned:
            await self._runtime.connect()
        terms, names = self._terms, self._names
        context = terms.given if adk is None else await terms.speaking(adk, None)
        found: list[Tool] = []
        missing: dict[str, UnknownTool] = {}
        try:
            return await _resolved(self._runtime, names, context), missing
        except UnknownTool:  # the others are there all the same
            for name in names or ():
                try:
                    found += await self._runtime.resolve([name], context)
                except UnknownTool as error:
                    missing[name] = error
        return found, missing


class Missing(BaseTool):
    """In place of what could not be listed: nothing that a model can call, but not silence."""

    def __init__(self, what: list[str], why: Exception, terms: Terms) -> None:
        super().__init__(name="toolkeep_missing", description=f"Not found: {', '.join(what)}")
        self._why, self._is_told = why, terms.is_told(why)

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        if not self._is_told:
            raise self._why
        told = "What you need of these is out of reach now. If the task needs it, tell the user so."
        llm_request.append_instructions([f"{self.description}. {told}"])
