"""Taking up a legacy session where it was left, by this process or another.

What the store keeps is bound to an address, a principal and what the client offered in its
handshake: a session is only taken up by those who could have opened it. A store that fails or
hangs costs a fresh session, never a call.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from toolkeep._engine.belonging import told_apart
from toolkeep._engine.connection import Connection
from toolkeep._engine.negotiate import is_known
from toolkeep._wire.cancelling import is_cancelled
from toolkeep.config import ServerSpec
from toolkeep.stores import SessionStore, StoredSession

logger = logging.getLogger("toolkeep.client")

_PATIENCE = 3.0
"""Seconds that a store may take."""
_MOST_REMEMBERED = 100

Found = TypeVar("Found")


class Resuming:
    """One for each keeper that has a store."""

    def __init__(
        self,
        store: SessionStore,
        spec: ServerSpec,
        principal: str | None,
        *,
        identity: Mapping[str, str],
        offers: Sequence[str],
    ) -> None:
        self._store, self._name, self._principal = store, spec.name, principal
        differing = told_apart(identity, named=principal is not None)
        self._facts = json.dumps([spec.url, principal, differing, sorted(offers)])
        # Those who could not share a session have records of their own, and undo nobody's.
        self._server = f"{spec.name}#{hashlib.sha256(self._facts.encode()).hexdigest()[:16]}"
        self._gone: dict[str, None] = {}
        self._found: str | None = None
        """The session id that the store held when it was last asked."""

    async def load(self) -> StoredSession | None:
        """The session to take up, if there is one that is ours and not known to be gone."""
        stored = await self._ask(partial(self._store.load, self._server, self._principal), None)
        if not isinstance(stored, StoredSession):  # a store is somebody else's code
            stored = None
        self._found = stored.session_id if stored else None
        if stored is None or stored.session_id in self._gone:
            return None
        ours = hmac.compare_digest(_bytes(stored.binding), _bytes(self._bind(stored.session_id)))
        return stored if ours and is_known(stored.handshake) else None

    async def keep(self, connection: Connection) -> None:
        """Have a fresh session kept, unless another process was faster with one of its own."""
        session_id, agreement = connection.wire.session_id, connection.agreement
        if connection.stored is not None or session_id is None or agreement is None:
            return
        stored = StoredSession(
            session_id=session_id,
            handshake=agreement.result.model_dump(by_alias=True, mode="json", exclude_none=True),
            binding=self._bind(session_id),
            saved_at=time.time(),
        )
        whose = (self._server, self._principal)
        saving = partial(self._store.save, *whose, stored, replacing=self._found)
        if await self._ask(saving, False):
            connection.stored = stored

    async def drop(self, connection: Connection) -> None:
        """The session is being ended at the server."""
        if connection.stored is not None:
            session_id = connection.stored.session_id
            dropping = partial(self._store.drop, self._server, self._principal, session_id)
            await self._ask(dropping, False)

    def gone(self, session_id: str) -> None:
        self._gone[session_id] = None
        while len(self._gone) > _MOST_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _bind(self, session_id: str) -> str:
        return hmac.new(_bytes(session_id), _bytes(self._facts), hashlib.sha256).hexdigest()

    async def _ask(self, ask: Callable[[], Awaitable[Found]], otherwise: Found) -> Found:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await ask()
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return self._without(error, otherwise)
        except Exception as error:
            return self._without(error, otherwise)

    def _without(self, error: BaseException, otherwise: Found) -> Found:
        kind = type(error).__name__
        logger.warning("%s: the session store failed (%s); going on without", self._name, kind)
        return otherwise


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
