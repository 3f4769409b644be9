"""What a user's functions do wrong: nothing is sent that they were to guard, and it is said so.

Filters, permissions, header providers and authorizers decide; if they cannot, the answer is no.
Observers decide nothing: what they do wrong harms nobody.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.runtime._life import PATIENCE, Ear, config_of, eras, failure_of
from toolkeep import (
    AuthNeeded,
    CallContext,
    CallNotSentInTime,
    ConfigError,
    NotPermitted,
    Runtime,
    ToolkeepError,
    UnknownTool,
)
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.errors import Delivery
from toolkeep.events import Event, Started
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

ADA = CallContext(principal="ada")
SECRET = "s3cr3t-t0ken"


class Broken(Exception):
    """What a user's function raises; it quotes what it works with."""


def broken(*_: Any) -> Any:
    raise Broken(SECRET)


async def broken_later(*_: Any) -> Any:
    await asyncio.sleep(0)
    raise Broken(SECRET)


async def hangs(*_: Any) -> Any:
    await asyncio.Event().wait()


def truthy(*_: Any) -> Any:
    return "yes"


async def truthy_later(*_: Any) -> Any:
    return "no"


def forgets_to_answer(*_: Any) -> Any:
    return None


def wrong_number_of_arguments() -> bool:
    return True


WRONG: dict[str, Callable[..., Any]] = {
    "raises": broken,
    "raises later": broken_later,
    "answers with a text": truthy,
    "answers with a text later": truthy_later,
    "does not answer": forgets_to_answer,
    "takes no arguments": wrong_number_of_arguments,
}


def shown(error: BaseException) -> str:
    """All that a traceback would show of it."""
    parts = [str(error), repr(error)]
    for cause in (error.__cause__, error.__context__ if not error.__suppress_context__ else None):
        if cause is not None:
            parts.append(shown(cause))
    return "\n".join(parts)


@pytest.mark.requirement("T4", "T7")
@pytest.mark.parametrize("option", ["filter", "permissions"])
@pytest.mark.parametrize("how", WRONG)
async def test_what_a_filter_or_permission_cannot_decide_is_refused(
    option: Any, how: str, caplog: pytest.LogCaptureFixture
):
    async with ScriptedServer.local() as kit:
        options: Any = {option: WRONG[how]}
        async with Runtime.open(config_of(kit=kit), **options) as runtime:
            for context in (None, ADA):
                seen = await runtime.catalogue_for(context)
                assert (len(seen), len(seen.prompts) if option == "permissions" else 0) == (0, 0)
                error = await failure_of(runtime.call("kit.record", context=context))
                assert isinstance(error, UnknownTool | NotPermitted)
                assert SECRET not in shown(error)
                assert isinstance(
                    await failure_of(runtime.resolve(["kit.record"], context)), UnknownTool
                )
                assert await runtime.search("record", context=context) == []
            assert await kit.ledger() == {}
        said = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert bool(said) == (how in ("raises", "raises later", "takes no arguments"))
        assert SECRET not in caplog.text


@pytest.mark.requirement("T4", "T7", "P3")
@pytest.mark.parametrize("option", ["filter", "permissions", "header_provider"])
@pytest.mark.parametrize("context", [None, ADA], ids=["nobody", "ada"])
async def test_a_function_that_hangs_holds_a_call_up_until_its_deadline_and_nothing_is_sent(
    option: Any, context: Any
):
    async with ScriptedServer.local() as kit:
        options: Any = {option: hangs}
        async with Runtime.open(config_of(kit=kit), **options) as runtime:
            error = await failure_of(runtime.call("kit.record", context=context, timeout=0.3))
            assert isinstance(error, CallNotSentInTime | AuthNeeded)
            assert error.delivery is Delivery.NOT_SENT
            assert await kit.ledger() == {}
            looking = asyncio.create_task(runtime.catalogue_for(context))
            await asyncio.sleep(0)
            looking.cancel()
            await asyncio.wait((looking,), timeout=PATIENCE)
            assert looking.cancelled(), "who asks what there is waits, and may be cancelled"


@pytest.mark.requirement("H6")
@pytest.mark.parametrize(
    "provider",
    [
        broken,
        broken_later,
        lambda *_: ["x"],
        lambda *_: {"x-user": "a\r\nb: c"},
        lambda *_: {"host": "elsewhere"},
        lambda *_: {"x-user": 1},
        dict,
    ],
)
async def test_nothing_is_sent_without_the_headers_that_it_was_to_have(provider: Any):
    async with ScriptedServer.local() as kit, ScriptedServer.local() as other:

        def only_for_kit(context: CallContext, server: str) -> Any:
            return provider(context, server) if server == "kit" else {}

        config = config_of(kit=kit, other=other)
        async with Runtime.open(config, header_provider=only_for_kit) as runtime:
            before = len(await kit.requests())
            for context in (None, ADA):
                error = await failure_of(runtime.call("kit.record", context=context))
                assert isinstance(error, ToolkeepError)
                assert error.delivery is Delivery.NOT_SENT
                assert SECRET not in shown(error)
                ear = Ear(runtime)
                async with runtime.stream("kit.record", context=context) as call:
                    events = [event async for event in call]
                assert [event.kind for event in events] == ["started", "failed"]
                assert SECRET not in "".join(repr(event) for event in ear.events)
            assert len(await kit.requests()) == before
            assert (await runtime.call("other.record")).success, "the others are not concerned"


class Authorizing:
    """Whose credentials nobody can give."""

    def __init__(self) -> None:
        self.fail = False

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.fail:
            raise Broken(SECRET)
        return {"authorization": "Bearer good"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@eras
async def test_nothing_is_sent_when_the_authorizer_fails(era: Any):
    async with ScriptedServer.local(era=era) as kit:
        auth = Authorizing()
        async with Runtime.open(config_of(kit=kit), auth=auth) as runtime:
            assert (await runtime.call("kit.record", {"key": "before"})).success
            auth.fail = True
            for context in (None, ADA):
                error = await failure_of(runtime.call("kit.record", context=context))
                assert isinstance(error, AuthNeeded)
                assert SECRET not in shown(error)
            assert await kit.ledger() == {"before": 1}
            auth.fail = False
            assert (await runtime.call("kit.record", {"key": "after"}, context=ADA)).success


async def test_an_observer_that_fails_harms_nobody_and_is_logged(caplog: pytest.LogCaptureFixture):
    async with ScriptedServer.local(encoding="sse") as kit:
        runtime = Runtime(config_of(kit=kit))
        runtime.observe(broken)
        ear = Ear(runtime)
        async with runtime:
            assert (await runtime.call("kit.steps", {"count": 2})).text == "2 steps"
            async with runtime.stream("kit.record") as call:
                assert [event.kind async for event in call] == ["started", "completed"]
            assert len(ear.of(Started)) == 2
        assert "an observer failed" in caplog.text


async def test_an_observer_may_do_what_it_likes_with_the_runtime():
    """It closes its own handle, observes, and asks, while it is told something."""
    async with ScriptedServer.local() as kit:
        runtime, told, later = Runtime(config_of(kit=kit)), list[Event](), list[Event]()

        def once(event: Event) -> None:
            told.append(event)
            handle.close()
            runtime.observe(later.append)
            assert runtime.summary()
            assert runtime.servers is not None

        async with runtime:
            handle = runtime.observe(once)
            await runtime.call("kit.record")
        assert len(told) == 1
        assert later


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "kit.*"},
        {"permissions": ["kit.*"]},
        {"permissions": {"ada": 1}},
        {"header_provider": {"x-user": "ada"}},
        {"no_such_option": True},
        {"elicitation": "somebody"},
        {"connect_timeout": 0},
        {"follow": True},
    ],
    ids=str,
)
async def test_what_cannot_work_is_said_before_anything_is_opened(options: dict[str, Any]):
    async with ScriptedServer.local() as kit:
        with pytest.raises(ConfigError):
            async with Runtime(config_of(kit=kit), **options):
                pass
        assert await kit.requests() == []


@pytest.mark.requirement("P3")
async def test_a_server_that_never_answers_costs_calls_to_others_nothing():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.local(era="legacy") as quiet,
        FaultProxy.to("127.0.0.1", quiet.port) as proxy,
    ):
        config = config_of(kit=kit, quiet={"url": proxy.url()})
        async with Runtime.open(config, health_interval=None) as runtime:
            proxy.stall()
            for context in (None, ADA):
                for name in ("kit.record", runtime.catalogue.tool("kit.record").model_name):
                    called = await runtime.call(name, context=context, timeout=2)
                    assert called.text == "recorded"
            await proxy.heal()


async def test_a_server_that_lists_nothing_for_a_principal_is_not_asked_again_and_again():
    """It refuses this principal's listing; what it says is told, and others are not concerned."""
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.local() as other,
        Runtime.open(config_of(kit=kit, other=other)) as runtime,
    ):
        refusal = Behaviour(error={"code": -32000, "message": "not for you"})
        await kit.script(Rule(do=refusal, method="tools/list"))
        error = await failure_of(runtime.call("kit.record", context=ADA))
        assert isinstance(error, ToolkeepError)
        assert (await runtime.call("other.record", context=ADA)).success
        seen = await runtime.catalogue_for(ADA)
        assert {tool.server for tool in seen} == {"other"}
        assert (await runtime.call("kit.record")).success
