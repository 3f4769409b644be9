"""LangChain and LangGraph: the tools of a runtime as `BaseTool`s.

- The arguments' schema is the server's own JSON Schema. Results are LangChain's content blocks, and
  the structured content is the artifact.
- What goes wrong is told to the model in one honest sentence (`errors="tell"`: a tool message with
  the status "error"), or raised (`errors="raise"`: a `ToolkeepError`, or a `ToolException` for the
  tool's own error). A `ConfigError` is always raised: no model can mend it. Cancellation cancels
  the call, and goes on.
- Progress goes to LangGraph's stream writer (`stream_mode="custom"`), and to callbacks as the
  custom event `toolkeep.progress`.
- On whose behalf a call is made is said by the run (`RunnableConfig`); see `context_from`.
- With `interrupts=True` a server's questions interrupt the graph; see `_langchain_asking`. Needs a
  runtime with `elicitation="caller"`, and a graph with a checkpointer; elsewhere, the runtime
  answers.

Needs langchain-core; LangGraph only where it is already in use, LangChain itself for `live_tools`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import PrivateAttr

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.schema import strip_none
from toolkeep.adapters._langchain_asking import Answer, Errand, Outcome, converse, current_thread
from toolkeep.adapters._langchain_content import Content, content_of
from toolkeep.adapters._offered import Speaker, Speaks
from toolkeep.adapters._telling import sentence, tool_error
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError
from toolkeep.events import Progress
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

try:
    from langchain_core.callbacks import AsyncCallbackManagerForToolRun, adispatch_custom_event
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import ensure_config
    from langchain_core.tools import BaseTool, ToolException
except ImportError as missing:
    remedy = "Install toolkeep with its extra `langchain`"
    raise ConfigError("langchain-core is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

__all__ = ["Answer", "McpTool", "context_from", "live_tools", "tools"]

ContextGiven = Speaks[RunnableConfig]
"""The context of every call, or a function from the run's configuration to it."""

PROGRESS = "toolkeep.progress"
_IDS = ("user_id", "session_id", "execution_id", "trace_id")


async def tools(
    source: Runtime | Iterable[Tool],
    names: Iterable[str] | None = None,
    context: ContextGiven | None = None,
    *,
    errors: Literal["tell", "raise"] = "tell",
    interrupts: bool = False,
    strict: bool = False,
    timeout: float | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> list[BaseTool]:
    """The tools of a runtime, all or those of these names, or tools that it has resolved.

    `context`: see `context_from`. `strict`: schemas for providers' strict mode. `metadata` is added
    to each tool's own.
    """
    if errors not in ("tell", "raise"):
        remedy = "Say 'tell' or 'raise'"
        raise ConfigError("errors are told or raised", key="errors", remedy=remedy)
    terms = Terms(context, errors, interrupts, strict, timeout, dict(metadata or {}))
    found = await _found(source, names, context if isinstance(context, CallContext) else None)
    return [McpTool(tool, terms) for tool in found]


def live_tools(
    runtime: Runtime,
    names: Iterable[str] | None = None,
    context: ContextGiven | None = None,
    **options: Any,
) -> AgentMiddleware[Any, Any, Any]:
    """For `create_agent(…, middleware=[live_tools(runtime)])`: at each turn the tools that there
    are then, for whom the run is. Takes the options of `tools`; a name that nothing has at the
    time is left out."""
    from toolkeep.adapters._langchain_live import LiveTools

    wanted = None if names is None else frozenset(names)

    async def source(config: RunnableConfig) -> list[BaseTool]:
        whose = await _context(context, config)
        seen = [
            tool
            for tool in await runtime.catalogue_for(whose)
            if wanted is None or not wanted.isdisjoint((tool.name, tool.model_name, tool.tool))
        ]
        return await tools(await runtime.resolve(seen, whose), context=context, **options)

    return LiveTools(source, lambda tool: isinstance(tool, McpTool))


async def _found(
    source: Runtime | Iterable[Tool], names: Iterable[str] | None, context: CallContext | None
) -> list[Tool]:
    if isinstance(source, Runtime):
        wanted = await source.catalogue_for(context) if names is None else names
        return await source.resolve(wanted, context)
    if names is not None:
        remedy = "Resolve these names only, or give the runtime"
        raise ConfigError("tools that are resolved have their names", key="names", remedy=remedy)
    found = list(source)
    if any(tool.caller is None for tool in found):
        remedy = "Give a runtime, or what `await runtime.resolve(…)` brought"
        raise ConfigError("these are no tools that can be called", remedy=remedy)
    return found


# -- on whose behalf ----------------------------------------------------------------------------


def context_from(config: RunnableConfig, base: CallContext | None = None) -> CallContext | None:
    """The context that a run asks for in its `configurable`, over the one that the tools have.

    Either the whole of it (`toolkeep`: a `CallContext`), or any of `principal`, `headers`,
    `user_id`, `session_id` (else the thread's id), `execution_id` and `trace_id`. A principal and
    headers belong together: a run that names either gets neither from `base`.
    """
    said = cast("Mapping[str, Any]", config.get("configurable") or {})
    whole = said.get("toolkeep")
    if isinstance(whole, CallContext):
        return whole
    found: dict[str, Any] = {}
    if "principal" in said or "headers" in said:
        found = {"principal": said.get("principal"), "headers": said.get("headers") or {}}
    found |= {key: str(said[key]) for key in _IDS if said.get(key)}
    if "thread_id" in said and "session_id" not in found and not (base and base.session_id):
        found["session_id"] = str(said["thread_id"])
    return replace(base or CallContext(), **found) if found else base


async def _context(given: ContextGiven | None, config: RunnableConfig) -> CallContext | None:
    if given is None or isinstance(given, CallContext):
        return context_from(config, given)
    return await Speaker(given).of(config, None)


# -- one tool -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """How tools are to behave."""

    context: ContextGiven | None
    errors: Literal["tell", "raise"]
    interrupts: bool
    strict: bool
    timeout: float | None
    metadata: dict[str, Any]


class McpTool(BaseTool):
    """One tool. Made by `tools`; may be called by any number of runs at once."""

    _tool: Tool = PrivateAttr()
    _terms: Terms = PrivateAttr()

    def __init__(self, tool: Tool, terms: Terms) -> None:
        schema = tool.strict_schema() if terms.strict else tool.input_schema
        super().__init__(
            name=tool.model_name,
            description=tool.description,
            args_schema={"properties": {}, **schema},  # LangChain relies on it
            response_format="content_and_artifact",
            handle_tool_error=terms.errors == "tell",
            tags=sorted(tool.tags) or None,
            metadata=_metadata(tool) | terms.metadata,
        )
        self._tool, self._terms = tool, terms

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} is asynchronous: use ainvoke, astream or abatch")

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        # Kept apart: a server may well call its tool's argument `config` or `run_manager`.
        arguments = self._parse_input(tool_input, tool_call_id)
        return (), {"arguments": arguments, "tool_call_id": tool_call_id}

    async def _arun(
        self,
        arguments: dict[str, Any],
        tool_call_id: str | None,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
    ) -> tuple[Content, Any]:
        thread = current_thread() if self._terms.interrupts else None
        errand = Errand(
            tool=self._tool,
            arguments=strip_none(arguments, self._tool.definition.input_schema),
            context=await self._guarded_context(config),
            thread=thread or "",
            tool_call_id=tool_call_id,
            tell=functools.partial(self._tell, _audience(run_manager), tool_call_id),
            options={} if self._terms.timeout is None else {"timeout": self._terms.timeout},
        )
        if thread is None:
            outcome = await self._guarded(functools.partial(_once, errand))
        else:
            outcome = await converse(errand, self._guarded)
        return self._formatted(outcome)

    async def _guarded_context(self, config: RunnableConfig) -> CallContext | None:
        try:
            return await _context(self._terms.context, config)
        except ConfigError:
            raise
        except ToolkeepError as error:
            if self._terms.errors == "raise":
                raise
            raise ToolException(sentence(error, self.name)) from error

    async def _guarded(self, leg: Callable[[], Awaitable[Outcome]]) -> Outcome:
        try:
            return await leg()
        except ConfigError:
            raise
        except ToolkeepError as error:
            if self._terms.errors == "raise":
                raise
            return {"told": sentence(error, self.name)}

    def _formatted(self, outcome: Outcome) -> tuple[Content, Any]:
        if "told" in outcome:
            raise ToolException(outcome["told"])
        server, tool = self._tool.key
        result = CallResult(outcome["raw"], server, tool)
        content = content_of(result)
        if result.is_error:
            raise ToolException(content or tool_error(result, self.name))
        return content, result.data

    async def _tell(
        self,
        audience: tuple[Callable[[Any], None] | None, RunnableConfig | None],
        tool_call_id: str | None,
        progress: float,
        total: float | None,
        message: str | None,
    ) -> None:
        server, tool = self._tool.key
        about: dict[str, Any] = {"server": server, "tool": tool, "call_id": tool_call_id or ""}
        event = Progress(progress=progress, total=total, message=message, **about).as_dict()
        write, config = audience
        if write is not None:
            write(event)
        if config is not None:
            await adispatch_custom_event(PROGRESS, event, config=config)


async def _once(errand: Errand) -> Outcome:
    """The whole call, without interrupts: nobody watches, so the runtime answers."""
    result = await errand.tool.call(
        errand.arguments, context=errand.context, on_progress=errand.tell, **errand.options
    )
    return {"raw": result.raw}


def _audience(
    run_manager: AsyncCallbackManagerForToolRun | None,
) -> tuple[Callable[[Any], None] | None, RunnableConfig | None]:
    """Who hears of progress in this run: the graph's stream, and the callbacks."""
    config = run_manager and ensure_config({"callbacks": run_manager.get_child()})
    try:
        from langgraph.config import get_stream_writer

        return get_stream_writer(), config
    except (ImportError, RuntimeError, KeyError):  # no graph runs here
        return None, config


def _metadata(tool: Tool) -> dict[str, Any]:
    return {
        "tool_type": "mcp",
        "display_name": tool.title,
        "folder_path": "",
        "slug": tool.server,
        "read_only": tool.read_only,
        "destructive": tool.destructive,
    }
