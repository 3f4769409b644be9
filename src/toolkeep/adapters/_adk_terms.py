"""On which terms agents of Google ADK call tools: for whom, what must be confirmed, who is told.

Nothing here calls a tool. Whatever cannot be understood is refused: a call never goes out without
the identity, or the confirmation, that it was to have.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.sessions.state import State
from google.adk.tools.tool_context import ToolContext

from toolkeep._catalogue.tool import Tool
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, ToolkeepError

Speaking = Callable[[ReadonlyContext], CallContext | Awaitable[CallContext]]
"""From ADK's context to on whose behalf a call is made; `CallContext()`: nobody in particular."""
Asking = Callable[[Tool, Mapping[str, Any], ToolContext], bool | Awaitable[bool]]
"""Whether this call of this tool must be confirmed."""


class Options(TypedDict, total=False):
    """How tools are called. All of them may be left out."""

    context: CallContext | Speaking | None
    """For whom: what a `CallContext` leaves open is filled from ADK's; a function has the last
    word."""
    require_confirmation: bool | Literal["destructive"] | Asking
    """Which calls wait for ADK's confirmation. `"destructive"`: of all tools that do not say that
    they destroy nothing, which is the word of their server. Not given: none, as in ADK."""
    errors: Literal["tell", "raise"]
    """Whether the model is told of a call without a result, which is the default, or ADK."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The options, checked."""

    context: CallContext | Speaking | None = None
    require_confirmation: bool | Literal["destructive"] | Asking = False
    errors: Literal["tell", "raise"] = "tell"

    def __post_init__(self) -> None:
        context, confirm = cast("Any", self.context), cast("Any", self.require_confirmation)
        fits = {
            "context": context is None or isinstance(context, CallContext) or callable(context),
            "require_confirmation": isinstance(confirm, bool)
            or confirm == "destructive"
            or callable(confirm),
            "errors": self.errors in ("tell", "raise"),
        }
        for key, fit in fits.items():
            if not fit:
                raise ConfigError("it is none of what it can be", key=key, remedy="See Options")

    @property
    def given(self) -> CallContext | None:
        """What is known of the context before anybody is served."""
        return self.context if isinstance(self.context, CallContext) else None

    def is_told(self, error: Exception) -> bool:
        """To the model, that is: not what only who wrote the program can mend."""
        ours = isinstance(error, ToolkeepError) and not isinstance(error, ConfigError)
        return ours and self.errors == "tell"

    async def speaking(self, adk: ReadonlyContext, base: CallContext | None) -> CallContext:
        if self.context is None or isinstance(self.context, CallContext):
            return call_context(adk, self.context or base)
        found: Any = self.context(adk)
        found = await found if inspect.isawaitable(found) else found
        if isinstance(found, CallContext):
            return found
        raise ConfigError("the function returned no CallContext", key="context")

    async def must_confirm(self, tool: Tool, args: dict[str, Any], adk: ToolContext) -> bool:
        match self.require_confirmation:
            case bool(always):
                return always
            case "destructive":
                return tool.destructive
            case asking:
                said = asking(tool, args, adk)
                return bool(await said if inspect.isawaitable(said) else said)


def call_context(adk: ReadonlyContext, base: CallContext | None = None) -> CallContext:
    """For ADK's user, in its session and invocation, where `base` says nothing else. Filters and
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
