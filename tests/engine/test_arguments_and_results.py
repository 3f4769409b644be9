"""What is checked before a call is sent and after it came back, and what is kept."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.helpers_wire import (
    Encoding,
    Era,
    both_encodings,
    both_eras,
    client_of,
    methods,
    when,
)
from toolkeep import CallRejected, CallResult, InputNotGiven, InvalidArguments, InvalidResult
from toolkeep.errors import Delivery
from toolkeep.testing import ScriptedServer


def tool(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", **schema}, **more}


# -- arguments ---------------------------------------------------------------------------------


MISTAKEN: list[dict[str, Any]] = [
    {"arguments": '{"text": "x"}'},
    {"arguments": ["x"]},
    {"timeout": "5"},
    {"timeout": 0},
    {"timeout": float("nan")},
    {"headers": ["x-user: ada"]},
    {"meta": "x"},
    {"name": 5},
    {"input": "retrun"},
    {"input_responses": "x"},
]
"""Of these a stream has all but the last two."""


@pytest.mark.parametrize(
    ("mistaken", "watched"),
    [*((each, False) for each in MISTAKEN), *((each, True) for each in MISTAKEN[:-2])],
    ids=str,
)
@pytest.mark.requirement("P6")
async def test_what_is_no_call_at_all_is_not_sent(mistaken: dict[str, Any], watched: bool) -> None:
    wanted: dict[str, Any] = {"name": "echo", "arguments": {"text": "x"}, **mistaken}
    async with ScriptedServer.local() as server, client_of(server) as client:
        with pytest.raises(InvalidArguments):
            if watched:
                async with client.stream(**wanted) as call:
                    await call.result()
            else:
                await client.call_tool(**wanted)
        assert await server.requests(tool="echo") == []


def rows() -> Iterator[str]:
    """What has to be fetched from elsewhere."""
    yield "first"
    raise TimeoutError("elsewhere")


async def test_a_timeout_of_somebody_elses_is_not_taken_for_the_deadline() -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        with pytest.raises(TimeoutError) as caught:
            await client.call_tool("echo", {"rows": rows()})
        assert type(caught.value) is TimeoutError
        assert await server.requests(tool="echo") == []


@both_eras
@pytest.mark.parametrize("arguments", [{}, {"text": 7}, {"text": None}, {"text": "x", "key": 1}])
@pytest.mark.requirement("P6")
async def test_bad_arguments_of_a_listed_tool_cost_no_request(
    era: Era, arguments: dict[str, Any]
) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.list_tools()
        before = await methods(server)
        with pytest.raises(InvalidArguments) as caught:
            await client.call_tool("echo", arguments)
        assert caught.value.tool == "echo"
        assert caught.value.problems
        assert caught.value.delivery is Delivery.NOT_SENT
        assert await methods(server) == before
        assert (await client.call_tool("echo", {"text": "hi"})).attempts == 1


@pytest.mark.requirement("P6")
async def test_bad_arguments_do_not_count_against_the_server() -> None:
    async with (
        ScriptedServer.local() as server,
        client_of(server, breaker_threshold=2, retry_burst=0, retry_rate=0) as client,
    ):
        await client.list_tools()
        for _ in range(10):
            with pytest.raises(InvalidArguments):
                await client.call_tool("echo", {})
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@both_eras
@pytest.mark.requirement("P6", "P7")
async def test_a_client_never_lists_by_itself(era: Era) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.call_tool("echo", {"text": "hi"})
        await client.call_tool("add", {"a": 1, "b": 2})
        assert (await client.call_tool("bad_output")).data == {"count": "three"}
        with pytest.raises(CallRejected):
            await client.call_tool("add", {"a": "one"})
        await client.list_tools()
        await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(InvalidResult):
            await client.call_tool("bad_output")
        seen = await methods(server)
        assert seen.count("tools/list") == 1
        assert seen.count("tools/call") == 6


@both_eras
@both_encodings
@pytest.mark.parametrize("listed", [False, True])
async def test_an_unknown_tool_is_the_servers_to_refuse(
    era: Era, encoding: Encoding, listed: bool
) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        if listed:
            await client.list_tools()
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("no_such_tool", {"a": 1})
        assert caught.value.code == -32602
        assert caught.value.tool == "no_such_tool"
        assert caught.value.delivery is Delivery.ANSWERED


@pytest.mark.requirement("P6")
async def test_a_reference_into_the_network_is_never_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedServer.local() as elsewhere, ScriptedServer.local() as server:
        there = f"http://127.0.0.1:{elsewhere.port}/schema.json"
        await server.set_tools(
            [
                tool("direct", {"$ref": there}),
                tool("nested", {"properties": {"a": {"$ref": there}}}),
                tool("dynamic", {"properties": {"a": {"$dynamicRef": there}}}),
                tool("dialect", {"$schema": there}),
                tool("based", {"$id": there, "properties": {"a": {"$ref": "other.json"}}}),
                tool("output", {}, outputSchema={"type": "object", "$ref": there}),
            ],
            built_in=False,
        )
        async with client_of(server) as client:
            tools = await client.list_tools()
            assert len(tools) == 6
            for listed in tools:
                await server.script(when(tool=listed.name, result=STRUCTURED))
                assert (await client.call_tool(listed.name, {"a": 1})).data == {"a": 1}
        assert await elsewhere.connections() == 0
    assert [record for record in caplog.records if record.levelno == logging.WARNING]


STRUCTURED = {"content": [], "structuredContent": {"a": 1}, "resultType": "complete"}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), object(), b"\xff", "\ud800"])
@pytest.mark.requirement("P6")
async def test_arguments_that_json_cannot_hold_are_not_sent(value: object) -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        await client.connect()
        with pytest.raises(InvalidArguments) as caught:
            await client.call_tool("echo", {"text": value})
        assert caught.value.delivery is Delivery.NOT_SENT
        assert "tools/call" not in await methods(server)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
async def test_a_timeout_that_is_no_time_is_not_sent(timeout: float) -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        with pytest.raises(InvalidArguments):
            await client.call_tool("echo", {"text": "hi"}, timeout=timeout)
        assert await methods(server) == []


@both_eras
@pytest.mark.parametrize(("strip", "sent"), [(True, {"must": 1}), (False, None)])
@pytest.mark.requirement("P6")
async def test_optional_arguments_that_are_none_can_be_stripped(
    era: Era, strip: bool, sent: dict[str, Any] | None
) -> None:
    number = {"type": "number"}
    schema = {"properties": {"must": number, "may": number}, "required": ["must"]}
    async with (
        ScriptedServer.local(era=era, tools=[tool("sum", schema)]) as server,
        client_of(server, mode=era, strip_none=strip) as client,
    ):
        await client.list_tools()
        given = {"must": 1, "may": None}
        if sent is None:
            with pytest.raises(InvalidArguments):
                await client.call_tool("sum", given)
            return
        await client.call_tool("sum", given)
        (call,) = await server.requests("tools/call")
        assert call.body["params"]["arguments"] == sent
        assert given == {"must": 1, "may": None}


# -- results -----------------------------------------------------------------------------------


@both_eras
@both_encodings
@pytest.mark.requirement("P11")
async def test_a_result_keeps_every_kind_of_content(era: Era, encoding: Encoding) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        result = await client.call_tool("content")
    kinds = ["text", "image", "audio", "resource_link", "resource"]
    assert [block.type for block in result.content] == kinds
    assert [block["type"] for block in result.raw["content"]] == kinds
    assert result.raw["content"][0]["_meta"] == {"kit/part": 1}
    assert result.raw["content"][4]["resource"]["text"] == "a note"
    assert result.meta["kit/whole"] is True
    assert result.text == "some text"
    assert result.success
    assert (result.tool, result.attempts) == ("content", 1)
    assert result.duration > 0


@both_eras
@both_encodings
@pytest.mark.requirement("P11")
async def test_a_tools_own_error_is_a_result(era: Era, encoding: Encoding) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        result = await client.call_tool("fail", {"message": "no luck"})
        assert (result.is_error, result.success, result.text) == (True, False, "no luck")
        assert await server.executions("fail") == 1


@both_eras
@pytest.mark.requirement("P11")
async def test_structured_content_and_unknown_fields_are_kept(era: Era) -> None:
    odd = {
        "content": [{"type": "text", "text": "x", "futureField": [1, {"a": None}]}],
        "structuredContent": {"deep": {"er": [None, 1.5, "ü"]}},
        "resultType": "complete",
        "x-vendor": {"kept": True},
    }
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(tool="echo", result=odd))
        result = await client.call_tool("echo", {"text": "hi"})
    assert result.data == {"deep": {"er": [None, 1.5, "ü"]}}
    assert dict(result.raw) == odd


@both_eras
@both_encodings
@pytest.mark.requirement("P7")
async def test_output_that_breaks_its_schema_is_an_error_with_the_result(
    era: Era, encoding: Encoding
) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        await client.list_tools()
        with pytest.raises(InvalidResult) as caught:
            await client.call_tool("bad_output")
        result = caught.value.result
        assert isinstance(result, CallResult)
        assert result.data == {"count": "three"}
        assert result.text == "not what the schema says"
        assert caught.value.delivery is Delivery.ANSWERED
        assert await server.executions("bad_output") == 1


@both_eras
@pytest.mark.requirement("P7")
async def test_missing_structured_content_is_an_error_with_the_result(era: Era) -> None:
    bare = {"content": [{"type": "text", "text": "3"}], "resultType": "complete"}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.list_tools()
        await server.script(when(tool="add", result=bare))
        with pytest.raises(InvalidResult) as caught:
            await client.call_tool("add", {"a": 1, "b": 2})
        assert caught.value.result.text == "3"


@pytest.mark.requirement("P7")
async def test_structured_content_may_be_null_but_not_missing() -> None:
    nullable = tool("maybe", {}, outputSchema={"type": ["object", "null"]})
    null = {"content": [], "structuredContent": None, "resultType": "complete"}
    async with (
        ScriptedServer.local(era="modern", tools=[nullable]) as server,
        client_of(server) as client,
    ):
        await client.list_tools()
        await server.script(when(tool="maybe", times=1, result=null))
        assert (await client.call_tool("maybe")).data is None
        with pytest.raises(InvalidResult):
            await client.call_tool("maybe")


@both_eras
@pytest.mark.requirement("P7", "P11")
async def test_a_tools_own_error_need_not_keep_to_the_output_schema(era: Era) -> None:
    error = {"content": [], "isError": True, "resultType": "complete"}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.list_tools()
        await server.script(when(tool="add", result=error))
        assert (await client.call_tool("add", {"a": 1, "b": 2})).is_error


@pytest.mark.requirement("P7")
async def test_a_modern_result_without_a_type_is_complete() -> None:
    plain = {"content": [{"type": "text", "text": "fine"}]}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when(tool="echo", result=plain))
        assert (await client.call_tool("echo", {"text": "hi"})).text == "fine"


@pytest.mark.parametrize("kind", ["partial", "", None, 7])
@pytest.mark.requirement("P7")
async def test_a_modern_result_of_unknown_type_is_refused_and_kept(kind: object) -> None:
    odd = {"content": [{"type": "text", "text": "what"}], "resultType": kind}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when(tool="echo", times=1, result=odd))
        with pytest.raises(InvalidResult) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.delivery is Delivery.ANSWERED
        assert caught.value.result.raw["content"] == odd["content"]
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"


@pytest.mark.requirement("P7")
async def test_input_that_nobody_offered_is_an_error_with_the_question() -> None:
    question = {"method": "roots/list", "params": {}}
    asks = {"resultType": "input_required", "requestState": "s", "inputRequests": {"q": question}}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when(tool="echo", result=asks))
        with pytest.raises(InputNotGiven) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.requests == {"q": question}
        assert caught.value.delivery is Delivery.ANSWERED
        assert len(await server.requests("tools/call")) == 1


@pytest.mark.requirement("P2")
async def test_a_replay_sends_the_arguments_that_the_call_was_given():
    """An iterator is used up by the first who reads it; a list may be changed by its owner."""
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await client.connect()
        await server.forget_sessions()
        kept = [1, 2]
        given = {"key": "one", "keep": (number for number in (1, 2, 3)), "list": kept}
        calling = asyncio.create_task(client.call_tool("record", given))
        await server.requests("tools/call", at_least=1)
        kept.append(3)
        await calling
        seen: list[Any] = await server.requests("tools/call")
        sent = [one.body["params"]["arguments"] for one in seen]
        assert sent == [{"key": "one", "keep": [1, 2, 3], "list": [1, 2]}] * 2


# -- schemas that cost too much -----------------------------------------------------------------


def branching(keyword: str) -> dict[str, Any]:
    """200 bytes, and twice as many ways with every step into the value."""
    again = {"properties": {"a": {"$ref": "#/$defs/n"}}}
    node = {"type": "object", keyword: [again, {**again, "minProperties": 1}]}
    return {"$defs": {"n": node}, "properties": {"x": {"$ref": "#/$defs/n"}}}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@both_eras
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.requirement("F5")
async def test_a_schema_that_costs_too_much_is_not_used_and_that_is_said_once(
    era: Era, keyword: str, caplog: pytest.LogCaptureFixture
) -> None:
    costly = tool("deep", branching(keyword), outputSchema=branching(keyword))
    async with (
        ScriptedServer.local(era=era, tools=[costly]) as server,
        client_of(server, mode=era) as client,
    ):
        result = {"content": [], "structuredContent": {"x": nested(40)}}
        await server.script(when(tool="deep", result=result))
        await client.list_tools()
        with caplog.at_level(logging.WARNING, "toolkeep.tools"):
            for _ in range(2):
                called = await client.call_tool("deep", {"x": nested(40)})
                assert called.data == {"x": nested(40)}
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "would take too long" in text] == said
    assert len(said) == 2  # arguments, result


@pytest.mark.requirement("F5")
async def test_none_under_a_circular_schema_is_sent_as_it_was_given() -> None:
    both = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    circular = {"$defs": {"a": {"allOf": both}, "b": {"allOf": both}}}
    schema = {**circular, "properties": {"x": {"allOf": both}}}
    async with (
        ScriptedServer.local(tools=[tool("null", schema)]) as server,
        client_of(server, strip_none=True) as client,
    ):
        await client.list_tools()
        await client.call_tool("null", {"x": None})
        (call,) = await server.requests("tools/call")
        assert call.body["params"]["arguments"] == {"x": None}


@both_eras
@both_encodings
@pytest.mark.requirement("F5")
async def test_a_result_of_very_many_blocks_is_whole_and_checked(
    era: Era, encoding: Encoding
) -> None:
    content = [{"type": "text", "text": "x", "_meta": {}}] * 5_000
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        await server.script(when(tool="echo", result={"content": content}))
        called = await client.call_tool("echo", {"text": "hi"})
        assert called.raw["content"] == content
        content[4_000] = {"type": "text", "text": 1}
        await server.script(when(tool="add", result={"content": content}))
        with pytest.raises(InvalidResult) as caught:
            await client.call_tool("add", {"a": 1, "b": 2})
        assert caught.value.delivery is Delivery.ANSWERED
