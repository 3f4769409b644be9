"""The schema of `toolkeep.toml` says what reading it says."""

import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from toolkeep.config import ServerSpec
from toolkeep.config.dialects.draft import OWN_KEYS, PER_SERVER_KEYS
from toolkeep.config.loader import load
from toolkeep.config.schemas import schema
from toolkeep.errors import ConfigError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"
VALIDATOR = jsonschema_rs.validator_for(schema())
PLACE = "url = 'http://localhost:1/'"

GOOD = [
    "",
    f"[servers.a]\n{PLACE}",
    "[servers]\na = 'http://localhost:1/'",
    f"[servers.a]\n{PLACE}\ntimeout = '${{T:-5}}'\nserialize = '${{S:-true}}'",
    f"[servers.a]\n{PLACE}\ntimeouts = {{ call = 5, read = 2.5 }}\ntls.verify = true",
    f"[servers.a]\n{PLACE}\nretry_tools.search = 'always'\nnon_identity_headers = ['x-a']",
    "[servers.a]\ncommand = 'x'\nargs = ['-v']\nenv = { A = 'b' }\ncwd = '/'\nenabled = false",
    "[defaults]\nretry_attempts = 1\nconnection_pool_size = 2\nhealth_check_interval = 3",
]
BAD = [
    "[server.a]\nurl = 'x'",
    f"[servers.a]\n{PLACE}\nadress = 1",
    f"[servers.a]\n{PLACE}\ntimeouts.cal = 5",
    f"[servers.a]\n{PLACE}\ntimeout = -1",
    f"[servers.a]\n{PLACE}\ntimeout = 'soon'",
    f"[servers.a]\n{PLACE}\nmode = 'fast'",
    f"[servers.a]\n{PLACE}\nmax_in_flight = 0",
    f"[servers.a]\n{PLACE}\ntype = 'pigeon'",
    f"[servers.a]\n{PLACE}\nheaders.x = 5",
    "[servers.a]\ncommand = 'x'\nargs = '-v'",
    "[servers]\na = 5",
    "[defaults]\nurl = 'http://localhost:1/'",
]


def told(text: str, tmp_path: Path) -> bool:
    """Whether reading it says that it is right."""
    path = tmp_path / "toolkeep.toml"
    path.write_text(text)
    try:
        load(path, env={})
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("text", GOOD)
def test_it_takes_what_can_be_read(text: str, tmp_path: Path):
    assert VALIDATOR.is_valid(tomllib.loads(text))
    assert not text or told(text, tmp_path)


@pytest.mark.parametrize("text", BAD)
def test_it_refuses_what_cannot(text: str, tmp_path: Path):
    assert not VALIDATOR.is_valid(tomllib.loads(text))
    assert not told(text, tmp_path)


def test_it_takes_our_own_example():
    assert VALIDATOR.is_valid(tomllib.loads((FIXTURES / "toolkeep.toml").read_text()))


def test_it_is_a_schema_and_a_new_one_each_time():
    jsonschema_rs.meta.validate(schema())
    first: Any = schema()
    first["properties"].clear()
    assert schema()["properties"]


def test_it_knows_every_key_and_says_what_it_is_for():
    parts: Any = schema()["$defs"]
    assert set(parts["Server"]["properties"]) == set(OWN_KEYS)
    assert set(parts["Defaults"]["properties"]) == set(OWN_KEYS) - PER_SERVER_KEYS
    assert set(ServerSpec.model_fields) - {"server"} <= set(parts["Server"]["properties"])
    assert "unknown outcome" in parts["Server"]["properties"]["retry"]["description"]
