"""What passed over the wire, kept as evidence, and handed on to who traces it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

from toolkeep._wire.tap import Move, Passing, Tap

_MOST = 2000
"""Passings that are kept: a tool list of many pages is no evidence."""


class Record:
    """A `Tap`. One for each examination."""

    def __init__(self, onlooker: Tap | None = None) -> None:
        self._onlooker = onlooker
        self.passings: list[Passing] = []
        self.asides: list[Passing] = []
        self.news = asyncio.Event()

    def __call__(self, passing: Passing) -> None:
        if len(self.passings) < _MOST:
            self.passings.append(passing)
        self.news.set()
        self._hand_on(passing)

    def aside(self, passing: Passing) -> None:
        """A `Tap` for what is asked beside the client: shown, and no evidence about it."""
        self.asides.append(passing)
        self._hand_on(passing)

    def _hand_on(self, passing: Passing) -> None:
        if self._onlooker is not None:
            self._onlooker(passing)

    def of(self, *moves: Move) -> list[Passing]:
        return [passing for passing in self.passings if passing.move in moves]

    @property
    def last_aside(self) -> str:
        """What the last answer to a request beside the client said."""
        return next((one.body for one in reversed(self.asides) if one.move is Move.BODY), "")

    @property
    def answers(self) -> list[Passing]:
        """The heads of HTTP answers."""
        return self.of(Move.ANSWERED)

    @property
    def opened(self) -> Passing | None:
        return next(iter(self.of(Move.OPENED)), None)

    @property
    def welcomed(self) -> bool:
        """Whether an HTTP answer came that can hold an answer of the protocol."""
        return any(
            200 <= (one.status or 0) < 300 and media_type(one) in ("application/json", STREAM)
            for one in self.answers
        )

    @property
    def refused_in_protocol(self) -> bool:
        """Whether the last HTTP answer is an error of the protocol, whomever it answers."""
        last = self.answers[-1] if self.answers else None
        return last is not None and last.status == 400 and '"jsonrpc"' in self.body_of(last)

    @property
    def hung(self) -> bool:
        """Whether the last thing that happened is that we did not wait any longer."""
        last = self.of(Move.ASKED, Move.ANSWERED, Move.BROKE, Move.GIVEN_UP)
        return bool(last) and last[-1].move is Move.GIVEN_UP

    @property
    def noise(self) -> str:
        return "\n".join(one.body for one in self.of(Move.NOISE))

    def body_of(self, answer: Passing) -> str:
        """What came with this answer."""
        return "\n".join(one.body for one in self.of(Move.BODY) if one.number == answer.number)

    def results(self) -> Iterator[dict[str, Any]]:
        """Every JSON-RPC result that came."""
        for passing in self.of(Move.BODY, Move.IN):
            for line in passing.body.splitlines() or ("",):
                result = _result(line.removeprefix("data:"))
                if result is not None:
                    yield result


STREAM = "text/event-stream"


def media_type(answer: Passing) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _result(text: str) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(text)
    except ValueError:
        return None
    found: Any = (
        cast("dict[str, Any]", message).get("result") if isinstance(message, dict) else None
    )
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
