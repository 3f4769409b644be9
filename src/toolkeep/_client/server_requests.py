"""Requests from the server to the client: sampling, elicitation and roots, in both protocol eras.

Owns the handlers that the user gave and the input rounds of a modern request. Each request is
answered within its timeout or declined; a server never waits for ever. Importing this module
loads neither the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ValidationError

from toolkeep._client.deadline import RequestDeadline
from toolkeep._tasks import StrayCancellation, foreign_code
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, InputNotGiven
from toolkeep.events import InputNeeded

if TYPE_CHECKING:
    from toolkeep._transport.base import Attempt

logger = logging.getLogger("toolkeep.client")

RequestHandler = Callable[[InputNeeded], Awaitable[Any] | Any]
"""From a server request to its result: a JSON mapping or a result type of `mcp_types`. None
declines. The answer to sampling may also be a text, a content block or a message.
"""
RequestHandlerOption = RequestHandler | Literal["caller"]
"""`"caller"`: the caller of the tool answers, in its stream or with `input="return"`."""

Send = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends the request again, with these parameters added."""
Pause = Callable[[float], Awaitable[None]]
AskClient = Callable[[str, str, Mapping[str, Any]], Awaitable[BaseModel]]
"""From a key, a method and its parameters to a result or `ErrorData`."""

MAX_SERVER_REQUESTS = 100
"""Server requests during one call, in both eras. An open one pauses the call's deadline."""
MAX_CONCURRENT = 8
"""Server requests of one round that are answered concurrently."""
_FIRST_POLL_DELAY, _MAX_POLL_DELAY = 0.05, 0.25
"""Seconds before the next round when the server sent only a state; as in the SDKs."""
_CANCEL_GRACE = 1.0
"""Seconds for a cancelled handler to end."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""The scheme of a URI. A single letter and a colon are a Windows drive."""

_UNKNOWN_MODEL = "unknown"
"""The model of a sampling answer that does not name one."""

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


class ServerRequestHandlers:
    """The handlers of one client: which server requests it answers, and how. Lives as long as the
    client."""

    def __init__(
        self,
        server: str,
        timeout: float,
        principal: str | None = None,
        *,
        sampling: RequestHandlerOption | None = None,
        elicitation: RequestHandlerOption | None = None,
        roots: RequestHandlerOption | Sequence[str | Path] | None = None,
    ) -> None:
        self._server, self._timeout, self._principal = server, timeout, principal
        given: dict[str, RequestHandlerOption | None] = {
            SAMPLING: sampling,
            ELICITATION: elicitation,
            ROOTS: _roots_handler(server, roots),
        }
        self._handlers: dict[str, RequestHandlerOption] = {}
        for method, handler in given.items():
            if handler is not None:
                self._handlers[method] = _check_handler(server, method, handler)
        self.emit: Callable[[InputNeeded], None] = lambda needed: None

    @property
    def methods(self) -> Sequence[str]:
        return tuple(self._handlers)

    def needs_caller(self, method: str) -> bool:
        """Whether only the caller of the tool can answer it."""
        return self._handlers.get(method) == "caller"

    async def answer_during(
        self, attempt: Attempt, method: str, params: Mapping[str, Any]
    ) -> BaseModel:
        """Answer a request that a legacy server sent, during this request of ours if it belongs to
        one. Returns a result or `ErrorData`."""
        if attempt.on_server_request is not None:
            return await attempt.on_server_request(method, params)
        return await self.answer(self.standalone_request(method, params), watched=False)

    def standalone_request(
        self, method: str, params: Mapping[str, Any], key: str = ""
    ) -> ServerRequest:
        """A server request outside of a tool call."""
        context = None if self._principal is None else CallContext(principal=self._principal)
        facts = {"server": self._server, "tool": "", "call_id": "", "context": context}
        return ServerRequest(self.emit, method, params, facts, key)

    async def answer(self, request: ServerRequest, *, watched: bool) -> BaseModel:
        """A result or `ErrorData`, always within the timeout."""
        try:
            async with asyncio.timeout(self._timeout):
                with foreign_code():
                    found = await self._handle(request, watched=watched)
        except TimeoutError:
            logger.warning("%s: %s was not answered in time", self._server, request.method)
            found = None
        except StrayCancellation:
            logger.warning("%s: the handler of %s was cancelled", self._server, request.method)
            found = None
        except Exception:
            logger.exception("%s: the handler of %s failed", self._server, request.method)
            found = None
        finally:
            request.close()
        return _to_result(self._server, request.method, found)

    async def _handle(self, request: ServerRequest, *, watched: bool) -> Any:
        handler = self._handlers.get(request.method)
        if handler is None:
            return None
        request.emit_event(answer_required=handler == "caller" and watched)
        if handler == "caller":
            if watched:
                return await request.response
            logger.warning(
                "%s: %s was declined: its caller does not watch the call",
                self._server,
                request.method,
            )
            return None
        task = asyncio.ensure_future(_call_handler(handler, request.event))
        try:
            await asyncio.wait((task, request.response), return_when=asyncio.FIRST_COMPLETED)
            return request.response.result() if request.response.done() else await task
        finally:
            await _cancel_and_wait(task)


class ServerRequest:
    """One server request, from its event to its answer. Lives until it is answered or declined."""

    def __init__(
        self,
        emit: Callable[[InputNeeded], None],
        method: str,
        params: Mapping[str, Any],
        common: Mapping[str, Any],
        key: str = "",
    ) -> None:
        self.method = method
        self._emit, self._loop = emit, asyncio.get_running_loop()
        self.response: asyncio.Future[Any] = self._loop.create_future()
        self.event = InputNeeded(
            method=method,
            params=params,
            key=key,
            reply=self._on_reply,
            waits=self._is_open,
            **common,
        )

    def emit_event(self, *, answer_required: bool) -> None:
        self._emit(replace(self.event, answer_required=True) if answer_required else self.event)

    def close(self) -> None:
        self.response.cancel()

    def _is_open(self) -> bool:
        return not self.response.done()

    def _on_reply(self, answer: object) -> None:
        # Callable from any thread: a user interface may have one of its own.
        self._loop.call_soon_threadsafe(self._resolve, answer)

    def _resolve(self, answer: object) -> None:
        if not self.response.done():
            self.response.set_result(answer)


async def _call_handler(handler: RequestHandler, needed: InputNeeded) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(needed)
    # It may block in `input(…)`, so it must not run in the event loop.
    found = await run_in_thread(handler, needed)
    return await found if inspect.isawaitable(found) else found


async def run_in_thread(function: RequestHandler, needed: InputNeeded) -> Any:
    """Call a plain function in a thread of its own, in the caller's context. The loop's thread pool
    is not used: DNS lookups need it, and a program waits for it at exit."""
    loop, context = asyncio.get_running_loop(), copy_context()
    answer: asyncio.Future[Any] = loop.create_future()

    def resolve(found: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(found) if error is None else answer.set_exception(error)

    def run() -> None:
        found, error = None, None
        try:
            found = context.run(function, needed)
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, found, error)

    threading.Thread(target=run, name="toolkeep-answer", daemon=True).start()
    return await answer


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel the handler's task, wait for its end and retrieve its exception."""
    task.cancel()
    await asyncio.wait((task,), timeout=_CANCEL_GRACE)
    if task.done() and not task.cancelled():
        task.exception()


def _roots_handler(
    server: str, roots: RequestHandlerOption | Sequence[str | Path] | None
) -> RequestHandlerOption | None:
    if roots is None or roots == "caller" or callable(roots):
        return cast("RequestHandlerOption | None", roots)
    if isinstance(roots, str | bytes | Path) or not isinstance(cast("object", roots), Sequence):
        raise _invalid_root(server, "roots must be a list of folders, a function or 'caller'")
    listed = [{"uri": _root_uri(server, root)} for root in roots]

    async def list_roots(needed: InputNeeded) -> Any:
        return {"roots": listed}

    return list_roots


def _root_uri(server: str, root: object) -> str:
    """The `file://` URI of a root; the protocol allows no other scheme."""
    if not isinstance(root, str | Path) or not str(root).strip() or "\0" in str(root):
        raise _invalid_root(server, "a root must be the path or the file:// URI of a folder")
    text = str(root)
    if text.lower().startswith("file://"):
        if not text[len("file://") :].strip("/") and not text.endswith("///"):
            raise _invalid_root(server, "the root's URI must name a folder")
        return text
    if isinstance(root, str) and _SCHEME.match(text):
        raise _invalid_root(server, f"a root must be a folder, not a {text.partition(':')[0]}: URI")
    return Path(text).absolute().as_uri()


def _invalid_root(server: str, why: str) -> ConfigError:
    remedy = "Give paths of folders, or URIs: file:///…"
    return ConfigError(why, server=server, key="roots", remedy=remedy)


def _check_handler(server: str, method: str, handler: RequestHandlerOption) -> RequestHandlerOption:
    if handler == "caller" or callable(handler):
        return handler
    key = {SAMPLING: "sampling", ELICITATION: "elicitation", ROOTS: "roots"}[method]
    raise ConfigError(
        f"the handler must be a function or 'caller', not {type(handler).__name__}",
        server=server,
        key=key,
        remedy="Give a function, async or not, that takes an InputNeeded",
    )


def declined(why: str) -> BaseModel:
    import mcp_types as types

    return types.ErrorData(code=types.INVALID_REQUEST, message=why)


def _check_json(answer: BaseModel) -> BaseModel:
    """Raises `ValueError` for values that JSON cannot hold."""
    json.dumps(answer.model_dump(by_alias=True, mode="json", exclude_none=True), allow_nan=False)
    return answer


def _to_result(server: str, method: str, found: Any) -> BaseModel:
    import mcp_types as types

    if found is None and method == ELICITATION:
        return types.ElicitResult(action="decline")
    if found is None:
        return declined(f"the client does not answer {method}")
    models: dict[str, tuple[type[BaseModel], ...]] = {
        ELICITATION: (types.ElicitResult,),
        SAMPLING: (types.CreateMessageResult, types.CreateMessageResultWithTools),
        ROOTS: (types.ListRootsResult,),
    }
    if isinstance(found, types.ErrorData):
        return found
    if method == SAMPLING:
        found = _sampling_result(found)
    for model in models.get(method, ()):
        with contextlib.suppress(ValidationError, ValueError):
            return _check_json(found if isinstance(found, model) else model.model_validate(found))
    logger.error("%s: the answer to %s has the wrong shape for the protocol", server, method)
    return types.ErrorData(code=types.INTERNAL_ERROR, message="the client's answer is malformed")


def _sampling_result(found: Any) -> Any:
    """A sampling answer that is a text, a content block or a message, as the result that the
    protocol wants: an assistant's message, with the name of its model."""
    import mcp_types as types

    if isinstance(found, str):
        found = types.TextContent(type="text", text=found)
    if isinstance(found, types.TextContent | types.ImageContent | types.AudioContent):
        found = {"content": found}
    elif isinstance(found, types.SamplingMessage):
        found = {"role": found.role, "content": found.content}
    if not isinstance(found, dict) or "content" not in found:
        return cast("Any", found)
    given = cast("dict[str, Any]", found)
    return {"role": "assistant", "model": _UNKNOWN_MODEL, **given}


def needs_input(raw: Mapping[str, Any]) -> bool:
    return raw.get("resultType") == "input_required"


class InputRounds:
    """The input rounds of one request to a modern server. `what` names the request in errors."""

    def __init__(self, server: str, what: str, deadline: RequestDeadline, max_rounds: int) -> None:
        self._server, self._what = server, what
        self._deadline, self._max_rounds = deadline, max_rounds
        self._request_count = 0

    async def complete(
        self, raw: dict[str, Any], *, send: Send, ask: AskClient, pause: Pause = asyncio.sleep
    ) -> dict[str, Any]:
        """Answer the server's input requests until it returns a result. Raises `InputNotGiven`."""
        delay = _FIRST_POLL_DELAY
        for _ in range(self._max_rounds):
            if not needs_input(raw):
                return raw
            more: dict[str, Any] = {}
            if requests := _input_requests(raw):
                more["inputResponses"] = await self._answer(requests, ask)
            else:
                await pause(delay)
                delay = min(delay * 2, _MAX_POLL_DELAY)
            if "requestState" in raw:
                more["requestState"] = raw["requestState"]
            raw = await send(more)
        if not needs_input(raw):
            return raw
        why = f"the server still wants input after {self._max_rounds} rounds"
        raise _input_not_given(why, self._server, self._what, _input_requests(raw))

    async def _answer(self, requests: Mapping[str, Any], ask: AskClient) -> dict[str, Any]:
        """The answers of one round. The time of the request stands still meanwhile."""
        server, what = self._server, self._what
        self._request_count += len(requests)
        if self._request_count > MAX_SERVER_REQUESTS:
            why = f"the server made more than {MAX_SERVER_REQUESTS} requests"
            raise _input_not_given(why, server, what, requests)
        try:
            with self._deadline.paused():
                async with asyncio.timeout(self._deadline.until_cap):
                    return await _answer_all(requests, ask, server, what)
        except TimeoutError:
            why = "answering the server took longer than timeouts.max_call"
            raise _input_not_given(why, server, what, requests) from None


async def _answer_all(
    requests: Mapping[str, Any], ask: AskClient, server: str, what: str
) -> dict[str, Any]:
    """All answers of one round. The first refusal cancels the others."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    async def answer(key: str, request: object) -> BaseModel:
        async with semaphore:
            return await ask(key, *_parse_request(request))

    from mcp_types import ErrorData

    tasks = {key: asyncio.ensure_future(answer(key, one)) for key, one in requests.items()}
    answers: dict[str, Any] = {}
    try:
        for done in asyncio.as_completed(tasks.values()):
            if isinstance(refused := await done, ErrorData):
                raise _input_not_given(refused.message, server, what, requests)
        for key, task in tasks.items():
            result = task.result()
            answers[key] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
    return answers


def _input_requests(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    found = raw.get("inputRequests")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _parse_request(request: object) -> tuple[str, Mapping[str, Any]]:
    fields = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
    params = fields.get("params")
    given = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    return str(fields.get("method", "")), given


def _input_not_given(
    why: str, server: str, what: str, requests: Mapping[str, Any]
) -> InputNotGiven:
    text = f"{server}: {what} stopped at the server's request for input: {why}. It ran up to there"
    return InputNotGiven(text, server=server, tool=what, requests=requests)
