"""`toolkeep check`: servers that are programs, and programs that are no servers."""

import contextlib
import sys

import pytest

from tests.cli.helpers_checking import Found, Seeded, told_twice
from tests.cli.helpers_running import Home
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("O2")

FAULTS = [
    Seeded("absent", "command", "command-missing", "'no-such-program'", "Install it"),
    Seeded("slip", "command", "command-missing", "'pyhton3'", "Did you mean 'python3'"),
    Seeded("line", "command", "command-is-shell", "contains arguments", "'args': ['-m', 'x']"),
    Seeded("pipe", "command", "command-is-shell", "shell syntax", "'sh', 'args': ['-c'"),
    Seeded("flat", "command", "not-executable", "./flat.py", "chmod +x"),
    Seeded("homeless", "command", "bad-configuration", "no directory", "'cwd'"),
    Seeded("npx", "process", "program-exits", "code 7 before it was ready", "by hand"),
    Seeded("exits", "process", "program-exits", "code 3 before it was ready", "last output"),
    Seeded("killed", "process", "program-exits", "killed by signal 9", "by hand"),
]


@pytest.fixture(scope="module")
async def told(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, str]:
    home = Home(tmp_path_factory.mktemp("programs"))
    (home.path / "flat.py").write_text("print('hello')\n")
    npx = home.path / "bin" / "npx"
    npx.parent.mkdir()
    npx.write_text("#!/bin/sh\nexit 7\n")
    npx.chmod(0o755)
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        noisy = await enter(ScriptedServer.stdio(stdout_noise="Ready to serve!\n"))
        last_words = "line one\nFATAL: the database is not there\n"
        exits = await enter(ScriptedServer.stdio(exit_at_start=3, stderr=last_words))
        specs = {
            "absent": {"command": "no-such-program"},
            "slip": {"command": "pyhton3"},
            "line": {"command": "python3 -m x"},
            "pipe": {"command": "cat notes | server"},
            "flat": {"command": "./flat.py"},
            "homeless": {"command": sys.executable, "cwd": "nowhere"},
            "npx": {"command": "npx", "args": ["a-server"], "env": {"PATH": str(npx.parent)}},
            "exits": exits.spec,
            "killed": {"command": sys.executable, "args": ["-c", dies]},
            "noisy": noisy.spec,
        }
        return await told_twice(home, "-c", home.configure(specs))


@pytest.mark.parametrize("seeded", FAULTS, ids=str)
def test_a_fault_of_a_program_is_named_with_its_cause_and_its_remedy(
    told: tuple[Found, str], seeded: Seeded
):
    seeded.assert_in(*told)


def test_the_last_output_of_a_program_that_exits_is_shown(told: tuple[Found, str]):
    found, said = told
    assert "FATAL: the database is not there" in found.of("exits").failure["cause"]
    assert "FATAL: the database is not there" in " ".join(said.split())


def test_a_program_that_prints_to_its_standard_output_is_found_out_although_it_works(
    told: tuple[Found, str],
):
    found, said = told
    noisy = found.of("noisy")
    assert set(noisy.states.values()) == {"ok"}
    (warning,) = (one for one in noisy.findings if one["state"] == "warning")
    assert (warning["step"], warning["fault"]) == ("handshake", "stdout-noise")
    assert "'Ready to serve!'" in warning["cause"]
    assert "standard error" in warning["remedy"]
    assert "[stdout-noise]" in said


def test_a_question_that_nobody_could_answer_is_warned_of(told: tuple[Found, str]):
    npx = told[0].of("npx")
    assert npx.warnings == ["unwise-configuration"]
    (warning,) = (one for one in npx.findings if one["state"] == "warning")
    assert "-y" in warning["remedy"]
