"""Scenarios: callers beside each other, callers who give up, callers who watch."""

from __future__ import annotations

from benchmarks.scenarios.scenario import scenario
from benchmarks.scenarios.stage import PROMPT, Broken, Stage
from toolkeep.testing.script import Behaviour, Rule

_USERS = 30
_STEPS, _GAP = 4, 0.3
_NOTICE = 3.0
"""Seconds for a cancellation to be heard of."""


@scenario(
    "of four calls in flight, one loses its connection",
    f"the one ran once, and its caller is told within {PROMPT:.0f} s; the other three have their"
    " answers; no caller's task is cancelled; the next call has its answer",
)
async def siblings_of_a_fault(stage: Stage) -> None:
    await stage.ready()
    lost = Rule(tool="record", times=1, do=Behaviour(drop="after_run", reset=True))
    await stage.server.script(lost)
    slow = [stage.start("slow", seconds=1.0, key=f"slow-{number}") for number in range(3)]
    await stage.server.requests("tools/call", "slow", at_least=3)
    (fault,) = await stage.outcomes([stage.start("record", key="key")])
    stage.judge_refusal(fault)
    for told in await stage.outcomes(slow):
        stage.require(told.good, f"a call beside it: {told}")
    for number in range(3):
        await stage.ran(f"slow-{number}")
    await stage.ran("key")
    await stage.goes_on()


@scenario(
    "of four calls in flight, one has its answer replaced by HTML",
    f"the one's caller is told within {PROMPT:.0f} s; the other three have their answers, and so"
    " has the next call",
)
async def siblings_of_a_page(stage: Stage) -> None:
    await stage.ready()
    page = Behaviour(status=200, body="<html/>", content_type="text/html", run=False)
    await stage.server.script(Rule(tool="record", times=1, do=page))
    slow = [stage.start("slow", seconds=0.5, key=f"slow-{number}") for number in range(3)]
    await stage.server.requests("tools/call", "slow", at_least=3)
    (fault,) = await stage.outcomes([stage.start("record", key="key")])
    stage.judge_refusal(fault)
    for told in await stage.outcomes(slow):
        stage.require(told.good, f"a call beside it: {told}")
    await stage.goes_on()


@scenario(
    "a tool never answers, and a call is granted 2 s",
    f"the caller is told within {PROMPT:.0f} s; a call beside it has its answer, and so has the"
    " next",
)
async def timeout(stage: Stage) -> None:
    await stage.ready(timeout=2.0)
    await stage.server.script(Rule(tool="record", times=1, do=Behaviour(hang=True)))
    hanging = stage.start("record", key="key")
    await stage.server.requests("tools/call", "record", at_least=1)
    (beside,) = await stage.outcomes([stage.start("slow", seconds=1.0)])
    (told,) = await stage.outcomes([hanging])
    stage.require(told.what == "error" or told.failed, f"the call: {told}")
    stage.require(told.seconds < PROMPT, f"with 2 s granted: told after {told.seconds:.1f} s")
    stage.require(beside.good, f"a call beside it: {beside}")
    await stage.ran("key")
    stage.note(f"told after {told.seconds:.1f} s: {told}")
    await stage.goes_on()


@scenario(
    "the caller cancels a call in flight",
    f"it ends as cancelled within {PROMPT / 2} s, the server is told within {_NOTICE:.0f} s,"
    " nothing is sent again, the next call has its answer",
    encoding="sse",
)
async def cancelled_by_its_caller(stage: Stage) -> None:
    await stage.ready()
    going = stage.start("slow", seconds=30, key="key")
    await stage.server.requests("tools/call", "slow", at_least=1)
    told = await stage.cancel(going)
    stage.require(told.what == "cancelled", f"the call: {told}")
    stage.require(told.seconds < PROMPT / 2, f"cancelled only after {told.seconds:.1f} s")
    await _server_is_told(stage)
    await stage.ran("key")
    await stage.goes_on()


async def _server_is_told(stage: Stage) -> None:
    """A closed stream is a cancellation in the modern era, and none in the legacy one."""
    for count in (1, 2):
        try:
            heard = await stage.server.cancelled(at_least=count, within=_NOTICE)
        except TimeoutError:
            break
        if stage.era == "modern" or any(each.how == "notification" for each in heard):
            return
    raise Broken(f"the server was not told within {_NOTICE:.0f} s")


@scenario(
    f"a tool reports {_STEPS} steps, {_GAP} s apart",
    "each step is reported, in order, as it happens",
    encoding="sse",
)
async def progress_as_it_happens(stage: Stage) -> None:
    await stage.ready()
    going = stage.start("steps", watched=True, count=_STEPS, gap=_GAP)
    (told,) = await stage.outcomes([going])
    stage.require(told.good, f"the call: {told}")
    seen = [value for value, _ in told.steps]
    stage.require(seen == list(range(1, _STEPS + 1)), f"steps seen: {seen}")
    early = told.steps[0][1]
    stage.require(early > 2 * _GAP, f"the first was told {early:.2f} s before the answer")


@scenario(
    f"{_USERS} callers at once, each with a header of its own",
    "every request carries the header of its own caller, if a call can bring one",
)
async def headers_of_each_call(stage: Stage) -> None:
    await stage.ready()
    users = [f"user-{number}" for number in range(_USERS)]
    going = [stage.start("record", headers={"x-user": user}, key=user) for user in users]
    for told in await stage.outcomes(going):
        stage.require(told.good, f"a call: {told}")
    carried = {
        str(call.body["params"]["arguments"]["key"]): call.headers.get("x-user")
        for call in await stage.sent("tools/call", "record")
    }
    wrong = {user: carried.get(user) for user in users if carried.get(user) != user}
    for user, other in wrong.items():
        raise Broken(f"{len(wrong)} of {_USERS} calls; that of {user} with {other!r}")


ALL = (
    *(siblings_of_a_fault, siblings_of_a_page, timeout, cancelled_by_its_caller),
    *(progress_as_it_happens, headers_of_each_call),
)
