"""How one client is set up, beside what its server's configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toolkeep._rules.classify import SessionRow
from toolkeep.auth import Authorizer
from toolkeep.stores import SessionStore

if TYPE_CHECKING:
    from mcp.client.caching import ResponseCacheStore

    from toolkeep._engine.ground import Ground
    from toolkeep._engine.inputs import Inputs
    from toolkeep._engine.observing import Observers
    from toolkeep._engine.toolbook import Toolbook
    from toolkeep._engine.watching import Watch
    from toolkeep._wire.tap import Tap
    from toolkeep.events import Event


class Voice:
    """The headers of one principal, as its last call had them: checked, with lower-case names."""

    def __init__(self) -> None:
        self.headers: Mapping[str, str] = {}


class Keeping(Protocol):
    """A client, to whoever keeps its server reachable."""

    setup: Setup
    inputs: Inputs
    watch: Watch
    log_level: str | None

    def emit(self, event: Event) -> None: ...

    def tell_trouble(self) -> None:
        """Requests have begun to fail, or are answered again."""
        ...

    def keeper(self) -> object:
        """Who leads of those who keep an address of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a client was given."""

    auth: Authorizer | None = None
    principal: str | None = None
    client_info: Mapping[str, str] | None = None
    session_rows: Sequence[SessionRow] = ()
    store: SessionStore | None = None
    terminate_on_close: bool | None = None
    cache: ResponseCacheStore | None = None
    grounds: tuple[Ground, ...] = ()
    """What it has in common with other clients of the same server, for each address of it. None: it
    is alone."""
    apart: str | None = None
    """What else tells its principal from those of other clients."""
    voice: Voice | None = None
    """What its principal says of itself with whatever is sent, but for calls: these say it anew."""
    vouched: bool = False
    """Whether somebody else sees to it that no two principals meet in its session."""
    listen: bool = False
    """Hear what the server says outside of calls even when nobody observes."""
    observers: Observers | None = None
    """Of several clients; None: it has its own."""
    hear: Callable[[Event], None] | None = None
    """Told of everything but calls."""
    on_gap: Callable[[], None] | None = None
    """Told when changes of its lists may have been missed, to have them listed again. None: what
    this client has listed it compares by itself."""
    on_book: Callable[[Toolbook], None] | None = None
    """Given each new listing of the tools."""
    tap: Tap | None = None
    """Told what passes over a wire that is this client's alone."""
