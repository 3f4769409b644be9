"""A call that needs a login stops an agent of LangGraph and of ADK, and goes on after the login."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.adk.events.event import Event
from google.genai import types
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.adapters._adk import ScriptedModel, conversation
from tests.adapters._langchain import HELLO, agent_of, calling, thread, told
from tests.oauth.test_connected import OAUTH, config_of, guarded, log_in
from tests.oauth.world import browse
from toolkeep import AuthNeeded, CallContext, Runtime
from toolkeep.adapters import adk

pytestmark = pytest.mark.requirement("N5")
CALL = calling(("files__record", {"key": "k"}))
CREDENTIAL = "adk_request_credential"
"""What ADK calls the question for a credential."""


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TOOLKEEP_KEY", "77" * 32)


@asynccontextmanager
async def listed(**settings: Any) -> AsyncIterator[tuple[Any, Runtime, dict[str, Any]]]:
    """A runtime with a login of its own, which lists the tools; its users have none yet."""
    async with guarded() as (server, origin):
        spec = config_of(origin, **(settings or OAUTH))
        async with Runtime.open(spec) as runtime:
            await log_in(runtime, None, "service")
            yield server, runtime, spec


# -- LangGraph ------------------------------------------------------------------------------------


@pytest.mark.requirement("A1")
async def test_a_graph_is_interrupted_with_the_address_and_resumed_with_the_callback():
    async with listed() as (server, runtime, spec):
        saver, ann = InMemorySaver(), CallContext(principal="ann")
        options: dict[str, Any] = {"saver": saver, "interrupts": True, "context": ann}
        agent = await agent_of(runtime, CALL, **options)
        [stop] = (await agent.ainvoke(HELLO, thread()))["__interrupt__"]
        assert (stop.value["tool"], stop.value["server"]) == ("files__record", "files")
        assert set(stop.value["login"]) == {"url", "expires"}
        callback = await browse(stop.value["login"]["url"], "ann")
        assert await server.executions("k") == 0
        # Another process resumes it.
        async with Runtime.open(spec) as other:
            agent = await agent_of(other, **options)
            [answer] = told(await agent.ainvoke(Command(resume=callback), thread()))
            assert answer.status == "success"
            assert await server.executions("k") == 1
            assert [one.principal for one in await logins(other)] == ["ann"]


async def logins(runtime: Runtime) -> list[Any]:
    from toolkeep.auth.grants import stored_grants
    from toolkeep.auth.storage import LoginStorage

    storage = LoginStorage()
    found = [grant.login async for grant in stored_grants(await storage.open())]
    await storage.aclose()
    return [login for login in found if login.principal is not None]


@pytest.mark.requirement("A1")
async def test_a_graph_goes_on_when_the_application_has_completed_the_login():
    async with listed() as (server, runtime, _):
        ann = CallContext(principal="ann")
        agent = await agent_of(runtime, CALL, interrupts=True, context=ann)
        [stop] = (await agent.ainvoke(HELLO, thread()))["__interrupt__"]
        callback = await browse(stop.value["login"]["url"], "ann")
        await runtime.complete_login(callback, principal="ann")
        [answer] = told(await agent.ainvoke(Command(resume=True), thread()))
        assert answer.status == "success"
        assert await server.executions("k") == 1


@pytest.mark.requirement("A1", "N7")
async def test_a_graph_takes_no_callback_of_another_user():
    async with listed() as (server, runtime, _):
        ann = CallContext(principal="ann")
        agent = await agent_of(runtime, CALL, interrupts=True, context=ann)
        await agent.ainvoke(HELLO, thread())
        other = await runtime.begin_login("files", "mallory")
        callback = await browse(other.url, "mallory")
        [answer] = told(await agent.ainvoke(Command(resume=callback), thread()))
        assert answer.status == "error"
        assert await server.executions("k") == 0
        assert await logins(runtime) == []


@pytest.mark.requirement("A1")
async def test_without_a_way_back_the_error_is_as_before():
    async with listed(auth="oauth") as (_, runtime, _spec):
        options: dict[str, Any] = {"context": CallContext(principal="ann"), "errors": "raise"}
        agent = await agent_of(runtime, CALL, interrupts=True, **options)
        with pytest.raises(AuthNeeded, match="begin_login"):
            await agent.ainvoke(HELLO, thread())


# -- ADK ------------------------------------------------------------------------------------------


def asked(events: list[Event]) -> list[types.FunctionCall]:
    calls = [call for event in events for call in event.get_function_calls()]
    return [call for call in calls if call.name == CREDENTIAL]


def answer_to(question: types.FunctionCall, callback: str) -> types.Content:
    """What ADK's clients send back: the configuration with the address in it."""
    config: dict[str, Any] = dict((question.args or {})["authConfig"])
    exchanged = config["exchangedAuthCredential"]
    exchanged["oauth2"]["authResponseUri"] = callback
    response = types.FunctionResponse(id=question.id, name=CREDENTIAL, response=config)
    return types.Content(role="user", parts=[types.Part(function_response=response)])


@pytest.mark.requirement("A2")
async def test_adk_asks_its_user_for_a_credential_and_makes_the_call_with_it():
    async with listed() as (server, runtime, _):
        call = [("files__record", {"key": "k"})]
        model = ScriptedModel.saying(call, "Done.", call, "Again.")
        async with conversation(model, await adk.tools(runtime)) as talk:
            (question,) = asked(await talk.say())
            shown = (question.args or {})["authConfig"]["exchangedAuthCredential"]["oauth2"]
            assert not {"clientId", "clientSecret"} & {k for k, v in shown.items() if v}
            callback = await browse(shown["authUri"], "ada")
            assert await server.executions("k") == 0
            await talk.say(answer_to(question, callback))
            assert await server.executions("k") == 1
            assert [one.principal for one in await logins(runtime)] == ["ada"]
            assert asked(await talk.say()) == [], "the login lasts"
        assert await server.executions("k") == 2


@pytest.mark.requirement("A2", "N7")
async def test_adk_takes_no_callback_of_another_user():
    async with listed() as (server, runtime, _):
        call = [("files__record", {"key": "k"})]
        model = ScriptedModel.saying(call, "It failed.")
        async with conversation(model, await adk.tools(runtime)) as talk:
            (question,) = asked(await talk.say())
            other = await runtime.begin_login("files", "mallory")
            callback = await browse(other.url, "mallory")
            await talk.say(answer_to(question, callback))
        assert await server.executions("k") == 0
        assert await logins(runtime) == []
