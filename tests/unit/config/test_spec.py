"""`ServerSpec`: mistakes are named before anything is opened."""

import contextlib
import re
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep import Client
from toolkeep.config import TLS, ServerSpec, Timeouts
from toolkeep.config.spec import ConfigWarning
from toolkeep.errors import ConfigError

URL = "http://localhost:8000/mcp"
SECRET = "hunter2"


def spec(**given: Any) -> ServerSpec:
    return ServerSpec(**{"name": "research", "url": URL, **given})


# --- mistakes --------------------------------------------------------------------------------

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"url": ""}, "url"),
    ({"url": "localhost:8000/mcp"}, "url"),
    ({"url": "example.com/mcp"}, "url"),
    ({"url": "/mcp"}, "url"),
    ({"url": "ftp://example.com"}, "url"),
    ({"url": "ws://example.com"}, "url"),
    ({"url": "file:///etc/passwd"}, "url"),
    ({"url": "http://"}, "url"),
    ({"url": "http:///mcp"}, "url"),
    ({"url": "http://:8000/"}, "url"),
    ({"url": "http://user@/mcp"}, "url"),
    ({"url": "http://[::1/mcp"}, "url"),
    ({"url": "http://localhost:99999"}, "url"),
    ({"url": "http://localhost:0"}, "url"),
    ({"url": "http://localhost:-1"}, "url"),
    ({"url": "http://localhost:port"}, "url"),
    ({"url": "http://local host/"}, "url"),
    ({"url": "http://localhost/\nmcp"}, "url"),
    ({"url": "http://localhost/\x00"}, "url"),
    ({"url": 5}, "url"),
    ({"url": None}, "url"),
    ({"url": ["http://localhost"]}, "url"),
    ({"name": ""}, "name"),
    ({"name": 5}, "name"),
    ({"name": None}, "name"),
    ({"endpoint_url": URL}, "endpoint_url"),
    ({"Timeouts": {}}, "Timeouts"),
    ({"mode": "fast"}, "mode"),
    ({"mode": None}, "mode"),
    ({"retry": "sometimes"}, "retry"),
    ({"retry_tools": {"search": "maybe"}}, "retry_tools.search"),
    ({"retry_tools": ["search"]}, "retry_tools"),
    ({"headers": {"x-a": 5}}, "headers.x-a"),
    ({"headers": {"x-a": None}}, "headers.x-a"),
    ({"headers": "x-a: 5"}, "headers"),
    ({"non_identity_headers": 5}, "non_identity_headers"),
    ({"api_key": ""}, "api_key"),
    ({"api_key": "abc\n"}, "api_key"),
    ({"api_key": "a b"}, "api_key"),
    ({"api_key": "schlüssel"}, "api_key"),
    ({"api_key": 5}, "api_key"),
    ({"timeouts": 5}, "timeouts"),
    ({"timeouts": {"conect": 5}}, "timeouts.conect"),
    ({"timeouts": {"call": -1}}, "timeouts.call"),
    ({"timeouts": {"call": 0}}, "timeouts.call"),
    ({"timeouts": {"call": "soon"}}, "timeouts.call"),
    ({"timeouts": {"call": float("inf")}}, "timeouts.call"),
    ({"timeouts": {"connect": float("nan")}}, "timeouts.connect"),
    ({"timeouts": {"connect": None}}, "timeouts.connect"),
    ({"timeouts": {"read": -1}}, "timeouts.read"),
    ({"timeouts": {"extend_on_progress": "perhaps"}}, "timeouts.extend_on_progress"),
    ({"tls": {"verify": "perhaps"}}, "tls.verify"),
    ({"tls": {"cafile": "x"}}, "tls.cafile"),
    ({"tls": {"ca_file": 5}}, "tls.ca_file"),
    ({"proxy": "socks5://localhost:1"}, "proxy"),
    ({"proxy": "localhost:3128"}, "proxy"),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": 1.5}, "max_retries"),
    ({"retry_burst": -1}, "retry_burst"),
    ({"retry_rate": -0.1}, "retry_rate"),
    ({"retry_rate": float("inf")}, "retry_rate"),
    ({"breaker_threshold": -1}, "breaker_threshold"),
    ({"breaker_cooldown": 0}, "breaker_cooldown"),
    ({"max_in_flight": 0}, "max_in_flight"),
    ({"max_result_bytes": 0}, "max_result_bytes"),
    ({"keep_alive": 0}, "keep_alive"),
    ({"serialize": "perhaps"}, "serialize"),
]


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(("mistake", "key"), MISTAKES)
def test_a_mistake_is_named_with_file_server_key_and_remedy(mistake: dict[str, Any], key: str):
    given = {"name": "research", "url": URL, **mistake}
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse(given, env={}, file="mcp.json")
    error = caught.value
    assert (error.key, error.file) == (key, "mcp.json")
    if "name" not in mistake:
        assert error.server == "research"
    assert error.problem
    assert error.remedy
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.parametrize(("mistake", "key"), MISTAKES)
def test_the_constructor_is_as_strict_as_the_parser(mistake: dict[str, Any], key: str):
    with pytest.raises(ConfigError) as caught:
        spec(**mistake)
    assert caught.value.key == key


def test_a_missing_address_is_named():
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"name": "research"}, env={})
    assert (caught.value.key, caught.value.server) == ("url", "research")


@pytest.mark.parametrize("value", [None, 5, b"http://localhost", ["http://localhost"], {1: URL}])
def test_what_is_no_server_at_all_is_a_mistake_too(value: Any):
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse(value, name="research", file="mcp.json", env={})
    assert (caught.value.server, caught.value.file) == ("research", "mcp.json")
    assert caught.value.remedy


@pytest.mark.requirement("H5")
def test_an_unset_variable_is_named_with_its_server_and_key():
    given = {"name": "research", "url": URL, "headers": {"x-a": "${NOPE}"}}
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse(given, env={}, file="mcp.json")
    error = caught.value
    assert (error.server, error.key, error.file) == ("research", "headers.x-a", "mcp.json")


def test_an_unknown_key_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        spec(timeouts={"conect": 5})
    assert "connect" in caught.value.remedy
    assert "max_retries" not in caught.value.remedy


@pytest.mark.parametrize(
    ("part", "given", "key"), [(Timeouts, {"call": -1}, "call"), (TLS, {"cert": "x"}, "cert")]
)
def test_the_parts_are_as_strict_on_their_own(part: Any, given: dict[str, Any], key: str):
    with pytest.raises(ConfigError) as caught:
        part(**given)
    assert caught.value.key == key


@pytest.mark.requirement("C3")
def test_a_client_checks_the_mode_it_is_given():
    with pytest.raises(ConfigError) as caught:
        Client(URL, mode="fast")  # pyright: ignore[reportArgumentType]
    assert caught.value.key == "mode"


def test_a_name_with_braces_is_told_as_it_is():
    with pytest.raises(ConfigError) as caught:
        spec(name="{remedy}")
    assert "'{remedy}'" in caught.value.problem


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*ServerSpec.model_fields, "other"]), json_values))
def test_whatever_a_file_holds_it_is_a_spec_or_a_configuration_error(given: dict[str, Any]):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        with contextlib.suppress(ConfigError):
            ServerSpec.parse({"url": URL, **given}, env={})


# --- what is understood ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://localhost:8000/mcp", "localhost"),
        ("https://tools.example.com/mcp", "tools-example-com"),
        ("http://127.0.0.1/", "127-0-0-1"),
        ("http://[::1]:8000/", "1"),
        (f"https://{'a' * 63}.{'b' * 63}.com", f"{'a' * 63}-"[:64]),
    ],
)
def test_a_server_given_by_its_address_alone_is_named_after_its_host(url: str, name: str):
    assert ServerSpec.parse(url).name == name


def test_the_own_name_wins_over_the_one_given_beside():
    assert ServerSpec.parse({"name": "a", "url": URL}, name="b").name == "a"
    assert ServerSpec.parse({"url": URL}, name="b").name == "b"


def test_a_spec_is_taken_as_it_is():
    known = spec()
    assert ServerSpec.parse(known, name="other") is known


def test_references_are_expanded_everywhere_and_numbers_read_from_texts():
    env = {"HOST": "localhost", "KEY": SECRET, "LONG": "5"}
    given = {
        "url": "http://${HOST}/mcp",
        "api_key": "${KEY}",
        "headers": {"x-a": "${env:KEY}"},
        "timeouts": {"call": "${LONG}"},
        "max_retries": "${REPLAYS:-7}",
    }
    parsed = ServerSpec.parse(given, env=env)
    assert parsed.url == "http://localhost/mcp"
    assert parsed.api_key is not None
    assert parsed.api_key.get_secret_value() == SECRET
    assert (parsed.headers["x-a"], parsed.timeouts.call, parsed.max_retries) == (SECRET, 5.0, 7)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOOLKEEP_TEST_HOST", "localhost")
    assert ServerSpec.parse("http://${TOOLKEEP_TEST_HOST}/mcp").url == "http://localhost/mcp"


def test_an_empty_proxy_means_none():
    assert spec(proxy="").proxy == ""
    assert spec(proxy="http://localhost:3128").proxy == "http://localhost:3128"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"command": "npx"}, 60.0),
        ({"command": "npx", "timeouts": {"call": 5}}, 60.0),
        ({"command": "npx", "timeouts": Timeouts(call=5)}, 60.0),
        ({"command": "npx", "timeouts": {"connect": 10}}, 10.0),
        ({"command": "npx", "timeouts": Timeouts(connect=10)}, 10.0),
        ({"url": "http://localhost/mcp"}, 10.0),
    ],
    ids=str,
)
def test_a_program_may_be_downloaded_before_it_says_a_word(given: dict[str, Any], seconds: float):
    spec = ServerSpec(name="kit", **given)
    assert spec.timeouts.connect == seconds
    assert spec.replace(strip_none=True).timeouts == spec.timeouts
    assert ServerSpec.parse({"name": "kit", **given}) == spec


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("name", ["-a", "_a", "a.b", "a b", "a/b", "a\n", "süd", "n" * 65])
def test_a_name_that_is_none_of_ours_is_refused_in_python_and_renamed_on_every_other_way(name: str):
    with pytest.raises(ConfigError) as caught:
        ServerSpec(name=name, url=URL)
    assert caught.value.key == "name"
    with pytest.warns(ConfigWarning, match="is renamed to"):
        assert re.fullmatch(r"[a-z][a-z-]{0,63}", ServerSpec.parse({"name": name, "url": URL}).name)
