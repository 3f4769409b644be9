"""Events: frozen records of what happened, and the `Observer` protocol.

One stream of events feeds watched calls, logs, telemetry and the command line. An event states
a fact; it decides nothing.

Events of a call, in order: `Started`, then any of `Progress`, `Log`, `Retrying`, `InputNeeded`,
then exactly one of `Completed` or `Failed`. Only these two are final; `Progress.fraction ==
1.0` is not.

Events of a connection: `Connected`, `Disconnected`, `Changed` when a list or resource changed,
and `ServerNotification` for every other notification outside a call.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, Failure, ToolkeepError
from toolkeep.results import CallResult

__all__ = [
    "CallEvent",
    "CatalogueChanged",
    "CatalogueChanges",
    "Changed",
    "Completed",
    "Connected",
    "Disconnected",
    "Event",
    "Failed",
    "Health",
    "HealthChanged",
    "InputNeeded",
    "Log",
    "NameChanges",
    "Observer",
    "Progress",
    "ReloadFailed",
    "Reloaded",
    "Retrying",
    "ServerAdded",
    "ServerLost",
    "ServerNotification",
    "ServerRemoved",
    "Started",
]

_CAMEL_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _ignore_reply(answer: object) -> None:
    """The default of `InputNeeded.reply`, for events that were made by hand."""


def _never_waits() -> bool:
    """The default of `InputNeeded.waits`."""
    return False


@dataclass(frozen=True, kw_only=True, match_args=False)
class Event:
    """Something that happened at a server, at a time (`at`: seconds since the epoch)."""

    server: str
    at: float = field(default_factory=time.time)

    is_final: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The event's name in JSON, in snake_case: `ServerLost` is `"server_lost"`."""
        return _CAMEL_HUMP.sub("_", type(self).__name__).lower()

    def as_dict(self) -> dict[str, Any]:
        """The event as plain data, ready for JSON."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"event": self.kind, **fields}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False)


class Observer(Protocol):
    """Anything that can be called with an event. It must not block; exceptions are logged.

    It may also have `meta(call_id)`, whose mapping goes into the `_meta` of that call's requests,
    where the caller gave no such key; and `add_server(spec)`, called with each server before its
    events.
    """

    def __call__(self, event: Event, /) -> None: ...


@dataclass(frozen=True, kw_only=True, match_args=False)
class CallEvent(Event):
    """An event of one call."""

    tool: str
    call_id: str


@dataclass(frozen=True, kw_only=True, match_args=False)
class Started(CallEvent):
    """The call was accepted and will be sent."""

    principal: str | None = None
    """For whom the call is made."""
    arguments: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """As the caller gave them. They stay out of logs and of `as_dict`."""

    def as_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().as_dict().items() if k != "arguments"}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Progress(CallEvent):
    """The server reported a step."""

    progress: float
    total: float | None = None
    message: str | None = None

    __match_args__ = ("fraction", "message")

    @property
    def fraction(self) -> float | None:
        """Progress from 0 to 1, if the server gave a total."""
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
class Retrying(CallEvent):
    """An attempt failed, and the call will be sent again."""

    attempt: int
    """The attempt that failed, counted from 1."""
    delay: float
    """Seconds until the next one."""
    failure: Failure
    reason: str = ""
    """Why it may be sent again."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class InputNeeded(CallEvent):
    """The server asks for something before it goes on. The watcher of the call may answer.

    `tool` and `call_id` are empty when the question cannot be assigned to a call.
    """

    method: str
    """`elicitation/create`, `sampling/createMessage` or `roots/list`."""
    params: Mapping[str, Any]
    """The parameters of the question, as JSON."""
    key: str = ""
    """Its key among the questions of a round (modern servers)."""
    context: CallContext | None = field(default=None, repr=False, compare=False)
    """The context of the call that it belongs to, if known."""
    answer_required: bool = False
    """Whether no handler answers it: the call waits until its watcher does."""
    reply: Callable[[object], None] = field(default=_ignore_reply, repr=False, compare=False)
    waits: Callable[[], bool] = field(default=_never_waits, repr=False, compare=False)

    __match_args__ = ("method", "params")

    @property
    def is_open(self) -> bool:
        """Whether an answer still counts."""
        return self.waits()

    def respond(self, result: object) -> None:
        """Answer with a result: a mapping as in JSON, or one of the SDK's result types.

        The first answer counts; later ones are ignored.
        """
        self.reply(result)

    def accept(self, content: Mapping[str, Any] | None = None) -> None:
        """Accept an elicitation; `content` is the form as filled in."""
        self.reply({"action": "accept", **({} if content is None else {"content": content})})

    def decline(self) -> None:
        """Decline. For anything but an elicitation the server gets an error."""
        self.reply({"action": "decline"} if self.method == "elicitation/create" else None)

    def as_dict(self) -> dict[str, Any]:
        left_out = ("reply", "waits", "context")
        return {name: value for name, value in super().as_dict().items() if name not in left_out}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Completed(CallEvent):
    """The call has a result. The last event of its call."""

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
        # The session id is a credential, so it stays out of logs.
        return {**super().as_dict(), "session_id": None if self.session_id is None else "***"}


@dataclass(frozen=True, kw_only=True, match_args=False)
class Disconnected(Event):
    """A connection takes no more calls."""

    generation: int
    reason: str
    requested: bool = False
    """Whether the client was closed, rather than its connection lost."""
    endpoint: str = ""
    """The address, without its secrets, of a server that has several."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class Changed(Event):
    """A list or a resource of the server has changed.

    The same for both eras, and also for changes while no notification could arrive.
    """

    what: Literal["tools", "prompts", "resources", "resource"]
    uri: str | None = None
    """The URI, if `what` is `resource`."""

    __match_args__ = ("what", "uri")


@dataclass(frozen=True, kw_only=True, match_args=False)
class ServerNotification(Event):
    """A notification outside of any call that is not a `Changed`, for example a log line."""

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, match_args=False)
class Reloaded(Event):
    """An edit of the configuration was applied."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, match_args=False)
class ReloadFailed(Event):
    """An edit of the configuration could not be read or applied; the servers stay as they were."""

    error: ConfigError

    __match_args__ = ("error",)


@dataclass(frozen=True, slots=True)
class NameChanges:
    """Full names that were added, removed or changed, in the order of their snapshot."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class CatalogueChanges:
    """The difference of two catalogues. True if there is any."""

    tools: NameChanges = NameChanges()
    prompts: NameChanges = NameChanges()
    resources: NameChanges = NameChanges()
    templates: NameChanges = NameChanges()

    def __bool__(self) -> bool:
        return bool(self.tools or self.prompts or self.resources or self.templates)


@dataclass(frozen=True, kw_only=True, match_args=False)
class CatalogueChanged(Event):
    """What a server offers has changed, or the server went out of reach or came back.

    About the catalogue of callers without identity. Listings of single principals are fetched anew
    when needed, without an event.
    """

    revision: int
    """The revision of the catalogue after the change."""
    changes: CatalogueChanges
    stale: bool
    """Whether the server is out of reach, and its last listing is shown."""

    __match_args__ = ("changes",)


class Health(enum.Enum):
    """What a member's last check or call showed."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DOWN = "down"
    NEEDS_AUTHORIZATION = "needs authorization"


@dataclass(frozen=True, kw_only=True, match_args=False)
class ServerAdded(Event):
    """A member is connected: opened with the others, or reopened in the background."""

    attempt: int
    """The number of the attempt that succeeded."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class ServerLost(Event):
    """A member could not be opened, or its connection ended by itself."""

    error: BaseException

    __match_args__ = ("error",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class ServerRemoved(Event):
    """A member was closed on request."""

    error: BaseException | None = None
    """The error that closing it raised."""

    __match_args__ = ("error",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class HealthChanged(Event):
    """A member's health changed."""

    health: Health
    before: Health
    error: BaseException | None = None
    latency: float | None = None

    __match_args__ = ("health", "before")


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None  # a server may send it, but JSON cannot express it
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
