"""`toolkeep.blocking.Runtime`: the same runtime, for threads without an event loop.

The server lives in the test's loop, and so the runtime is used from other threads, as it is meant.
"""

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.runtime._blocking import LONG, config_of, elsewhere, portals
from toolkeep import (
    CallContext,
    CallRejected,
    ConfigError,
    InvalidArguments,
    ServerUnavailable,
    ToolkeepError,
    UnknownTool,
    WrongLoop,
    blocking,
)
from toolkeep import (
    Runtime as AsyncRuntime,
)
from toolkeep.blocking import Runtime
from toolkeep.errors import Delivery
from toolkeep.events import Event, Started
from toolkeep.testing import Behaviour, Rule, ScriptedServer


@pytest.mark.requirement("A6")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_runtime_without_a_loop_does_what_the_other_does(era: Any):
    async with ScriptedServer.local(era=era) as server:

        def work() -> tuple[Any, ...]:
            with Runtime.open(config_of(kit=server)) as runtime:
                called = runtime.call("kit.echo", {"text": "a"}).text
                (echo,) = runtime.resolve(["echo"], CallContext(principal="ada"))
                seen = runtime.catalogue_for(CallContext(principal="ada"))
                read = runtime.request("kit", "tools/list")
                return (
                    called,
                    echo.call({"text": "b"}).text,
                    echo.with_headers({"x-a": "1"}).call({"text": "c"}).text,
                    seen.tool("echo").name,
                    len(read["tools"]) == len(runtime.catalogue) == runtime.servers[0].tools,
                    runtime.stats.tool("kit", "echo").calls,
                    runtime.refresh("kit").tool("kit.echo").tool,
                    runtime.summary(),
                )

        done = await elsewhere(work)
    assert done[:-1] == ("a", "b", "c", "kit.echo", True, 3, "echo")
    assert done[-1].startswith("1/1 servers healthy, ")
    assert portals() == []


@pytest.mark.requirement("A6")
async def test_servers_come_and_go():
    async with ScriptedServer.local() as one, ScriptedServer.local() as two:

        def work() -> list[str]:
            with Runtime.open(config_of(one=one)) as runtime:
                runtime.add({"name": "two", "url": two.url})
                said = [runtime.call("two.echo", {"text": "two"}).text]
                runtime.remove("one")
                said += [server.name for server in runtime.servers]
                edit = runtime.reload(config_of(three=one))
                runtime.reconnect(failed_only=False)
                runtime.forget("ada")
                said += [*edit.removed, *(spec.name for spec in edit.added)]
                return [*said, runtime.call("three.echo", {"text": "three"}).text]

        assert await elsewhere(work) == ["two", "two", "one", "three", "three"]


def test_nothing_that_the_other_runtime_offers_is_missing():
    renamed = {"aclose": "close"}
    offered = {name for name in dir(AsyncRuntime) if not name.startswith("_")}
    # These live in the event loop, and are reached there: see `run`.
    offered -= {"component", "forward", "shared_state"}
    assert {renamed.get(name, name) for name in offered} | {"run"} == {
        name for name in dir(Runtime) if not name.startswith("_")
    }
    for name in offered - set(renamed):
        ours, theirs = getattr(Runtime, name), getattr(AsyncRuntime, name)
        if callable(ours):
            wanted = inspect.signature(theirs).parameters.values()
            assert [*inspect.signature(ours).parameters.values()] == [*wanted], name
            assert not inspect.iscoroutinefunction(ours)


@pytest.mark.requirement("A6")
async def test_many_threads_use_it_at_once_and_one_session():
    async with ScriptedServer.local(era="legacy") as server:

        def work() -> list[str]:
            with Runtime.open(config_of(kit=server)) as runtime, ThreadPoolExecutor(8) as pool:

                def call(number: int) -> str:
                    return runtime.call("kit.echo", {"text": str(number), "key": f"n{number}"}).text

                return list(pool.map(call, range(80)))

        assert await elsewhere(work) == [str(number) for number in range(80)]
        ledger = await server.ledger()
        assert ledger == {f"n{number}": 1 for number in range(80)}
        assert len(await server.requests("initialize")) == 1


@pytest.mark.requirement("A6")
async def test_errors_are_those_of_the_other_runtime():
    async with ScriptedServer.local() as server:
        await server.script(
            Rule(do=Behaviour(error={"code": -32000, "message": "no"}), tool="record")
        )

        def failure(runtime: Runtime, *call: Any, **options: Any) -> ToolkeepError:
            with pytest.raises(ToolkeepError) as caught:
                runtime.call(*call, **options)
            return caught.value

        def work() -> list[ToolkeepError]:
            with Runtime.open(config_of(kit=server)) as runtime:
                return [
                    failure(runtime, "kit.nonesuch"),
                    failure(runtime, "kit.echo", {}),
                    failure(runtime, "kit.record"),
                    failure(runtime, "kit.slow", LONG, timeout=0.2),
                ]

        found = await elsewhere(work)
    assert [type(error) for error in found[:3]] == [UnknownTool, InvalidArguments, CallRejected]
    assert isinstance(found[3], TimeoutError)
    assert [error.delivery for error in found[2:]] == [Delivery.ANSWERED, Delivery.UNKNOWN]


def refusals(runtime: Runtime) -> list[Callable[[], object]]:
    return [
        runtime.connect,
        lambda: runtime.call("kit.echo", {"text": "a"}),
        lambda: runtime.resolve(["echo"]),
        runtime.stream("kit.echo", {"text": "a"}).__enter__,
        runtime.close,
    ]


async def test_a_thread_that_runs_a_loop_is_sent_to_the_other_runtime():
    async with ScriptedServer.local() as server:
        runtime = Runtime(config_of(kit=server))
        with pytest.raises(WrongLoop, match=r"toolkeep\.Runtime"):
            runtime.connect()
        assert portals() == []
        await elsewhere(runtime.connect)
        for refused in refusals(runtime):
            with pytest.raises(WrongLoop):
                refused()
        await elsewhere(runtime.close)
        assert await server.ledger() == {}


async def test_what_is_called_back_cannot_use_the_runtime_and_hangs_nobody():
    async with ScriptedServer.local() as server:
        runtime, refused = Runtime(config_of(kit=server)), list[BaseException]()

        def observer(event: Event) -> None:
            if isinstance(event, Started):
                with pytest.raises(WrongLoop) as caught:
                    runtime.call("kit.echo", {"text": "again"})
                refused.append(caught.value)

        def work() -> str:
            with runtime, closing(runtime.observe(observer)):
                return runtime.call("kit.echo", {"text": "a"}).text

        assert await elsewhere(work) == "a"
        assert len(refused) == 1
        assert await server.ledger() == {"echo": 1}


async def test_it_is_opened_and_closed_by_hand_as_often_as_one_likes():
    async with ScriptedServer.local(era="legacy") as server:
        runtime = Runtime(config_of(kit=server))

        def work() -> None:
            runtime.close()
            for _ in range(2):
                runtime.connect()
                runtime.connect()
                assert portals() == ["toolkeep-runtime"]
                assert runtime.call("kit.echo", {"text": "a"}).text == "a"
                runtime.close()
                runtime.close()
                assert portals() == []
                with pytest.raises(ServerUnavailable):
                    runtime.call("kit.echo", {"text": "a"})
                with pytest.raises(ServerUnavailable):
                    runtime.stream("kit.echo", {"text": "a"})

        await elsewhere(work)
        seen = await server.requests()
        assert sum(record.http_method == "DELETE" for record in seen) == 2


async def test_an_opening_that_fails_leaves_no_thread_behind():
    async with ScriptedServer.local() as server:
        gone = config_of(kit=server)

    def work() -> None:
        with pytest.raises(ServerUnavailable):
            Runtime(gone, strict=True).connect()
        with pytest.raises(ConfigError):
            Runtime({"mcpServers": {"bad": {"url": 1}}}).connect()

    await elsewhere(work)
    assert portals() == []


def test_functions_join_and_tools_are_blocking_tools():
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    with Runtime.open([], functions=[shout]) as runtime:
        (tool,) = runtime.resolve(["shout"])
        assert isinstance(tool, blocking.Tool)
        assert tool.call({"text": "a"}).text == "A"
        assert "shout" in repr(tool)
