"""Shows what passes over the wire to somebody who looks on, as `toolkeep check --trace` does.

Nothing here is made, or even imported, unless a tap is given. What the tap is told holds no secret:
the values of our headers, what the URL and the program's environment hold in confidence, and
whatever sounds secret by its name are taken out first. Nothing is shown in pieces so small that a
secret could lie across two of them: a body as a whole, an event stream event by event.
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

from toolkeep._wire.attempt import Attempt
from toolkeep._wire.duct import Duct, Epitaph, Oversized, Received
from toolkeep._wire.fault import WireFault
from toolkeep._wire.hush import PUBLIC_HEADERS, Redaction, quiet
from toolkeep._wire.link import Link
from toolkeep._wire.reply import Reply
from toolkeep._wire.routes import proxy_of
from toolkeep.config import ServerSpec, redact_url, secrets_of_url
from toolkeep.config.redact import HIDDEN, is_secret_name, is_secret_parameter

MOST_BYTES = 256 * 1024
"""Of one body or event that are kept to be shown."""

_CHALLENGE = "www-authenticate"
_IN_QUERY = re.compile(r"([?&;](?P<name>[\w.%-]+)=)[^&\s\"'<>]+")
_IN_JSON = re.compile(r'("(?P<name>[\w.-]+)"\s*:\s*")(?:[^"\\]|\\.)+', re.DOTALL)
"""To the closing quote, or to the end of a text that broke off before it."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Move(enum.Enum):
    """What happened."""

    ASKED = "asked"
    """An HTTP request is on its way."""
    ANSWERED = "answered"
    """The head of its answer came."""
    BODY = "body"
    """The body of the answer, or one event of it."""
    BROKE = "broke"
    GIVEN_UP = "given up"
    """We did not wait any longer."""
    OPENED = "opened"
    """A program runs."""
    OUT = "out"
    IN = "in"
    """A message on a pipe."""
    NOISE = "noise"
    """What a program printed that is no message."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Passing:
    """One thing that happened, as it may be shown."""

    move: Move
    text: str = ""
    number: int = 0
    """Of the HTTP request that it belongs to."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """With lower-case names."""
    body: str = ""
    at: float = field(default_factory=time.monotonic)


Tap = Callable[[Passing], None]


def veiled(text: str, private: Iterable[str]) -> str:
    """The text without what is private, however it is written, and without the values of what
    sounds secret."""
    text = _IN_QUERY.sub(partial(_hidden, is_secret_parameter), quiet(text, private))
    return _IN_JSON.sub(partial(_hidden, is_secret_name), text)


def _hidden(is_secret: Callable[[str], bool], found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if is_secret(unquote(found["name"])) else found[0]


def _unbroken(text: str, private: Iterable[str]) -> str:
    """A text that was cut off, without the beginning of a secret, or of a sign, at its end."""
    text = text.rstrip("\ufffd")
    forms = Redaction(private).forms
    longest = max(map(len, forms), default=0)
    tails = range(max(0, len(text) - longest), len(text))
    end = (at for at in tails if any(form.startswith(text[at:]) for form in forms))
    return text[: next(end, len(text))]


class Talk:
    """One HTTP request and its answer, told to the tap."""

    def __init__(self, tap: Tap, number: int, private: Sequence[str]) -> None:
        self._tap, self._number, self._private = tap, number, private
        self._stream = self._over = self._whole = False
        self._kept, self._dropped = b"", 0

    def tell(
        self,
        move: Move,
        text: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str = "",
    ) -> None:
        self._tap(Passing(move, text, self._number, status, headers or {}, body))

    def asked(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> None:
        shown = {
            name: value if name in PUBLIC_HEADERS else HIDDEN for name, value in headers.items()
        }
        text = veiled((body or b"").decode("utf-8", "replace"), self._private)
        self.tell(Move.ASKED, f"{method} {redact_url(url)}", headers=shown, body=text)

    def answered(self, reply: Reply) -> None:
        self._stream = reply.content_type == "text/event-stream"
        shown = {name.lower(): self._shown(name, value) for name, value in reply.headers.items()}
        self.tell(Move.ANSWERED, f"HTTP {reply.status}", status=reply.status, headers=shown)

    def _shown(self, name: str, value: str) -> str:
        hidden = "cookie" in name.lower() or is_secret_name(name)
        return HIDDEN if hidden and name.lower() != _CHALLENGE else veiled(value, self._private)

    def came(self, chunk: bytes) -> None:
        self._whole = not chunk
        room = 0 if self._dropped else max(0, MOST_BYTES - len(self._kept))
        self._kept += chunk[:room]
        self._dropped += len(chunk) - len(chunk[:room])
        while self._stream and (end := _EVENT_END.search(self._kept)):
            event, self._kept = self._kept[: end.start()], self._kept[end.end() :]
            self._show(event.decode("utf-8", "replace"))

    def over(self) -> None:
        """Nothing more of the body is read."""
        if not self._over:
            self._over = True
            text = self._kept.decode("utf-8", "replace")
            if self._dropped or not self._whole:
                text = _unbroken(text, self._private)
            self._show(text, f"… and {self._dropped} bytes more" if self._dropped else "")

    def _show(self, body: str, more: str = "") -> None:
        text = veiled(body, self._private) + more
        if text.strip():
            self.tell(Move.BODY, body=text)


class TappedLink(Link):
    """A link that tells what it sends and gets."""

    _numbers = itertools.count(1)
    """Of all links: what several of them tell may be shown together."""

    def __init__(self, spec: ServerSpec, tap: Tap) -> None:
        super().__init__(spec)
        self._tap = tap
        self._of_proxy = secrets_of_url(proxy_of(spec) or "")

    async def _send_once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
        timeout: aiohttp.ClientTimeout,
    ) -> Reply:
        sent = [value for name, value in headers.items() if name not in PUBLIC_HEADERS]
        talk = Talk(self._tap, next(self._numbers), (*self.secrets, *self._of_proxy, *sent))
        talk.asked(method, str(url), headers, body)
        try:
            reply = await super()._send_once(method, url, headers, body, attempt, timeout)
        except WireFault as fault:
            talk.tell(Move.BROKE, fault.evidence.detail)
            raise
        except BaseException:
            talk.tell(Move.GIVEN_UP)
            raise
        talk.answered(reply)
        return TappedReply(reply, talk)


class TappedReply(Reply):
    """An answer that tells what is read of it."""

    __slots__ = ("_talk",)

    def __init__(self, reply: Reply, talk: Talk) -> None:
        super().__init__(reply._turn, reply._answer, reply._attempt)
        self._talk = talk

    async def chunk(self) -> bytes:
        try:
            chunk = await super().chunk()
        except WireFault as fault:
            self._talk.over()
            self._talk.tell(Move.BROKE, fault.evidence.detail)
            raise
        except BaseException:
            self._talk.tell(Move.GIVEN_UP)
            raise
        self._talk.came(chunk)
        return chunk

    def release(self) -> None:
        self._talk.over()
        super().release()

    def discard(self) -> None:
        self._talk.over()
        super().discard()


class TappedDuct:
    """A duct that tells which messages it carries."""

    def __init__(self, duct: Duct, private: Sequence[str], tap: Tap) -> None:
        self._duct, self._private, self._tap = duct, private, tap
        self._noise = ""
        self.kind, self.answers_apart = duct.kind, duct.answers_apart

    @property
    def heard_at(self) -> float:
        return self._duct.heard_at

    @property
    def session_id(self) -> str | None:
        return self._duct.session_id

    @property
    def said(self) -> str:
        return self._duct.said

    async def open(self) -> None:
        await self._duct.open()
        self._tap(Passing(Move.OPENED))

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        self._tell(Move.OUT, body=body.decode("utf-8", "replace"))
        await self._duct.send(body, attempt, headers)

    async def receive(self) -> Sequence[Received] | None:
        received = await self._duct.receive()
        self._tell_noise()
        for message in received or ():
            if isinstance(message, Oversized):
                self._tell(Move.IN, f"a message of more than {message.limit} bytes")
            else:
                self._tell(Move.IN, body=json.dumps(message, ensure_ascii=False))
        return received

    async def epitaph(self) -> Epitaph:
        epitaph = await self._duct.epitaph()
        self._tell(Move.ENDED, epitaph.detail, epitaph.stderr)
        return epitaph

    async def close(self) -> None:
        self._tell_noise()
        await self._duct.close()

    def abandon(self, *, forked: bool) -> None:
        self._duct.abandon(forked=forked)

    def _tell(self, move: Move, text: str = "", body: str = "") -> None:
        shown = veiled(body, self._private)[:MOST_BYTES]
        self._tap(Passing(move, veiled(text, self._private), body=shown))

    def _tell_noise(self) -> None:
        said, self._noise = self._duct.said[len(self._noise) :].strip("\n"), self._duct.said
        if said:
            self._tell(Move.NOISE, body=said)
