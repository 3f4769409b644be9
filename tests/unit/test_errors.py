"""What toolkeep raises: the tree is as drawn, and every error says whether the call ran."""

import inspect
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolkeep
from toolkeep import Client, errors
from toolkeep.errors import (
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    ConfigError,
    Delivery,
    Failure,
    FailureKind,
    InvalidArguments,
    InvalidResult,
    NotPermitted,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
    UnknownTool,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer

SECRET = "hunter2"

# --- the tree --------------------------------------------------------------------------------

DRAWN = re.compile(r"(?P<indent> +)(?P<name>[A-Z]\w+)(?:\((?P<also>\w+)\))?(?: {2,}\S.*)?")


def drawn_tree() -> dict[str, set[str]]:
    """Each class of the docstring's drawing, with the names of its parents."""
    tree: dict[str, set[str]] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = DRAWN.fullmatch(line)
        if found is None:
            continue
        depth = len(found["indent"])
        above = {indent: name for indent, name in above.items() if indent < depth}
        parents = {above[max(above)]} if above else {"Exception"}
        tree[found["name"]] = parents | ({found["also"]} if found["also"] else set())
        above[depth] = found["name"]
    return tree


def real_tree() -> dict[str, set[str]]:
    public = [getattr(errors, name) for name in errors.__all__]
    raised = [c for c in public if inspect.isclass(c) and issubclass(c, Exception)]
    return {error.__name__: set(public_parents(error)) for error in raised}


def public_parents(error: type) -> list[str]:
    """The parents by name; a private one stands for its own."""
    found: list[str] = []
    for parent in error.__bases__:
        found += public_parents(parent) if parent.__name__.startswith("_") else [parent.__name__]
    return found


def test_the_classes_stand_as_the_docstring_draws_them():
    drawn = drawn_tree()
    assert len(drawn) >= 15
    assert drawn == real_tree()


def test_every_error_can_be_had_from_the_package():
    classes = [name for name in errors.__all__ if issubclass(getattr(errors, name), Exception)]
    assert len(classes) > 20
    assert set(classes) <= set(toolkeep.__all__)


# --- delivery --------------------------------------------------------------------------------

deliveries = st.sampled_from(Delivery)


@given(deliveries, deliveries, deliveries)
def test_the_worst_of_several_attempts_does_not_depend_on_their_order(first, second, third):
    worst = Delivery.worst
    assert worst(first, second) is worst(second, first)
    assert worst(worst(first, second), third) is worst(first, worst(second, third))


@given(deliveries)
def test_an_unknown_outcome_is_never_forgotten_and_not_sent_hides_nothing(delivery):
    assert Delivery.worst(delivery, Delivery.UNKNOWN) is Delivery.UNKNOWN
    assert Delivery.worst(delivery, Delivery.NOT_SENT) is delivery
    assert Delivery.worst(delivery, delivery) is delivery


def test_worst_is_one_of_the_two():
    for first, second in itertools.product(Delivery, repeat=2):
        assert Delivery.worst(first, second) in (first, second)


# --- failures --------------------------------------------------------------------------------


def failure(**changes: Any) -> Failure:
    given: dict[str, Any] = {
        "kind": FailureKind.UNAUTHORIZED,
        "delivery": Delivery.REFUSED,
        "message": "no",
    }
    return Failure(**{**given, **changes})


def test_a_failure_is_frozen_and_compares_by_value():
    assert failure() == failure()
    assert failure() != failure(status=401)
    with pytest.raises(AttributeError):
        failure().status = 401  # pyright: ignore[reportAttributeAccessIssue]


def test_the_default_headers_of_a_failure_cannot_be_changed_for_all():
    with pytest.raises(TypeError):
        failure().headers["retry-after"] = "1"  # pyright: ignore[reportIndexIssue]


def test_a_failure_tells_kind_status_code_and_message():
    told = str(failure(status=401, code=-32001, message="who?"))
    assert all(part in told for part in ("unauthorized", "401", "-32001", "who?"))
    assert "None" not in str(failure())


def test_a_failure_shows_neither_headers_nor_data_in_its_text():
    held = failure(headers={"www-authenticate": SECRET}, data={"token": SECRET}, rule=SECRET)
    assert SECRET not in str(held)
    assert SECRET not in repr(failure(headers={"www-authenticate": SECRET}))


# --- errors ----------------------------------------------------------------------------------

CALL = {"server": "s", "tool": "t", "attempts": 2, "failure": None}


def test_an_error_carries_what_the_server_asked_for():
    headers = {"www-authenticate": "Bearer", "retry-after": "3"}
    error = AuthNeeded(
        "", server="s", failure=failure(status=401, retry_after=3.0, headers=headers)
    )
    assert (error.status, error.retry_after, error.www_authenticate) == (401, 3.0, "Bearer")


def test_an_error_without_a_failure_has_nothing_to_carry():
    for error in (ToolkeepError(), AuthNeeded("", server="s"), NotPermitted("")):
        assert error.failure is None
        assert (error.status, error.retry_after, error.www_authenticate) == (None, None, None)
    assert AuthNeeded("", server="s", failure=failure()).www_authenticate is None


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("bad"),
        UnknownTool("no such tool"),
        NotPermitted("not you"),
        InvalidArguments("", server="s", tool="t"),
        ServerUnavailable("", server="s"),
        AuthNeeded("", server="s"),
        RemoteProtocolError("", server="s"),
    ],
)
def test_what_is_raised_before_sending_was_not_sent(error: ToolkeepError):
    assert error.delivery is Delivery.NOT_SENT


def test_an_unavailable_server_was_sent_nothing_whatever_its_handshake_met():
    last = failure(kind=FailureKind.BROKEN, delivery=Delivery.UNKNOWN, status=502)
    error = ServerUnavailable("", server="s", since=12.5, last_failure=last)
    assert error.delivery is Delivery.NOT_SENT
    assert error.failure is error.last_failure is last
    assert (error.since, error.status, error.server) == (12.5, 502, "s")


@pytest.mark.parametrize("kind", [AuthNeeded, RemoteProtocolError])
def test_an_error_about_a_server_went_as_far_as_its_failure(kind):
    assert kind("", server="s", failure=failure()).delivery is Delivery.REFUSED


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kind", [CallNotDelivered, CallOutcomeUnknown, CallRejected, CallTimedOut])
def test_a_failed_call_knows_its_server_tool_attempts_and_delivery(kind, delivery):
    error = kind("told", delivery=delivery, **CALL)
    assert isinstance(error, CallError)
    assert (error.server, error.tool, error.attempts) == ("s", "t", 2)
    assert error.delivery is delivery
    assert str(error) == "told"


@pytest.mark.parametrize("kind", [CallTimedOut, CallNotSentInTime])
def test_both_kinds_of_passed_deadlines_are_timeouts(kind):
    with pytest.raises(TimeoutError):
        raise kind("late", delivery=Delivery.UNKNOWN, **CALL)
    assert issubclass(CallTimedOut, CallOutcomeUnknown)
    assert not issubclass(CallNotSentInTime, CallOutcomeUnknown)


def test_a_rejection_has_the_code_and_data_of_the_server():
    said = failure(kind=FailureKind.REJECTED, code=-32602, data={"field": "city"})
    error = CallRejected("", **{**CALL, "failure": said}, delivery=Delivery.ANSWERED)
    assert (error.code, error.data) == (-32602, {"field": "city"})
    bare = CallRejected("", **CALL, delivery=Delivery.ANSWERED)
    assert (bare.code, bare.data) == (None, None)


def test_an_invalid_result_keeps_the_result():
    error = InvalidResult("", server="s", tool="t", result={"content": 5}, attempts=3)
    assert error.result == {"content": 5}
    assert (error.delivery, error.attempts, error.failure) == (Delivery.ANSWERED, 3, None)


def test_details_stay_on_the_errors_that_have_them():
    assert UnknownTool("", suggestions=("search",)).suggestions == ("search",)
    assert InvalidArguments("", server="s", tool="t", problems=("a", "b")).problems == ("a", "b")


@pytest.mark.requirement("C3")
def test_a_configuration_error_names_every_place_it_knows():
    error = ConfigError("too short", remedy="Lengthen it", server="s", key="k", file="mcp.json")
    assert (error.problem, error.remedy) == ("too short", "Lengthen it")
    assert (error.server, error.key, error.file) == ("s", "k", "mcp.json")
    assert all(
        part in str(error) for part in ("too short", "Lengthen it", "'s'", "'k'", "mcp.json")
    )
    assert str(ConfigError("too short")) == "too short"


@pytest.mark.requirement("P1")
async def test_a_later_refusal_is_the_cause_of_an_earlier_doubt():
    async with ScriptedServer.local() as server, Client(server.url) as client:
        await client.list_tools()
        await server.script(
            Rule(tool="record_read_only", times=1, do=Behaviour(drop="after_run")),
            Rule(tool="record_read_only", do=Behaviour(status=403)),
        )
        with pytest.raises(CallOutcomeUnknown) as caught:
            await client.call_tool("record_read_only", {"key": "once"}, timeout=10)
        assert caught.value.delivery is Delivery.UNKNOWN
        assert caught.value.attempts == 2
        assert isinstance(caught.value.__cause__, AuthNeeded)
        assert await server.executions("once") == 1
