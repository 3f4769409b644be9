"""OpenAI Agents: the tools of a runtime as one of the agent's `mcp_servers`, or as function tools.

    agent = Agent(name="…", mcp_servers=[RuntimeServer(runtime)])
    agent = Agent(name="…", tools=await tools(runtime, ["search", "files.read"]))

The SDK lists the server at each turn, with the identity of each run, so that it follows the
catalogue. The list of function tools is fixed when they are made; a call uses the current tool.

- Names are those for models, `server__tool`. The SDK (0.24) need not prefix them.
- Approval fails closed: the user is asked about tools that a mapping does not name, and if a
  function raises or returns anything but False.
- A failed call is told to the model in one sentence of ours, never in the SDK's own ("… Please try
  again"). The failure function of the user, or of the agent's `mcp_config`, gets our error; None
  raises it. A `ConfigError` is always raised, because no model can fix it.
- An agent that wants strict schemas gets ours where they can be made strict: on copies, with
  optional arguments nullable. Nulls are removed before the call.
- The SDK's stream does not carry the progress of tools: `ProgressFeed` adds it.
- The SDK does not show servers' instructions to the model: `RuntimeServer.instructions` does.
  `sampling` makes a handler that has a model of the SDK answer a server's sampling requests.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypedDict, Unpack, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._client.request import OnProgress, is_duration
from toolkeep._client.server_requests import RequestHandler
from toolkeep._client.tool_list import FrozenTool
from toolkeep._rules.json_schema import strip_none
from toolkeep._rules.limits import ReportBuffer, report_size
from toolkeep._rules.names import model_name, split_full_name
from toolkeep._rules.strict_schema import is_strict
from toolkeep.adapters._common import (
    ContextOption,
    ContextResolver,
    Sample,
    SampledMessage,
    SamplingRequest,
    Source,
    ToolSource,
    error_message,
    instructions_by_server,
    join_instructions,
    sampling_handler,
    tool_error_message,
)
from toolkeep.context import CallContext
from toolkeep.errors import (
    CallOutcomeUnknown,
    ConfigError,
    Delivery,
    InvalidArguments,
    NotPermitted,
    ToolkeepError,
)
from toolkeep.runtime import Runtime

try:
    import mcp_types
    from agents import (
        Agent,
        FunctionTool,
        Model,
        ModelBehaviorError,
        ModelSettings,
        RunContextWrapper,
        Runner,
        RunResultStreaming,
    )
    from agents.agent import AgentBase
    from agents.mcp import MCPServer, MCPToolMetaContext, MCPUtil, ToolFilterContext
    from agents.stream_events import StreamEvent
    from agents.tool import ToolErrorFunction, default_tool_error_function
    from agents.tool_context import ToolContext
except ImportError as missing:
    remedy = "Install toolkeep with its extra `openai-agents`"
    raise ConfigError("openai-agents is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from agents.items import TResponseInputItem
    from agents.mcp import MCPToolCustomDataExtractor, MCPToolMetaResolver, ToolFilter
    from agents.tool_guardrails import ToolInputGuardrail, ToolOutputGuardrail

__all__ = [
    "Approval",
    "ProgressFeed",
    "RuntimeServer",
    "ToolProgress",
    "describe_failure",
    "sampling",
    "tools",
]

logger = logging.getLogger("toolkeep.adapters")

Run = RunContextWrapper[Any]
ApprovalFunction = Callable[[Run, AgentBase | None, mcp_types.Tool], bool | Awaitable[bool]]
Approval = Literal["always", "never"] | bool | Mapping[str, Any] | ApprovalFunction | None
"""As in the SDK. A mapping goes from tools (`server.tool`, or the name for models) to `"always"`,
`"never"` or a bool, or has the SDK's form with two lists of names. None means `"never"`."""


_UNSET: Any = object()
"""No failure function was given: the agent's own counts."""
_ELSEWHERE = {
    "params": "Describe the server in the configuration of the runtime",
    "max_retry_attempts": "Set `max_retries` and `retry` of the server in the configuration",
    "retry_backoff_seconds_base": "Leave it out: pauses grow from 0.2 s to 10 s by themselves",
    "retry_backoff_seconds_max": "Leave it out: pauses grow from 0.2 s to 10 s by themselves",
    "message_handler": "Use `runtime.observe(…)`",
    "max_list_pages": "Leave it out: lists are bounded, see `max_result_bytes`",
}
"""Options of the SDK's servers that have no meaning for a runtime, and what to do instead."""

# -- failures -----------------------------------------------------------------------------------


def describe_failure(context: Run, error: Exception) -> str:
    """The message for the model about a failed call: the default failure function. Raises a
    `ConfigError`, because no model can fix it."""
    name = context.tool_name if isinstance(context, ToolContext) else "The tool"
    return error_message(_as_toolkeep_error(_own_error(error)), name)


def _with_own_error(function: ToolErrorFunction | None) -> ToolErrorFunction | None:
    """The user's failure function, called with our error instead of the SDK's wrapper."""
    if function is None or function is describe_failure:
        return function
    return lambda context, error: function(context, _own_error(error))


def _of_agent(function: ToolErrorFunction | None) -> ToolErrorFunction | None:
    """The failure function of an agent; ours in place of the SDK's default."""
    function = describe_failure if function is default_tool_error_function else function
    return _with_own_error(function)


def _own_error(error: Exception) -> Exception:
    """Our error, which the SDK (0.24) wraps. Raises a `ConfigError`, which ends the run."""
    cause = error.__cause__
    own = cause if isinstance(cause, ToolkeepError) else error
    if isinstance(own, ConfigError):
        raise own
    return own


def _as_toolkeep_error(error: Exception) -> ToolkeepError:
    if isinstance(error, ToolkeepError):
        return error
    if isinstance(error, ModelBehaviorError):
        problems = ("they must be a JSON object",)
        return InvalidArguments("not a JSON object", server="", tool="", problems=problems)
    return CallOutcomeUnknown("foreign", server="", delivery=Delivery.UNKNOWN)


# -- the server and the tools --------------------------------------------------------------------


class Extras(TypedDict, total=False):
    """Further options of the SDK's servers, which are passed on."""

    use_structured_content: bool
    tool_meta_resolver: MCPToolMetaResolver | None
    custom_data_extractor: MCPToolCustomDataExtractor | None
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None


class RuntimeServer(MCPServer):
    """An MCP server of the SDK, for any number of agents, and any number of runs at once.

    `source`: a runtime, or tools that it resolved. `names`: the tools to offer; by default all that
    the run may see. `context`: for whom to call, or a function of the run's `RunContextWrapper`; by
    default the run's own context, if that is a `CallContext`. `failure_error_function`: by default
    that of the agent's `mcp_config`, and `describe_failure` without one. `owned`: whether `cleanup`
    closes the runtime.

    As of the SDK's servers: `tool_filter`, by any of a tool's names. `cache_tools_list`: False
    lists the servers again at each turn; otherwise the catalogue is used, which follows what the
    servers announce. `client_session_timeout_seconds`: for each call.
    """

    def __init__(
        self,
        source: Source,
        names: Iterable[str] | None = None,
        *,
        name: str = "toolkeep",
        context: ContextOption[Run] | None = None,
        require_approval: Approval = None,
        failure_error_function: ToolErrorFunction | None = _UNSET,
        owned: bool = False,
        tool_filter: ToolFilter = None,
        cache_tools_list: bool | None = None,
        client_session_timeout_seconds: float = _UNSET,
        **extras: Unpack[Extras],
    ) -> None:
        _check_extras(extras)
        self._given, self._source = source, ToolSource(source, names)
        self._contexts = ContextResolver(context)
        self._name, self._owned = name, owned
        self._timeout = _call_timeout(client_session_timeout_seconds)
        self.tool_filter = tool_filter
        self._lists_again = cache_tools_list is False
        if self._lists_again and not self._source.is_live:
            text, remedy = "tools that were resolved before stay as they are", "Give the runtime"
            raise ConfigError(text, remedy=remedy, key="cache_tools_list")
        self._is_outdated = False
        """Whether `invalidate_tools_cache` was called since the last listing."""
        self.approval = _approval_check(require_approval)
        self._failure_function = failure_error_function
        super().__init__(require_approval=cast("Any", self.approval), **extras)

    def _get_failure_error_function(
        self, agent_failure_error_function: ToolErrorFunction | None
    ) -> ToolErrorFunction | None:
        """The SDK (0.24) asks this for each tool that it makes."""
        if self._failure_function is _UNSET:
            return _of_agent(agent_failure_error_function)
        return _with_own_error(self._failure_function)

    @property
    def name(self) -> str:
        return self._name

    @property
    def tool_filter(self) -> ToolFilter:
        """As in the SDK, it may be set at any time, and counts from the next listing on."""
        return self._tool_filter

    @tool_filter.setter
    def tool_filter(self, given: ToolFilter) -> None:
        self._is_filtered_out = _filter_of(given)
        self._tool_filter = given

    async def connect(self) -> None:
        """Open the runtime, unless it is open."""
        if self._source.is_live:
            await self._source.runtime.connect()

    async def cleanup(self) -> None:
        if self._owned and self._source.is_live:
            await self._source.runtime.aclose()

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
        await self._list_again()
        offered = await self._offered(run_context, agent)
        return [_definition(tool, strict=strict) for tool in offered]

    async def _offered(self, run: Run | None, agent: AgentBase | None) -> list[Tool]:
        found = await self._source.tools(await self._context(run))
        about = _FilterContext(run, agent, self._name)
        return [tool for tool in found if not await self._is_filtered_out(about, tool)]

    def invalidate_tools_cache(self) -> None:
        """Have the servers listed again before the next turn."""
        self._is_outdated = True

    async def _list_again(self) -> None:
        """List the servers again, if that is wanted. A server that fails keeps its last listing."""
        outdated, self._is_outdated = self._is_outdated, False
        if not (self._source.is_live and (outdated or self._lists_again)):
            return
        try:
            await self._source.runtime.refresh()
        except ToolkeepError as error:
            logger.warning("%s: listing the servers again failed: %s", self._name, error)

    def instructions(
        self, own: str = ""
    ) -> Callable[[RunContextWrapper[Any], Agent[Any]], Awaitable[str]]:
        """For `Agent(instructions=…)`: your own, and then those of the servers of its tools, marked
        as theirs."""

        async def instructions(run: RunContextWrapper[Any], agent: Agent[Any]) -> str:
            known = await instructions_by_server(self._given, await self._context(run))
            theirs = join_instructions(known, await self._offered(run, agent) if known else ())
            return "\n\n".join(part for part in (own, theirs) if part)

        return instructions

    async def call_tool(
        self,
        tool_name: str,
        arguments: dict[str, Any] | None,
        meta: dict[str, Any] | None = None,
    ) -> mcp_types.CallToolResult:
        run = self._run()
        context = await self._context(run)
        tool = await self._source.find(tool_name, context)
        given = strip_none(arguments or {}, tool.definition.input_schema)
        result = await tool.call(
            given,
            context=context,
            meta=meta,
            timeout=self._timeout,
            on_progress=_progress_handler(run, tool_name),
        )
        content = list(result.content)
        if result.is_error and not content:
            content.append(
                mcp_types.TextContent(type="text", text=tool_error_message(result, tool_name))
            )
        answer = mcp_types.CallToolResult(
            content=content, structured_content=result.data, is_error=result.is_error
        )
        return answer.model_copy(update={"meta": dict(result.meta) or None})

    @property
    def tool_meta_resolver(self) -> MCPToolMetaResolver | None:
        """Ours, which calls the user's. A property, so that setting it later does not make calls
        forget their run."""
        return self._remember_run

    @tool_meta_resolver.setter
    def tool_meta_resolver(self, given: MCPToolMetaResolver | None) -> None:
        self._meta = given

    async def _remember_run(self, call: MCPToolMetaContext) -> dict[str, Any] | None:
        """The SDK calls this right before `call_tool`, which does not get the run, and runs that in
        a copy of the context variables."""
        _RUN.set((self, call.run_context))
        try:
            made = self._meta(call) if self._meta else None
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            raise NotPermitted(f"{call.tool_name}: the resolver of its `_meta` failed") from error

    def _run(self) -> Run | None:
        server, run = _RUN.get()
        return run if server is self else None

    async def _context(self, run: Run | None) -> CallContext | None:
        return await self._contexts.resolve(run, None if run is None else run.context)

    # -- prompts and resources ------------------------------------------------------------------
    # `context` says for whom outside of a tool call: a `CallContext`, or the `RunContextWrapper`
    # that a function for instructions or a hook gets. What is listed are copies, which may be
    # changed.

    async def _context_of(self, given: CallContext | Run | None) -> CallContext | None:
        if isinstance(given, CallContext):
            return given
        return await self._context(self._run() if given is None else given)

    async def list_prompts(
        self, *, context: CallContext | Run | None = None
    ) -> mcp_types.ListPromptsResult:
        """All prompts, by their full names: `server.prompt`."""
        view = await self._source.runtime.catalogue_for(await self._context_of(context))
        found = [
            one.definition.model_copy(update={"name": one.name}, deep=True) for one in view.prompts
        ]
        return mcp_types.ListPromptsResult(prompts=found)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        context: CallContext | Run | None = None,
    ) -> mcp_types.GetPromptResult:
        whose = await self._context_of(context)
        return await self._source.runtime.get_prompt(name, arguments, context=whose)

    async def list_resources(
        self, cursor: str | None = None, *, context: CallContext | Run | None = None
    ) -> mcp_types.ListResourcesResult:
        """All resources, in one page."""
        view = await self._source.runtime.catalogue_for(await self._context_of(context))
        found = [one.definition.model_copy(deep=True) for one in view.resources]
        return mcp_types.ListResourcesResult(resources=found)

    async def list_resource_templates(
        self, cursor: str | None = None, *, context: CallContext | Run | None = None
    ) -> mcp_types.ListResourceTemplatesResult:
        view = await self._source.runtime.catalogue_for(await self._context_of(context))
        found = [one.definition.model_copy(deep=True) for one in view.templates]
        return mcp_types.ListResourceTemplatesResult(resource_templates=found)

    async def read_resource(
        self, uri: str, *, context: CallContext | Run | None = None
    ) -> mcp_types.ReadResourceResult:
        whose = await self._context_of(context)
        return await self._source.runtime.read_resource(uri, context=whose)


_RUN: ContextVar[tuple[RuntimeServer | None, Run | None]] = ContextVar("run", default=(None, None))


def _check_extras(extras: Mapping[str, Any]) -> None:
    for key in extras:
        if remedy := _ELSEWHERE.get(key):
            text = "a RuntimeServer does not take this option"
            raise ConfigError(text, remedy=remedy, key=key)


def _call_timeout(seconds: float) -> float | None:
    """The timeout of each call; None: that of the server."""
    if seconds is _UNSET:
        return None
    if not is_duration(seconds):
        key, remedy = (
            "client_session_timeout_seconds",
            "Set `timeouts` of the server for long calls",
        )
        text = "it must be a positive number of seconds: every call has a deadline"
        raise ConfigError(text, remedy=remedy, key=key)
    return seconds


async def tools(
    source: Source,
    names: Iterable[str] | None = None,
    *,
    context: ContextOption[Run] | None = None,
    require_approval: Approval = None,
    failure_error_function: ToolErrorFunction | None = describe_failure,
    client_session_timeout_seconds: float = _UNSET,
    strict: bool = True,
    **extras: Unpack[Extras],
) -> list[FunctionTool]:
    """Function tools for an agent's `tools`. The arguments are those of `RuntimeServer`.

    They are listed for `context`, if that is a `CallContext`, and called with the context of each
    run. An approval function gets None for the agent, which the SDK does not pass on.
    """
    given = source if isinstance(source, Runtime) else list(source)
    fixed = context if isinstance(context, CallContext) else None
    found = await ToolSource(given, names).tools(fixed)
    server = RuntimeServer(
        given,
        context=context,
        require_approval=require_approval,
        failure_error_function=failure_error_function,
        client_session_timeout_seconds=client_session_timeout_seconds,
        **extras,
    )
    return [_function_tool(server, tool, strict=strict) for tool in found]


def _function_tool(server: RuntimeServer, tool: Tool, *, strict: bool) -> FunctionTool:
    definition = _definition(tool, strict=strict)
    made = MCPUtil.to_function_tool(
        definition, server, strict and is_strict(definition.input_schema)
    )
    check = server.approval
    if callable(check):  # without an agent the SDK skips the function and always wants approval

        async def needs_approval(run: Run, arguments: dict[str, Any], call_id: str) -> bool:
            return await check(run, None, definition)

        made.needs_approval = needs_approval
    return made


def _definition(tool: Tool, *, strict: bool) -> mcp_types.Tool:
    """A deep copy of the definition, which the SDK, its filters and hooks may change."""
    given = tool.definition
    copied = given.copied() if isinstance(given, FrozenTool) else given.model_copy(deep=True)
    schema = tool.strict_schema() if strict else None
    changes: dict[str, Any] = {"name": tool.model_name, "description": tool.description or None}
    if schema is not None and is_strict(schema):
        changes["input_schema"] = schema
    return copied.model_copy(update=changes)


# -- filters ------------------------------------------------------------------------------------


class _FilterContext(NamedTuple):
    """For whom tools are listed."""

    run: Run | None
    agent: AgentBase | None
    server: str


_ToolCheck = Callable[[_FilterContext, Tool], Awaitable[bool]]
_FILTER_KEYS = frozenset({"allowed_tool_names", "blocked_tool_names"})


def _filter_of(given: ToolFilter) -> _ToolCheck:
    """Whether a tool is filtered out, by the SDK's two lists of names or by a function."""
    names = cast("dict[str, list[str]]", given) if isinstance(given, Mapping) else None
    if names is not None and names.keys() <= _FILTER_KEYS:
        return _filter_by_name(names.get("allowed_tool_names"), names.get("blocked_tool_names", ()))
    if given is None or callable(cast("object", given)):
        return _filter_by_function(cast("Any", given))
    remedy = "Give allowed_tool_names, blocked_tool_names, or a function"
    raise ConfigError(f"{given!r} is not a tool filter", remedy=remedy, key="tool_filter")


def _filter_by_name(allowed: Iterable[str] | None, blocked: Iterable[str]) -> _ToolCheck:
    permitted, refused = None if allowed is None else frozenset(allowed), frozenset(blocked)

    async def is_filtered_out(about: _FilterContext, tool: Tool) -> bool:
        names = {tool.name, tool.model_name, tool.definition.name}
        return bool(names & refused) or not (permitted is None or names & permitted)

    return is_filtered_out


def _filter_by_function(function: Callable[..., Any] | None) -> _ToolCheck:
    """A tool is also filtered out if the function fails."""

    async def is_filtered_out(about: _FilterContext, tool: Tool) -> bool:
        if function is None:
            return False
        if about.run is None or about.agent is None:
            raise NotPermitted("the tool filter is a function of a run and its agent; give both")
        context = ToolFilterContext(about.run, cast("Any", about.agent), about.server)
        try:
            wanted = function(context, _definition(tool, strict=False))
            return not (await wanted if inspect.isawaitable(wanted) else wanted)
        except Exception:
            logger.exception("%s: the tool filter failed, so it is not offered", tool.name)
            return True

    return is_filtered_out


# -- approval -----------------------------------------------------------------------------------

_ApprovalCheck = Callable[[Run, AgentBase | None, mcp_types.Tool], Awaitable[bool]]
_VERDICTS: Mapping[object, bool] = {"always": True, "never": False, True: True, False: False}


def _approval_check(policy: Approval) -> bool | _ApprovalCheck:
    """The policy as one answer for all tools, or as a function that fails closed."""
    if policy is None:
        return False
    if isinstance(policy, Mapping):
        given = _verdicts_by_tool(cast("Mapping[str, Any]", policy))
        return _check_by_name({_model_name(name): needed for name, needed in given.items()})
    return _check_by_function(policy) if callable(policy) else _verdict(policy)


def _verdict(value: object, tool: str = "") -> bool:
    if isinstance(value, str | bool) and value in _VERDICTS:
        return _VERDICTS[value]
    raise _invalid_policy(f"{value!r}{tool and f' for {tool!r}'} is not an approval policy")


def _verdicts_by_tool(given: Mapping[str, Any]) -> dict[str, bool]:
    """The mapping, also from the SDK's form `{"always": {"tool_names": […]}, "never": …}`. A tool
    may be called `always`, so the values tell the two forms apart."""
    if given.keys() - {"always", "never"} or not any(
        isinstance(v, Mapping) for v in given.values()
    ):
        return {str(name): _verdict(value, str(name)) for name, value in given.items()}
    always, never = (
        _tool_names(given.get(word, {"tool_names": []})) for word in ("always", "never")
    )
    if both := sorted(set(always) & set(never)):
        raise _invalid_policy(f"tools in both lists of the approval policy: {', '.join(both)}")
    return dict.fromkeys(never, False) | dict.fromkeys(always, True)


def _tool_names(value: object) -> list[str]:
    names: object = cast("Any", value).get("tool_names") if isinstance(value, Mapping) else None
    if not isinstance(names, list):
        raise _invalid_policy(f"{value!r} is not an approval policy's list of tools")
    return [str(name) for name in cast("list[object]", names)]


def _invalid_policy(what: str) -> ConfigError:
    remedy = "Say 'always', 'never', True or False, or give a mapping or a function"
    return ConfigError(what, key="require_approval", remedy=remedy)


def _model_name(name: str) -> str:
    pair = split_full_name(name)
    return name if pair is None else model_name(*pair)


def _check_by_name(verdicts: Mapping[str, bool]) -> _ApprovalCheck:
    async def needs_approval(run: Run, agent: AgentBase | None, tool: mcp_types.Tool) -> bool:
        return verdicts.get(tool.name, True)

    return needs_approval


def _check_by_function(policy: ApprovalFunction) -> _ApprovalCheck:
    async def needs_approval(run: Run, agent: AgentBase | None, tool: mcp_types.Tool) -> bool:
        try:
            verdict: object = policy(run, agent, tool)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        except Exception:
            logger.exception("%s: the approval function failed, so approval is required", tool.name)
            return True
        return verdict is not False

    return needs_approval


# -- progress -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """Progress that a tool's server reported, in the form of the SDK's own stream events."""

    tool_name: str
    tool_call_id: str
    progress: float
    total: float | None = None
    message: str | None = None
    type: Literal["tool_progress_stream_event"] = "tool_progress_stream_event"


class ProgressFeed:
    """The SDK's stream of one run, with the progress of its tools in it.

        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent, "…")
        async for event in feed.events(result): ...

    Includes the progress of agents that the run's tools start.
    """

    def __init__(self) -> None:
        self._unread = ReportBuffer[StreamEvent | ToolProgress | None](_size_of_progress)
        self._changed = asyncio.Event()
        self._token: Token[ProgressFeed | None] | None = None

    def __enter__(self) -> Self:
        self._token = _FEED.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _FEED.reset(self._token)
            self._token = None

    async def events(
        self, result: RunResultStreaming
    ) -> AsyncGenerator[StreamEvent | ToolProgress]:
        """The events of the run. Raises what the run raises. Leaving the loop early has the effect
        that it has on the SDK's own stream."""
        reading = asyncio.create_task(self._read(result))
        try:
            while (event := await self._next()) is not None:
                yield event
            await reading
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _next(self) -> StreamEvent | ToolProgress | None:
        while not self._unread:
            self._changed.clear()
            await self._changed.wait()
        return self._unread.popleft()

    def emit(self, event: StreamEvent | ToolProgress | None) -> None:
        """Add an event; None ends the stream. At most 8 MB of progress wait to be read: beyond that
        the oldest reports are dropped."""
        self._unread.append(event)
        self._changed.set()

    async def _read(self, result: RunResultStreaming) -> None:
        try:
            async for event in result.stream_events():
                self.emit(event)
        finally:
            self.emit(None)


def _size_of_progress(event: StreamEvent | ToolProgress | None) -> int | None:
    """The size of a progress report. The SDK bounds the other events."""
    return report_size(event) if isinstance(event, ToolProgress) else None


_FEED: ContextVar[ProgressFeed | None] = ContextVar("feed", default=None)


def _progress_handler(run: Run | None, name: str) -> OnProgress | None:
    """The progress handler of one call. None without a feed: the server is not asked to report."""
    feed = _FEED.get()
    if feed is None:
        return None
    called, call_id = name, ""
    if isinstance(run, ToolContext):
        called, call_id = run.tool_name, run.tool_call_id

    def report(progress: float, total: float | None, message: str | None) -> None:
        feed.emit(
            ToolProgress(
                tool_name=called,
                tool_call_id=call_id,
                progress=progress,
                total=total,
                message=message,
            )
        )

    return report


# -- sampling -----------------------------------------------------------------------------------


def sampling(model: str | Model) -> RequestHandler:
    """A handler for `Runtime(sampling=…)`: this model of the SDK answers the sampling requests of
    servers. The SDK has no setting for a server's stop sequences, so they are not passed on."""
    name = model if isinstance(model, str) else getattr(model, "model", type(model).__name__)

    async def ask(request: SamplingRequest) -> Sample:
        settings = ModelSettings(max_tokens=request.max_tokens, temperature=request.temperature)
        agent = Agent[None](
            name="sampling", instructions=request.system, model=model, model_settings=settings
        )
        items = [_sampling_item(message) for message in request.messages]
        said = await Runner.run(agent, items, max_turns=1)
        return Sample(str(said.final_output), str(name))

    return sampling_handler(ask)


def _sampling_item(message: SampledMessage) -> TResponseInputItem:
    if message.role == "assistant":
        texts = [part for part in message.parts if isinstance(part, str)]
        if len(texts) < len(message.parts):
            raise ValueError("media in a model's own messages cannot be passed on")
        return {"role": "assistant", "content": "\n".join(texts)}
    content: list[Any] = []
    for part in message.parts:
        if isinstance(part, str):
            content.append({"type": "input_text", "text": part})
        elif part.kind == "image":
            url = f"data:{part.mime_type};base64,{base64.b64encode(part.data).decode()}"
            content.append({"type": "input_image", "image_url": url, "detail": "auto"})
        else:
            raise ValueError("audio cannot be passed on to a model of the SDK")
    return {"role": "user", "content": content}
