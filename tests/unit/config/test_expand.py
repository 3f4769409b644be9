"""`${…}` in a configuration."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep.config.expand import expand
from toolkeep.errors import ConfigError

ENV = {"HOST": "example.com", "EMPTY": "", "NESTED": "${HOST}", "_x9": "odd", "DOLLAR": "$"}


@pytest.mark.requirement("H5")
@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${HOST}", "example.com"),
        ("${env:HOST}", "example.com"),
        ("https://${HOST}/mcp", "https://example.com/mcp"),
        ("${HOST}${HOST}", "example.comexample.com"),
        ("${_x9}", "odd"),
        ("${EMPTY}", ""),
        ("${EMPTY:-full}", "full"),
        ("${EMPTY:-}", ""),
        ("${NONE:-default}", "default"),
        ("${env:NONE:-default}", "default"),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b $ {c}", "a:-b $ {c"),
        ("${HOST:-default}", "example.com"),
        ("$${HOST}", "${HOST}"),
        ("$${", "${"),
        ("$${HOST} and ${HOST}", "${HOST} and example.com"),
        ("$HOST", "$HOST"),
        ("$", "$"),
        ("100 $ {HOST}", "100 $ {HOST}"),
        ("", ""),
    ],
)
def test_a_reference_becomes_its_value(text: str, expanded: str):
    assert expand(text, ENV) == expanded


@pytest.mark.requirement("H5")
@pytest.mark.parametrize("text", ["${NONE}", "a ${env:NONE} b", "${HOST}${NONE}"])
def test_an_unset_variable_is_an_error_that_names_it_and_its_key(text: str):
    with pytest.raises(ConfigError) as caught:
        expand({"headers": {"x-a": text}}, ENV)
    assert caught.value.key == "headers.x-a"
    assert "NONE" in caught.value.problem
    assert "NONE" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "${",
        "${}",
        "${HOST",
        "a${ HOST }",
        "${1A}",
        "${HO-ST}",
        "${HOST-default}",
        "${HOST:default}",
        "${env:}",
        "${ENV:HOST}",
        "${input:key}",
        "${NONE:-${HOST}}",
        "${NONE:-open",
    ],
)
def test_half_a_reference_is_an_error_that_says_how_to_write_one(text: str):
    with pytest.raises(ConfigError) as caught:
        expand(["fine", text], ENV, key="args")
    assert caught.value.key == "args.1"
    assert "${NAME}" in caught.value.remedy


def test_an_error_never_shows_the_text_around_the_reference():
    with pytest.raises(ConfigError) as caught:
        expand({"api_key": "hunter2${NONE}"}, ENV)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["${HOST}", "$${HOST}", "${", "${NESTED}", "\\1", "\\g<name>"])
def test_what_a_variable_holds_is_never_expanded_again(value: str):
    assert expand("<${A}>", {"A": value}) == f"<{value}>"


def test_a_value_cannot_become_a_reference_with_what_stands_around_it():
    assert expand("${DOLLAR}{HOST}", ENV) == "${HOST}"


def test_mappings_and_lists_are_walked_and_left_as_they_were():
    given = {"a": ["${HOST}", ("${HOST}", 5)], "b": {"c": "${HOST}", "${HOST}": None, "d": True}}
    before = copy.deepcopy(given)
    assert expand(given, ENV) == {
        "a": ["example.com", ["example.com", 5]],
        "b": {"c": "example.com", "${HOST}": None, "d": True},
    }
    assert given == before


@pytest.mark.parametrize("value", [None, 5, 2.5, True, b"${HOST}"])
def test_what_is_no_text_stays_as_it_is(value: object):
    assert expand(value, ENV) is value


def test_a_key_says_the_whole_way_to_the_value():
    with pytest.raises(ConfigError) as caught:
        expand({"servers": [{"url": "x"}, {"headers": {"x-a": "${NONE}"}}]}, ENV)
    assert caught.value.key == "servers.1.headers.x-a"


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_references_is_unchanged(text: str):
    assert expand(text, {}) == text


@given(st.text())
def test_any_text_can_be_written_with_escapes(text: str):
    # A dollar right before "${" would itself become part of an escape.
    wanted = text.replace("$${", "${")
    while "$${" in wanted:
        wanted = wanted.replace("$${", "${")
    assert expand(wanted.replace("${", "$${"), {}) == wanted


@given(st.text(), st.text(), st.text().filter(lambda text: "$" not in text))
def test_any_value_arrives_unchanged(value: str, default: str, around: str):
    assert expand(around + "${A}" + around, {"A": value}) == around + value + around
    assert expand("${A:-other}", {"A": value}) == (value or "other")
