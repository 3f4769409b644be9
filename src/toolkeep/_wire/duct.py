"""What lies under a `PipeDispatcher`: a two-way channel that carries whole JSON-RPC messages.

Three of them: a process's standard streams (`stdio`), HTTP+SSE of 2024-11-05 (`sse`), and a server
in this very process (`local`). A duct knows nothing of requests and answers. It is opened and
closed once, in the task that owns the connection, and never revived; when it ends, it says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import RequestId

from toolkeep._wire.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Oversized:
    """A message that was larger than allowed, and was thrown away unread."""

    request_id: RequestId | None
    """Whose answer it was, if its edges told."""
    limit: int


@dataclass(frozen=True, slots=True)
class Epitaph:
    """Why a duct ended."""

    detail: str
    exit_code: int | None = None
    stderr: str = ""
    """The last words of a process."""


Received = dict[str, Any] | Oversized


class Duct(Protocol):
    """One generation of a channel."""

    kind: str
    """The transport's name, for the SDK."""
    answers_apart: bool
    """Whether an answer may come while `send` is not over yet."""

    @property
    def heard_at(self) -> float:
        """When something last came, in the clock of `time.monotonic`; kept where answers come
        apart."""
        ...

    @property
    def session_id(self) -> str | None:
        """The session that the channel stands for, where it has an id."""
        ...

    @property
    def said(self) -> str:
        """What came that was not the protocol, for errors to tell; mostly empty."""
        ...

    async def open(self) -> None:
        """Raises `WireFault`, or `ConfigError` for what can never work. The owner bounds it."""
        ...

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        """Write one message. Sets `attempt.sent` when the first byte may leave, not before; once
        the attempt is `revoked`, none may.

        Called in the caller's task, by many at once. `headers` are the protocol's own for this
        message, for those that have headers; all that went with it, secrets included, is noted in
        `attempt.sent_headers`. Raises `WireFault`.
        """
        ...

    async def receive(self) -> Sequence[Received] | None:
        """The next messages, as they come; None: it ended. Called by one task."""
        ...

    async def epitaph(self) -> Epitaph:
        """Why it ended. Called once `receive` has returned None; bounded."""
        ...

    async def close(self) -> None:
        """Release everything, whatever state it is in; bounded. Twice is fine."""
        ...

    def abandon(self, *, forked: bool) -> None:
        """Let go without a loop: it is gone, or it is the parent process's (`forked`)."""
        ...
