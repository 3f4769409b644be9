"""One request of a client: what its caller gave (`CallRequest`), and sending it (`RequestSender`).

`RequestSender` starts the `RetryLoop`. Importing this module loads neither the SDK nor the HTTP
library.
"""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from pydantic_core import to_json

from toolkeep._client.auth import cache_partition
from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.endpoint import EndpointSelector
from toolkeep._client.options import ClientOptions
from toolkeep._client.rates import RateLimits
from toolkeep._client.server_requests import (
    AskClient,
    InputRounds,
    ServerRequest,
    ServerRequestHandlers,
    declined,
    needs_input,
)
from toolkeep._rules.classify import Era
from toolkeep._rules.headers import HeaderRefused, check_headers, split_ignored_headers
from toolkeep._rules.recovery import RetryPolicy
from toolkeep.config import ServerSpec
from toolkeep.context import CallContext
from toolkeep.errors import InvalidArguments
from toolkeep.events import CallEvent

if TYPE_CHECKING:
    from pydantic import BaseModel

    from toolkeep._client.listing import Listings
    from toolkeep._client.retry import RetryLoop
    from toolkeep._client.session import NegotiatedProtocol
    from toolkeep._client.tool_list import ListedTool
    from toolkeep._transport.base import OnCallNotification, OnServerRequest

TOOLS_CALL = "tools/call"
_CONNECT_GRACE = 0.25
"""Seconds beyond `timeouts.connect`, so that the opening itself can report why it failed."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?")
"""A scheme, and then no control character and no space at either end."""
_MAPPING_FIELDS = ("arguments", "headers", "meta", "input_responses")

Emit = Callable[[CallEvent], None]
OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Called with progress, total and message, in order, before the call ends."""


class CallOptions(TypedDict, total=False):
    """The options of every call of a tool, for type checkers; `Client.call_tool` and
    `Runtime.call` say what they mean."""

    headers: Mapping[str, str] | None
    meta: Mapping[str, Any] | None
    timeout: float | None
    on_progress: OnProgress | None
    input: Literal["answer", "return"]
    input_responses: Mapping[str, Any] | None
    request_state: str | None


def prompt_arguments(
    arguments: Mapping[str, Any] | None, *, server: str, prompt: str
) -> dict[str, str]:
    """The arguments of a prompt, which are texts in the protocol; other values as their JSON."""
    try:
        return {
            key: value if isinstance(value, str) else to_json(value).decode()
            for key, value in (arguments or {}).items()
        }
    except (TypeError, ValueError) as error:
        why = f"its arguments cannot be converted to JSON: {error}"
        text = f"{server}: the prompt {prompt} was not asked for: {why}"
        raise InvalidArguments(text, server=server, tool=prompt, problems=(str(error),)) from None


def is_duration(value: object) -> bool:
    """Whether this is a positive number of seconds that fits into a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 and (isinstance(value, float) or value <= sys.float_info.max)


@dataclass(slots=True)
class CallRequest:
    """A tool call, or another request to a server. Made once by `Client` or `Runtime`; `ToolCall`
    fills in what it finds out. Belongs to the task that runs it."""

    name: str = ""
    """The tool's name; empty for other requests."""
    arguments: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    on_progress: OnProgress | None = None
    input: Literal["answer", "return"] = "answer"
    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None
    context: CallContext | None = None
    """Given to the handlers of server requests."""
    method: str = TOOLS_CALL
    """Empty: open a connection, and send nothing."""
    tool: ListedTool | None = None
    """The tool as it was listed; None: it is sent unchecked, and counts as not annotated."""
    listings: Listings | None = None
    """Where the tools are listed again after a header mismatch."""
    policy: RetryPolicy = RetryPolicy.ALWAYS
    """Reads and lists may be sent again freely; a tool call brings its own policy."""
    repeatable: bool = True
    lenient: bool = False
    """Return a malformed result instead of raising."""
    wants_progress: bool = False
    on_notification: OnCallNotification | None = None
    on_server_request: OnServerRequest | None = None
    emit: Emit | None = None
    """Called with the events of this call."""
    call_id: str = ""

    @property
    def title(self) -> str:
        """The tool or the method, for messages."""
        return self.name or self.method

    @property
    def is_tool_call(self) -> bool:
        return self.method == TOOLS_CALL

    def _is_plain(self) -> bool:
        """Whether it has only a name and arguments, as most calls do."""
        return (
            type(self.name) is str
            and (self.arguments is None or type(self.arguments) is dict)
            and self.headers is self.meta is self.timeout is None
            and self.on_progress is self.input_responses is None
            and self.input == "answer"
        )

    def find_problem(self) -> str:
        """What is wrong with it for any tool; empty if it is valid."""
        if self._is_plain():
            return ""
        if not isinstance(cast("object", self.name), str):
            return "the tool's name must be a string"
        for what in _MAPPING_FIELDS:
            given = getattr(self, what)
            if given is not None and not isinstance(given, Mapping):
                return f"{what} must be a mapping"
        if self.timeout is not None and not is_duration(self.timeout):
            return "timeout must be a positive number of seconds"
        if self.on_progress is not None and not callable(cast("object", self.on_progress)):
            return "on_progress must be a function"
        if self.input not in ("answer", "return"):
            return "input must be 'answer' or 'return'"
        return ""


class RequestSender:
    """Sends the requests of one client, each in a `RetryLoop`, and answers what the server asks
    meanwhile. Lives as long as the client."""

    def __init__(
        self,
        spec: ServerSpec,
        options: ClientOptions,
        selector: EndpointSelector,
        request_handlers: ServerRequestHandlers,
    ) -> None:
        self.spec, self._options = spec, options
        self._selector, self.request_handlers = selector, request_handlers
        self.on_progress = options.on_progress
        """For the calls that bring no function of their own."""
        self._instance_id = uuid.uuid4().hex
        self.rates = RateLimits(spec, options) if spec.rate else None

    @property
    def principal(self) -> str | None:
        return self._options.principal

    @property
    def protocol(self) -> NegotiatedProtocol | None:
        """The protocol of the current connection; None if there is no connection."""
        leader = self._selector.current_leader
        return leader.protocol if leader else None

    @property
    def era(self) -> Era | None:
        return self.protocol.era if self.protocol else None

    @property
    def cache_partition(self) -> str:
        """The response cache's partition for this server and principal."""
        version = self.protocol.version if self.protocol else None
        return cache_partition(
            *(self.spec, self._options, self._selector.leader.binding, version, self._instance_id),
            authorized=self._selector.is_authorized,
        )

    @property
    def shares_lists(self) -> bool:
        """Whether other processes may use what the server listed: they know whose it is."""
        options, spec = self._options, self.spec
        is_known = options.principal is not None or options.identity_key is not None
        return bool(spec.url or spec.urls) and (is_known or not self._selector.is_authorized)

    def start(self, request: CallRequest, deadline: RequestDeadline | None = None) -> RetryLoop:
        """The retry loop of a request. Nothing is sent yet."""
        from toolkeep._client.retry import RetryLoop

        if deadline is None:
            deadline = RequestDeadline(request.timeout, self.spec.timeouts)
        return RetryLoop(self._selector, request, deadline)

    async def connect(self) -> None:
        """Open a connection, if there is none."""
        if self.protocol is not None:
            self._selector.loop_guard.check()
            return
        timeout = self.spec.timeouts.connect + _CONNECT_GRACE
        await self.start(CallRequest(method="", timeout=timeout)).run(None)

    async def send(
        self, request: CallRequest, params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request that is not a tool call, and return its result."""
        if request.timeout is not None and not request.timeout > 0:
            why = "timeout must be a positive number of seconds"
            raise self.invalid_arguments(request.method, why)
        return await self.start(request).run(params)

    async def send_with_rounds(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Send a request that may take input rounds; returns the result and whether there were
        any."""
        retry_loop = self.start(CallRequest(method=method, headers=headers))
        raw = await retry_loop.run(params)
        if retry_loop.era is not Era.MODERN or not needs_input(raw):
            return raw, False
        return await self.complete_rounds(retry_loop, method, params, raw, self._ask), True

    async def complete_rounds(
        self,
        retry_loop: RetryLoop,
        what: str,
        params: Mapping[str, Any],
        raw: dict[str, Any],
        ask: AskClient,
    ) -> dict[str, Any]:
        """Answer what a modern server asks, round by round, and return its result."""

        async def send(more: dict[str, Any]) -> dict[str, Any]:
            return await retry_loop.run({**params, **more})

        rounds = InputRounds(self.spec.name, what, retry_loop.deadline, self.spec.max_input_rounds)
        return await rounds.complete(raw, send=send, ask=ask)

    async def _ask(self, key: str, method: str, params: Mapping[str, Any]) -> BaseModel:
        request = self.request_handlers.standalone_request(method, params, key)
        return await self.answer(request, watched=False)

    async def answer(self, request: ServerRequest, *, watched: bool) -> BaseModel:
        """The result or `ErrorData` for a server request. Closing the client ends the wait."""
        answer = asyncio.ensure_future(self.request_handlers.answer(request, watched=watched))
        closed = asyncio.ensure_future(self._selector.wait_closing())
        try:
            await asyncio.wait((answer, closed), return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else declined("the client closed")
        finally:
            closed.cancel()
            answer.cancel()
            await asyncio.wait((answer, closed))

    def checked_headers(
        self, headers: Mapping[str, str] | None, what: str
    ) -> dict[str, str] | None:
        if not headers:
            return None if headers is None else {}
        if not self.spec.url:
            why = "headers need a server that is reached over HTTP; use one client for each user"
            raise self.invalid_arguments(what, why)
        try:
            checked = check_headers(headers, origin="the call")
        except HeaderRefused as refused:
            raise self.invalid_arguments(what, str(refused)) from None
        return split_ignored_headers(checked)[0]

    def check_uri(self, uri: object, what: str) -> None:
        """Raise `InvalidArguments` for what is not the URI of a resource. Servers list URIs with
        spaces and letters beyond ASCII, so these are sent."""
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            why = f"{str(uri)[:200]!r} is not a URI; give one with its scheme, as in file:///notes"
            raise self.invalid_arguments(what, why)

    def invalid_arguments(
        self, what: str, why: str, problems: tuple[str, ...] = ()
    ) -> InvalidArguments:
        name = self.spec.name
        text = f"{name}: {what} was not sent: {why}"
        return InvalidArguments(text, server=name, tool=what, problems=problems)
