"""Whose call it is: by name, or else by the headers that it brings."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.identity import CREDENTIAL_HEADERS, NEUTRAL_HEADERS, Identity, identify

NAMES = st.sampled_from(["authorization", "cookie", "x-user", "x-tenant", "traceparent", "x-step"])
HEADERS = st.dictionaries(NAMES, st.text("abc", min_size=1, max_size=3))

NOTHING: Mapping[str, str] = MappingProxyType({})


def whose(
    principal: str | None = None,
    *,
    call: Mapping[str, str] = NOTHING,
    task: Mapping[str, str] = NOTHING,
    neutral: Collection[str] = (),
) -> Identity | None:
    return identify(principal, call=call, task=task, neutral=neutral)


def test_a_call_that_brings_nothing_is_nobodys():
    assert whose() is None


@pytest.mark.parametrize("level", ["call", "task"])
@pytest.mark.parametrize("name", sorted(NEUTRAL_HEADERS))
def test_trace_headers_say_nothing_about_who_calls(level: str, name: str):
    call, task = ({name: "1"}, {}) if level == "call" else ({}, {name: "1"})
    assert whose(call=call, task=task) is None


@pytest.mark.parametrize("level", ["call", "task"])
def test_headers_that_are_listed_as_neutral_say_nothing_either(level: str):
    step = {"x-step": "1"}
    call, task = (step, {}) if level == "call" else ({}, step)
    assert whose(call=call, task=task) is not None
    assert whose(call=call, task=task, neutral={"X-Step"}) is None


@given(call=HEADERS, task=HEADERS)
def test_a_named_principal_is_the_same_whatever_its_headers(
    call: dict[str, str], task: dict[str, str]
):
    assert whose("ann", call=call, task=task) == whose("ann")
    assert whose("ann", call=call, task=task) != whose("ben", call=call, task=task)


@given(call=HEADERS, task=HEADERS, other_call=HEADERS, other_task=HEADERS)
def test_without_a_name_those_are_the_same_who_bring_the_same_headers(
    call: dict[str, str],
    task: dict[str, str],
    other_call: dict[str, str],
    other_task: dict[str, str],
):
    def seen(call: dict[str, str], task: dict[str, str]) -> dict[str, str]:
        return {name: v for name, v in {**task, **call}.items() if name != "traceparent"}

    same = seen(call, task) == seen(other_call, other_task)
    assert (whose(call=call, task=task) == whose(call=other_call, task=other_task)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x-a": "b", "x-c": "d"}, {"x-a": 'b", "x-c": "d'}),
        ({"x-a": "1"}, {"x-b": "1"}),
        ({"x-a": ""}, {"x-a": " "}),
    ],
)
def test_headers_that_look_alike_are_not_the_same(one: dict[str, str], other: dict[str, str]):
    assert whose(task=one) != whose(task=other)


def test_no_name_is_so_odd_that_it_passes_for_headers_or_for_another():
    nameless = whose(task={"x-user": "ann"})
    assert nameless is not None
    names = ["", "ann", "Ann", "principal:ann", nameless.key, "headers:", str(nameless)]
    found = [whose(name) for name in names]
    assert None not in found
    assert len({nameless, *found}) == len(names) + 1


def test_what_is_said_for_a_principal_is_its_tasks_headers_and_its_credentials():
    call = {"authorization": "call", "x-only-now": "1"}
    task = {"authorization": "task", "cookie": "c", "x-tenant": "t", "traceparent": "p"}
    found = whose("ann", call=call, task=task)
    assert found is not None
    assert found.headers == {"authorization": "call", "cookie": "c", "x-tenant": "t"}


@pytest.mark.parametrize("name", CREDENTIAL_HEADERS)
def test_a_credential_of_a_single_call_is_the_newest_there_is(name: str):
    found = whose("ann", call={name: "new"})
    assert found is not None
    assert found.headers == {name: "new"}


def test_what_is_said_for_someone_without_a_name_is_all_that_tells_them_apart():
    found = whose(call={"x-user": "call", "x-request-id": "7"}, task={"x-user": "t", "x-b": "2"})
    assert found is not None
    assert found.headers == {"x-user": "call", "x-b": "2"}


def test_nothing_that_is_given_is_changed():
    call, task = MappingProxyType({"authorization": "c"}), MappingProxyType({"x-user": "u"})
    for principal in ("ann", None):
        identify(principal, call=call, task=task, neutral=frozenset({"x-n"}))
    assert (dict(call), dict(task)) == ({"authorization": "c"}, {"x-user": "u"})


def test_an_identity_shows_its_name_and_no_header():
    named = whose("ann", task={"authorization": "sekret"})
    nameless = whose(task={"authorization": "sekret"})
    assert (str(named), "ann" in repr(named)) == ("ann", True)
    assert str(nameless).startswith("anonymous-")
    for one in (named, nameless):
        assert one is not None
        assert "sekret" not in f"{one}{one!r}{one.key}"
