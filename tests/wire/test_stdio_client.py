"""A client and its program: what its callers learn when the program fails them."""

import asyncio
import json
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.engine.helpers_programs import program
from tests.wire.helpers_stdio import BOUND, FAMILY, TOOLS, Undertaker, spec_of
from toolkeep import (
    CallError,
    CallOutcomeUnknown,
    CallTimedOut,
    Client,
    ConfigError,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery


async def pid_of(client: Client) -> int:
    result = await client.call_tool("pid", {})
    return int(result.raw["content"][0]["text"])


@pytest.mark.requirement("S16", "P1")
async def test_a_call_in_which_the_program_exits_says_how():
    async with Client(spec_of(TOOLS)) as client:
        first = await pid_of(client)
        with pytest.raises(CallOutcomeUnknown) as caught:
            await client.call_tool("die", {})
        assert caught.value.exit_code == 7
        assert caught.value.stderr == "oh no"
        assert caught.value.delivery is Delivery.UNKNOWN
        assert await pid_of(client) != first


@pytest.mark.requirement("P1")
async def test_a_program_that_is_killed_between_calls_is_started_again():
    undertaker = Undertaker()
    async with Client(spec_of(TOOLS)) as client:
        first = await pid_of(client)
        undertaker.know([first])
        os.kill(first, signal.SIGKILL)
        await undertaker.all_gone()
        assert await pid_of(client) != first


@pytest.mark.requirement("S14")
async def test_an_answer_that_is_too_large_fails_its_call_alone():
    async with Client(spec_of(TOOLS, max_result_bytes=100_000)) as client:
        first = await pid_of(client)
        async with asyncio.timeout(BOUND):
            before, flood, after = await asyncio.gather(
                pid_of(client),
                client.call_tool("flood", {}),
                pid_of(client),
                return_exceptions=True,
            )
        assert isinstance(flood, CallError)
        assert (before, after) == (first, first)


@pytest.mark.requirement("S16")
async def test_a_missing_command_is_a_clear_error():
    with pytest.raises(ConfigError) as caught:
        async with Client({"command": "no-such-program-anywhere"}) as client:
            await client.list_tools()
    assert caught.value.key == "command"


@pytest.mark.requirement("S16")
async def test_a_program_that_is_no_server_is_named_with_its_last_words():
    script = "import sys; print('no licence', file=sys.stderr); sys.exit(4)"
    with pytest.raises(ToolkeepError) as caught:
        async with Client(spec_of(script)) as client:
            await client.list_tools()
    assert caught.value.exit_code == 4
    assert caught.value.stderr == "no licence"
    assert caught.value.delivery is Delivery.NOT_SENT


@pytest.mark.requirement("S16")
async def test_the_family_of_a_program_goes_with_its_client(tmp_path: Path):
    """It never answers; the client gives up, and nothing of it stays."""
    undertaker = Undertaker()
    script = FAMILY.replace("os.write(1,", f"os.write(os.open({str(tmp_path / 'pids')!r}, 65),")
    spec = spec_of(script, "stubborn", timeouts={"connect": 1.0, "close": 1.0})
    opening = asyncio.create_task(Client(spec).list_tools())
    try:
        async with asyncio.timeout(BOUND):
            while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
                await asyncio.sleep(0.01)
        undertaker.know(json.loads((tmp_path / "pids").read_text())["pids"])
        assert len(undertaker.alive) == 6
        with pytest.raises(ToolkeepError):
            await asyncio.wait_for(opening, BOUND)
        await undertaker.all_gone()
    finally:
        undertaker.bury()


LOGGING = """
def on_call(told, name):
    print(json.dumps({"level": 30, "msg": "called", "time": 1}), flush=True)
    print(json.dumps({"level": 50, "error": "not really"}), flush=True)
    done(told, "the answer")

serve(on_call)
"""


@pytest.mark.requirement("P7", "S14")
async def test_a_log_in_json_is_not_taken_for_the_answer(caplog: pytest.LogCaptureFixture):
    async with Client(program(LOGGING)) as client:
        for _ in range(2):
            assert (await client.call_tool("any", timeout=BOUND)).text == "the answer"
    assert {record.name for record in caplog.records} == {"toolkeep.server"}


@pytest.mark.requirement("P7")
async def test_half_a_character_in_an_answer_costs_that_character_alone():
    script = "serve(lambda told, name: done(told, 'ok \\ud83d'))"
    async with Client(program(script)) as client:
        assert (await client.call_tool("any", timeout=BOUND)).text == "ok \ufffd"


COMPLAINS = """
import json, sys
cancelled = False
for line in sys.stdin:
    told = json.loads(line)
    method = told.get("method")
    if method == "initialize":
        about = {"capabilities": {}, "serverInfo": {"name": "small", "version": "1"}}
        say(id=told["id"], result={"protocolVersion": "2025-11-25", **about})
    elif method == "notifications/cancelled":
        cancelled = True
    elif method == "tools/call" and told["params"]["name"] == "quick":
        if cancelled:
            say(**json.loads(sys.argv[1]), error={"code": -32601, "message": "unknown method"})
        done(told, "ran")
"""
"""Answers a cancellation, late, with an error without a usable id, as if it were a request."""


@pytest.mark.requirement("P1", "P5")
@pytest.mark.parametrize("named", [{"id": None}, {}, {"id": False}, {"id": 0.5}, {"id": {}}])
async def test_an_error_about_a_cancellation_is_not_the_next_calls_answer(named: dict[str, object]):
    async with Client(program(COMPLAINS, json.dumps(named))) as client, asyncio.timeout(BOUND):
        await client.connect()
        with pytest.raises(CallTimedOut):
            await client.call_tool("slow", {}, timeout=0.3)
        assert (await client.call_tool("quick", {})).text == "ran"


@pytest.mark.requirement("S15")
async def test_a_handshake_that_gets_only_an_error_without_an_id_says_so():
    script = (
        'sys.stdin.readline()\nsay(id=None, error={"code": -1, "message": "x"})\nsys.stdin.read()'
    )
    client = Client(program(script, timeouts={"connect": 1.0}, max_retries=0))
    async with aclosing(client), asyncio.timeout(BOUND):
        with pytest.raises(ServerUnavailable, match="error -1: x"):
            await client.connect()
