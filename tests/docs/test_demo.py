"""`make demo` does what it says, in a log and on a terminal, and fails when a promise is broken.

A process of its own each time: what counts is its exit code.
"""

import asyncio
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples import demo
from examples.demo.acts import FORGET, OPEN
from examples.demo.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "recovery.svg"

PATIENCE = 40.0
LONGEST = 20.0
"""Twice what `make demo` may take: other tests may run beside it."""

BROKEN_PROMISE = """
import sys
from examples import demo
from toolkeep.testing import SessionLoss

sys.exit(demo.main(SessionLoss(status=410, source="nobody: no row of the table knows it")))
"""
WITHOUT_RICH = """
import asyncio, sys

sys.modules["rich"] = sys.modules["typer"] = None
from examples import demo

sys.exit(demo.verdict(asyncio.run(demo.perform(demo.screen_for(sys.stdout), demo.ACTS[:4]))))
"""


def environment(**more: str) -> dict[str, str]:
    quiet = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**quiet, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error", "TERM": "xterm-256color", **more}


def in_a_pipe(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        env=environment(**more),
        cwd=ROOT,
        check=False,
    )


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=theirs, stderr=theirs, env=environment(), cwd=ROOT
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
    done = in_a_pipe("-m", "examples.demo")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "✗" not in done.stdout
    assert done.stdout.count("    ✓ ") >= 2 * len(demo.ACTS)
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert too_wide(done.stdout) == []
    assert time.monotonic() - started < LONGEST


def test_it_needs_no_rich():
    code, shown = on_a_terminal("-c", WITHOUT_RICH)
    assert code == 0, shown
    assert "\x1b" not in shown


def test_the_requests_that_are_told_are_all_that_reached_the_server():
    async def counted(stage: Stage) -> list[demo.Claim]:
        before = len(await stage.shop.requests())
        claims = await FORGET[1](stage)
        seen = len(await stage.shop.requests()) - before
        told = [re.match(r"(\d+) (request|beside)", claim.told) for claim in claims]
        return [*claims, demo.Claim("so many", seen, sum(int(one[1]) for one in told if one))]

    shown = io.StringIO()
    claims = asyncio.run(demo.perform(demo.Screen(shown), (OPEN, ("It forgets", counted))))
    assert demo.verdict(claims) == 0, shown.getvalue()
    assert claims[-1].seen == 8


def test_when_the_server_breaks_a_promise_it_says_which_and_exits_with_1():
    ascii_only = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = in_a_pipe("-c", BROKEN_PROMISE, **ascii_only)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    before, _, after = done.stdout.partition(FORGET[0])
    assert "    NO " not in before, "nothing is lost yet"
    assert "    NO " in after
    assert too_wide(done.stdout) == []
    assert done.stdout.isascii(), "a log that knows only ASCII is written in ASCII"


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
    assert demo.verdict(claims) == code


def test_a_claim_that_does_not_hold_shows_what_differed():
    out = io.StringIO()
    demo.Screen(out).claims([demo.Claim("the tool ran once", 1, 2)])
    assert " ".join(out.getvalue().split()) == "NO the tool ran once -- promised 1, seen 2"


def test_the_picture_shows_what_the_demo_says_now(tmp_path: Path):
    again = tmp_path / "recovery.svg"
    done = in_a_pipe("-m", "docs.record", str(again))
    assert done.returncode == 0, done.stdout + done.stderr
    assert again.read_text("utf-8") == PICTURE.read_text("utf-8")
    assert ElementTree.parse(again).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert again.read_text("utf-8").count("://") == 1, "it fetches nothing from anywhere"
