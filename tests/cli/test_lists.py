"""What `servers`, `tools`, `prompts`, `resources` and `read` show, in a pipe."""

from typing import Any

import pytest

from tests.cli.helpers_running import COLUMNS, Home
from toolkeep.cli.read import matches
from toolkeep.testing import Behaviour, Rule, ScriptedServer

DEAD = {"url": "http://127.0.0.1:9/mcp"}
SECRET = "hush-hush-4711"
HEADS = ["name", "transport", "era", "version", "health", "latency", "tools"]


def wire_free(text: str) -> None:
    """Nothing that only a terminal understands."""
    assert "\x1b" not in text
    assert not set("│─╭╰━┃") & set(text)


@pytest.mark.requirement("O2")
async def test_that_nobody_could_be_asked_is_not_told_as_that_there_is_nothing(home: Home):
    refusing = Rule(do=Behaviour(run=False, status=401))
    async with ScriptedServer.local() as locked:
        await locked.script(refusing)
        named = home.configure({"locked": locked.spec, "dead": DEAD})
        for words in (("tools",), ("tools", "a*"), ("prompts",), ("resources",)):
            ran = await home.run(*words, "-c", named)
            assert (ran.code, ran.out) == (1, "")
            assert "offers" not in ran.err
            assert "matches" not in ran.err
            last = ran.err.partition("no server could be asked\n")[2]
            assert "--header" in last
            assert "toolkeep check" in last


@pytest.mark.requirement("O2", "O3")
async def test_servers_are_listed_with_their_health_and_a_summary(home: Home):
    async with (
        ScriptedServer.local(era="legacy") as old,
        ScriptedServer.local(era="modern") as new,
        ScriptedServer.stdio() as program,
    ):
        headers = {"headers": {"authorization": f"Bearer {SECRET}"}}
        servers = {"old": old.spec, "new": new.spec | headers, "dead": DEAD, "prog": program.spec}
        named = home.configure(servers)
        listed = await home.run("servers", "-c", named)
        document = (await home.run("servers", "-c", named, "--json")).document
        asked = await home.run("servers", "-c", named, "dead", "old")

    lines = listed.out.splitlines()
    assert listed.code == 0
    assert lines[0].split()[:7] == HEADS
    assert [line.split()[0] for line in lines[1:5]] == ["old", "new", "dead", "prog"]
    assert lines[-1] == "3/4 servers healthy, 42 tools"
    assert all(len(line) <= COLUMNS for line in lines[:5])
    wire_free(listed.said)

    found = {one["name"]: one for one in document["servers"]}
    assert document["summary"] == lines[-1]
    assert {name: one["era"] for name, one in found.items()} == {
        "old": "legacy", "new": "modern", "dead": None, "prog": "modern",
    }  # fmt: skip
    assert found["prog"]["transport"] == "stdio"
    assert found["dead"]["health"] == "down"
    assert "127.0.0.1:9" in found["dead"]["last_error"]
    assert found["old"]["latency"] > 0
    assert SECRET not in listed.said + str(document)

    assert asked.code == 1, "one that was asked for by name is down"


async def tools_of(home: Home, *words: str) -> Any:
    ran = await home.run("tools", *words, "--json")
    assert ran.code == 0, ran.said
    return [tool["name"] for tool in ran.document["tools"]]


@pytest.mark.requirement("O2")
async def test_tools_are_found_by_pattern_words_group_and_tag(home: Home):
    async with ScriptedServer.local() as a, ScriptedServer.local() as b:
        named = home.configure({"a": a.spec | {"tool_tags": {"add": ["sums"]}}, "b": b.spec})
        assert await tools_of(home, "-c", named, "*.add") == ["a.add", "b.add"]
        words = ("--search", "add two numbers", "--limit", "1", "--group", "b")
        assert await tools_of(home, "-c", named, *words) == ["b.add"]
        assert await tools_of(home, "-c", named, "--group", "sums") == ["a.add"]
        plain = await home.run("tools", "-c", named, "a.e*")
        nothing = await home.run("tools", "-c", named, "zzz*")
        no_group = await home.run("tools", "-c", named, "--group", "sumz")
    assert [line.split()[0] for line in plain.out.splitlines()] == ["tool", "a.echo"]
    assert (nothing.code, nothing.out.splitlines()[1:]) == (1, [])
    assert no_group.code == 2


@pytest.mark.requirement("O2")
async def test_schemas_prompts_resources_and_their_text_are_shown(home: Home):
    async with ScriptedServer.local() as server:
        url = ("--url", server.url)
        schema = await home.run("tools", "add", "--schema", *url)
        prompts = await home.run("prompts", *url, "--json")
        resources = await home.run("resources", *url, "--json")
        shown = await home.run("resources", *url)
        text = await home.run("read", "kit://notes", *url)
        document = (await home.run("read", "kit://notes", *url, "--json")).document
        missing = await home.run("read", "kit://nothing", *url)
    assert '"a"' in schema.out
    assert '"sum"' in schema.out
    (prompt,) = prompts.document["prompts"]
    assert prompt["prompt"] == "greet"
    assert [one["name"] for one in prompt["arguments"]] == ["name"]
    assert [one["uri"] for one in resources.document["resources"]] == ["kit://notes"]
    (template,) = resources.document["templates"]
    assert template["uri_template"] == "kit://notes/{day}"
    assert "kit://notes/{day}" in shown.out
    assert text.out == "a note"
    assert document["contents"][0]["text"] == "a note"
    assert missing.code == 1


async def test_a_prompt_is_filled_in_and_its_message_printed(home: Home):
    async with ScriptedServer.local() as server:
        url = ("--url", server.url)
        text = await home.run("prompt", "greet", "name=Ada", *url)
        document = (await home.run("prompt", "greet", '{"name": "Ada"}', *url, "--json")).document
        wrong = await home.run("prompt", "greet", "nam=Ada", *url)
        unknown = await home.run("prompt", "great", *url)
    (message,) = document["messages"]
    assert text.out == message["content"]["text"] + "\n"
    assert "Ada" in text.out
    assert wrong.code == 2
    assert "nam is not an argument: did you mean name?" in wrong.err
    assert "takes name=STRING" in wrong.err
    assert unknown.code == 2


async def test_a_resource_is_read_from_the_server_whose_template_matches(home: Home):
    async with ScriptedServer.local() as one, ScriptedServer.local() as two:
        both = {"one": {"url": one.url}, "two": {"url": two.url}}
        named = home.configure(both)
        ambiguous = await home.run("read", "kit://notes/monday", "-c", named)
        chosen = await home.run("read", "kit://notes/monday", "-c", named, "--server", "two")
    assert (ambiguous.code, chosen.code) == (2, 0), chosen.said
    assert "name one with --server: one, two" in ambiguous.err


TEMPLATES = [
    ("kit://notes/{day}", "kit://notes/monday", True),
    ("kit://notes/{day}", "kit://notes/2026/monday", False),
    ("kit://notes/{day}", "kit://notes/", False),
    ("kit://notes/{day}", "kit://letters/monday", False),
    ("file:///{+path}", "file:///etc/hosts", True),
    ("file:///{path*}", "file:///etc/hosts", True),
    ("repo://{owner}/{name}/readme", "repo://a/b/readme", True),
    ("repo://{owner}/{name}/readme", "repo://a/b/license", False),
    ("list://all{?page}", "list://all", True),
    ("list://all{?page}", "list://all?page=2", True),
    ("list://all{?page}", "list://allofit", False),
    ("kit://notes", "kit://notes", True),
]


@pytest.mark.parametrize(("template", "uri", "fits"), TEMPLATES)
def test_a_uri_matches_a_template_that_it_could_be_made_from(template: str, uri: str, fits: bool):
    assert matches(template, uri) is fits


async def test_several_servers_that_are_down_are_noted_in_one_line(home: Home):
    async with ScriptedServer.local() as server:
        down = {name: {"command": f"missing-{name}"} for name in "abc"}
        named = home.configure({"kit": {"url": server.url}, **down})
        ran = await home.run("tools", "-c", named)
        home.configure({"kit": {"url": server.url}, "a": down["a"]})
        one = await home.run("tools", "-c", named)
    assert ran.code == 0
    assert ran.err == "warning: 3 of 4 servers are down (a, b, c); see `toolkeep check`\n"
    assert "a is down: " in one.err
    assert "missing-a" in one.err


async def test_a_pipe_gets_the_whole_description_on_one_line(home: Home):
    definition = {
        "name": "long",
        "description": "First.\n\nSecond.",
        "inputSchema": {"type": "object"},
    }
    async with ScriptedServer.local() as server:
        await server.script(Rule(method="tools/list", do=Behaviour(result={"tools": [definition]})))
        ran = await home.run("tools", "--url", server.url)
    assert ran.out.splitlines()[1].endswith("First. Second.")


@pytest.mark.requirement("O2")
async def test_a_program_of_a_file_that_was_found_is_not_started_unasked(home: Home):
    async with ScriptedServer.stdio() as program:
        home.configure({"prog": program.spec}, "mcp.json")
        refused = await home.run("servers")
        starts = await program.starts()
    assert refused.code == 2
    assert "toolkeep config approve prog" in refused.err
    assert starts == 0
