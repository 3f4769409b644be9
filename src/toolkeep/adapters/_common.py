"""What the adapters share: which tools they offer, for whom they call, what a model is told, and
how a framework's model answers a server's sampling requests.

A model is told in one sentence when a call has no result, the same sentence in every framework. The
sentence says whether the tool ran and what to do next, and contains no secrets. If the tool may
have run, it never invites the model to call it again.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._client.server_requests import RequestHandler
from toolkeep.auth import LoginRequest
from toolkeep.context import CallContext
from toolkeep.errors import (
    AuthNeeded,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    ConfigError,
    Delivery,
    InputNotGiven,
    InvalidArguments,
    InvalidResult,
    NotOffered,
    NotPermitted,
    ResultTooLarge,
    ServerUnavailable,
    ToolkeepError,
    UnknownTool,
)
from toolkeep.events import InputNeeded
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

__all__ = [
    "ContextOption",
    "ContextResolver",
    "Media",
    "Sample",
    "SampledMessage",
    "SamplingRequest",
    "Source",
    "ToolSource",
    "begin_login",
    "check_errors_option",
    "error_message",
    "instructions_by_server",
    "join_instructions",
    "model_can_fix",
    "resolve_tools",
    "sampling_handler",
    "server_instructions",
    "tool_error_message",
]

MAX_INSTRUCTIONS = 4000
"""Characters of one server's instructions that a model is given."""

Run = TypeVar("Run")
"""The framework's own object for a run."""

Source = Runtime | Iterable[Tool]
ContextOption = CallContext | Callable[[Run], CallContext | Awaitable[CallContext]]


# -- tools --------------------------------------------------------------------------------------


class ToolSource:
    """The tools of an adapter: those of a runtime, looked up at each turn, or tools that were
    resolved before. Opens and closes nothing.
    """

    def __init__(self, source: Source, names: Iterable[str] | None = None) -> None:
        self._runtime = source if isinstance(source, Runtime) else None
        self._names = None if names is None else tuple(names)
        self._resolved: dict[str, Tool] = {}
        if not isinstance(source, Runtime):
            self._resolved = {tool.model_name: tool for tool in _resolved(source, names)}

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            remedy = "Give the runtime in place of its tools"
            raise ConfigError("prompts and resources need a runtime", remedy=remedy)
        return self._runtime

    @property
    def is_live(self) -> bool:
        """Whether the tools follow the catalogue of a runtime."""
        return self._runtime is not None

    async def tools(self, context: CallContext | None) -> list[Tool]:
        """The tools that this context may see. With names: all of these, or an `UnknownTool` that
        lists the missing ones.
        """
        if self._runtime is None:
            return list(self._resolved.values())
        if self._names is not None:
            return await self._runtime.resolve(self._names, context)
        return list((await self._runtime.catalogue_for(context)).tools)

    async def find(self, name: str, context: CallContext | None) -> Tool:
        """The tool with this name for models, ready to be called."""
        if self._runtime is not None:
            return (await self._runtime.resolve([name], context))[0]
        if name not in self._resolved:
            raise UnknownTool(f"there is no tool {name[:200]!r} among those that were given")
        return self._resolved[name]


async def resolve_tools(
    source: Source, names: Iterable[str] | None, context: CallContext | None
) -> list[Tool]:
    """The tools of a runtime, all or those of these names, or tools that were resolved before."""
    if not isinstance(source, Runtime):
        return _resolved(source, names)
    wanted = await source.catalogue_for(context) if names is None else names
    return await source.resolve(wanted, context)


# -- instructions of servers --------------------------------------------------------------------


async def instructions_by_server(
    source: Source, context: CallContext | None = None
) -> dict[str, str]:
    """The instructions of each server that gives some, as a model is told them. None for tools that
    were resolved before.

    They are the server's words, so they are marked as such and cut after `MAX_INSTRUCTIONS`.
    """
    if not isinstance(source, Runtime):
        return {}
    view = await source.catalogue_for(context)
    given = {one.server: (one.instructions or "").strip() for one in view.listings}
    return {server: _instructions_of(server, text) for server, text in given.items() if text}


def _instructions_of(server: str, text: str) -> str:
    cut = f"{text[:MAX_INSTRUCTIONS]}…" if len(text) > MAX_INSTRUCTIONS else text
    return f"Notes from the server {server!r} about its tools (they apply to these only):\n{cut}"


async def server_instructions(
    source: Source, names: Iterable[str] | None = None, context: CallContext | None = None
) -> str:
    """The instructions of the servers whose tools are offered, as one text; empty if there are
    none."""
    known = await instructions_by_server(source, context)
    offered = await resolve_tools(source, names, context) if known else []
    return join_instructions(known, offered)


def join_instructions(known: Mapping[str, str], offered: Iterable[Tool]) -> str:
    """One text for these tools, each server's instructions once."""
    servers = dict.fromkeys(tool.server for tool in offered)
    return "\n\n".join(known[server] for server in servers if server in known)


def _resolved(source: Iterable[Tool], names: Iterable[str] | None) -> list[Tool]:
    if names is not None:
        remedy = "Give the runtime, or leave the names out"
        raise ConfigError("names can only be looked up in a runtime", key="names", remedy=remedy)
    tools = list(source)
    for tool in tools:
        if not isinstance(cast("object", tool), Tool) or tool.caller is None:
            remedy = "Give a runtime, or the result of `await runtime.resolve(…)`"
            raise ConfigError("these tools cannot be called", remedy=remedy)
    return tools


# -- on whose behalf ----------------------------------------------------------------------------


class ContextResolver(Generic[Run]):
    """Finds the context for which a run lists and calls tools.

    `given` is a context for all runs, or a function of a run. Without it, a run's own context is
    used if it is a `CallContext`. The function is asked at every listing and every call. If it
    fails, nothing is listed and nothing is sent; a call never goes out without its identity.
    """

    def __init__(self, given: ContextOption[Run] | None) -> None:
        if not (given is None or isinstance(given, CallContext) or callable(given)):
            remedy = "Give a CallContext, or a function that makes one from a run"
            what = "the context must be a CallContext or a function"
            raise ConfigError(what, key="context", remedy=remedy)
        self._given = given

    async def resolve(self, run: Run | None, own: object) -> CallContext | None:
        """`own` is what the user gave the framework for this run."""
        given = self._given
        if isinstance(given, CallContext):
            return given
        if given is None:
            return own if isinstance(own, CallContext) else None
        if run is None:
            raise NotPermitted("the context comes from a run, and there is none")
        try:
            made: Any = given(run)
            made = await made if inspect.isawaitable(made) else made
        except ConfigError:
            raise
        except Exception as error:
            raise NotPermitted("the function for the context failed") from error
        if not isinstance(made, CallContext):
            kind = type(cast("object", made)).__name__
            raise NotPermitted(f"the function for the context returned {kind}, not a CallContext")
        return made


# -- what a model is told -----------------------------------------------------------------------


def check_errors_option(errors: object) -> None:
    if errors not in ("tell", "raise"):
        remedy = "Say 'tell' or 'raise'"
        raise ConfigError("errors must be 'tell' or 'raise'", key="errors", remedy=remedy)


def error_message(error: ToolkeepError, tool: str) -> str:
    """The sentence for the model. `tool` is the name by which the model called the tool."""
    tool = error.called or tool
    match error:
        case InvalidArguments():
            problems = "; ".join(error.problems) or "they do not fit the tool"
            return f"{tool} was not called: its arguments are wrong ({problems}). Correct them."
        case NotOffered():
            return f"{tool} was not called: there is no such tool."
        case NotPermitted():
            return f"{tool} was not called: it is not permitted here. Do not call it again."
        case AuthNeeded():
            return f"{tool} was not called: its server needs the user's authorization."
        case ServerUnavailable() | CallNotDelivered():
            return f"{tool} did not run: its server cannot be reached now. It may be tried later."
        case InputNotGiven():
            return f"{tool} stopped: its request for input was not answered. Do not call it again."
        case ResultTooLarge():
            return (
                f"{tool} ran, but its result is too large to be shown. "
                "If it only reads, ask it for less; otherwise do not call it again."
            )
        case InvalidResult():
            return f"{tool} ran, but its result is invalid. Do not call it again."
        case CallRejected():
            return f"{tool} failed: its server answered with an error (code {error.code})."
        case CallOutcomeUnknown():
            return (
                f"Whether {tool} ran is not known: its answer was lost. "
                "Do not call it again; find out first, or tell the user."
            )
        case _ if error.delivery is Delivery.UNKNOWN:
            return f"Whether {tool} ran is not known. Do not call it again; tell the user."
        case _ if error.delivery is Delivery.ANSWERED:
            return f"{tool} ran, but failed. Do not call it again."
        case _:
            return f"{tool} did not run: it cannot be used now."


async def begin_login(caller: object, error: AuthNeeded) -> LoginRequest | None:
    """Begin the login that the error asks for. None: the runtime knows no way to log in there, or
    no `redirect_uri` is configured. Raises `OAuthError`."""
    runtime = cast("Any", caller)
    if not hasattr(runtime, "begin_login"):
        return None
    try:
        return await runtime.begin_login(error.server, error.principal)
    except ConfigError:
        return None


def model_can_fix(error: ToolkeepError) -> bool:
    """Whether the model can correct its call at once: nothing ran, and the mistake is its own."""
    return isinstance(error, InvalidArguments | NotOffered)


def tool_error_message(result: CallResult, tool: str) -> str:
    """The text of a tool's own error."""
    return result.text or f"{tool} failed without saying why."


# -- sampling -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a piece of audio in a sampling request."""

    kind: Literal["image", "audio"]
    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class SampledMessage:
    role: Literal["user", "assistant"]
    parts: tuple[str | Media, ...]


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a server asks the model, checked."""

    messages: tuple[SampledMessage, ...]
    system: str | None
    max_tokens: int
    temperature: float | None
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The model's answer."""

    text: str
    model: str
    truncated: bool = False
    """Whether the model stopped at the limit of tokens."""


def sampling_handler(ask: Callable[[SamplingRequest], Awaitable[Sample]]) -> RequestHandler:
    """A handler for `Runtime(sampling=…)` that has a framework's model answer. A request with
    tools, or with content that is neither text nor media, is declined."""

    async def sample(needed: InputNeeded) -> dict[str, Any]:
        made = await ask(_sampling_request(needed.params))
        return {
            "role": "assistant",
            "content": {"type": "text", "text": made.text},
            "model": made.model,
            "stopReason": "maxTokens" if made.truncated else "endTurn",
        }

    return sample


def _sampling_request(params: Mapping[str, Any]) -> SamplingRequest:
    if params.get("tools"):
        raise ValueError("a sampling request with tools cannot be answered")
    messages = tuple(
        SampledMessage(one["role"], tuple(_sampled_parts(one["content"])))
        for one in cast("list[dict[str, Any]]", params["messages"])
    )
    return SamplingRequest(
        messages,
        params.get("systemPrompt"),
        params["maxTokens"],
        params.get("temperature"),
        tuple(params.get("stopSequences") or ()),
    )


def _sampled_parts(content: Any) -> Iterator[str | Media]:
    for block in cast("list[dict[str, Any]]", content if isinstance(content, list) else [content]):
        match block.get("type"):
            case "text":
                yield block["text"]
            case "image" | "audio" as kind:
                yield Media(kind, base64.b64decode(block["data"]), block["mimeType"])
            case other:
                raise ValueError(f"a sampling request with {other!r} cannot be answered")
