"""The wire of traced servers: requests and answers, paired, timed and bounded.

Fed with the trace events of the transports, from which secrets were removed before. Arguments and
results are masked for viewers who may not see values.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any, cast

from toolkeep._transport.trace import TraceEvent, TraceKind
from toolkeep.console.values import MAX_HEAD, cut_text, mask
from toolkeep.errors import UnknownServer

if TYPE_CHECKING:
    from toolkeep.runtime import Runtime

MAX_EXCHANGES = 500
"""Exchanges that are kept of one server."""
MAX_KEPT = 8 * 1024 * 1024
"""Characters of bodies that are kept of one server."""
MAX_SERVERS = 8
"""Servers whose exchanges are kept, if no more are traced at once."""
MAX_ANSWERS = 50
STREAMED_BODY = 4096
"""Characters of a body in the event stream."""

SHOWN = ("id", "server", "method", "name", "rpc_id", "state", "status", "dropped_answers", "error")
"""What a viewer gets of an exchange as it is."""

_SHOWN_METHODS = frozenset(
    {
        "initialize",
        "notifications/initialized",
        "server/discover",
        "ping",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "notifications/cancelled",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "subscriptions/listen",
        "logging/setLevel",
    }
)
"""Methods whose messages hold no values of calls."""
_STREAM_FIELDS = ("event:", "data:", "id:", "retry:")
_SHOWN_PARAMS = ("name", "uri", "progressToken", "progress", "total")


@dataclass(slots=True)
class Message:
    """One message of an exchange."""

    at: float
    text: str
    headers: dict[str, str]
    body: str

    def as_dict(self, limit: int, *, masked: bool) -> dict[str, Any]:
        body = mask_body(self.body) if masked else self.body
        about = {"at": self.at, "text": self.text, "headers": self.headers}
        return {**about, "body": cut_text(body, limit), "bytes": len(self.body)}


@dataclass(slots=True)
class Exchange:
    """One message of either side, and the answers to it."""

    id: int
    server: str
    sender: str
    request: Message
    key: tuple[str, int, str] | None = None
    """By which its answers find it."""
    method: str | None = None
    name: str | None = None
    rpc_id: str | int | None = None
    state: str = "open"
    status: int | None = None
    error: str | None = None
    answers: list[Message] = field(default_factory=list[Message])
    dropped_answers: int = 0
    version: int = 0

    @property
    def size(self) -> int:
        return len(self.request.body) + sum(len(answer.body) for answer in self.answers)

    def as_dict(self, *, limit: int = MAX_KEPT, values: bool = False) -> dict[str, Any]:
        masked = not values and self.method not in _SHOWN_METHODS
        last = self.answers[-1].at if self.answers else None
        return {
            **{name: getattr(self, name) for name in SHOWN},
            "at": self.request.at,
            "from": self.sender,
            "took": None if last is None else last - self.request.at,
            "request": self.request.as_dict(limit, masked=masked),
            "answers": [answer.as_dict(limit, masked=masked) for answer in self.answers],
            "masked": masked,
        }


class Wire:
    """The exchanges of all traced servers. Belongs to a `Recorder`."""

    def __init__(self, next_version: Callable[[], int]) -> None:
        self._next_version = next_version
        self._exchanges: dict[str, OrderedDict[int, Exchange]] = {}
        self._pairing: dict[tuple[str, int, str], Exchange] = {}
        """Exchanges that may get an answer: by server, number of request or channel, and id."""
        self._sizes: dict[str, int] = {}
        self._numbers = 0
        self.servers: set[str] = set()
        """The servers that are traced now."""

    def begin(self, runtime: Runtime, server: str) -> None:
        """Begin the trace of a server, or go on after the server was replaced. Raises
        `UnknownServer`."""
        runtime.trace(server, lambda event: self.record(server, event))
        self.servers.add(server)
        for other in [one for one in self._exchanges if one not in self.servers]:
            if len(self._exchanges) >= MAX_SERVERS:
                self._forget(other)

    def end(self, runtime: Runtime, server: str) -> None:
        """End the trace. What was recorded stays."""
        self.servers.discard(server)
        with contextlib.suppress(UnknownServer):  # it was removed
            runtime.trace(server, None)

    def _forget(self, server: str) -> None:
        del self._exchanges[server], self._sizes[server]
        self._pairing = {key: one for key, one in self._pairing.items() if key[0] != server}

    def of(self, server: str) -> list[Exchange]:
        """Those of one server, the oldest first."""
        kept = self._exchanges.get(server)
        return sorted(kept.values(), key=lambda each: each.id) if kept else []

    def find(self, number: int) -> Exchange | None:
        found = (of.get(number) for of in self._exchanges.values())
        return next((each for each in found if each is not None), None)

    def changed_since(self, version: int) -> list[Exchange]:
        """Those that changed since, in the order of their changes."""
        found: list[Exchange] = []
        for of in self._exchanges.values():
            for each in reversed(of.values()):
                if each.version <= version:
                    break
                found.append(each)
        return sorted(found, key=lambda each: each.version)

    # -- recording ------------------------------------------------------------------------------

    def record(self, server: str, event: TraceEvent) -> None:
        message = Message(time(), event.text, dict(event.headers), event.body)
        if event.request_number:
            self._record_http(server, event, message)
        else:
            self._record_channel(server, event, message)

    def _record_http(self, server: str, event: TraceEvent, message: Message) -> None:
        key = server, event.request_number, ""
        if event.kind is TraceKind.REQUEST:
            self._add(server, "client", message, key)
            return
        exchange = self._pairing.get(key)
        if exchange is None:
            return
        match event.kind:
            case TraceKind.RESPONSE:
                exchange.status, exchange.state = event.status, "answered"
                self._answer(exchange, message)
            case TraceKind.BODY:
                self._answer(exchange, message)
            case TraceKind.FAILED:
                exchange.state, exchange.error = "failed", event.text
            case _:
                exchange.state = "abandoned"
        self._touch(exchange)

    def _record_channel(self, server: str, event: TraceEvent, message: Message) -> None:
        match event.kind:
            case TraceKind.SENT | TraceKind.RECEIVED:
                sides = ("client", "server")
                sender, other = sides if event.kind is TraceKind.SENT else sides[::-1]
                rpc = parse_message(message.body)
                # Both sides number their own requests.
                asked_by = sender if "method" in rpc else other
                key = server, event.channel_number, f"{asked_by} {rpc.get('id')!r}"
                answered = None if asked_by == sender else self._pairing.pop(key, None)
                if answered is None:
                    self._add(server, sender, message, key)
                    return
                answered.state = "answered"
                self._answer(answered, message)
                self._touch(answered)
            case TraceKind.OPENED | TraceKind.CLOSED | TraceKind.STRAY_OUTPUT:
                exchange = self._add(server, "server", message)
                exchange.method, exchange.state = event.kind.value, "notification"
            case _:
                pass

    def _add(
        self, server: str, sender: str, message: Message, key: tuple[str, int, str] | None = None
    ) -> Exchange:
        self._numbers += 1
        exchange = Exchange(self._numbers, server, sender, message, key)
        if key is not None:
            self._pairing[key] = exchange
        rpc = parse_message(message.body)
        method, rpc_id, params = rpc.get("method"), rpc.get("id"), rpc.get("params")
        exchange.method = method if isinstance(method, str) else None
        exchange.rpc_id = rpc_id if isinstance(rpc_id, str | int) else None
        if isinstance(params, dict):
            named = cast("dict[str, Any]", params)
            name = named.get("name") or named.get("uri")
            exchange.name = name[:200] if isinstance(name, str) else None
        if exchange.method and exchange.rpc_id is None:
            exchange.state = "notification"
        self._exchanges.setdefault(server, OrderedDict())[exchange.id] = exchange
        self._sizes[server] = self._sizes.get(server, 0) + len(message.body)
        self._touch(exchange)
        self._evict(server)
        return exchange

    def _answer(self, exchange: Exchange, message: Message) -> None:
        if len(exchange.answers) >= MAX_ANSWERS:
            exchange.dropped_answers += 1
            return
        exchange.answers.append(message)
        self._sizes[exchange.server] += len(message.body)
        self._evict(exchange.server)

    def _touch(self, exchange: Exchange) -> None:
        kept = self._exchanges[exchange.server]
        if exchange.id in kept:
            exchange.version = self._next_version()
            kept.move_to_end(exchange.id)

    def _evict(self, server: str) -> None:
        kept = self._exchanges[server]
        while len(kept) > MAX_EXCHANGES or (self._sizes[server] > MAX_KEPT and len(kept) > 1):
            _, exchange = kept.popitem(last=False)
            self._sizes[server] -= exchange.size
            if exchange.key is not None and self._pairing.get(exchange.key) is exchange:
                del self._pairing[exchange.key]


# -- messages -----------------------------------------------------------------------------------


def parse_message(body: str) -> dict[str, Any]:
    try:
        message: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", message) if isinstance(message, dict) else {}


def mask_body(body: str) -> str:
    """The body without the values of calls: of JSON-RPC messages, alone or in a stream."""
    if len(body) > MAX_HEAD:
        return f"text({len(body)})"
    if not body.startswith(_STREAM_FIELDS):
        return _masked_message(body)
    lines = (
        f"data: {_masked_message(line[5:])}" if line.startswith("data:") else line
        for line in re.split(r"\r\n|\n|\r", body)
        if line.startswith(_STREAM_FIELDS)
    )
    return "\n".join(lines)


def _masked_message(text: str) -> str:
    message = parse_message(text)
    if not message:
        return f"text({len(text)})" if text.strip() else text
    for part in ("params", "result"):
        given = message.get(part)
        if isinstance(given, dict):
            fields = cast("dict[str, Any]", given)
            shown = {key: fields[key] for key in _SHOWN_PARAMS if key in fields}
            message[part] = {**mask(fields), **shown}
    error = message.get("error")
    if isinstance(error, dict) and "data" in error:
        cast("dict[str, Any]", error)["data"] = mask(error["data"])
    return json.dumps(message, ensure_ascii=False)
