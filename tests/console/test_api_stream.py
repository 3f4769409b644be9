"""The event stream: it goes on where it was, tells gaps honestly, and stays bounded in a flood."""

import asyncio
import gc
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from yarl import URL

from tests.console.viewer import BOUND, Follower, Viewer, browser, following, viewing
from toolkeep import CallContext, CallResult, ConfigError, Runtime
from toolkeep.console.recorder import MAX_CALLS, MAX_CHANGES_AT_ONCE, MAX_VALUES, Recorder
from toolkeep.events import Completed, InputNeeded, Log, Progress, ServerAdded, Started
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.timeout(60)

HOSTILE = "<script>alert(1)</script>\u202egnp.exe\x1b[31m\ud800"


def finished(recorder: Recorder, number: int, principal: str | None = None) -> None:
    """A call as the runtime tells it."""
    about: dict[str, Any] = {"server": "kit", "tool": "echo", "call_id": f"call-{number}"}
    result = CallResult({"content": [{"type": "text", "text": "x" * 100}]}, "kit", "echo")
    recorder(Started(arguments={"text": "y" * 100}, principal=principal, **about))
    recorder(Completed(result=result, **about))


async def test_a_stream_goes_on_where_the_last_one_ended():
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        async with following(viewer) as first:
            await runtime.call("kit.add", {"a": 1, "b": 1})
            await first.ended("add")
        await runtime.call("kit.echo", {"text": "meanwhile"})
        async with following(viewer, first.last_id) as second:
            await second.ended("echo")
    hello = second.told[0]
    assert (hello.kind, hello.data["resumed"]) == ("hello", True)
    assert hello.data["process"]["pid"] == os.getpid()
    assert [call["tool"] for call in second.calls.values()] == ["echo"]
    assert not [told for told in second.told if told.kind == "gap"]


async def test_a_viewer_that_was_away_for_too_long_is_told_how_many_calls_it_missed():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        async with following(viewer) as first:
            finished(runtime.component(Recorder), -1)
            await first.ended("echo")
        recorder = runtime.component(Recorder)
        recorder(ServerAdded(server="kit", attempt=1))
        for number in range(MAX_CALLS + 120):
            finished(recorder, number)
        async with following(viewer, first.last_id) as second:
            await second.until(lambda: len(second.calls) == MAX_CALLS)
    (gap,) = [told.data for told in second.told if told.kind == "gap"]
    assert gap == {"missed": 120, "reason": "slow"}
    assert [note["kind"] for note in second.state["notes"]] == ["server_added"]


async def test_calls_while_no_page_was_open_are_a_gap():
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        async with following(viewer) as first:
            await first.until(lambda: first.last_id)
        await left(runtime)
        runtime.component(Recorder).stop()  # as LINGER seconds later
        await runtime.call("kit.echo", {"text": "unseen"})
        async with following(viewer, first.last_id) as second:
            await second.until(lambda: [told for told in second.told if told.kind == "gap"])
            await runtime.call("kit.add", {"a": 1, "b": 1})
            await second.ended("add")
    gap = next(told.data for told in second.told if told.kind == "gap")
    assert gap == {"missed": None, "reason": "away"}
    assert [call["tool"] for call in second.calls.values()] == ["add"]


async def left(runtime: Runtime) -> None:
    """Until the console has noticed that its viewer is gone."""
    recorder = runtime.component(Recorder)
    async with asyncio.timeout(BOUND):
        while "0 viewers" not in repr(recorder):
            await asyncio.sleep(0.01)


async def test_what_changed_in_the_catalogue_while_no_page_was_open_is_dated_as_a_span():
    tool = {"name": "pay", "inputSchema": {"type": "object"}}
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        async with following(viewer):
            pass
        await left(runtime)
        runtime.component(Recorder).stop()
        await server.set_tools([tool])
        await runtime.refresh("kit")
        async with following(viewer):
            (change,) = (await viewer.get("changes")).json["changes"]
    assert (change["change"], change["name"]) == ("added", "kit.pay")
    assert change["since"] <= change["at"]


async def test_another_runtime_at_the_same_address_is_told_as_a_restart():
    token = "the same token for each start"
    async with (
        Runtime.open({}) as runtime,
        viewing(runtime, token=token) as viewer,
        following(viewer) as first,
    ):
        await first.until(lambda: first.last_id)
    async with (
        Runtime.open({}) as runtime,
        viewing(runtime, token=token) as viewer,
        following(viewer, first.last_id) as second,
    ):
        await second.until(lambda: [told for told in second.told if told.kind == "gap"])
    hello, gap = second.told[:2]
    assert hello.data["resumed"] is False
    assert hello.data["process"]["instance"] != first.told[0].data["process"]["instance"]
    assert gap.data == {"missed": None, "reason": "restart"}


async def test_the_stream_says_that_the_runtime_closes_and_ends():
    async with browser() as session:
        async with Runtime.open({}) as runtime:
            server = await runtime.serve_console(0)
            viewer = Viewer.of(session, server)
            await viewer.log_in()
            follower = Follower(viewer)
            await follower.next()
            closing = asyncio.create_task(runtime.aclose())
            await follower.until(lambda: follower.told[-1].kind == "end")
            await closing
        with pytest.raises(OSError, match="onnect"):
            await viewer.get("state")
        await follower.aclose()
    assert follower.told[-1].data == {"reason": "closing"}


async def test_a_console_of_a_closed_runtime_says_so():
    from tests.console.test_api_guard import running
    from toolkeep.console import Console

    runtime = Runtime({})
    async with running(Console(runtime, token="a token")) as url, browser() as session:
        viewer = Viewer(session, url, "a token")
        await viewer.log_in()
        answer = await viewer.get("state")
    assert answer.status == 502
    assert "not open" in answer.json["error"]["message"]


# -- floods and hostile servers -----------------------------------------------------------------


async def test_a_thousand_events_a_second_come_in_few_bounded_batches():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer, following(viewer) as seen:
        recorder, began = runtime.component(Recorder), time.monotonic()
        facts: dict[str, Any] = {"server": "kit", "tool": "steps", "call_id": "one"}
        recorder(Started(**facts))
        for number in range(1000):
            recorder(Progress(progress=number, total=1000, message="x" * 1000, **facts))
            finished(recorder, number)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        await seen.until(lambda: "call-999" in seen.calls)
        took = time.monotonic() - began
    batches = [told.data for told in seen.told if told.kind == "batch"]
    assert len(batches) <= took * 10 + 10
    assert max(len(batch.get("calls", ())) for batch in batches) <= 250
    assert max(len(json.dumps(batch)) for batch in batches) < 500_000
    assert seen.calls["one"]["progress"]["progress"] == 999
    assert len(seen.calls["one"]["progress"]["message"]) < 600


async def test_a_viewer_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolkeep.console.app.STREAM_SECONDS", 0.3)
    monkeypatch.setattr("toolkeep.console.app.UNREAD_SECONDS", 0.2)
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        recorder, address = runtime.component(Recorder), urlsplit(viewer.url)
        cookies = viewer.session.cookie_jar.filter_cookies(URL(viewer.url))
        cookie = "; ".join(f"{one.key}={one.value}" for one in cookies.values())
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            reader.connect(("127.0.0.1", address.port))
            head = f"GET /api/events HTTP/1.1\r\nhost: {address.netloc}\r\ncookie: {cookie}\r\n\r\n"
            reader.sendall(head.encode())
            async with asyncio.timeout(BOUND):
                while not recorder.since:
                    await asyncio.sleep(0.01)
                numbers = itertools.count()
                while "0 viewers" not in repr(recorder):  # more than the sockets hold
                    for number in itertools.islice(numbers, 200):
                        finished(recorder, number, principal="p" * 4000)
                    await asyncio.sleep(0.01)
        assert (await viewer.get("state")).status == 200


async def test_a_deep_question_breaks_no_stream():
    deep: Any = "end"
    for _ in range(3_000):
        deep = {"a": deep}
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer, following(viewer) as seen:
        about: dict[str, Any] = {"server": "s", "tool": "t", "call_id": "q"}
        about |= {"method": "elicitation/create", "params": deep}
        runtime.component(Recorder)(InputNeeded(**about, waits=lambda: True))
        (question,) = await seen.until(lambda: seen.state.get("questions"))
    assert question["tool"] == "t"


async def test_large_arguments_results_and_logs_stay_within_the_bounds():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer, following(viewer) as seen:
        recorder = runtime.component(Recorder)
        consumed = iter([1, 2, 3])
        for number in range(60):
            facts: dict[str, Any] = {"server": "s", "tool": "t", "call_id": f"big-{number}"}
            recorder(Started(arguments={"a": "x" * 900_000, "iterator": consumed}, **facts))
            for _ in range(3):
                recorder(Log(level="info", data=["y" * 100_000] * 3, **facts))
            result = CallResult({"content": [{"type": "text", "text": "z" * 5_000_000}]}, "s", "t")
            recorder(Completed(result=result, **facts))
        kept = sum(call.size for call in recorder.calls.values())
        await seen.until(lambda: "big-59" in seen.calls)
        detail = (await viewer.get("calls/big-59")).json
    assert next(consumed) == 1  # arguments are looked at, not read
    assert 0 < kept <= MAX_VALUES
    assert 0 < len(recorder.calls) < 60
    assert detail["truncated"] is True
    assert max(map(len, viewer.everything)) < 500_000


async def test_hostile_names_and_huge_catalogues_are_data_of_a_bounded_size():
    schema = {"type": "object", "properties": {HOSTILE[:-1]: {"type": "string"}}}
    many = [{"name": f"tool_{i}", "inputSchema": schema} for i in range(9_999)]
    evil = {"name": HOSTILE[:-1], "description": "A" * 1_000_000, "inputSchema": schema}
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
        following(viewer) as seen,
    ):
        await server.set_tools([evil, *many], built_in=False)
        await runtime.refresh("kit")
        await seen.until(lambda: seen.state.get("revision"))
        page = await viewer.get("catalogue?kind=tools&limit=5000")
        found = await viewer.get("catalogue?kind=tools&q=tool_9998")
        item = await viewer.request(
            "GET", "/api/item", params={"kind": "tools", "name": f"kit.{HOSTILE[:-1]}"}
        )
        changes = (await viewer.get("changes?limit=200")).json
        about: dict[str, Any] = {"server": HOSTILE, "tool": HOSTILE, "call_id": HOSTILE}
        runtime.component(Recorder)(Started(arguments={HOSTILE: [HOSTILE]}, **about))
        await seen.until(lambda: [c for c in seen.calls.values() if "script" in c["tool"]])
    assert page.headers["content-type"].startswith("application/json")
    assert (page.json["total"], len(page.json["items"])) == (10_000, 200)
    assert page.json["items"][0]["name"] == f"kit.{HOSTILE[:-1]}"
    assert page.json["items"][0]["description_chars"] == 1_000_000
    assert [one["name"] for one in found.json["items"]] == ["kit.tool_9998"]
    assert item.json["truncated"] is True
    assert len(changes["changes"]) == MAX_CHANGES_AT_ONCE
    assert max(map(len, viewer.everything)) < 1_000_000


async def test_a_deep_result_breaks_nothing():
    deep: Any = "end"
    for _ in range(10_000):
        deep = [deep]
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer, following(viewer) as seen:
        recorder = runtime.component(Recorder)
        about: dict[str, Any] = {"server": "s", "tool": "t", "call_id": "deep"}
        recorder(Started(**about))
        result = CallResult({"structuredContent": deep}, "s", "t")
        recorder(Completed(result=result, **about))
        await seen.until(lambda: seen.calls.get("deep"))
        assert (await viewer.get("calls/deep")).json["verdict"] == "ran"


async def test_questions_are_bounded_and_masked_for_those_who_cannot_answer():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer, following(viewer) as seen:
        recorder = runtime.component(Recorder)
        params = {"message": "Send 500 EUR to my private account?"}
        for _ in range(300):
            event = InputNeeded(
                server="s",
                tool="t",
                call_id="q",
                method="elicitation/create",
                params=params,
                waits=lambda: True,
            )
            recorder(event)
        questions = await seen.until(lambda: seen.state.get("questions"))
        answer = await viewer.post(f"questions/{questions[0]['id']}", {"action": "accept"})
    assert len(questions) <= 100
    assert "private" not in json.dumps(questions)
    assert answer.status == 403


# -- what it costs, and what opens it -----------------------------------------------------------


async def test_nothing_is_observed_while_no_page_is_open():
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        # State is read from snapshots: no call has an observer, and so none of them an event.
        before = observers()
        assert (await viewer.get("state")).status == 200
        assert observers() == before
        await runtime.call("kit.echo", {"text": "x"}, context=CallContext(principal="ada"))
        assert (await viewer.get("state")).json["recording_since"] is None
        assert not runtime.component(Recorder).calls
        async with following(viewer):
            assert observers() == before + 1
        await left(runtime)
        runtime.component(Recorder).stop()
        assert observers() == before
        assert [t for t in asyncio.all_tasks() if "_tick" in repr(t) and not t.cancelling()] == []


def observers() -> int:
    """How many observers there are."""
    from toolkeep._client.observers import Observers

    held = [one for one in gc.get_objects() if isinstance(one, Observers)]
    return sum(len(tuple(one)) for one in held)


async def test_answers_do_not_wait_for_acknowledgements():
    """Without TCP_NODELAY, head and body of each answer lie 40 ms apart."""
    took: list[float] = []
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        for _ in range(15):
            began = time.monotonic()
            await viewer.get("ticks")
            took.append(time.monotonic() - began)
    assert sorted(took)[7] < 0.035


async def test_a_port_that_is_taken_is_an_error_that_says_so():
    async with Runtime.open({}) as first, Runtime.open({}) as second, viewing(first) as viewer:
        port = int(viewer.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            await second.serve_console(port)
        with pytest.raises(ConfigError, match="has a console"):
            await first.serve_console(0)


PROGRAM = """
import asyncio, sys
from toolkeep import Runtime

async def main():
    async with Runtime.open({}) as runtime:
        print("works", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("port", "missing", "said"),
    [
        ("0", "", r"toolkeep console \(pid \d+\): http://127\.0\.0\.1:\d+/#token=[\w-]{40,}"),
        ("nonsense", "", "the console is not served: TOOLKEEP_CONSOLE must be a port"),
        ("0", "starlette", r"pip install 'toolkeep\[console\]'"),
    ],
)
def test_the_environment_opens_a_console_and_never_stops_the_program(
    port: str, missing: str, said: str
):
    block = f"import sys; sys.modules[{missing!r}] = None\n" if missing else ""
    done = subprocess.run(
        [sys.executable, "-c", block + PROGRAM],
        env={**os.environ, "TOOLKEEP_CONSOLE": port},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "works\n"
    assert re.search(said, done.stderr), done.stderr
