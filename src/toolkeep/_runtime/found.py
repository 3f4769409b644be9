"""What is found for a call, and the question that may have to be asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkeep._catalogue.stock import TOOLS, Stock
from toolkeep._catalogue.supplier import Supplier
from toolkeep._catalogue.tool import Tool
from toolkeep._engine.tenancy import Lease
from toolkeep._rules.identity import Identity
from toolkeep._runtime.speaking import Speaker
from toolkeep.errors import CallError, ServerUnavailable


@dataclass(slots=True)
class Found:
    """A tool, where it is, and who wants it. Nobody changes it."""

    supplier: Supplier
    stock: Stock
    tool: Tool
    speaker: Speaker
    headers: Mapping[str, str] | None = field(repr=False)
    lease: Lease | None = None
    """The client that had to be lent to find it."""


class AtHand:
    """What was found on nobody's behalf, by its name, for as long as its stock is the server's."""

    def __init__(self, most: int = 10_000) -> None:
        self._found: dict[str, Found] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._found)

    def get(self, name: str) -> Found | None:
        found = self._found.get(name)
        return found if found is not None and found.stock is found.supplier.stock else None

    def put(self, name: str, found: Found) -> None:
        if len(self._found) >= self._most:
            self._found.clear()
        self._found[name] = found

    def clear(self) -> None:
        """Servers came or went."""
        self._found.clear()


async def asked(
    supplier: Supplier, identity: Identity | None, within: float, lease: Lease | None = None
) -> Stock:
    """What is offered to this identity. Whatever became of that question, nothing was called."""
    try:
        return await supplier.stock_for(identity, within, frozenset({TOOLS}), lease)
    except CallError as error:
        failed = error
    text = f"{supplier.name} cannot say what it offers ({failed.failure or 'no answer'})."
    raise ServerUnavailable(
        f"{text} It did not run", server=supplier.name, last_failure=failed.failure
    ) from failed
