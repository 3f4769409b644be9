"""`call` in a pipe: how arguments are given, what is refused before anything is sent, what comes
back, and what the exit code says about it."""

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from tests.cli.helpers_running import BOUND, TOOLKEEP, Home
from toolkeep.cli.call import MAX_FILES
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PLACED = {
    "name": "place",
    "description": "Takes what is nested.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "How many of them"},
            "loud": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
        "required": ["count"],
    },
}
SECRET = "hush-hush-4711"


@pytest.mark.requirement("O2")
async def test_arguments_are_converted_by_the_schema_and_read_from_everywhere(home: Home):
    async with ScriptedServer.local(tools=[PLACED]) as server:
        call = ("call", "place", "--url", server.url)
        pairs = ("count=3", "loud=true", "tags=a", "tags=1", "at.x=1.5")
        typed = await home.run(*call, *pairs, "--json")
        (home.path / "args.json").write_text('{"count": 1}')
        from_file = await home.run(*call, "@args.json")
        from_stdin = await home.run(*call, "-", input='{"count": 2}')
    assert typed.code == 0, typed.said
    given = json.loads(typed.document["content"][0]["text"])
    assert given == {"count": 3, "loud": True, "tags": ["a", "1"], "at": {"x": 1.5}}
    assert json.loads(from_file.out) == {"count": 1}
    assert json.loads(from_stdin.out) == {"count": 2}


@pytest.mark.requirement("O2")
async def test_what_cannot_be_meant_is_refused_with_its_place_and_nothing_is_sent(home: Home):
    async with ScriptedServer.local(tools=[PLACED]) as server:
        named = home.configure({"kit": server.spec})
        call = ("call", "-c", named)
        broken = await home.run(*call, "kit.place", '{"count": 1,\n "loud" true}')
        wrong = await home.run(*call, "kit.place", "cuont=1", "loud=loudly", "--json")
        no_tool = await home.run(*call, "kit.plaze", "count=1", "--json")
        no_server = await home.run("servers", "-c", named, "kid")
        called = await server.requests("tools/call")

    assert broken.code == 2
    assert "line 2, column 9" in broken.err
    line, caret = broken.err.splitlines()[-2:]
    assert caret.index("^") == line.index("true")

    assert wrong.code == 2
    unlike, unknown, missing = wrong.document["error"]["problems"]
    assert "true or false" in unlike
    assert "did you mean count?" in unknown
    assert "How many of them" in missing

    assert no_tool.code == 2
    assert no_tool.document["error"]["suggestions"][0] == "kit.place"
    assert no_server.code == 2
    assert "kit" in no_server.err
    assert called == []


@pytest.mark.requirement("O2")
async def test_a_result_is_told_with_all_its_parts_and_saved_as_files(home: Home):
    async with ScriptedServer.local() as server:
        url = ("--url", server.url)
        parts = await home.run("call", "content", "-o", "saved", *url)
        failed = await home.run("call", "fail", "message=no such luck", *url)
        document = (await home.run("call", "fail", "message=no", "--json", *url)).document
        headers = ("-H", f"Authorization: Bearer {SECRET}", "-H", "X-Team: blue")
        sent = await home.run("call", "headers", *headers, "--as", "ada", "--json", *url)
    lines = parts.out.splitlines()
    assert parts.code == 0
    assert lines[0] == "some text"
    assert [line.split()[0] for line in lines[1:]] == [
        "[image", "[audio", "[resource_link", "[resource",
    ]  # fmt: skip
    saved = {path.name for path in (home.path / "saved").iterdir()}
    assert saved == {"content-1.png", "content-1.wav", "content-1.txt"}
    assert (home.path / "saved" / "content-1.txt").read_text() == "a note"

    assert (failed.code, failed.out) == (1, "")
    assert "no such luck" in failed.err
    assert document["is_error"] is True
    assert set(document) >= {"content", "structured_content", "meta", "attempts", "duration"}

    assert sent.document["structured_content"]["x-team"] == "blue"
    assert sent.document["structured_content"]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.requirement("O2")
async def test_what_cannot_be_saved_is_refused_before_the_call_or_shown_all_the_same(home: Home):
    (home.path / "a file").write_text("mine")
    (home.path / "full").mkdir()
    for number in range(1, MAX_FILES):
        (home.path / "full" / f"content-{number}.png").touch()
    async with ScriptedServer.local() as server:
        call = ("call", "content", "--url", server.url, "-o")
        no_folder = await home.run(*call, "a file/below")
        sent = await server.requests("tools/call")
        full = await home.run(*call, "full")
        document = (await home.run(*call, "full", "--json")).document
    assert (no_folder.code, no_folder.out, sent) == (2, "", [])
    assert full.code == 1, "not 2: the tool has run"
    assert full.out.startswith("some text\n[image")
    assert "content-1.wav" in full.out, "the others are saved"
    assert "image" in full.err
    assert [path.rpartition("-")[2] for path in document["saved"]] == ["2.wav", "2.txt"]


@pytest.mark.requirement("O2")
async def test_a_call_whose_progress_nobody_reads_goes_on_to_its_end(home: Home):
    async with ScriptedServer.local(encoding="sse") as server:
        for words, ended in (
            (("steps", "count=3", "--watch"), (0, b"3 steps\n")),
            (("fail", "message=no"), (1, b"")),
            (("no_such_tool",), (2, b"")),
        ):
            reading, writing = os.pipe()
            os.close(reading)
            process = await asyncio.create_subprocess_exec(
                *(TOOLKEEP, "call", *words, "--url", server.url),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=writing,
                cwd=home.path,
                env=home.env(),
            )
            os.close(writing)
            async with asyncio.timeout(BOUND):
                out, _ = await process.communicate()
            assert (process.returncode, out) == ended


@pytest.mark.requirement("O2")
async def test_the_exit_code_says_whether_it_ran(home: Home):
    cut = Rule(tool="record", do=Behaviour(drop="after_run"))
    async with ScriptedServer.local(era="legacy") as server:
        await server.script(cut)
        named = home.configure({"kit": server.spec, "dead": {"url": "http://127.0.0.1:9/mcp"}})
        call = ("call", "-c", named)
        unknown = await home.run(*call, "kit.record", "key=once", "--json")
        late = await home.run(*call, "kit.slow", "seconds=20", "--timeout", "0.2")
        dead = await home.run(*call, "dead.add", "a=1", "--json")
        runs = await server.executions("once")
    assert unknown.code == 3
    assert unknown.document["error"]["type"] == "CallOutcomeUnknown"
    assert unknown.document["error"]["delivery"] == "unknown"
    assert runs == 1
    assert late.code == 3
    assert "Traceback" not in unknown.err + late.err
    assert dead.code == 1
    assert dead.document["error"]["type"] == "ServerUnavailable"
    assert "toolkeep check" in dead.document["error"]["remedy"]


@pytest.mark.requirement("O2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_progress_and_log_lines_are_lines_on_standard_error(home: Home, era):
    async with ScriptedServer.local(era=era, encoding="sse") as server:
        url = ("--watch", "--url", server.url)
        steps = await home.run("call", "steps", "count=3", *url)
        logs = await home.run("call", "logs", "count=2", *url)
    assert steps.out == "3 steps\n"
    assert [line.split()[0] for line in steps.err.splitlines()] == ["33%", "67%", "100%"]
    assert "step 2 of 3" in steps.err
    assert logs.err.splitlines() == ["info: line 1", "info: line 2"]


@pytest.mark.requirement("O2")
async def test_a_header_goes_to_one_server_or_nowhere(home: Home):
    async with ScriptedServer.local() as one, ScriptedServer.local() as other:
        named = home.configure({"one": one.spec, "other": other.spec})
        header = ("-H", f"Authorization: Bearer {SECRET}")
        both = await home.run("tools", "-c", named, *header)
        broken = await home.run("tools", "--url", one.url, "-H", f"{SECRET}")
        single = await home.run("call", "-c", named, "one.echo", "text=hi", *header)
        seen = [*await one.requests(), *await other.requests()]
    assert (both.code, broken.code, single.code) == (2, 2, 0)
    assert SECRET not in both.said + broken.said + single.said
    bearing = {(r.headers["host"], "authorization" in r.headers) for r in seen}
    assert bearing == {(f"127.0.0.1:{one.port}", True)}


async def test_a_call_of_a_program_loads_only_what_it_needs(home: Home):
    async with ScriptedServer.stdio() as program:
        named = home.configure({"kit": program.spec})
        profiled = {"PYTHONPROFILEIMPORTTIME": "1"}
        ran = await home.run("call", "kit.echo", "text=hi", "-c", named, env=profiled)
    loaded = {line.rpartition("|")[2].strip() for line in ran.err.splitlines()}
    assert ran.out == "hi\n"
    assert "toolkeep.client" in loaded
    assert not {"aiohttp", "rich", "yarl"} & loaded
