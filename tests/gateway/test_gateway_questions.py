"""Servers that ask the clients of a gateway: in all four combinations of eras, at any replica."""

import asyncio
import json
from typing import Any

import mcp_types as types
import pytest

from tests.gateway.front import Front, Wire, front, next_message, sdk, until, wire
from toolkeep.testing import Behaviour, Rule, ScriptedServer

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
NAME = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        "maxTokens": 10,
    },
}
ROOTS = {"method": "roots/list"}
ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
FOUR = [(up, down) for up in ("legacy", "modern") for down in ("legacy", "2026-07-28")]


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text="Hello")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


async def roots(context: Any) -> types.ListRootsResult:
    home: Any = "file:///home/ada"
    return types.ListRootsResult(roots=[types.Root(uri=home, name="home")])


def told(result: Any) -> str:
    """What the tool `ask` was answered, in all rounds, as JSON."""
    if isinstance(result, types.CallToolResult):
        return json.dumps(result.structured_content)
    return json.dumps(result["structuredContent"])


@pytest.mark.parametrize(("upstream", "era"), FOUR)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_question_reaches_the_client_and_its_answer_the_server(
    upstream: Any, era: str, replicas: int
):
    async with (
        ScriptedServer.local(era=upstream) as kit,
        front({"kit": kit.url}, replicas=replicas) as gateway,
        sdk(
            gateway.url,
            mode=era,
            elicitation_callback=elicit,
            sampling_callback=sample,
            list_roots_callback=roots,
        ) as client,
    ):
        requests = {"who": NAME, "text": SAMPLE, "where": ROOTS}
        result = await client.call_tool("kit__ask", {"requests": requests, "rounds": 2})
        assert not result.is_error, result.content[0].text
        text = told(result)
        assert "Ada" in text
        assert "Hello" in text
        assert "file:///home/ada" in text


@pytest.mark.parametrize(("upstream", "era"), FOUR[:3])
async def test_a_client_is_asked_only_what_it_has_declared(upstream: Any, era: str):
    """An elicitation is declined, so that the tool can go on without the answer."""
    async with (
        ScriptedServer.local(era=upstream) as kit,
        front({"kit": kit.url}) as gateway,
        sdk(gateway.url, mode=era, list_roots_callback=roots) as client,
    ):
        result = await client.call_tool("kit__ask", {"requests": {"who": NAME}})
        assert '"decline"' in told(result)


async def ask_modern(client: Wire, requests: Any, **more: Any) -> Any:
    arguments = {"requests": requests, **more}
    answer = await client.modern(
        "tools/call", name="kit__ask", arguments=arguments, capabilities=ALL
    )
    return answer.json["result"]


async def go_on(client: Wire, state: Any, responses: Any, requests: Any, **more: Any) -> Any:
    return await client.modern(
        "tools/call",
        name="kit__ask",
        arguments={"requests": requests, **more},
        capabilities=ALL,
        requestState=state,
        inputResponses=responses,
    )


ADA = {"action": "accept", "content": {"name": "Ada"}}


async def test_a_parked_call_goes_on_at_the_other_replica():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        asked = await ask_modern(first, {"who": NAME}, rounds=2, key="k")
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        assert question["params"]["message"] == "Who?"
        again = (
            await go_on(second, asked["requestState"], {key: ADA}, {"who": NAME}, key="k")
        ).json["result"]
        assert again["resultType"] == "input_required"
        ((key, _),) = again["inputRequests"].items()
        done = (await go_on(second, again["requestState"], {key: ADA}, {"who": NAME})).json
        assert done["result"]["resultType"] == "complete"
        assert "Ada" in told(done["result"])
        assert await kit.executions("k") == 1


async def test_draining_waits_for_a_client_that_comes_back(monkeypatch: Any):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        asked = await ask_modern(first, {"who": NAME, "and": NAME})
        assert len(asked["inputRequests"]) == 2  # asked at once
        draining = asyncio.create_task(gateway.gateways[0].drain(5.0))
        await until(lambda: gateway.gateways[0].draining)
        responses = dict.fromkeys(asked["inputRequests"], ADA)
        answer = await go_on(second, asked["requestState"], responses, {"who": NAME})
        assert "Ada" in told(answer.json["result"])
        assert await draining
        monkeypatch.setattr("toolkeep.gateway.app.PARKED_WITHIN", 0.05)
        await ask_modern(second, {"who": NAME})
        assert not await gateway.gateways[1].drain(5.0)  # this one does not come back


async def test_a_parked_result_of_several_megabytes_crosses_replicas():
    big = {**ADA, "content": {"name": "A" * 300_000}}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        requests = {str(number): NAME for number in range(8)}
        asked = await ask_modern(first, requests)
        while asked["resultType"] == "input_required":
            responses = dict.fromkeys(asked["inputRequests"], big)
            answer = await go_on(second, asked["requestState"], responses, requests)
            asked = answer.json["result"]
        assert len(told(asked)) > 2_000_000


async def test_a_parked_result_that_is_too_large_for_the_store_is_said_to_be(monkeypatch: Any):
    monkeypatch.setattr("toolkeep.state.store.MAX_VALUE", 10_000)
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        asked = await ask_modern(first, {"who": NAME}, rounds=2)
        big = {**ADA, "content": {"name": "A" * 6_000}}
        (key,) = asked["inputRequests"]
        answer = await go_on(second, asked["requestState"], {key: big}, {"who": NAME})
        asked = answer.json["result"]  # the last result has the answers of both rounds
        (key,) = asked["inputRequests"]
        answer = await go_on(second, asked["requestState"], {key: big}, {"who": NAME})
        assert answer.error["code"] == -32014
        assert "cannot be handed over" in answer.error["message"]


async def test_a_request_state_opens_only_for_the_request_that_it_was_made_for():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        asked = await ask_modern(client, {"who": NAME})
        state = asked["requestState"]
        other = await client.modern(
            "tools/call", name="kit__echo", arguments={"text": "x"}, requestState=state
        )
        assert other.error["code"] == -32602
        for forged in (state[:-2], "x", f"B{state[1:]}", 7):
            answer = await go_on(client, forged, {}, {"who": NAME})
            assert answer.error["code"] == -32602
        assert len(gateway.gateway.parked) == 1


async def test_the_state_of_a_modern_server_is_sealed_and_any_replica_passes_it_on():
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        asked = await ask_modern(first, {"who": NAME})
        assert list(asked["inputRequests"]) == ["who"]
        (seen,) = await kit.requests(tool="ask")
        assert "requestState" not in seen.body["params"]
        answer = await go_on(second, asked["requestState"], {"who": ADA}, {"who": NAME})
        assert answer.json["result"]["resultType"] == "complete"
        _, later = await kit.requests(tool="ask")
        assert later.body["params"]["requestState"] != asked["requestState"]


async def test_a_parked_call_whose_replica_ended_may_have_run():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        asked = await ask_modern(first, {"who": NAME})
        await gateway.gateways[0].stop()
        answer = await go_on(second, asked["requestState"], {}, {"who": NAME})
        assert answer.error["code"] == -32014
        assert answer.error["data"] == {"toolkeep/delivery": "unknown"}
        assert "may have run" in answer.error["message"]


async def test_a_parked_call_is_cancelled_when_its_client_does_not_come_back(monkeypatch: Any):
    monkeypatch.setattr("toolkeep.gateway.questions.PARK_TIME", 0.05)
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        asked = await ask_modern(client, {"who": NAME})
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"ask"}
        answer = await go_on(client, asked["requestState"], {}, {"who": NAME})
        assert answer.error["code"] == -32014
        assert len(gateway.gateway.parked) == 0


async def test_questions_beyond_the_bound_of_parked_calls_are_declined(monkeypatch: Any):
    monkeypatch.setattr("toolkeep.gateway.questions.MAX_PARKED", 1)
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        assert (await ask_modern(client, {"who": NAME}))["resultType"] == "input_required"
        second = await ask_modern(client, {"who": NAME})
        assert second["resultType"] == "complete"
        assert '"decline"' in told(second)


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
async def test_a_modern_server_sees_what_the_client_can_answer(method: str):
    """It would ask for no more; one that does all the same asks in vain."""
    asked = {"text": SAMPLE if method == SAMPLE["method"] else NAME}
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        given: Any = {"roots": {}}
        answer = await client.modern(
            "tools/call", name="kit__ask", arguments={"requests": asked}, capabilities=given
        )
        (sent,) = await kit.requests(tool="ask")
        meta = sent.body["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientCapabilities"] == given
        assert (answer.status, answer.error["code"]) == (400, -32021)
        lacking = method.partition("/")[0]
        assert answer.error["data"] == {"requiredCapabilities": {lacking: {}}}


async def test_a_servers_word_that_a_capability_is_missing_passes_through():
    error = {"code": -32021, "message": "no", "data": {"requiredCapabilities": {"roots": {}}}}
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await kit.script(Rule(tool="record", do=Behaviour(error=error, status=400)))
        answer = await client.modern("tools/call", name="kit__record", arguments={})
        assert (answer.status, answer.error) == (400, error)


# -- legacy clients -------------------------------------------------------------------------------


async def begin_asking(client: Wire, requests: Any) -> Any:
    request = client.request("tools/call", name="kit__ask", arguments={"requests": requests})
    return await client.open(request)


async def both_sides(gateway: Front, first: Wire, second: Wire) -> None:
    await first.initialize(**ALL)
    second.headers["mcp-session-id"] = first.headers["mcp-session-id"]


async def test_an_answer_may_arrive_at_the_other_replica():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as first,
        wire(gateway.hosts[1]) as second,
    ):
        await both_sides(gateway, first, second)
        async with await begin_asking(first, {"who": NAME}) as response:
            asked = await next_message(response)
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ADA}
            assert (await second.send(answer)).status == 202
            result = await next_message(response)
        assert "Ada" in told(result["result"])


async def test_an_answer_of_another_session_does_not_count():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
        wire(gateway.url) as thief,
    ):
        await client.initialize(**ALL)
        await thief.initialize(**ALL)
        async with await begin_asking(client, {"who": NAME}) as response:
            asked = await next_message(response)
            stolen = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
            assert (await thief.send(stolen)).status == 202
            for strange in ("toolkeep.x", "toolkeep.other.key", "1", 5):
                made = {"jsonrpc": "2.0", "id": strange, "result": {}}
                assert (await client.send(made)).status == 202
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ADA}
            assert (await client.send(answer)).status == 202
            result = await next_message(response)
        assert "Ada" in told(result["result"])


async def test_a_clients_error_reaches_the_server():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize(**ALL)
        async with await begin_asking(client, {"text": SAMPLE}) as response:
            asked = await next_message(response)
            error = {"code": -1, "message": "the user refused"}
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            result = await next_message(response)
        assert "the user refused" in told(result["result"])


async def test_a_legacy_client_that_takes_no_streams_is_not_asked():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url, accept="application/json") as client,
    ):
        await client.initialize(**ALL)
        answer = await client.call(
            "tools/call", name="kit__ask", arguments={"requests": {"a": NAME}}
        )
        assert answer.headers["content-type"] == "application/json"
        assert '"decline"' in told(answer.json["result"])


async def test_a_modern_server_may_ask_before_it_gives_a_prompt():
    """The legacy client is asked on the stream of its request, the modern one by the result."""
    asked = {"resultType": "input_required", "inputRequests": {"who": NAME}, "requestState": "s1"}
    greet = {"name": "kit__greet", "arguments": {"name": "Ada"}}
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as legacy,
        wire(gateway.url) as modern,
    ):
        asks = Rule(method="prompts/get", do=Behaviour(result=asked), times=1)
        await kit.script(asks)
        await legacy.initialize(**ALL)
        async with await legacy.open(legacy.request("prompts/get", **greet)) as response:
            question = await next_message(response)
            await legacy.send({"jsonrpc": "2.0", "id": question["id"], "result": ADA})
            got = (await next_message(response))["result"]
        assert got["messages"][0]["content"]["text"] == "Greet Ada."
        await kit.script(asks)
        found = (await modern.modern("prompts/get", **greet, capabilities=ALL)).json["result"]
        more = {"requestState": found["requestState"], "inputResponses": {"who": ADA}}
        got = (await modern.modern("prompts/get", **greet, **more)).json["result"]
        assert got["messages"][0]["content"]["text"] == "Greet Ada."
        seen = [one.body["params"] for one in await kit.requests("prompts/get")]
        answers = [(one.get("requestState"), one.get("inputResponses")) for one in seen]
        assert answers == [(None, None), ("s1", {"who": ADA})] * 2


async def test_open_questions_end_with_their_call():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize(**ALL)
        request = client.request("tools/call", name="kit__ask", arguments={"requests": {"a": NAME}})
        async with await client.open(request) as response:
            asked = await next_message(response)
            about = {"requestId": request["id"]}
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": about}
            assert (await client.send(note)).status == 202
            withdrawn = await next_message(response)
            assert withdrawn["method"] == "notifications/cancelled"
            assert withdrawn["params"]["requestId"] == asked["id"]
            ended = await next_message(response)
            assert ended["error"]["code"] == -32800
        await until(lambda: len(gateway.gateway.endpoint.questions) == 0)
