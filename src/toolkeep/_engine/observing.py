"""Who watches a client, how they are told, and what they may add to a call.

An observer is anything that can be called with an event. It may also have a method
`meta(call_id)`, asked after `Started` was told and in the same task, once for each leg of the call
(replays repeat what they replay): the mapping that it returns goes into the request's `_meta`,
under what the caller gave.
Nothing that an observer does, or fails to do, harms a call or another observer.
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
    """An observer at work; `close` ends it. A stream that was opened for it stays until the
    connection ends; the next connection opens none."""

    def __init__(
        self, observer: Observer, *, listen: bool, forget: Callable[[Observation], None]
    ) -> None:
        self.observer, self.listen = observer, listen
        self.meta: Callable[[str], Mapping[str, Any]] | None = getattr(observer, "meta", None)
        self._forget: Callable[[Observation], None] | None = forget

    def know(self, spec: ServerSpec) -> None:
        """Tell it of a server that it will hear of, if it wants to know."""
        know = getattr(self.observer, "know", None)
        if know is not None:
            try:
                know(spec)
            except (Exception, CancelledError):
                logger.exception("%s: an observer failed to take note of it", spec.name)

    def close(self) -> None:
        if self._forget is not None:
            self._forget(self)
            self._forget = None


class Observers:
    """The observers of one client. What one of them raises is logged and harms nobody else."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._watching: list[Observation] = []

    def __bool__(self) -> bool:
        return bool(self._watching)

    def __iter__(self) -> Iterator[Observation]:
        return iter(tuple(self._watching))

    @property
    def listening(self) -> bool:
        """Whether somebody wants to hear what the server says outside of calls."""
        return any(observation.listen for observation in self._watching)

    def add(self, observer: Observer, *, listen: bool) -> Observation:
        if not callable(observer) or inspect.iscoroutinefunction(observer):
            remedy = "Give a plain function of an event: it is called in the midst of things"
            raise ConfigError("an observer is a function that is not async", remedy=remedy)
        observation = Observation(observer, listen=listen, forget=self._watching.remove)
        self._watching.append(observation)
        return observation

    def tell(self, event: Event) -> None:
        for observation in tuple(self._watching):
            try:
                observation.observer(event)
            except (Exception, CancelledError):  # of a task that it looked at
                logger.exception("%s: an observer failed on %s", self._server, event.kind)

    def meta(self, call_id: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The `_meta` of a request: what the observers add to this call, and what its caller gave,
        which wins."""
        found: dict[str, Any] = {}
        for observation in tuple(self._watching):
            if observation.meta is not None and call_id:
                found |= self._added(observation.meta, call_id)
        given = given or {}
        if found and not _TRACE_KEYS.isdisjoint(given):
            found = {key: value for key, value in found.items() if key not in _TRACE_KEYS}
        return {**found, **given}

    def _added(self, meta: Callable[[str], Mapping[str, Any]], call_id: str) -> dict[str, Any]:
        """A copy in plain JSON: what cannot be written to the wire fails here, not the call."""
        try:
            return json.loads(json.dumps({**meta(call_id)}, allow_nan=False))
        except (Exception, CancelledError):
            logger.exception("%s: an observer failed to add to a call", self._server)
            return {}
