"""A program that one of several processes runs for all: `replicas = "owner"`.

The processes share a store. One of them holds the lease of the program and runs it; the transports
of the others forward requests to it through channels of the store, with progress, questions and
cancellation. When the owner ends, the next transport that is opened takes the lease and starts the
program anew.

This is done in a transport, so that everything above works as with a program of its own: sessions
of principals, lists, retries, and errors that say whether a call ran. A request is sent only to an
owner that was heard lately. If the owner dies with it, its outcome is unknown; if it never got it,
that is said, too.

Channels may lose messages, so who waits asks again. Every process with the store (and its keys, if
it is sealed) is trusted to name the principal of a request. This module never runs a program while
another process may hold the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from mcp_types import INTERNAL_ERROR, ErrorData
from pydantic import RootModel
from pydantic_core import from_json, to_json, to_jsonable_python

from toolkeep._rules.classify import Evidence, FaultKind
from toolkeep._transport.base import (
    Attempt,
    ErrorReply,
    InboundHandler,
    WireFault,
    connection_fault,
)
from toolkeep._transport.jsonrpc import RpcExchange, parse_result
from toolkeep._transport.redaction import redact_evidence
from toolkeep.config import ServerSpec
from toolkeep.errors import Delivery, FailureKind, StoreUnavailable, ToolkeepError
from toolkeep.state.shared import COOLDOWN, SharedState, name_of
from toolkeep.state.store import MAX_VALUE

logger = logging.getLogger("toolkeep.transport")

FRESH = 1.0
"""Seconds since the owner was heard, within which a request is sent without asking first."""
KNOCK_TIMEOUT = 1.5
"""Seconds in which an owner must say that it is there."""
POLL = 1.0
"""Seconds between two questions about a request that has no answer."""
SILENCE = 3.0
"""Seconds without a word of the owner, after which it counts as dead."""
ABANDONED = 15.0
"""Seconds without a question about a request, after which it is cancelled: its sender is gone."""
RESULT_KEPT = 30.0
"""Seconds for which a result is kept whose receipt is not confirmed."""
LATE = 0.5
"""Seconds for which requests are refused after the end, so that their senders know it."""
ENTER_PAUSE = 0.2
"""Seconds between two tries to become the owner, or to find it."""
OWNER_KEPT = 86_400.0
MAX_FORWARDED = 1000
"""Requests of other processes that one owner runs at the same time."""
MAX_TASKS = 4 * MAX_FORWARDED
"""Requests that run for others, and messages that are being sent."""
MAX_REVOKED = 10_000
MAX_OWNERS = 16
MAX_MESSAGE = MAX_VALUE - 1024

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramIdentity:
    """Whose session with the program a request belongs to; both None: the server's own."""

    key: str | None = field(default=None, repr=False)
    principal: str | None = None


Run = Callable[[ProgramIdentity, str, dict[str, Any] | None, Attempt], Coroutine[Any, Any, Message]]
"""Sends a request of another process to the program: method and parameters. Returns the result, or
raises `ToolkeepError`."""


class Member(Protocol):
    """A transport of this process to the program."""

    def hear(self, key: str | None, method: str, params: Mapping[str, Any] | None) -> None:
        """The owner has passed on a notification for the session of this identity."""
        ...

    def lose(self, reason: str) -> None:
        """The process that ran the program does so no longer."""
        ...

    async def stop_program(self, reason: str) -> None:
        """This process is no longer the owner."""
        ...


class _Answer(RootModel[dict[str, Any]]):
    """A result that another process gave, as it is."""


class SharedProgram:
    """The program of one server, as this process takes part in it: as its owner, or as one that
    forwards to the owner. Made by a `Server`; lives in its event loop until `aclose`."""

    def __init__(self, spec: ServerSpec, state: SharedState, run: Run) -> None:
        self.spec, self._state, self._run = spec, state, run
        self.id = uuid.uuid4().hex
        # Two applications with one store may give different programs the same name.
        self._name = name_of("program", spec.name, spec.command, spec.args)
        self._transports: weakref.WeakSet[Member] = weakref.WeakSet()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._holding: asyncio.Task[None] | None = None
        self._release = asyncio.Event()
        self._is_owner = self._is_stopping = False
        self._owner = ""
        """The id of the other process that runs the program; empty: none is known."""
        self._heard_at: OrderedDict[str, float] = OrderedDict()
        """When the last owners were heard. One that takes no more requests still answers some."""
        self._heard = asyncio.Event()
        self._waiting: dict[str, _Waiting] = {}
        """Requests that were forwarded, by id."""
        self._serving: dict[str, _Serving] = {}
        """Requests of other processes that run here, or whose result is not confirmed."""
        self._asked_at = float("-inf")
        """When another process last asked for something."""
        self._revoked: OrderedDict[str, None] = OrderedDict()
        """Requests that were said never to have arrived: if they do, they are not run."""

    def __repr__(self) -> str:
        role = "owner" if self._is_owner else f"forwarding to {self._owner[:8] or 'no one yet'}"
        return f"<SharedProgram {self.spec.name!r}, {role}>"

    # -- which process runs it ------------------------------------------------------------------

    async def enter(self, transport: Member) -> str:
        """The id of the process that runs the program; empty: this one does. Waits until there is
        one: the caller sets the time limit. Raises `WireFault`."""
        try:
            async with self._lock:
                await self._start_listening()
                while not self._is_stopping:
                    if not self._is_owner:
                        await self._try_to_own()
                    if self._is_owner:
                        self._transports.add(transport)
                        return ""
                    if await self._find_owner():
                        self._transports.add(transport)
                        return self._owner
                    await asyncio.sleep(ENTER_PAUSE)
        except StoreUnavailable as error:
            text = f"the store cannot tell which process runs the program: {error.problem}"
            raise connection_fault(text, Attempt()) from None
        raise connection_fault("this process has given the program up", Attempt())

    async def _try_to_own(self) -> None:
        if self._holding is not None:
            await asyncio.wait((self._holding,))  # the lease was lost, and the programs are stopped
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(decided), context=Context())
        try:
            await asyncio.shield(decided)
        except asyncio.CancelledError:
            self._holding.cancel()  # no transport runs the program: the lease is given back
            raise

    async def _hold(self, decided: asyncio.Future[None]) -> None:
        """Hold the lease until it is lost or given back. The programs end before it does."""
        try:
            async with self._state.holding(self._name) as held:
                if held is not None:
                    owner = self.id.encode()
                    await self._state.ask(
                        lambda store: store.put(self._name, owner, ttl=OWNER_KEPT)
                    )
                    self._is_owner = True
                    logger.info("%s: this process runs the program for all", self.spec.name)
                decided.set_result(None)
                if held is not None:
                    await _first_of(held.lost.wait(), self._release.wait())
                    await self._stop_own(is_lost=held.lost.is_set())
        except StoreUnavailable as error:
            decided.set_exception(error)
        finally:
            self._is_owner = False
            decided.cancel()

    async def _stop_own(self, *, is_lost: bool) -> None:
        self._is_owner = False
        reason = "this process has given the program up"
        if is_lost:
            reason = "the program was stopped: another process may run it, for the lease was lost"
            logger.warning("%s: %s", self.spec.name, reason)
        await asyncio.gather(*(one.stop_program(reason) for one in tuple(self._transports)))

    async def _find_owner(self) -> bool:
        found = await self._state.ask(lambda store: store.get(self._name))
        if found is None or (owner := found.value.decode()) == self.id:
            return False  # who has the lease has not said so yet
        if owner != self._owner:
            self._owner, self._heard_at[owner] = owner, float("-inf")
            if len(self._heard_at) > MAX_OWNERS:
                self._heard_at.popitem(last=False)
        return await self._knock()

    def _silent_for(self, owner: str) -> float:
        """Seconds since this owner was heard."""
        return monotonic() - self._heard_at.get(owner, float("-inf"))

    async def _knock(self) -> bool:
        """Whether the owner is there. True without asking, if it was heard just now."""
        owner = self._owner
        if not owner or self._silent_for(owner) < FRESH:
            return bool(owner)
        self._heard.clear()
        await self._post(owner, op="knock")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KNOCK_TIMEOUT):
                await self._heard.wait()
        return self._owner == owner and self._silent_for(owner) < KNOCK_TIMEOUT

    def _lose_owner(self, reason: str) -> None:
        self._owner = ""
        self._heard.set()
        for transport in tuple(self._transports):
            transport.lose(reason)

    # -- leaving --------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Take no more requests of other processes, and do not become the owner again."""
        if not self._is_stopping:
            self._is_stopping = True
            if self._listening is not None:
                self._post_soon(self._name, op="gone")

    async def hand_over(self, within: float) -> None:
        """Let another process run the program: when the requests that run for others have ended, or
        after so many seconds."""
        self.stop_accepting()
        if running := [one.work for one in self._serving.values()]:
            await asyncio.wait(running, timeout=within)
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the program, give the lease back, and end all tasks. A second call does nothing."""
        self.stop_accepting()
        for serving in tuple(self._serving.values()):
            serving.work.cancel()
        # Each tells its sender, and waits until that is confirmed.
        if serving_tasks := [one.task for one in self._serving.values() if one.task is not None]:
            await asyncio.wait(serving_tasks, timeout=POLL)
        self._release.set()
        if self._holding is not None:
            await asyncio.wait((self._holding,))
        if self._listening is not None and monotonic() - self._asked_at < SILENCE:
            await asyncio.sleep(LATE)  # refuse what was sent before the others heard of it
        if posts := self._tasks - {one.task for one in self._serving.values()}:
            await asyncio.wait(posts, timeout=POLL)
        tasks = [*self._tasks, *([self._listening] if self._listening else [])]
        self._listening = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- messages -------------------------------------------------------------------------------

    async def _post(self, to: str, **message: Any) -> None:
        """Send a message to one process, or to all by the program's own name. Raises
        `StoreUnavailable`; ValueError if it is too large."""
        body = to_json({"by": self.id, **message}, inf_nan_mode="constants")
        if len(body) > MAX_MESSAGE:
            raise ValueError(f"larger than {MAX_MESSAGE} bytes")
        channel = to if to == self._name else f"{self._name}:{to}"
        await self._state.ask(lambda store: store.publish(channel, body))

    def _post_soon(self, to: str, **message: Any) -> None:
        async def post() -> None:
            with contextlib.suppress(StoreUnavailable, ValueError):
                await self._post(to, **message)

        if len(self._tasks) < MAX_TASKS:
            self._start(post())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start_listening(self) -> None:
        """Returns when messages can be received."""
        if self._listening is not None and not self._listening.done():
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(ready), context=Context())
        await ready

    async def _listen(self, ready: asyncio.Future[None]) -> None:
        """Receive messages until cancelled; go on after a failure of the store."""
        store, error = self._state.store, None
        assert store is not None
        while True:
            try:
                async with (
                    store.subscribe(f"{self._name}:{self.id}") as own,
                    store.subscribe(self._name) as common,
                ):
                    if not ready.done():
                        ready.set_result(None)
                    await _first_of(self._read(own), self._read(common))
            except Exception as raised:
                error = raised
            if not ready.done():
                problem = f"messages cannot be received ({type(error).__name__})"
                ready.set_exception(StoreUnavailable(problem, store=repr(store)))
                return
            await asyncio.sleep(COOLDOWN)

    async def _read(self, messages: Any) -> None:
        async for body in messages:
            try:
                message: Message = from_json(body)
                if message["by"] != self.id:
                    self._take(message)
            except (ValueError, KeyError, TypeError):
                logger.warning("%s: a message of another process is not ours", self.spec.name)

    def _take(self, message: Message) -> None:
        sender, op = str(message["by"]), message["op"]
        if sender in self._heard_at:
            self._heard_at[sender] = monotonic()
            self._heard.set()
        match op:
            case "knock":
                there = self._is_owner and not self._is_stopping
                self._post_soon(sender, op="here" if there else "gone")
            case "gone" if sender == self._owner:
                self._lose_owner("the process that ran the program has given it up")
            case "ask":
                self._accept(sender, message)
            case "poll" if serving := self._serving.get(message["id"]):
                serving.polled_at = monotonic()
                serving.repeat()
            case "poll":
                self._revoke(message["id"])
                self._post_soon(sender, op="unknown", id=message["id"])
            case "cancel" | "reply" | "done" if serving := self._serving.get(message["id"]):
                serving.take(message)
            case "cancel":
                self._revoke(message["id"])
            case "result" | "error" | "fault" | "note" | "question" | "unknown" if (
                waiting := self._waiting.get(message["id"])
            ):
                waiting.take(message)
            case "notify":
                for transport in tuple(self._transports):
                    transport.hear(message["key"], message["method"], message["params"])
            case _:
                pass  # about a request that is over

    def broadcast(self, key: str | None, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell the other processes what the program has notified."""
        given = to_jsonable_python(params)
        self._post_soon(self._name, op="notify", key=key, method=method, params=given)

    # -- forwarding to the owner ----------------------------------------------------------------

    async def forward(
        self,
        identity: ProgramIdentity,
        exchange: RpcExchange,
        params: Mapping[str, Any] | None,
        handler: InboundHandler,
    ) -> Message:
        """Have the owner send a request, and return its result. Raises `RequestFault`."""
        attempt, request_id = exchange.attempt, str(exchange.request_id)
        try:
            is_there = await self._knock()
        except StoreUnavailable as error:
            raise connection_fault(f"the store is down: {error.problem}", attempt) from None
        if not is_there:
            self._lose_owner("the process that ran the program does not answer")
        if not is_there or attempt.revoked:
            raise connection_fault("the process that runs the program does not answer", attempt)
        owner = self._owner
        waiting = self._waiting[request_id] = _Waiting(self, owner, exchange, handler)
        asked: Message = {"id": request_id, "method": exchange.method, "params": params}
        asked |= {"key": identity.key, "principal": identity.principal}
        asked |= {"progress": attempt.wants_progress}
        try:
            await self._ask(owner, asked, attempt)
            message = await waiting.run()
        except asyncio.CancelledError:
            self._post_soon(owner, op="cancel", id=request_id)
            raise
        else:
            self._post_soon(owner, op="done", id=request_id)
        finally:
            del self._waiting[request_id]
            waiting.close()
        if isinstance(message, WireFault):
            raise message
        attempt.mark_answered()
        try:
            return parse_result(message, exchange, session=False, status=None)
        except WireFault as fault:
            evidence = redact_evidence(fault.evidence, {}, self.spec.secrets)
            raise WireFault(evidence) from None

    async def _ask(self, owner: str, asked: Message, attempt: Attempt) -> None:
        attempt.sent = True
        try:
            await self._post(owner, op="ask", **asked)
        except StoreUnavailable:
            pass  # it may have been sent: the owner is asked about it
        except ValueError as error:
            attempt.sent = False
            text = f"the request cannot be forwarded: it is {error}"
            raise connection_fault(text, attempt) from None

    async def poll(self, owner: str, request_id: str) -> None:
        """Ask for the answer of a request. Raises `WireFault` once the owner counts as dead."""
        if self._silent_for(owner) > SILENCE:
            text = "the process that ran the program does not answer"
            if owner == self._owner:
                self._lose_owner(text)
            raise WireFault(Evidence(kind=FaultKind.BROKEN, sent=True, detail=text))
        with contextlib.suppress(StoreUnavailable):
            await self._post(owner, op="poll", id=request_id)

    def answer(self, owner: str, request_id: str, question: int, answer: Message) -> None:
        self._post_soon(owner, op="reply", id=request_id, question=question, **answer)

    # -- serving the others ---------------------------------------------------------------------

    def _accept(self, sender: str, message: Message) -> None:
        request_id = str(message["id"])
        self._asked_at = monotonic()
        if request_id in self._serving or request_id in self._revoked:
            return  # it runs already, or its sender was told that it did not run
        refusal = ""
        if self._is_stopping or not self._is_owner:
            refusal = "the process has given the program up"
        elif len(self._serving) >= MAX_FORWARDED:
            refusal = f"the owner of the program runs {MAX_FORWARDED} requests already"
        if refusal:
            fault = {"kind": FaultKind.CONNECT.value, "sent": False, "detail": refusal}
            self._post_soon(sender, op="fault", id=request_id, fault=fault)
            return
        serving = self._serving[request_id] = _Serving(self, sender, message)
        serving.task = self._start(self._serve(request_id, serving))

    async def _serve(self, request_id: str, serving: _Serving) -> None:
        try:
            await serving.run()
        finally:
            self._serving.pop(request_id, None)

    def run(self, message: Message, attempt: Attempt) -> asyncio.Task[Message]:
        """Send a request of another process to the program."""
        identity = ProgramIdentity(message["key"], message["principal"])
        work = self._run(identity, message["method"], message["params"], attempt)
        return asyncio.get_running_loop().create_task(work, context=Context())

    async def send(self, to: str, **message: Any) -> None:
        """Raises ValueError if it is too large. What is lost is asked for."""
        with contextlib.suppress(StoreUnavailable):
            await self._post(to, **message)

    def send_soon(self, to: str, **message: Any) -> None:
        self._post_soon(to, **message)

    def _revoke(self, request_id: str) -> None:
        self._revoked[request_id] = None
        if len(self._revoked) > MAX_REVOKED:
            self._revoked.popitem(last=False)


class _Waiting:
    """A request that was forwarded, until its answer. Belongs to the task that sends it."""

    def __init__(
        self, program: SharedProgram, owner: str, exchange: RpcExchange, handler: InboundHandler
    ) -> None:
        self._program, self._owner = program, owner
        self._exchange, self._handler = exchange, handler
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._questions: dict[int, asyncio.Task[Message]] = {}

    def take(self, message: Message) -> None:
        self._messages.put_nowait(message)

    async def run(self) -> Message | WireFault:
        """The response, as JSON-RPC writes it, or why there is none. Raises `WireFault` once the
        owner counts as dead."""
        exchange = self._exchange
        request_id = str(exchange.request_id)
        while True:
            try:
                async with asyncio.timeout(POLL):
                    message = await self._messages.get()
            except TimeoutError:
                await self._program.poll(self._owner, request_id)
                continue
            match message["op"]:
                case "note" if exchange.attempt.on_notification is not None:
                    await exchange.attempt.on_notification(message["method"], message["params"])
                case "question":
                    self._take_question(message)
                case "result":
                    return {"id": exchange.request_id, "result": message["result"]}
                case "error":
                    return {"id": exchange.request_id, "error": message["error"]}
                case "fault":
                    return WireFault(_evidence(message["fault"]))
                case "unknown":
                    exchange.attempt.sent = False
                    return connection_fault("the request did not arrive", exchange.attempt)
                case _:
                    pass

    def _take_question(self, message: Message) -> None:
        number = int(message["question"])
        task = self._questions.get(number)
        if task is None:
            answering = self._answer(message["method"], message["params"])
            task = self._questions[number] = asyncio.create_task(answering)
            task.add_done_callback(lambda done: self._send_answer(number, done))
        elif task.done():
            self._send_answer(number, task)

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Message:
        try:
            attempt = self._exchange.attempt
            return {"result": dict(await self._handler.on_request(method, params, attempt))}
        except ErrorReply as error:
            given = {"code": error.code, "message": error.message, "data": error.data}
        except Exception:
            logger.exception("the handler for the server's request %s failed", method)
            given = {"code": INTERNAL_ERROR, "message": "the client's handler failed"}
        return {"error": to_jsonable_python(given)}

    def _send_answer(self, number: int, done: asyncio.Task[Message]) -> None:
        if not done.cancelled():  # it is when the request is over
            request_id = str(self._exchange.request_id)
            self._program.answer(self._owner, request_id, number, done.result())

    def close(self) -> None:
        for task in self._questions.values():
            task.cancel()


class _Serving:
    """A request of another process that runs here."""

    def __init__(self, program: SharedProgram, sender: str, message: Message) -> None:
        self._program, self._sender = program, sender
        self._id = str(message["id"])
        attempt = Attempt(
            on_notification=self._on_notification,
            wants_progress=bool(message["progress"]),
            on_server_request=self._on_question,
        )
        self.work = program.run(message, attempt)
        self.task: asyncio.Task[None] | None = None
        self.polled_at = monotonic()
        self._answer: Message | None = None
        self._confirmed = asyncio.Event()
        self._questions: dict[int, tuple[Message, asyncio.Future[Message]]] = {}

    async def run(self) -> None:
        try:
            while not self.work.done():
                await asyncio.wait((self.work,), timeout=ABANDONED / 3)
                if monotonic() - self.polled_at > ABANDONED:
                    self.work.cancel()
        finally:
            self.work.cancel()
        self._answer = _answer_of(self.work)
        if self._confirmed.is_set():
            return  # it was cancelled: no one waits
        try:
            await self._program.send(self._sender, id=self._id, **self._answer)
        except ValueError as error:
            fault = {"kind": FaultKind.UNREADABLE.value, "sent": True}
            fault["detail"] = f"the result cannot be forwarded: it is {error}"
            self._answer = {"op": "fault", "fault": fault}
            await self._program.send(self._sender, id=self._id, **self._answer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESULT_KEPT):
                await self._confirmed.wait()

    def take(self, message: Message) -> None:
        match message["op"]:
            case "done":
                self._confirmed.set()
            case "cancel":
                self._confirmed.set()
                self.work.cancel()
            case _:
                _, answer = self._questions.get(int(message["question"]), (None, None))
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def repeat(self) -> None:
        """The sender has asked: tell it again what it may have missed."""
        if self._answer is not None:
            self._program.send_soon(self._sender, id=self._id, **self._answer)
            return
        for question, answer in self._questions.values():
            if not answer.done():
                self._program.send_soon(self._sender, **question)
        self._program.send_soon(self._sender, op="here")

    async def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        given = to_jsonable_python(dict(params))
        with contextlib.suppress(ValueError):
            await self._program.send(
                self._sender, op="note", id=self._id, method=method, params=given
            )

    async def _on_question(self, method: str, params: Mapping[str, Any]) -> Any:
        number = len(self._questions) + 1
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        given = to_jsonable_python(dict(params))
        question: Message = {"op": "question", "id": self._id, "question": number}
        question |= {"method": method, "params": given}
        self._questions[number] = question, answer
        await self._program.send(self._sender, **question)
        reply = await answer
        if isinstance(error := reply.get("error"), dict):
            return ErrorData.model_validate(error)
        return _Answer.model_validate(reply["result"])


def _answer_of(work: asyncio.Future[Message]) -> Message:
    """What the sender of a request is told."""
    if work.cancelled():
        fault = {"kind": FaultKind.BROKEN.value, "sent": True}
        return {"op": "fault", "fault": {**fault, "detail": "the owner of the program stopped it"}}
    error = work.exception()
    if error is None:
        return {"op": "result", "result": work.result()}
    failure = error.failure if isinstance(error, ToolkeepError) else None
    if failure is not None and failure.delivery is Delivery.ANSWERED and failure.code is not None:
        found = {"code": failure.code, "message": failure.message, "data": failure.data}
        return {"op": "error", "error": to_jsonable_python(found)}
    if not isinstance(error, ToolkeepError):
        logger.error("forwarding a request failed", exc_info=error)
    delivery = error.delivery if isinstance(error, ToolkeepError) else Delivery.UNKNOWN
    sent = delivery not in (Delivery.NOT_SENT, Delivery.REFUSED)
    kind = FaultKind.BROKEN if sent else FaultKind.CONNECT
    if failure is not None and failure.kind is FailureKind.UNREADABLE:
        kind = FaultKind.UNREADABLE
    fault = {"kind": kind.value, "sent": sent, "detail": str(failure or error)}
    if failure is not None:
        fault |= {"exit_code": failure.exit_code, "stderr": failure.stderr}
    return {"op": "fault", "fault": fault}


def _evidence(fault: Mapping[str, Any]) -> Evidence:
    return Evidence(
        kind=FaultKind(fault["kind"]),
        sent=bool(fault["sent"]),
        detail=str(fault["detail"]),
        exit_code=fault.get("exit_code"),
        stderr=str(fault.get("stderr") or ""),
    )


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first one ends."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
