"""`toolkeep config show`, `path`, `validate`, `schema`: what is configured, and what is wrong.

No server is opened here, and no secret is ever said.
"""

import json

import pytest

from tests.cli.helpers_running import Home
from toolkeep.config import load, schema
from toolkeep.gateway.access import KeyAccess, hash_key

SECRET, LITERAL, IN_ARGS = "s3cret-of-a-variable", "s3cret-in-the-file", "s3cret-argument"
SECRETS = (SECRET, LITERAL, IN_ARGS)
GOOD = """{"mcpServers": {
  "shop": {
    "url": "https://${HOST:-shop.example}/mcp",
    "headers": {
      "Authorization": "Bearer ${TOKEN}",
      "X-Key": "LITERAL"
    },
    "timeout": 5000
  },
  "notes": {
    "command": "notes",
    "args": ["${TOKEN}", "--token", "IN_ARGS"],
    "env": {"A": "${TOKEN}"}
  },
  "old": {"command": "old", "disabled": true}
}}""".replace("LITERAL", LITERAL).replace("IN_ARGS", IN_ARGS)
BAD = """{"mcpServers": {
  "shop": {"url": "ftp://shop"},
  "notes": {"command": "notes", "env": {"A": "${NOT_SET}"}},
  "bare": {}
}}"""


def write(home: Home, text: str, name: str = "mcp.json") -> None:
    (home.path / name).write_text(text)


def is_quiet(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


@pytest.mark.requirement("O2")
async def test_every_value_is_shown_with_its_place_and_no_secret(home: Home):
    write(home, GOOD)
    ran = await home.run("config", "show", "--json", env={"TOKEN": SECRET})
    assert ran.code == 0, ran.said
    assert is_quiet(ran.said)
    shop, notes = ran.document["servers"]
    values = shop["values"]
    assert values["url"]["value"] == "https://${HOST}/mcp"
    assert values["url"]["variables"] == ["HOST"]
    assert values["headers.Authorization"] == {
        "value": "Bearer ${TOKEN}",
        "source": "mcp.json:5",
        "variables": ["TOKEN"],
    }
    assert values["headers.X-Key"]["value"] == "***"
    assert values["timeouts.call"] == {
        "value": 5.0,
        "source": "mcp.json:8 (5000 ms)",
        "variables": [],
    }
    assert notes["state"] == "needs approval"
    assert notes["values"]["args"]["value"] == ["${TOKEN}", "--token", "***"]
    assert notes["values"]["env.A"]["value"] == "${TOKEN}"
    assert "old" in ran.document["disabled"]


async def test_people_are_shown_the_same_and_of_one_server_alone_if_they_like(home: Home):
    write(home, GOOD)
    every = await home.run("config", "show", env={"TOKEN": SECRET})
    one = await home.run("config", "show", "shop", "--all", env={"TOKEN": SECRET})
    none = await home.run("config", "show", "shopp", env={"TOKEN": SECRET})
    assert (every.code, one.code, none.code) == (0, 0, 2)
    assert all(map(is_quiet, (every.said, one.said, none.said)))
    assert "mcp.json:5, from TOKEN" in every.out
    assert "HOST (not set)" in every.out
    assert "notes" not in one.out
    assert "max_retries" in one.out


async def test_values_of_the_environment_are_told_by_their_variables(home: Home):
    env = {"MCP_SERVER_SHOP_URL": "https://shop.example/mcp"}
    ran = await home.run("config", "show", "--json", env=env)
    assert ran.code == 0, ran.said
    (shop,) = ran.document["servers"]
    assert "MCP_SERVER_SHOP_URL" in shop["values"]["url"]["source"]


async def test_where_a_configuration_is_looked_for(home: Home):
    nothing = await home.run("config", "path", "--json")
    write(home, GOOD)
    write(home, GOOD, ".mcp.json")
    found = await home.run("config", "path", "--json")
    named = await home.run("config", "path", env={"TOOLKEEP_CONFIG": ".mcp.json"})
    assert nothing.document["used"] is None
    assert found.document["used"] == "mcp.json"
    states = {one["place"]: one["state"] for one in found.document["places"]}
    assert states[".mcp.json"] == "found, not used"
    assert states["toolkeep.toml"] == "not there"
    assert "named by TOOLKEEP_CONFIG" in named.out


@pytest.mark.requirement("C3")
async def test_all_problems_are_told_at_once_each_with_its_place_and_remedy(home: Home):
    write(home, BAD, "bad.json")
    ran = await home.run("config", "validate", "bad.json", "--json")
    people = await home.run("config", "validate", "bad.json")
    assert (ran.code, people.code) == (1, 1), ran.said
    told = ran.document["problems"]
    assert [one["server"] for one in told] == ["shop", "notes", "bare"]
    assert [one["file"] for one in told] == ["bad.json:2", "bad.json:3", "bad.json:4"]
    assert all(one["problem"] and one["remedy"] for one in told)
    assert "NOT_SET" in told[1]["problem"]
    assert "3 problems" in people.out


@pytest.mark.parametrize("text", ["{", '{"mcpServers": {"a": {}, "a": {}}}'])
async def test_what_cannot_be_read_is_a_problem_too(home: Home, text: str):
    write(home, text)
    ran = await home.run("config", "validate", "--json")
    assert (ran.code, ran.document["ok"]) == (1, False), ran.said


async def test_what_is_in_order_is_said_to_be(home: Home):
    write(home, GOOD)
    inputs = {
        "servers": {"a": {"command": "a", "env": {"K": "${input:k}"}}},
        "inputs": [{"id": "k"}],
    }
    write(home, json.dumps(inputs), "code.json")
    ran = await home.run("config", "validate", env={"TOKEN": SECRET})
    asks = await home.run("config", "validate", "code.json", "--json")
    assert (ran.code, ran.out) == (0, "mcp.json: ok, 3 servers, 1 disabled, 1 to be approved\n")
    assert (asks.code, asks.document["ok"], asks.document["servers"]) == (0, True, ["a"]), asks.said


async def test_the_schema_is_one_json_document(home: Home):
    ran = await home.run("config", "schema")
    assert (ran.code, ran.document) == (0, schema())


async def test_what_was_worked_out_is_told_apart_from_defaults_and_from_variables(home: Home):
    local = {"type": "local", "command": "${workspaceFolder}/server.py"}
    write(home, json.dumps({"mcpServers": {"own": local}}))
    (home.path / "server.py").write_text("")
    ran = await home.run("config", "show", "--all", "--json")
    people = await home.run("config", "show")
    (own,) = ran.document["servers"]
    assert own["values"]["args"]["source"] == "derived"
    assert own["values"]["max_retries"]["source"] == "default"
    assert "not set" not in people.out


IN_ADDRESSES = (
    "QxZ7code",
    "QxZ7jwt",
    "QxZ7pwd",
    "QxZ7pass",
    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
)


@pytest.mark.requirement("H6")
@pytest.mark.parametrize("variable", ["", "${NOT_SECRET:-}"])
async def test_no_secret_of_an_address_is_shown(home: Home, variable: str):
    """Neither with a reference beside it, which shows the value as it is written, nor without."""
    code, jwt, pwd, pass_, path = IN_ADDRESSES
    urls = [f"http://127.0.0.1:9/{path}/mcp{variable}", f"http://127.0.0.1:9/mcp?code={code}"]
    named = home.configure(
        {
            "one": {"url": f"http://127.0.0.1:9/mcp?page=1&jwt={jwt}&pwd={pwd}{variable}"},
            "path": {"url": f"http://127.0.0.1:9/{path}/mcp{variable}"},
            "two": {"urls": urls},
            "program": {"command": "npx", "args": [f"http://127.0.0.1:9/?pass={pass_}{variable}"]},
        }
    )
    shown = await home.run("config", "show", "-c", named)
    checked = await home.run("check", "-c", named, "--timeout", "1")
    assert shown.code == 0
    assert "http://127.0.0.1:9/***/mcp" in shown.out
    assert "page=1&jwt=***" in shown.out
    assert "http://127.0.0.1:9/***/mcp" in checked.said
    for secret in IN_ADDRESSES:
        assert secret not in shown.said + checked.said


@pytest.mark.requirement("C1")
async def test_the_env_file_beside_it_is_shown_as_the_source_of_its_variables(home: Home):
    named = home.configure({"kit": {"url": "http://127.0.0.1:9/", "headers": {"x": "${HUSH}"}}})
    home.path.joinpath(".env").write_text("\nHUSH=s3cret-in-env\n")
    shown = await home.run("config", "show", "-c", named)
    assert ".env is read: 1 variables" in shown.out
    assert "from HUSH (.env:2)" in shown.out
    assert "s3cret" not in shown.said
    assert (await home.run("config", "show", "-c", named, "--json")).document["variables_from"] == [
        ".env"
    ]


@pytest.mark.requirement("C3")
async def test_a_bad_entry_is_named_and_the_others_are_shown_and_checked(home: Home):
    named = home.configure({"kit": {"url": "http://127.0.0.1:9/"}, "bad": {"urll": "x"}})
    shown = await home.run("config", "show", "-c", named)
    checked = await home.run("check", "-c", named, "--timeout", "1", "--json")
    assert "did you mean 'url'? Write 'url'" in shown.said
    assert "kit" in shown.out
    failed = {one["server"]: one for one in checked.document if one["state"] == "failed"}
    assert set(failed) == {"bad", "kit"}
    assert "did you mean 'url'?" in failed["bad"]["cause"]
    assert (await home.run("config", "validate", named)).code == 1


@pytest.mark.requirement("W4")
async def test_a_new_key_is_shown_once_with_the_lines_for_the_file(home: Home):
    ran = await home.run("config", "new-key", "alice@example.org")
    key, _, table = ran.out.partition("\n\n")
    write(home, table, "toolkeep.toml")
    loaded = load(home.path / "toolkeep.toml", env={}).gateway_settings()
    caller = await KeyAccess(loaded.keys).authenticate({"authorization": f"Bearer {key}"})
    assert caller.principal == "alice@example.org"
    made = (await home.run("config", "new-key", "ci", "--json")).document
    assert hash_key(made["key"]) == made["hash"]
    assert made["key"] != key


async def test_a_new_key_needs_a_name(home: Home):
    ran = await home.run("config", "new-key", "")
    assert ran.code != 0
    assert "no usable name" in ran.said
