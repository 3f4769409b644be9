"""Observers: functions that are called with every event, and may add `_meta` to a call.

An observer that raises is logged. It never affects a call or another observer.
"""

from __future__ import annotations

import inspect
import json
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError
from toolkeep.events import Event, Observer

logger = logging.getLogger("toolkeep.client")

_TRACE_KEYS = frozenset({"traceparent", "tracestate"})
"""Two halves of one value (W3C Trace Context): a caller who gives one of them gives both."""


class Observation:
    """A registered observer; `close` removes it. A notification stream that was opened for it stays
    until the connection ends; the next connection opens none."""

    def __init__(
        self, observer: Observer, *, listen: bool, on_close: Callable[[Observation], None]
    ) -> None:
        self.observer, self.listen = observer, listen
        self.meta: Callable[[str], Mapping[str, Any]] | None = getattr(observer, "meta", None)
        self._on_close: Callable[[Observation], None] | None = on_close

    def __repr__(self) -> str:
        return f"<Observation, {'closed' if self._on_close is None else 'open'}>"

    def add_server(self, spec: ServerSpec) -> None:
        """Announce a server to an observer that has an `add_server` method."""
        add_server = getattr(self.observer, "add_server", None)
        if add_server is not None:
            try:
                add_server(spec)
            except (Exception, CancelledError):
                logger.exception("%s: an observer failed in add_server", spec.name)

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close(self)
            self._on_close = None


class Observers:
    """The observers of one client. An exception in one of them is logged and does not affect the
    others."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._observations: list[Observation] = []

    def __bool__(self) -> bool:
        return bool(self._observations)

    def __iter__(self) -> Iterator[Observation]:
        return iter(tuple(self._observations))

    @property
    def wants_notifications(self) -> bool:
        """Whether an observer wants notifications outside of calls."""
        return any(observation.listen for observation in self._observations)

    def add(self, observer: Observer, *, listen: bool) -> Observation:
        if not callable(observer) or inspect.iscoroutinefunction(observer):
            remedy = "Give a plain function that takes an event; toolkeep does not await it"
            raise ConfigError("an observer must be a function, and not async", remedy=remedy)
        observation = Observation(observer, listen=listen, on_close=self._observations.remove)
        self._observations.append(observation)
        return observation

    def emit(self, event: Event) -> None:
        for observation in tuple(self._observations):
            try:
                observation.observer(event)
            except (Exception, CancelledError):  # CancelledError: from a task whose result it read
                logger.exception("%s: an observer failed on %s", self._server, event.kind)

    def meta(self, call_id: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The `_meta` of a request: what the observers add to this call, then what the caller gave,
        which wins."""
        added: dict[str, Any] = {}
        for observation in tuple(self._observations):
            if observation.meta is not None and call_id:
                added |= self._call_meta(observation.meta, call_id)
        given = given or {}
        if added and not _TRACE_KEYS.isdisjoint(given):
            added = {key: value for key, value in added.items() if key not in _TRACE_KEYS}
        return {**added, **given}

    def _call_meta(self, meta: Callable[[str], Mapping[str, Any]], call_id: str) -> dict[str, Any]:
        """A copy in plain JSON: a value that JSON cannot hold fails here, and not the call."""
        try:
            return json.loads(json.dumps({**meta(call_id)}, allow_nan=False))
        except (Exception, CancelledError):
            logger.exception("%s: an observer failed in meta", self._server)
            return {}
