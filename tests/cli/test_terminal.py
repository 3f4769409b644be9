"""The command in a terminal of 80 columns, with a person who types and presses Ctrl-C."""

import json
from typing import Any

import pytest

from tests.cli.helpers_running import COLUMNS, Home
from toolkeep.testing import Behaviour, Rule, ScriptedServer

HIDES_CURSOR = b"\x1b[?25l"
COLOUR = b"\x1b[32m"
NASTY = {
    "name": "nasty",
    "description": "clear \x1b[2J the screen and turn \u202eround",
    "inputSchema": {"type": "object"},
}
VERBOSE = {"name": "verbose", "description": "words " * 99, "inputSchema": {"type": "object"}}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        },
    },
}


@pytest.mark.requirement("O2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_ctrl_c_in_a_watched_call_tells_the_server_and_restores_the_terminal(
    home: Home, era: Any
):
    async with ScriptedServer.local(era=era, encoding="sse") as server:
        words = ("call", "steps", "count=100", "gap=0.1", "--watch", "--url", server.url)
        async with home.terminal(*words) as terminal:
            watched = await terminal.until(" of 100")
            terminal.interrupt()
            ran = await terminal.ended()
        given_up = await server.cancelled(at_least=1)
    assert "━" in watched, "a bar"
    assert HIDES_CURSOR in ran.raw
    assert terminal.has_cursor
    assert ran.code == 130
    assert "Traceback" not in ran.out
    assert {one.tool for one in given_up} == {"steps"}
    # A closed stream cancels nothing in the legacy era: the notification does, and nothing else.
    assert ("notification" in {one.how for one in given_up}) == (era == "legacy")


@pytest.mark.requirement("O2")
async def test_a_command_that_is_terminated_tells_its_program_and_ends_it(home: Home):
    async with ScriptedServer.stdio(era="legacy") as program:
        named = home.configure({"prog": program.spec})
        async with home.terminal("call", "prog.slow", "seconds=60", "-c", named) as terminal:
            await program.requests("tools/call", at_least=1, within=20)
            terminal.terminate()
            ran = await terminal.ended()
        given_up = await program.cancelled(at_least=1)
        left = await program.processes()
    assert ran.code == 130
    assert "Traceback" not in ran.out
    assert "notification" in {one.how for one in given_up}
    assert left == []


@pytest.mark.requirement("O2")
async def test_a_finished_call_leaves_its_bar_its_log_lines_and_its_result(home: Home):
    async with ScriptedServer.local(encoding="sse") as server:
        url = ("--watch", "--url", server.url)
        steps = await home.shown("call", "steps", "count=3", *url)
        logs = await home.shown("call", "logs", "count=2", *url, NO_COLOR="1")
        dumb = await home.shown("call", "steps", "count=1", *url, TERM="dumb")
    *bar, result = steps.out.splitlines()
    assert "step 3 of 3" in bar[-1]
    assert "100%" in bar[-1]
    assert result == "3 steps"
    assert logs.out.splitlines() == ["info: line 1", "info: line 2", "2 lines"]
    assert dumb.out.splitlines()[-2:] == ["100% step 1 of 1", "1 steps"], "a line for each step"


@pytest.mark.requirement("O2", "O3")
async def test_lists_fit_in_80_columns_in_colour_or_without_and_obey_no_server(home: Home):
    async with ScriptedServer.local(tools=[NASTY, VERBOSE]) as server:
        named = home.configure({"a-server-with-a-long-name": server.spec})
        servers = await home.shown("servers", "-c", named)
        plain = await home.shown("servers", "-c", named, NO_COLOR="1")
        tools = await home.shown("tools", "-c", named)
        document = await home.shown("tools", "-c", named, "*.nasty", "--json")
        missing = await home.shown(
            "call", "a-server-with-a-long-name.nothing-of-that-kind", "-c", named
        )
        piped = await home.run("servers", "-c", named, env={"FORCE_COLOR": ""})
    assert servers.out.splitlines()[-1] == "1/1 servers healthy, 16 tools"
    assert "healthy" in servers.out.splitlines()[1]
    assert COLOUR in servers.raw
    assert COLOUR not in plain.raw
    assert "\x1b" not in piped.out
    assert all(len(line) <= COLUMNS for line in tools.out.splitlines())
    assert "a-server-with-a-long-name.nasty" in tools.out
    assert "a-server-with-a-long-name.verbose" in tools.out, "a name gives way to no description"
    assert "a-server-with-a-long-name." in missing.out.replace("\n", " ").split("mean ")[1]
    assert missing.out.splitlines()[1].startswith("  "), "folded between words"
    assert b"\x1b[2J" not in tools.raw + document.raw
    assert "\u202e".encode() not in tools.raw + document.raw
    assert "\\u202e" in document.out, "still JSON"


@pytest.mark.requirement("O2")
async def test_a_simple_form_is_asked_for_at_the_terminal(home: Home):
    async with ScriptedServer.local(era="modern") as server:
        asked = json.dumps({"requests": {"who": FORM}})
        async with home.terminal("call", "ask", asked, "--url", server.url) as terminal:
            await terminal.until("Who are you?")
            await terminal.until("[y/N]")
            terminal.type("y\n")
            await terminal.until("name:")
            terminal.type("Ada\n")
            await terminal.until("age:")
            terminal.type("young\n")
            await terminal.until("whole number")
            terminal.type("36\n")
            ran = await terminal.ended()
        sent = (await server.requests("tools/call"))[-1].body["params"]["inputResponses"]
    assert ran.code == 0, ran.out
    assert sent["who"] == {"action": "accept", "content": {"name": "Ada", "age": 36}}


@pytest.mark.requirement("O2")
async def test_a_program_that_was_found_is_started_once_a_person_agrees(home: Home):
    async with ScriptedServer.stdio() as program:
        home.configure({"prog": program.spec}, "mcp.json")
        async with home.terminal("servers") as terminal:
            await terminal.until("[y/N]")
            assert await program.starts() == 0
            terminal.type("y\n")
            agreed = await terminal.ended()
        again = await home.run("servers")
    assert "1/1 servers healthy" in agreed.out
    assert (again.code, again.err) == (0, "")


@pytest.mark.requirement("O2")
async def test_bytes_are_kept_from_a_terminal(home: Home):
    blob = {"contents": [{"uri": "kit://notes", "mimeType": "image/png", "blob": "iVBORw0KGgo="}]}
    async with ScriptedServer.local() as server:
        await server.script(Rule(method="resources/read", do=Behaviour(result=blob)))
        read = ("read", "kit://notes", "--url", server.url)
        refused = await home.shown(*read)
        saved = await home.run(*read, "-o", "picture.png")
        piped = await home.run(*read, "--json")
    assert refused.code == 2
    assert "--output" in refused.out
    assert saved.code == 0
    assert (home.path / "picture.png").read_bytes() == b"\x89PNG\r\n\x1a\n"
    assert piped.document["contents"][0]["blob"] == "iVBORw0KGgo="


@pytest.mark.requirement("O2")
async def test_a_silent_server_is_waited_for_visibly_and_can_be_left(home: Home):
    async with ScriptedServer.local() as server:
        await server.script(Rule(do=Behaviour(hang=True)))
        async with home.terminal("tools", "--url", server.url) as terminal:
            await terminal.until("opening 127-0-0-1")
            terminal.interrupt()
            ran = await terminal.ended()
    assert (ran.code, ran.out, terminal.has_cursor) == (130, "interrupted", True)


INPUTS = {
    "inputs": [
        {"type": "promptString", "id": "key", "description": "The key", "password": True},
        {"type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu"},
    ],
}


@pytest.mark.requirement("C1")
async def test_inputs_of_a_configuration_are_asked_for_and_secrets_not_echoed(home: Home):
    async with ScriptedServer.local() as server:
        headers = {"x-key": "${input:key}", "x-region": "${input:region}"}
        entry = {"url": server.url, "headers": headers}
        home.path.joinpath("mcp.json").write_text(json.dumps({**INPUTS, "servers": {"kit": entry}}))
        async with home.terminal("call", "kit.echo", "text=x", "-c", "mcp.json") as terminal:
            await terminal.until("The key:")
            terminal.type("s3cret-of-mine\n")
            await terminal.until("region (eu, us) [eu]:")
            terminal.type("us\n")
            ran = await terminal.ended()
        (call,) = await server.requests(tool="echo")
    assert ran.code == 0
    assert (call.headers["x-key"], call.headers["x-region"]) == ("s3cret-of-mine", "us")
    assert b"s3cret-of-mine" not in ran.raw


@pytest.mark.requirement("C1")
async def test_ctrl_c_ends_the_question_and_nothing_is_asked_without_a_terminal(home: Home):
    async with ScriptedServer.local() as server:
        entry = {"url": server.url, "headers": {"x-key": "${input:key}"}}
        home.path.joinpath("mcp.json").write_text(json.dumps({**INPUTS, "servers": {"kit": entry}}))
        async with home.terminal("tools", "-c", "mcp.json") as terminal:
            await terminal.until("The key:")
            terminal.interrupt()
            assert (await terminal.ended()).code == 130
        ran = await home.run("tools", "-c", "mcp.json")
        assert ran.code != 0
        assert "the input 'key' has no answer" in ran.said
        assert "at a terminal" in ran.said
        assert await server.requests() == []
