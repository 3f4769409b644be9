"""No double run: every row of the recovery table, over real sockets, against the rules themselves.

What must happen is computed by `decide`, never written down here; the server's ledger and the
caller's outcome must agree with it. Whatever `decide` says, a tool that may not run twice never
does, and a call that failed harmlessly never ran.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engine.support import PATIENCE, client_for
from tests.engine.troubles import ALWAYS, KEY, NEVER, OWN_TOOLS, SAFETIES, TROUBLES, Safety, Trouble
from toolkeep import (
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallResult,
    Client,
    ToolkeepError,
)
from toolkeep._rules.recovery import ConnectionAction, RetryContext, TransportKind, decide
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.errors import Delivery, Failure, FailureKind
from toolkeep.events import Event, Retrying
from toolkeep.testing import FaultProxy, Rule, ScriptedServer

MAX_REPLAYS = 1
AT_ONCE = 10
"""Cases, each with a server of its own."""


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
    error: type[ToolkeepError] | None
    delivery: Delivery


def expected(case: Case) -> Expected:
    """Walk the rules as a call would: until they say "raise", or the trouble has passed."""
    failure, safety = case.trouble.failure(case.era), case.safety
    already: set[ConnectionAction] = set()
    least = most = 0
    for attempt in itertools.count(1):
        least += case.trouble.runs or 0
        most += 1 if case.trouble.runs is None else case.trouble.runs
        standing = RetryContext(
            transport=TransportKind.REQUEST_RESPONSE,
            policy=safety.policy,
            repeatable=safety.repeatable,
            retries_left=MAX_REPLAYS - (attempt - 1),
            tried=frozenset(already),
        )
        decision = decide(failure, standing, backoff=0.1)
        already.add(decision.action)
        if decision.retry_delay is None:
            return Expected(attempt, (least, most), error_type(failure), failure.delivery)
        if not case.lasting:
            return Expected(attempt + 1, (least + 1, most + 1), None, Delivery.ANSWERED)
    raise AssertionError("unreachable")


def error_type(failure: Failure) -> type[ToolkeepError]:
    if failure.kind is FailureKind.UNAUTHORIZED:
        return AuthNeeded
    return {
        Delivery.NOT_SENT: CallNotDelivered,
        Delivery.REFUSED: CallNotDelivered,
        Delivery.ANSWERED: CallRejected,
        Delivery.UNKNOWN: CallOutcomeUnknown,
    }[failure.delivery]


class Willing:
    """An authorizer that always has another idea."""

    async def headers(self, request: AuthRequest) -> Any:
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return True


async def outcome_of(case: Case) -> tuple[CallResult | ToolkeepError, int]:
    """Make the trouble happen to one call; what came of it, and how often its tool ran."""
    trouble, tool = case.trouble, case.safety.tool
    settings: dict[str, Any] = {
        "max_retries": MAX_REPLAYS,
        "max_result_bytes": 200_000,
        "retry_tools": {ALWAYS: "always", NEVER: "never"},
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
        if not isinstance(event, Retrying):
            return
        if not case.lasting:
            healing.add(asyncio.create_task(proxy.heal()))
        elif case.trouble.fault is not None:
            case.trouble.fault(proxy)

    return on_event


async def called(client: Client, tool: str) -> CallResult | ToolkeepError:
    async with asyncio.timeout(PATIENCE):
        try:
            return await client.call_tool(tool, {"key": KEY})
        except ToolkeepError as failed:
            return failed


async def disagreements(case: Case, turn: asyncio.Semaphore) -> list[str]:
    """Where the world and the rules differ."""
    async with turn:
        outcome, runs = await outcome_of(case)
    rule = expected(case)
    found: dict[str, tuple[object, object]] = {}
    if not rule.runs[0] <= runs <= rule.runs[1]:
        found["runs"] = runs, rule.runs
    if runs > 1 and not case.safety.may_run_twice:
        found["a double run"] = runs, 1
    if isinstance(outcome, CallResult):
        found["an error"] = None, rule.error
        found["attempts"] = outcome.attempts, rule.attempts
    else:
        found["an error"] = type(outcome), rule.error
        found["delivery"] = outcome.delivery, rule.delivery
        if outcome.delivery in (Delivery.NOT_SENT, Delivery.REFUSED):
            found["runs of a call that failed harmlessly"] = runs, 0
        if isinstance(outcome, CallError):
            found["attempts"] = outcome.attempts, rule.attempts
    return [
        f"{case}: {what}: {was}, not {should_be}"
        for what, (was, should_be) in found.items()
        if was != should_be
    ]


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_runs_and_outcome_agree_with_the_rules(trouble: Trouble, era: str):
    ways = itertools.product(("json", "sse"), SAFETIES, (False, True))
    cases = [Case(trouble, era, encoding, safety, lasting) for encoding, safety, lasting in ways]
    turn = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(disagreements(case, turn) for case in cases))
    assert list(itertools.chain.from_iterable(found)) == []
