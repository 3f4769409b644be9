"""`toolkeep watch`: what the servers are and do, on a terminal, in a pipe, and for programs."""

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator

import pytest

from tests.cli.helpers_running import BOUND, COLUMNS, TOOLKEEP, Home, hear_interrupts
from toolkeep.testing import ScriptedServer

NEW_TOOL = {"name": "new", "inputSchema": {"type": "object"}}
OFTEN = ("--interval", "0.3")


@contextlib.asynccontextmanager
async def in_a_pipe(home: Home, *words: str) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(TOOLKEEP, "watch", *OFTEN, *words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=home.path,
        env=home.env(),
        preexec_fn=hear_interrupts,
    )
    try:
        async with asyncio.timeout(BOUND):
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def until(process: Process, words: str) -> str:
    assert process.stdout is not None
    while words not in (line := (await process.stdout.readline()).decode()):
        assert line, f"it ended without {words!r}"
    return line


async def test_one_frame_says_how_each_server_is(home: Home):
    async with ScriptedServer.spawn(era="legacy") as shop:
        config = home.configure({"shop": shop.spec, "gone": {"url": "http://127.0.0.1:9/mcp"}})
        ran = await home.run("watch", "--once", "--json", "-c", config)
    assert ran.code == 0, ran.said
    found = {one["name"]: one for one in ran.document["servers"]}
    assert (found["shop"]["health"], found["shop"]["era"]) == ("healthy", "legacy")
    assert found["shop"]["latency"] > 0
    assert (found["gone"]["health"], found["gone"]["latency"]) == ("down", None)


@pytest.mark.requirement("O2")
async def test_in_a_pipe_each_event_is_a_line_and_ctrl_c_is_the_end(home: Home):
    async with ScriptedServer.spawn(era="legacy") as shop, ScriptedServer.stdio() as notes:
        config = home.configure({"shop": shop.spec, "notes": notes.spec})
        async with in_a_pipe(home, "-c", config) as process:
            assert len((await until(process, "transport")).rstrip()) <= COLUMNS
            await until(process, "2/2 servers healthy")
            await shop.set_tools([NEW_TOOL])
            await shop.notify("notifications/tools/list_changed")
            await until(process, "+shop.new")
            said = {"level": "warning", "data": "\x1b[31mlow on tea"}
            await shop.notify("notifications/message", said)
            line = await until(process, "low on tea")
            assert "\x1b" not in line
            notes.kill()
            await until(process, "notes  connected")
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert await process.wait() == 0
            assert await process.stderr.read() == b""
        assert await notes.processes() == []


async def test_for_programs_each_event_is_one_json_object(home: Home):
    async with ScriptedServer.spawn(era="modern") as shop:
        config = home.configure({"shop": shop.spec})
        async with in_a_pipe(home, "--json", "-c", config) as process:
            first = json.loads(await until(process, "{"))
            assert (first["event"], first["name"], first["health"]) == ("status", "shop", "healthy")
            await shop.set_tools([NEW_TOOL])
            await shop.notify("notifications/tools/list_changed")
            event = json.loads(await until(process, "catalogue"))
            assert event["changes"]["tools"]["added"] == ["shop.new"]
            process.terminate()
            assert await process.wait() == 0


async def test_who_stops_reading_ends_it(home: Home):
    async with ScriptedServer.spawn(era="modern") as shop:
        config = home.configure({"shop": shop.spec})
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(TOOLKEEP, "watch", *OFTEN, "-c", config),
            stdin=DEVNULL,
            stdout=writing,
            stderr=PIPE,
            cwd=home.path,
            env=home.env(),
        )
        os.close(writing)
        async with asyncio.timeout(BOUND):
            shown = b""
            while b"servers healthy" not in shown:  # the next line is an event
                shown += await asyncio.to_thread(os.read, reading, 4096)
            os.close(reading)
            await shop.set_tools([NEW_TOOL])
            await shop.notify("notifications/tools/list_changed")
            _, said = await process.communicate()
        assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "Ctrl-C"])
async def test_on_a_terminal_the_view_is_redrawn_in_its_place(home: Home, key: str):
    async with ScriptedServer.spawn(era="legacy") as shop:
        config = home.configure({"shop": shop.spec})
        async with home.terminal("watch", *OFTEN, "-c", config) as terminal:
            await terminal.until("1/1 servers healthy")
            await shop.set_tools([NEW_TOOL])
            await shop.notify("notifications/tools/list_changed")
            shown = await terminal.until("+shop.new")
            assert shown.count("transport") == 1
            terminal.type(key)
            ran = await terminal.ended()
    assert ran.code == 0, ran.out
    assert b"\x1b[?1049l" in ran.raw, "the screen is what it was"
    assert b"\x1b[?25h" in ran.raw, "and so is the cursor"
    assert b"Traceback" not in ran.raw
