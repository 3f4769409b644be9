"""Events: frozen facts that can be matched, written as JSON and shown to anybody."""

import asyncio
import dataclasses
import enum
import inspect
import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep import events
from toolkeep.errors import CallOutcomeUnknown, ConfigError, Delivery, Failure, FailureKind
from toolkeep.events import (
    CallEvent,
    CatalogueChanged,
    CatalogueChanges,
    Changed,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    Health,
    HealthChanged,
    InputNeeded,
    Log,
    NameChanges,
    Progress,
    Reloaded,
    ReloadFailed,
    Retrying,
    ServerAdded,
    ServerLost,
    ServerNotification,
    ServerRemoved,
    Started,
)
from toolkeep.results import CallResult

CALL: dict[str, Any] = {"server": "s", "tool": "t", "call_id": "c", "at": 12.5}
BROKEN = Failure(FailureKind.BROKEN, Delivery.UNKNOWN, "reset", status=502)
RESULT = CallResult({"content": [{"type": "text", "text": "hello"}]}, "s", "t")
UNKNOWN = CallOutcomeUnknown(
    "who knows", server="s", tool="t", delivery=Delivery.UNKNOWN, failure=BROKEN
)

LEFT_OUT = {"reply", "waits", "context", "arguments"}

ADDED = CatalogueChanges(tools=NameChanges(added=("s.t",)))

EVERY: list[Event] = [
    Started(**CALL, principal="ada", arguments={"card": "4111"}),
    Progress(**CALL, progress=1, total=4, message="one"),
    Log(**CALL, level="info", data={"step": [1, 2.5, None, True]}, logger="worker"),
    Retrying(**CALL, attempt=1, delay=0.5, failure=BROKEN),
    InputNeeded(**CALL, method="elicitation/create", params={"message": "sure?"}, key="q"),
    Completed(**CALL, result=RESULT),
    Failed(**CALL, error=UNKNOWN),
    Connected(server="s", generation=1, era="legacy", protocol_version="2025-11-25", at=12.5),
    Disconnected(server="s", generation=1, reason="session lost", at=12.5),
    Changed(server="s", what="resource", uri="kit://notes", at=12.5),
    ServerNotification(server="s", method="notifications/message", params={"data": "hi"}, at=12.5),
    Reloaded(server="s", added=("s",), at=12.5),
    ReloadFailed(server="s", error=ConfigError("it is not a URL", key="url"), at=12.5),
    ServerAdded(server="s", attempt=2, at=12.5),
    ServerLost(server="s", error=UNKNOWN, at=12.5),
    ServerRemoved(server="s", error=None, at=12.5),
    HealthChanged(server="s", health=Health.DOWN, before=Health.HEALTHY, error=UNKNOWN, at=12.5),
    CatalogueChanged(server="s", revision=2, changes=ADDED, stale=False, at=12.5),
]


def strictly(text: str) -> Any:
    """JSON as the standard has it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_list_above_has_one_of_every_kind():
    classes = [getattr(events, name) for name in events.__all__]
    kinds = {c for c in classes if inspect.isclass(c) and issubclass(c, Event)}
    assert {type(event) for event in EVERY} == kinds - {Event, CallEvent}


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_an_event_becomes_json_and_back_without_loss(event: Event):
    plain = strictly(event.to_json())
    assert plain == event.as_dict()
    assert plain["event"].replace("_", "") == type(event).__name__.lower()
    assert (plain["server"], plain["at"]) == ("s", 12.5)
    assert {field.name for field in dataclasses.fields(event)} - LEFT_OUT < set(plain)
    assert not LEFT_OUT & set(plain)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_an_event_is_frozen(event: Event):
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.server = "another"  # pyright: ignore[reportAttributeAccessIssue]


def test_only_completed_and_failed_are_final():
    assert [event.kind for event in EVERY if event.is_final] == ["completed", "failed"]


def test_events_are_stamped_when_they_are_made():
    first, second = (
        Started(**{**CALL, "at": 1.0}),
        Disconnected(server="s", generation=1, reason=""),
    )
    assert second.at > first.at


# --- matching --------------------------------------------------------------------------------


def told(event: Event) -> Any:
    match event:
        case Progress(fraction, message):
            return fraction, message
        case Log(level, data):
            return level, data
        case Completed(result):
            return result
        case Failed(error):
            return error
        case Retrying(attempt=attempt, delay=after):
            return attempt, after
        case Started(tool=tool):
            return tool
        case InputNeeded(method, params):
            return method, params
        case Changed(what, uri):
            return what, uri
        case Connected(session_id=session):
            return session
        case _:
            return event.kind


def test_events_are_matched_by_position_where_that_reads_well():
    asked = ("elicitation/create", {"message": "sure?"})
    said = [0.25, "one"], ["info", {"step": [1, 2.5, None, True]}]
    expected = ["t", tuple(said[0]), tuple(said[1]), (1, 0.5), asked, RESULT, UNKNOWN, None]
    changed = ("resource", "kit://notes")
    assert [told(event) for event in EVERY[:11]] == [
        *expected,
        "disconnected",
        changed,
        "server_notification",
    ]


# --- progress --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "total", "fraction"),
    [
        (1, 4, 0.25),
        (0, 4, 0.0),
        (4, 4, 1.0),
        (5, 4, 1.0),
        (-1, 4, 0.0),
        (1, None, None),
        (1, 0, None),
        (1, -4, None),
        (math.nan, 4, None),
        (1, math.nan, None),
    ],
)
def test_the_fraction_is_known_only_when_the_total_is(progress, total, fraction):
    assert Progress(**CALL, progress=progress, total=total).fraction == fraction


numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 5e-324])


@given(numbers, st.none() | numbers)
def test_no_report_of_a_server_can_spoil_its_event(progress, total):
    event = Progress(**CALL, progress=progress, total=total)
    assert event.fraction is None or 0 <= event.fraction <= 1
    strictly(event.to_json())


def test_full_progress_is_not_the_end():
    event = Progress(**CALL, progress=4, total=4)
    assert (event.fraction, event.is_final) == (1.0, False)
    assert event.as_dict()["fraction"] == 1.0


# --- what is shown ---------------------------------------------------------------------------


def test_a_session_id_is_there_for_code_and_hidden_from_people():
    event = Connected(
        server="s", generation=1, era="legacy", protocol_version="v", session_id="sesame"
    )
    assert event.session_id == "sesame"
    assert "sesame" not in repr(event) + str(event) + event.to_json()
    assert event.as_dict()["session_id"] == "***"


def test_a_failed_event_tells_type_delivery_and_status():
    plain = Failed(**CALL, error=UNKNOWN).as_dict()["error"]
    assert plain == {
        "type": "CallOutcomeUnknown",
        "message": "who knows",
        "delivery": "unknown",
        "status": 502,
    }
    cancelled = Failed(**CALL, error=asyncio.CancelledError()).as_dict()["error"]
    assert cancelled == {"type": "CancelledError", "message": ""}


def test_a_completed_event_holds_the_result_in_wire_shape():
    assert Completed(**CALL, result=RESULT).as_dict()["result"] == RESULT.raw


def test_a_replay_tells_its_failure():
    plain = Retrying(**CALL, attempt=1, delay=0.5, failure=BROKEN).as_dict()["failure"]
    assert (plain["kind"], plain["delivery"], plain["status"]) == ("broken", "unknown", 502)


class Colour(enum.Enum):
    RED = "red"


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (Colour.RED, "red"),
        ((1, (2,)), [1, [2]]),
        (MappingProxyType({1: {"a": Colour.RED}}), {"1": {"a": "red"}}),
        (Odd(), "odd"),
        (float("inf"), None),
    ],
)
def test_whatever_a_log_line_holds_becomes_json(data, plain):
    event = Log(**CALL, level="info", data=data)
    assert strictly(event.to_json())["data"] == plain


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(json_values)
def test_json_survives_an_event_unchanged(data):
    assert strictly(Log(**CALL, level="info", data=data).to_json())["data"] == data
