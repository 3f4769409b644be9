"""One call of the schedule, made through the runtime, and what the client said about it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from chaos.judge import Said
from chaos.scene import GUEST, NOBODY, VISITOR, token
from chaos.schedule import Step
from toolkeep import CallContext, CallResult, NotOffered, Runtime, ToolkeepError
from toolkeep.errors import Delivery

_OF_DELIVERY = {
    Delivery.NOT_SENT: Said.NOT_RUN,
    Delivery.REFUSED: Said.NOT_RUN,
    Delivery.ANSWERED: Said.ANSWERED,
    Delivery.UNKNOWN: Said.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Statement:
    """How a call ended, in the client's words."""

    said: Said
    words: str
    foreign: str = ""
    """A result that belongs to another call."""


async def made(runtime: Runtime, step: Step) -> CallResult:
    context = None
    if step.principal != NOBODY:
        headers = {"authorization": token(step.principal, step.rotation)}
        context = CallContext(principal=step.principal, headers=headers)
    name = f"{step.server}.{step.tool}"
    if not step.watched:
        return await runtime.call(name, step.arguments, context=context, timeout=step.timeout)
    async with runtime.stream(name, step.arguments, context=context, timeout=step.timeout) as call:
        seen = [event async for event in call]
        if [event.is_final for event in seen] != [False] * (len(seen) - 1) + [True]:
            raise RuntimeError(f"a call's events are {[event.kind for event in seen]}")
        return await call.result()


def stated(step: Step, task: asyncio.Task[CallResult], *, cancelled: bool) -> Statement:
    """What a call that has ended says of itself; `cancelled`: by its caller, before it ended."""
    if task.cancelled():
        return Statement(Said.CANCELLED if cancelled else Said.NONSENSE, "CancelledError")
    error = task.exception()
    if error is None:
        return _answered(step, task.result())
    words = f"{type(error).__name__}: {str(error)[:300]}"
    if not isinstance(error, ToolkeepError):
        return Statement(Said.NONSENSE, words)
    if isinstance(error, NotOffered) and step.server not in (GUEST, VISITOR):
        return Statement(Said.NONSENSE, words)
    return Statement(_OF_DELIVERY[error.delivery], words)


def _answered(step: Step, result: CallResult) -> Statement:
    words = f"a result after {result.attempts} attempts in {result.duration:.3f} s"
    if result.text == json.dumps(step.arguments):
        return Statement(Said.COMPLETED, words)
    return Statement(Said.COMPLETED, words, foreign=result.text[:200])
