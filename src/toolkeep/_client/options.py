"""The options of one client, and the events that tell its owner what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolkeep._client.observers import Observers
from toolkeep._rules.classify import SessionLostRule
from toolkeep.auth import Authorizer
from toolkeep.auth.configured import ServerAuth
from toolkeep.events import Event
from toolkeep.state.shared import SharedState

if TYPE_CHECKING:
    from toolkeep._client.endpoint import Endpoint
    from toolkeep._client.request import OnProgress
    from toolkeep._client.tool_list import ToolList
    from toolkeep._transport.shared_program import SharedProgram
    from toolkeep._transport.trace import OnTrace


class CallerHeaders:
    """The headers of one principal, as its last call had them: checked, with lower-case names."""

    def __init__(self) -> None:
        self.headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client, as given by `Client` or by the session pool that owns it."""

    auth: Authorizer | None = None
    """The user's own, in place of what the configuration says."""
    server_auth: ServerAuth | None = None
    """What the clients of a runtime's server share. None: the client has its own."""
    principal: str | None = None
    client_info: Mapping[str, str] | None = None
    session_lost_rules: Sequence[SessionLostRule] = ()
    state: SharedState = field(default_factory=SharedState)
    """What processes share. A client that is not pooled closes it."""
    stores_sessions: bool = False
    """Whether sessions are kept there."""
    session_owner: str | None = None
    """Whose the sessions of calls without a principal are, in the store."""
    terminate_on_close: bool | None = None
    on_progress: OnProgress | None = None
    """For the calls that bring no function of their own."""
    strict: bool = False
    """Refuse a list whose pages repeat. Otherwise its items are used, with a warning."""
    endpoints: tuple[Endpoint, ...] = ()
    """The server's endpoints, borrowed from the pool. Empty: the client has its own."""
    identity_key: str | None = None
    """Distinguishes its principal from those of other clients, besides the name."""
    caller_headers: CallerHeaders | None = None
    """The identity headers for all requests but calls: a call brings its own."""
    pooled: bool = False
    """Whether a session pool owns the client. It guarantees that only one principal uses the
    session, and lists again when changes may have been missed."""
    listen: bool = False
    """Listen for notifications outside of calls even without an observer."""
    observers: Observers | None = None
    """Shared by several clients; None: the client has its own."""
    emit: Callable[[Event], None] | None = None
    """The owner's: called with every event that belongs to no call, also with `OwnerEvent`s."""
    shared_program: SharedProgram | None = None
    """The program that one process runs for all; None: the client starts its own."""
    tracer: OnTrace | None = None
    """Called with each message on a transport that belongs to this client alone."""

    @property
    def stored_for(self) -> str | None:
        """Whose the stored sessions are. None: of the bearer of the same credentials."""
        return self.session_owner if self.principal is None else self.principal


@dataclass(frozen=True, kw_only=True, match_args=False)
class OwnerEvent(Event):
    """An event for the owner of a client. Observers do not get it."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class ToolsListed(OwnerEvent):
    """The client has listed all tools."""

    tool_list: ToolList


@dataclass(frozen=True, kw_only=True, match_args=False)
class ChangesMissed(OwnerEvent):
    """Changes of lists may have been missed while no notification stream was open."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class ReachabilityChanged(OwnerEvent):
    """Requests to an endpoint begin to fail, or are answered again."""
