"""`auth` of a server, in every dialect, and the keys that other products have for it."""

from typing import Any

import pytest

from toolkeep.config.loader import load

pytestmark = pytest.mark.requirement("N8", "C1")

URL = "https://mcp.example/mcp"
OURS = {"type": "oauth", "client_id": "me", "resource": "omit", "issuer": "https://login.example"}
FORMS: dict[str, Any] = {
    "toolkeep": {"servers": {"a": {"url": URL, "auth": OURS}}},
    "mcpServers": {"mcpServers": {"a": {"url": URL, "auth": OURS}}},
    "VS Code": {"servers": {"a": {"type": "http", "url": URL, "auth": OURS}}},
    "Cline": {"mcpServers": {"a": {"type": "streamableHttp", "url": URL, "auth": OURS}}},
    "Gemini CLI": {"mcpServers": {"a": {"httpUrl": URL, "auth": OURS}}},
    "Windsurf": {"mcpServers": {"a": {"serverUrl": URL, "auth": OURS}}},
    "a list": {"mcpServers": [{"name": "a", "url": URL, "auth": OURS}]},
    "servers by name": {"a": {"url": URL, "auth": OURS}},
}


@pytest.mark.parametrize("form", FORMS)
def test_auth_means_the_same_in_every_dialect(form: str):
    (spec,) = load(FORMS[form], env={}).servers
    assert spec.auth is not None
    assert (spec.auth.client_id, spec.auth.resource) == ("me", "omit")
    assert spec.auth.issuer == "https://login.example"


def test_auth_is_read_from_the_environment():
    import json

    servers = json.dumps({"a": {"url": URL, "auth": OURS}})
    (spec,) = load(env={"MCP_SERVERS": servers}).servers
    assert spec.auth is not None
    assert spec.auth.client_id == "me"


FOREIGN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Claude Code": (
        {"oauth": {"clientId": "me", "callbackPort": 8765, "scopes": "a b"}},
        {"client_id": "me", "callback_port": 8765, "scopes": ("a", "b")},
    ),
    "Gemini CLI": (
        {"oauth": {"enabled": True, "clientId": "me", "redirectUri": "http://localhost:7777/cb"}},
        {"client_id": "me", "redirect_uri": "http://localhost:7777/cb"},
    ),
    "Cursor": (
        {"auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${SECRET}", "scopes": ["a"]}},
        {"client_id": "me", "scopes": ("a",)},
    ),
    "FastMCP": ({"transport": "http", "auth": "oauth"}, {"type": "oauth"}),
}


@pytest.mark.parametrize("product", FOREIGN)
def test_the_words_of_other_products_are_read(product: str):
    given, meant = FOREIGN[product]
    found = load({"mcpServers": {"a": {"url": URL, **given}}}, env={"SECRET": "from-the-variable"})
    (spec,) = found.servers
    assert spec.auth is not None
    assert {name: getattr(spec.auth, name) for name in meant} == meant
    if spec.auth.client_secret is not None:
        assert spec.auth.client_secret.get_secret_value() == "from-the-variable"
    assert "from-the-variable" not in repr(found)
