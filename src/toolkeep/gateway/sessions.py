"""`Sessions`: the sessions of legacy clients, whose ids carry what a replica needs to know.

A session id is the sealed identity of its client: version, capabilities, principal, profile. Any
replica with the keys opens it, and a call looks nothing up. Only what changes later (log level,
subscriptions, the end) is one record in the store, which a replica reads when it first sees the id
and once a minute after that; changes are told to all replicas at once.

An id that does not open, has ended, or is another principal's, is the same "not found".
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any, cast
from weakref import WeakValueDictionary

from toolkeep.errors import StoreUnavailable
from toolkeep.gateway.access import Caller
from toolkeep.gateway.errors import SESSION_NOT_FOUND, RpcError
from toolkeep.gateway.protocol import Peer
from toolkeep.gateway.replicas import PREFIX, GatewayStore, Replicas
from toolkeep.state.sealed import DecryptionFailed, KeyRing

__all__ = ["Seal", "Session", "Sessions"]

logger = logging.getLogger("toolkeep.gateway")

MAX_ID = 4096
"""Characters of a session id. Proxies accept headers of 8 KB."""
MAX_AGE = 7 * 86_400.0
"""Seconds after which a session ends, and its client begins a new one."""
RECHECK = 60.0
"""Seconds after which the record of a session is read again."""
MAX_URIS, MAX_URI = 1000, 2000
"""Resources that one session may subscribe to, and the characters of their URIs."""


class Seal:
    """Makes and opens the texts that a client keeps for the gateway: session ids and request
    states. One that was made for one purpose does not open for another."""

    def __init__(self, keys: Sequence[str | bytes]) -> None:
        self._ring = KeyRing(keys)

    def close(self, what: str, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        plain = text.encode(errors="surrogatepass")  # as `json.loads` decodes it
        sealed = self._ring.encrypt(plain, f"gateway:{what}".encode())
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, what: str, text: str) -> Any:
        """The value. Raises `ValueError` for a text that was not made here for this purpose."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise DecryptionFailed("it is not base64") from None
        return json.loads(self._ring.decrypt(sealed, f"gateway:{what}".encode()))


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A legacy session, as this replica knows it."""

    id: str
    peer: Peer
    issued: float
    level: str | None = None
    """The least level of log lines that the client wants. None: it has not said."""
    uris: Mapping[str, str] = field(default_factory=dict[str, str])
    """The subscribed resources, with their servers."""
    ended: bool = False
    checked_at: float = float("-inf")

    @property
    def is_expired(self) -> bool:
        return self.ended or time() > self.issued + MAX_AGE


class Sessions:
    """Issues and opens sessions. `max_known`: sessions whose state is kept in memory."""

    def __init__(
        self, seal: Seal, store: GatewayStore, replicas: Replicas, *, max_known: int
    ) -> None:
        self._seal, self._store, self._replicas = seal, store, replicas
        self._max_known = max_known
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._by_id: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self.on_changed: Callable[[Session], None] = lambda session: None
        replicas.hear("session", self._on_told)

    def __len__(self) -> int:
        return len(self._known)

    def issue(self, peer: Peer) -> tuple[str, Session]:
        """A new session of this client, with the text of its id."""
        session = Session(secrets.token_urlsafe(12), peer, time(), checked_at=monotonic())
        facts = (
            session.id,
            round(session.issued),
            peer.caller.principal,
            peer.profile,
            peer.version,
            peer.capabilities,
            peer.client_info,
        )
        text = self._seal.close("session", facts)
        self._keep(text, _with_session(session))
        return text, session

    async def open(self, text: str, caller: Caller, profile: str) -> Session:
        """The session of this id. Raises `RpcError` if there is none for this caller."""
        session = self._known.get(text)
        if session is None:
            session = self._keep(text, self._unseal(text, caller))
        else:
            self._known.move_to_end(text)
        peer = session.peer
        if peer.caller.principal != caller.principal or peer.profile != profile:
            raise session_not_found()
        if monotonic() - session.checked_at > RECHECK:
            await self._check(session)
        if session.is_expired:
            raise session_not_found()
        # Other claims than before, perhaps fewer. From here on there is no wait until the request
        # takes them: another request of the session, with another token, must not lend it its own.
        if session.peer.caller is not caller:
            session.peer = _peer_of(session, caller)
        return session

    async def end(self, session: Session) -> None:
        """The client has ended it. Raises `StoreUnavailable` if others may not hear of it."""
        session.ended = True
        await self._save(session)

    async def set_level(self, session: Session, level: str) -> None:
        session.level = level
        await self._save(session)

    async def set_uris(self, session: Session, uris: Mapping[str, str]) -> None:
        session.uris = uris
        await self._save(session)

    # -- private --------------------------------------------------------------------------------

    def _unseal(self, text: str, caller: Caller) -> Session:
        if len(text) > MAX_ID:
            raise session_not_found()
        try:
            facts = self._seal.open("session", text)
            name, issued, principal, profile, version, capabilities, info = facts
        except ValueError:
            raise session_not_found() from None
        if principal != caller.principal:
            raise session_not_found()
        found = self._by_id.get(name)
        if found is not None:
            return found
        session = Session(name, Peer(caller, profile, version, capabilities, info), float(issued))
        return _with_session(session)

    def _keep(self, text: str, session: Session) -> Session:
        self._known[text] = session
        self._by_id[session.id] = session
        if len(self._known) > self._max_known:
            self._known.popitem(last=False)
        return session

    async def _check(self, session: Session) -> None:
        """Read the record. While the store is down, what is in memory counts."""
        key = _record_key(session.id)
        try:
            found = await self._store.ask(lambda store: store.get(key))
        except StoreUnavailable:
            return
        session.checked_at = monotonic()
        if found is not None:
            self._apply(session, json.loads(found.value))

    async def _save(self, session: Session) -> None:
        record = {"level": session.level, "uris": dict(session.uris), "ended": session.ended}
        left = max(1.0, session.issued + MAX_AGE - time())
        value, key = json.dumps(record).encode(), _record_key(session.id)
        await self._store.ask(lambda store: store.put(key, value, ttl=left))
        session.checked_at = monotonic()
        await self._replicas.tell_all("session", {"id": session.id, **record})
        self.on_changed(session)

    def _on_told(self, about: Any) -> None:
        session = self._by_id.get(str(cast("Mapping[str, Any]", about)["id"]))
        if session is not None:
            self._apply(session, about)

    def _apply(self, session: Session, record: Mapping[str, Any]) -> None:
        session.level, session.uris = record["level"], dict(record["uris"])
        session.ended = session.ended or bool(record["ended"])
        self.on_changed(session)


def session_not_found() -> RpcError:
    return RpcError(SESSION_NOT_FOUND, "session not found: send initialize without a session id")


def _with_session(session: Session) -> Session:
    session.peer = _peer_of(session, session.peer.caller)
    return session


def _peer_of(session: Session, caller: Caller) -> Peer:
    peer = session.peer
    return Peer(caller, peer.profile, peer.version, peer.capabilities, peer.client_info, session)


def _record_key(session_id: str) -> str:
    return f"{PREFIX}:session:{session_id}"
