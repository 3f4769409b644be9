"""`mainstay demo` is the demo; tests/docs looks at it in a log."""

import pytest

from tests.cli.helpers_running import Home


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
