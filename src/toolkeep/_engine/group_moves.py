"""Opening and closing several seats: together or one by one, forwards and backwards.

What one server does is its failure alone. What is nobody's to recover from ends the opening, and is
raised after a closing that has closed all others; so does any failure where opening is strict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolkeep._engine.group_seat import Seat
from toolkeep._engine.group_turns import Confirmed, uninterrupted
from toolkeep._rules.membership import is_recoverable

Seats = Sequence[Seat[Any]]


async def open_all(
    seats: Seats,
    *,
    parallel: bool,
    strict: bool,
    confirmed: Confirmed | None = None,
    keep: Seats = (),
) -> None:
    """Open those that are not open. When that must not stand, who was closed is closed again; who
    was open or failed before (`keep`) stays wanted, and comes back by itself."""
    fresh = [seat for seat in seats if seat.is_idle and seat not in keep]
    try:
        attempt = _together if parallel else _one_by_one
        error = unbearable(await attempt(seats, strict), strict)
        if error is not None:
            raise error
        if confirmed is not None:
            await confirmed()
    except BaseException:
        for seat in seats:
            seat.unattended()
        await close_all(fresh)
        raise


async def _together(seats: Seats, strict: bool) -> list[BaseException]:
    tasks = [asyncio.ensure_future(seat.attempt()) for seat in seats]
    pending = set(tasks)
    try:
        while pending and not unbearable(_found(tasks), strict):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    return _found(tasks)


def _found(tasks: Sequence[asyncio.Task[BaseException | None]]) -> list[BaseException]:
    """The errors of those that are done, in configured order."""
    results = [task.result() for task in tasks if task.done() and not task.cancelled()]
    return [error for error in results if error is not None]


async def _one_by_one(seats: Seats, strict: bool) -> list[BaseException]:
    errors: list[BaseException] = []
    for seat in seats:
        error = await seat.attempt()
        errors += [error] if error is not None else []
        if unbearable(errors, strict):
            break
    return errors


def unbearable(errors: Sequence[BaseException], strict: bool) -> BaseException | None:
    """The error that ends an opening, if there is one."""
    fatal = [error for error in errors if not is_recoverable(error)]
    return next(iter(fatal or (errors if strict else [])), None)


async def close_all(seats: Seats) -> None:
    """The last one first, to the end, past whatever goes wrong."""
    for seat in seats:
        seat.rest()
    fatal: list[BaseException] = []

    async def backwards() -> None:
        for seat in reversed(seats):
            trouble = await seat.close()
            if trouble is not None and not is_recoverable(trouble):
                fatal.append(trouble)

    await uninterrupted(backwards())
    if fatal:
        raise fatal[0]
