"""`aclose` over stdio, HTTP+SSE and in-process: everything goes, promptly, and can come again."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.engine.helpers_programs import program
from tests.engine.helpers_tasks import BOUND, HANDSHAKE, LONG, PROMPT, Took, closing, outcome, until
from tests.engine.helpers_transports import (
    IN_PROCESS,
    SSE,
    STDIO,
    Way,
    every_way,
    over_kit,
    over_stdio,
    serving,
)
from tests.wire.helpers_stdio import TOOLS, spec_of
from toolkeep import (
    CallNotDelivered,
    CallOutcomeUnknown,
    CallResult,
    Client,
    ServerUnavailable,
    ToolkeepError,
    WrongLoop,
)
from toolkeep.config import ServerSpec
from toolkeep.events import Event, Retrying
from toolkeep.state import Entry, MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer
from toolkeep.testing._stdio import is_alive

pytestmark = pytest.mark.requirement("S9")


async def assert_closed(server: Any, client: Client, way: Way) -> None:
    """Nothing is open, and the client says so."""
    assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
    if way.transport == "stdio":
        assert await server.server.processes() == []
    elif way.transport == "sse":
        async with asyncio.timeout(BOUND):
            while await server.server.open_connections():
                await asyncio.sleep(0.005)


@every_way
async def test_closing_frees_all_and_the_next_use_starts_from_scratch(way: Way):
    async with serving(way) as (server, client):
        for round_ in (1, 2, 3):
            assert (await client.call_tool("echo", {"text": "x"})).text == "x"
            assert client.is_initialized
            await client.aclose()
            await assert_closed(server, client, way)
            assert await server.openings() == round_


@every_way
async def test_closing_is_repeatable_also_at_the_same_time_and_when_never_opened(way: Way):
    async with serving(way) as (server, client):
        await client.aclose()
        assert await server.openings() == 0
        await client.connect()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(client.aclose() for _ in range(10)))
            await client.aclose()
        await assert_closed(server, client, way)


@over_kit
async def test_closing_during_the_handshake_is_prompt_and_honest(way: Way):
    async with serving(way) as (server, client):
        await server.server.script(Rule(method=HANDSHAKE[way.era], do=Behaviour(delay=LONG)))
        callers = [asyncio.create_task(client.call_tool("record")) for _ in range(5)]
        await server.server.requests(HANDSHAKE[way.era], at_least=1)
        with Took() as took:
            await asyncio.create_task(client.aclose())
            errors = [await outcome(caller) for caller in callers]
        assert took.seconds < PROMPT
        assert {type(error) for error in errors} == {ServerUnavailable}
        assert await server.openings() == 1
        assert await server.server.requests("notifications/cancelled") == []
        await assert_closed(server, client, way)


@over_stdio
async def test_closing_while_the_process_starts_is_prompt_and_leaves_none(way: Way):
    async with serving(way) as (server, client):
        for pause in (0, 1, 2, 5):
            caller = asyncio.create_task(client.call_tool("record"))
            for _ in range(1 + pause):
                await asyncio.sleep(0)
            with Took() as took:
                await client.aclose()
                error = await outcome(caller)
            assert took.seconds < PROMPT
            assert isinstance(error, ServerUnavailable | CallNotDelivered)
        assert await server.arrived("record") == 0
        await assert_closed(server, client, way)


async def test_closing_during_the_probe_of_a_silent_program_is_prompt():
    async with (
        ScriptedServer.stdio(era="legacy", ignore=["server/discover"]) as server,
        closing(Client({"name": "kit", **server.spec})) as client,
    ):
        caller = asyncio.create_task(client.call_tool("record"))
        await server.requests("server/discover", at_least=1)
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        assert type(await outcome(caller)) is ServerUnavailable
        assert await server.processes() == []


@every_way
@pytest.mark.requirement("P1")
async def test_closing_under_calls_tells_each_that_it_may_have_run(way: Way):
    async with serving(way, {"retry": "always"}) as (server, client):
        await client.connect()
        calls = [asyncio.create_task(client.call_tool("slow", {"seconds": LONG})) for _ in range(5)]
        await server.arrived("slow", at_least=5)
        with Took() as took:
            await client.aclose()
            errors = [await outcome(call) for call in calls]
        assert took.seconds < PROMPT
        assert {type(error) for error in errors} == {CallOutcomeUnknown}
        assert all("the client was closed" in str(error) for error in errors)
        assert await server.executions("slow") == 5
        await assert_closed(server, client, way)


@every_way
async def test_closing_while_a_call_waits_for_its_replay_ends_it(way: Way):
    replaying = asyncio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, Retrying):
            replaying.set()

    spec = {"retry": "always", "max_retries": 9, "breaker_threshold": 0}
    async with serving(way, spec) as (server, client):
        client.observe(watch, listen=False)
        await server.doom("record", "after the run", times=None)
        caller = asyncio.create_task(client.call_tool("record"))
        await asyncio.wait_for(replaying.wait(), BOUND)
        await client.aclose()
        assert type(await outcome(caller)) is CallOutcomeUnknown
        runs = await server.executions("record")
        await assert_closed(server, client, way)
        assert await server.executions("record") == runs


@over_stdio
@pytest.mark.requirement("S16")
async def test_a_program_that_will_not_end_is_ended_with_its_children_in_time(way: Way):
    manners: dict[str, Any] = {"ignore_stdin_end": True, "ignore_sigterm": True, "children": 2}
    spec = {"timeouts": {"close": 0.6}}
    async with serving(way, spec, children_ignore_signals=True, **manners) as (server, client):
        await client.connect()
        family = [*await server.server.processes(), *await server.server.children(at_least=2)]
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        await until(lambda: not any(map(is_alive, family)), "the end of the family")


@every_way
async def test_clients_close_in_any_order_without_harm_to_each_other(way: Way):
    async with serving(way) as (_, first), serving(way) as (_, second):
        await first.connect()
        await second.connect()
        await first.aclose()
        assert (await second.call_tool("echo", {"text": "x"})).text == "x"
        assert (await first.call_tool("echo", {"text": "y"})).text == "y"


# -- one loop, one process ------------------------------------------------------------------------


@every_way
@pytest.mark.requirement("S17")
async def test_a_client_is_of_no_use_in_another_loop(way: Way):
    async with serving(way) as (server, client):
        await client.call_tool("echo", {"text": "x"})

        def elsewhere() -> Any:
            return asyncio.run(outcome(client.call_tool("record")))

        error = await asyncio.wait_for(asyncio.to_thread(elsewhere), BOUND)
        assert type(error) is WrongLoop
        assert await server.executions("record") == 0
        assert (await client.call_tool("echo", {"text": "still"})).text == "still"


def pid() -> int:
    return os.getpid()


@pytest.mark.requirement("S17")
@pytest.mark.parametrize(
    "given", [spec_of(TOOLS), ServerSpec.parse(pid)], ids=["stdio", "in-process"]
)
def test_a_client_can_be_used_in_a_new_loop_once_it_was_closed(given: ServerSpec):
    client = Client(given)

    async def use(*, close: bool) -> CallResult:
        async with asyncio.timeout(BOUND):
            result = await client.call_tool("pid", {})
            if close:
                await client.aclose()
        return result

    assert asyncio.run(use(close=True)).text.isdigit()
    assert asyncio.run(use(close=False)).text.isdigit()
    with pytest.raises(WrongLoop):
        asyncio.run(use(close=False))
    asyncio.run(client.aclose())
    assert asyncio.run(use(close=True)).text.isdigit()


@pytest.mark.requirement("S17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.parametrize("way", [STDIO[1], SSE, IN_PROCESS[1]], ids=str)
async def test_a_forked_process_may_not_use_the_client_and_may_let_go_of_it(way: Way):
    async with serving(way) as (server, client):
        await client.connect()
        child = os.fork()
        if not child:
            os._exit(_in_the_child(client))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.openings() == 1


def _in_the_child(client: Client) -> int:
    """0: refused there, and closed there without harm to the parent's process."""
    signal.alarm(10)
    code = 1
    try:
        asyncio.set_event_loop(None)
        asyncio._set_running_loop(None)
        error = asyncio.run(outcome(client.call_tool("record")))
        asyncio.run(client.aclose())
        code = 0 if isinstance(error, WrongLoop) else 2
    except ToolkeepError:
        code = 3
    return code


STUBBORN = """
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def on_call(told, name):
    os.close(1)
    time.sleep(60)

serve(on_call)
"""
"""Closes its output when it is called, and does not end."""


@pytest.mark.requirement("S16")
async def test_closing_while_the_last_program_ends_starts_no_other(tmp_path: Path):
    started = tmp_path / "started"
    spec = program(STUBBORN, str(started), timeouts={"close": 0.9})
    async with closing(Client(spec)) as client:
        assert type(await outcome(client.call_tool("any"))) is CallOutcomeUnknown
        second = asyncio.create_task(client.call_tool("any"))
        await anyio.wait_all_tasks_blocked()
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        assert isinstance(await outcome(second), CallNotDelivered | ServerUnavailable)
        [first] = started.read_text().split()
        await until(lambda: not is_alive(int(first)), "the end of the first")


class SlowStore(MemoryStore):
    """Lets one wait until it is asked, and says nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.told = asyncio.Event(), asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        self.asked.set()
        await self.told.wait()
        return await super().get(key)


async def test_closing_while_a_store_is_asked_opens_nothing():
    store = SlowStore()
    async with ScriptedServer.local(era="legacy") as server:
        client = Client({"name": "kit", "url": server.url}, state=store)
        opening = asyncio.create_task(client.connect())
        await asyncio.wait_for(store.asked.wait(), BOUND)
        shut = asyncio.create_task(client.aclose())
        await anyio.wait_all_tasks_blocked()
        store.told.set()
        await asyncio.wait_for(shut, BOUND)
        assert isinstance(await outcome(opening), CallNotDelivered | ServerUnavailable)
        assert await server.requests() == []
