"""For whom an ADK agent calls: its user, in its session, with its own token and its own tools."""

import asyncio
from typing import Any

import pytest
from google.adk.agents.readonly_context import ReadonlyContext

from tests.adapters._adk import BOUND, ScriptedModel, conversation, house
from toolkeep import CallContext, ConfigError
from toolkeep.adapters import adk

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
DERIVED = {"user": "x-user", "session": "x-session", "execution": "x-execution"}


def with_token(adk_context: ReadonlyContext) -> CallContext:
    """As an application would: the token is in the state of the user's session."""
    token = {"authorization": f"Bearer {adk_context.state['token']}"}
    return CallContext(principal=adk_context.user_id, headers=token)


async def with_token_soon(adk_context: ReadonlyContext) -> CallContext:
    await asyncio.sleep(0)
    return with_token(adk_context)


@eras
@pytest.mark.requirement("A2")
@pytest.mark.requirement("A5")
@pytest.mark.parametrize("context", [with_token, with_token_soon])
async def test_two_users_of_one_agent_have_their_own_tokens_and_sessions(era: str, context: Any):
    async with house({"era": era}) as (kit, runtime):
        turns: list[Any] = [[("kit__headers", {})], [("kit__headers", {})], "Done.", "Done."]
        model = ScriptedModel.saying(*turns)
        async with conversation(model, [adk.Toolset(runtime, context=context)]) as talk:
            for user in ("ada", "bob"):
                await talk.session(user, {"token": f"token-of-{user}"})
            async with asyncio.timeout(BOUND):
                await asyncio.gather(talk.say(user="ada"), talk.say(user="bob"))
            kept = [str(await talk.kept(user)) for user in ("ada", "bob")]
        calls = await kit.requests("tools/call")
        tokens = {call.headers.get("authorization") for call in calls}
        assert tokens == {"Bearer token-of-ada", "Bearer token-of-bob"}
        if era == "legacy":
            used = {(r.session_id, r.headers.get("authorization")) for r in calls}
            assert len({session for session, _ in used}) == len(used) == 2
        assert "token-of-bob" not in kept[0]
        assert "token-of-ada" not in kept[1]


@pytest.mark.requirement("A2")
async def test_adks_user_session_and_invocation_are_those_of_the_call():
    async with house(spec={"derived_headers": DERIVED}) as (kit, runtime):
        model = ScriptedModel.saying([("kit__headers", {})], "Done.")
        async with conversation(model, await adk.tools(runtime, ["headers"])) as talk:
            events = await talk.say()
            session = await talk.session("ada")
        (call,) = await kit.requests("tools/call")
    assert [call.headers[name] for name in DERIVED.values()] == [
        *("ada", session, events[0].invocation_id)
    ]


@pytest.mark.requirement("A2")
async def test_each_user_is_offered_what_it_may_see_and_no_more():
    may = {"ada": ["kit.*"], "bob": ["kit.echo"]}
    async with house(permissions=may) as (_, runtime):
        model = ScriptedModel.saying("Hello, Ada.", "Hello, Bob.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            await talk.say(user="ada")
            await talk.say(user="bob")
    first, second = map(set, model.offered)
    assert len(first) > 10
    assert second == {"kit__echo"}


async def test_a_filter_finds_application_agent_and_state_in_the_metadata():
    seen: list[dict[str, Any]] = []

    def only_in_state(tool: Any, context: CallContext | None) -> bool:
        assert context is not None
        seen.append(dict(context.metadata))
        return tool.tool in context.metadata["state"]["tools"]

    async with house(filter=only_in_state) as (_, runtime):
        model = ScriptedModel.saying([("kit__echo", {"text": "hello"})], "Done.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            await talk.session("ada", {"tools": ["echo"]})
            await talk.say(user="ada")
    assert set(model.offered[0]) == {"kit__echo"}
    assert model.answers[0]["status"] == "success"
    assert {(one["app"], one["agent"]) for one in seen} == {("tests", "helper")}


@pytest.mark.parametrize("plain", [True, False])
async def test_what_a_context_says_counts_and_adk_fills_the_rest(plain: bool):
    given = CallContext(principal="service", headers={"x-team": "blue"})
    spec = {"derived_headers": {"principal": "x-principal", **DERIVED}}
    async with house(spec=spec) as (kit, runtime):
        model = ScriptedModel.saying([("kit__headers", {})], "Done.")
        made = await adk.tools(runtime, context=given)
        tools = made if plain else [adk.Toolset(runtime, context=given)]
        async with conversation(model, tools) as talk:
            await talk.say()
        (call,) = await kit.requests("tools/call")
    found = [call.headers[name] for name in ("x-principal", "x-team", "x-user")]
    assert found == ["service", "blue", "ada"]


def no_token(adk_context: ReadonlyContext) -> Any:
    return adk_context.state["token"]


def a_dictionary(adk_context: ReadonlyContext) -> Any:
    return {"principal": adk_context.user_id}


async def forgotten(adk_context: ReadonlyContext) -> Any:
    CallContext(principal=adk_context.user_id)


@pytest.mark.parametrize(
    ("context", "error"),
    [(no_token, KeyError), (a_dictionary, ConfigError), (forgotten, ConfigError)],
)
@pytest.mark.parametrize("plain", [True, False])
async def test_a_context_that_cannot_be_made_fails_the_run_and_nothing_is_sent(
    context: Any, error: type[Exception], plain: bool
):
    async with house() as (kit, runtime):
        model = ScriptedModel.saying([("kit__headers", {})])
        made = await adk.tools(runtime, ["headers"], context=context)
        tools = made if plain else [adk.Toolset(runtime, context=context)]
        async with conversation(model, tools) as talk:
            with pytest.raises(error):
                await talk.say()
        assert await kit.requests("tools/call") == []
