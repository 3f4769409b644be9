"""A server's questions, asked through LangGraph's `interrupt`, without running a tool twice.

A node that was interrupted runs again from its start when it is resumed, in another process if need
be. So each leg of a call is a LangGraph task: its outcome is in the thread's checkpoint, and is
read from there the next time. A leg ends with the result, or with a question:

- A modern server keeps nothing: the next leg brings it the answers and its `requestState`.
- A legacy server waits: its call stays open here, under a name that is in the checkpoint, too.
  If it is not here any more (another process, closed, too many), whether it ran is not known. That
  is said, and it is not called again.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from typing_extensions import TypedDict

from toolkeep._catalogue.tool import Caller, Tool
from toolkeep._engine.call import Call
from toolkeep.context import CallContext
from toolkeep.errors import CallOutcomeUnknown, Delivery, InputNotGiven, ToolkeepError
from toolkeep.events import InputNeeded
from toolkeep.results import CallResult

MOST_ROUNDS = 10
"""As the SDKs have it."""
MOST_OPEN = 1000
"""Calls of one runtime that wait for a user. The oldest is given up for a new one."""
_PAUSE = 0.1
"""Seconds before asking again, when the server only sent a state."""
_ELICITATION = "elicitation/create"

Tell = Callable[[float, float | None, str | None], Awaitable[None]]
Outcome = dict[str, Any]
"""Of a leg, as plain data: `{"raw": …}`, or `{"asked": …}` with `state` or `open`."""
Guard = Callable[[Callable[[], Awaitable[Outcome]]], Awaitable[Outcome]]
"""Runs a leg, and may turn its failure into an outcome."""


class Answer(BaseModel):
    """What to resume an interrupt with: the user's answer. `content` is the form as filled in."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


@dataclass(frozen=True)
class Errand:
    """One call of a tool in a thread: what is the same on every leg of it."""

    tool: Tool
    arguments: Mapping[str, Any]
    context: CallContext | None
    thread: str
    tool_call_id: str | None
    tell: Tell
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def owner(self) -> tuple[str, str | None, str | None]:
        return self.thread, self.tool_call_id, self.context and self.context.principal


class Open:
    """A call that goes on, or waits for its answer. Between two legs nobody listens to it."""

    def __init__(self, errand: Errand) -> None:
        self.owner, self.tell = errand.owner, errand.tell
        self.stack = AsyncExitStack()
        self.call: Call | None = None
        self.question: InputNeeded | None = None
        self.outcome: Outcome | None = None
        self.waiting: asyncio.Task[None] | None = None

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        await self.tell(progress, total, message)  # to the run that listens now

    async def wait(self, forget: Callable[[], object]) -> None:
        """While nobody listens: a question that is not answered in time ends the call, and so does
        the end of its runtime, which must not live on for what is kept here."""
        assert self.call is not None
        try:
            self.outcome = _ended(await self.call.result())
        except ToolkeepError:
            forget()
        await self.stack.aclose()
        self.call = self.question = None


_open: WeakKeyDictionary[Caller, OrderedDict[str, Open]] = WeakKeyDictionary()


def current_thread() -> str | None:
    """The thread of the graph that runs here; None: there is nothing to interrupt."""
    try:
        from langgraph.runtime import get_runtime

        info = get_runtime().execution_info
    except (ImportError, RuntimeError, AttributeError):
        return None
    return None if info is None else info.thread_id


async def converse(errand: Errand, guard: Guard) -> Outcome:
    """All legs of a call, with the interrupts between. Raises LangGraph's `GraphInterrupt`."""
    outcome: Outcome = {}
    answers: dict[str, Any] | None = None
    for _ in range(MOST_ROUNDS):
        outcome = await _checkpointed(errand, outcome, answers, guard)
        if "asked" not in outcome:
            return outcome
        answers = _interrupt(errand, outcome["asked"])
    return await guard(functools.partial(_give_up, errand, outcome["asked"]))


async def _give_up(errand: Errand, asked: Mapping[str, Any]) -> Outcome:
    raise InputNotGiven(
        f"{errand.tool.name[:200]} still asks after {MOST_ROUNDS} rounds",
        server=errand.tool.server,
        tool=errand.tool.tool,
        requests=asked,
    )


async def _checkpointed(
    errand: Errand, before: Outcome, answers: dict[str, Any] | None, guard: Guard
) -> Outcome:
    from langgraph.func import task  # pyright: ignore[reportMissingTypeStubs]

    # A closure without arguments: those of a task are shown to whoever traces the run.
    async def toolkeep_call() -> Outcome:
        return await guard(lambda: _leg(errand, before, answers))

    return await cast("Awaitable[Outcome]", task(toolkeep_call)())


def _interrupt(errand: Errand, asked: Mapping[str, Any]) -> dict[str, Any]:
    from langgraph.types import interrupt

    value = {
        "tool": errand.tool.model_name,
        "server": errand.tool.server,
        "tool_call_id": errand.tool_call_id,
        "questions": asked,
    }
    kinds = {key: Answer if is_for_users(one) else dict[str, Any] for key, one in asked.items()}
    # Checked by LangGraph: after a resume that is no answer, the question can be answered again.
    if len(kinds) == 1:
        [(key, kind)] = kinds.items()
        return {key: _wire(interrupt(value, response_schema=cast("type[Any]", kind)))}
    form = cast("Any", TypedDict)("Answers", kinds)
    given = interrupt(value, response_schema=cast("type[dict[str, Any]]", form))
    return {key: _wire(answer) for key, answer in given.items()}


def is_for_users(question: Mapping[str, Any]) -> bool:
    return question.get("method") == _ELICITATION


def _wire(answer: Any) -> Any:
    return answer.model_dump(exclude_none=True) if isinstance(answer, Answer) else answer


# -- one leg ------------------------------------------------------------------------------------


async def _leg(errand: Errand, before: Outcome, answers: dict[str, Any] | None) -> Outcome:
    if "open" in before:
        place = _take(errand, before["open"])
        if place.question is None:
            return place.outcome or {}
        place.tell = errand.tell
        place.question.respond(next(iter((answers or {}).values()), None))
        return await _listen(errand, place)
    state = before.get("state")
    for _ in range(MOST_ROUNDS):
        outcome = await _listen(errand, await _begin(errand, answers, state))
        if outcome.get("asked", True):
            return outcome
        answers, state = None, outcome["state"]
        await asyncio.sleep(_PAUSE)
    return await _give_up(errand, {})


async def _begin(errand: Errand, answers: dict[str, Any] | None, state: str | None) -> Open:
    place = Open(errand)
    more: dict[str, Any] = {"input_responses": answers, "request_state": state}
    call = errand.tool.stream(
        errand.arguments,
        context=errand.context,
        on_progress=place.on_progress,
        input="return",
        **more,
        **errand.options,
    )
    place.call = await place.stack.enter_async_context(call)
    return place


async def _listen(errand: Errand, place: Open) -> Outcome:
    """Until the call ends, or asks. Whoever is cancelled here cancels the call."""
    assert place.call is not None
    async with place.stack as stack:
        async for event in place.call:
            if isinstance(event, InputNeeded) and event.method == _ELICITATION:
                place.question, place.stack = event, stack.pop_all()
                name = await _leave_open(errand, place)
                asked = {"elicitation": {"method": event.method, "params": dict(event.params)}}
                return {"asked": asked, "open": name}
        return _ended(await place.call.result())


def _ended(result: CallResult) -> Outcome:
    if result.needs_input:
        return {"asked": dict(result.input_requests), "state": result.request_state}
    return {"raw": dict(result.raw), "attempts": result.attempts, "duration": result.duration}


async def _leave_open(errand: Errand, place: Open) -> str:
    places = _open.setdefault(_caller(errand), OrderedDict())
    name = uuid.uuid4().hex
    places[name] = place
    place.waiting = asyncio.create_task(place.wait(lambda: places.pop(name, None)))
    if len(places) > MOST_OPEN:
        _, oldest = places.popitem(last=False)
        await oldest.stack.aclose()  # which ends its waiting
    return name


def _take(errand: Errand, name: str) -> Open:
    places = _open.get(_caller(errand), OrderedDict())
    place = places.get(name)
    if place is not None and place.owner == errand.owner:
        if place.waiting is not None:
            place.waiting.cancel()
        return places.pop(name)
    text = f"{errand.tool.name[:200]} asked something, and is not open here any more"
    raise CallOutcomeUnknown(
        f"{text}. It may have run",
        server=errand.tool.server,
        tool=errand.tool.tool,
        attempts=1,
        delivery=Delivery.UNKNOWN,
    )


def _caller(errand: Errand) -> Caller:
    caller = errand.tool.caller
    assert caller is not None, "only a tool that a runtime has resolved is called"
    return caller
