"""Patterns that name tools, and who may see and call them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.access import (
    CACHED_PRINCIPALS,
    PatternSet,
    Permissions,
    ToolSelection,
    split_patterns,
)
from toolkeep.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "server", "tool", "matches"),
    [
        ("search", "a", "search", True),
        ("search", "a", "Search", False),
        ("search", "a", "research", False),
        ("*", "a", "x.y", True),
        ("read_*", "b", "read_file", True),
        ("read_?", "b", "read_file", False),
        ("[rw]ead", "b", "wead", True),
        ("pay.*", "pay", "x.read", True),
        ("pay.*", "payments", "read", False),
        ("pay*.read", "payments", "read", True),
        ("pay*.read", "pay", "x.read", False),
        ("*.x.read", "pay", "x.read", True),
        ("*.read", "pay", "x.read", False),
        ("pay.x.read", "pay", "x.read", True),
        ("x.read", "pay", "x.read", False),
        ("*.!odd", "a", "!odd", True),
        ("*.#odd", "a", "#odd", True),
        ("*", "a", "line\nbreak", True),
        ("a.", "a", "", True),
        ("pay.*", "", "pay.x", False),
    ],
)
def test_a_pattern_matches_server_and_tool_each_on_its_own(pattern, server, tool, matches):
    assert PatternSet.of([pattern]).match(server, tool) is matches


@pytest.mark.parametrize(
    ("pattern", "tags", "matches"),
    [
        ("#billing", {"billing"}, True),
        ("#billing", {"Billing"}, False),
        ("#bill*", {"a", "billing"}, True),
        ("#billing", set(), False),
        ("#a.b", {"a.b"}, True),
        ("billing", {"billing"}, False),
    ],
)
def test_a_tag_is_matched_with_its_sign(pattern, tags, matches):
    assert PatternSet.of([pattern]).match("s", "t", tags) is matches


@pytest.mark.parametrize(
    ("include", "exclude", "kept"),
    [
        ([], [], {"read", "write", "a.read"}),
        (["read"], [], {"read"}),
        (["*read"], [], {"read", "a.read"}),
        (["a.*"], [], {"a.read"}),
        ([], ["write"], {"read", "a.read"}),
        (["*"], ["*read"], {"write"}),
        (["!write"], [], {"read", "a.read"}),
        (["*", "!write"], ["read"], {"a.read"}),
        (["nothing"], [], set()),
    ],
)
def test_a_selection_keeps_what_is_included_and_not_excluded(include, exclude, kept):
    selection = ToolSelection.parse(include, exclude)
    assert {tool for tool in ("read", "write", "a.read") if selection.includes(tool)} == kept


@pytest.mark.parametrize(
    ("include", "exclude", "key"),
    [
        ("search", (), "include_tools"),
        ((), "search", "exclude_tools"),
        (["#tag"], (), "include_tools"),
        (["!#tag"], (), "include_tools"),
        ((), ["#tag"], "exclude_tools"),
        ((), ["!x"], "exclude_tools"),
        (None, (), "include_tools"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(include, exclude, key):
    with pytest.raises(ConfigError) as caught:
        ToolSelection.parse(include, exclude, server="pay")
    assert (caught.value.server, caught.value.key) == ("pay", key)
    assert caught.value.remedy


@pytest.mark.parametrize("pattern", ["", "!", "#", "!#", " a", "a ", "!!a", 5, None, ["a"]])
def test_a_bad_pattern_is_a_configuration_error_with_its_key(pattern):
    with pytest.raises(ConfigError) as caught:
        split_patterns(["fine", pattern], "permissions.ada")
    assert caught.value.key == "permissions.ada"
    assert caught.value.remedy


GIVEN = {
    "*": ["weather.*"],
    "": ["docs.search"],
    "team-*": {"see": ["*"], "call": ["crm.*", "#shared", "!*.delete"]},
    "team-intern": ["!crm.secrets"],
    "viewer": {"see": ["crm.*", "!crm.secrets"], "call": ["crm.secrets"]},
    "caller": {"call": ["crm.*", "!crm.delete"]},
}


@pytest.mark.parametrize(
    ("principal", "name", "sees", "calls"),
    [
        (None, "weather.now", True, True),
        ("", "weather.now", True, True),
        ("anyone", "weather.now", True, True),
        (None, "docs.search", True, True),
        ("anyone", "docs.search", False, False),
        ("anyone", "crm.read", False, False),
        ("team-a", "crm.read", True, True),
        ("team-a", "crm.delete", True, False),
        ("team-a", "bank.send", True, False),
        ("team-a", "weather.delete", True, False),
        ("TEAM-a", "crm.read", False, False),
        ("team-a", "crm.secrets", True, True),
        ("team-intern", "crm.secrets", False, False),
        ("team-intern", "crm.read", True, True),
        ("viewer", "crm.read", True, False),
        ("viewer", "crm.secrets", False, False),
        ("caller", "crm.read", True, True),
        ("caller", "crm.delete", False, False),
        ("team-a", "no-dot", False, False),
    ],
)
def test_what_a_principal_may_see_and_call(principal, name, sees, calls):
    permissions = Permissions.parse(GIVEN)
    assert permissions.allows(principal, "see", name) is sees
    assert permissions.allows(principal, "call", name) is calls


def test_a_tag_grants_and_denies():
    permissions = Permissions.parse({"ada": ["#shared", "!#danger"]})
    assert permissions.allows("ada", "call", "x.y", {"shared"})
    assert not permissions.allows("ada", "see", "x.y", {"shared", "danger"})


@pytest.mark.parametrize("principal", [None, "", "ada", "*"])
def test_without_entries_nobody_may_anything(principal):
    permissions = Permissions.parse({})
    assert not permissions.allows(principal, "see", "a.b")
    assert not permissions.allows(principal, "call", "a.b")


@pytest.mark.parametrize("key", ["**", "?*", "[!x]*", "*a*"])
def test_a_glob_of_names_never_matches_the_nameless(key):
    assert not Permissions.parse({key: ["*"]}).allows(None, "see", "a.b")


@pytest.mark.parametrize(
    ("given_permissions", "key"),
    [
        (None, "permissions"),
        (["*"], "permissions"),
        ({5: ["*"]}, "permissions"),
        ({" ada": ["*"]}, "permissions"),
        ({"ada": "pay.*"}, "permissions.ada"),
        ({"ada": None}, "permissions.ada"),
        ({"ada": [""]}, "permissions.ada"),
        ({"ada": {"run": ["*"]}}, "permissions.ada"),
        ({"ada": {"see": "pay.*"}}, "permissions.ada.see"),
        ({"ada": {"call": [7]}}, "permissions.ada.call"),
    ],
)
def test_permissions_that_cannot_be_read_are_refused_by_key(given_permissions, key):
    with pytest.raises(ConfigError) as caught:
        Permissions.parse(given_permissions)
    assert caught.value.key == key
    assert caught.value.remedy


def test_many_principals_are_each_judged_rightly():
    permissions = Permissions.parse({"even-*": ["a.*"]})
    for n in range(CACHED_PRINCIPALS + 10):
        name = f"{'even' if n % 2 == 0 else 'odd'}-{n}"
        assert permissions.allows(name, "call", "a.b") is (n % 2 == 0)
    assert permissions.allows("even-0", "call", "a.b")


words = st.sampled_from(["*", "a.*", "a.b", "b", "*.b", "!a.b", "!*", "!b", "#t", "!#t"])
entries = st.lists(words, max_size=4)
actions = st.fixed_dictionaries({}, optional={"see": entries, "call": entries})


@given(said=st.dictionaries(st.sampled_from(["*", "", "ada", "a*"]), entries | actions))
def test_calling_implies_seeing_and_a_denial_always_wins(said):
    permissions = Permissions.parse(said)
    for principal in (None, "ada", "bob"):
        for name, tags in (("a.b", frozenset()), ("c.d", frozenset({"t"}))):
            calls = permissions.allows(principal, "call", name, tags)
            assert not calls or permissions.allows(principal, "see", name, tags)
            stricter = Permissions.parse({**said, f"{principal or ''}": ["!*"]})
            assert not stricter.allows(principal, "call", name, tags)
            assert not stricter.allows(principal, "see", name, tags)
