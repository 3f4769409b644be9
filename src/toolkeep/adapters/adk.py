"""Google ADK: the tools of a runtime for its agents.

`tools` makes a list for a new agent, and `update_tools` replaces it. A `Toolset` follows the
catalogue: it is asked before every turn of the model.

- A tool is declared with its server's own schema and description, under its name for models.
- A call is made for ADK's user (`call_context`), unless `context` says otherwise.
- The model gets `{status: "success", result, tool_name, namespace, execution_time}`, with `media`
  and `resources` if there are any, or `{status: "error", error, tool_name, namespace}`. `tool_name`
  is the full name, `namespace` the server. With `errors="raise"` a call without a result raises.
- The model is given the instructions of the servers whose tools it has (`instructions=False`: not).
  `sampling` makes a handler that has a model of ADK answer a server's sampling requests.
- Progress, log lines and retries are partial events of ADK's own stream, in `custom_metadata`
  under `toolkeep`. They are shown as they arrive, and are not stored in the session.
- The runtime's functions answer a server's requests for input. ADK offers no way to ask its user:
  with `elicitation="caller"` the requests are declined.
- A call that needs a login requests a credential of ADK's user, if the server's `auth` has a
  `redirect_uri`. The address to open is the credential's `auth_uri`; the `auth_response_uri` that
  comes back completes the login, and the call is made.
- A call that needs a confirmation never runs without one. A cancelled run cancels its calls, and
  the model gets no answer for them.
- If tools cannot be listed, the model is told so, or the error is raised.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import inspect
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.server_requests import RequestHandler
from toolkeep._rules.json_schema import strip_none
from toolkeep.adapters._common import (
    Media,
    Sample,
    SampledMessage,
    SamplingRequest,
    begin_login,
    check_errors_option,
    error_message,
    instructions_by_server,
    resolve_tools,
    sampling_handler,
    tool_error_message,
)
from toolkeep.context import CallContext
from toolkeep.errors import AuthNeeded, ConfigError, ToolkeepError, UnknownTool
from toolkeep.events import InputNeeded, Log, Progress, Retrying
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

try:
    from fastapi.openapi.models import OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
    from google.adk.auth.auth_tool import AuthConfig
    from google.adk.events.event import Event
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.registry import LLMRegistry
    from google.adk.sessions.state import State
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
    from google.adk.tools.tool_context import ToolContext
    from google.adk.workflow import BaseNode
    from google.genai import types
except ImportError as missing:
    remedy = "Install toolkeep with its extra `adk`"
    raise ConfigError("Google ADK 2 is not installed", remedy=remedy) from missing

__all__ = ["ADKTool", "Options", "Toolset", "call_context", "sampling", "tools", "update_tools"]

logger = logging.getLogger("toolkeep.adapters")

LOGIN_REQUESTED = "The user has been asked to log in. The tool has not run."


# -- options ----------------------------------------------------------------------------------

ContextFunction = Callable[[ReadonlyContext], CallContext | Awaitable[CallContext]]
"""From ADK's context to the context of a call. `CallContext()` calls without an identity."""
ConfirmationFunction = Callable[[Tool, Mapping[str, Any], ToolContext], bool | Awaitable[bool]]
"""Whether a call of a tool must be confirmed."""


class Options(TypedDict, total=False):
    """How tools are called. Every option can be left out."""

    context: CallContext | ContextFunction | None
    """For whom to call. ADK's context fills what a `CallContext` leaves open; the result of a
    function is used as it is."""
    require_confirmation: bool | Literal["destructive"] | ConfirmationFunction
    """Which calls wait for ADK's confirmation. `"destructive"`: those of all tools, except tools
    that their server marks as not destructive. By default none, as in ADK."""
    errors: Literal["tell", "raise"]
    """Whether a call without a result is told to the model (the default) or raised."""
    instructions: bool
    """Whether the model is given the instructions of the tools' servers. By default it is."""


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The options, checked, with their defaults."""

    context: CallContext | ContextFunction | None = None
    require_confirmation: bool | Literal["destructive"] | ConfirmationFunction = False
    errors: Literal["tell", "raise"] = "tell"
    instructions: bool = True

    def __post_init__(self) -> None:
        context, confirm = cast("Any", self.context), cast("Any", self.require_confirmation)
        if not (context is None or isinstance(context, CallContext) or callable(context)):
            what = "the context must be a CallContext or a function"
            raise ConfigError(what, key="context", remedy="See Options")
        if not (isinstance(confirm, bool) or confirm == "destructive" or callable(confirm)):
            what = "require_confirmation must be a bool, 'destructive' or a function"
            raise ConfigError(what, key="require_confirmation", remedy="See Options")
        check_errors_option(self.errors)

    @property
    def fixed_context(self) -> CallContext | None:
        """The context that does not depend on a run."""
        return self.context if isinstance(self.context, CallContext) else None

    def tells_model(self, error: Exception) -> bool:
        """Whether the model is told of this error. No model can fix a `ConfigError`."""
        ours = isinstance(error, ToolkeepError) and not isinstance(error, ConfigError)
        return ours and self.errors == "tell"

    async def resolve_context(self, adk: ReadonlyContext, base: CallContext | None) -> CallContext:
        if self.context is None or isinstance(self.context, CallContext):
            return call_context(adk, self.context or base)
        made: Any = self.context(adk)
        made = await made if inspect.isawaitable(made) else made
        if isinstance(made, CallContext):
            return made
        what = "the function for the context must return a CallContext"
        raise ConfigError(what, key="context")

    async def must_confirm(self, tool: Tool, args: dict[str, Any], adk: ToolContext) -> bool:
        match self.require_confirmation:
            case bool(always):
                return always
            case "destructive":
                return tool.destructive
            case function:
                answer = function(tool, args, adk)
                return bool(await answer if inspect.isawaitable(answer) else answer)


def call_context(adk: ReadonlyContext, base: CallContext | None = None) -> CallContext:
    """The context of ADK's user, session and invocation, below what `base` gives. Filters and
    permissions find `app`, `agent` and `state` in the metadata."""
    base, state = base or CallContext(), cast("object", adk.state)
    known = state.to_dict() if isinstance(state, State) else dict(cast("Any", state))
    found = {"app": adk.session.app_name, "agent": adk.agent_name, "state": known}
    return replace(
        base,
        principal=base.principal or adk.user_id or None,
        user_id=base.user_id or adk.user_id or None,
        session_id=base.session_id or adk.session.id or None,
        execution_id=base.execution_id or adk.invocation_id or None,
        metadata={**found, **base.metadata},
    )


# -- tools ------------------------------------------------------------------------------------


async def tools(
    source: Runtime | Iterable[Tool], names: Iterable[str] | None = None, **options: Unpack[Options]
) -> list[ADKTool]:
    """Tools for `Agent(tools=[…])`: those of a runtime, all or those of these names, or tools that
    it has resolved. Raises `UnknownTool` with all names that are missing."""
    return await _make(source, names, CheckedOptions(**options))


async def update_tools(
    agent: LlmAgent,
    source: Runtime | Iterable[Tool],
    names: Iterable[str] | None = None,
    **options: Unpack[Options],
) -> None:
    """Replace the tools that `tools` made by these, from the next turn of the model on. The agent's
    other tools stay. Options that are not given keep their values."""
    current = cast("list[Any]", cast("Any", agent).tools)
    before = next((tool.options for tool in current if isinstance(tool, ADKTool)), CheckedOptions())
    made = await _make(source, names, replace(before, **options))
    current = cast("list[Any]", cast("Any", agent).tools)  # read again: it may have changed
    agent.tools = [*(tool for tool in current if not isinstance(tool, ADKTool)), *made]


async def _make(
    source: Runtime | Iterable[Tool], names: Iterable[str] | None, options: CheckedOptions
) -> list[ADKTool]:
    found = await resolve_tools(source, names, options.fixed_context)
    made = await _convert(source, found, options.fixed_context, options)
    logger.info("%d tools converted for ADK: %s", len(made), ", ".join(t.tool.name for t in made))
    return made


async def _convert(
    source: Runtime | Iterable[Tool],
    found: Iterable[Tool],
    context: CallContext | None,
    options: CheckedOptions,
) -> list[ADKTool]:
    known = await instructions_by_server(source, context) if options.instructions else {}
    return [ADKTool(tool, options, known.get(tool.server, "")) for tool in found]


class ADKTool(BaseTool):
    """One tool, for any number of agents and runs. ADK's prefixes may change its name.
    `instructions` are those of its server."""

    def __init__(self, tool: Tool, options: CheckedOptions, instructions: str = "") -> None:
        about = {"server": tool.server, "tool": tool.tool, "title": tool.title}
        super().__init__(name=tool.model_name, description=tool.description, custom_metadata=about)
        self.tool, self.options, self.instructions = tool, options, instructions

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        # ADK asks each tool of a request; tools of one server add its instructions once.
        said: Any = cast("Any", llm_request.config).system_instruction
        if self.instructions and self.instructions not in str(said or ""):
            llm_request.append_instructions([self.instructions])

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            # A copy: changes that ADK makes to a declaration must not reach the catalogue.
            parameters_json_schema=copy.deepcopy(self.tool.input_schema),
        )

    async def check_require_confirmation(
        self, args: dict[str, Any], tool_context: ToolContext
    ) -> bool:
        return await self.options.must_confirm(self.tool, args, tool_context)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        # Checked here as well, whether or not ADK has checked it.
        if await self.check_require_confirmation(args, tool_context):
            confirmation = tool_context.tool_confirmation
            if confirmation is None or not confirmation.confirmed:
                return self._error(f"{self.name} was not called: it has not been confirmed.")
        try:
            context = await self.options.resolve_context(tool_context, self.tool.context)
            given = strip_none(args, self.tool.definition.input_schema)
            try:
                result = await self._call(given, context, tool_context)
            except AuthNeeded as error:
                if not await _log_in(self.tool.caller, error, tool_context):
                    raise
                result = await self._call(given, context, tool_context)
        except _LoginRequested:
            return {"status": "pending", "message": LOGIN_REQUESTED, **self._about()}
        except ToolkeepError as error:
            if not self.options.tells_model(error):
                raise
            return self._error(error_message(error, self.name))
        if result.is_error:
            return self._error(tool_error_message(result, self.name))
        return {
            "status": "success",
            **_content(result),
            **self._about(),
            "execution_time": result.duration,
        }

    async def _call(
        self, args: Mapping[str, Any], context: CallContext, adk: ToolContext
    ) -> CallResult:
        if not _can_stream(adk):
            return await self.tool.call(args, context=context)
        call_id = adk.function_call_id or ""
        call = self.tool.stream(args, context=context)
        # Under a workflow, ADK 2.13 reserves ids that consist of digits.
        run_id = call_id if call_id and not call_id.isdigit() else None
        node = CallNode(name="toolkeep", call=call, call_id=call_id)
        await adk.run_node(node, run_id=run_id)
        return await call.result()

    def _error(self, message: str) -> dict[str, Any]:
        return {"status": "error", "error": message, **self._about()}

    def _about(self) -> dict[str, str]:
        return {"tool_name": self.tool.name, "namespace": self.tool.server}

    def _detect_error_in_response(self, response: object) -> str | None:
        """Called by ADK's telemetry (2.13)."""
        failed = isinstance(response, dict) and "error" in response
        return "TOOL_ERROR" if failed else None


# -- logins -----------------------------------------------------------------------------------


class _LoginRequested(Exception):
    """The user has been asked to log in; the call is made when the answer is there."""


async def _log_in(caller: object, error: AuthNeeded, adk: ToolContext) -> bool:
    """Complete the login with the user's answer. False: the user cannot log in here. Raises
    `_LoginRequested` if there is no answer yet, and `OAuthError`."""
    runtime = cast("Any", caller)
    wanted = json.dumps([error.server, error.principal])
    key = f"toolkeep_{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    answer = adk.get_auth_response(_auth_config(key))
    if answer is not None and answer.oauth2 is not None and answer.oauth2.auth_response_uri:
        adk.state[f"temp:{key}"] = None  # it serves once
        callback = answer.oauth2.auth_response_uri
        await runtime.complete_login(callback, principal=error.principal)
        return True
    login = await begin_login(caller, error) if adk.function_call_id else None
    if login is None:
        return False
    adk.request_credential(_auth_config(key, login.url))
    raise _LoginRequested


def _auth_config(key: str, url: str = "") -> AuthConfig:
    """ADK's form of a login. Without a client: ADK is not to redeem the code."""
    flow = OAuthFlowAuthorizationCode(authorizationUrl=url.partition("?")[0], tokenUrl="")
    return AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(authorizationCode=flow)),
        raw_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(auth_uri=url or None)
        ),
        credential_key=key,
    )


class CallNode(BaseNode):
    """A call as a node of ADK: the runner's stream has what a node yields. The node has no output
    and raises nothing, because ADK would store both in the session: the call has its result."""

    call: Call
    call_id: str

    async def _run_impl(self, *, ctx: ToolContext, node_input: Any) -> AsyncGenerator[Event, None]:
        ctx.event_author = ctx.agent_name
        async with self.call as call:
            async for event in call:
                if isinstance(event, Progress | Log | Retrying):
                    data = {"function_call_id": self.call_id, **event.as_dict()}
                    yield Event(partial=True, custom_metadata={"toolkeep": data})
                elif isinstance(event, InputNeeded) and event.answer_required:
                    event.decline()


def _can_stream(adk: ToolContext) -> bool:
    """Whether ADK (2.13) lets a tool run nodes whose events reach a runner. It does not in live
    sessions, outside of a runner, and in a workflow's node that is not rerun on resume."""
    invocation, node = adk.get_invocation_context(), adk.node
    has_runner = getattr(invocation, "_event_queue", None) is not None
    is_rerun = node is None or node.rerun_on_resume
    return has_runner and is_rerun and invocation.live_request_queue is None


def _content(result: CallResult) -> dict[str, Any]:
    """The result for the model. ADK takes media out of it, and passes them on as parts."""
    blocks = cast("list[dict[str, Any]]", result.raw.get("content") or [])
    media = [part for block in blocks if (part := _media(block)) is not None]
    resources = [
        block.get("resource") or {key: block[key] for key in block if key not in ("type", "_meta")}
        for block in blocks
        if block.get("type") in ("resource", "resource_link")
    ]
    value = {"result": result.text if result.data is None else result.data}
    more = {"media": media, "resources": resources}
    return value | {key: parts for key, parts in more.items() if parts}


def _media(block: dict[str, Any]) -> types.Part | str | None:
    if block.get("type") not in ("image", "audio"):
        return None
    try:
        data = base64.b64decode(block["data"], validate=True)
    except ValueError:
        return f"{block['type']} with invalid data"
    return types.Part.from_bytes(data=data, mime_type=block["mimeType"])


# -- a toolset --------------------------------------------------------------------------------


class Toolset(BaseToolset):
    """Tools that follow the catalogue: before each turn of the model, those that the run's user may
    see. For any number of agents, in one event loop.

    `names` as in `tools`. ADK's filter and prefix apply to names for models. With `owned` the
    toolset opens the runtime at its first use, and closes it in `close`.
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
        self._use_invocation_cache = False  # a run has many turns, and the catalogue changes
        self._runtime, self._owned = runtime, owned
        self._names = None if names is None else list(names)
        self._options = CheckedOptions(**options)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        try:
            context, found, missing = await self._find(readonly_context)
            made = await _convert(self._runtime, found, context, self._options)
        except Exception as error:  # ADK 2.13 would only log it
            return [MissingTools(["Your tools"], error, self._options)]
        logger.debug("%d tools converted for ADK", len(made))
        chosen = [tool for tool in made if self._is_tool_selected(tool, readonly_context)]
        if not missing:
            return list[BaseTool](chosen)
        return [*chosen, MissingTools(list(missing), next(iter(missing.values())), self._options)]

    async def close(self) -> None:
        if self._owned:
            await self._runtime.aclose()

    async def _find(
        self, adk: ReadonlyContext | None
    ) -> tuple[CallContext | None, list[Tool], dict[str, UnknownTool]]:
        if self._owned:
            await self._runtime.connect()
        options, names = self._options, self._names
        context = options.fixed_context
        if adk is not None:
            context = await options.resolve_context(adk, None)
        found: list[Tool] = []
        missing: dict[str, UnknownTool] = {}
        try:
            return context, await resolve_tools(self._runtime, names, context), missing
        except UnknownTool:  # find the others one by one
            for name in names or ():
                try:
                    found += await self._runtime.resolve([name], context)
                except UnknownTool as error:
                    missing[name] = error
        return context, found, missing


class MissingTools(BaseTool):
    """Stands for tools that could not be listed. It cannot be called; it instructs the model."""

    def __init__(self, names: list[str], error: Exception, options: CheckedOptions) -> None:
        super().__init__(name="toolkeep_missing", description=f"Not found: {', '.join(names)}")
        self._error, self._tells_model = error, options.tells_model(error)

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        if not self._tells_model:
            raise self._error
        advice = "These are not available now. If the task needs them, tell the user so."
        llm_request.append_instructions([f"{self.description}. {advice}"])


# -- sampling -----------------------------------------------------------------------------------


def sampling(model: str | BaseLlm) -> RequestHandler:
    """A handler for `Runtime(sampling=…)`: this model of ADK answers the sampling requests of
    servers."""
    llm = LLMRegistry.new_llm(model) if isinstance(model, str) else model

    async def ask(request: SamplingRequest) -> Sample:
        config = types.GenerateContentConfig(
            system_instruction=request.system,
            max_output_tokens=request.max_tokens,
            temperature=request.temperature,
            stop_sequences=list(request.stop) or None,
        )
        contents = [_sampling_content(message) for message in request.messages]
        made = LlmRequest(model=llm.model, contents=contents, config=config)
        said, truncated = list[str](), False
        async for response in llm.generate_content_async(made):
            if response.error_code:
                raise RuntimeError(f"the model failed ({response.error_code})")
            parts = (response.content.parts if response.content else None) or []
            said += [part.text for part in parts if part.text and not part.thought]
            truncated = truncated or response.finish_reason is types.FinishReason.MAX_TOKENS
        return Sample("".join(said), llm.model, truncated)

    return sampling_handler(ask)


def _sampling_content(message: SampledMessage) -> types.Content:
    parts = [
        types.Part.from_bytes(data=part.data, mime_type=part.mime_type)
        if isinstance(part, Media)
        else types.Part(text=part)
        for part in message.parts
    ]
    return types.Content(role="user" if message.role == "user" else "model", parts=parts)
