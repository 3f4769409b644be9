"""Better credentials after a challenge: asked for once, however many calls met it, and wherever."""

from __future__ import annotations

import asyncio

from toolkeep._wire.cancelling import is_cancelled
from toolkeep.auth import Authorizer
from toolkeep.errors import Failure


class Renewing:
    """One for each client. Credentials are the server's, whichever address asks for others."""

    def __init__(self, auth: Authorizer | None) -> None:
        self.auth = auth
        self.epoch = 0
        """Another number whenever the credentials were renewed."""
        self.settle()

    def settle(self) -> None:
        """The client was closed, and may be used in another event loop."""
        self._lock = asyncio.Lock()

    async def renew(self, epoch: int, failure: Failure) -> bool:
        """Whether there are better credentials than those of the epoch that met this failure."""
        if self.auth is None:
            return False
        async with self._lock:
            if epoch != self.epoch:
                return True  # another call that met the same challenge has seen to it
            helped = await _ask(self.auth, failure)
            self.epoch += helped
            return helped


async def _ask(auth: Authorizer, failure: Failure) -> bool:
    """Whether the authorizer could help. If it fails, the challenge stands and is told."""
    try:
        return bool(await auth.challenged(failure.status or 401, failure.headers))
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return False
    except Exception:
        return False
