"""For whom an OpenAI agent calls: each run for its own user, or not at all."""

import asyncio
import json
from typing import Any

import pytest

from tests.adapters._openai_agents import Offer, as_server, outputs, run, scripted, surfaces
from tests.adapters._servers import ADA, BOB, eras, house
from toolkeep import CallContext, NotPermitted
from toolkeep.adapters._common import error_message
from toolkeep.adapters.openai_agents import RuntimeServer, tools

pytestmark = pytest.mark.requirement("A3", "A5")


def by_run(context: Any) -> CallContext:
    return {"ada": ADA, "bob": BOB}[context.context]


@surfaces
@eras
@pytest.mark.parametrize("way", ["the run's own context", "a function of it"])
async def test_two_users_in_one_process_call_with_their_own_tokens(
    era: str, way: str, offer: Offer
):
    async with house(era) as (kit, runtime):
        own = way == "the run's own context"
        offered = await offer(runtime, **({} if own else {"context": by_run}))
        turn = [("kit__record", {}), ("kit__headers", {})]
        models = {who: scripted(turn, turn, "Done.") for who in ("ada", "bob")}
        contexts: dict[str, Any] = {"ada": ADA, "bob": BOB} if own else {"ada": "ada", "bob": "bob"}
        await asyncio.gather(
            *(run(models[who], offered, context=contexts[who]) for who in ("ada", "bob"))
        )
        calls = await kit.requests("tools/call")
        assert sorted(call.headers["authorization"] for call in calls) == [
            *(["Bearer ada"] * 4),
            *(["Bearer bob"] * 4),
        ]
        for who, model in models.items():
            assert json.loads(outputs(model)["2"])["authorization"] == f"Bearer {who}"
        if era == "legacy":
            told = {(call.session_id, call.headers["authorization"]) for call in calls}
            assert len({session for session, _ in told}) == len(told) == 2


@surfaces
async def test_when_the_user_cannot_be_found_out_nothing_is_called(offer: Offer):
    async with house() as (kit, runtime):
        offered = await offer(runtime, context=by_run)
        model = scripted([("kit__record", {})], "Well.")
        if "tools" in offered:
            await run(model, offered, context="mallory")
            assert "kit__record was not called" in outputs(model)["1"]
        else:
            with pytest.raises(NotPermitted):
                await run(model, offered, context="mallory")
        assert await kit.requests("tools/call") == []


async def test_tools_that_were_resolved_speak_for_whom_they_were_resolved():
    async with house() as (kit, runtime):
        resolved = await runtime.resolve(["headers"], ADA)
        for offered in (
            {"tools": await tools(resolved)},
            {"mcp_servers": [RuntimeServer(resolved)]},
        ):
            await run(scripted([("kit__headers", {})], "Done."), offered)
        calls = await kit.requests("tools/call")
        assert [call.headers["authorization"] for call in calls] == ["Bearer ada"] * 2


@surfaces
async def test_meta_that_cannot_be_made_fails_the_call_before_it_is_sent(offer: Offer):
    def broken(about: Any) -> dict[str, Any]:
        raise RuntimeError("the user's own mistake")

    async with house() as (kit, runtime):
        model = scripted([("kit__record", {})], "Well.")
        await run(model, await offer(runtime, tool_meta_resolver=broken))
        assert outputs(model) == {"1": error_message(NotPermitted(""), "kit__record")}
        assert await kit.requests("tools/call") == []


async def test_a_run_speaks_only_through_the_server_that_it_calls():
    async with house() as (_, runtime):
        other = RuntimeServer(runtime, context=by_run)
        refused: list[NotPermitted] = []

        async def look(about: Any) -> None:
            try:
                await other.list_prompts()
            except NotPermitted as error:
                refused.append(error)

        offered = await as_server(runtime, context=by_run, custom_data_extractor=look)
        await run(scripted([("kit__record", {})], "Done."), offered, context="ada")
        assert len(refused) == 1


async def test_a_resolver_of_meta_that_is_set_later_leaves_the_user_of_the_run():
    async with house() as (kit, runtime):
        server = RuntimeServer(runtime)
        server.tool_meta_resolver = lambda about: {"tests/tool": about.tool_name}
        await run(scripted([("kit__record", {})], "Done."), {"mcp_servers": [server]}, context=ADA)
        [call] = await kit.requests("tools/call")
        assert call.headers["authorization"] == "Bearer ada"
        assert call.body["params"]["_meta"]["tests/tool"] == "kit__record"
