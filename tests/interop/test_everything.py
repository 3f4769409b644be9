"""`@modelcontextprotocol/server-everything` on all three of its transports."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from mcp_types import (
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from tests.interop.matrix import at, proves
from tests.interop.programs import (
    BOUND,
    EVERYTHING,
    NODE,
    Heard,
    Person,
    listening,
    node,
    said,
)
from tests.ports import free_port
from toolkeep import CallTimedOut, Client, InvalidArguments
from toolkeep.events import Changed, InputNeeded, Progress
from toolkeep.state import MemoryStore

WAYS = [
    pytest.param(way, marks=at("server-everything", transport, "legacy"))
    for way, transport in (("stdio", "stdio"), ("http", "HTTP"), ("sse", "HTTP+SSE"))
]
ways = pytest.mark.parametrize("way", WAYS)
all_ways = pytest.mark.parametrize("way", [*WAYS, "sse unnamed"])
"""Unnamed: the client is told a URL, and finds out by itself that it has to fall back."""
DYNAMIC = "demo://resource/dynamic/text/1"
PLAIN_TOOLS = {
    "echo",
    "get-annotated-message",
    "get-env",
    "get-resource-links",
    "get-resource-reference",
    "get-structured-content",
    "get-sum",
    "get-tiny-image",
    "gzip-file-as-resource",
    "simulate-research-query",
    "toggle-simulated-logging",
    "toggle-subscriber-updates",
    "trigger-long-running-operation",
}
ASKING_TOOLS = {
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
}


@asynccontextmanager
async def everything(way: str) -> AsyncIterator[dict[str, Any]]:
    """The server, as a client is told of it."""
    if way == "stdio":
        yield {"name": "everything", "command": NODE, "args": [str(EVERYTHING), "stdio"]}
        return
    kind, path = ("streamableHttp", "mcp") if way == "http" else ("sse", "sse")
    async with listening(node(EVERYTHING, kind)) as port:
        spec = {"name": "everything", "url": f"http://127.0.0.1:{port}/{path}"}
        yield spec | ({"transport": "sse"} if way == "sse" else {})


@asynccontextmanager
async def client_of(way: str, **options: Any) -> AsyncIterator[Client]:
    async with everything(way) as spec, asyncio.timeout(BOUND), Client(spec, **options) as client:
        yield client


@all_ways
@pytest.mark.requirement("S13")
@proves("tools", "prompts", "resources", "completion")
async def test_all_that_it_offers_is_listed_and_can_be_read_and_completed(way: str):
    async with client_of(way) as client:
        assert client.protocol_version == "2025-11-25"
        assert {tool.name for tool in await client.list_tools()} == PLAIN_TOOLS
        prompts = {prompt.name for prompt in await client.list_prompts()}
        assert prompts >= {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
        templates = [template.uri_template for template in await client.list_resource_templates()]
        assert "demo://resource/dynamic/text/{resourceId}" in templates
        for resource in await client.list_resources():
            assert (await client.read_resource(resource.uri)).contents
        (text,) = (await client.read_resource(DYNAMIC)).contents
        assert isinstance(text, TextResourceContents)
        (message,) = (await client.get_prompt("args-prompt", {"city": "Oslo"})).messages
        assert isinstance(message.content, TextContent)
        assert "Oslo" in message.content.text
        await complete_arguments(client)


async def complete_arguments(client: Client) -> None:
    prompt = PromptReference(type="ref/prompt", name="completable-prompt")
    assert (await client.complete(prompt, "department", "S")).values == ["Sales", "Support"]
    sales = {"department": "Sales"}
    assert (await client.complete(prompt, "name", "E", context=sales)).values == ["Eve"]
    template = ResourceTemplateReference(
        type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}"
    )
    assert (await client.complete(template, "resourceId", "7")).values == ["7"]


@ways
@pytest.mark.requirement("P11")
async def test_every_kind_of_content_arrives(way: str):
    async with client_of(way) as client:
        await client.list_tools()
        assert (await client.call_tool("echo", {"message": "héllo ☃"})).text == "Echo: héllo ☃"
        assert "is 5" in (await client.call_tool("get-sum", {"a": 2, "b": 3})).text
        image = (await client.call_tool("get-tiny-image")).content[1]
        assert isinstance(image, ImageContent)
        told = {"messageType": "error", "includeImage": True}
        error, picture = (await client.call_tool("get-annotated-message", told)).content
        assert error.annotations is not None
        assert error.annotations.priority == 1.0
        assert isinstance(picture, ImageContent)
        weather = await client.call_tool("get-structured-content", {"location": "Chicago"})
        assert weather.data == json.loads(weather.text)
        _, *links = (await client.call_tool("get-resource-links", {"count": 3})).content
        assert [type(link) for link in links] == [ResourceLink] * 3
        reference = {"resourceType": "Blob", "resourceId": 2}
        embedded = (await client.call_tool("get-resource-reference", reference)).content[1]
        assert isinstance(embedded, EmbeddedResource)
        packed = {"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
        (link,) = (await client.call_tool("gzip-file-as-resource", packed)).content
        assert isinstance(link, ResourceLink)
        assert (await client.read_resource(link.uri)).contents


@ways
@pytest.mark.requirement("P6", "P11")
async def test_wrong_calls_are_told_apart(way: str):
    async with client_of(way) as client:
        await client.list_tools()
        with pytest.raises(InvalidArguments):
            await client.call_tool("get-sum", {"a": "two", "b": 3})
        impossible = {"resourceType": "Text", "resourceId": -1}
        assert (await client.call_tool("get-resource-reference", impossible)).is_error
        assert (await client.call_tool("no-such-tool")).is_error
        assert (await client.call_tool("simulate-research-query", {"topic": "tasks"})).is_error


@all_ways
@pytest.mark.requirement("F3")
@proves("sampling", "elicitation", "roots")
async def test_it_asks_its_client_and_uses_the_answers(way: str):
    person = Person()
    async with client_of(way, **person.answers()) as client:
        assert {tool.name for tool in await client.list_tools()} == PLAIN_TOOLS | ASKING_TOOLS
        sampled = await client.call_tool(
            "trigger-sampling-request", {"prompt": "?", "maxTokens": 9}
        )
        assert "at most 9 words" in sampled.text
        chosen = await client.call_tool("trigger-elicitation-request")
        assert "Name: Ada" in chosen.text
        opened = await client.call_tool("trigger-url-elicitation", {"url": "http://shop.test/pay"})
        assert '"action": "accept"' in opened.text
        await person.asked_for_roots.wait()
        assert "file:///one" in (await client.call_tool("get-roots-list")).text


@ways
@pytest.mark.requirement("F3")
async def test_it_asks_again_when_the_roots_have_changed(way: str):
    person, heard = Person(), Heard()
    async with client_of(way, **person.answers()) as client:
        with closing(client.observe(heard)):
            await heard.until(lambda event: "1 root(s)" in said(event))
            person.roots = ["file:///two", "file:///three"]
            await client.notify_roots_changed()
            await heard.until(lambda event: "2 root(s)" in said(event))
            assert "file:///three" in (await client.call_tool("get-roots-list")).text


@ways
@pytest.mark.requirement("F3")
async def test_whoever_watches_a_call_may_answer_or_decline(way: str):
    async with client_of(way, elicitation="caller") as client:
        for answer, expected in (("accept", "Name: Eve"), ("decline", "declined")):
            async with client.stream("trigger-elicitation-request") as call:
                async for event in call:
                    if isinstance(event, InputNeeded):
                        event.accept({"name": "Eve"}) if answer == "accept" else event.decline()
            assert expected in (await call.result()).text


@all_ways
@pytest.mark.requirement("L2")
@proves("progress")
async def test_progress_comes_as_it_happens(way: str):
    async with client_of(way) as client:
        asked = {"duration": 0.8, "steps": 4}
        async with client.stream("trigger-long-running-operation", asked) as call:
            seen = [event async for event in call if isinstance(event, Progress)]
        assert [event.fraction for event in seen] == [0.25, 0.5, 0.75, 1.0]
        assert min(late.at - early.at for early, late in itertools.pairwise(seen)) >= 0.1


@ways
@pytest.mark.requirement("P5")
@proves("cancellation")
async def test_a_long_call_can_be_given_up_and_the_next_goes_through(way: str):
    async with client_of(way) as client:
        session = client.session_id
        asked = {"duration": 60, "steps": 600}
        async with client.stream("trigger-long-running-operation", asked) as call:
            async for event in call:
                if isinstance(event, Progress):
                    break
        with pytest.raises(CallTimedOut):
            await client.call_tool("trigger-long-running-operation", asked, timeout=0.2)
        assert (await client.call_tool("echo", {"message": "next"})).text == "Echo: next"
        assert client.session_id == session


@ways
@pytest.mark.requirement("L4")
@proves("logging")
async def test_its_log_and_its_changes_are_heard(way: str):
    heard = Heard()
    async with client_of(way) as client:
        with closing(client.observe(heard)):
            await client.set_log_level("debug")
            await client.subscribe(DYNAMIC)
            assert (await client.call_tool("toggle-simulated-logging")).success
            assert (await client.call_tool("toggle-subscriber-updates")).success
            await heard.until(lambda event: "level" in said(event))
            await heard.until(lambda event: isinstance(event, Changed) and event.uri == DYNAMIC)
            await client.unsubscribe(DYNAMIC)


@ways
@pytest.mark.requirement("L4")
@proves("list changes")
async def test_a_list_that_has_changed_is_listed_anew(way: str):
    heard = Heard()
    # Whoever can answer listens from the start: over HTTP, what is said before the stream stands is
    # said to nobody.
    async with client_of(way, **Person().answers()) as client:
        with closing(client.observe(heard)):
            before = [resource.uri for resource in await client.list_resources()]
            packed = {"name": "b.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
            assert (await client.call_tool("gzip-file-as-resource", packed)).success
            await heard.until(
                lambda event: isinstance(event, Changed) and event.what == "resources"
            )
            after = [resource.uri for resource in await client.list_resources()]
            assert len(after) == len(before) + 1


@pytest.mark.requirement("S4", "S11")
async def test_its_session_is_taken_up_again_and_replaced_after_a_restart():
    port, store = free_port(), MemoryStore()
    command = node(EVERYTHING, "streamableHttp")
    sessions: list[str | None] = []
    for _ in range(2):
        async with listening(command, port), asyncio.timeout(BOUND):
            for _ in range(2):
                async with Client(f"http://127.0.0.1:{port}/mcp", state=store) as client:
                    assert (await client.call_tool("echo", {"message": "it"})).text == "Echo: it"
                    sessions.append(client.session_id)
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]
