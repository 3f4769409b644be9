"""What the transports share: their protocols, one attempt, and how a failure leaves.

`Transport` is one open connection to a server. `TransportFactory` creates transports one after
another. `MessageChannel` carries whole messages under a
`DuplexTransport`. `Attempt` records what happened to one request. `WireFault` carries the
evidence of a failure. This module does no I/O and never interprets evidence.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from toolkeep._rules.classify import Evidence, FaultKind, handshake_survives
from toolkeep._rules.recovery import TransportKind
from toolkeep._tasks import BackgroundTasks
from toolkeep.errors import ToolkeepError

if TYPE_CHECKING:
    from mcp_types import RequestId

    from toolkeep._transport.trace import OnTrace

logger = logging.getLogger("toolkeep.transport")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

OnCallNotification = Callable[[str, Mapping[str, Any]], Awaitable[None]]
OnServerRequest = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Takes a method and its parameters; returns a result or `ErrorData`, as types of `mcp_types`."""
OnLost = Callable[[str], None]
"""Called with the reason when a transport finds out by itself that its connection is lost."""


class Tap:
    """Where the trace events of one endpoint go. Its transports look at it with each message, so it
    may be opened and closed while they work."""

    __slots__ = ("on_trace",)

    def __init__(self, on_trace: OnTrace | None = None) -> None:
        self.on_trace = on_trace


class Attempt:
    """One request as it is sent. Belongs to the task that sends it and lives as long."""

    __slots__ = (
        "answered",
        "headers",
        "on_notification",
        "on_server_request",
        "raw_result",
        "revoked",
        "sent",
        "sent_headers",
        "stop_deadline",
        "wants_progress",
    )

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        on_notification: OnCallNotification | None = None,
        wants_progress: bool = False,
        stop_deadline: Callable[[], None] | None = None,
        on_server_request: OnServerRequest | None = None,
    ) -> None:
        self.headers = headers
        """Headers of this call only, already validated, with lower-case names."""
        self.on_notification = on_notification
        """Receives the notifications that belong to this request, in order of arrival."""
        self.wants_progress = wants_progress
        self.sent = False
        """Whether a byte of the request may have been sent."""
        self.revoked = False
        """Whether sending is forbidden from now on: the outcome was reported and must stay true."""
        self.answered = False
        """Whether the server's response has arrived."""
        self.sent_headers: Mapping[str, str] = {}
        """All headers of the request, secrets included."""
        self.raw_result: dict[str, Any] | None = None
        """The result as received, before validation."""
        self.stop_deadline = stop_deadline
        """Ends the call's deadline; the remaining work has bounds of its own."""
        self.on_server_request = on_server_request
        """Answers the requests that the server sends during this request."""

    def mark_answered(self) -> None:
        """Record that the response has arrived, and end the deadline so that it is not lost."""
        self.answered = True
        if self.stop_deadline is not None:
            self.stop_deadline()


class RequestFault(Exception):
    """A request has no usable result. The base of the three faults that a transport raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WireFault(RequestFault):
    """A request failed. Carries the evidence: all that is known about the failure, and the headers
    of the request, secrets included."""

    def __init__(self, evidence: Evidence, sent_headers: Mapping[str, str] | None = None) -> None:
        super().__init__(evidence.detail)
        self.evidence, self.sent_headers = evidence, sent_headers or {}


class InvalidResponse(RequestFault):
    """The server's response violates the protocol."""

    def __init__(self, detail: str, raw: dict[str, Any]) -> None:
        super().__init__(detail)
        self.raw = raw


class CredentialsFault(RequestFault):
    """The authorizer failed, so the request was not sent. `raised`: what it raised, if the caller
    may see it."""

    def __init__(self, detail: str, raised: ToolkeepError | None = None) -> None:
        super().__init__(detail)
        self.raised = raised


class ErrorReply(Exception):
    """Raised by a handler of the server's requests: reply with this JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class InboundHandler(Protocol):
    """Receives what the server sends outside of responses. Implemented by the protocol session."""

    async def on_request(
        self, method: str, params: Mapping[str, Any] | None, attempt: Attempt
    ) -> Mapping[str, Any]:
        """The result for a request of the server. Raises `ErrorReply`. `attempt`: our request
        during which it was sent; an empty one if that is not certain."""
        ...

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification that belongs to no request of ours. Never raises."""
        ...


@contextlib.contextmanager
def tolerate_server_error(method: str) -> Generator[None]:
    """Ignore an HTTP error status for a notification that the handshake survives."""
    try:
        yield
    except WireFault as fault:
        if not handshake_survives(method, fault.evidence.status):
            raise
        logger.debug("the server answered %s with HTTP %s", method, fault.evidence.status)


@dataclass(frozen=True, slots=True)
class OversizedMessage:
    """Stands for a message above the size limit, which was dropped undecoded."""

    request_id: RequestId | None
    """The request it answers, if its first or last bytes show the id."""
    limit: int


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why a channel ended."""

    detail: str
    exit_code: int | None = None
    stderr: str = ""
    """The end of a process's standard error."""


ReceivedMessage = dict[str, Any] | OversizedMessage


class MessageChannel(Protocol):
    """Carries whole messages in both directions for one connection. Opened once, closed once."""

    replies_during_send: bool
    """Whether a response may arrive before `send` returns."""

    @property
    def last_received_at(self) -> float:
        """When the last bytes arrived, by `time.monotonic`. Kept only by channels that
        `replies_during_send`."""
        ...

    @property
    def session_id(self) -> str | None:
        """The id of the session that the channel carries, if it has one."""
        ...

    @property
    def stray_output(self) -> str:
        """Output of the server that is not a protocol message, for errors; usually empty."""
        ...

    async def open(self) -> None:
        """Open the channel. Raises `WireFault`, or `ConfigError` for a configuration that can
        never work. The caller sets the time limit."""
        ...

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        """Write one message. Raises `WireFault`.

        Sets `attempt.sent` just before the first byte may leave, and writes nothing once the
        attempt is `revoked`. Called in the callers' tasks, by several at once. `headers` are the
        protocol's headers for this message; channels without headers ignore them. All headers of
        the request, secrets included, are recorded in `attempt.sent_headers`.
        """
        ...

    async def receive(self) -> Sequence[ReceivedMessage] | None:
        """The next messages; None: the channel ended. Called by one task."""
        ...

    async def close_reason(self) -> CloseReason:
        """Why the channel ended. Called after `receive` has returned None; returns in bounded
        time."""
        ...

    async def close(self) -> None:
        """Release everything, in any state and in bounded time. A second call does nothing."""
        ...

    def detach(self, *, forked: bool) -> None:
        """Release resources without the event loop, which is gone or, after a fork (`forked`),
        belongs to the parent process."""
        ...


class Transport(Protocol):
    """One open connection to a server. Any task of its event loop may send through it."""

    background_tasks: BackgroundTasks

    @property
    def session_id(self) -> str | None: ...

    @property
    def stray_output(self) -> str:
        """Output of the server that is not a protocol message, for errors."""
        ...

    async def open(self, handler: InboundHandler) -> None:
        """Prepare for the handshake; from now on the handler receives what the server sends.
        Raises `WireFault` or `ConfigError`."""
        ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        attempt: Attempt,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        request_id: RequestId | None = None,
        cancellable: bool = True,
    ) -> dict[str, Any]:
        """Send a request in the caller's task, and return its result. Raises `RequestFault`.

        `headers` are the protocol's. `request_id` None: the next number. `cancellable` False: the
        protocol forbids its cancellation.
        """
        ...

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """Send a notification. Raises `WireFault`."""
        ...

    def resume(self, session_id: str, version: str) -> None:
        """Use a session that was opened earlier, perhaps by another process."""
        ...

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Receive a legacy server's messages outside of requests, if they need their own stream.

        `on_open` is called whenever the stream opens after a gap in which messages may be lost.
        """
        ...

    def stop_replying(self) -> None:
        """Cancel the pending replies to the server's requests."""
        ...

    async def terminate(self) -> None:
        """End the session at the server, if there is one."""
        ...

    async def close(self) -> None:
        """Release what belongs to this connection, in any state and in bounded time. Requests that
        are still pending fail."""
        ...


class TransportFactory(Protocol):
    """Creates the transports of one endpoint, one after another, and lives as long as it."""

    kind: TransportKind
    resumable: bool
    """Whether a session outlives the transport on which it was opened."""
    exclusive: bool
    """Whether the next transport must wait until a lost one is closed."""

    @property
    def supports_modern(self) -> bool: ...

    def create(self, on_lost: OnLost) -> Transport:
        """The next transport, not yet open."""
        ...

    async def probe(self) -> int | None:
        """The HTTP status of a plain GET; None: the endpoint has no HTTP. Raises `WireFault`."""
        ...

    def detach(self, *, forked: bool) -> None:
        """Release resources without the event loop, which is gone or, after a fork (`forked`),
        belongs to the parent process."""
        ...


def unreadable_fault(detail: str, status: int | None) -> WireFault:
    """The fault for a response that cannot be understood."""
    evidence = Evidence(kind=FaultKind.UNREADABLE, sent=True, detail=detail, status=status)
    return WireFault(evidence)


def connection_fault(detail: str, attempt: Attempt, status: int | None = None) -> WireFault:
    """The fault for a lost connection: `BROKEN` if the request may have been sent."""
    kind = FaultKind.BROKEN if attempt.sent else FaultKind.CONNECT
    return WireFault(Evidence(kind=kind, sent=attempt.sent, detail=detail, status=status))


def with_sent_state(evidence: Evidence, attempt: Attempt) -> Evidence:
    """The evidence, corrected if the request was sent after the evidence was made.

    The end of a channel fails all pending requests at once, and one of them may just be writing.
    """
    if evidence.kind is FaultKind.CONNECT and attempt.sent:
        return replace(evidence, kind=FaultKind.BROKEN, sent=True)
    return evidence
