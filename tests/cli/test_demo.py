"""`toolkeep demo` is the demo; tests/docs looks at it in a log."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from tests.cli.helpers_running import BOUND, TOOLKEEP, Home


@pytest.mark.requirement("O2")
async def test_on_a_terminal_it_is_in_colour_and_the_bar_moves_in_its_place(home: Home):
    ran = await home.shown("demo")
    raw = ran.raw.decode()
    assert ran.code == 0, raw
    assert "claims held." in ran.out
    assert "\x1b[32m    ✓" in raw
    assert "✗" not in raw
    bar = raw.partition("\x1b[?25l")[2].partition("\x1b[?25h")[0]
    assert [f"step {number} of 5" in bar for number in range(1, 6)] == [True] * 5
    assert bar.count("\n") == 1, "each state of the bar is drawn over the last"


@pytest.mark.requirement("O2")
async def test_it_ends_on_sigterm_as_every_command_does(home: Home):
    process = await asyncio.create_subprocess_exec(
        *(TOOLKEEP, "demo"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=home.path,
        env=home.env(PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    async with asyncio.timeout(BOUND):
        while "✓" not in (line := (await process.stdout.readline()).decode()):
            assert line, "it ended without a claim"
        process.terminate()
        _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"interrupted\n")
