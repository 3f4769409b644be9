"""The table `[gateway]`: what it means, and what is said when it is wrong."""

import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from toolkeep.config import Configuration, load
from toolkeep.config.loader import find_errors
from toolkeep.config.schemas import schema
from toolkeep.config.spec import ConfigWarning
from toolkeep.config.watcher import watch
from toolkeep.errors import ConfigError
from toolkeep.gateway.access import hash_key, new_key

pytestmark = pytest.mark.requirement("W4", "W5")

VALIDATOR = jsonschema_rs.validator_for(schema())
SERVER = '[servers.files]\nurl = "http://localhost:1/mcp"\n'
HASH = hash_key(new_key())
JWT = """
[gateway.jwt]
issuer = "https://login.example.com"
audience = "https://tools.example.com/mcp"
jwks_url = "https://login.example.com/keys"
"""
WHOLE = f"""
{SERVER}
[gateway]
host = "0.0.0.0"
port = "${{PORT:-9000}}"
allowed_hosts = ["tools.example.com"]
allowed_origins = ["https://app.example.com"]
rate = {{ principal = "600/min", "tool:pay.*" = "10/min" }}
audit = {{ file = "audit.jsonl", arguments = true }}

[gateway.keys]
ci = "${{CI_HASH}}"

[gateway.keys.alice]
hash = ["{HASH}", "{hash_key(new_key())}"]
claims = {{ team = "ops" }}

{JWT}
scopes = "tools:read tools:call"
algorithms = ["ES256"]
leeway = 10

[gateway.profiles.support]
servers = ["files", "crm-*"]
include = ["search", "#billing"]
exclude = ["delete*"]
prefix = false

[gateway.profiles.code]
mode = "code"
allow = ["files.write"]

[gateway.limits]
body_bytes = 1000000
drain = 5.0
"""


def configured(text: str, folder: Path, env: dict[str, str] | None = None) -> Configuration:
    path = folder / "toolkeep.toml"
    path.write_text(text)
    return load(path, env=env or {})


def problems(text: str, folder: Path) -> list[ConfigError]:
    path = folder / "toolkeep.toml"
    path.write_text(text)
    return list(find_errors(path, env={}))


def test_the_whole_table_is_read(tmp_path: Path) -> None:
    secret = hash_key(new_key())
    found = configured(WHOLE, tmp_path, {"CI_HASH": secret}).gateway_settings()
    assert (found.host, found.port) == ("0.0.0.0", 9000)
    assert found.allowed_hosts == ("tools.example.com",)
    assert found.keys["ci"].hash == (secret,)
    assert (len(found.keys["alice"].hash), found.keys["alice"].claims) == (2, {"team": "ops"})
    assert found.jwt is not None
    assert found.jwt.scopes == ("tools:read", "tools:call")
    assert found.jwt.public_url == "https://tools.example.com/mcp"
    assert found.profiles["support"].name == "support"
    assert not found.profiles["support"].prefix
    assert found.rate == {"principal": "600/min", "tool:pay.*": "10/min"}
    assert (found.limits.body_bytes, found.limits.drain) == (1_000_000, 5.0)
    assert found.audit is not None
    assert found.audit.file == str(tmp_path / "audit.jsonl")


def test_the_schema_takes_the_whole_table() -> None:
    assert VALIDATOR.is_valid(tomllib.loads(WHOLE))


def test_without_a_table_the_defaults_apply(tmp_path: Path) -> None:
    found = configured(SERVER, tmp_path)
    assert found.gateway is None
    assert found.gateway_settings().host == "127.0.0.1"


def test_a_mapping_may_have_the_table() -> None:
    servers = {"files": "http://localhost:1/mcp"}
    found = load({"servers": servers, "gateway": {"port": 0}}, env={})
    assert found.gateway_settings().port == 0


def test_settings_are_frozen_and_hide_the_keys(tmp_path: Path) -> None:
    settings = configured(f'{SERVER}[gateway.keys]\na = "{HASH}"', tmp_path).gateway_settings()
    with pytest.raises(ValueError):
        setattr(settings, "port", 5)  # noqa: B010
    assert HASH not in repr(settings)


WRONG = {
    "port = 70000": ("gateway.port", "at most 65535"),
    'port = "http"': ("gateway.port", "must be a number"),
    "prot = 80": ("gateway.prot", "did you mean 'port'"),
    'rate = "fast"': ("gateway.rate", "is not a rate"),
    'rate = { server = "5/s" }': ("gateway.rate", "is not a scope"),
    'keys.a = "secret"': ("gateway.keys.a.hash.0", "not the hash of a key"),
    "keys.a = { }": ("gateway.keys.a.hash", "missing"),
    f'keys.a = "{HASH}"\nkeys.b = "{HASH}"': ("gateway.keys", "the same key as"),
    'keys.a = "${NOT_SET}"': ("gateway.keys.a", "NOT_SET is not set"),
    'jwt.issuer = "https://a"': ("gateway.jwt.audience", "missing"),
    'jwt = { issuer = "https://a", audience = "api://a", jwks_url = "https://a/k" }': (
        "gateway.jwt.resource",
        "no audience is a URL",
    ),
    'jwt = { issuer = "https://a", audience = "https://b", jwks_url = "k" }': (
        "gateway.jwt.jwks_url",
        "not an http(s) URL",
    ),
    'jwt = { issuer="i", audience="https://b", jwks_url="https://a", algorithms=["none"] }': (
        "gateway.jwt.algorithms",
        "'none' is not accepted",
    ),
    'profiles.a.mode = "serch"': ("gateway.profiles.a.mode", "allowed values"),
    'profiles.a.servers = ["fils"]': ("gateway.profiles.a.servers", "did you mean 'files'"),
    'profiles.a.servers = "files"': ("gateway.profiles.a.servers", "not a list"),
    'profiles.a.include = ["!!x"]': ("gateway.profiles.a.include.0", "is not a pattern"),
    'profiles.a.exclude = ["!x"]': ("gateway.profiles.a.exclude.0", "negates an exclusion"),
    'profiles.a.allow = ["x"]': ("gateway.profiles.a.allow", "mode 'code' only"),
    'profiles.a.name = "b"': ("gateway.profiles", "another name"),
    'profiles."a/b" = { }': ("gateway.profiles.a/b.name", "not the name of a profile"),
    "limits.sessions = 0": ("gateway.limits.sessions", "at least 1"),
    "audit = { arguments = true }": ("gateway.audit.file", "missing"),
}


@pytest.mark.parametrize("line", WRONG)
def test_an_error_names_the_file_the_key_and_the_remedy(line: str, tmp_path: Path) -> None:
    key, says = WRONG[line]
    found = problems(f"{SERVER}\n[gateway]\n{line}\n", tmp_path)
    assert [error.key for error in found] == [key]
    assert says in found[0].problem
    assert found[0].remedy
    assert found[0].file is not None
    assert found[0].file.rpartition(":")[0] == str(tmp_path / "toolkeep.toml")
    assert "secret" not in str(found[0])


def test_all_errors_are_found_at_once(tmp_path: Path) -> None:
    found = problems(f"{SERVER}[gateway]\nport = 70000\nhost = 5\nprofiles.a.mode = 1", tmp_path)
    assert len(found) == 3


def test_a_wrong_table_stops_a_gateway_and_no_server(tmp_path: Path) -> None:
    with pytest.warns(ConfigWarning, match="a gateway cannot start"):
        found = configured(f"{SERVER}[gateway]\nport = 70000", tmp_path)
    assert "files" in found
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        found.gateway_settings()
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        load(tmp_path / "toolkeep.toml", env={}, strict=True)


@pytest.mark.parametrize(
    "table",
    [
        {"port": 99999},
        {"prot": 1},
        {"keys": {"a": 5}},
        {"jwt": {"issuer": "x"}},
        {"profiles": {"a": {"mode": "x"}}},
        {"limits": {"sessions": 0}},
        {"rate": "fast"},
        {"audit": 5},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_loader_refuses(table: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({"servers": {}, "gateway": table})


def test_the_schema_describes_every_key() -> None:
    parts: Any = schema()["$defs"]
    for name in ("GatewaySettings", "ApiKey", "Jwt", "ProfileSettings", "Limits", "Audit"):
        plain = {key for key, one in parts[name]["properties"].items() if "description" not in one}
        assert plain <= {"name", "limits", "jwt"}


async def test_an_edit_of_the_table_alone_is_an_edit(tmp_path: Path) -> None:
    async def ticks(files: Any) -> AsyncGenerator[object, None]:
        path.write_text(f"{SERVER}[gateway]\nport = 2")
        yield True
        path.write_text(f"{SERVER}[gateway]\nport = 70000")
        yield True
        while True:
            yield None

    path = tmp_path / "toolkeep.toml"
    before = configured(f"{SERVER}[gateway]\nport = 1", tmp_path)
    seen = [one async for one in watch(path, since=before, env={}, notice=ticks)]
    first, *rest = seen
    assert not isinstance(first, ConfigError)
    assert first.configuration.gateway_settings().port == 2
    assert [one.key for one in rest if isinstance(one, ConfigError)] == ["gateway.port"]
