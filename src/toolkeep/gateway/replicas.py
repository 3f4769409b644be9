"""`Replicas`: messages between the replicas of one gateway, through its store, the `GatewayStore`.

Each replica has a mailbox, a log in the store; a message on its channel says that there is more to
read, and because such a message may be lost, the log is also read every few seconds. A replica that
lives renews a mark; without it, what waits for that replica is told so. There is no leader.

Everything written here is sealed with the gateway's keys: a process that can write to the store but
has no keys can neither read nor forge it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from time import monotonic
from typing import Any, TypeVar, cast

from toolkeep.errors import SealBroken, StoreUnavailable, ToolkeepError
from toolkeep.gateway.errors import INTERNAL_ERROR, OUTCOME_UNKNOWN, RpcError
from toolkeep.state.sealed import SealedStore, sealed
from toolkeep.state.shared import SharedState
from toolkeep.state.store import Store

__all__ = ["GatewayStore", "ReplicaGone", "Replicas"]

logger = logging.getLogger("toolkeep.gateway")

PREFIX = "toolkeep:gateway"
EVERYONE = f"{PREFIX}:all"
"""The channel of what all replicas are told. Messages on it may be lost."""

BEAT, ALIVE_FOR = 2.0, 7.0
"""Seconds between two marks of life, and until a replica without one counts as dead."""
POLL = 2.0
"""Seconds after which a message whose hint was lost is found."""
RETRY = 1.0
"""Seconds without the store after it failed."""
PATIENCE, PAUSE = 5.0, 0.25
"""Seconds for which a message waits for a store that is down, and between two attempts. A client
sends its answer to a question once: if that is lost, the call waits until it times out."""
MAX_MAIL, MAIL_TTL = 1000, 120.0
"""Messages that one mailbox holds, and for how many seconds."""
MAX_INLINE = 64 * 1024
"""Bytes of a message in a mailbox. Larger ones are stored under a key that is used once."""
MAX_RUNNING = 1000
"""Messages that are handled at the same time. Others are refused."""

T = TypeVar("T")
Handler = Callable[[bytes], Awaitable[bytes]]
"""From the payload of a message to that of its answer. An `RpcError` is an answer too."""


class ReplicaGone(ToolkeepError):
    """The replica that a message was for does not live any more."""


class GatewayStore:
    """The store of a gateway: the runtime's, or without one, memory of this process. Sealed with
    the gateway's keys."""

    def __init__(self, state: SharedState, keys: Sequence[str | bytes]) -> None:
        self._state = state if state else SharedState("memory:")
        self._events = state if state else SharedState("memory:")
        """Of their own without a shared store: streams must not fill what sessions need."""
        self._keys = keys
        self._seals: dict[int, tuple[Store, Store]] = {}
        """Each store, with its sealed form, by its id. There are two at most."""

    @property
    def is_available(self) -> bool:
        status = self._state.status
        return status is None or status.available

    def _sealed(self, store: Store) -> Store:
        if isinstance(store, SealedStore):
            return store
        found = self._seals.get(id(store))
        if found is None:
            found = self._seals[id(store)] = store, sealed(store, self._keys)
        return found[1]

    async def ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """What `work` returns. Raises `StoreUnavailable`."""
        return await self._state.ask(lambda store: work(self._sealed(store)))

    async def ask_patiently(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """The same, and again while the store is down. `work` may be done twice."""
        until, again = monotonic() + PATIENCE, True
        while True:
            try:
                return await self.ask(work)
            except StoreUnavailable:
                if monotonic() >= until or not (again or not self.is_available):
                    raise
                again = not self.is_available  # a store that works is asked once more
            await asyncio.sleep(PAUSE)

    async def ask_events(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """The same for the events of streams."""
        return await self._events.ask(lambda store: work(self._sealed(store)))

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        store = self._state.store
        assert store is not None
        return self._sealed(store).subscribe(channel)


class Replicas:
    """This replica, and messages to others. From `start` to `stop` it handles what it is sent."""

    def __init__(self, store: GatewayStore) -> None:
        self.id = secrets.token_urlsafe(9)
        self._store = store
        self._handlers: dict[str, Handler] = {}
        self._listeners: dict[str, Callable[[Any], None]] = {}
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._received: dict[str, None] = {}
        """The ids of the newest messages: one may be in the mailbox twice."""
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Replicas {self.id}, {len(self._running)} messages in work>"

    def serve(self, kind: str, handler: Handler) -> None:
        """Handle the messages of this kind that are for this replica."""
        self._handlers[kind] = handler

    def hear(self, kind: str, listener: Callable[[Any], None]) -> None:
        """Call `listener` with what all replicas are told of this kind, from here too."""
        self._listeners[kind] = listener

    async def start(self) -> None:
        await self._beat()
        create = asyncio.get_running_loop().create_task
        work = self._live(), self._read(), self._follow(self._mailbox, self._on_hint)
        more = (self._follow(EVERYONE, self._on_told),)
        self._tasks = [create(one, context=Context()) for one in (*work, *more)]

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._running]
        self._tasks = []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for future in self._waiting.values():
            future.cancel()
        with suppress(StoreUnavailable):
            await self._store.ask(lambda store: store.delete(_mark(self.id)))

    # -- sending --------------------------------------------------------------------------------

    async def tell_all(self, kind: str, about: Any) -> None:
        """Tell all replicas. May be lost; raises nothing."""
        message = json.dumps([kind, about]).encode()
        with suppress(StoreUnavailable):
            await self._store.ask(lambda store: store.publish(EVERYONE, message))

    async def tell(
        self, replica: str, kind: str, payload: bytes, *, token: str = "", status: str = ""
    ) -> None:
        """Put a message into a mailbox. Raises `StoreUnavailable`, after some seconds."""
        head: dict[str, str] = {"kind": kind, "from": self.id, "token": token, "status": status}
        head["id"] = secrets.token_urlsafe(9)
        if len(payload) > MAX_INLINE:
            key, large = f"{PREFIX}:large:{head['id']}", payload
            await self._store.ask_patiently(lambda store: store.put(key, large, ttl=MAIL_TTL))
            head["large"], payload = key, b""
        entry = json.dumps(head).encode() + b"\n" + payload
        box = _mailbox(replica)
        await self._store.ask_patiently(
            lambda store: store.append(box, entry, max_entries=MAX_MAIL, ttl=MAIL_TTL)
        )
        with suppress(StoreUnavailable):  # the mailbox is also read without a hint
            await self._store.ask(lambda store: store.publish(box, b"1"))

    async def request(self, replica: str, kind: str, payload: bytes, within: float) -> bytes:
        """Send a message, and wait for its answer. Raises `ReplicaGone`, `TimeoutError`,
        `StoreUnavailable`, or the `RpcError` that the other raised."""
        if not await self.is_alive(replica):
            raise ReplicaGone(f"the replica {replica} does not live any more")
        token, until = secrets.token_urlsafe(12), monotonic() + within
        answer = self._waiting[token] = asyncio.get_running_loop().create_future()
        try:
            await self.tell(replica, kind, payload, token=token)
            while not answer.done():
                left = until - monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait((answer,), timeout=min(left, BEAT))
                if not answer.done() and not await self.is_alive(replica):
                    raise ReplicaGone(f"the replica {replica} does not live any more")
            return answer.result()
        finally:
            self._waiting.pop(token, None)
            answer.cancel()

    async def is_alive(self, replica: str) -> bool:
        """Whether this replica has shown life lately. True while the store cannot tell."""
        if replica == self.id:
            return True
        try:
            return await self._store.ask(lambda store: store.get(_mark(replica))) is not None
        except StoreUnavailable:
            return True

    # -- receiving ------------------------------------------------------------------------------

    @property
    def _mailbox(self) -> str:
        return _mailbox(self.id)

    async def _live(self) -> None:
        while True:
            # Without its mark, others would take this replica for dead.
            is_marked = await self._beat()
            await asyncio.sleep(BEAT if is_marked else PAUSE)

    async def _beat(self) -> bool:
        try:
            await self._store.ask(lambda store: store.put(_mark(self.id), b"1", ttl=ALIVE_FOR))
        except StoreUnavailable:
            return False
        return True

    async def _follow(self, channel: str, on_message: Callable[[bytes], None]) -> None:
        while True:
            try:
                async with self._store.subscribe(channel) as messages:
                    self._more.set()  # what was sent before this is not delivered
                    async for message in messages:
                        on_message(message)
            except Exception as error:
                logger.debug("a channel cannot be heard: %s", type(error).__name__)
            await asyncio.sleep(RETRY)

    def _on_hint(self, _: bytes) -> None:
        self._more.set()

    def _on_told(self, message: bytes) -> None:
        try:
            kind, about = json.loads(message)
            listener = self._listeners.get(kind)
            if listener is not None:
                listener(about)
        except Exception:
            logger.exception("what another replica told could not be applied")

    async def _read(self) -> None:
        after = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._more.wait()
            self._more.clear()
            try:
                while found := await self._store.ask(
                    lambda store, after=after: store.read(self._mailbox, after, limit=100)
                ):
                    after = found[-1][0]
                    for _, entry in found:
                        self._receive(entry)
            except StoreUnavailable as error:
                # What is sealed with keys that this replica lacks needs an operator.
                level = logging.WARNING if isinstance(error, SealBroken) else logging.DEBUG
                logger.log(level, "the mailbox cannot be read: %s", error)
                await asyncio.sleep(RETRY)

    def _receive(self, entry: bytes) -> None:
        head, _, payload = entry.partition(b"\n")
        try:
            about = cast("dict[str, str]", json.loads(head))
        except ValueError:
            logger.warning("a message of another replica cannot be read; it is skipped")
            return
        if about["id"] in self._received:
            return
        self._received[about["id"]] = None
        if len(self._received) > MAX_MAIL:
            del self._received[next(iter(self._received))]
        if len(self._running) >= MAX_RUNNING:
            logger.warning("a message of another replica is dropped: too many are in work")
            return
        task = asyncio.get_running_loop().create_task(
            self._handle(about, payload), context=Context()
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, about: dict[str, str], payload: bytes) -> None:
        try:
            if "large" in about:
                payload = await self._take_large(about["large"])
            if about["kind"] == "answer-to":
                self._resolve(about, payload)
                return
            status, answer = "", b""
            try:
                answer = await self._handlers[about["kind"]](payload)
            except RpcError as error:
                status, answer = "error", json.dumps(error.as_error()).encode()
            except Exception:
                logger.exception("a message of another replica could not be handled")
                fault = RpcError(INTERNAL_ERROR, "another replica failed")
                status, answer = "error", json.dumps(fault.as_error()).encode()
            if about["token"]:
                await self._answer(about, answer, status)
        except (StoreUnavailable, KeyError) as error:
            logger.warning("a message of another replica is lost: %s", error)

    async def _answer(self, about: dict[str, str], answer: bytes, status: str) -> None:
        sender, token = about["from"], about["token"]
        try:
            await self.tell(sender, "answer-to", answer, token=token, status=status)
        except StoreUnavailable as error:  # perhaps because it is large
            logger.warning("an answer of %d bytes cannot be handed over: %s", len(answer), error)
            text = f"it was handled, but the answer of {len(answer)} bytes cannot be handed over"
            fault = RpcError(OUTCOME_UNKNOWN, text, {"toolkeep/delivery": "unknown"})
            shown = json.dumps(fault.as_error()).encode()
            await self.tell(sender, "answer-to", shown, token=token, status="error")

    async def _take_large(self, key: str) -> bytes:
        found = await self._store.ask_patiently(lambda store: store.get(key))
        if found is None:
            raise KeyError(key)
        with suppress(StoreUnavailable):
            await self._store.ask(lambda store: store.delete(key))
        return found.value

    def _resolve(self, about: dict[str, str], payload: bytes) -> None:
        future = self._waiting.get(about["token"])
        if future is None or future.done():
            return
        if about["status"] != "error":
            future.set_result(payload)
            return
        error = cast("dict[str, Any]", json.loads(payload))
        future.set_exception(RpcError(error["code"], error["message"], error.get("data")))


def _mark(replica: str) -> str:
    return f"{PREFIX}:replica:{replica}"


def _mailbox(replica: str) -> str:
    return f"{PREFIX}:mail:{replica}"
