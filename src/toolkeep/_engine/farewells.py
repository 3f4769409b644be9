"""Sessions that are lent no more, and whose last calls are still under way."""

from __future__ import annotations

import asyncio
from contextvars import Context

from toolkeep._engine.sessions import Sessions


class Farewells:
    """Belongs to who lent them."""

    def __init__(self) -> None:
        self._leaving: dict[asyncio.Task[None], Sessions] = {}

    def __bool__(self) -> bool:
        return bool(self._leaving)

    def begin(self, sessions: Sessions) -> None:
        """Close these when their calls are over: every call has a deadline."""
        task = asyncio.get_running_loop().create_task(sessions.retire(), context=Context())
        self._leaving[task] = sessions
        task.add_done_callback(self._leaving.pop)

    async def end(self, *, hurry: bool) -> None:
        """Wait until none is left; or end the last calls, too."""
        leaving = tuple(self._leaving.items())
        for task, sessions in leaving if hurry else ():
            await sessions.aclose()
            task.cancel()  # whoever has not given back what was lent has nothing in his hands
        if leaving:
            await asyncio.wait([task for task, _ in leaving])
