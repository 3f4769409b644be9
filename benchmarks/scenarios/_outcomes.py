"""Scenarios: what a caller is told when an answer does not come, or is none."""

from __future__ import annotations

from benchmarks.scenarios._driver import Told
from benchmarks.scenarios.scenario import scenario
from benchmarks.scenarios.stage import PROMPT, NotApplicable, Stage
from toolkeep.testing.script import Behaviour, Rule

_WAIT = 1.0
"""What Retry-After asks for."""
_SOON = f"within {PROMPT:.0f} s"
_PAGE = "<html><body><h1>Please log in</h1></body></html>"


async def _once(stage: Stage, do: Behaviour, *, runs: int, tool: str = "record") -> Told:
    """One call meets with this, in which the tool runs so often; then the client must go on.

    An answer is fine, too, if the tool ran once for it.
    """
    await stage.ready()
    await stage.server.script(Rule(method="tools/call", tool=tool, times=1, do=do))
    told = await stage.call(tool, key="key")
    if not told.good:
        stage.judge_refusal(told)
    await stage.ran("key", 1 if told.good else runs)
    await stage.truthful(told, "key")
    await stage.goes_on()
    return told


@scenario(
    "the connection is reset before the request has arrived",
    "the call ran at most once and the caller is told the truth; the next call has its answer",
)
async def reset_before_it_ran(stage: Stage) -> None:
    await stage.ready(proxied=True)
    stage.proxy.break_one(b"key-of-the-lost")
    told = await stage.call("record", key="key-of-the-lost")
    stage.require(told.what in ("answer", "error"), f"the call: {told}")
    await stage.ran("key-of-the-lost", 1 if told.good else 0)
    await stage.truthful(told, "key-of-the-lost")
    stage.note(f"told: {told}")
    await stage.goes_on()


@scenario(
    "the tool runs, and the connection ends before its answer",
    f"it ran once, and the caller is told of the failure {_SOON}; the next call has its answer",
)
async def answer_lost(stage: Stage) -> None:
    await _once(stage, Behaviour(drop="after_run"), runs=1)


@scenario(
    "the same, with a reset",
    "the same",
)
async def answer_lost_by_a_reset(stage: Stage) -> None:
    await _once(stage, Behaviour(drop="after_run", reset=True), runs=1)


@scenario(
    "the tool runs, and a gateway answers 502",
    f"it ran once, and the caller is told of the failure {_SOON}",
)
async def bad_gateway(stage: Stage) -> None:
    await _once(stage, Behaviour(status=502, run=True, body="bad gateway"), runs=1)


@scenario(
    "the tool runs, and half of its answer arrives (JSON)",
    f"it ran once, and the caller is told of the failure {_SOON}",
)
async def half_an_answer(stage: Stage) -> None:
    await _once(stage, Behaviour(cut_after=20), runs=1)


@scenario(
    "the tool runs, and the stream ends in the middle of its answer (SSE)",
    f"it ran once, and the caller is told of the failure {_SOON}",
    encoding="sse",
)
async def half_a_stream(stage: Stage) -> None:
    await _once(stage, Behaviour(drop="mid_answer"), runs=1)


@scenario(
    "the tool runs, and the stream ends before its answer (SSE)",
    f"it ran once, and the caller is told of the failure {_SOON}",
    encoding="sse",
)
async def stream_without_an_answer(stage: Stage) -> None:
    await _once(stage, Behaviour(drop="after_run"), runs=1)


@scenario(
    "a gateway answers 200 with a page in HTML",
    f"the caller is told of the failure {_SOON}",
)
async def html_answer(stage: Stage) -> None:
    page = Behaviour(status=200, body=_PAGE, content_type="text/html", run=False)
    await _once(stage, page, runs=0)


@scenario(
    "the server answers 503, without Retry-After",
    f"the tool does not run twice, and the caller is told of the failure {_SOON}",
)
async def unavailable(stage: Stage) -> None:
    await _once(stage, Behaviour(status=503, body="try later"), runs=0)


@scenario(
    "the server answers 429 with Retry-After: 1",
    "the call is sent again after a second, and has its answer",
    choice="a client may leave the waiting to its caller, if it passes on the delay",
)
async def too_many_requests(stage: Stage) -> None:
    await stage.ready()
    busy = Behaviour(status=429, headers={"retry-after": str(int(_WAIT))})
    await stage.server.script(Rule(method="tools/call", tool="record", times=1, do=busy))
    await stage.answered("record", key="key")
    await stage.ran("key")
    first, *_, last = [each.at for each in await stage.sent("tools/call", "record")]
    stage.require(last - first >= 0.9 * _WAIT, f"sent again after {last - first:.1f} s")


@scenario(
    "the answer of a tool that is marked read-only is lost after it ran",
    "the call is sent again, and has its answer",
    choice="a client may leave the retry to its caller",
)
async def answer_lost_of_a_read_only_tool(stage: Stage) -> None:
    await stage.ready()
    listed = await stage.tools()
    stage.require("record_read_only" in listed.tools, f"listing: {listed}")
    lost = Rule(tool="record_read_only", times=1, do=Behaviour(drop="after_run"))
    await stage.server.script(lost)
    await stage.answered("record_read_only", key="key")
    stage.note(f"it ran {await stage.server.executions('key')} times")


@scenario(
    "one call was lost before it arrived, another after it ran",
    "the errors, if they say anything about it, say of each whether it ran, or that it is unknown",
)
async def errors_that_tell(stage: Stage) -> None:
    await stage.ready(proxied=True)
    lost = Rule(tool="record", times=1, do=Behaviour(drop="after_run"))
    await stage.server.script(lost)
    after = await stage.call("record", key="ran")
    stage.proxy.refuse()
    stage.proxy.kill_connections()
    before = await stage.call("record", key="never")
    if before.outcome is None and after.outcome is None:
        raise NotApplicable("its errors say nothing about whether a call ran")
    stage.require(after.outcome == "unknown", f"lost after it ran: {after.outcome}")
    stage.require(before.outcome == "not run", f"never delivered: {before.outcome}")


@scenario(
    "a tool fails, as tools do (isError)",
    "the caller reads the tool's own words; the call is not sent again",
)
async def tool_error(stage: Stage) -> None:
    await stage.ready()
    told = await stage.call("fail", message="no paper left", key="key")
    stage.require(told.what == "answer" and told.failed, f"the call: {told}")
    stage.require("no paper left" in told.text, f"the tool's words are lost: {told.text!r}")
    await stage.ran("key")
    await stage.goes_on()


@scenario(
    "an answer of 3 MB arrives on a stream (SSE)",
    "the caller has all of it",
    choice="a client may have a smaller limit, if it can be changed",
    encoding="sse",
)
async def big_answer(stage: Stage) -> None:
    await stage.ready()
    size = 3_000_000
    told = await stage.answered("big", bytes=size)
    stage.require(len(told.text) == size, f"{len(told.text)} of {size} characters")


ALL = (
    *(reset_before_it_ran, answer_lost, answer_lost_by_a_reset, bad_gateway, half_an_answer),
    *(half_a_stream, stream_without_an_answer, html_answer, unavailable, too_many_requests),
    *(answer_lost_of_a_read_only_tool, errors_that_tell, tool_error, big_answer),
)
