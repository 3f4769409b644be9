"""Plain functions beside real servers, and what a tool is remembered for."""

import asyncio
import logging
from typing import Annotated

import pytest
from pydantic import Field

from tests.runtime._catalogue import Era, both_eras, names, opened, server
from toolkeep import CallContext, ConfigError, InvalidArguments, Runtime
from toolkeep.config.functions import tool as as_tool
from toolkeep.testing import ScriptedServer


def double(number: Annotated[int, Field(description="What to double.", ge=0)]) -> int:
    """Twice as much."""
    return 2 * number


async def join(words: list[str], by: str = " ") -> str:
    """One text of many."""
    await asyncio.sleep(0)
    return by.join(words)


def broken() -> None:
    """Never works."""
    raise RuntimeError("as expected")


@pytest.mark.requirement("T10", "O3")
async def test_functions_join_the_same_catalogue() -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), functions=[double, join, broken]) as (run, _),
    ):
        builtin = [one for one in run.catalogue if one.server == "builtin"]
        assert [one.tool for one in builtin] == ["echo", "chat_log", "double", "join", "broken"]
        assert run.catalogue.tool("double").description == "Twice as much."
        assert run.summary() == "2/2 servers healthy, 19 tools"
        assert (await run.call("double", {"number": 4})).text == "8"
        assert (await run.call("builtin.join", {"words": ["a", "b"]})).text == "a b"
        assert (await run.call("builtin__echo", {"text": "hi"})).text == "hi"
        assert (await run.call("kit.echo", {"text": "ho"})).text == "ho"
        assert (await run.call("broken")).is_error
        with pytest.raises(InvalidArguments):
            await run.call("double", {"number": -1})
        assert names(run.catalogue.search("twice as much"))[0] == "builtin.double"
        assert run.servers[1].transport == "local"


@pytest.mark.requirement("T10")
async def test_functions_alone_are_enough_and_obey_filters_and_permissions() -> None:
    alice = CallContext(principal="alice")
    async with opened(
        functions=[double],
        permissions={"alice": ["builtin.*"]},
        filter=lambda one, context: one.tool != "echo",
    ) as (run, _):
        assert names(await run.catalogue_for(alice)) == ["builtin.chat_log", "builtin.double"]
        assert (await run.call("double", {"number": 1}, context=alice)).text == "2"
        assert names(await run.catalogue_for()) == []


@pytest.mark.requirement("T10")
async def test_two_functions_come_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(functions=[]) as (run, _):
        assert names(run.catalogue) == ["builtin.echo", "builtin.chat_log"]
        with caplog.at_level(logging.DEBUG, "toolkeep.chat"):
            said = await run.call("chat_log", {"message": "one\ntwo", "level": "warning"})
        (line,) = [one for one in caplog.records if one.name == "toolkeep.chat"]
        assert (line.levelno, line.getMessage()) == (logging.WARNING, said.text)
        assert "\n" not in said.text
        with pytest.raises(InvalidArguments):
            await run.call("chat_log", {"message": "hi", "level": "loud"})
        assert run.catalogue.tool("echo").read_only


@pytest.mark.requirement("T10", "T12")
async def test_a_function_may_be_marked_tagged_and_take_the_place_of_ours() -> None:
    def echo(text: str) -> str:
        """Ours no longer."""
        return text.upper()

    marked = as_tool(double, name="twice", read_only=True, tags=["maths"])
    async with opened(functions=[echo, marked]) as (run, _):
        assert (await run.call("echo", {"text": "hi"})).text == "HI"
        assert run.catalogue.tool("twice").read_only
        assert names(run.catalogue.with_tag("maths")) == ["builtin.twice"]


def hangs(*words: str) -> str:
    return "".join(words)


async def test_what_cannot_be_a_tool_is_said_when_the_runtime_opens() -> None:
    with pytest.raises(ConfigError):
        async with Runtime([], functions=[hangs]):
            pass


@both_eras
@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.requirement("T10")
async def test_a_tool_that_reported_progress_is_known_to_stream(era: Era, transport: str) -> None:
    over_http = ScriptedServer.local(era=era, encoding="sse")
    made = ScriptedServer.stdio(era=era) if transport == "stdio" else over_http
    async with made as kit, opened(server(kit)) as (run, _):
        tool = run.catalogue.tool("kit.steps")
        (resolved,) = await run.resolve(["steps"])
        assert not tool.supports_streaming
        assert not resolved.supports_streaming
        async with run.stream("kit.steps", {"count": 2}) as call:
            seen = [event.kind async for event in call]
        assert seen.count("progress") == 2
        assert tool.supports_streaming
        assert resolved.supports_streaming
        await run.refresh()
        assert run.catalogue.tool("kit.steps").supports_streaming
        assert [one.tool for one in run.catalogue if one.supports_streaming] == ["steps"]


@both_eras
@pytest.mark.requirement("T10")
async def test_progress_counts_with_a_callback_too(era: Era) -> None:
    made = ScriptedServer.local(era=era, encoding="sse")
    async with made as kit, opened(server(kit)) as (run, _):
        told: list[float] = []
        await run.call("steps", {"count": 3}, on_progress=lambda done, *_: told.append(done))
        await run.call("echo", {"text": "hi"}, on_progress=lambda done, *_: told.append(done))
        assert told == [1, 2, 3]
        assert [one.tool for one in run.catalogue if one.supports_streaming] == ["steps"]
