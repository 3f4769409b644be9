"""What a tool is to LangChain: its schema, its answers, its errors, and for whom it is called."""

import subprocess
import sys
from typing import Any

import pytest
from langchain_core.tools import ToolException

from tests.adapters._langchain import house
from toolkeep import (
    CallContext,
    CallOutcomeUnknown,
    ConfigError,
    InvalidArguments,
    NotPermitted,
    Runtime,
    UnknownTool,
)
from toolkeep.adapters.langchain import context_from, tools
from toolkeep.testing import Behaviour, Rule


def call(tool: Any, **arguments: Any) -> dict[str, Any]:
    return {"name": tool.name, "args": arguments, "id": "x", "type": "tool_call"}


async def one(runtime: Runtime, name: str, *args: Any, **options: Any) -> Any:
    [tool] = await tools(runtime, [name], *args, **options)
    return tool


# -- what it is ---------------------------------------------------------------------------------


@pytest.mark.requirement("A1")
async def test_a_tool_says_of_itself_what_its_server_says() -> None:
    async with house() as (_, runtime):
        tool = await one(runtime, "add")
        [resolved] = await runtime.resolve(["add"])
        assert (tool.name, tool.description) == ("kit__add", "Add two numbers.")
        assert tool.args_schema == resolved.input_schema
        assert tool.args.keys() == {"a", "b", "key"}
        assert tool.metadata.items() >= {
            ("tool_type", "mcp"),
            ("display_name", "add"),
            ("folder_path", ""),
            ("slug", "kit"),
        }


@pytest.mark.requirement("A1")
async def test_all_tools_of_a_runtime_are_given_or_those_that_were_resolved() -> None:
    async with house() as (_, runtime):
        names = {tool.model_name for tool in runtime.catalogue}
        assert {tool.name for tool in await tools(runtime)} == names
        resolved = await runtime.resolve(["add", "kit.echo"])
        assert [tool.name for tool in await tools(resolved)] == ["kit__add", "kit__echo"]
        with pytest.raises(UnknownTool):
            await tools(runtime, ["nothing"])
        with pytest.raises(ConfigError):
            await tools(resolved, ["add"])
        with pytest.raises(ConfigError):
            await tools(runtime.catalogue)


async def test_a_tool_without_properties_and_one_with_awkward_ones_can_be_called() -> None:
    awkward = {name: {"type": "string"} for name in ("config", "run_manager", "self", "arguments")}
    listed = [
        {"name": "bare", "inputSchema": {"type": "object"}},
        {"name": "awkward", "inputSchema": {"type": "object", "properties": awkward}},
    ]
    async with house(server={"tools": listed}) as (kit, runtime):
        bare, strange = await tools(runtime, ["bare", "awkward"])
        assert bare.args == {}
        await bare.ainvoke(call(bare))
        await strange.ainvoke(call(strange, **dict.fromkeys(awkward, "x")))
        sent = [one.body["params"]["arguments"] for one in await kit.requests("tools/call")]
        assert sent == [{}, dict.fromkeys(awkward, "x")]


async def test_nulls_that_a_strict_schema_forced_are_not_sent() -> None:
    async with house() as (kit, runtime):
        tool = await one(runtime, "add", strict=True)
        assert set(tool.args_schema["required"]) == {"a", "b", "key"}
        await tool.ainvoke(call(tool, a=1, b=2, key=None))
        [sent] = await kit.requests("tools/call")
        assert sent.body["params"]["arguments"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("missing", "adapter"), [("langchain_core", "langchain"), ("uipath", "uipath")]
)
def test_a_framework_that_is_missing_is_named(missing: str, adapter: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import toolkeep.adapters.{adapter}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False, timeout=30
    )
    assert done.returncode == 1
    assert f"ConfigError: {missing.replace('_', '-')} is not installed" in done.stderr
    assert f"`{adapter}`" in done.stderr


async def test_a_tool_cannot_be_called_without_a_loop() -> None:
    async with house() as (_, runtime):
        tool = await one(runtime, "add")
        with pytest.raises(NotImplementedError):
            tool.invoke(call(tool, a=1, b=2))


# -- what it answers ----------------------------------------------------------------------------


@pytest.mark.requirement("A1")
async def test_every_kind_of_content_is_a_block_of_langchain_s() -> None:
    async with house() as (_, runtime):
        tool = await one(runtime, "content")
        answer = await tool.ainvoke(call(tool))
    text, image, audio, link, embedded = answer.content
    assert text == {"type": "text", "text": "some text"}
    assert (image["type"], image["mime_type"]) == ("image", "image/png")
    assert (audio["type"], audio["mime_type"]) == ("file", "audio/wav")
    assert (link["type"], link["url"], link["extras"]) == ("file", "kit://notes", {"name": "notes"})
    assert (embedded["type"], embedded["text"]) == ("text", "a note")
    assert [block["type"] for block in answer.content_blocks] == [
        *("text", "image", "file", "file", "text")
    ]


BLOB = {"uri": "kit://b", "blob": "AAAA"}
RESULTS: list[tuple[dict[str, Any], Any, Any]] = [
    ({"content": []}, "", None),
    ({"content": [], "structuredContent": {"é": 1}}, '{"é": 1}', {"é": 1}),
    ({"content": [{"type": "text", "text": "x"}], "structuredContent": [1]}, "x", [1]),
    (
        {"content": [{"type": "resource", "resource": {**BLOB, "mimeType": "image/png"}}]},
        [
            {
                "type": "image",
                "base64": "AAAA",
                "mime_type": "image/png",
                "extras": {"uri": "kit://b"},
            }
        ],
        None,
    ),
    (
        {"content": [{"type": "resource", "resource": BLOB}]},
        [
            {
                "type": "file",
                "base64": "AAAA",
                "mime_type": "application/octet-stream",
                "extras": {"uri": "kit://b"},
            }
        ],
        None,
    ),
]


@pytest.mark.parametrize(("result", "content", "artifact"), RESULTS)
@pytest.mark.requirement("A1")
async def test_structured_content_is_the_artifact(result: Any, content: Any, artifact: Any) -> None:
    async with house() as (kit, runtime):
        tool = await one(runtime, "record")
        whole = {"resultType": "complete", **result}
        await kit.script(Rule(tool="record", do=Behaviour(result=whole)))
        answer = await tool.ainvoke(call(tool))
        assert (answer.content, answer.artifact) == (content, artifact)


# -- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.requirement("A1")
async def test_errors_are_raised_where_that_is_wanted() -> None:
    async with house() as (kit, runtime):
        add, fail, record = await tools(runtime, ["add", "fail", "record"], errors="raise")
        with pytest.raises(InvalidArguments):
            await add.ainvoke(call(add, a="x", b=1))
        with pytest.raises(ToolException, match="no"):
            await fail.ainvoke(call(fail, message="no"))
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        with pytest.raises(CallOutcomeUnknown):
            await record.ainvoke(call(record, key="k"))
        assert await kit.executions("k") == 1


async def test_other_ways_with_errors_do_not_exist() -> None:
    async with house() as (_, runtime):
        wrong: Any = "ignore"
        with pytest.raises(ConfigError):
            await tools(runtime, errors=wrong)


# -- for whom -----------------------------------------------------------------------------------

ADA = CallContext(principal="ada", user_id="u-1", headers={"authorization": "Bearer ada"})
GRACE = CallContext(principal="grace", headers={"authorization": "Bearer grace"})
RUNS: list[tuple[dict[str, Any], CallContext | None, CallContext | None]] = [
    ({}, None, None),
    ({}, ADA, ADA),
    ({"toolkeep": GRACE, "principal": "ignored"}, ADA, GRACE),
    ({"principal": "eve"}, ADA, CallContext(principal="eve", user_id="u-1")),
    ({"headers": {"x": "y"}}, ADA, CallContext(user_id="u-1", headers={"x": "y"})),
    ({"user_id": 7}, None, CallContext(user_id="7")),
    ({"thread_id": "t"}, None, CallContext(session_id="t")),
    ({"thread_id": "t", "session_id": "s"}, None, CallContext(session_id="s")),
    ({"trace_id": "z", "execution_id": "e"}, None, CallContext(trace_id="z", execution_id="e")),
]


@pytest.mark.parametrize(("said", "base", "expected"), RUNS)
@pytest.mark.requirement("A1")
def test_a_run_says_for_whom_it_calls(said: Any, base: Any, expected: Any) -> None:
    assert context_from({"configurable": said}, base) == expected


@pytest.mark.parametrize("empty", ["", 3])
async def test_a_principal_that_is_none_is_not_taken_for_nobody(empty: Any) -> None:
    async with house() as (kit, runtime):
        tool = await one(runtime, "record", ADA)
        with pytest.raises(ConfigError):
            await tool.ainvoke(call(tool), {"configurable": {"principal": empty}})
        assert await kit.requests("tools/call") == []


@pytest.mark.requirement("A1")
async def test_a_function_may_say_for_whom_a_run_calls() -> None:
    async def whose(config: Any) -> CallContext:
        return {"a": ADA, "g": GRACE}[config["configurable"]["user"]]

    async with house() as (_, runtime):
        tool = await one(runtime, "headers", whose)
        for user, token in (("a", "Bearer ada"), ("g", "Bearer grace")):
            answer = await tool.ainvoke(call(tool), {"configurable": {"user": user}})
            assert answer.artifact["authorization"] == token


@pytest.mark.requirement("A1")
async def test_a_function_that_fails_sends_nothing() -> None:
    def whose(config: Any) -> CallContext:
        raise KeyError("secret")

    async with house() as (kit, runtime):
        telling = await one(runtime, "record", whose)
        answer = await telling.ainvoke(call(telling))
        assert answer.status == "error"
        assert "secret" not in str(answer.content)
        raising = await one(runtime, "record", whose, errors="raise")
        with pytest.raises(NotPermitted):
            await raising.ainvoke(call(raising))
        assert await kit.requests("tools/call") == []
