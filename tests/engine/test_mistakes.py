"""A mistake in the configuration is named, with its remedy, before anything is opened."""

from typing import Any

import pytest

from toolkeep import Client, ConfigError
from toolkeep.auth import StaticKey
from toolkeep.config import TLS, ServerSpec, Timeouts
from toolkeep.config.spec import ConfigWarning

GOOD: dict[str, Any] = {"url": "http://127.0.0.1:9/mcp", "name": "kit"}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no url": ({"url": "not a url"}, "url"),
    "no scheme": ({"url": "127.0.0.1:8000/mcp"}, "url"),
    "another scheme": ({"url": "ftp://127.0.0.1/mcp"}, "url"),
    "no host": ({"url": "http:///mcp"}, "url"),
    "an impossible port": ({"url": "http://127.0.0.1:99999/mcp"}, "url"),
    "a broken address": ({"url": "http://[::1/mcp"}, "url"),
    "a space": ({"url": "http://127.0.0.1/m cp"}, "url"),
    "an empty name": ({"name": ""}, "name"),
    "an unknown key": ({"colour": "blue"}, "colour"),
    "an unknown nested key": ({"timeouts": {"conect": 1}}, "timeouts.conect"),
    "a negative timeout": ({"timeouts": {"call": -1}}, "timeouts.call"),
    "an endless timeout": ({"timeouts": {"connect": float("inf")}}, "timeouts.connect"),
    "an unknown mode": ({"mode": "future"}, "mode"),
    "a bad proxy": ({"proxy": "socks"}, "proxy"),
    "a bad header": ({"headers": {"x": "a\r\nb: c"}}, "headers.x"),
    "a protocol header": ({"headers": {"Mcp-Session-Id": "x"}}, "headers.mcp-session-id"),
}


@pytest.mark.parametrize(("given", "key"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.requirement("C3")
def test_a_mistake_names_server_key_and_remedy(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client({**GOOD, **given})
    assert caught.value.key == key
    assert caught.value.remedy
    assert isinstance(caught.value, ValueError)
    if "name" not in given:
        assert caught.value.server == "kit"


def test_settings_may_be_given_as_objects() -> None:
    spec = ServerSpec(**GOOD, timeouts=Timeouts(call=3), tls=TLS(verify=False))
    assert Client(spec).spec is spec
    assert Client(spec, mode="legacy").spec.mode == "legacy"


@pytest.mark.parametrize("mode", ["future", ""])
@pytest.mark.requirement("C3")
def test_a_mode_that_is_none_is_a_mistake_in_the_constructor_too(mode: Any) -> None:
    with pytest.raises(ConfigError):
        Client(GOOD, mode=mode)


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/mcp",
        "https://user:hush@mcp.example.com/mcp",
        "https://mcp.example.com/mcp?api_key=hush",
    ],
)
@pytest.mark.requirement("C3", "H6")
def test_what_is_unwise_is_a_warning_that_shows_no_secret(url: str) -> None:
    with pytest.warns(ConfigWarning) as caught:
        client = Client(url)
    assert not [one for one in caught if "hush" in str(one.message)]
    assert "hush" not in repr(client) + repr(client.spec)


@pytest.mark.parametrize("url", ["http://localhost:1/mcp", "http://[::1]/mcp", "http://127.9.9.9/"])
@pytest.mark.requirement("C3")
def test_plain_http_on_this_machine_is_no_warning(url: str) -> None:
    Client(url)


@pytest.mark.parametrize("server", [{"command": "python"}, {"server": print}], ids=str)
@pytest.mark.parametrize("given", [{"auth": StaticKey("k")}])
@pytest.mark.requirement("C3")
def test_what_only_http_can_have_is_a_mistake_elsewhere(
    server: dict[str, Any], given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Client({"name": "kit", **server}, **given)
    assert [caught.value.key] == list(given)
    assert caught.value.remedy
