"""The acts of the demo, in their order. Each makes something happen, and says what must be true."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from examples.demo.claims import Claim
from examples.demo.stage import Stage
from toolkeep import CallContext, CallOutcomeUnknown, CallResult, ToolkeepError
from toolkeep.events import CallEvent, Completed, Disconnected, Event, Progress
from toolkeep.testing import Behaviour, Rule

Act = tuple[str, Callable[[Stage], Awaitable[list[Claim]]]]

CALL = "tools/call"
REOPENED = (CALL, "initialize", "notifications/initialized", CALL)
"""A call whose session is lost: refused, and sent again in a new one."""
STEPS, GAP = 5, 0.15
AT_ONCE = 10
USERS = ("alice", "bob")
PATIENCE = 5.0


async def open_all(stage: Stage) -> list[Claim]:
    await stage.runtime.connect()
    servers, summary = stage.runtime.servers, stage.runtime.summary()
    rows = [(one.name, one.transport, one.era or "", one.protocol_version or "") for one in servers]
    stage.screen.table(("server", "transport", "era", "protocol"), rows)
    lists = [len(await server.requests("tools/list")) for server in stage.servers.values()]
    eras = "how each of them speaks was found out, not configured"
    return [
        Claim(summary, "3/3 servers healthy, 5 tools", summary),
        Claim(eras, ["legacy", "modern", "modern"], [one.era for one in servers]),
        Claim("each was asked for its tools once", [1, 1, 1], lists),
    ]


async def list_and_search(stage: Stage) -> list[Claim]:
    before = [len(await server.requests()) for server in stage.servers.values()]
    names = [tool.name for tool in stage.runtime.catalogue]
    best = (await stage.runtime.search("pay for an order"))[:1]
    after = [len(await server.requests()) for server in stage.servers.values()]
    stage.screen.say(", ".join(names))
    return [
        Claim("searched for 'pay for an order': shop.pay", ["shop.pay"], [t.name for t in best]),
        Claim("0 requests: the lists are here already", before, after),
    ]


async def call(stage: Stage) -> list[Claim]:
    claims: list[Claim] = []
    asked = (("shop.pay", {"order": 1}), ("notes.write", {"text": "paid"}))
    for name, arguments in asked:
        server, tool = stage.servers[name.partition(".")[0]], name.partition(".")[2]
        await stage.new(server)
        outcome = await stage.call(name, **arguments)
        told = f"{name} is answered"
        claims += [
            Claim(told, json.dumps(arguments), _answer(outcome)),
            await stage.ran(server, tool, 0, 1),
            *await stage.cost(server, CALL),
        ]
    return claims


async def watch(stage: Stage) -> list[Claim]:
    await stage.new(stage.reports)
    events: list[CallEvent] = []
    with stage.screen.bar() as step:
        async with stage.runtime.stream("reports.steps", {"count": STEPS, "gap": GAP}) as watched:
            async for event in watched:
                events.append(event)
                if isinstance(event, Progress):
                    step(event.fraction or 0.0, event.message or "")
    steps = [event for event in events if isinstance(event, Progress)]
    early = bool(steps) and events[-1].at - steps[0].at > GAP
    return [
        Claim(f"{STEPS} steps, one event for each", STEPS, len(steps)),
        Claim("the first was here while the tool still had work to do", True, early),
        Claim("the last event is the answer", True, isinstance(events[-1], Completed)),
        *await stage.cost(stage.reports, CALL),
    ]


async def two_users(stage: Stage) -> list[Claim]:
    await stage.new(stage.shop)
    for user in USERS:
        headers = {"Authorization": f"Bearer token-of-{user}"}
        context = CallContext(principal=user, headers=headers)
        await stage.runtime.call("shop.stock", {"item": "tea"}, context=context)
    seen = await stage.new(stage.shop)
    tokens = {f"Bearer token-of-{user}" for user in USERS}
    sessions = {(one.headers.get("authorization"), one.session_id) for one in seen if one.tool}
    nobodys = {one.session_id for one in await stage.shop.requests(CALL, "pay")}
    ids = {id_ for _, id_ in sessions} - nobodys
    methods = [one.rpc_method for one in seen]
    return [
        Claim("each user's token came with that user's call", tokens, {who for who, _ in sessions}),
        Claim("each call used a session of its user's own", len(USERS), len(ids)),
        Claim("2 handshakes, 2 calls", [2, 2], [methods.count("initialize"), methods.count(CALL)]),
    ]


async def forget(stage: Stage) -> list[Claim]:
    before = await stage.shop.executions("pay")
    await stage.new(stage.shop)
    async with stage.listed_again(stage.shop):
        await stage.shop.forget_sessions()
        outcome = await stage.call("shop.pay", order=2)
    return [
        Claim("the next call is answered", '{"order": 2}', _answer(outcome)),
        await stage.ran(stage.shop, "pay", before, 1),
        *await stage.cost(stage.shop, *REOPENED, listed=True),
    ]


async def forget_under_load(stage: Stage) -> list[Claim]:
    before = await stage.shop.executions("pay")
    await stage.new(stage.shop)
    orders = range(3, 3 + AT_ONCE)
    async with stage.listed_again(stage.shop):
        await stage.shop.forget_sessions()
        outcomes = await asyncio.gather(*(stage.call("shop.pay", order=one) for one in orders))
    methods = [one.rpc_method for one in await stage.new(stage.shop)]
    answered = sum(isinstance(outcome, CallResult) for outcome in outcomes)
    return [
        Claim(f"{AT_ONCE} calls at once, {AT_ONCE} answers", AT_ONCE, answered),
        await stage.ran(stage.shop, "pay", before, AT_ONCE),
        Claim("1 handshake for all of them", 1, methods.count("initialize")),
    ]


async def restart(stage: Stage) -> list[Claim]:
    before, sockets = await stage.shop.executions("pay"), await stage.shop.connections()
    await stage.new(stage.shop)
    async with stage.listed_again(stage.shop):
        await stage.shop.restart()
        outcome = await stage.call("shop.pay", order=13)
    opened = await stage.shop.connections() > sockets
    return [
        Claim("the next call is answered by the new process", '{"order": 13}', _answer(outcome)),
        await stage.ran(stage.shop, "pay", before, 1),
        *await stage.cost(stage.shop, *REOPENED, listed=True),
        Claim("on a new TCP connection", True, opened),
    ]


CUT = Behaviour(delay=GAP, drop="after_run", reset=True)


async def cut_side_effect(stage: Stage) -> list[Claim]:
    before = await stage.shop.executions("pay")
    await stage.new(stage.shop)
    await stage.shop.script(Rule(tool="pay", times=1, do=CUT))
    outcome = await stage.call("shop.pay", order=14)
    kind = CallOutcomeUnknown.__name__
    ran = await stage.shop.executions("pay") - before
    return [
        Claim(f"the caller is told {kind}: it may have run", kind, type(outcome).__name__),
        Claim("that is the truth: the shop's ledger has it, once", 1, ran),
        *await stage.cost(stage.shop, CALL),
    ]


async def cut_harmless(stage: Stage) -> list[Claim]:
    before = await stage.shop.executions("stock")
    await stage.new(stage.shop)
    await stage.shop.script(Rule(tool="stock", times=1, do=CUT))
    outcome = await stage.call("shop.stock", item="tea")
    ran = await stage.shop.executions("stock") - before
    return [
        Claim("the caller has its answer", '{"item": "tea"}', _answer(outcome)),
        Claim("it ran twice, which its server calls harmless", 2, ran),
        *await stage.cost(stage.shop, CALL, CALL),
    ]


async def kill(stage: Stage) -> list[Claim]:
    before, starts = await stage.notes.executions("write"), await stage.notes.starts()
    await stage.new(stage.notes)
    async with stage.listed_again(stage.notes):
        await _killed(stage)
        outcome = await stage.call("notes.write", text="back")
    return [
        Claim("the next call is answered", '{"text": "back"}', _answer(outcome)),
        Claim("the program was started once more", 1, await stage.notes.starts() - starts),
        await stage.ran(stage.notes, "write", before, 1),
        *await stage.cost(stage.notes, "server/discover", CALL, listed=True),
    ]


async def _killed(stage: Stage) -> None:
    """Until the runtime has seen it: what is written to a dying program may have run."""
    gone = asyncio.Event()

    def look(event: Event) -> None:
        if isinstance(event, Disconnected) and event.server == "notes":
            gone.set()

    with contextlib.closing(stage.runtime.observe(look)):
        stage.notes.kill()
        async with asyncio.timeout(PATIENCE):
            await gone.wait()


async def figures(stage: Stage) -> list[Claim]:
    rows: list[tuple[str, ...]] = []
    sent: list[int] = []
    for name in stage.servers:
        found = stage.runtime.stats.server(name)
        unknown = found.errors.get("CallOutcomeUnknown/unknown", 0)
        numbers = (found.calls, found.calls - found.failed, found.retries, unknown)
        rows.append((name, *map(str, numbers)))
        sent.append(found.attempts)
    stage.screen.table(("server", "calls", "answered", "sent again", "outcome unknown"), rows)
    arrived = [len(await server.requests(CALL)) for server in stage.servers.values()]
    told = f"{sum(arrived)} calls reached the servers: as many as the statistics say were sent"
    return [Claim(told, sent, arrived)]


def _answer(outcome: CallResult | ToolkeepError) -> str:
    return outcome.text if isinstance(outcome, CallResult) else repr(outcome)


OPEN: Act = ("Open the servers that a configuration describes", open_all)
FORGET: Act = ("The shop forgets its sessions", forget)
RESTART: Act = ("The shop's process is killed and started again", restart)
CUT_PAY: Act = ("The connection is cut while shop.pay runs, which moves money", cut_side_effect)
KILL: Act = ("The program behind notes is killed", kill)

ACTS: tuple[Act, ...] = (
    OPEN,
    ("List the tools, and search them", list_and_search),
    ("Call a tool, over HTTP and over a pipe", call),
    ("Watch a tool at work", watch),
    ("Two users, one server", two_users),
    FORGET,
    (f"It forgets them again, and {AT_ONCE} calls come at once", forget_under_load),
    RESTART,
    CUT_PAY,
    ("The same cut, but shop.stock is marked read-only", cut_harmless),
    KILL,
    ("What the runtime counted", figures),
)
PICTURED: tuple[Act, ...] = (OPEN, FORGET, RESTART, CUT_PAY, KILL)
"""What docs/record.py draws."""
