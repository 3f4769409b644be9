"""The examples run and print what their pages show; pages about settings leave none out."""

import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import EXAMPLES, ROOT, blocks_in
from toolkeep import Client
from toolkeep._transport.subprocess import child_environment
from toolkeep.config import TLS, Egress, ServerSpec, Timeouts

PATIENCE = 30.0
SERVERS = ("serve.py", "notes_server.py", "web_login.py", "console.py")
PROGRAMS = [example for example in EXAMPLES if example.name not in SERVERS]


def name(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def environment() -> dict[str, str]:
    """With the checkout on the path: two examples use benchmarks/scenarios."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}


def output_of(example: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


# -- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", PROGRAMS, ids=name)
def test_an_example_runs_and_prints_what_its_page_shows(example: Path):
    printed = output_of(example)
    shown = [block for block in blocks_in("text") if block.about == f"examples/{example.name}"]
    assert shown, "no page shows what it prints"
    assert [block.text for block in shown] == [printed] * len(shown)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_fits_on_a_page(example: Path):
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to a child")
async def test_the_server_on_a_page_serves_until_it_is_interrupted(tmp_path: Path):
    (shown,) = [block for block in blocks_in("python") if block.about == "serve.py"]
    (tmp_path / "serve.py").write_text(shown.text.replace("port=8000", "port=0"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", str(tmp_path / "serve.py")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        async with Client(said.split()[4].rstrip(".")) as client:
            assert (await client.call_tool("echo", {"text": "hello"})).text == "hello"
        process.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert (process.returncode, rest) == (0, (b"", b""))


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "within"),
    [(ServerSpec, ""), (Timeouts, "timeouts."), (TLS, "tls."), (Egress, "egress.")],
    ids=name,
)
def test_the_page_about_configuration_names_every_setting(model: type[Any], within: str):
    page = (ROOT / "docs" / "how-to" / "configure-a-server.md").read_text(encoding="utf-8")
    groups = {"timeouts", "tls", "egress"}
    settings = [f"`{within}{key}`" for key in model.model_fields if key not in groups]
    assert [setting for setting in settings if setting not in page] == []


def test_the_page_about_configuration_names_every_argument_of_a_client():
    page = (ROOT / "docs" / "how-to" / "configure-a-server.md").read_text(encoding="utf-8")
    arguments = list(inspect.signature(Client).parameters)
    assert [each for each in arguments if f"`{each}`" not in page] == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another list")
def test_the_page_about_programs_names_what_they_inherit(monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "how-to" / "stdio-servers.md").read_text(encoding="utf-8")
    said = page.partition("it inherits")[2].partition("nothing else")[0]
    named = set(re.findall(r"`([A-Z_]+)`", said))
    for variable in named:
        monkeypatch.setenv(variable, "set")
    assert set(child_environment({})) == named
