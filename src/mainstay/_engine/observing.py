"""Who watches a client, and how they are told."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainstay.events import Event, Observer

logger = logging.getLogger("mainstay.client")


class Observation:
    """An observer at work; `close` ends it. A stream that was opened for it stays until the
    connection ends; the next connection opens none."""

    def __init__(
        self, observer: Observer, *, listen: bool, forget: Callable[[Observation], None]
    ) -> None:
        self.observer, self.listen = observer, listen
        self._forget: Callable[[Observation], None] | None = forget

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

    @property
    def listening(self) -> bool:
        """Whether somebody wants to hear what the server says outside of calls."""
        return any(observation.listen for observation in self._watching)

    def add(self, observer: Observer, *, listen: bool) -> Observation:
        observation = Observation(observer, listen=listen, forget=self._watching.remove)
        self._watching.append(observation)
        return observation

    def tell(self, event: Event) -> None:
        for observation in tuple(self._watching):
            try:
                observation.observer(event)
            except Exception:
                logger.exception("%s: an observer failed on %s", self._server, event.kind)
