"""A program as a server: what is started, with what, and how it ended."""

import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.wire.helpers_stdio import ECHO, ending, line, message, messages, opened, spec_of
from toolkeep import ConfigError
from toolkeep._transport.base import Attempt, WireFault
from toolkeep._transport.stdio import StdioChannel
from toolkeep.config import ServerSpec

LOGGER = "toolkeep.server"


# -- starting -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a program, a text, and a script whose interpreter is missing."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nprint({line(started=True)!r})\n")
    program.chmod(0o755)
    (tmp_path / "text").write_text("hello")
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/nowhere/interpreter\n")
    orphan.chmod(0o755)
    return tmp_path


@pytest.mark.requirement("S16")
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"command": "no-such-program-anywhere"}, "command"),
        ({"command": "./missing"}, "command"),
        ({"command": "./text"}, "command"),
        ({"command": "./orphan"}, "command"),
        ({"command": "."}, "command"),
        ({"command": "./program", "cwd": "missing"}, "cwd"),
        ({"command": "./program", "args": ("a\0b",)}, "args"),
        ({"command": "./program", "args": ("half \ud83d",)}, "args"),
        ({"command": "./program", "env": {"A": "half \ud83d"}}, "env.A"),
        ({"command": "./program", "env": {"A=B": "c"}}, "env.A=B"),
    ],
)
async def test_what_cannot_be_started_is_a_mistake_of_the_configuration(
    place: Path, settings: dict[str, Any], key: str
):
    cwd = str(place / settings.get("cwd", ""))
    channel = StdioChannel(ServerSpec(name="mistaken", **{**settings, "cwd": cwd}))
    with pytest.raises(ConfigError) as caught:
        await channel.open()
    assert (caught.value.server, caught.value.key) == ("mistaken", key)
    assert caught.value.remedy
    await channel.close()


@pytest.mark.requirement("H6", "S16")
async def test_a_whole_command_line_as_the_command_is_a_mistake_that_shows_none_of_it():
    spec = ServerSpec.parse({"command": "npx -y @acme/server --key sk-live-0123456789"})
    assert spec.name == "npx"
    channel = StdioChannel(spec)
    with pytest.raises(ConfigError) as caught:
        await channel.open()
    assert caught.value.key == "command"
    assert "'args'" in caught.value.remedy
    assert "sk-live" not in str(caught.value)
    await channel.close()


async def test_a_program_may_have_blanks_in_its_name(place: Path):
    (place / "my program").symlink_to(place / "program")
    channel = StdioChannel(ServerSpec(name="blank", command="./my program", cwd=str(place)))
    await channel.open()
    try:
        assert await messages(channel, 1) == [message(started=True)]
    finally:
        await channel.close()


async def test_a_directory_of_ours_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    channel = StdioChannel(spec_of(ECHO))
    with pytest.raises(ConfigError) as caught:
        await channel.open()
    assert caught.value.key == "cwd"
    await channel.close()


async def test_having_no_files_left_is_no_mistake_of_the_configuration():
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    channel = StdioChannel(spec_of(ECHO))
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
    try:
        with pytest.raises(WireFault) as caught:
            await channel.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert not caught.value.evidence.sent


@pytest.mark.parametrize(
    ("command", "path"), [("./program", None), ("program", "absolute"), ("program", "relative")]
)
async def test_a_program_is_found_where_the_child_would_find_it(
    place: Path, command: str, path: str | None
):
    places = {None: {}, "absolute": {"PATH": str(place)}, "relative": {"PATH": "/nowhere:."}}
    channel = StdioChannel(
        ServerSpec(name="found", command=command, cwd=str(place), env=places[path])
    )
    await channel.open()
    try:
        assert await messages(channel, 1) == [message(started=True)]
    finally:
        await channel.close()


@pytest.mark.requirement("S16")
async def test_the_environment_is_a_short_list_and_what_is_configured(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OUR_SECRET", "hunter2")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("SHELL", "() { :; }; echo gotcha")
    monkeypatch.delenv("LC_CTYPE", raising=False)
    script = "import json, os; print(json.dumps({'jsonrpc': '2.0', **os.environ}))"
    async with opened(script, env={"TOKEN": "sesame", "HOME": "/elsewhere"}) as channel:
        [found] = await messages(channel, 1)
    assert isinstance(found, dict)
    del found["jsonrpc"]
    found.pop("LC_CTYPE", None)  # Python sets it for itself in the C locale
    allowed = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ"}
    assert set(found) <= {*allowed, "TOKEN"} - {"SHELL"}
    assert (found["TOKEN"], found["HOME"]) == ("sesame", "/elsewhere")
    assert found["TZ"] == "Europe/Berlin"
    assert found["PATH"] == os.environ["PATH"]


async def test_a_server_has_the_usual_answers_to_signals():
    script = """
import json, signal
usual = {n.name: signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)}
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
ignored = int(next(l for l in open("/proc/self/status") if l.startswith("SigIgn")).split()[1], 16)
usual["SIGCHLD"] = not ignored >> signal.SIGCHLD - 1 & 1
print(json.dumps({"jsonrpc": "2.0", "usual": usual, "blocked": blocked}))
"""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))
    try:
        async with opened(script) as channel:
            [found] = await messages(channel, 1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR2,))
    assert isinstance(found, dict)
    assert all(found["usual"].values())
    assert found["blocked"] == []


# -- last words ---------------------------------------------------------------------------------


@pytest.mark.requirement("S16")
async def test_stderr_never_blocks_and_its_end_is_kept(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    script = """
import sys
for n in range(20_000): print("line", n, "with sesame-open", file=sys.stderr)
sys.stderr.write("the last word")
sys.exit(3)
"""
    with caplog.at_level(logging.DEBUG, LOGGER):
        async with opened(script, env={"KEY": "sesame-open"}) as channel:
            assert await ending(channel) == []
            epitaph = await channel.close_reason()
    assert epitaph.exit_code == 3
    first, *_, last = epitaph.stderr.splitlines()
    assert first.startswith("line ")
    assert last == "the last word"
    assert 2_000 < len(epitaph.stderr) <= 4_096
    assert "sesame" not in epitaph.stderr + caplog.text
    assert len(caplog.records) == 20_000
    assert capfd.readouterr().err == ""


async def test_no_line_of_a_secret_is_shown():
    secret = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nAoIBAQC7VJTU\n-----END KEY-----"
    script = "import os, sys; sys.stderr.write(os.environ['KEY'][22:] + '\\n')"
    async with opened(script, env={"KEY": secret}) as channel:
        await ending(channel)
        assert "AoIBAQC7VJTU" not in (await channel.close_reason()).stderr


@pytest.mark.requirement("H6")
@pytest.mark.parametrize("end", ["\\n", " "], ids=["lines", "one line"])
async def test_no_end_of_a_secret_is_left_where_stderr_is_cut(end: str):
    token = "tok-" + "abcdefghijklmnopqrstuvwxyz" * 3
    script = f"import os, sys; sys.stderr.write(f'retry {{os.environ[\"TOKEN\"]}}{end}' * 400)"
    async with opened(script, env={"TOKEN": token}) as channel:
        await ending(channel)
        shown = (await channel.close_reason()).stderr
    assert "retry ***" in shown
    assert not set(shown.split()) - {"retry", "***"}


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--api-key", "sk-live-0123456789"),
        ("--api-key=sk-live-0123456789",),
        ("-e", "API_KEY=sk-live-0123456789"),
        ("--header", "Authorization: Bearer sk-live-0123456789"),
    ],
    ids=str,
)
async def test_what_a_command_line_gives_in_confidence_is_not_shown(arguments: tuple[str, ...]):
    script = "import sys; print(sys.argv); print('usage:', *sys.argv, file=sys.stderr)"
    spec = spec_of(script, *arguments)
    async with opened(script, *arguments) as channel:
        await ending(channel)
        epitaph = await channel.close_reason()
    assert "usage:" in epitaph.stderr
    assert "sk-live" not in epitaph.stderr + epitaph.detail + channel.stray_output
    assert "sk-live" not in spec.model_dump_json() + repr(spec)
    assert spec.args[-len(arguments) :] == arguments


@pytest.mark.requirement("S16")
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("import sys; sys.exit(3)", 3, "code 3"),
        ("", 0, "code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL"),
        ("import os, signal; os.close(1); signal.pause()", None, "still runs"),
    ],
)
async def test_a_channel_says_how_it_ended(script: str, code: int | None, words: str):
    async with opened(script, timeouts={"close": 1.0}) as channel:
        assert await ending(channel) == []
        began = time.monotonic()
        epitaph = await channel.close_reason()
        assert time.monotonic() - began < 2.0
        assert epitaph.exit_code == code
        assert words in epitaph.detail


async def test_a_closed_channel_takes_nothing_and_closes_again():
    async with opened(ECHO) as channel:
        await channel.close()
        with pytest.raises(WireFault) as caught:
            await channel.send(b"{}", Attempt(), {})
        assert not caught.value.evidence.sent
        assert await channel.receive() is None
        assert (await channel.close_reason()).exit_code is None
        await channel.close()


async def test_a_channel_that_was_never_opened_is_closed_all_the_same():
    channel = StdioChannel(spec_of(ECHO))
    await channel.close()
    with pytest.raises(WireFault):
        await channel.send(b"{}", Attempt(), {})
