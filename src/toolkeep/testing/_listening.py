"""Who hears what a server says unasked: a legacy stream hears all, a modern listener what it asked
for, and news of a resource go to those who subscribed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from toolkeep.testing._events import encode
from toolkeep.testing.script import JsonObject

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
UPDATED = "notifications/resources/updated"
_FILTERS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


class Outlet(Protocol):
    """Where messages to one client go: a stream's log, or a pipe."""

    def append(self, payload: bytes) -> None: ...


@dataclass(eq=False, slots=True)
class Listener:
    """One open stream. `asked` is a modern listener's request, None means legacy."""

    outlet: Outlet
    session: str | None = None
    asked: JsonObject | None = None
    end: Callable[[bool], None] | None = None
    """Breaks the stream, with RST if told so. None: cannot be broken by itself."""
    hears: bool = True
    """False for a stream that is only there to be broken: others speak on it."""

    def wants(self, method: str, params: JsonObject) -> bool:
        if self.asked is None:
            return self.hears
        if method == UPDATED:
            return params.get("uri") in self.uris
        return bool(self.asked["filter"].get(_FILTERS.get(method, "")))

    @property
    def uris(self) -> list[str]:
        return [] if self.asked is None else self.asked["filter"].get("resourceSubscriptions") or []

    def tell(self, method: str, params: JsonObject) -> None:
        if self.asked is not None:
            meta = {**params.get("_meta", {}), SUBSCRIPTION: self.asked["id"]}
            params = {**params, "_meta": meta}
        self.outlet.append(encode({"jsonrpc": "2.0", "method": method, "params": params}))


class Audience:
    """Every listener of one server, and every legacy subscription."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self._subscribed: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return sum(listener.hears for listener in self._listeners)

    def join(self, listener: Listener) -> None:
        self._listeners[listener] = None

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def subscribe(self, session: str | None, uri: str) -> None:
        self._subscribed.setdefault(session or "", set()).add(uri)

    def unsubscribe(self, session: str | None, uri: str) -> None:
        self._subscribed.get(session or "", set()).discard(uri)

    def forget(self) -> None:
        self._subscribed.clear()

    def subscriptions(self) -> dict[str, list[str]]:
        """By session, and by the id of a modern listener's request."""
        known = {session: set(uris) for session, uris in self._subscribed.items()}
        for listener in self._listeners:
            if listener.asked is not None and listener.uris:
                known.setdefault(str(listener.asked["id"]), set()).update(listener.uris)
        return {session: sorted(uris) for session, uris in known.items() if uris}

    def notify(self, method: str, params: JsonObject) -> int:
        """Tell everybody who wants it; returns how many."""
        reached = [listener for listener in self._listeners if listener.wants(method, params)]
        for listener in reached:
            listener.tell(method, params)
        return len(reached)

    def concerned(self, uri: str) -> list[Listener]:
        return [listener for listener in self._listeners if self._follows(listener, uri)]

    def _follows(self, listener: Listener, uri: str) -> bool:
        legacy = self._subscribed.get(listener.session or "", ())
        return listener.hears and uri in (legacy if listener.asked is None else listener.uris)

    def updated(self, uri: str) -> int:
        reached = self.concerned(uri)
        for listener in reached:
            listener.tell(UPDATED, {"uri": uri})
        return len(reached)

    @property
    def newest(self) -> Listener | None:
        """The legacy stream that was opened last."""
        legacy = [each for each in self._listeners if each.asked is None and each.hears]
        return legacy[-1] if legacy else None

    def disperse(self, reset: bool) -> int:
        """Break every stream that can be broken; returns how many."""
        ended = [listener for listener in self._listeners if listener.end is not None]
        for listener in ended:
            self.leave(listener)
            if listener.end is not None:
                listener.end(reset)
        return len(ended)
