"""The audit stream: what it says, and what becomes of it when nothing can be written."""

import asyncio
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkeep.config.gateway import Audit
from toolkeep.errors import (
    CallNotDelivered,
    CallOutcomeUnknown,
    ConfigError,
    Delivery,
    InvalidArguments,
    NotPermitted,
    UnknownTool,
)
from toolkeep.gateway import audit as module
from toolkeep.gateway.audit import AuditEntry, AuditLog, call_outcome
from toolkeep.results import CallResult

pytestmark = pytest.mark.requirement("W5")

BOUND = 10.0


def entry(tool: str = "search", **more: Any) -> AuditEntry:
    right: dict[str, Any] = {"principal": "alice", "method": "tools/call", "outcome": "ran"}
    return AuditEntry(**{**right, "duration": 0.25, "server": "files", "tool": tool, **more})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    """For what a thread does."""
    until = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


class Gate:
    """A stream that can be held up, or made to fail."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.open, self.reached = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def write(self, text: str) -> None:
        self.reached.set()
        assert self.open.wait(BOUND)
        if self.error is not None:
            raise self.error
        self.written += text.splitlines()

    def flush(self) -> None: ...


def test_a_line_says_who_did_what_and_how_it_ended(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.record(entry(profile="ops", request_id=7, time=1_700_000_000.5))
    log.record(entry(principal=None, outcome="did not run", error="NotPermitted", tool=""))
    log.close()
    first, second = lines(tmp_path / "audit.jsonl")
    assert first == {
        "time": 1_700_000_000.5,
        "principal": "alice",
        "profile": "ops",
        "method": "tools/call",
        "server": "files",
        "tool": "search",
        "outcome": "ran",
        "duration": 0.25,
        "request_id": "7",
    }
    assert (second["principal"], second["outcome"]) == (None, "did not run")
    assert second["error"] == "NotPermitted"


def test_arguments_are_written_only_when_asked_for(tmp_path: Path) -> None:
    for wanted in (False, True):
        path = tmp_path / f"{wanted}.jsonl"
        log = AuditLog(path, arguments=wanted)
        log.record(entry(arguments={"query": "pin 1234"}))
        log.record(entry(arguments={"query": "x" * 100_000}))
        log.record(entry(arguments={"query": object()}))
        log.close()
        assert ("pin 1234" in path.read_text()) is wanted
        assert len(lines(path)) == 3
        assert path.stat().st_size < 10_000


@pytest.mark.requirement("H6")
def test_the_entry_hides_arguments_from_logs() -> None:
    assert "1234" not in repr(entry(arguments={"pin": 1234}))


def test_foreign_names_cannot_forge_a_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.record(entry('x"}\n{"principal": "root', principal="a\nb\ud800" + "c" * 1000))
    log.close()
    (found,) = lines(tmp_path / "audit.jsonl")
    assert found["tool"].startswith("'x")
    assert len(found["principal"]) < 300


def test_the_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(2):
        log = AuditLog(path)
        log.record(entry(f"tool{number}"))
        log.close()
    assert [one["tool"] for one in lines(path)] == ["tool0", "tool1"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_rotated_file_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.record(entry("before"))
    wait_for(lambda: path.stat().st_size > 0)
    path.rename(tmp_path / "audit.1")
    log.record(entry("after"))
    log.close()
    assert [one["tool"] for one in lines(path)] == ["after"]
    assert [one["tool"] for one in lines(tmp_path / "audit.1")] == ["before"]


def test_several_processes_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    program = (
        "import sys; from toolkeep.gateway.audit import *\n"
        f"log = AuditLog({str(path)!r})\n"
        "for n in range(500):\n"
        "    log.record(AuditEntry(principal=sys.argv[1], method='m', outcome='ran', duration=n))\n"
        "log.close()"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "abc"]
    assert [one.wait(30) for one in running] == [0, 0, 0]
    found = lines(path)
    assert sorted(one["principal"] for one in found) == sorted("abc" * 500)


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        AuditLog(tmp_path / "missing" / "audit.jsonl")
    assert caught.value.key == "gateway.audit.file"
    assert "No such file" in str(caught.value)


async def test_recording_does_not_wait_for_the_sink() -> None:
    gate = Gate()
    log = AuditLog(gate)
    log.record(entry("first"))
    assert await asyncio.to_thread(gate.reached.wait, BOUND)
    for number in range(100):  # the writer is stuck; this returns nevertheless
        log.record(entry(f"tool{number}"))
    assert (gate.written, log.dropped) == ([], 0)
    gate.open.set()
    await asyncio.to_thread(log.close)
    assert len(gate.written) == 101


def test_entries_beyond_the_buffer_are_dropped_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    gate = Gate()
    log = AuditLog(gate)
    log.record(entry("first"))
    assert gate.reached.wait(BOUND)
    for number in range(25):
        log.record(entry(f"tool{number}"))
    assert log.dropped == 15
    assert len([one for one in caplog.records if "dropped" in one.message]) == 1
    gate.open.set()
    log.close()
    told = [json.loads(one) for one in gate.written]
    assert [one["dropped"] for one in told if "dropped" in one] == [15]
    assert [one["tool"] for one in told if "tool" in one][-1] == "tool9"


def test_the_buffer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 5_000)
    gate = Gate()
    log = AuditLog(gate, arguments=True)
    log.record(entry("first"))
    assert gate.reached.wait(BOUND)
    for _ in range(5):
        log.record(entry(arguments={"text": "x" * 2000}))
    assert log.dropped == 3
    gate.open.set()
    log.close()


def test_a_sink_that_fails_for_a_while_costs_entries_and_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY", 0.01)
    gate = Gate()
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    log = AuditLog(gate)
    log.record(entry("lost"))
    wait_for(lambda: log.dropped == 1)
    gate.error = None
    log.record(entry("kept"))
    log.close()
    told = [json.loads(one) for one in gate.written]
    assert [one["dropped"] for one in told if "dropped" in one] == [1]
    assert [one["tool"] for one in told if "tool" in one] == ["kept"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_full_disk_does_not_stop_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog("/dev/full")
    log.record(entry())
    wait_for(lambda: log.dropped == 1)
    log.close()
    assert "No space left on device" in caplog.text


def test_closing_is_bounded_when_the_sink_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.1)
    gate = Gate()
    log = AuditLog(gate)
    for number in range(3):
        log.record(entry(f"tool{number}"))
    assert gate.reached.wait(BOUND)
    log.close()
    assert log.dropped >= 1 or not gate.written
    log.record(entry("too late"))
    gate.open.set()


def test_a_log_that_was_never_used_can_be_closed(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").close()
    AuditLog(io.StringIO()).close()


def test_the_configuration_chooses_the_sink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for settings in (Audit(file="-"), Audit(file=str(tmp_path / "a"), arguments=True)):
        log = AuditLog.of(settings)
        log.record(entry(arguments={"a": 1}))
        log.close()
    assert '"tool": "search"' in capsys.readouterr().err
    assert lines(tmp_path / "a")[0]["arguments"] == {"a": 1}


OUTCOMES = [
    (CallResult({"content": []}, "files", "search"), "ran"),
    (CallResult({"content": [], "isError": True}, "files", "search"), "tool error"),
    (CallOutcomeUnknown("x", server="s", tool="t", delivery=Delivery.UNKNOWN), "unknown"),
    (CallNotDelivered("x", server="s", tool="t", delivery=Delivery.NOT_SENT), "did not run"),
    (InvalidArguments("x", server="s", tool="t"), "did not run"),
    (NotPermitted("x"), "did not run"),
    (UnknownTool("x"), "did not run"),
    (asyncio.CancelledError(), "unknown"),
    (RuntimeError("x"), "unknown"),
]


@pytest.mark.parametrize(("ended", "outcome"), OUTCOMES, ids=lambda one: type(one).__name__)
def test_the_outcome_is_that_of_the_call(ended: Any, outcome: str) -> None:
    assert call_outcome(ended) == outcome
