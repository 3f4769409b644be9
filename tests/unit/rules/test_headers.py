"""Merging, refusing and comparing headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.headers import (
    FORBIDDEN_HEADERS,
    HeaderRefused,
    by_precedence,
    check_headers,
    merge_headers,
    split_ignored_headers,
)
from toolkeep._rules.identity import NEUTRAL_HEADERS, conflicting_header, identity_headers

names = st.text("abXY-", min_size=1, max_size=3)
values = st.text("pq", max_size=2)
headers = st.dictionaries(names, values, max_size=5)


@given(levels=st.lists(st.none() | headers, max_size=5))
def test_the_first_level_that_has_a_name_in_any_spelling_wins(levels):
    before = [None if level is None else dict(level) for level in levels]
    merged = merge_headers(*levels)
    assert levels == before
    for name, value in merged.items():
        assert name == name.lower()
        first = next(lv for lv in levels if lv and name in {key.lower() for key in lv})
        assert value in [v for key, v in first.items() if key.lower() == name]
    assert set(merged) == {key.lower() for level in levels for key in level or ()}


def test_call_beats_tool_beats_task_beats_derived_beats_server():
    levels = [{"X-A": "call"}, {"x-a": "tool"}, None, {"x-B": "derived"}, {"X-b": "s", "c": "s"}]
    assert merge_headers(*levels) == {"x-a": "call", "x-b": "derived", "c": "s"}


def test_the_headers_of_the_call_win_then_those_of_its_tool_and_of_its_context():
    merged = by_precedence(
        call={"a": "call"},
        tool={"a": "tool", "b": "tool"},
        context={"b": "context", "c": "context"},
        derived={"c": "derived", "d": "derived"},
    )
    assert merged == {"a": "call", "b": "tool", "c": "context", "d": "derived"}


def test_good_headers_pass_with_names_in_lower_case_and_nothing_changed():
    given_headers = {"X-User": " ada\t", "Authorization": "Bearer x", "x-e": "", "x-l": "café\ta"}
    before = dict(given_headers)
    assert check_headers(given_headers, origin="call") == {
        "x-user": "ada",
        "authorization": "Bearer x",
        "x-e": "",
        "x-l": "café\ta",
    }
    assert given_headers == before


@pytest.mark.parametrize(
    "name",
    [*sorted(FORBIDDEN_HEADERS), "mcp-session-id", "MCP-Protocol-Version", "Mcp-Param-X", "HOST"],
)
def test_headers_of_the_protocol_and_the_connection_are_refused(name):
    with pytest.raises(HeaderRefused) as caught:
        check_headers({name: "secret-value"}, origin="call")
    assert caught.value.name == name.lower()
    assert caught.value.origin == "call"


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", "a\r\n", "a\0", "ä", "(a)", "a,b", 7])
def test_malformed_names_are_refused(name):
    with pytest.raises(HeaderRefused):
        check_headers({name: "v"}, origin="call")


@pytest.mark.parametrize(
    "value",
    [
        "a\rb",
        "a\nb",
        "a\r\nx-evil: 1",
        "a\0",
        "a\x1f",
        "\x7f",
        "a\x85b",
        "\n",
        "Ā",
        "🙂",
        5,
        None,
        b"",
    ],
)
def test_malformed_values_are_refused(value):
    with pytest.raises(HeaderRefused):
        check_headers({"x-a": value}, origin="server research")


def test_two_spellings_must_agree():
    assert check_headers({"X-A": "1", "x-a": " 1"}, origin="task") == {"x-a": "1"}
    with pytest.raises(HeaderRefused) as caught:
        check_headers({"X-A": "1", "x-a": "2"}, origin="task")
    assert caught.value.name == "x-a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "s3cret"},
        {"x-a": "s3cret\n"},
        {"x-a": "s3cret🙂"},
        {"X-A": "s3cret", "x-a": "s3cret2"},
        {"Authorization: Bearer s3cret": ""},
        {"x" * 100 + " s3cret": ""},
    ],
)
def test_a_refusal_never_tells_the_value(wrong):
    with pytest.raises(HeaderRefused) as caught:
        check_headers(wrong, origin="call")
    error = caught.value
    assert "s3cret" not in f"{error} {error!r} {error.args} {vars(error)}"


@given(st.text(max_size=8), st.text(max_size=8))
def test_what_passes_is_one_line_on_the_wire(name, value):
    try:
        checked = check_headers({name: value}, origin="call")
    except HeaderRefused:
        return
    line = "".join(f"{name}: {value}" for name, value in checked.items()).encode("latin-1")
    assert len(line.splitlines()) == 1


def test_content_type_and_accept_of_a_configuration_are_set_aside():
    given_headers = {"Content-Type": "text/plain", "X-A": "1", "ACCEPT": "*/*"}
    assert split_ignored_headers(given_headers) == ({"x-a": "1"}, ("accept", "content-type"))
    assert split_ignored_headers({"X-A": "1"}) == ({"x-a": "1"}, ())
    assert len(given_headers) == 3


def test_everything_is_identity_but_trace_headers_and_what_is_listed():
    given_headers = {"Authorization": "x", "TraceParent": "t", "X-B3-TraceId": "b", "X-Tenant": "n"}
    assert identity_headers(given_headers) == {"authorization": "x", "x-tenant": "n"}
    assert identity_headers(given_headers, ["X-TENANT"]) == {"authorization": "x"}
    assert all(name == name.lower() for name in NEUTRAL_HEADERS)
    assert "authorization" not in NEUTRAL_HEADERS


def test_only_a_different_value_is_a_conflict():
    bound = {"Authorization": "one", "x-tenant": "a"}
    assert conflicting_header(bound, {"authorization": "one"}) is None
    assert conflicting_header(bound, {}) is None
    assert conflicting_header(bound, {"x-new": "1"}) is None
    assert (
        conflicting_header(bound, {"x-new": "1", "X-Tenant": "b", "AUTHORIZATION": "two"})
        == "x-tenant"
    )


@given(one=headers, two=headers)
def test_no_conflict_means_that_one_set_of_headers_serves_both(one, two):
    one, two = merge_headers(one), merge_headers(two)
    agree = all(two[name] == one[name] for name in one.keys() & two.keys())
    assert (conflicting_header(one, two) is None) == agree
