"""One attempt to send one request: what goes with it, and what became of it.

The engine makes one for each attempt and hands it down in a context variable, through the SDK's
typed layer, which has no place for it. The wire writes down facts (`sent`, `answer`) at the moment
they become true, so that they can be read after a timeout or a cancellation, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

Deliver = Callable[[str, Mapping[str, Any]], Awaitable[None]]
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""From a method and its parameters to the SDK's result, or its `ErrorData`."""


class Attempt:
    """Lives as long as one request; belongs to the task that sends it."""

    __slots__ = (
        "answer",
        "answered",
        "ask",
        "deliver",
        "headers",
        "revoked",
        "sent",
        "sent_headers",
        "stop_clock",
        "wants_progress",
    )

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        deliver: Deliver | None = None,
        wants_progress: bool = False,
        stop_clock: Callable[[], None] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.headers = headers
        """Headers of this call alone, already checked, lower-case names."""
        self.deliver = deliver
        """Receives the notifications that belong to this request, in order, as they come."""
        self.wants_progress = wants_progress
        self.sent = False
        """Whether a byte of the request may have left."""
        self.revoked = False
        """Whether none may leave any more: its fate is told, and must stay true."""
        self.answered = False
        """Whether the server's answer is here."""
        self.sent_headers: Mapping[str, str] = {}
        """All that went with it, secrets included."""
        self.answer: dict[str, Any] | None = None
        """The result as it came, before anything judged it."""
        self.stop_clock = stop_clock
        """Ends the deadline: what is left to do is bounded by itself."""
        self.ask = ask
        """Answers what the server asks in the course of this request."""

    def on_answer(self) -> None:
        """The answer came. No deadline takes it away any more."""
        self.answered = True
        if self.stop_clock is not None:
            self.stop_clock()


current_attempt: ContextVar[Attempt | None] = ContextVar("toolkeep_attempt", default=None)
