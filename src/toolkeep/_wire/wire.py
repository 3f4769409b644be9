"""What a connection needs of its transport, whichever it is: the SDK's `Dispatcher`, and its life.

A wire is one generation: opened once, closed once, both in the task that owns the connection. What
outlives generations (an HTTP client with its sockets) is the `Line`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest

from toolkeep._rules.recovery import Channel
from toolkeep._wire.errands import Errands

OnLost = Callable[[str], None]
"""Told, with the reason, when a wire finds out by itself that it is finished."""


class Wire(Protocol):
    """Sends for any task of its loop."""

    errands: Errands

    @property
    def session_id(self) -> str | None: ...

    @property
    def said(self) -> str:
        """What the server said that was not the protocol, for errors to tell."""
        ...

    async def open(self) -> None:
        """Make it ready for the handshake. Raises `WireFault` or `ConfigError`."""
        ...

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None: ...

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]: ...

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None: ...

    def resume(self, session_id: str, version: str) -> None:
        """Speak for a session that was opened earlier, perhaps by another process."""
        ...

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Hear what a legacy server says outside of requests, if that takes a stream of its own.

        `on_open` is called whenever it stands and may have missed something before.
        """
        ...

    def stop_answering(self) -> None:
        """Leave open what the server still asks."""
        ...

    async def terminate(self) -> None:
        """End the session at the server, where there is one."""
        ...

    async def close(self) -> None:
        """Release what belongs to this generation, whatever state it is in; bounded."""
        ...


class Line(Protocol):
    """One way to one server. Belongs to a keeper; its wires come one after the other."""

    channel: Channel
    resumable: bool
    """Whether a session outlives the wire on which it was opened."""
    exclusive: bool
    """Whether the next generation has to wait for the end of a lost one."""

    @property
    def speaks_modern(self) -> bool: ...

    def wire(self, on_lost: OnLost) -> Wire:
        """The next generation, not yet open."""
        ...

    async def knock(self) -> int | None:
        """The status that a plain GET brings; None: there is no HTTP. Raises `WireFault`."""
        ...

    async def aclose(self) -> None: ...

    def forget(self, *, forked: bool) -> None:
        """Let go without a loop: it is gone, or it is the parent process's (`forked`)."""
        ...
