"""Report what passes over a transport, for `toolkeep check --trace` and the console.

This module is imported only once a `Tap` was opened. Secrets are removed before the
callback sees anything. A body is shown as a whole and a stream event by event, so that no
secret can lie across two pieces. A trace never changes what is sent or received.
"""

from __future__ import annotations

import enum
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

import aiohttp
from yarl import URL

from toolkeep._transport.base import (
    Attempt,
    CloseReason,
    OversizedMessage,
    ReceivedMessage,
    Tap,
    WireFault,
)
from toolkeep._transport.http_client import HttpClient, HttpResponse, proxy_for_server
from toolkeep._transport.redaction import PUBLIC_HEADERS, Redactor, redact_text
from toolkeep.config import redact_url, secrets_of_url
from toolkeep.config.redact import HIDDEN, is_secret_name, is_secret_parameter

MAX_BODY_BYTES = 256 * 1024
"""Bytes of one body or event that a trace shows."""

_CHALLENGE_HEADER = "www-authenticate"
_QUERY_VALUE = re.compile(r"([?&;](?P<name>[\w.%-]+)=)[^&\s\"'<>]+")
_JSON_VALUE = re.compile(r'("(?P<name>[\w.-]+)"\s*:\s*")(?:[^"\\]|\\.)+', re.DOTALL)
"""Matches up to the closing quote, or to the end of a truncated text."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class TraceKind(enum.Enum):
    """The kind of a `TraceEvent`."""

    REQUEST = "asked"
    """An HTTP request is being sent."""
    RESPONSE = "answered"
    """The head of an HTTP response was received."""
    BODY = "body"
    """The body of an HTTP response, or one event of its stream."""
    FAILED = "broke"
    """An HTTP request or the reading of its response failed."""
    ABANDONED = "given up"
    """An HTTP request was cancelled."""
    OPENED = "opened"
    """A channel was opened: a program or a server in this process runs."""
    SENT = "out"
    """A message is written to a channel."""
    RECEIVED = "in"
    """A message was received on a channel."""
    STRAY_OUTPUT = "noise"
    """A program printed something that is not a message."""
    CLOSED = "ended"
    """A channel ended."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of a trace, without secrets."""

    kind: TraceKind
    text: str = ""
    request_number: int = 0
    """The number of the HTTP request it belongs to; 0 on a channel."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """With lower-case names."""
    body: str = ""
    at: float = field(default_factory=time.monotonic)
    channel_number: int = 0
    """The number of the channel it belongs to; 0 over HTTP."""


OnTrace = Callable[[TraceEvent], None]


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of parameters and JSON fields whose
    names suggest a secret."""
    text = _QUERY_VALUE.sub(partial(_hide_value, is_secret_parameter), redact_text(text, secrets))
    return _JSON_VALUE.sub(partial(_hide_value, is_secret_name), text)


def _hide_value(is_secret: Callable[[str], bool], found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if is_secret(unquote(found["name"])) else found[0]


def _without_partial_secret(text: str, secrets: Iterable[str]) -> str:
    """A truncated text without the beginning of a secret, or of a character, at its end."""
    text = text.rstrip("\ufffd")
    forms = Redactor(secrets).forms
    longest = max(map(len, forms), default=0)
    tails = range(max(0, len(text) - longest), len(text))
    end = (at for at in tails if any(form.startswith(text[at:]) for form in forms))
    return text[: next(end, len(text))]


class HttpTrace:
    """Reports one HTTP request and its response to a trace callback."""

    def __init__(self, tap: Tap, number: int, secrets: Sequence[str]) -> None:
        self._tap, self._number, self._secrets = tap, number, secrets
        self._is_stream = self._ended = self._complete = False
        self._buffer, self._dropped_bytes = b"", 0

    def emit(
        self,
        kind: TraceKind,
        text: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str = "",
    ) -> None:
        if self._tap.on_trace is not None:
            event = TraceEvent(kind, text, self._number, status, headers or {}, body)
            self._tap.on_trace(event)

    def request_sent(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        shown = {
            name: value if name in PUBLIC_HEADERS else HIDDEN for name, value in headers.items()
        }
        text = redact((body or b"").decode("utf-8", "replace"), self._secrets)
        self.emit(TraceKind.REQUEST, f"{method} {redact_url(url)}", headers=shown, body=text)

    def response_started(self, response: HttpResponse) -> None:
        self._is_stream = response.content_type == "text/event-stream"
        shown = {
            name.lower(): self._redact_header(name, value)
            for name, value in response.headers.items()
        }
        status = response.status
        self.emit(TraceKind.RESPONSE, f"HTTP {status}", status=status, headers=shown)

    def _redact_header(self, name: str, value: str) -> str:
        hidden = "cookie" in name.lower() or is_secret_name(name)
        return (
            HIDDEN if hidden and name.lower() != _CHALLENGE_HEADER else redact(value, self._secrets)
        )

    def body_received(self, chunk: bytes) -> None:
        """Add a chunk of the body; an empty one is its end."""
        self._complete = not chunk
        room = 0 if self._dropped_bytes else max(0, MAX_BODY_BYTES - len(self._buffer))
        self._buffer += chunk[:room]
        self._dropped_bytes += len(chunk) - len(chunk[:room])
        while self._is_stream and (end := _EVENT_END.search(self._buffer)):
            event, self._buffer = self._buffer[: end.start()], self._buffer[end.end() :]
            self._emit_body(event.decode("utf-8", "replace"))

    def body_ended(self) -> None:
        """Report what is left of the body: no more of it will be read."""
        if not self._ended:
            self._ended = True
            text = self._buffer.decode("utf-8", "replace")
            if self._dropped_bytes or not self._complete:
                text = _without_partial_secret(text, self._secrets)
            dropped = self._dropped_bytes
            self._emit_body(text, f"… and {dropped} bytes more" if dropped else "")

    def _emit_body(self, body: str, suffix: str = "") -> None:
        text = redact(body, self._secrets) + suffix
        if text.strip():
            self.emit(TraceKind.BODY, body=text)


_numbers = itertools.count(1)
"""Numbers of requests and channels, shared by all clients: traces may be shown together."""


async def send_traced(
    client: HttpClient,
    tap: Tap,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    body: bytes | None,
    attempt: Attempt,
    timeout: aiohttp.ClientTimeout,
) -> HttpResponse:
    """`client.send_once`, with its request and its response reported to the tap."""
    sent = [value for name, value in headers.items() if name not in PUBLIC_HEADERS]
    proxy_secrets = secrets_of_url(proxy_for_server(client.spec) or "")
    trace = HttpTrace(tap, next(_numbers), (*client.secrets, *proxy_secrets, *sent))
    trace.request_sent(method, str(url), headers, body)
    try:
        response = await client.send_once(method, url, headers, body, attempt, timeout)
    except WireFault as fault:
        trace.emit(TraceKind.FAILED, fault.evidence.detail)
        raise
    except BaseException:
        trace.emit(TraceKind.ABANDONED)
        raise
    trace.response_started(response)
    return TracingHttpResponse(response, trace)


class TracingHttpResponse(HttpResponse):
    """An HTTP response that reports what is read of its body."""

    __slots__ = ("_trace",)

    def __init__(self, response: HttpResponse, trace: HttpTrace) -> None:
        super().__init__(response._exchange, response._head, response._attempt)
        self._trace = trace

    async def read_chunk(self) -> bytes:
        try:
            chunk = await super().read_chunk()
        except WireFault as fault:
            self._trace.body_ended()
            self._trace.emit(TraceKind.FAILED, fault.evidence.detail)
            raise
        except BaseException:
            self._trace.emit(TraceKind.ABANDONED)
            raise
        self._trace.body_received(chunk)
        return chunk

    def release(self) -> None:
        self._trace.body_ended()
        super().release()

    def discard(self) -> None:
        self._trace.body_ended()
        super().discard()


class ChannelTrace:
    """Reports the messages of one channel."""

    def __init__(self, tap: Tap, secrets: Iterable[str]) -> None:
        self._tap, self._secrets, self._number = tap, secrets, next(_numbers)
        self._reported_stray_output = ""

    def opened(self) -> None:
        self._emit(TraceKind.OPENED)

    def sent(self, body: bytes) -> None:
        self._emit(TraceKind.SENT, body=body.decode("utf-8", "replace"))

    def received(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            if isinstance(message, OversizedMessage):
                self._emit(TraceKind.RECEIVED, f"a message of more than {message.limit} bytes")
            else:
                self._emit(TraceKind.RECEIVED, body=json.dumps(message, ensure_ascii=False))

    def closed(self, reason: CloseReason) -> None:
        self._emit(TraceKind.CLOSED, reason.detail, reason.stderr)

    def stray_output(self, output: str) -> None:
        """Report what is new of all that a program has printed so far."""
        new = output[len(self._reported_stray_output) :].strip("\n")
        self._reported_stray_output = output
        if new:
            self._emit(TraceKind.STRAY_OUTPUT, body=new)

    def _emit(self, kind: TraceKind, text: str = "", body: str = "") -> None:
        if self._tap.on_trace is not None:
            shown = redact(body, self._secrets)[:MAX_BODY_BYTES]
            text, number = redact(text, self._secrets), self._number
            self._tap.on_trace(TraceEvent(kind, text, body=shown, channel_number=number))
