"""No double run: every row of the recovery table, over real sockets, against the rules themselves.

What must happen is computed by `decide`, never written down here. A `Trouble` says how to make one
row of the table happen, whether the tool runs in an attempt that meets it, and what the wire should
make of it; the server's ledger and the caller's outcome must then agree with the rule.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from mainstay import (
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallResult,
    CallTimedOut,
    Client,
    Delivery,
    Event,
    Failure,
    FailureKind,
    MainstayError,
    Replaying,
)
from mainstay._rules.recovery import Channel, Policy, Standing, Step, decide, may_replay
from mainstay.testing import Behaviour, FaultProxy, Rule, ScriptedServer
from tests.engine.support import PATIENCE, client_for

KEY = "the one call"
MAX_REPLAYS = 1
AT_ONCE = 10
"""Cases, each with a server of its own."""

Kind = FailureKind
NOT_SENT, REFUSED = Delivery.NOT_SENT, Delivery.REFUSED
ANSWERED, UNKNOWN = Delivery.ANSWERED, Delivery.UNKNOWN


@dataclass(frozen=True)
class Safety:
    """One way in which a tool may, or may not, be repeated."""

    tool: str
    policy: Policy
    repeatable: bool


ALWAYS, NEVER = "operator_says_always", "operator_says_never"
SAFETIES = (
    Safety("record", Policy.SAFE, repeatable=False),
    Safety("record_read_only", Policy.SAFE, repeatable=True),
    Safety("record_idempotent", Policy.SAFE, repeatable=True),
    Safety(ALWAYS, Policy.ALWAYS, repeatable=False),
    Safety(NEVER, Policy.NEVER, repeatable=True),
)
OWN_TOOLS = [
    {"name": ALWAYS, "inputSchema": {"type": "object"}},
    {"name": NEVER, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


@dataclass(frozen=True)
class Trouble:
    """How to make one row of the table happen to a call."""

    name: str
    kind: FailureKind
    delivery: Delivery
    do: Behaviour | None = None
    """What the server does to the call …"""
    fault: Callable[[FaultProxy], None] | None = None
    """… or what the proxy in front of it does to the connection."""
    runs: int | None = 0
    """How often the tool runs in an attempt that meets this; None: at most once, nobody knows."""
    modern: tuple[FailureKind, Delivery] | None = None
    """What it means in the modern era, where that differs."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def failure(self, era: str) -> Failure:
        legacy = (self.kind, self.delivery)
        kind, delivery = self.modern if self.modern and era == "modern" else legacy
        wait = (self.do.headers or {}).get("retry-after") if self.do else None
        return Failure(kind, delivery, self.name, retry_after=None if wait is None else float(wait))


def error(code: int, text: str = "no") -> dict[str, Any]:
    return {"code": code, "message": text}


def broken(name: str, runs: int | None, **how: Any) -> Trouble:
    return Trouble(name, Kind.BROKEN, UNKNOWN, Behaviour(**how), runs=runs)


def unreadable(name: str, **how: Any) -> Trouble:
    do = Behaviour(run=True, **how)
    return Trouble(name, Kind.UNREADABLE, UNKNOWN, do, runs=1)


def through_proxy(name: str, fault: Callable[[FaultProxy], None], runs: int | None) -> Trouble:
    return Trouble(name, Kind.BROKEN, UNKNOWN, fault=fault, runs=runs)


SILENCE: dict[str, Any] = {"timeouts": {"silence": 0.3}}
FRESH_SOCKETS: dict[str, Any] = {"keep_alive": 1e-6}
OTHER_ANSWER = '{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}'
TROUBLES = (
    Trouble(
        "connect refused",
        Kind.UNREACHABLE,
        NOT_SENT,
        fault=lambda proxy: proxy.refuse(),
        settings=FRESH_SOCKETS,
    ),
    Trouble("404", Kind.SESSION_LOST, REFUSED, Behaviour(status=404), modern=(Kind.REFUSED, REFUSED)),
    Trouble(
        "400 that names the session",
        Kind.SESSION_LOST,
        REFUSED,
        Behaviour(status=400, error=error(-32000, "no valid session"), error_id="null"),
        modern=(Kind.REJECTED, ANSWERED),
    ),
    Trouble("401", Kind.UNAUTHORIZED, REFUSED, Behaviour(status=401)),
    Trouble("403", Kind.UNAUTHORIZED, REFUSED, Behaviour(status=403)),
    Trouble("429", Kind.THROTTLED, REFUSED, Behaviour(status=429)),
    Trouble(
        "503 with Retry-After",
        Kind.THROTTLED,
        REFUSED,
        Behaviour(status=503, headers={"retry-after": "0"}),
    ),
    Trouble("400", Kind.REFUSED, REFUSED, Behaviour(status=400, body="bad")),
    Trouble("413", Kind.REFUSED, REFUSED, Behaviour(status=413)),
    unreadable("foreign redirect", status=307, redirect="http://elsewhere.invalid/mcp"),
    unreadable("202", status=202, body=""),
    unreadable("HTML", body="<html>", content_type="text/html"),
    unreadable("half a JSON", body='{"jsonrpc":', content_type="application/json"),
    unreadable("an event that is no JSON", body="data: {\n\n", content_type="text/event-stream"),
    unreadable("another's answer", body=OTHER_ANSWER, content_type="application/json"),
    unreadable("oversized", body_bytes=300_000),
    broken("closed before the body", 0, drop="before_body"),
    broken("closed after the body", 0, drop="after_body"),
    broken("reset after the body", 0, drop="after_body", reset=True),
    broken("closed after the run", 1, drop="after_run"),
    broken("reset after the run", 1, drop="after_run", reset=True),
    broken("cut in the answer", 1, drop="mid_answer"),
    broken("reset in the answer", 1, drop="mid_answer", reset=True),
    broken("cut after the head", 1, cut_after=0),
    broken("a stream without an answer", 1, encoding="sse", cut_stream_after_events=0),
    *(broken(f"{status}", 0, status=status) for status in (500, 502, 503, 504)),
    *(broken(f"{status} after the run", 1, status=status, run=True) for status in (500, 502, 504)),
    broken("500 for nobody in particular", 0, status=500, error=error(-32603), error_id="null"),
    Trouble("silence", Kind.BROKEN, UNKNOWN, Behaviour(hang=True), runs=1, settings=SILENCE),
    through_proxy("reset on the way there", lambda proxy: proxy.break_one(KEY.encode()), 0),
    through_proxy("reset at the first byte back", lambda proxy: proxy.reset(), 1),
    through_proxy("reset in the head", lambda proxy: proxy.reset(after_bytes=40), 1),
    through_proxy("cut in the head", lambda proxy: proxy.cut(after_bytes=40), 1),
    through_proxy("cut in the request", lambda proxy: proxy.cut(after_bytes=60, direction="up"), 0),
    Trouble(
        "deaf",
        *(Kind.BROKEN, UNKNOWN),
        fault=lambda proxy: proxy.deaf(),
        runs=None,
        settings=SILENCE,
    ),
    Trouble("an error", Kind.REJECTED, ANSWERED, Behaviour(error=error(-32000))),
    Trouble("an error after the run", Kind.REJECTED, ANSWERED, Behaviour(error=error(-32000), run=True), runs=1),
    Trouble("404 with -32601", Kind.REJECTED, ANSWERED, Behaviour(status=404, error=error(-32601))),
    Trouble("500 with an answer", Kind.REJECTED, ANSWERED, Behaviour(status=500, error=error(-32603))),
    Trouble("-32020", Kind.HEADER_MISMATCH, ANSWERED, Behaviour(error=error(-32020))),
    Trouble("-32022", Kind.VERSION_MISMATCH, ANSWERED, Behaviour(status=400, error=error(-32022))),
)


@dataclass(frozen=True)
class Case:
    trouble: Trouble
    era: Any
    encoding: Any
    safety: Safety
    lasting: bool
    """Whether the trouble goes on, or passes after the first attempt."""

    def __str__(self) -> str:
        how = "lasting" if self.lasting else "passing"
        return f"{self.trouble.name}, {how}, {self.era}, {self.encoding}, {self.safety.tool}"


@dataclass(frozen=True)
class Expected:
    """What the rules say about a case."""

    attempts: int
    runs: tuple[int, int]
    """At least, and at most."""
    error: type[MainstayError] | None
    delivery: Delivery


def expected(case: Case) -> Expected:
    """Walk the rules as a call would: until they say "raise", or the trouble has passed."""
    failure, safety = case.trouble.failure(case.era), case.safety
    already: set[Step] = set()
    least = most = 0
    for attempt in itertools.count(1):
        least += case.trouble.runs or 0
        most += 1 if case.trouble.runs is None else case.trouble.runs
        standing = Standing(
            channel=Channel.REQUESTS,
            policy=safety.policy,
            repeatable=safety.repeatable,
            replays_left=MAX_REPLAYS - (attempt - 1),
            already=frozenset(already),
        )
        decision = decide(failure, standing, backoff=0.1)
        already.add(decision.connection)
        if decision.replay_after is None:
            return Expected(attempt, (least, most), error_type(failure), failure.delivery)
        if not case.lasting:
            return Expected(attempt + 1, (least + 1, most + 1), None, ANSWERED)
    raise AssertionError("unreachable")


def error_type(failure: Failure) -> type[MainstayError]:
    if failure.kind is Kind.UNAUTHORIZED:
        return AuthNeeded
    return {
        NOT_SENT: CallNotDelivered,
        REFUSED: CallNotDelivered,
        ANSWERED: CallRejected,
        UNKNOWN: CallOutcomeUnknown,
    }[failure.delivery]


class Willing:
    """An authorizer that always has another idea."""

    async def headers(self, server: str, principal: str | None, method: str, url: str) -> Any:
        return {}

    async def challenged(self, status: int, headers: Mapping[str, str]) -> bool:
        return True


async def outcome_of(case: Case) -> tuple[CallResult | MainstayError, int]:
    """Make the trouble happen to one call; what came of it, and how often its tool ran."""
    trouble, tool = case.trouble, case.safety.tool
    settings: dict[str, Any] = {
        "max_replays": MAX_REPLAYS,
        "max_result_bytes": 200_000,
        "replay_tools": {ALWAYS: "always", NEVER: "never"},
        **trouble.settings,
    }
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"era": case.era, "encoding": case.encoding, "tools": OWN_TOOLS}
        server = await stack.enter_async_context(ScriptedServer.local(**options))
        proxy = await stack.enter_async_context(FaultProxy.to("127.0.0.1", server.port))
        url = proxy.url() if trouble.fault else server.url
        client = client_for(url, settings, auth=Willing())
        await stack.enter_async_context(aclosing(client))
        await client.list_tools()
        if trouble.do is not None:
            times = None if case.lasting else 1
            await server.script(Rule(tool=tool, times=times, do=trouble.do))
        if trouble.fault is not None:
            trouble.fault(proxy)
            client.observe(again(case, proxy), listen=False)
        outcome = await called(client, tool)
        await proxy.heal()
        return outcome, await server.executions(KEY)


def again(case: Case, proxy: FaultProxy) -> Callable[[Event], None]:
    """While the call waits for its replay: let the trouble pass, or happen anew."""
    healing: set[asyncio.Task[None]] = set()

    def on_event(event: Event) -> None:
        if not isinstance(event, Replaying):
            return
        if not case.lasting:
            healing.add(asyncio.create_task(proxy.heal()))
        elif case.trouble.fault is not None:
            case.trouble.fault(proxy)

    return on_event


async def called(client: Client, tool: str) -> CallResult | MainstayError:
    async with asyncio.timeout(PATIENCE):
        try:
            return await client.call_tool(tool, {"key": KEY})
        except MainstayError as failed:
            return failed


async def disagreements(case: Case, turn: asyncio.Semaphore) -> list[str]:
    """Where the world and the rules differ."""
    async with turn:
        outcome, runs = await outcome_of(case)
    rule = expected(case)
    found: dict[str, tuple[object, object]] = {}
    if not rule.runs[0] <= runs <= rule.runs[1]:
        found["runs"] = runs, rule.runs
    if not may_repeat(case) and runs > 1:
        found["a double run"] = runs, 1
    if isinstance(outcome, CallResult):
        found["an error"] = None, rule.error
        found["attempts"] = outcome.attempts, rule.attempts
    else:
        found["an error"] = type(outcome), rule.error
        found["delivery"] = outcome.delivery, rule.delivery
        if outcome.delivery in (NOT_SENT, REFUSED):
            found["runs of a call that failed harmlessly"] = runs, 0
        if isinstance(outcome, CallError):
            found["attempts"] = outcome.attempts, rule.attempts
    return [
        f"{case}: {what}: {was}, not {should_be}"
        for what, (was, should_be) in found.items()
        if was != should_be
    ]


def may_repeat(case: Case) -> bool:
    """Whether this tool may run twice at all."""
    unknown = Failure(Kind.BROKEN, UNKNOWN, "")
    return may_replay(unknown, case.safety.policy, repeatable=case.safety.repeatable)


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_runs_and_outcome_agree_with_the_rules(trouble: Trouble, era: str):
    ways = itertools.product(("json", "sse"), SAFETIES, (False, True))
    cases = [Case(trouble, era, encoding, safety, lasting) for encoding, safety, lasting in ways]
    turn = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(disagreements(case, turn) for case in cases))
    assert list(itertools.chain.from_iterable(found)) == []
