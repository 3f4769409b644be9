"""What a modern server lets its clients keep is not asked for again, for as long as that holds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.engine.helpers_rounds import (
    HOMES,
    ROOTS,
    TOOLS_CHANGED,
    Ear,
    Way,
    answering,
    meeting,
    modern_ways,
)
from tests.engine.helpers_wire import when
from toolkeep import Client

HTTP = Way("json", "modern")
NOTES, OTHER = "kit://notes", "kit://other"

Asking = Callable[..., Awaitable[Any]]
ASKING: dict[str, Callable[[Client], Asking]] = {
    "tools/list": lambda client: client.list_tools,
    "prompts/list": lambda client: client.list_prompts,
    "resources/list": lambda client: client.list_resources,
    "resources/templates/list": lambda client: client.list_resource_templates,
    "resources/read": lambda client: lambda **given: client.read_resource(NOTES, **given),
}
every_kind = pytest.mark.parametrize("method", ASKING)


@every_kind
@pytest.mark.parametrize(("ttl", "times"), [(0, 3), (60_000, 1)])
@modern_ways
async def test_an_answer_is_kept_as_long_as_the_server_says(
    way: Way, ttl: int, times: int, method: str
) -> None:
    async with meeting(way) as (server, client):
        await server.set_cache(ttl)
        answers = [await ASKING[method](client)() for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert len(await server.requests(method)) == times


@every_kind
async def test_an_answer_that_has_expired_is_asked_for_again(method: str) -> None:
    async with meeting(HTTP) as (server, client):
        await server.set_cache(50)
        ask = ASKING[method](client)
        await ask()
        await asyncio.sleep(0.06)
        await ask()
        assert len(await server.requests(method)) == 2


@every_kind
async def test_a_refresh_asks_and_is_kept(method: str) -> None:
    async with meeting(HTTP) as (server, client):
        await server.set_cache(60_000)
        ask = ASKING[method](client)
        await ask()
        await ask(refresh=True)
        await ask()
        assert len(await server.requests(method)) == 2


async def test_what_a_refresh_brings_takes_the_place_of_what_was_kept() -> None:
    async with meeting(HTTP) as (server, client):
        await server.set_cache(60_000)
        for text in ("one", "two"):
            await server.set_resource(NOTES, text)
            await client.read_resource(NOTES, refresh=True)
        await server.set_resource(NOTES, "three")
        assert text_of(await client.read_resource(NOTES)) == "two"
        await server.set_cache(0)
        assert text_of(await client.read_resource(NOTES, refresh=True)) == "three"
        await server.set_resource(NOTES, "four")
        assert text_of(await client.read_resource(NOTES)) == "four"


def text_of(result: Any) -> str:
    return result.contents[0].text


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        ("tools", {"tools/list"}),
        ("prompts", {"prompts/list"}),
        ("resources", {"resources/list", "resources/templates/list"}),
    ],
)
@modern_ways
async def test_a_list_that_changed_is_asked_for_again(way: Way, what: str, gone: set[str]) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await server.set_cache(60_000)
        for ask in ASKING.values():
            await ask(client)()
        await server.notify(f"notifications/{what}/list_changed")
        await ear.until(1)
        for ask in ASKING.values():
            await ask(client)()
        asked = {method: len(await server.requests(method)) for method in ASKING}
        assert asked == {method: 2 if method in gone else 1 for method in ASKING}


@modern_ways
async def test_a_resource_that_changed_is_asked_for_again_and_no_other(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await server.set_cache(60_000)
        await server.set_resource(OTHER, "other")
        await client.subscribe(NOTES)
        for uri in (NOTES, OTHER):
            await client.read_resource(uri)
        await server.set_resource(NOTES, "new")
        await server.resource_updated(NOTES)
        await ear.until(1)
        assert text_of(await client.read_resource(NOTES)) == "new"
        assert text_of(await client.read_resource(OTHER)) == "other"
        assert len(await server.requests("resources/read")) == 3


async def test_a_change_while_it_is_fetched_keeps_nothing() -> None:
    async with meeting(HTTP) as (server, client):
        ear = Ear(client)
        await server.set_cache(60_000)
        await server.script(when("tools/list", times=1, delay=0.2))
        listing = asyncio.create_task(client.list_tools())
        await server.requests("tools/list", at_least=1)
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        await listing
        await client.list_tools()
        await client.list_tools()
        assert len(await server.requests("tools/list")) == 2


LEGACY_RESULTS = {
    "prompts/list": {"prompts": []},
    "resources/list": {"resources": []},
    "resources/read": {"contents": []},
}


@pytest.mark.parametrize("method", LEGACY_RESULTS)
@pytest.mark.parametrize("transport", ["json", "stdio"])
async def test_a_legacy_answer_is_never_kept(method: str, transport: str) -> None:
    async with meeting(Way(transport, "legacy")) as (server, client):
        hints = {"ttlMs": 60_000, "cacheScope": "public"}
        await server.script(when(method, result={**LEGACY_RESULTS[method], **hints}))
        for _ in range(2):
            await ASKING[method](client)()
        assert len(await server.requests(method)) == 2


async def test_an_answer_that_took_questions_is_never_kept() -> None:
    asks = {"resultType": "input_required", "inputRequests": {"r": ROOTS}, "requestState": "s"}
    async with meeting(HTTP, roots=answering(HOMES)) as (server, client):
        await server.set_cache(60_000)
        await server.script(when("resources/read", times=1, result=asks))
        await client.read_resource(NOTES)
        assert len(await server.requests("resources/read")) == 2
        await client.read_resource(NOTES)
        await client.read_resource(NOTES)
        assert len(await server.requests("resources/read")) == 3


async def test_a_question_is_never_kept() -> None:
    asks = {"resultType": "input_required", "inputRequests": {"r": ROOTS}, "requestState": "s"}
    hints = {"ttlMs": 60_000, "cacheScope": "public"}
    async with meeting(HTTP, roots=answering(HOMES)) as (server, client):
        await server.script(when("resources/read", times=1, result={**asks, **hints}))
        assert text_of(await client.read_resource(NOTES)) == "a note"
        assert text_of(await client.read_resource(NOTES)) == "a note"


KEPT, NOT_KEPT = {"ttlMs": 60_000, "cacheScope": "public"}, {"ttlMs": 0, "cacheScope": "public"}


@pytest.mark.parametrize(
    ("hints", "listings"),
    [
        ((KEPT, KEPT), 1),
        ((KEPT, NOT_KEPT), 2),
        ((NOT_KEPT, KEPT), 2),
        ((KEPT, {}), 2),
        ((KEPT, {"ttlMs": -1}), 2),
        ((KEPT, {"ttlMs": "60000"}), 2),
        ((KEPT, {"ttlMs": True}), 2),
        ((KEPT, {"ttlMs": None}), 2),
    ],
)
async def test_the_strictest_page_counts(hints: Any, listings: int) -> None:
    first, second = hints
    pages = [
        {"resultType": "complete", "prompts": [{"name": "a"}], "nextCursor": "next", **first},
        {"resultType": "complete", "prompts": [{"name": "b"}], **second},
    ]
    async with meeting(HTTP) as (server, client):
        for page in pages * 2:
            await server.script(when("prompts/list", times=1, result=page))
        for _ in range(2):
            assert [prompt.name for prompt in await client.list_prompts()] == ["a", "b"]
        assert len(await server.requests("prompts/list")) == 2 * listings


async def test_a_tool_that_was_listed_stays_known_after_its_list_expired() -> None:
    async with meeting(HTTP) as (server, client):
        await client.list_tools()
        with pytest.raises(ValueError):
            await client.call_tool("add", {"a": "x", "b": 1})
        assert await server.requests(tool="add") == []
