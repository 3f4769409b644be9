"""Asking the client: requests of the legacy era, and the rounds of the modern one (SEP-2322).

Owns what was asked and not yet answered. Between the legs of a modern call it remembers nothing: a
`requestState` holds all there is to know, so any process of a server can go on with it. The tool
`ask` and `ScriptedServer.ask_client` live here; what they send goes out through others' outlets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

from toolkeep.testing._events import encode
from toolkeep.testing._listening import Outlet
from toolkeep.testing._methods import RpcFault
from toolkeep.testing._tools import text
from toolkeep.testing.script import JsonObject

STATE_BYTES = 4096
_CHECKSUM = 64
_EDGE = "\n\n"
_AWKWARD = "\"\\'{}[]/\t\n\u2028 é ß 漢 😀 %22 \\u0041 &amp; +=;"


class Desk:
    """One server's questions to its clients. `count` adds to the ledger."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._asked = 0
        self._open: dict[str, asyncio.Future[JsonObject]] = {}
        self._pushed: dict[str, asyncio.Future[JsonObject]] = {}

    def answered(self, message: JsonObject) -> None:
        waiting = self._open.get(str(message.get("id")))
        if waiting is None or waiting.done():
            return
        waiting.set_result(
            {"error": message["error"]} if "error" in message else message.get("result", {})
        )

    def _put(
        self, outlet: Outlet, method: str, params: JsonObject | None
    ) -> tuple[str, asyncio.Future[JsonObject]]:
        self._asked += 1
        about = f"kit-{self._asked}"
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._open[about] = answer
        answer.add_done_callback(lambda _: self._open.pop(about, None))
        request = {"jsonrpc": "2.0", "id": about, "method": method, "params": params or {}}
        outlet.append(encode(request))
        return about, answer

    def push(self, outlet: Outlet, method: str, params: JsonObject) -> str:
        """Ask outside of any call; the answer is to be had with `pushed`."""
        about, answer = self._put(outlet, method, params)
        self._pushed[about] = answer
        return about

    def pushed(self, about: str) -> JsonObject | None:
        answer = self._pushed[about]
        return answer.result() if answer.done() else None

    async def converse(self, outlet: Outlet, params: JsonObject) -> JsonObject:
        """The tool `ask` in the legacy era: all requests of a round at once, round by round."""
        key, requests, rounds = self._begin(params)
        answers: list[JsonObject] = []
        for _ in range(rounds):
            asked = {
                name: self._put(outlet, request["method"], request.get("params"))[1]
                for name, request in requests.items()
            }
            try:
                await asyncio.gather(*asked.values())
            finally:
                for waiting in asked.values():
                    waiting.cancel()
            answers.append({name: waiting.result() for name, waiting in asked.items()})
        return self._done(key, answers)

    def leg(self, params: JsonObject) -> JsonObject:
        """The tool `ask` in the modern era: one leg of it."""
        key, requests, rounds = self._begin(params)
        retry = "requestState" in params or "inputResponses" in params
        answers = _continued(params) if retry else []
        if not retry and params["arguments"].get("state_only"):
            return {"resultType": "input_required", "requestState": _state(answers, {})}
        if len(answers) >= rounds:
            return self._done(key, answers)
        state = _state(answers, requests)
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    def _begin(self, params: JsonObject) -> tuple[str, JsonObject, int]:
        arguments: JsonObject = params.get("arguments") or {}
        key = str(arguments.get("key") or "ask")
        requests: JsonObject = arguments.get("requests") or {}
        self._count(f"{key}:legs")
        return key, requests, int(arguments.get("rounds", 1)) if requests else 0

    def _done(self, key: str, answers: list[JsonObject]) -> JsonObject:
        self._count(key)
        return text(f"{len(answers)} rounds", structuredContent={"answers": answers})


def _state(answers: list[JsonObject], requests: JsonObject) -> str:
    """What is known so far, and its checksum, among characters that are easily harmed."""
    known = {"leg": uuid.uuid4().hex, "answers": answers, "keys": sorted(requests)}
    state = json.dumps(known, ensure_ascii=False) + _EDGE
    while len(state.encode()) < STATE_BYTES:
        state += _AWKWARD
    return state + _checksum(state)


def _continued(params: JsonObject) -> list[JsonObject]:
    """The answers so far, with those that this retry brings."""
    state = str(params.get("requestState"))
    whole, checksum = state[:-_CHECKSUM], state[-_CHECKSUM:]
    if _checksum(whole) != checksum:
        raise RpcFault(-32602, "requestState is not what was sent, byte for byte")
    known: Any = json.loads(whole.partition(_EDGE)[0])
    responses: JsonObject = params.get("inputResponses") or {}
    if sorted(responses) != known["keys"]:
        raise RpcFault(-32602, "inputResponses do not answer the inputRequests")
    return [*known["answers"], responses] if known["keys"] else known["answers"]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
