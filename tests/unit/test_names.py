"""Names of tools: full names, and names for models."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.names import (
    full_name,
    make_distinct,
    model_name,
    model_names,
    name_with_digest,
    split_full_name,
)

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")

servers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
odd_tools = st.text(st.characters(), max_size=80)
near_tools = st.text("ab_.-é", max_size=6)
pairs = st.tuples(servers | st.text("ab_", min_size=1, max_size=3), odd_tools | near_tools)


@given(pair=st.tuples(servers, odd_tools))
def test_a_full_name_is_parted_into_the_pair_it_was_made_from(pair):
    assert split_full_name(full_name(*pair)) == pair


@pytest.mark.parametrize("name", ["", "search", "a__b"])
def test_a_name_without_a_dot_has_no_server(name):
    assert split_full_name(name) is None


@given(pair=pairs)
def test_a_name_for_models_is_legal_and_always_the_same(pair):
    name = model_name(*pair)
    assert LEGAL.fullmatch(name)
    assert model_name(*pair) == name
    assert name.startswith("_") == (pair[0][0] == "_")


@given(some=st.lists(pairs, unique=True, max_size=30))
def test_two_tools_never_share_a_name(some):
    assert len({model_name(*pair) for pair in some}) == len(some)


@given(some=st.lists(pairs, max_size=10), more=st.lists(pairs, max_size=10))
def test_a_tool_that_comes_renames_no_other(some, more):
    before, after = model_names(some), model_names(some + more)
    assert before == {pair: after[pair] for pair in before}
    assert before == {pair: model_name(*pair) for pair in some}


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("research", "search", "research__search"),
        ("a-b_c", "Get-User_2", "a-b_c__Get-User_2"),
        ("s" * 30, "t" * 32, "s" * 30 + "__" + "t" * 32),
    ],
)
def test_a_plain_name_stays_readable(server, tool, name):
    assert model_name(server, tool) == name


@pytest.mark.parametrize(
    ("server", "tool"),
    [
        ("a", ""),
        ("", "a"),
        ("", ""),
        ("a", "b.c"),
        ("a", "b__c"),
        ("a__b", "c"),
        ("a", "_b"),
        ("a_", "b"),
        ("a", "b\n"),
        ("a", "été"),
        ("s" * 31, "t" * 32),
        ("s" * 64, "t" * 64),
        ("a", "\u202eevil"),
        ("a", "\ud800"),
        ("a", "x" * 5_000_000),
        ("a", "研" * 70),
    ],
)
def test_what_is_not_plain_gets_a_digest_that_no_plain_name_has(server, tool):
    name = model_name(server, tool)
    assert LEGAL.fullmatch(name)
    assert re.search(r"__[0-9a-f]{16}\Z", name)
    assert name.find("__") != name.rfind("__")


def test_a_server_cannot_name_its_tool_like_the_digest_of_another():
    victim = model_name("bank", "send.money")
    rest = victim.removeprefix("bank__")
    assert model_name("bank", rest) != victim


def test_the_names_are_the_same_on_every_machine():
    assert model_name("a", "b.c") == "a__b_c__a172036544a90770"


def test_digests_that_begin_alike_are_lengthened():
    many = [("s", "x" * 80 + str(n)) for n in range(40)]
    short = {pair: name_with_digest(*pair, 1) for pair in many}
    assert len(set(short.values())) < len(many)
    names = make_distinct(short, 1)
    assert len(set(names.values())) == len(many)
    assert all(LEGAL.fullmatch(name) for name in names.values())


def test_lengthening_ends():
    names = {("a", "b"): "same", ("a", "c"): "same"}
    assert make_distinct(names, 60) == names
    assert len(name_with_digest("server", "tool", 60)) == 64
