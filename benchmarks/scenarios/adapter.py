"""What a client must offer to be driven: four methods, and two more if it can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Told of a step of a call: how far it is, how far it goes, and a message."""


class Adapter(Protocol):
    """One client of one server. Built without arguments, once for each scenario, and opened once.

    It imports nothing of the kit, and runs in a process of its own, perhaps in an environment
    without toolkeep. What the client cannot do raises `NotImplementedError` with the reason; any
    other exception is what the client's user would have got.

    Two attributes and two methods are looked for and may be missing: `log_in(url, timeout, folder)`
    (like `open`, at a server that wants OAuth; the login is kept in the folder, and the adapter
    does what a person's browser would), `name` (else the class's name),
    `packages` (distributions whose versions are reported) and `outcome(error)`: `"ran"`, `"not
    run"` or `"unknown"`, if the client's error says so by its type or by a field; None if not.
    """

    async def open(self, url: str, timeout: float) -> None:
        """Get ready for a server over streamable HTTP. `timeout`: what a user grants to each
        call, in seconds."""
        ...

    async def list_tools(self) -> Sequence[str]:
        """The names that the client gives, as the server spells them."""
        ...

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        headers: Mapping[str, str] | None,
        on_progress: OnProgress | None,
    ) -> tuple[str, bool]:
        """The text of the result, and whether the tool says that it failed.

        `headers` go with this call alone. `on_progress` is to be awaited for every step that the
        tool reports.
        """
        ...

    async def close(self) -> None: ...
