"""`toolkeep check`: what is wrong with a configuration, and how the command is to be used."""

import pytest

from tests.cli.helpers_checking import check
from tests.cli.helpers_running import Home
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("O2")

WRONG = """
[servers.search]
url = "${SEARCH_URL}"

[servers.notes]
url = "http://127.0.0.1:9/mcp"
adress = "http://127.0.0.1:9/mcp"

[servers.later]
url = "127.0.0.1:9"
"""


async def test_an_unset_variable_an_unknown_key_and_a_bad_value_are_all_told(home: Home):
    (home.path / "wrong.toml").write_text(WRONG)
    found = await check(home, "-c", "wrong.toml")
    assert {one["server"]: one["fault"] for one in found.findings} == {
        "search": "unset-variable",
        "notes": "unknown-key",
        "later": "bad-configuration",
    }
    assert {one["step"] for one in found.findings} == {"configuration"}
    human = await home.run("check", "-c", "wrong.toml")
    assert human.code == 1
    for words in ("SEARCH_URL", "${SEARCH_URL:-", "adress", "wrong.toml:3", "wrong.toml:7"):
        assert words in human.out
    assert human.err == ""


async def test_a_key_that_only_another_product_knows_is_a_warning_and_the_server_is_checked(
    home: Home,
):
    async with ScriptedServer.local() as server:
        named = home.configure({"kit": {"url": server.url, "telepathy": True}})
        found = await check(home, "-c", named)
    assert found.of("kit").warnings == ["unknown-key"]
    assert found.of("kit").states["ping"] == "ok"


async def test_what_is_unwise_is_a_warning_with_a_remedy(home: Home):
    specs = {
        "open": {"url": "http://no-such-host.invalid/mcp"},
        "told": {"url": "http://127.0.0.1:9/mcp?token=sekret-in-the-url"},
        "blind": {"url": "https://127.0.0.1:9/mcp", "tls": {"verify": False}},
        "proud": {"url": "http://127.0.0.1:9/mcp", "headers": {"Accept": "text/html"}},
    }
    found = await check(home, "-c", home.configure(specs))
    for name in specs:
        assert found.of(name).warnings == ["unwise-configuration"]
    assert "sekret" not in found.ran.said


async def test_what_could_never_be_sent_or_trusted_is_told_before_anything_is_opened(home: Home):
    async with ScriptedServer.local() as server:
        secure = server.url.replace("http:", "https:")
        specs = {
            "host": {"url": server.url, "headers": {"Host": "elsewhere.test"}},
            "trust": {"url": secure, "tls": {"ca_file": "none.pem"}},
        }
        found = await check(home, "-c", home.configure(specs))
        assert await server.connections() == 0
    for name in specs:
        assert found.failed_at(name) == ("configuration", "bad-configuration")


async def test_a_server_that_is_switched_off_is_told_and_is_no_failure(home: Home):
    async with ScriptedServer.local() as server:
        specs = {"on": {"url": server.url}, "off": {"url": server.url, "disabled": True}}
        found = await check(home, "-c", home.configure(specs))
        alone = await check(home, "off", "-c", "servers.json")
    assert found.of("off").states == {"configuration": "skipped"}
    assert [one["fault"] for one in found.of("off").findings] == ["disabled"]
    assert found.of("on").states["ping"] == "ok"
    assert [one["server"] for one in alone.findings] == ["off"]


async def test_a_program_of_a_file_that_was_found_is_not_started_unasked(home: Home):
    async with ScriptedServer.stdio() as program:
        home.configure({"prog": program.spec}, name="mcp.json")
        found = await check(home)
        assert await program.launches() == []
    assert found.failed_at("prog") == ("configuration", "not-approved")
    assert "toolkeep config approve prog" in found.of("prog").failure["remedy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "mcp.json"),
        (("nots", "-c", "servers.json"), "notes"),
        (("-c", "servers.json", "--header", "X-Key: sekret-key"), "say which"),
    ],
    ids=["nothing configured", "unknown name", "header for whom"],
)
async def test_a_command_that_cannot_be_carried_out_is_usage(
    home: Home, words: tuple[str, ...], said: str
):
    one = {"url": "http://127.0.0.1:9/mcp"}
    home.configure({"notes": one, "other": one})
    ran = await home.run("check", *words, "--json")
    assert ran.code == 2
    assert said in ran.document["error"]["message"]
    assert "sekret" not in ran.said


async def test_a_file_that_cannot_be_read_is_a_finding_of_its_own(home: Home):
    found = await check(home, "-c", "none.json")
    assert found.failed_at("configuration") == ("configuration", "bad-configuration")
    assert found.findings[0]["seen"] == "none.json"
