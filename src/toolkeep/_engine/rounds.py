"""A modern request that is answered by questions: answer them, send it again, until it is done.

2026-07-28: a result of type `input_required` names what the server wants to know, and a state that
goes back with the answers, byte for byte, on that one request and no other. The questions of a
round are answered side by side, a few at a time. Their rounds, their number and the time for all
of them have bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp_types import ErrorData
from pydantic import BaseModel

from toolkeep.errors import InputNotGiven

MOST_QUESTIONS = 100
"""In the course of one call, in both eras."""
AT_ONCE = 8
"""Questions that are being answered at a time."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Before asking again, when the server only sent a state; as the SDKs have it."""

Send = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends the request again, with these parameters added."""
Pause = Callable[[float], Awaitable[None]]
Ask = Callable[[str, str, Mapping[str, Any]], Awaitable[BaseModel]]
"""From a key, a method and its parameters to the SDK's result or `ErrorData`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a server may ask in the course of one request."""

    rounds: int
    time_left: Callable[[], float]
    """Seconds for the request with all that is asked (`timeouts.longest_call`)."""


def needs_input(raw: Mapping[str, Any]) -> bool:
    return raw.get("resultType") == "input_required"


async def complete(
    raw: dict[str, Any],
    *,
    send: Send,
    ask: Ask,
    pause: Pause,
    bounds: Bounds,
    server: str,
    what: str,
) -> dict[str, Any]:
    """The result at the end of all rounds. Raises `InputNotGiven`."""
    seconds, asked = _FIRST_PAUSE, 0
    for _ in range(bounds.rounds):
        if not needs_input(raw):
            return raw
        requests = _requests(raw)
        more: dict[str, Any] = {}
        asked += len(requests)
        if asked > MOST_QUESTIONS:
            why = f"the server asks more than {MOST_QUESTIONS} questions"
            raise _not_given(why, server, what, requests)
        if requests:
            try:
                async with asyncio.timeout(bounds.time_left()):
                    more["inputResponses"] = await _answers(requests, ask, server, what)
            except TimeoutError:
                why = "its questions took longer than timeouts.longest_call"
                raise _not_given(why, server, what, requests) from None
        else:
            await pause(seconds)
            seconds = min(seconds * 2, _LONGEST_PAUSE)
        if "requestState" in raw:
            more["requestState"] = raw["requestState"]
        raw = await send(more)
    if not needs_input(raw):
        return raw
    why = f"the server still asks after {bounds.rounds} rounds"
    raise _not_given(why, server, what, _requests(raw))


async def _answers(requests: Mapping[str, Any], ask: Ask, server: str, what: str) -> dict[str, Any]:
    """All answers of a round. The first that is refused ends the others."""
    places = asyncio.Semaphore(AT_ONCE)

    async def answer(key: str, request: object) -> BaseModel:
        async with places:
            return await ask(key, *_question(request))

    asking = {key: asyncio.ensure_future(answer(key, one)) for key, one in requests.items()}
    answers: dict[str, Any] = {}
    try:
        for done in asyncio.as_completed(asking.values()):
            if isinstance(refused := await done, ErrorData):
                raise _not_given(refused.message, server, what, requests)
        for key, task in asking.items():
            found = task.result()
            answers[key] = found.model_dump(by_alias=True, mode="json", exclude_none=True)
    finally:
        for task in asking.values():
            task.cancel()
        await asyncio.wait(asking.values())
    return answers


def _requests(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    found = raw.get("inputRequests")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _question(request: object) -> tuple[str, Mapping[str, Any]]:
    fields = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
    params = fields.get("params")
    asked = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    return str(fields.get("method", "")), asked


def _not_given(why: str, server: str, what: str, requests: Mapping[str, Any]) -> InputNotGiven:
    text = f"{server}: {what} did not go on: {why}. It went as far as its question"
    return InputNotGiven(text, server=server, tool=what, requests=requests)
