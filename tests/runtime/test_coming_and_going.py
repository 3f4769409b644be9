"""Servers come, go and are opened anew while they, and others, are called."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.engine.helpers_rounds import ELICIT
from tests.runtime._life import (
    PATIENCE,
    QUICK,
    Hesitant,
    config_of,
    ended,
    eventually,
    failure_of,
)
from toolkeep import CallContext, CallResult, Runtime, ToolkeepError, UnknownTool
from toolkeep.errors import Delivery
from toolkeep.testing import ScriptedServer

ADA, BOB = CallContext(principal="ada"), CallContext(principal="bob")


def doing(work: Awaitable[CallResult]) -> "asyncio.Task[CallResult]":
    return asyncio.ensure_future(work)


@pytest.mark.requirement("G6")
async def test_servers_come_go_and_reconnect_while_others_are_called():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.local() as other,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        over, sent = asyncio.Event(), list[str]()

        async def caller(number: int) -> None:
            while not over.is_set():
                key = f"{number}-{len(sent)}"
                sent.append(key)
                assert (await runtime.call("kit.record", {"key": key})).text == "recorded"

        callers = [asyncio.create_task(caller(number)) for number in range(10)]
        for round_ in range(3):
            await runtime.add({"name": "other", **other.spec})
            assert (await runtime.call("other.echo", {"text": "a"})).text == "a"
            await runtime.reconnect()
            await runtime.remove("other")
            assert isinstance(
                await failure_of(runtime.call("other.echo", {"text": "a"})), UnknownTool
            ), round_
        over.set()
        assert await ended(*callers) == [None] * 10
        assert await kit.ledger() == dict.fromkeys(sent, 1)
        assert len(await kit.requests("initialize")) == 1


@pytest.mark.requirement("G6")
async def test_reconnecting_all_lets_calls_end_where_they_began():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.stdio() as program,
        Runtime.open(config_of(kit=kit, program=program)) as runtime,
    ):
        held = [
            doing(runtime.call(f"{name}.slow", {"seconds": 60, "key": f"{name}-{n}"}))
            for name in ("kit", "program")
            for n in range(5)
        ]
        await kit.requests(tool="slow", at_least=5)
        await program.requests(tool="slow", at_least=5)
        async with asyncio.timeout(PATIENCE):
            await runtime.reconnect(failed_only=False)
        assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
        await kit.skip_delays()
        await program.skip_delays()
        results = await ended(*held)
        assert [getattr(one, "text", one) for one in results] == ["done"] * 10
        assert len(await kit.requests("initialize")) == 2
        await eventually(lambda: _one_process(program))


async def _one_process(program: Any) -> bool:
    return len(await program.processes()) == 1


async def test_removing_waits_for_nobody_and_harms_no_call():
    hesitant = Hesitant()
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit:
        async with Runtime.open(config_of(kit=kit), elicitation=hesitant) as runtime:
            held = doing(runtime.call("kit.ask", {"requests": {"who": ELICIT}}, context=ADA))
            await hesitant.until(asked=1)
            async with asyncio.timeout(PATIENCE):
                await runtime.remove("kit")
            assert not held.done()
            assert runtime.servers == ()
            assert not runtime.catalogue
            hesitant.go.set()
            assert (await held).text == "1 rounds"
        ends = [one for one in await kit.requests() if one.http_method == "DELETE"]
        assert len(ends) == 2, "its own session, and ada's"


async def test_one_name_is_one_server():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit)) as runtime,
    ):
        with pytest.raises(ToolkeepError):
            await runtime.add({"name": "kit", **kit.spec})
        with pytest.raises(ToolkeepError):
            await runtime.remove("other")
        with pytest.raises(ToolkeepError):
            await runtime.refresh("other")
        assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
        assert len(await kit.requests("initialize")) == 1


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("edit", ["change", "remove"])
async def test_who_waits_for_a_place_at_a_server_that_goes_is_served_or_told_the_truth(edit: str):
    async with ScriptedServer.local(era="legacy") as kit:
        small = {**kit.spec, "max_sessions": 1}
        async with Runtime.open(config_of(kit=small)) as runtime:
            held = doing(runtime.call("kit.slow", {"seconds": 60, "key": "held"}, context=ADA))
            await kit.requests(tool="slow", at_least=1)
            waiting = doing(runtime.call("kit.record", {"key": "waits"}, context=BOB))
            await asyncio.sleep(0)
            assert not waiting.done()
            after = {"kit": {**small, "tags": ["new"]}} if edit == "change" else {}
            async with asyncio.timeout(PATIENCE):
                await runtime.reload(config_of(**after))
            await kit.skip_delays()
            first, second = await ended(held, waiting)
            assert first.text == "done"
            ran = await kit.executions("waits")
            if edit == "change" or isinstance(second, CallResult):
                assert (second.text, ran) == ("recorded", 1)
            else:
                assert (second.delivery, ran) == (Delivery.NOT_SENT, 0)


@pytest.mark.requirement("G6", "P1")
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_at_once_every_call_ends_and_says_the_truth(seed: int):
    """Calls for several principals, while everything that can be done to a runtime is done to it;
    at the end it is closed in the middle of all that."""
    dice, outcomes = random.Random(seed), dict[str, CallResult | ToolkeepError]()
    async with (
        ScriptedServer.local(era="legacy") as one,
        ScriptedServer.local(era="modern") as two,
        ScriptedServer.local(era="legacy") as still,
    ):
        kits = {"one": one, "two": two, "still": still}
        runtime = Runtime(config_of(**kits), backoff=QUICK)
        await runtime.connect()

        async def calling(name: str, who: CallContext | None) -> None:
            for number in itertools.count():
                key = f"{name}-{who and who.principal}-{number}"
                work = runtime.call(f"{name}.record", {"key": key}, context=who, timeout=PATIENCE)
                try:
                    outcomes[key] = await work
                except ToolkeepError as error:
                    outcomes[key] = error
                    if over.is_set():
                        return

        async def disturbing() -> None:
            for _ in range(12):
                with contextlib.suppress(ToolkeepError):
                    match dice.randrange(6):
                        case 0:
                            changed = {**one.spec, "tags": [str(dice.random())]}
                            await runtime.reload(config_of(one=changed, two=two, still=still))
                        case 1:
                            await runtime.remove(dice.choice(("one", "two")))
                        case 2:
                            name = dice.choice(("one", "two"))
                            await runtime.add({"name": name, **kits[name].spec})
                        case 3:
                            await runtime.forget("ada")
                        case 4:
                            await runtime.refresh()
                        case _:
                            await runtime.reload(config_of(**kits))

        over = asyncio.Event()
        callers = [
            asyncio.create_task(calling(name, who)) for name in kits for who in (None, ADA, BOB)
        ]
        await ended(*(asyncio.create_task(disturbing()) for _ in range(3)))
        undisturbed = {key: it for key, it in outcomes.items() if key.startswith("still-")}
        assert [it for it in undisturbed.values() if not isinstance(it, CallResult)] == []
        assert undisturbed
        over.set()
        async with asyncio.timeout(PATIENCE):
            closing = (runtime.reload(config_of(**kits)), runtime.aclose())
            await asyncio.gather(*closing, return_exceptions=True)
        assert await ended(*callers) == [None] * len(callers)
        ledger = await one.ledger() | await two.ledger() | await still.ledger()
        for key, outcome in outcomes.items():
            if isinstance(outcome, CallResult):
                assert ledger.get(key) == 1, key
            elif outcome.delivery in (Delivery.NOT_SENT, Delivery.REFUSED):
                assert key not in ledger, (key, outcome)
            else:
                assert ledger.get(key, 0) <= 1, key
