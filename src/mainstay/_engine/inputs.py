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
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ValidationError

from mainstay.errors import ConfigError
from mainstay.events import InputNeeded

if TYPE_CHECKING:
    pass

logger = logging.getLogger("mainstay.client")

Answerer = Callable[[InputNeeded], Awaitable[Any]]
"""From a question to its answer: a mapping in wire shape or one of the SDK's result types. None
declines."""
Answers = Answerer | Literal["caller"]
"""`"caller"`: whoever made the call answers, in its stream or with `input="return"`."""

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


class Inputs:
    """One for each client: which questions it answers, and how."""

    def __init__(
        self,
        server: str,
        patience: float,
        *,
        sampling: Answers | None = None,
        elicitation: Answers | None = None,
        roots: Answers | Sequence[str | Path] | None = None,
    ) -> None:
        self._server, self._patience = server, patience
        given: dict[str, Answers | None] = {
            SAMPLING: sampling,
            ELICITATION: elicitation,
            ROOTS: _as_answers(roots),
        }
        self._answers: dict[str, Answers] = {}
        for method, answers in given.items():
            if answers is not None:
                self._answers[method] = _checked(server, method, answers)
        self.emit: Callable[[InputNeeded], None] = lambda needed: None

    @property
    def offers(self) -> Sequence[str]:
        return tuple(self._answers)

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
            from mainstay._wire.attempt import current_attempt

            found = (
                params.model_dump(by_alias=True, mode="json", exclude_none=True) if params else {}
            )
            attempt = current_attempt.get()
            if attempt is not None and attempt.ask is not None:
                return await attempt.ask(method, found)
            return await self.answer(self._unrelated(method, found), watched=False)

        return asked

    async def ask(self, key: str, method: str, params: Mapping[str, Any]) -> BaseModel:
        """A question of a modern server, in the course of something that nobody watches."""
        return await self.answer(self._unrelated(method, params, key), watched=False)

    def _unrelated(self, method: str, params: Mapping[str, Any], key: str = "") -> Question:
        nobodys = {"server": self._server, "tool": "", "call_id": ""}
        return Question(self.emit, method, params, nobodys, key)

    async def answer(self, question: Question, *, watched: bool) -> BaseModel:
        """The SDK's result, or its `ErrorData`: in time, whatever happens."""
        try:
            async with asyncio.timeout(self._patience):
                found = await self._find(question, watched=watched)
        except TimeoutError:
            logger.warning("%s: nobody answered %s in time", self._server, question.method)
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
        question.ask()
        if answers == "caller":
            return await question.response if watched else None
        asking = asyncio.ensure_future(answers(question.needed))
        try:
            await asyncio.wait((asking, question.response), return_when=asyncio.FIRST_COMPLETED)
            return question.response.result() if question.response.done() else await asking
        finally:
            asking.cancel()


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
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._emit = emit
        self.needed = InputNeeded(
            method=method, params=params, key=key, reply=self._respond, **common
        )

    def ask(self) -> None:
        self._emit(self.needed)

    def close(self) -> None:
        self.response.cancel()

    def _respond(self, answer: object) -> None:
        if not self.response.done():
            self.response.set_result(answer)


def _as_answers(roots: Answers | Sequence[str | Path] | None) -> Answers | None:
    if roots is None or roots == "caller" or callable(roots):
        return cast("Answers | None", roots)
    listed = [{"uri": _as_uri(root)} for root in roots]

    async def list_roots(needed: InputNeeded) -> Any:
        return {"roots": listed}

    return list_roots


def _as_uri(root: str | Path) -> str:
    text = str(root)
    return text if text.startswith("file://") else Path(text).absolute().as_uri()


def _checked(server: str, method: str, answers: Answers) -> Answers:
    if answers == "caller" or inspect.iscoroutinefunction(answers) or callable(answers):
        return answers
    key = {SAMPLING: "sampling", ELICITATION: "elicitation", ROOTS: "roots"}[method]
    raise ConfigError(
        f"answers are an async function or 'caller', not {type(answers).__name__}",
        server=server,
        key=key,
        remedy="Give an async function that takes an InputNeeded",
    )


def _typed(server: str, method: str, found: Any) -> BaseModel:
    import mcp_types as types

    if found is None and method == ELICITATION:
        return types.ElicitResult(action="decline")
    if found is None:
        return types.ErrorData(code=types.INVALID_REQUEST, message=f"nobody answers {method}")
    if isinstance(found, BaseModel):
        return found
    models: dict[str, tuple[type[BaseModel], ...]] = {
        ELICITATION: (types.ElicitResult,),
        SAMPLING: (types.CreateMessageResult, types.CreateMessageResultWithTools),
        ROOTS: (types.ListRootsResult,),
    }
    for model in models[method]:
        with contextlib.suppress(ValidationError):
            return model.model_validate(found)
    logger.error("%s: the answer to %s is not what the protocol wants there", server, method)
    return types.ErrorData(code=types.INTERNAL_ERROR, message="the client's answer is malformed")
