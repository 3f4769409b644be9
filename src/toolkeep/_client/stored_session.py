"""`SessionResumer`: the sessions of one client in the store that processes share.

A session id is a credential: it appears in no repr, log or error. Of several processes that need a
session at once, one opens it and the others take it up. Without the store each opens its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from toolkeep._client.auth import distinguishing_headers
from toolkeep._client.session import is_supported_handshake
from toolkeep.config import ServerSpec
from toolkeep.errors import CallNotDelivered, Delivery, StoreUnavailable
from toolkeep.state.shared import SharedState, name_of

if TYPE_CHECKING:
    from toolkeep._client.connection import Connection
    from toolkeep.state import Entry

SESSION_TTL = 7 * 86_400.0
"""Seconds that a session stays in the store. Most servers forget it earlier."""
_UNSTORED_TTL = 5.0
"""Seconds in which no process waits for the opening of another, after one ended without a
session."""
_POLL = 0.05
_MAX_LOST_SESSIONS = 100


@dataclass(frozen=True, kw_only=True)
class StoredSession:
    """A session, with all that is needed to resume it without a handshake."""

    session_id: str = field(repr=False)
    handshake: Mapping[str, Any]
    """The server's InitializeResult, unchanged."""
    binding: str = field(repr=False)
    """A digest of the session's owner and address, which the client makes and compares."""

    def encode(self) -> bytes:
        fields = {
            "session_id": self.session_id,
            "handshake": dict(self.handshake),
            "binding": self.binding,
            "saved_at": time.time(),
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> StoredSession | None:
        """None: it is no session in the format of this version."""
        try:
            found: Any = json.loads(value)
        except (ValueError, RecursionError):
            return None
        match found:
            case {"session_id": str(session_id), "handshake": dict(), "binding": str(binding)}:
                handshake = cast("dict[str, Any]", found["handshake"])
                return cls(session_id=session_id, handshake=handshake, binding=binding)
            case _:
                return None


class SessionResumer:
    """Loads and saves the session of one `ConnectionManager`."""

    def __init__(
        self,
        state: SharedState,
        spec: ServerSpec,
        principal: str | None,
        *,
        identity: Mapping[str, str],
        offers: Sequence[str],
    ) -> None:
        self.state, self._patience = state, spec.timeouts.connect
        differing = distinguishing_headers(identity, named=principal is not None)
        self._binding_facts = json.dumps(
            [spec.name, spec.url, principal, differing, sorted(offers)]
        )
        # Clients that cannot share a session have separate records.
        self.key = name_of("session", self._binding_facts)
        self._lost: dict[str, None] = {}
        self._version: int | None = None
        """The version of the record when it was last read; None: it could not be read."""
        self._turn: AsyncExitStack | None = None
        """Holds the lease of an opening that is under way."""

    # -- one opening --------------------------------------------------------------------------

    async def begin(self) -> StoredSession | None:
        """The session to resume; None: open one. Call `end` after that."""
        self._turn = turn = AsyncExitStack()
        stored, unstored = await self._load()
        give_up_at = monotonic() + self._patience
        while stored is None and not unstored and monotonic() < give_up_at:
            try:
                holding = self.state.holding(f"{self.key}:opening")
                if await turn.enter_async_context(holding) is not None:
                    return await self.load()  # another was faster, and is done
            except StoreUnavailable:
                return None
            await asyncio.sleep(_POLL)
            stored, unstored = await self._load()
        return stored

    async def end(self, opened: Connection | None, *, storable: bool) -> None:
        """The opening is over: save a new session, and let the next process begin."""
        try:
            if opened is not None and opened.stored is None:
                await self._save(opened, opened.transport.session_id if storable else None)
        finally:
            turn, self._turn = self._turn, None
            if turn is not None:
                await turn.aclose()

    # -- the record ---------------------------------------------------------------------------

    async def load(self) -> StoredSession | None:
        """The stored session, if it belongs to this client and is not known to be lost."""
        return (await self._load())[0]

    async def _load(self) -> tuple[StoredSession | None, bool]:
        """Also whether an opening has just ended without a session."""
        names = (self.key, f"{self.key}:unstored")
        try:
            entry, unstored = await self.state.ask(
                lambda store: asyncio.gather(*(store.get(name) for name in names))
            )
        except StoreUnavailable:
            self._version = None
            return None, True
        self._version = entry.version if entry else 0
        return self._usable(entry), unstored is not None

    def _usable(self, entry: Entry | None) -> StoredSession | None:
        stored = StoredSession.decode(entry.value) if entry else None
        if stored is None or stored.session_id in self._lost:
            return None
        is_ours = hmac.compare_digest(
            _encode(stored.binding), _encode(self._binding(stored.session_id))
        )
        return stored if is_ours and is_supported_handshake(stored.handshake) else None

    async def _save(self, connection: Connection, session_id: str | None) -> None:
        """Save a new session, unless another process has saved its own meanwhile."""
        protocol, version = connection.protocol, self._version
        if version is None or protocol is None:
            return
        try:
            if session_id is None:
                name = f"{self.key}:unstored"
                await self.state.ask(lambda store: store.put(name, b"", ttl=_UNSTORED_TTL))
                return
            handshake = protocol.result.model_dump(by_alias=True, mode="json", exclude_none=True)
            binding = self._binding(session_id)
            new = StoredSession(session_id=session_id, handshake=handshake, binding=binding)
            saved = await self.state.ask(
                lambda store: store.put(self.key, new.encode(), ttl=SESSION_TTL, if_version=version)
            )
        except StoreUnavailable:
            return
        if saved is not None:
            connection.stored, self._version = new, saved

    async def drop(self, connection: Connection) -> None:
        """Remove the record of a session that is about to be terminated."""
        try:
            entry = await self.state.ask(lambda store: store.get(self.key))
            found = StoredSession.decode(entry.value) if entry else None
            if entry and found and connection.stored and found == connection.stored:
                version = entry.version
                await self.state.ask(lambda store: store.delete(self.key, if_version=version))
        except StoreUnavailable:
            pass  # the next process to take it up finds it lost

    def mark_lost(self, session_id: str) -> None:
        self._lost[session_id] = None
        while len(self._lost) > _MAX_LOST_SESSIONS:
            del self._lost[next(iter(self._lost))]

    def _binding(self, session_id: str) -> str:
        facts = _encode(self._binding_facts)
        return hmac.new(_encode(session_id), facts, hashlib.sha256).hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class SharedTurn:
    """The in-flight limit of a server with `serialize`, in all processes that share a store: one
    request at a time. Entered by one request after the other."""

    def __init__(self, local: asyncio.Semaphore, state: SharedState, spec: ServerSpec) -> None:
        self._local, self._state, self._spec = local, state, spec
        self._key = name_of("turn", spec.name, spec.url)
        self._lease = AsyncExitStack()
        """Belongs to the task that has `_local`."""

    async def __aenter__(self) -> None:
        await self._local.acquire()
        try:
            while await self._lease.enter_async_context(self._state.holding(self._key)) is None:
                await self._lease.aclose()
                await asyncio.sleep(_POLL)
        except StoreUnavailable as error:
            if self._spec.on_store_loss == "closed":
                self._local.release()
                raise self._refused(error) from None
        except BaseException:
            self._local.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._lease.aclose()
        finally:
            self._local.release()

    def _refused(self, error: StoreUnavailable) -> CallNotDelivered:
        name = self._spec.name
        text = (
            f"{name}: the request was not sent: the store is down ({error.problem}), so it is"
            " unknown whose turn it is (serialize), and on_store_loss is closed. It did not run"
        )
        return CallNotDelivered(text, server=name, delivery=Delivery.NOT_SENT)
