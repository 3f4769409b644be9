"""Doing what was decided about a connection after a failure."""

from __future__ import annotations

import asyncio

from mainstay._engine.connection import Connection
from mainstay._engine.keeper import Keeper
from mainstay._engine.outgoing import Outgoing, Setback
from mainstay._rules.recovery import Step
from mainstay._wire.cancelling import is_cancelled
from mainstay.auth import Authorizer
from mainstay.errors import Failure, MainstayError


async def mend(keeper: Keeper, step: Step, setback: Setback, outgoing: Outgoing) -> bool:
    """Take the step. False: it did not help, and the failure stands."""
    if step is Step.REAUTHORIZE:
        return await _reauthorize(keeper, setback)
    if step is Step.RELIST:
        return await _relist(outgoing)
    if setback.connection is not None:
        _give_up(keeper, step, setback.connection, setback.failure.kind.value)
    return True


def _give_up(keeper: Keeper, step: Step, connection: Connection, reason: str) -> None:
    if step is Step.REPLACE:
        keeper.retire(connection, lost=True, reason=reason)
    elif step is Step.RENEGOTIATE:
        keeper.renegotiate(connection, reason)


async def _reauthorize(keeper: Keeper, setback: Setback) -> bool:
    if keeper.auth is None:
        return False
    async with keeper.auth_lock:
        if setback.auth_epoch != keeper.auth_epoch:
            return True  # another call that met the same challenge has seen to it
        helped = await _ask(keeper.auth, setback.failure)
        keeper.auth_epoch += helped
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


async def _relist(outgoing: Outgoing) -> bool:
    if outgoing.relist is None:
        return False
    try:
        await outgoing.relist()
    except MainstayError:
        return False
    return True
