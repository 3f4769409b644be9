"""LangChain and LangGraph: the tools of a runtime as `BaseTool`s.

- The schema of the arguments is the server's own JSON Schema. Results are LangChain's content
  blocks, and the structured content is the artifact.
- A failed call is told to the model in one sentence (`errors="tell"`: a tool message with the
  status "error"), or raised (`errors="raise"`: a `ToolkeepError`, or a `ToolException` for the
  tool's own error). A `ConfigError` is always raised, because no model can fix it. Cancellation
  cancels the call, and is raised.
- Progress goes to LangGraph's stream writer (`stream_mode="custom"`), and to callbacks as the
  custom event `toolkeep.progress`.
- The run (`RunnableConfig`) says on whose behalf a call is made; see `context_from`.
- With `interrupts=True` a server's request for input interrupts the graph. That needs a runtime
  with `elicitation="caller"` and a graph with a checkpointer; otherwise the runtime answers. So
  does a call that needs a login, if the server's `auth` has a `redirect_uri`.
- `live_tools` gives the model the instructions of the servers; with `tools`, put what
  `instructions` returns into the system prompt.
- `sampling` makes a handler that has a chat model answer a server's sampling requests.

Needs langchain-core. LangGraph is imported only where it is in use, LangChain only by `live_tools`.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, PrivateAttr
from typing_extensions import TypedDict

from toolkeep._catalogue.tool import Tool, ToolCaller
from toolkeep._client.call import Call
from toolkeep._client.server_requests import RequestHandler
from toolkeep._rules.json_schema import strip_none
from toolkeep.adapters._common import (
    ContextOption,
    ContextResolver,
    Media,
    Sample,
    SampledMessage,
    SamplingRequest,
    begin_login,
    check_errors_option,
    error_message,
    instructions_by_server,
    join_instructions,
    resolve_tools,
    sampling_handler,
    server_instructions,
    tool_error_message,
)
from toolkeep.context import CallContext
from toolkeep.errors import (
    AuthNeeded,
    CallOutcomeUnknown,
    ConfigError,
    Delivery,
    InputNotGiven,
    ToolkeepError,
    UnknownTool,
)
from toolkeep.events import InputNeeded, Progress
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

try:
    from langchain_core.callbacks import AsyncCallbackManagerForToolRun, adispatch_custom_event
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
    )
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import ensure_config
    from langchain_core.tools import BaseTool, ToolException
except ImportError as missing:
    remedy = "Install toolkeep with its extra `langchain`"
    raise ConfigError("langchain-core is not installed", remedy=remedy) from missing

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

__all__ = [
    "Answer",
    "McpTool",
    "context_from",
    "instructions",
    "live_tools",
    "sampling",
    "tools",
]

RunContext = ContextOption[RunnableConfig]
"""The context of every call, or a function from the run's configuration to it."""

PROGRESS_EVENT = "toolkeep.progress"
MAX_ROUNDS = 10
"""Rounds of input for one call. The SDKs have the same limit."""
MAX_PENDING_CALLS = 1000
"""Calls of one runtime that wait for a user. A new one ends the oldest."""
_STATE_ONLY_PAUSE = 0.1
"""Seconds before the next round, when the server sent a state and no requests."""
_CONTEXT_IDS = ("user_id", "session_id", "execution_id", "trace_id")
_ELICITATION = "elicitation/create"


async def tools(
    source: Runtime | Iterable[Tool],
    names: Iterable[str] | None = None,
    context: RunContext | None = None,
    *,
    errors: Literal["tell", "raise"] = "tell",
    interrupts: bool = False,
    strict: bool = False,
    timeout: float | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> list[BaseTool]:
    """The tools of a runtime, all or those of these names, or tools that it has resolved.

    `context`: see `context_from`. `strict`: schemas for the strict mode of providers. `metadata` is
    added to that of each tool.
    """
    check_errors_option(errors)
    options = ToolOptions(context, errors, interrupts, strict, timeout, dict(metadata or {}))
    fixed = context if isinstance(context, CallContext) else None
    return [McpTool(tool, options) for tool in await resolve_tools(source, names, fixed)]


async def instructions(
    runtime: Runtime, names: Iterable[str] | None = None, context: CallContext | None = None
) -> str:
    """The instructions of the servers of these tools, for the agent's system prompt: each marked as
    its server's words. Empty if no server gives any."""
    return await server_instructions(runtime, names, context)


def live_tools(
    runtime: Runtime,
    names: Iterable[str] | None = None,
    context: RunContext | None = None,
    *,
    instructions: bool = True,
    **options: Any,
) -> AgentMiddleware[Any, Any, Any]:
    """Middleware for agents whose tools follow the catalogue: `create_agent(…,
    middleware=[live_tools(runtime)])`.

    Each call of the model sees the tools that the run's context may see at that time, and with
    `instructions` what their servers say about them, after the system prompt. Other tools of the
    agent are left as they are. Takes the options of `tools`. Names that no tool has at the time are
    left out.
    """
    from langchain.agents.middleware import AgentMiddleware

    wanted = None if names is None else frozenset(names)

    async def current_tools() -> tuple[list[BaseTool], str]:
        whose = await _resolve_context(context, ensure_config())
        seen = [
            tool
            for tool in await runtime.catalogue_for(whose)
            if wanted is None or not wanted.isdisjoint((tool.name, tool.model_name, tool.tool))
        ]
        known = await instructions_by_server(runtime, whose) if instructions else {}
        made = await tools(await runtime.resolve(seen, whose), context=context, **options)
        return made, join_instructions(known, seen)

    class LiveTools(AgentMiddleware[Any, Any, Any]):
        """Serves all runs of an agent at once."""

        async def awrap_model_call(
            self,
            request: ModelRequest[Any],
            handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
        ) -> ModelResponse[Any] | AIMessage | Any:
            current, notes = await current_tools()
            others = [tool for tool in request.tools if not isinstance(tool, McpTool)]
            changed = request.override(tools=[*others, *current])
            if notes:
                changed = changed.override(system_message=_extended(request.system_message, notes))
            return await handler(changed)

        async def awrap_tool_call(
            self,
            request: ToolCallRequest,
            handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
        ) -> ToolMessage | Command[Any]:
            if request.tool is not None and not isinstance(request.tool, McpTool):
                return await handler(request)
            name, call_id = request.tool_call["name"], cast("str", request.tool_call["id"])
            for tool in (await current_tools())[0]:
                if tool.name == name:
                    return await handler(request.override(tool=tool))
            message = error_message(UnknownTool(f"there is no tool {name[:200]!r}"), name)
            return ToolMessage(message, name=name, tool_call_id=call_id, status="error")

    return LiveTools()


def _extended(message: SystemMessage | None, notes: str) -> SystemMessage:
    """The system message with notes after it; blocks that a provider caches stay as they are."""
    if message is None:
        return SystemMessage(notes)
    return message.model_copy(
        update={"content": [*message.content_blocks, {"type": "text", "text": notes}]}
    )


# -- on whose behalf ----------------------------------------------------------------------------


def context_from(config: RunnableConfig, base: CallContext | None = None) -> CallContext | None:
    """The context that a run asks for in its `configurable`, on top of that of the tools (`base`).

    The run gives a whole context (`toolkeep`: a `CallContext`), or any of `principal`, `headers`,
    `user_id`, `session_id` (by default the thread's id), `execution_id` and `trace_id`. A principal
    and headers belong together: a run that gives either takes neither from `base`.
    """
    given = cast("Mapping[str, Any]", config.get("configurable") or {})
    whole = given.get("toolkeep")
    if isinstance(whole, CallContext):
        return whole
    found: dict[str, Any] = {}
    if "principal" in given or "headers" in given:
        found = {"principal": given.get("principal"), "headers": given.get("headers") or {}}
    found |= {key: str(given[key]) for key in _CONTEXT_IDS if given.get(key)}
    if "thread_id" in given and "session_id" not in found and not (base and base.session_id):
        found["session_id"] = str(given["thread_id"])
    return replace(base or CallContext(), **found) if found else base


async def _resolve_context(given: RunContext | None, config: RunnableConfig) -> CallContext | None:
    if given is None or isinstance(given, CallContext):
        return context_from(config, given)
    return await ContextResolver(given).resolve(config, None)


# -- one tool -----------------------------------------------------------------------------------

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]
Outcome = dict[str, Any]
"""Of a call or one round of it, as plain data for a checkpoint: `{"raw": …}` (the result),
`{"error": …}` (for the model), or `{"asked": …}` with `state` or `pending`."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of `tools`."""

    context: RunContext | None
    errors: Literal["tell", "raise"]
    interrupts: bool
    strict: bool
    timeout: float | None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Invocation:
    """One call of a tool in a thread: everything that is the same in each of its rounds."""

    tool: Tool
    arguments: Mapping[str, Any]
    context: CallContext | None
    thread: str
    tool_call_id: str | None
    report: ReportProgress
    options: Mapping[str, Any]

    @property
    def owner(self) -> tuple[str, str | None, str | None]:
        return self.thread, self.tool_call_id, self.context and self.context.principal

    @property
    def about(self) -> dict[str, Any]:
        """What each interrupt says of the call."""
        tool = self.tool
        named = {"tool": tool.model_name, "server": tool.server}
        return {**named, "tool_call_id": self.tool_call_id}

    @property
    def caller(self) -> ToolCaller:
        assert self.tool.caller is not None, "only resolved tools are called"
        return self.tool.caller


class McpTool(BaseTool):
    """One tool. Made by `tools`; any number of runs may call it at once."""

    _tool: Tool = PrivateAttr()
    _options: ToolOptions = PrivateAttr()

    def __init__(self, tool: Tool, options: ToolOptions) -> None:
        schema = tool.strict_schema() if options.strict else tool.input_schema
        super().__init__(
            name=tool.model_name,
            description=tool.description,
            args_schema={"properties": {}, **schema},  # LangChain expects `properties`
            response_format="content_and_artifact",
            handle_tool_error=options.errors == "tell",
            tags=sorted(tool.tags) or None,
            metadata=_metadata(tool) | options.metadata,
        )
        self._tool, self._options = tool, options

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} is asynchronous: use ainvoke, astream or abatch")

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        # In one argument: a tool may have arguments named `config` or `run_manager`.
        arguments = self._parse_input(tool_input, tool_call_id)
        return (), {"arguments": arguments, "tool_call_id": tool_call_id}

    async def _arun(
        self,
        arguments: dict[str, Any],
        tool_call_id: str | None,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
    ) -> tuple[Content, Any]:
        thread = _current_thread() if self._options.interrupts else None
        timeout = self._options.timeout
        invocation = _Invocation(
            tool=self._tool,
            arguments=strip_none(arguments, self._tool.definition.input_schema),
            context=await self._context(config),
            thread=thread or "",
            tool_call_id=tool_call_id,
            report=functools.partial(self._report, _progress_sinks(run_manager), tool_call_id),
            options={} if timeout is None else {"timeout": timeout},
        )
        if thread is None:
            outcome = await self._guarded(functools.partial(_call, invocation))
        else:
            outcome = await _call_with_interrupts(invocation, self._guarded)
        return self._formatted(outcome)

    async def _context(self, config: RunnableConfig) -> CallContext | None:
        try:
            return await _resolve_context(self._options.context, config)
        except ConfigError:
            raise
        except ToolkeepError as error:
            if self._options.errors == "raise":
                raise
            raise ToolException(error_message(error, self.name)) from error

    async def _guarded(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        try:
            return await call()
        except ConfigError:
            raise
        except ToolkeepError as error:
            if self._options.errors == "raise":
                raise
            return {"error": error_message(error, self.name)}

    def _formatted(self, outcome: Outcome) -> tuple[Content, Any]:
        if "error" in outcome:
            raise ToolException(outcome["error"])
        server, tool = self._tool.key
        result = CallResult(outcome["raw"], server, tool)
        content = _content(result)
        if result.is_error:
            raise ToolException(content or tool_error_message(result, self.name))
        return content, result.data

    async def _report(
        self,
        sinks: tuple[Callable[[Any], None] | None, RunnableConfig | None],
        tool_call_id: str | None,
        progress: float,
        total: float | None,
        message: str | None,
    ) -> None:
        server, tool = self._tool.key
        about: dict[str, Any] = {"server": server, "tool": tool, "call_id": tool_call_id or ""}
        event = Progress(progress=progress, total=total, message=message, **about).as_dict()
        write, config = sinks
        if write is not None:
            write(event)
        if config is not None:
            await adispatch_custom_event(PROGRESS_EVENT, event, config=config)


async def _call(invocation: _Invocation) -> Outcome:
    """The whole call, without interrupts: the runtime answers requests for input."""
    result = await invocation.tool.call(
        invocation.arguments,
        context=invocation.context,
        on_progress=invocation.report,
        **invocation.options,
    )
    return {"raw": result.raw}


def _progress_sinks(
    run_manager: AsyncCallbackManagerForToolRun | None,
) -> tuple[Callable[[Any], None] | None, RunnableConfig | None]:
    """Where this run reports progress: the graph's stream, and the callbacks."""
    config = run_manager and ensure_config({"callbacks": run_manager.get_child()})
    try:
        from langgraph.config import get_stream_writer

        return get_stream_writer(), config
    except (ImportError, RuntimeError, KeyError):  # not in a graph
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


# -- interrupts ---------------------------------------------------------------------------------
#
# When an interrupted node is resumed, LangGraph runs it again from its start, maybe in another
# process. The tool must not run twice, so each round of a call is a LangGraph task: its outcome is
# in the thread's checkpoint, and is read from there the next time. A round ends with the result, or
# with requests for input:
#
# - A modern server keeps nothing: the next round brings it the answers and its `requestState`.
# - A legacy server waits: its call stays open in this process, under an id that is in the
#   checkpoint. If it is no longer open here (another process, closed, too many), its outcome is
#   unknown: that is reported, and the tool is not called again.

Guard = Callable[[Callable[[], Awaitable[Outcome]]], Awaitable[Outcome]]
"""Runs a round, and may turn its failure into an outcome."""


class Answer(BaseModel):
    """The value that resumes an interrupt: the user's answer. `content` is the completed form."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class _PendingCall:
    """A call that runs, or waits for an answer. Between two rounds no run reads its events."""

    def __init__(self, invocation: _Invocation) -> None:
        self.owner, self.report = invocation.owner, invocation.report
        self.stack = AsyncExitStack()
        self.call: Call | None = None
        self.question: InputNeeded | None = None
        self.outcome: Outcome | None = None
        self.waiting: asyncio.Task[None] | None = None

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        await self.report(progress, total, message)  # that of the current round

    async def wait(self, discard: Callable[[], object]) -> None:
        """Between two rounds: end with the call, which ends when its question times out or its
        runtime closes. A pending call must not keep its runtime alive.
        """
        assert self.call is not None
        try:
            self.outcome = _outcome(await self.call.result())
        except ToolkeepError:
            discard()
        await self.stack.aclose()
        self.call = self.question = None


_pending_calls: WeakKeyDictionary[ToolCaller, OrderedDict[str, _PendingCall]] = WeakKeyDictionary()


def _current_thread() -> str | None:
    """The thread of the graph that runs here; None if there is nothing to interrupt."""
    try:
        from langgraph.runtime import get_runtime

        info = get_runtime().execution_info
    except (ImportError, RuntimeError, AttributeError):
        return None
    return None if info is None else info.thread_id


async def _call_with_interrupts(invocation: _Invocation, guard: Guard) -> Outcome:
    """All rounds of a call, with the interrupts between. Raises LangGraph's `GraphInterrupt`."""
    outcome: Outcome = {}
    answers: dict[str, Any] | None = None
    for _ in range(MAX_ROUNDS):
        outcome = await _checkpointed_round(invocation, outcome, answers, guard)
        if "login" in outcome:
            answers = {"login": _interrupt_for_login(invocation, outcome["login"])}
        elif "asked" in outcome:
            answers = _interrupt(invocation, outcome["asked"])
        else:
            return outcome
    asked = outcome.get("asked", {})
    return await guard(functools.partial(_too_many_rounds, invocation, asked))


async def _too_many_rounds(invocation: _Invocation, asked: Mapping[str, Any]) -> Outcome:
    raise InputNotGiven(
        f"{invocation.tool.name[:200]} still asks for input after {MAX_ROUNDS} rounds",
        server=invocation.tool.server,
        tool=invocation.tool.tool,
        requests=asked,
    )


async def _checkpointed_round(
    invocation: _Invocation, before: Outcome, answers: dict[str, Any] | None, guard: Guard
) -> Outcome:
    from langgraph.func import task  # pyright: ignore[reportMissingTypeStubs]

    # A closure without arguments, because tracing shows the arguments of a task.
    async def toolkeep_call() -> Outcome:
        return await guard(lambda: _round_or_login(invocation, before, answers))

    return await cast("Awaitable[Outcome]", task(toolkeep_call)())


def _interrupt_for_login(invocation: _Invocation, login: Mapping[str, Any]) -> Any:
    """What resumes the graph: the URL that the browser came back to, or anything else if the
    application has given it to `Runtime.complete_login`."""
    from langgraph.types import interrupt

    shown = {"url": login["url"], "expires": login["expires"]}
    return interrupt({**invocation.about, "login": shown})


def _interrupt(invocation: _Invocation, asked: Mapping[str, Any]) -> dict[str, Any]:
    from langgraph.types import interrupt

    value = {**invocation.about, "questions": asked}
    kinds = {
        key: Answer if request.get("method") == _ELICITATION else dict[str, Any]
        for key, request in asked.items()
    }
    # LangGraph checks the schema: after an invalid resume the question can be answered again.
    if len(kinds) == 1:
        [(key, kind)] = kinds.items()
        return {key: _to_wire(interrupt(value, response_schema=cast("type[Any]", kind)))}
    form = cast("Any", TypedDict)("Answers", kinds)
    given = interrupt(value, response_schema=cast("type[dict[str, Any]]", form))
    return {key: _to_wire(answer) for key, answer in given.items()}


def _to_wire(answer: Any) -> Any:
    return answer.model_dump(exclude_none=True) if isinstance(answer, Answer) else answer


async def _round_or_login(
    invocation: _Invocation, before: Outcome, answers: dict[str, Any] | None
) -> Outcome:
    """A round; if the first one needs a login, the login that has begun."""
    if "login" in before:
        callback, principal = (answers or {})["login"], before["login"]["principal"]
        if isinstance(callback, str):
            runtime = cast("Any", invocation.caller)
            await runtime.complete_login(callback, principal=principal)
        before, answers = {}, None
    try:
        return await _round(invocation, before, answers)
    except AuthNeeded as error:
        login = None if before else await begin_login(invocation.caller, error)
        if login is None:
            raise
        begun = {"url": login.url, "expires": login.expires, "principal": error.principal}
        return {"login": begun}


async def _round(
    invocation: _Invocation, before: Outcome, answers: dict[str, Any] | None
) -> Outcome:
    if "pending" in before:
        pending = _take(invocation, before["pending"])
        if pending.question is None:
            return pending.outcome or {}
        pending.report = invocation.report
        pending.question.respond(next(iter((answers or {}).values()), None))
        return await _follow(invocation, pending)
    state = before.get("state")
    for _ in range(MAX_ROUNDS):
        outcome = await _follow(invocation, await _start(invocation, answers, state))
        if outcome.get("asked", True):
            return outcome
        answers, state = None, outcome["state"]
        await asyncio.sleep(_STATE_ONLY_PAUSE)
    return await _too_many_rounds(invocation, {})


async def _start(
    invocation: _Invocation, answers: dict[str, Any] | None, state: str | None
) -> _PendingCall:
    pending = _PendingCall(invocation)
    more: dict[str, Any] = {"input_responses": answers, "request_state": state}
    call = invocation.tool.stream(
        invocation.arguments,
        context=invocation.context,
        on_progress=pending.on_progress,
        input="return",
        **more,
        **invocation.options,
    )
    pending.call = await pending.stack.enter_async_context(call)
    return pending


async def _follow(invocation: _Invocation, pending: _PendingCall) -> Outcome:
    """Read the call's events until it ends or asks for input. Cancelling this cancels the call."""
    assert pending.call is not None
    async with pending.stack as stack:
        async for event in pending.call:
            if isinstance(event, InputNeeded) and event.method == _ELICITATION:
                pending.question, pending.stack = event, stack.pop_all()
                call_id = await _keep(invocation, pending)
                asked = {"elicitation": {"method": event.method, "params": dict(event.params)}}
                return {"asked": asked, "pending": call_id}
        return _outcome(await pending.call.result())


def _outcome(result: CallResult) -> Outcome:
    if result.needs_input:
        return {"asked": dict(result.input_requests), "state": result.request_state}
    return {"raw": dict(result.raw), "attempts": result.attempts, "duration": result.duration}


async def _keep(invocation: _Invocation, pending: _PendingCall) -> str:
    calls = _pending_calls.setdefault(invocation.caller, OrderedDict())
    call_id = uuid.uuid4().hex
    calls[call_id] = pending
    pending.waiting = asyncio.create_task(pending.wait(lambda: calls.pop(call_id, None)))
    if len(calls) > MAX_PENDING_CALLS:
        _, oldest = calls.popitem(last=False)
        await oldest.stack.aclose()  # which also ends its waiting task
    return call_id


def _take(invocation: _Invocation, call_id: str) -> _PendingCall:
    calls = _pending_calls.get(invocation.caller, OrderedDict())
    pending = calls.get(call_id)
    if pending is not None and pending.owner == invocation.owner:
        if pending.waiting is not None:
            pending.waiting.cancel()
        return calls.pop(call_id)
    text = f"{invocation.tool.name[:200]} asked for input, and is no longer open in this process"
    raise CallOutcomeUnknown(
        f"{text}. It may have run",
        server=invocation.tool.server,
        tool=invocation.tool.tool,
        attempts=1,
        delivery=Delivery.UNKNOWN,
    )


# -- results ------------------------------------------------------------------------------------

Block = dict[str, Any]
Content = str | list[Block]


def _content(result: CallResult) -> Content:
    """The result as LangChain's content: a single text as a string, which every provider takes, all
    else as standard content blocks. Fetches nothing and leaves nothing out.
    """
    sent = cast("list[Mapping[str, Any]]", result.raw.get("content") or [])
    blocks = [_block(one) for one in sent]
    if not blocks:
        return "" if result.data is None else json.dumps(result.data, ensure_ascii=False)
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return cast("str", blocks[0]["text"])
    return blocks


def _block(sent: Mapping[str, Any]) -> Block:
    match sent.get("type"):
        case "text":
            return {"type": "text", "text": sent.get("text", "")}
        case "image" | "audio":
            return _media(sent, base64=sent.get("data", ""))
        case "resource_link":
            extras = {key: sent[key] for key in ("name", "title", "description") if key in sent}
            return {**_media(sent, url=sent.get("uri", "")), "extras": extras}
        case "resource":
            return _embedded(cast("Mapping[str, Any]", sent.get("resource") or {}))
        case _:
            return {"type": "text", "text": json.dumps(sent, ensure_ascii=False)}


def _embedded(resource: Mapping[str, Any]) -> Block:
    extras = {"extras": {"uri": resource.get("uri", "")}}
    if "blob" in resource:
        return {**_media(resource, base64=resource["blob"]), **extras}
    return {"type": "text", "text": resource.get("text", ""), **extras}


def _media(sent: Mapping[str, Any], **location: str) -> Block:
    # Audio becomes a file: `ToolNode` (langgraph-prebuilt 1.1.1) and `BaseTool` (core 1.7.2) write
    # a message with a block of the type "audio" out as JSON text, sound included.
    kind = sent.get("mimeType") or ("image/*" if sent.get("type") == "image" else None)
    block: Block = {"type": "image" if str(kind).startswith("image/") else "file", **location}
    if kind is not None or "base64" in location:
        block["mime_type"] = kind or "application/octet-stream"
    return block


# -- sampling -----------------------------------------------------------------------------------


def sampling(model: BaseChatModel) -> RequestHandler:
    """A handler for `Runtime(sampling=…)`: this chat model answers the sampling requests of
    servers. The server's limits go to the model as `max_tokens`, `temperature` and `stop`."""

    async def ask(request: SamplingRequest) -> Sample:
        messages = [_sampling_message(message) for message in request.messages]
        if request.system:
            messages.insert(0, SystemMessage(request.system))
        limits: dict[str, Any] = {"max_tokens": request.max_tokens}
        if request.temperature is not None:
            limits["temperature"] = request.temperature
        said = await model.ainvoke(messages, stop=list(request.stop) or None, **limits)
        about = cast("dict[str, Any]", said.response_metadata)
        name = about.get("model_name") or about.get("model") or type(model).__name__
        why = about.get("finish_reason") or about.get("stop_reason")
        return Sample(str(said.text), str(name), why in ("length", "max_tokens", "MAX_TOKENS"))

    return sampling_handler(ask)


def _sampling_message(message: SampledMessage) -> BaseMessage:
    blocks: list[Any] = [
        {
            "type": part.kind,
            "base64": base64.b64encode(part.data).decode(),
            "mime_type": part.mime_type,
        }
        if isinstance(part, Media)
        else {"type": "text", "text": part}
        for part in message.parts
    ]
    make = HumanMessage if message.role == "user" else AIMessage
    return make(content=blocks)
