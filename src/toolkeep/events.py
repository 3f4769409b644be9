"""Frozen records of what happened, and who may watch.

One stream of these feeds everything that observes: a watched call, logs, telemetry, the command
line. An event states a fact that has already happened; nothing here decides anything.

Events of one call, in order: `Started`, then any of `Progress`, `Log`, `Replaying`, `InputNeeded`,
then exactly one of `Completed` or `Failed`. Only those two are final: `Progress.fraction == 1.0`
is not.

Events of a connection: `Connected`, `Disconnected`, `Changed` when a list or a resource is no
longer what it was, and `Notice` for whatever else a server says outside of any call.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

from toolkeep.context import CallContext
from toolkeep.errors import Failure, ToolkeepError
from toolkeep.results import CallResult

__all__ = [
    "CallEvent",
    "Changed",
    "Completed",
    "Connected",
    "Disconnected",
    "Event",
    "Failed",
    "InputNeeded",
    "Log",
    "Notice",
    "Observer",
    "Progress",
    "Replaying",
    "Started",
]


@dataclass(frozen=True, kw_only=True, match_args=False)
class Event:
    """Something that happened at a server, at a time (`at`: seconds since the epoch)."""

    server: str
    at: float = field(default_factory=time.time)

    is_final: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The event's name in JSON: `Started` is `"started"`."""
        return type(self).__name__.lower()

    def as_dict(self) -> dict[str, Any]:
        """The event as plain data, ready for JSON."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"event": self.kind, **fields}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False)


class Observer(Protocol):
    """Anything that can be called with an event. It must not block; what it raises is logged.

    It may also have `meta(call_id)`, whose mapping goes into the `_meta` of that call's requests
    under what the caller gave; and `know(spec)`, called with the servers that it will hear of.
    """

    def __call__(self, event: Event, /) -> None: ...


def _nobody_asks(answer: object) -> None:
    """An event that was made by hand has nobody to answer to."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class CallEvent(Event):
    """An event of one call."""

    tool: str
    call_id: str


@dataclass(frozen=True, kw_only=True, match_args=False)
class Started(CallEvent):
    """The call was accepted and will be sent."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class Progress(CallEvent):
    """The server reported a step."""

    progress: float
    total: float | None = None
    message: str | None = None

    __match_args__ = ("fraction", "message")

    @property
    def fraction(self) -> float | None:
        """How far, from 0 to 1, when the server said how much there is."""
        if not self.total or self.total < 0:
            return None
        try:
            share = self.progress / self.total
        except OverflowError:
            return None
        return min(max(share, 0.0), 1.0) if math.isfinite(share) else None

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "fraction": self.fraction}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Log(CallEvent):
    """A log line that the server sent on the call's own stream."""

    level: str
    data: Any
    logger: str | None = None

    __match_args__ = ("level", "data")


@dataclass(frozen=True, kw_only=True, match_args=False)
class Replaying(CallEvent):
    """An attempt failed without harm; the call will be sent again."""

    attempt: int
    """The attempt that failed, counted from 1."""
    after: float
    """Seconds until the next one."""
    failure: Failure


@dataclass(frozen=True, kw_only=True, match_args=False)
class InputNeeded(CallEvent):
    """The server asks for something before it goes on: whoever watches the call may answer.

    `tool` and `call_id` are empty when nothing tells in the course of which call it asks.
    """

    method: str
    """`elicitation/create`, `sampling/createMessage` or `roots/list`."""
    params: Mapping[str, Any]
    """What it asks, in wire shape."""
    key: str = ""
    """Its name among the questions of a round (modern servers)."""
    context: CallContext | None = field(default=None, repr=False, compare=False)
    """On whose behalf the call is made in whose course it asks, as far as that is known."""
    awaited: bool = False
    """Whether nobody else will answer: the call stands still until whoever watches it does."""
    reply: Callable[[object], None] = field(default=_nobody_asks, repr=False, compare=False)

    __match_args__ = ("method", "params")

    def respond(self, result: object) -> None:
        """Answer with a result: a mapping in wire shape, or one of the SDK's result types.

        The first answer counts; later ones are ignored.
        """
        self.reply(result)

    def accept(self, content: Mapping[str, Any] | None = None) -> None:
        """The user agreed to an elicitation; `content` is the form as filled in."""
        self.reply({"action": "accept", **({} if content is None else {"content": content})})

    def decline(self) -> None:
        """The user said no. To anything but an elicitation that is an error."""
        self.reply({"action": "decline"} if self.method == "elicitation/create" else None)

    def as_dict(self) -> dict[str, Any]:
        left_out = ("reply", "context")
        return {name: value for name, value in super().as_dict().items() if name not in left_out}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Completed(CallEvent):
    """The answer came. The last event of its call."""

    result: CallResult

    is_final = True
    __match_args__ = ("result",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class Failed(CallEvent):
    """The call ended without a result. The last event of its call."""

    error: BaseException

    is_final = True
    __match_args__ = ("error",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class Connected(Event):
    """A connection is ready for calls."""

    generation: int
    era: str
    protocol_version: str
    session_id: str | None = field(default=None, repr=False)
    endpoint: str = ""
    """The address, without its secrets, of a server that has several."""

    def as_dict(self) -> dict[str, Any]:
        # A session id lets its holder speak for the session: it stays out of logs.
        return {**super().as_dict(), "session_id": None if self.session_id is None else "***"}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Disconnected(Event):
    """A connection will take no more calls."""

    generation: int
    reason: str
    asked: bool = False
    """Whether the client was closed, rather than its connection lost."""
    endpoint: str = ""
    """The address, without its secrets, of a server that has several."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class Changed(Event):
    """Something that the server offers is no longer what it was.

    The same for both eras, and for changes that happened while nobody could listen.
    """

    what: Literal["tools", "prompts", "resources", "resource"]
    uri: str | None = None
    """The resource, when it is a single one."""

    __match_args__ = ("what", "uri")


@dataclass(frozen=True, kw_only=True, match_args=False)
class Notice(Event):
    """A notification outside of any call that is not a `Changed`: a log line, for example."""

    method: str
    params: Mapping[str, Any]


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None  # a server may send it; JSON has no word for it
        case None | bool() | int() | float() | str():
            return value
        case enum.Enum():
            return value.value
        case CallResult():
            return dict(value.raw)
        case BaseException():
            return _plain_error(value)
        case Mapping():
            items = cast("Mapping[object, object]", value)
            return {str(key): _plain(item) for key, item in items.items()}
        case list() | tuple():
            return [_plain(item) for item in cast("list[object]", value)]
        case _ if dataclasses.is_dataclass(value):
            return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        case _:
            return str(value)


def _plain_error(error: BaseException) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ToolkeepError):
        plain |= {"delivery": error.delivery.value, "status": error.status}
    return plain
