"""What a server may ask of its client: a model's words, a user's choice, the roots of a workspace.

The client says in its handshake which of them it answers. Each question becomes an `InputNeeded`;
the answer is what a function of the user's returns, or what whoever watches the call responds. A
question that nobody answers in time is declined, and so is one that fails: a server never waits
forever, and never gets half an answer.
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
from typing import Any, Literal, cast

from pydantic import BaseModel, ValidationError

from toolkeep._wire.cancelling import is_cancelled
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError
from toolkeep.events import InputNeeded

logger = logging.getLogger("toolkeep.client")

Answerer = Callable[[InputNeeded], Awaitable[Any] | Any]
"""From a question to its answer: a mapping in wire shape or one of the SDK's result types. None
declines."""
Answers = Answerer | Literal["caller"]
"""`"caller"`: whoever made the call answers, in its stream or with `input="return"`."""

_LAST_MOMENT = 1.0
"""Seconds for a function that is cancelled to end."""

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


class Inputs:
    """One for each client: which questions it answers, and how."""

    def __init__(
        self,
        server: str,
        patience: float,
        principal: str | None = None,
        *,
        sampling: Answers | None = None,
        elicitation: Answers | None = None,
        roots: Answers | Sequence[str | Path] | None = None,
    ) -> None:
        self._server, self._patience, self._principal = server, patience, principal
        given: dict[str, Answers | None] = {
            SAMPLING: sampling,
            ELICITATION: elicitation,
            ROOTS: _as_answers(server, roots),
        }
        self._answers: dict[str, Answers] = {}
        for method, answers in given.items():
            if answers is not None:
                self._answers[method] = _checked(server, method, answers)
        self.emit: Callable[[InputNeeded], None] = lambda needed: None

    @property
    def offers(self) -> Sequence[str]:
        return tuple(self._answers)

    def by_caller(self, method: str) -> bool:
        """Whether only whoever made the call can answer it."""
        return self._answers.get(method) == "caller"

    def callbacks(self) -> dict[str, Any]:
        """For the SDK's session, which turns them into capabilities."""
        offered = {
            "sampling_callback": (SAMPLING, self._on_request(SAMPLING)),
            "elicitation_callback": (ELICITATION, self._on_request(ELICITATION)),
            "list_roots_callback": (ROOTS, self._on_request(ROOTS)),
        }
        return {name: asked for name, (method, asked) in offered.items() if method in self._answers}

    def _on_request(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def asked(context: object, params: BaseModel | None = None) -> Any:
            from toolkeep._wire.attempt import current_attempt

            found = (
                params.model_dump(by_alias=True, mode="json", exclude_none=True) if params else {}
            )
            attempt = current_attempt.get()
            if attempt is not None and attempt.ask is not None:
                return await attempt.ask(method, found)
            return await self.answer(self.unrelated(method, found), watched=False)

        return asked

    def unrelated(self, method: str, params: Mapping[str, Any], key: str = "") -> Question:
        """A question in the course of something that nobody watches."""
        context = None if self._principal is None else CallContext(principal=self._principal)
        nobodys = {"server": self._server, "tool": "", "call_id": "", "context": context}
        return Question(self.emit, method, params, nobodys, key)

    async def answer(self, question: Question, *, watched: bool) -> BaseModel:
        """The SDK's result, or its `ErrorData`: in time, whatever happens."""
        try:
            async with asyncio.timeout(self._patience):
                found = await self._find(question, watched=watched)
        except TimeoutError:
            logger.warning("%s: nobody answered %s in time", self._server, question.method)
            found = None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.warning("%s: answering %s was cancelled", self._server, question.method)
            found = None
        except Exception:
            logger.exception("%s: answering %s failed", self._server, question.method)
            found = None
        finally:
            question.close()
        return _typed(self._server, question.method, found)

    async def _find(self, question: Question, *, watched: bool) -> Any:
        answers = self._answers.get(question.method)
        if answers is None:
            return None
        question.ask(awaited=answers == "caller" and watched)
        if answers == "caller":
            if watched:
                return await question.response
            logger.warning("%s: %s: nobody could be asked", self._server, question.method)
            return None
        asking = asyncio.ensure_future(_call(answers, question.needed))
        try:
            await asyncio.wait((asking, question.response), return_when=asyncio.FIRST_COMPLETED)
            return question.response.result() if question.response.done() else await asking
        finally:
            await _end(asking)


class Question:
    """One question on its way to an answer."""

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
        self.needed = InputNeeded(
            method=method, params=params, key=key, reply=self._respond, **common
        )

    def ask(self, *, awaited: bool) -> None:
        self._emit(replace(self.needed, awaited=True) if awaited else self.needed)

    def close(self) -> None:
        self.response.cancel()

    def _respond(self, answer: object) -> None:
        # From any thread: answers may come from a user interface with one of its own.
        self._loop.call_soon_threadsafe(self._settle, answer)

    def _settle(self, answer: object) -> None:
        if not self.response.done():
            self.response.set_result(answer)


async def _call(answers: Answerer, needed: InputNeeded) -> Any:
    if inspect.iscoroutinefunction(answers):
        return await answers(needed)
    # It may well be an `input(…)`: the loop must not stand still for it.
    found = await in_thread(answers, needed)
    return await found if inspect.isawaitable(found) else found


async def in_thread(function: Answerer, needed: InputNeeded) -> Any:
    """In a thread of its own, in the caller's context. Not in the loop's pool: that looks up names
    for everybody, and a program that ends waits for it."""
    loop, context = asyncio.get_running_loop(), copy_context()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(found: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(found) if error is None else answer.set_exception(error)

    def run() -> None:
        found, error = None, None
        try:
            found = context.run(function, needed)
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=run, name="toolkeep-answer", daemon=True).start()
    return await answer


async def _end(asking: asyncio.Future[Any]) -> None:
    """Leave no task behind, nor an exception that nobody has looked at."""
    asking.cancel()
    await asyncio.wait((asking,), timeout=_LAST_MOMENT)
    if asking.done() and not asking.cancelled():
        asking.exception()


def _as_answers(server: str, roots: Answers | Sequence[str | Path] | None) -> Answers | None:
    if roots is None or roots == "caller" or callable(roots):
        return cast("Answers | None", roots)
    if isinstance(roots, str | bytes | Path) or not isinstance(cast("object", roots), Sequence):
        raise _no_root(server, "roots are a list of folders, a function or 'caller'")
    listed = [{"uri": _as_uri(server, root)} for root in roots]

    async def list_roots(needed: InputNeeded) -> Any:
        return {"roots": listed}

    return list_roots


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""Of a URI. One letter and a colon are a drive of Windows'."""


def _as_uri(server: str, root: object) -> str:
    """The protocol allows `file://` only."""
    if not isinstance(root, str | Path) or not str(root).strip() or "\0" in str(root):
        raise _no_root(server, "a root is a folder's path or its file:// address")
    text = str(root)
    if text.lower().startswith("file://"):
        if not text[len("file://") :].strip("/") and not text.endswith("///"):
            raise _no_root(server, "the root's address names no folder")
        return text
    if isinstance(root, str) and _SCHEME.match(text):
        raise _no_root(server, f"a root is a folder, not an address with {text.partition(':')[0]}:")
    return Path(text).absolute().as_uri()


def _no_root(server: str, why: str) -> ConfigError:
    remedy = "Give the paths of folders, or their addresses: file:///…"
    return ConfigError(why, server=server, key="roots", remedy=remedy)


def _checked(server: str, method: str, answers: Answers) -> Answers:
    if answers == "caller" or callable(answers):
        return answers
    key = {SAMPLING: "sampling", ELICITATION: "elicitation", ROOTS: "roots"}[method]
    raise ConfigError(
        f"answers are a function or 'caller', not {type(answers).__name__}",
        server=server,
        key=key,
        remedy="Give a function, async or not, that takes an InputNeeded",
    )


def nobody_answers(why: str) -> BaseModel:
    import mcp_types as types

    return types.ErrorData(code=types.INVALID_REQUEST, message=why)


def _sendable(answer: BaseModel) -> BaseModel:
    """Raises ValueError for what JSON has no word for."""
    json.dumps(answer.model_dump(by_alias=True, mode="json", exclude_none=True), allow_nan=False)
    return answer


def _typed(server: str, method: str, found: Any) -> BaseModel:
    import mcp_types as types

    if found is None and method == ELICITATION:
        return types.ElicitResult(action="decline")
    if found is None:
        return nobody_answers(f"nobody answers {method}")
    models: dict[str, tuple[type[BaseModel], ...]] = {
        ELICITATION: (types.ElicitResult,),
        SAMPLING: (types.CreateMessageResult, types.CreateMessageResultWithTools),
        ROOTS: (types.ListRootsResult,),
    }
    if isinstance(found, types.ErrorData):
        return found
    for model in models.get(method, ()):
        with contextlib.suppress(ValidationError, ValueError):
            return _sendable(found if isinstance(found, model) else model.model_validate(found))
    logger.error("%s: the answer to %s is not what the protocol wants there", server, method)
    return types.ErrorData(code=types.INTERNAL_ERROR, message="the client's answer is malformed")
