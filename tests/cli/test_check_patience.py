"""`toolkeep check`: servers that hang. Every wait is bounded, and Ctrl-C ends all of them."""

import asyncio
import sys

import pytest

from tests.cli.helpers_checking import answering, check
from tests.cli.helpers_running import Home
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("O2")

PATIENCE = 2.0
CHATTER = "import sys; print('Listening on port 3000', flush=True); sys.stdin.read()"


def never(method: str) -> Rule:
    return Rule(method=method, do=Behaviour(hang=True))


async def test_whatever_hangs_is_waited_for_as_long_as_was_said_and_told_apart(home: Home):
    chatter = {"command": sys.executable, "args": ["-c", CHATTER]}
    async with (
        ScriptedServer.local(era="legacy") as handshake,
        ScriptedServer.local(era="legacy") as later,
        ScriptedServer.local() as posts,
        ScriptedServer.stdio(ignore_stdin=True) as deaf,
        answering(hang=True) as silent,
    ):
        await handshake.script(never("initialize"))
        await later.script(never("tools/list"))
        await posts.script(Rule(do=Behaviour(hang=True)))
        agreeing = {"handshake": {"url": handshake.url}, "later": {"url": later.url}}
        sides = (
            {"silent": {"url": silent}, "posts": {"url": posts.url}},
            {**agreeing, "deaf": deaf.spec, "chatter": chatter},
        )
        named = [home.configure(side, f"{number}.json") for number, side in enumerate(sides)]
        ways = [check(home, "-c", name, "--timeout", str(PATIENCE)) for name in named]
        mute, others = await asyncio.gather(*ways)
    assert mute.failed_at("silent") == ("http", "no-answer")
    assert mute.failed_at("posts") == ("handshake", "handshake-hang")
    assert mute.of("posts").states["http"] == "ok", "a plain GET is answered"
    assert others.failed_at("handshake") == ("handshake", "handshake-hang")
    assert others.failed_at("later") == ("tools", "silent")
    assert others.failed_at("deaf") == ("handshake", "handshake-hang")
    assert others.failed_at("chatter") == ("handshake", "stdout-noise")
    for name in ("handshake", "later", "deaf"):
        failed = others.of(name).failure
        assert PATIENCE - 0.5 < failed["seconds"] < PATIENCE + 5
        assert "--timeout" in failed["remedy"]
    assert "'Listening on port 3000'" in others.of("chatter").failure["cause"]


async def test_ctrl_c_ends_the_program_deletes_the_session_and_leaves_no_traceback(home: Home):
    async with (
        ScriptedServer.stdio(ignore_stdin=True) as deaf,
        ScriptedServer.local(era="legacy") as server,
    ):
        await server.script(never("tools/list"))
        program = home.configure({"deaf": deaf.spec}, "program.json")
        async with home.terminal("check", "-c", program) as terminal:
            await deaf.processes(at_least=1, within=20)
            terminal.interrupt()
            of_program = await terminal.ended()
        async with home.terminal("check", "--url", server.url) as terminal:
            await server.requests("tools/list", at_least=1, within=20)
            terminal.interrupt()
            of_session = await terminal.ended()
        left = await deaf.processes()
        seen = [one.http_method for one in await server.requests()]
    for ran in (of_program, of_session):
        assert ran.code == 130
        assert "Traceback" not in ran.out
        assert "interrupted" in ran.out
    assert left == []
    assert seen.count("DELETE") == 1
