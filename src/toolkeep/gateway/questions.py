"""What servers ask the clients of a gateway, in the middle of a call.

`Questions` asks legacy clients: the question goes out on the call's own stream, and its answer may
arrive at any replica; the id of the question is sealed, and names the replica that waits.
`ParkedCalls` keeps the calls of modern clients: these are asked by a result (`input_required`), and
come back with the answers in a new request, at any replica; meanwhile the call waits here, in a
task of its own.

An answer counts only from the client that was asked. What waits is bounded in number and time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import time
from typing import Any, cast

from mcp_types import ErrorData
from pydantic_core import to_json

from toolkeep.errors import StoreUnavailable
from toolkeep.events import InputNeeded
from toolkeep.gateway.errors import (
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    OUTCOME_UNKNOWN,
    RpcError,
    invalid_params,
    unavailable,
)
from toolkeep.gateway.protocol import Exchange, Json, Peer, required_capability
from toolkeep.gateway.replicas import ReplicaGone, Replicas
from toolkeep.gateway.sessions import Seal, Session

__all__ = ["ParkedCall", "ParkedCalls", "Questions"]

logger = logging.getLogger("toolkeep.gateway")

MAX_WAITING, MAX_WAITING_PER_SESSION = 10_000, 100
"""Questions of all legacy clients, and of one, that wait for their answer."""
ANSWER_TIMEOUT = 600.0
"""Seconds for an answer. The server's own `timeouts.input` is usually shorter."""

MAX_PARKED, MAX_PARKED_PER_PRINCIPAL = 1000, 100
PARK_TIME = 300.0
"""Seconds that a call waits for its client to come back."""
GATHER = 0.02
"""Seconds in which a server may ask more, so that its client is asked all at once."""
MAX_ROUNDS = 30
"""How often one call comes back."""
MAX_ANSWERS = 100
STATE_AGE = 86_400.0
"""Seconds for which a request state can be used."""

_ID = "toolkeep."


class Questions:
    """The questions that legacy clients were asked here, and the answers that came here."""

    def __init__(self, seal: Seal, replicas: Replicas) -> None:
        self._seal, self._replicas = seal, replicas
        self._waiting: dict[str, tuple[str, asyncio.Future[Json]]] = {}
        replicas.serve("answer", self._on_answer)

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(
        self, session: Session, send: Callable[[Json], None], method: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Send a question, and return the result that answers it. Raises `RpcError`: the client's,
        or that it cannot be asked or did not answer. `send` puts a message on the call's stream."""
        mine = sum(owner == session.id for owner, _ in self._waiting.values())
        if len(self._waiting) >= MAX_WAITING or mine >= MAX_WAITING_PER_SESSION:
            raise unavailable("too many questions wait for their answers")
        key = secrets.token_urlsafe(16)
        question = _ID + self._seal.close("question", [self._replicas.id, session.id, key])
        answer = asyncio.get_running_loop().create_future()
        self._waiting[key] = session.id, answer
        try:
            send({"jsonrpc": "2.0", "id": question, "method": method, "params": params})
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return _result_of(await answer)
        except TimeoutError:
            raise RpcError(INTERNAL_ERROR, "the client did not answer in time") from None
        except asyncio.CancelledError:
            about = {"requestId": question, "reason": "the call is over"}
            send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": about})
            raise
        finally:
            del self._waiting[key]

    async def answered(self, session: Session, message: Json) -> None:
        """A client has answered a question, perhaps one of another replica. Raises `RpcError` if
        the answer cannot be passed on now."""
        question = message.get("id")
        if not isinstance(question, str) or not question.startswith(_ID):
            return
        try:
            replica, owner, key = self._seal.open("question", question.removeprefix(_ID))
        except ValueError:
            return  # not of this gateway: nothing of it is written to the store
        if owner != session.id:
            return
        answer = {name: message[name] for name in ("result", "error") if name in message}
        if replica == self._replicas.id:
            self._resolve(key, session.id, answer)
            return
        if not await self._replicas.is_alive(replica):
            return  # its calls have ended, too
        payload = to_json([key, session.id, answer])
        try:
            await self._replicas.tell(replica, "answer", payload)
        except StoreUnavailable:
            raise unavailable("the answer cannot reach the replica that asked") from None

    async def _on_answer(self, payload: bytes) -> bytes:
        key, session, answer = json.loads(payload)
        self._resolve(key, session, answer)
        return b""

    def _resolve(self, key: str, session: str, answer: Json) -> None:
        owner, future = self._waiting.get(key, ("", None))
        if future is not None and owner == session and not future.done():
            future.set_result(answer)


def _result_of(answer: Json) -> Mapping[str, Any]:
    result, error = answer.get("result"), answer.get("error")
    if isinstance(result, dict):
        return cast("Json", result)
    given = cast("Json", error) if isinstance(error, dict) else {}
    code, message = given.get("code"), given.get("message")
    raise RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message[:1000] if isinstance(message, str) else "the client's answer is malformed",
    )


def declined(event: InputNeeded) -> None:
    """Answer a question that the client has not declared to answer."""
    if event.method == "elicitation/create":
        event.decline()
    else:
        text = f"the client does not support {event.method}"
        event.respond(ErrorData(code=-32601, message=text))


# -- calls of modern clients ----------------------------------------------------------------------


class ParkedCall:
    """A call of a modern client, which may be asked: it outlives the request that began it. Made by
    `ParkedCalls`."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.peer, self.name = peer, name
        self.exchange: Exchange | None = None
        """The request that waits for it now. None: it is parked."""
        self.questions: dict[str, InputNeeded] = {}
        """The questions without an answer, by key."""
        self.rounds, self._asked = 0, 0
        self.changed = asyncio.Event()
        self.task: asyncio.Task[bytes]
        self.expiry: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> tuple[str | None, str, str]:
        return self.peer.caller.principal, self.peer.profile, self.name

    def ask(self, event: InputNeeded) -> None:
        """A server asks. Called by the call itself."""
        self._asked += 1
        self.questions[event.key or f"q{self._asked}"] = event
        self.changed.set()

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Pass on the answers of the client. Questions that it left out stay open."""
        for key, response in list(responses.items())[:MAX_ANSWERS]:
            event = self.questions.pop(key, None)
            if event is not None:
                is_result = isinstance(response, dict)
                event.respond(cast("Json", response) if is_result else None)

    def cancel(self) -> None:
        self.task.cancel()


class ParkedCalls:
    """The calls of modern clients that may be asked, of one replica.

    While a client waits at another replica, it gets no progress and no log lines of its call.
    """

    def __init__(self, seal: Seal, replicas: Replicas) -> None:
        self._seal, self._replicas = seal, replicas
        self._calls: dict[str, ParkedCall] = {}
        """Running, waiting, and those that ended while they waited."""
        self._parked: set[ParkedCall] = set()
        """Those that wait for their clients to come back."""
        self.idle = asyncio.Event()
        """Set while none waits."""
        self.idle.set()
        replicas.serve("resume", self._on_resume)
        replicas.serve("abandon", self._on_abandon)

    def __len__(self) -> int:
        return len(self._parked)

    def has_room(self, peer: Peer) -> bool:
        """Whether one more call of this caller may wait. Callers without a name share all."""
        principal = peer.caller.principal
        mine = sum(one.peer.caller.principal == principal for one in self._parked)
        most = MAX_PARKED if principal is None else MAX_PARKED_PER_PRINCIPAL
        return len(self._parked) < MAX_PARKED and mine < most

    async def run(
        self, exchange: Exchange, name: str, work: Callable[[ParkedCall], Awaitable[bytes]]
    ) -> bytes:
        """Run a call: its result, or what its client is asked first."""
        call = ParkedCall(exchange.peer, name)
        call.exchange = exchange  # before the first event

        async def run() -> bytes:
            return await work(call)

        call.task = asyncio.get_running_loop().create_task(run())
        self._calls[call.id] = call
        call.task.add_done_callback(lambda task: _ended(call, task))
        return await self._next(call, exchange)

    async def resume(
        self, state: Mapping[str, Any], exchange: Exchange, name: str, responses: Mapping[str, Any]
    ) -> bytes:
        """Go on with a parked call, here or at its replica."""
        replica, call_id = str(state["replica"]), str(state["call"])
        peer = exchange.peer
        if replica == self._replicas.id:
            owner = peer.caller.principal, peer.profile, name
            return await self._resume_here(call_id, owner, responses, exchange)
        about = [call_id, peer.caller.principal, peer.profile, name, dict(responses)]
        try:
            return await self._replicas.request(replica, "resume", to_json(about), PARK_TIME)
        except ReplicaGone:
            raise _gone("the replica that ran it has ended") from None
        except TimeoutError:
            raise _gone("the replica that runs it does not answer") from None
        except StoreUnavailable:
            raise unavailable("the replica that runs the call cannot be reached now") from None
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                payload = to_json([call_id, peer.caller.principal])
                await self._replicas.tell(replica, "abandon", payload)
            raise

    async def stop(self) -> None:
        """Cancel all. Their clients are told so when they come back."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait([call.task for call in calls])

    # -- private --------------------------------------------------------------------------------

    async def _resume_here(
        self,
        call_id: str,
        owner: tuple[str | None, str, str],
        responses: Mapping[str, Any],
        exchange: Exchange | None,
    ) -> bytes:
        call = self._calls.get(call_id)
        if call is None:
            raise _gone("it waited too long for its answers, or has ended")
        if call.owner != owner:
            raise invalid_params("the requestState belongs to another request")
        if call.rounds >= MAX_ROUNDS:
            self._drop(call)
            raise _gone(f"its questions were not answered in {MAX_ROUNDS} rounds; it was cancelled")
        call.answer(responses)
        return await self._next(call, exchange)

    async def _next(self, call: ParkedCall, exchange: Exchange | None) -> bytes:
        """Wait until the call ends or asks. If the client leaves meanwhile, the call is
        cancelled."""
        call.exchange = exchange
        call.rounds += 1
        self._unpark(call)
        try:
            while not call.task.done() and not _open_questions(call):
                call.changed.clear()
                await call.changed.wait()
                if not call.task.done():
                    await asyncio.wait((call.task,), timeout=GATHER)
        except asyncio.CancelledError:
            self._drop(call)
            await asyncio.wait((call.task,))
            raise
        finally:
            if call.exchange is exchange:
                call.exchange = None
        if call.task.done():
            self._drop(call)
            if call.task.cancelled():
                raise _gone("it was cancelled")
            return call.task.result()
        self._parked.add(call)
        self.idle.clear()
        call.expiry = asyncio.get_running_loop().call_later(PARK_TIME, self._drop, call)
        return self._input_required(call)

    def _drop(self, call: ParkedCall) -> None:
        """The call has ended, or its client does not come back: cancel it."""
        self._calls.pop(call.id, None)
        self._unpark(call)
        call.cancel()

    def _unpark(self, call: ParkedCall) -> None:
        self._parked.discard(call)
        if not self._parked:
            self.idle.set()
        if call.expiry is not None:
            call.expiry.cancel()

    def _input_required(self, call: ParkedCall) -> bytes:
        requests = {
            key: {"method": event.method, "params": dict(event.params)}
            for key, event in _open_questions(call).items()
        }
        state = self._seal_state(
            call.peer, call.name, {"kind": "parked", "replica": self._replicas.id, "call": call.id}
        )
        result = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        return to_json(result, inf_nan_mode="null")

    async def _on_resume(self, payload: bytes) -> bytes:
        call_id, principal, profile, name, responses = json.loads(payload)
        return await self._resume_here(call_id, (principal, profile, name), responses, None)

    async def _on_abandon(self, payload: bytes) -> bytes:
        call_id, principal = json.loads(payload)
        call = self._calls.get(call_id)
        if call is not None and call.peer.caller.principal == principal:
            self._drop(call)
        return b""

    # -- request states -------------------------------------------------------------------------

    def _seal_state(self, peer: Peer, name: str, state: Json) -> str:
        until = round(time() + STATE_AGE)
        return self._seal.close(
            "state", {**state, "for": [peer.caller.principal, peer.profile, name], "until": until}
        )

    def continued(self, params: Json, peer: Peer, name: str) -> tuple[Json | None, Json]:
        """The state that a request brings back, opened, and the answers that come with it."""
        responses = params.get("inputResponses")
        if responses is not None and not isinstance(responses, dict):
            raise invalid_params("inputResponses must be an object")
        text = params.get("requestState") if peer.modern else None
        state = None if text is None else self._open_state(text, peer, name)
        return state, cast("Json", responses or {})

    def pass_on(self, raw: Mapping[str, Any], peer: Peer, name: str, server: str) -> bytes:
        """What a modern server asks, for a modern client, with the server's state sealed in ours:
        any replica opens it. Raises `RpcError` for what the client cannot answer."""
        for asked in questions_of(raw).values():
            lacking = required_capability(*asked, peer.capabilities)
            if lacking is not None:
                raise lacks_capability(asked[0], server, lacking)
        state = raw.get("requestState")
        about: Json = {"kind": "server", "state": state if isinstance(state, str) else None}
        sealed = self._seal_state(peer, name, about)
        return to_json({**raw, "requestState": sealed}, inf_nan_mode="null")

    def _open_state(self, text: object, peer: Peer, name: str) -> Json:
        """The state that a request brings back. Raises `RpcError` if it is not for this request."""
        try:
            if not isinstance(text, str):
                raise ValueError
            state = cast("Json", self._seal.open("state", text))
        except ValueError:
            raise invalid_params("the requestState is not one of this gateway") from None
        if state["for"] != [peer.caller.principal, peer.profile, name] or state["until"] < time():
            raise invalid_params("the requestState belongs to another request, or has expired")
        return state


def _ended(call: ParkedCall, task: asyncio.Task[bytes]) -> None:
    call.changed.set()
    if not task.cancelled():
        task.exception()  # retrieved: the client may never come back for it


def questions_of(raw: Mapping[str, Any]) -> dict[str, tuple[str, Json]]:
    """What a modern server asks in a result: method and parameters, by key."""
    found: dict[str, tuple[str, Json]] = {}
    for key, one in cast("Json", raw.get("inputRequests") or {}).items():
        asked = cast("Json", one) if isinstance(one, dict) else {}
        given = asked.get("params")
        found[key] = (
            str(asked.get("method")),
            cast("Json", given) if isinstance(given, dict) else {},
        )
    return found


def lacks_capability(method: str, server: str, lacking: Json) -> RpcError:
    text = f"{server} asks for {method}, which the client does not support. It ran up to there"
    return RpcError(MISSING_CAPABILITY, text, {"requiredCapabilities": lacking})


def _open_questions(call: ParkedCall) -> dict[str, InputNeeded]:
    """The questions that still count: the server's time for some may be over."""
    call.questions = {key: one for key, one in call.questions.items() if one.is_open}
    return call.questions


def _gone(why: str) -> RpcError:
    text = f"the call that waited for answers is gone: {why}. It may have run"
    return RpcError(OUTCOME_UNKNOWN, text, {"toolkeep/delivery": "unknown"})
