"""Doing what was decided about a connection after a failure."""

from __future__ import annotations

from toolkeep._engine.connection import Connection
from toolkeep._engine.keeper import Keeper
from toolkeep._engine.outgoing import Outgoing, Setback
from toolkeep._rules.recovery import Step
from toolkeep.errors import ToolkeepError


async def mend(
    keeper: Keeper, step: Step, setback: Setback, outgoing: Outgoing, left: float
) -> bool:
    """Take the step, within what is left of the call's time. False: it did not help, and the
    failure stands."""
    if step is Step.REAUTHORIZE:
        return await keeper.renewing.renew(setback.auth_epoch, setback.failure)
    if step is Step.RELIST:
        return await _relist(outgoing)
    if step is Step.CHECK:
        return setback.connection is None or await keeper.check(setback.connection, left)
    if setback.connection is not None:
        _give_up(keeper, step, setback, setback.connection)
    return True


def _give_up(keeper: Keeper, step: Step, setback: Setback, connection: Connection) -> None:
    reason = setback.failure.kind.value
    if step is Step.RENEGOTIATE:
        keeper.renegotiate(connection, reason)
    elif step is Step.REPLACE and setback.stuck and not connection.broke:
        keeper.give_up(connection, f"it only fails: {reason}")
    elif step is Step.REPLACE:
        keeper.retire(connection, lost=True, reason=reason)


async def _relist(outgoing: Outgoing) -> bool:
    if outgoing.relist is None:
        return False
    try:
        await outgoing.relist()
    except ToolkeepError:
        return False
    return True
