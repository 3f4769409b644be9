"""`make demo` does what it says, in a log and on a terminal, and fails when a promise is broken.

A process of its own each time: what counts is its exit code.
"""

import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from mainstay import demo

PATIENCE = 40.0
LONGEST = 20.0
"""Twice what `make demo` may take: other tests may run beside it."""

BROKEN_PROMISE = """
import sys
from mainstay import demo
from mainstay.testing import SessionLoss

sys.exit(demo.main(SessionLoss(status=410, source="nobody: no row of the table knows it")))
"""


def environment(**more: str) -> dict[str, str]:
    quiet = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**quiet, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error", **more}


def in_a_pipe(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        env=environment(**more),
        check=False,
    )


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=theirs, stderr=theirs, env=environment()
        )
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # Linux says EIO when the other side is closed
            pass
        return child.wait(PATIENCE), shown.decode()
    finally:
        os.close(ours)


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


def test_in_a_log_every_claim_holds():
    started = time.monotonic()
    done = in_a_pipe("-m", "mainstay.demo")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "     NO  " not in done.stdout
    assert done.stdout.count("     ok  ") >= 2 * 3 * len(demo.ACTS)
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert too_wide(done.stdout) == []
    assert time.monotonic() - started < LONGEST


def test_on_a_terminal_the_bar_is_redrawn_in_place():
    code, shown = on_a_terminal("-m", "mainstay.demo")
    assert code == 0, shown
    assert shown.replace("\r\n", "").count("\r") == 2 * demo.STEPS
    assert "\x1b[32m" in shown
    assert "\x1b[31m" not in shown


def test_a_log_that_knows_only_ascii_is_written_in_ascii():
    done = in_a_pipe("-m", "mainstay.demo", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()


def test_when_the_server_breaks_a_promise_it_says_which_and_exits_with_1():
    done = in_a_pipe("-c", BROKEN_PROMISE)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    broken = done.stdout.partition("MODERN")[0].count("     NO  ")
    assert broken > 0
    assert done.stdout.count("     NO  ") == broken, "the modern era has no sessions to lose"
    assert too_wide(done.stdout) == []


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ([demo.Claim("one", 1, 1), demo.Claim("two", [2], [2])], 0),
        ([demo.Claim("one", 1, 1), demo.Claim("two", 2, 3)], 1),
        ([], 1),
    ],
    ids=["all hold", "one does not", "nothing was claimed"],
)
def test_the_verdict_is_0_only_if_all_claims_hold(claims: Sequence[demo.Claim], code: int):
    assert demo.verdict(list(claims)) == code


def test_a_claim_that_does_not_hold_shows_what_differed():
    out = io.StringIO()
    demo.Screen(out).claim(demo.Claim("the tool ran once", 1, 2))
    assert " ".join(out.getvalue().split()) == "NO the tool ran once -- promised 1, seen 2"
