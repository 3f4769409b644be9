"""`toolkeep watch --events`: what another process does, from the events that it writes down."""

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers_running import COLUMNS, Home
from toolkeep import CallOutcomeUnknown, Runtime
from toolkeep.cli.watch import (
    MAX_CALLS,
    EventFile,
    EventFormatter,
    EventTotals,
    describe_event,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer

NONSENSE = (b"", b"no JSON", b"[1]", b'{"a": 1}', b'{"event": 7, "server": null}', b"\xff")


@contextlib.contextmanager
def writing_down(runtime: Runtime, path: Path) -> Generator[None]:
    with path.open("a") as file:
        told = runtime.observe(lambda event: print(event.to_json(), file=file, flush=True))
        with contextlib.closing(told):
            yield


@pytest.mark.requirement("O2")
async def test_a_call_of_another_process_is_seen_while_it_runs_and_added_up_afterwards(home: Home):
    path = home.path / "events.jsonl"
    async with ScriptedServer.spawn(era="modern", encoding="sse") as shop:
        await shop.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        runtime = Runtime({"mcpServers": {"shop": shop.spec}})
        seen = home.terminal("watch", "--events", "events.jsonl")
        with writing_down(runtime, path):
            async with runtime, seen as terminal:
                steps = {"count": 1000, "gap": 0.05}
                async with runtime.stream("shop.steps", steps) as call:
                    async for _ in call:
                        if "of 1000" in terminal.text:
                            break
                shown = terminal.text
                with pytest.raises(CallOutcomeUnknown):
                    await runtime.call("shop.record")
                await terminal.until("record: failed")
                terminal.type("q")
                watched = await terminal.ended()
        added_up = await home.run("watch", "--events", "events.jsonl", "--once", "--json")
        people = await home.run("watch", "--events", "events.jsonl", "--once")
    assert "shop.steps" in shown
    assert (watched.code, terminal.has_cursor) == (0, True)
    assert all(len(line) <= COLUMNS for line in watched.out.splitlines())
    (server,) = added_up.document["servers"]
    assert (server["name"], server["era"], server["calls"]) == ("shop", "modern", 2)
    assert (server["unknown"], added_up.document["running"]) == (1, [])
    assert people.out.splitlines()[0].split()[:2] == ["server", "era"]


async def test_what_cannot_be_followed_is_usage(home: Home):
    (home.path / "events.jsonl").write_text("")
    missing = await home.run("watch", "--events", "nothing.jsonl")
    device = await home.run("watch", "--events", os.devnull)
    both = await home.run("watch", "--events", "events.jsonl", "--url", "http://127.0.0.1:9/mcp")
    json_twice = await home.run("watch", "--events", "events.jsonl", "--json")
    codes = [one.code for one in (missing, device, both, json_twice)]
    assert codes == [2, 2, 2, 2]


def event(number: int) -> bytes:
    return json.dumps(
        {"event": "server_notification", "server": "s", "method": str(number)}
    ).encode()


def numbers(file: EventFile) -> list[str]:
    return [told["method"] for told in file.read_new() if told["event"] == "server_notification"]


def test_a_file_is_followed_as_it_grows_and_when_it_is_cut_or_replaced(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join((*NONSENSE, event(1), event(2)[:5])))
    with contextlib.closing(EventFile(str(path))) as file:
        assert numbers(file) == ["1"]
        with path.open("ab") as more:
            more.write(event(2)[5:] + b"\n")
        assert numbers(file) == ["2"]
        path.write_bytes(event(3) + b"\n")
        assert numbers(file) == ["3"]
        (tmp_path / "new").write_bytes(event(4) + b"\n")
        os.replace(tmp_path / "new", path)
        assert numbers(file) == ["4"]
        path.unlink()
        assert numbers(file) == []


@pytest.mark.parametrize(
    "told",
    [
        {"event": "progress", "server": "s", "tool": "t", "call_id": "1", "fraction": "much"},
        {"event": "completed", "server": "s", "tool": "t", "result": 7},
        {"event": "failed", "server": "s", "error": None, "at": "noon"},
        {"event": "catalogue_changed", "server": "s", "changes": [], "at": 1e300},
        {"event": "connected", "server": ["s"], "era": "\x1b[2J"},
        {"event": {}, "server": "\x1b[2J"},
        {},
    ],
)
def test_a_line_may_hold_anything_and_nothing_of_it_is_obeyed(told: dict[str, Any]):
    totals, formatter = EventTotals(), EventFormatter(())
    totals.add({"event": "started", "server": "s", "tool": "t", "call_id": "1"})
    totals.add(told)
    assert describe_event(told)
    line = formatter.line(told)
    assert line is not None
    assert (line + str(totals.rows())).isprintable()


def test_calls_that_never_end_are_forgotten_at_last():
    totals = EventTotals()
    for number in range(MAX_CALLS + 5):
        totals.add({"event": "started", "server": "s", "tool": "t", "call_id": str(number)})
    assert len(totals.running) == MAX_CALLS
    assert totals.servers["s"].calls == MAX_CALLS + 5


def test_that_a_server_is_still_not_there_is_told_once():
    formatter = EventFormatter(("s",))
    lost = {"event": "server_lost", "server": "s", "error": {"message": "refused"}, "at": 0.0}
    told = [
        formatter.line(one) for one in (lost, lost, {"event": "server_added", "server": "s"}, lost)
    ]
    assert [line is not None for line in told] == [True, False, True, True]
