"""Whatever a server asks is answered by a function, or by whoever watches, on every transport."""

import asyncio
from typing import Any

import pytest
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

from tests.engine.helpers_rounds import (
    ADA,
    ELICIT,
    HOMES,
    ONE_EACH,
    ROOTS,
    SAID,
    SAMPLE,
    Thinker,
    Way,
    answering,
    both_eras,
    capabilities_in,
    client_of,
    every_way,
    meeting,
    server_of,
)
from toolkeep import ConfigError, InputNotGiven
from toolkeep.events import Completed, Event, Failed, InputNeeded, Started

ALL = {"name": ELICIT, "guess": SAMPLE, "roots": ROOTS}
WIRE_SHAPE = {
    "elicitation": answering(ADA),
    "sampling": answering(SAID),
    "roots": answering(HOMES),
}
TYPED = {
    "elicitation": answering(ElicitResult(action="accept", content={"name": "Ada"})),
    "sampling": answering(
        CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="42"), model="none"
        )
    ),
    "roots": answering(ListRootsResult(roots=[Root.model_validate({"uri": "file:///a"})])),
}


PLAIN: dict[str, Any] = {
    "elicitation": lambda needed: ADA,
    "sampling": lambda needed: SAID,
    "roots": lambda needed: HOMES,
}
"""Functions that do not have to wait."""


@every_way
@pytest.mark.parametrize("given", [WIRE_SHAPE, TYPED, PLAIN], ids=["mappings", "types", "plain"])
@pytest.mark.requirement("F3")
async def test_functions_answer_every_kind_of_question(way: Way, given: Any) -> None:
    async with meeting(way, **given) as (server, client):
        result = await client.call_tool("ask", {"requests": ALL, "rounds": 2, "key": "k"})
        first, second = result.data["answers"]
        assert first == second
        assert first["name"] == ADA
        assert first["roots"] == HOMES
        assert first["guess"].items() >= SAID.items()
        assert await server.executions("k") == 1


@every_way
@pytest.mark.requirement("F3", "L1")
async def test_whoever_watches_a_call_can_answer_it(way: Way) -> None:
    given: Any = dict.fromkeys(("elicitation", "sampling", "roots"), "caller")
    async with meeting(way, **given) as (_, client):
        events: list[Event] = []
        async with client.stream("ask", {"requests": ALL}) as call:
            async for event in call:
                events.append(event)
                if isinstance(event, InputNeeded):
                    _answer(event)
            result = await call.result()
    asked = [event for event in events if isinstance(event, InputNeeded)]
    assert result.data["answers"][0].keys() == ALL.keys()
    assert result.data["answers"][0]["name"] == ADA
    assert {event.method for event in asked} == {each["method"] for each in ALL.values()}
    assert {event.tool for event in asked} == {"ask"}
    assert len({event.call_id for event in events if isinstance(event, InputNeeded | Started)}) == 1
    assert [type(event) for event in events if event.is_final] == [Completed]


def _answer(needed: InputNeeded) -> None:
    match needed:
        case InputNeeded("elicitation/create"):
            needed.accept({"name": "Ada"})
            needed.decline()
        case InputNeeded("sampling/createMessage"):
            needed.respond(SAID)
            needed.respond({**SAID, "model": "late"})
        case _:
            needed.respond(TYPED_ROOTS)
            needed.respond("nonsense, and too late")


TYPED_ROOTS = ListRootsResult(roots=[Root.model_validate({"uri": "file:///a"})])


@both_eras
@pytest.mark.requirement("F3")
async def test_a_watcher_may_be_quicker_than_the_function(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (_, client):
        async with client.stream("ask", {"requests": {"name": ELICIT}}) as call:
            async for event in call:
                if isinstance(event, InputNeeded):
                    await thinker.until(asked=1)
                    event.accept({"name": "Ada"})
                    event.decline()
            result = await call.result()
        await thinker.until(cancelled=1)
    assert result.data["answers"] == [{"name": ADA}]


@both_eras
@pytest.mark.requirement("F3")
async def test_a_user_who_declines_is_an_answer(way: Way) -> None:
    async with (
        meeting(way, elicitation="caller") as (_, client),
        client.stream("ask", {"requests": {"name": ELICIT}}) as call,
    ):
        async for event in call:
            if isinstance(event, InputNeeded):
                event.decline()
        result = await call.result()
    assert result.data["answers"] == [{"name": {"action": "decline"}}]


@both_eras
@pytest.mark.requirement("F3")
async def test_a_sampling_that_is_declined_is_an_error_to_the_server(way: Way) -> None:
    async with (
        meeting(way, sampling="caller") as (server, client),
        client.stream("ask", {"requests": {"guess": SAMPLE}}) as call,
    ):
        events: list[Event] = []
        async for event in call:
            events.append(event)
            if isinstance(event, InputNeeded):
                event.decline()
        if way.era == "legacy":
            answer = (await call.result()).data["answers"][0]["guess"]
            assert answer["error"]["code"] < 0
        else:
            with pytest.raises(InputNotGiven) as caught:
                await call.result()
            assert caught.value.requests == {"guess": SAMPLE}
            assert await server.executions("ask") == 0
            assert isinstance(events[-1], Failed)


@both_eras
@pytest.mark.requirement("F3")
async def test_a_question_for_a_caller_who_does_not_watch_is_declined_at_once(way: Way) -> None:
    async with meeting(way, elicitation="caller", timeouts={"input": 60}) as (_, client):
        result = await client.call_tool("ask", {"requests": {"name": ELICIT}})
    assert result.data["answers"] == [{"name": {"action": "decline"}}]


OFFERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"elicitation": answering(ADA)}, {"elicitation"}),
    ({"sampling": "caller"}, {"sampling"}),
    ({"roots": ["/tmp"]}, {"roots"}),
    (WIRE_SHAPE, {"elicitation", "sampling", "roots"}),
]


@pytest.mark.parametrize("way", [*ONE_EACH, Way("stdio", "modern")], ids=str)
@pytest.mark.parametrize(("given", "declared"), OFFERS)
@pytest.mark.requirement("F3")
async def test_a_client_declares_exactly_what_it_answers(
    way: Way, given: Any, declared: set[str]
) -> None:
    async with meeting(way, **given) as (server, client):
        await client.call_tool("echo", {"text": "hi"})
        method = "initialize" if way.era == "legacy" else "tools/call"
        [seen] = await server.requests(method)
        assert capabilities_in(seen).keys() == declared
        if "elicitation" in declared:
            assert capabilities_in(seen)["elicitation"].keys() == {"form", "url"}


@every_way
@pytest.mark.requirement("F3")
async def test_what_a_client_does_not_answer_is_refused(way: Way) -> None:
    async with meeting(way, roots=["/tmp"]) as (_, client):
        asking = client.call_tool("ask", {"requests": {"guess": SAMPLE}})
        if way.era == "legacy":
            assert "error" in (await asking).data["answers"][0]["guess"]
        else:
            with pytest.raises(InputNotGiven):
                await asking


@both_eras
@pytest.mark.requirement("F3")
async def test_roots_are_paths_and_file_uris(way: Way, tmp_path: Any) -> None:
    async with meeting(way, roots=[tmp_path, "/a b", "file:///c"]) as (_, client):
        result = await client.call_tool("ask", {"requests": {"roots": ROOTS}})
    uris = [root["uri"] for root in result.data["answers"][0]["roots"]["roots"]]
    assert uris == [tmp_path.as_uri(), "file:///a%20b", "file:///c"]


@pytest.mark.parametrize("wrong", [3, {"action": "accept"}, "somebody"])
async def test_an_answer_that_is_no_function_is_refused_early(wrong: Any) -> None:
    async with server_of(ONE_EACH[0]) as server:
        with pytest.raises(ConfigError):
            async with client_of(server, ONE_EACH[0], elicitation=wrong):
                pass


@every_way
@pytest.mark.requirement("F3")
async def test_a_form_and_a_url_are_both_asked_as_they_came(way: Way) -> None:
    url = {"mode": "url", "message": "Go", "url": "https://example.org/x", "elicitationId": "e1"}
    seen: dict[str, Any] = {}

    async def accept(needed: InputNeeded) -> Any:
        seen[needed.params["mode"]] = needed.params
        return {"action": "accept"}

    asked = {"form": ELICIT, "url": {"method": "elicitation/create", "params": url}}
    async with meeting(way, elicitation=accept) as (_, client):
        result = await client.call_tool("ask", {"requests": asked})
    assert result.data["answers"] == [{key: {"action": "accept"} for key in asked}]
    assert seen["url"].items() >= url.items()
    assert seen["form"].items() >= ELICIT["params"].items()


@both_eras
@pytest.mark.requirement("F3")
async def test_the_questions_of_a_round_are_answered_at_once(way: Way) -> None:
    together = asyncio.Barrier(3)

    async def meet(needed: InputNeeded) -> Any:
        await together.wait()
        return {"elicitation/create": ADA, "roots/list": HOMES}.get(needed.method, SAID)

    given: Any = dict.fromkeys(("elicitation", "sampling", "roots"), meet)
    async with meeting(way, **given) as (_, client):
        result = await client.call_tool("ask", {"requests": ALL})
    assert result.data["answers"][0].keys() == ALL.keys()
