"""What users of other clients expect of one: nested blocks, who the server is, plain answers."""

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest
from mcp_types import SamplingMessage, TextContent

from tests.engine.helpers_rounds import (
    BOUND,
    LEGACY,
    MODERN,
    ONE_EACH,
    SAMPLE,
    Way,
    answering,
    client_of,
    every_way,
    meeting,
    server_of,
)
from tests.engine.helpers_wire import when
from toolkeep import (
    CallRejected,
    Client,
    ConfigError,
    InvalidArguments,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.events import InputNeeded
from toolkeep.testing import FaultProxy, ScriptedServer

both_eras = pytest.mark.parametrize("way", ONE_EACH, ids=str)
PINNED = "2026-07-28"

# -- blocks -------------------------------------------------------------------------------------


@every_way
async def test_nested_blocks_share_the_connection_and_the_last_one_closes_it(way: Way) -> None:
    async with server_of(way) as server, client_of(server, way) as client:
        async with client:
            async with client as inner:
                assert inner is client
                await client.call_tool("echo", {"text": "a"})
            assert client.is_initialized
            result = await client.call_tool("echo", {"text": "b"})
            assert (result.text, result.attempts) == ("b", 1)
        assert not client.is_initialized
        async with client:  # and all over again
            assert client.is_initialized
        assert not client.is_initialized


@both_eras
async def test_blocks_of_several_tasks_share_the_connection(way: Way) -> None:
    async with meeting(way) as (server, client):
        entered, release = asyncio.Semaphore(0), asyncio.Event()

        async def work(number: int) -> str:
            async with client:
                entered.release()
                if number:
                    await release.wait()  # the first one leaves early
                return (await client.call_tool("echo", {"text": str(number)})).text

        tasks = [asyncio.create_task(work(number)) for number in range(5)]
        for _ in tasks:
            await entered.acquire()
        assert await tasks[0] == "0"
        assert client.is_initialized
        release.set()
        assert await asyncio.gather(*tasks) == ["0", "1", "2", "3", "4"]
        assert not client.is_initialized
        opened = [one.rpc_method for one in await server.requests()].count(
            "initialize" if way.era == "legacy" else "server/discover"
        )
        assert opened == 1


@both_eras
async def test_a_block_that_cannot_be_entered_closes_only_what_no_other_uses(way: Way) -> None:
    async with (
        server_of(way) as server,
        FaultProxy.to("127.0.0.1", server.port) as road,
    ):
        settings = {"name": "kit", "url": road.url(), "mode": way.era, "max_retries": 0}
        async with asyncio.timeout(BOUND), Client(settings) as client:
            road.refuse()
            await client.aclose()
            with pytest.raises(ServerUnavailable):
                async with client:
                    pytest.fail("the server cannot be reached")
            await road.heal()
            assert (await client.call_tool("echo", {"text": "a"})).text == "a"
        assert not client.is_initialized


# -- who the server is --------------------------------------------------------------------------


@every_way
async def test_a_client_knows_the_servers_name_and_its_instructions(way: Way) -> None:
    async with server_of(way) as server, client_of(server, way) as client:
        assert (client.server_info, client.instructions) == (None, None)
        await client.connect()
        assert client.handshake is not None
        assert client.server_info is not None
        assert client.server_info.name == "toolkeep-scripted"
        assert client.instructions == client.handshake.instructions
        await client.aclose()
        assert (client.server_info, client.instructions) == (None, None)


@both_eras
async def test_instructions_are_those_of_the_handshake(way: Way) -> None:
    async with meeting(way) as (server, client):
        await client.connect()
        assert client.handshake is not None
        told = client.handshake.model_dump(by_alias=True, mode="json", exclude_none=True)
        await client.aclose()
        method = "initialize" if way.era == "legacy" else "server/discover"
        await server.script(when(method, result={**told, "instructions": "Be gentle."}))
        await client.connect()
        assert client.instructions == "Be gentle."


@pytest.mark.parametrize("meta", [{}, {"io.modelcontextprotocol/serverInfo": "Bob"}])
async def test_a_modern_server_need_not_say_its_name(meta: dict[str, Any]) -> None:
    async with meeting(Way("json", "modern")) as (server, client):
        told = {
            "supportedVersions": [PINNED],
            "capabilities": {"tools": {}},
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": meta,
        }
        await server.script(when("server/discover", result=told))
        await client.connect()
        assert client.is_initialized
        assert client.server_info is None


# -- a pinned version ---------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["json", "sse-answers", "stdio"])
async def test_a_pinned_server_is_adopted_without_a_request(transport: str) -> None:
    way = Way(transport, "modern")
    async with server_of(way) as server, client_of(server, Way(transport, PINNED)) as client:
        await client.connect()
        assert (client.era, client.protocol_version) == ("modern", PINNED)
        assert (client.server_info, client.instructions) == (None, None)
        assert (await client.call_tool("echo", {"text": "a"})).text == "a"
        assert "echo" in [tool.name for tool in await client.list_tools()]
        assert await client.list_prompts()
        assert await client.list_resources()
        asked = {one.rpc_method for one in await server.requests()}
        assert "server/discover" not in asked
        assert "initialize" not in asked


async def test_what_a_pinned_server_does_not_have_is_an_empty_list() -> None:
    unknown = {"code": -32601, "message": "Method not found"}
    way = Way("json", "modern")
    async with server_of(way) as server, client_of(server, Way("json", PINNED)) as client:
        for method in ("tools/list", "prompts/list", "resources/list"):
            await server.script(when(method, error=unknown))
        assert await client.list_tools() == []
        assert await client.list_prompts() == []
        assert await client.list_resources() == []
        with pytest.raises(CallRejected):
            await server.script(when("prompts/get", error=unknown))
            await client.get_prompt("greet")


async def test_a_runtime_lists_a_pinned_server() -> None:
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime({"kit": {"url": server.url, "mode": PINNED}}) as runtime,
    ):
        assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"
        view = await runtime.catalogue_for()
        assert view.prompts
        assert view.resources


async def test_a_legacy_server_that_was_pinned_is_an_error_and_runs_nothing() -> None:
    way = Way("json", "legacy")
    async with server_of(way) as server, client_of(server, Way("json", PINNED)) as client:
        with pytest.raises(ToolkeepError):
            await client.call_tool("record", {"key": "k"})
        assert await server.executions("k") == 0


def test_a_version_that_cannot_be_pinned_is_refused() -> None:
    for mode in ("2025-11-25", "2027-01-01", "pin"):
        with pytest.raises(ConfigError):
            Client({"url": "http://127.0.0.1:9/mcp", "mode": mode})
    with pytest.raises(ConfigError):
        Client({"url": "http://127.0.0.1:9/mcp", "mode": PINNED, "transport": "sse"})


# -- prompts and resources ----------------------------------------------------------------------

GIVEN: dict[str, Any] = {"name": "Ada", "n": 3, "flag": True, "many": ["a", {"b": 1.5}], "no": None}
SENT = {"name": "Ada", "n": "3", "flag": "true", "many": '["a",{"b":1.5}]', "no": "null"}


@both_eras
async def test_arguments_of_a_prompt_that_are_not_texts_are_sent_as_json(way: Way) -> None:
    answer = {"messages": [], "resultType": "complete"}
    async with meeting(way) as (server, client):
        await server.script(when("prompts/get", result=answer))
        await client.get_prompt("greet", GIVEN)
        (asked,) = await server.requests("prompts/get")
        assert asked.body["params"]["arguments"] == SENT
        with pytest.raises(InvalidArguments):
            await client.get_prompt("greet", {"name": object()})
        assert len(await server.requests("prompts/get")) == 1


async def test_so_are_those_of_a_prompt_of_ones_own(tmp_path: Any) -> None:
    (tmp_path / "hail.md").write_text("Hello {{name}}, {{n}} times.\n")
    async with ScriptedServer.local() as server:
        own = {"kit": {"url": server.url, "prompts_file": str(tmp_path / "hail.md")}}
        async with Runtime(own) as runtime:
            hail: Any = await runtime.get_prompt("kit.hail", {"name": "Ada", "n": 3})
            assert "Hello Ada, 3 times." in hail.messages[0].content.text
            with pytest.raises(InvalidArguments):
                await runtime.get_prompt("kit.hail", {"name": "Ada", "n": object()})


@both_eras
@pytest.mark.parametrize(
    "uri", ["", "notes", "/notes", "kit:", "kit://a\nb", "kit://a ", "://a", "9x://a", None, 7]
)
async def test_what_is_no_uri_is_refused_before_sending(way: Way, uri: Any) -> None:
    async with meeting(way) as (server, client):
        await client.connect()
        before = len(await server.requests())
        for work in (client.read_resource, client.subscribe):
            with pytest.raises(InvalidArguments, match="is not a URI"):
                await work(uri)
        assert len(await server.requests()) == before


@both_eras
@pytest.mark.parametrize("uri", ["kit://a b", "kit://ä", "urn:a:b", "k:x", "file:///C:/a%20b"])
async def test_unusual_uris_are_sent_as_they_are(way: Way, uri: str) -> None:
    async with meeting(way) as (server, client):
        with pytest.raises(CallRejected):
            await client.read_resource(uri)
        (asked,) = await server.requests("resources/read")
        assert asked.body["params"]["uri"] == uri


# -- progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", [way for way in (*LEGACY, *MODERN) if way.transport != "json"], ids=str
)
async def test_a_client_may_have_one_function_for_the_progress_of_all_calls(way: Way) -> None:
    common: list[tuple[float, float | None, str | None]] = []
    own: list[float] = []
    async with meeting(way, on_progress=lambda *report: common.append(report)) as (_, client):
        await client.call_tool("steps", {"count": 2})
        assert common == [(1, 2, "step 1 of 2"), (2, 2, "step 2 of 2")]
        async with client.stream("steps", {"count": 1}) as call:
            await call.result()
        assert len(common) == 3
        await client.call_tool(
            "steps", {"count": 1}, on_progress=lambda progress, *_: own.append(progress)
        )
        assert (len(common), own) == (3, [1])


def test_a_function_for_progress_is_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="on_progress"):
        Client("http://127.0.0.1:9/mcp", on_progress=7)  # pyright: ignore[reportArgumentType]


# -- sampling -----------------------------------------------------------------------------------

TEXT = {"type": "text", "text": "42"}
ANSWERS = {
    "text": "42",
    "block": TextContent(type="text", text="42"),
    "message": SamplingMessage(role="assistant", content=TextContent(type="text", text="42")),
    "mapping": {"role": "assistant", "content": TEXT},
}


@every_way
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
async def test_sampling_may_be_answered_with_a_text_or_a_message(way: Way, answer: Any) -> None:
    async with meeting(way, sampling=answering(answer)) as (_, client):
        result = await client.call_tool("ask", {"requests": {"guess": SAMPLE}})
        (said,) = result.data["answers"]
    wanted = {"role": "assistant", "content": TEXT, "model": "unknown"}
    assert said["guess"].items() >= wanted.items()


@both_eras
async def test_a_watcher_may_answer_sampling_with_a_text(way: Way) -> None:
    async with (
        meeting(way, sampling="caller") as (_, client),
        client.stream("ask", {"requests": {"guess": SAMPLE}}) as call,
    ):
        async for event in call:
            if isinstance(event, InputNeeded):
                event.respond("42")
        result = await call.result()
    assert result.data["answers"][0]["guess"]["content"] == TEXT


@both_eras
@pytest.mark.parametrize("answer", [7, b"42", {"text": "42"}, {"content": 7}, ["42"]])
async def test_anything_else_is_still_no_answer(way: Way, answer: Any) -> None:
    async with meeting(way, sampling=answering(answer)) as (_, client):
        try:
            result = await client.call_tool("ask", {"requests": {"guess": SAMPLE}})
        except ToolkeepError:
            return
        assert result.is_error or "content" not in str(result.data)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")  # asyncio's, in the end
async def test_a_client_that_is_dropped_open_in_a_dead_loop_counts_anew() -> None:
    async with ScriptedServer.local() as server:
        client = Client(server.url)

        async def never_left() -> None:
            await client.__aenter__()

        await asyncio.to_thread(asyncio.run, never_left())
        await client.aclose()
        gc.collect()  # of the dead loop, in this test and no later one
        async with aclosing(client), client:
            assert client.is_initialized
        assert not client.is_initialized
