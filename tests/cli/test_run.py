"""`run`: a program from a file, its output, its account, and what the exit code says about it."""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE

import pytest

from tests.cli.helpers_running import BOUND, TOOLKEEP, Home
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("X4", "O2")


def write(home: Home, text: str) -> str:
    (home.path / "program.py").write_text(text)
    return "program.py"


async def test_a_program_prints_and_its_value_is_the_result(home: Home) -> None:
    program = "print('adding', a)\nresult = await kit__add(a=a, b=2)\nresult"
    async with ScriptedServer.local() as server:
        named = home.configure({"kit": server.spec})
        file = write(home, program)
        plain = await home.run("run", file, "a=40", "-c", named, "--allow", "kit.add")
        as_json = await home.run("run", file, "a=40", "-c", named, "--allow", "kit.*", "--json")
        piped = await home.run("run", "-", "-c", named, input="'from standard input'")
    assert (plain.code, plain.err) == (0, "")
    printed, _, value = plain.out.partition("\n")
    assert printed == "adding 40"
    assert json.loads(value) == {"sum": 42}
    assert as_json.code == 0
    assert as_json.document["value"] == {"sum": 42}
    assert as_json.document["printed"] == "adding 40\n"
    assert [call["tool"] for call in as_json.document["calls"]] == ["kit.add"]
    assert (piped.code, piped.out) == (0, "from standard input\n")


async def test_progress_is_shown_beside_the_output(home: Home) -> None:
    async with ScriptedServer.local(encoding="sse") as server:
        file = write(home, "await kit__steps(count=2)")
        named = home.configure({"kit": server.spec})
        ran = await home.run("run", file, "-c", named, "--allow", "*")
    assert ran.code == 0
    assert "step 2 of 2" in ran.err
    assert ran.out == "2 steps\n"


async def test_a_program_that_is_refused_sends_nothing(home: Home) -> None:
    async with ScriptedServer.local() as server:
        named = home.configure({"kit": server.spec})
        file = write(home, "x = 1\nawait kit__record()")
        refused = await home.run("run", file, "-c", named)
        as_json = await home.run("run", file, "-c", named, "--json")
        no_file = await home.run("run", "nothing.py", "-c", named)
        no_input = await home.run("run", file, "what", "-c", named)
        called = await server.requests("tools/call")
    assert refused.code == as_json.code == no_file.code == no_input.code == 2
    assert "line 2: kit__record is not marked read-only" in refused.err
    assert as_json.document["error"]["type"] == "CodeRefused"
    assert "cannot read the program nothing.py" in no_file.err
    assert "name=value" in no_input.err
    assert called == []


@pytest.mark.requirement("X3")
async def test_a_failure_tells_what_became_of_each_call(home: Home) -> None:
    program = "await kit__echo(text='x')\nprint('said')\nawait kit__record(key='paid')"
    async with ScriptedServer.local() as server:
        named = home.configure({"kit": server.spec})
        file = write(home, program)
        await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        lost = await home.run("run", file, "-c", named, "--allow", "*")
        failing = write(home, "await kit__fail(message='no')")
        failed = await home.run("run", failing, "-c", named, "--allow", "*")
        assert await server.executions("paid") == 1
    assert lost.code == 3
    assert lost.out == "said\n"
    assert "line 3: unknown" in lost.err
    assert "Find out whether it ran" in lost.err
    assert failed.code == 1
    assert "The program failed at line 1: RuntimeError: no" in failed.err


async def test_an_interrupted_program_tells_what_was_under_way(home: Home) -> None:
    async with ScriptedServer.local() as server:
        named = home.configure({"kit": server.spec})
        file = write(home, "await kit__record()\nawait kit__slow(seconds=60)")
        words = ("run", file, "-c", named, "--allow", "*")
        process = await asyncio.create_subprocess_exec(
            *(TOOLKEEP, *words), stdout=PIPE, stderr=PIPE, cwd=home.path, env=home.env()
        )
        await server.requests(tool="slow", at_least=1, within=BOUND)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), BOUND)
        await server.cancelled(at_least=1)
    assert process.returncode == 130
    assert b"kit.record(), line 1: ran" in err
    assert b"kit.slow(seconds=60), line 2: unknown" in err
