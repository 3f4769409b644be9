"""What is true of a call that has asked, when the answers do not reach its server.

A tool that asked has run as far as its question. Nobody may be told that it did not run.
"""

from typing import Any

import pytest

from tests.engine.helpers_rounds import ADA, ELICIT, Way, meeting, modern_ways
from tests.engine.helpers_wire import when
from toolkeep import AuthNeeded, CallNotDelivered, CallOutcomeUnknown, CallRejected, ToolkeepError
from toolkeep.errors import Delivery
from toolkeep.events import InputNeeded

HTTP = Way("json", "modern")
ASK = {"requests": {"name": ELICIT}, "key": "k"}
NO_NAME = {"code": -32602, "message": "that is no name"}


async def error_of_second_leg(way: Way, **does: Any) -> tuple[ToolkeepError, Any]:
    """What a call ends with whose server does this to its second leg; and who ran."""

    async def answer(needed: InputNeeded) -> Any:
        await server.script(when(tool="ask", **does))
        return ADA

    async with meeting(way, elicitation=answer, max_retries=0) as (server, client):
        with pytest.raises(ToolkeepError) as caught:
            await client.call_tool("ask", ASK)
        return caught.value, await server.ledger()


@pytest.mark.parametrize(
    "does",
    [{"status": 429}, {"status": 503}, {"status": 404}, {"drop": "before_body"}],
    ids=str,
)
@pytest.mark.requirement("F3", "P1")
async def test_answers_that_were_not_taken_leave_a_call_that_may_have_run(does: Any) -> None:
    error, ran = await error_of_second_leg(HTTP, **does)
    assert type(error) is CallOutcomeUnknown
    assert error.delivery is Delivery.UNKNOWN
    assert ran == {"k:legs": 1}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.requirement("P1")
async def test_credentials_that_ran_out_leave_a_call_that_may_have_run(status: int) -> None:
    error, _ = await error_of_second_leg(HTTP, status=status)
    assert not isinstance(error, CallNotDelivered)
    assert error.delivery in (Delivery.UNKNOWN, Delivery.ANSWERED)
    assert isinstance(error, AuthNeeded | CallOutcomeUnknown)


@modern_ways
@pytest.mark.requirement("F3", "P1")
async def test_answers_that_were_rejected_are_rejected(way: Way) -> None:
    error, _ = await error_of_second_leg(way, error=NO_NAME)
    assert isinstance(error, CallRejected)
    assert (error.code, error.delivery) == (NO_NAME["code"], Delivery.ANSWERED)


@pytest.mark.requirement("P1")
async def test_reading_in_several_legs_changes_nothing_and_may_be_done_again() -> None:
    state = {"resultType": "input_required", "requestState": "s"}
    async with meeting(HTTP, max_retries=0) as (server, client):
        await server.script(
            when("resources/read", times=1, result=state), when("resources/read", status=429)
        )
        with pytest.raises(CallNotDelivered):
            await client.read_resource("kit://notes")
