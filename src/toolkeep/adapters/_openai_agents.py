"""For `openai_agents`: approvals that fail closed, failures as a model is told them, and progress.

Nothing here knows a runtime.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import mcp_types
from agents import ModelBehaviorError, RunContextWrapper, RunResultStreaming
from agents.agent import AgentBase
from agents.stream_events import StreamEvent
from agents.tool import ToolErrorFunction
from agents.tool_context import ToolContext

from toolkeep._engine.wanted import OnProgress
from toolkeep._rules.naming import model_name, parted
from toolkeep._rules.unread import Unread, size_of_report
from toolkeep.adapters._telling import sentence
from toolkeep.errors import (
    CallOutcomeUnknown,
    ConfigError,
    Delivery,
    InvalidArguments,
    ToolkeepError,
)

logger = logging.getLogger("toolkeep.adapters")

Run = RunContextWrapper[Any]
Asks = Callable[[Run, AgentBase | None, mcp_types.Tool], bool | Awaitable[bool]]
Approval = Literal["always", "never"] | bool | Mapping[str, Any] | Asks | None
"""As the SDK has it. A map goes from tools (`server.tool`, or the name for models) to `"always"`,
`"never"` or a bool, or has the SDK's form with two lists of names. None is `"never"`."""

# -- approval -----------------------------------------------------------------------------------

Asking = Callable[[Run, AgentBase | None, mcp_types.Tool], Awaitable[bool]]
_WORDS: Mapping[object, bool] = {"always": True, "never": False, True: True, False: False}


def asking(policy: Approval) -> bool | Asking:
    """The policy as one answer for all tools, or as a function that never fails open."""
    if policy is None:
        return False
    if isinstance(policy, Mapping):
        given = _flat(cast("Mapping[str, Any]", policy))
        return _by_name({_key(name): needed for name, needed in given.items()})
    return _guarded(policy) if callable(policy) else _word(policy)


def _word(said: object) -> bool:
    if isinstance(said, str | bool) and said in _WORDS:
        return _WORDS[said]
    raise _no_policy(said)


def _flat(given: Mapping[str, Any]) -> dict[str, bool]:
    """The SDK's `{"always": {"tool_names": […]}, "never": …}` as a map; in both is always."""
    if not given or given.keys() - {"always", "never"}:
        return {str(name): _word(value) for name, value in given.items()}
    listed: dict[str, bool] = {}
    for word in ("never", "always"):
        listed |= dict.fromkeys(_listed(given.get(word, {"tool_names": []})), _WORDS[word])
    return listed


def _listed(held: object) -> list[str]:
    names: object = cast("Any", held).get("tool_names") if isinstance(held, Mapping) else None
    if not isinstance(names, list):
        raise _no_policy(cast("object", held))
    return [str(name) for name in cast("list[object]", names)]


def _no_policy(said: object) -> ConfigError:
    remedy = "Say 'always', 'never', True or False, or give a map or a function"
    return ConfigError(f"{said!r} is no policy", key="require_approval", remedy=remedy)


def _key(name: str) -> str:
    pair = parted(name)
    return name if pair is None else model_name(*pair)


def _by_name(policies: Mapping[str, bool]) -> Asking:
    async def asks(run: Run, agent: AgentBase | None, tool: mcp_types.Tool) -> bool:
        return policies.get(tool.name, True)

    return asks


def _guarded(policy: Asks) -> Asking:
    async def asks(run: Run, agent: AgentBase | None, tool: mcp_types.Tool) -> bool:
        try:
            verdict: object = policy(run, agent, tool)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        except Exception:
            logger.exception("whether %s needs approval could not be told: it does", tool.name)
            return True
        return verdict is not False

    return asks


# -- failures -----------------------------------------------------------------------------------


def tell(context: Run, error: Exception) -> str:
    """What the model is told of a call that failed: the failure function, unless one is given.
    Raises a `ConfigError`."""
    name = context.tool_name if isinstance(context, ToolContext) else "The tool"
    return sentence(_told(_mendable(error)), name)


def handing_on(function: ToolErrorFunction | None) -> ToolErrorFunction | None:
    """A function of the user's that gets our error, and not the SDK's about it."""
    if function is None or function is tell:
        return function
    return lambda context, error: function(context, _mendable(error))


def _behind(error: Exception) -> Exception:
    """The SDK (0.24) wraps what a server raises."""
    cause = error.__cause__
    return cause if isinstance(cause, ToolkeepError) else error


def _mendable(error: Exception) -> Exception:
    """Our error, unless only who wrote the program can mend it: that ends the run."""
    found = _behind(error)
    if isinstance(found, ConfigError):
        raise found
    return found


def _told(error: Exception) -> ToolkeepError:
    if isinstance(error, ToolkeepError):
        return error
    if isinstance(error, ModelBehaviorError):
        problems = ("they are no JSON object",)
        return InvalidArguments("not a JSON object", server="", tool="", problems=problems)
    return CallOutcomeUnknown("foreign", server="", delivery=Delivery.UNKNOWN)


# -- progress -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """A step that a tool's server reported, in the shape of the SDK's own stream events."""

    tool_name: str
    tool_call_id: str
    progress: float
    total: float | None = None
    message: str | None = None
    type: Literal["tool_progress_stream_event"] = "tool_progress_stream_event"


class ProgressFeed:
    """The SDK's stream of one run, with the progress of its tools in it, as it happens.

        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent, "…")
        async for event in feed.events(result): ...

    Runs of other agents that the run's tools start are heard, too.
    """

    def __init__(self) -> None:
        self._unread = Unread[StreamEvent | ToolProgress | None](_size_of_progress)
        self._news = asyncio.Event()
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
        """Raises what the run raises. Leaving the loop early leaves the run as the SDK does."""
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
            self._news.clear()
            await self._news.wait()
        return self._unread.popleft()

    def tell(self, event: StreamEvent | ToolProgress | None) -> None:
        """None: that was the last. Of progress no more than 8 MB wait to be read; then the oldest
        reports are dropped."""
        self._unread.append(event)
        self._news.set()

    async def _read(self, result: RunResultStreaming) -> None:
        try:
            async for event in result.stream_events():
                self.tell(event)
        finally:
            self.tell(None)


def _size_of_progress(event: StreamEvent | ToolProgress | None) -> int | None:
    """The run's own events are the SDK's to bound."""
    return size_of_report(event) if isinstance(event, ToolProgress) else None


_FEED: ContextVar[ProgressFeed | None] = ContextVar("feed", default=None)


def on_progress(run: Run | None, name: str) -> OnProgress | None:
    """For one call. None, and then the server is not asked for any, if nobody would hear it."""
    feed = _FEED.get()
    if feed is None:
        return None
    said, call_id = name, ""
    if isinstance(run, ToolContext):
        said, call_id = run.tool_name, run.tool_call_id

    def tell_of(progress: float, total: float | None, message: str | None) -> None:
        feed.tell(
            ToolProgress(
                tool_name=said,
                tool_call_id=call_id,
                progress=progress,
                total=total,
                message=message,
            )
        )

    return tell_of
