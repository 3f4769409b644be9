"""Functions as the server `builtin`, called through a client like any other server's tools."""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

import pytest
from mcp.server.mcpserver import Context
from packaging.version import Version
from pydantic import BaseModel, Field

from toolkeep import Client, InvalidArguments
from toolkeep._runtime.builtin import MAX_LOG_LINE, builtin_server, chat_log, echo, tool
from toolkeep.events import Progress

BOUND = 10.0
"""Nothing here takes as long; a wait that does is a hang."""
SECRET = "hunter2"


@asynccontextmanager
async def client_of(*functions: Any) -> AsyncIterator[Client]:
    async with asyncio.timeout(BOUND), Client(builtin_server(functions)) as client:
        yield client


async def answer(function: Any, arguments: dict[str, Any]) -> str:
    """What the last tool of the server says."""
    async with client_of(function) as client:
        *_, last = await client.list_tools()
        result = await client.call_tool(last.name, arguments)
    assert not result.is_error
    return result.text


# --- what comes with it ----------------------------------------------------------------------


@pytest.mark.requirement("T10")
async def test_echo_and_chat_log_come_with_it_and_say_what_they_do():
    async with client_of() as client:
        said = {tool.name: tool.annotations for tool in await client.list_tools()}
    assert client.name == "builtin"
    assert {
        name: (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint)
        for name, hints in said.items()
        if hints
    } == {"echo": (True, False, False), "chat_log": (False, False, False)}


@pytest.mark.parametrize("text", ["hello", "", "a\nb", "🦊" * 1000])
async def test_echo_gives_back_what_it_was_given(text: str):
    assert await answer(tool(echo, name="last"), {"text": text}) == text


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("hello %s", "hello %s"),
        ("süß", "süß"),
        ("one\nERROR two", "one\\nERROR two"),
        ("\x1b[2J\u202e", "\\x1b[2J\\u202e"),
        ("x" * (MAX_LOG_LINE + 5), "x" * MAX_LOG_LINE + "…"),
    ],
    ids=["plain", "unicode", "lines", "terminal", "long"],
)
async def test_chat_log_writes_one_line_and_gives_it_back(
    message: str, line: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG, "toolkeep.chat"):
        given = {"message": message, "level": "warning"}
        assert await answer(tool(chat_log, name="last"), given) == line
    (record,) = [one for one in caplog.records if one.name == "toolkeep.chat"]
    assert (record.levelno, record.getMessage()) == (logging.WARNING, line)


async def test_a_level_that_is_none_costs_no_call(caplog: pytest.LogCaptureFixture):
    async with client_of() as client:
        await client.list_tools()
        with pytest.raises(InvalidArguments):
            await client.call_tool("chat_log", {"message": "x", "level": "loud"})
    assert [one for one in caplog.records if one.name == "toolkeep.chat"] == []


# --- what a function can be ------------------------------------------------------------------


class Point(BaseModel):
    x: int
    y: int = 0


class Adder:
    """Not what is shown."""

    def __init__(self, base: int) -> None:
        self.base = base

    def __call__(self, n: int) -> int:
        """Adds."""
        return self.base + n

    async def method(self, n: int) -> int:
        return self.base + n


class AsyncAdder(Adder):
    async def __call__(self, n: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.base + n


def plain(n: int) -> int:
    return n + 1


async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


def by_place(n: int, /, m: int = 1) -> int:
    return n + m


def untyped(n, m=1):
    return n + m


def model(n: Point | int) -> int:
    return n + 1 if isinstance(n, int) else n.x


def named_like_pydantics(n: int, copy: int = 1) -> int:
    return n + copy


def two(n: int, key: str) -> int:
    return n + len(key)


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


@pytest.mark.requirement("T10")
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, "plain"),
        (later, "later"),
        (by_place, "by_place"),
        (untyped, "untyped"),
        (model, "model"),
        (named_like_pydantics, "named_like_pydantics"),
        (wrapped, "plain"),
        (Adder(1), "Adder"),
        (AsyncAdder(1), "AsyncAdder"),
        (Adder(1).method, "method"),
        (functools.partial(two, key="k"), "two"),
        (functools.partial(functools.partial(two), key="k"), "two"),
        (functools.partial(later), "later"),
        (tool(lambda n: n + 1, name="anonymous"), "anonymous"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_whatever_can_be_called_by_name_is_a_tool(function: Any, name: str):
    async with client_of(function) as client:
        assert [tool.name for tool in await client.list_tools()] == ["echo", "chat_log", name]
        result = await client.call_tool(name, {"n": 4})
    assert (result.is_error, result.text) == (False, "5")


async def test_a_docstring_and_annotations_describe_it():
    def search(
        query: Annotated[str, Field(description="What to look for", max_length=5)], most: int = 3
    ) -> str:
        """Search.

        Over two lines.
        """
        return query * most

    async with client_of(search, Adder(1)) as client:
        *_, found, adder = await client.list_tools()
        assert found.description == "Search.\n\nOver two lines."
        assert adder.description == "Adds."
        properties = found.input_schema["properties"]
        assert properties["query"]["description"] == "What to look for"
        assert found.input_schema["required"] == ["query"]
        with pytest.raises(InvalidArguments):
            await client.call_tool("search", {"query": "too long"})


async def test_what_has_no_type_takes_anything():
    assert await answer(untyped, {"n": "a", "m": "b"}) == "ab"
    assert await answer(untyped, {"n": 1.5, "m": 7}) == "8.5"
    async with client_of(untyped) as client:
        *_, found = await client.list_tools()
    assert found.input_schema["properties"]["m"]["default"] == 1


async def test_what_a_partial_has_fixed_is_not_shown():
    async with client_of(functools.partial(two, key=SECRET)) as client:
        *_, found = await client.list_tools()
    assert list(found.input_schema["properties"]) == ["n"]
    assert SECRET not in found.model_dump_json()


async def test_a_function_says_more_through_tool():
    said = tool(
        plain,
        name="increase",
        title="Increase",
        description="  Adds one. ",
        idempotent=True,
        open_world=False,
        tags=["math", "safe"],
    )
    spec = builtin_server([said, tool(later, name="a[b]", tags=["x"])])
    assert spec.tool_tags == {"increase": ("math", "safe"), "a[[]b]": ("x",)}
    assert spec.replace(tags=["all"]).tool_tags == spec.tool_tags
    async with Client(spec) as client:
        _, _, found, other = await client.list_tools()
    assert (found.name, found.title, found.description) == ("increase", "Increase", "Adds one.")
    assert found.annotations is not None
    assert found.annotations.model_dump(exclude_none=True) == {
        "idempotent_hint": True,
        "open_world_hint": False,
    }
    assert other.annotations is None
    assert said(4) == 5


@pytest.mark.requirement("T10")
async def test_progress_is_reported_through_a_context():
    async def steps(count: int, context: Context) -> int:
        for step in range(count):
            await context.report_progress(step + 1, count)
        return count

    async with client_of(steps) as client:
        *_, found = await client.list_tools()
        assert list(found.input_schema["properties"]) == ["count"]
        async with client.stream("steps", {"count": 3}) as call:
            seen = [event.progress async for event in call if isinstance(event, Progress)]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("function", [Adder(0).method, echo], ids=["method", "ours"])
async def test_one_with_the_name_of_ours_takes_its_place(function: Any):
    async with client_of(tool(function, name="echo")) as client:
        assert [tool.name for tool in await client.list_tools()] == ["chat_log", "echo"]


@pytest.mark.skipif(
    Version(version("mcp")) < Version("2.3"),
    reason="toolkeep[mcp] needs mcp 2.3; only `make test-lowest` installs an older one",
)
@pytest.mark.requirement("T10")
async def test_what_it_raises_is_told_without_its_words_and_without_its_lines(
    caplog: pytest.LogCaptureFixture,
):
    def fail(n: int) -> int:
        raise RuntimeError(SECRET)

    async with client_of(fail) as client:
        result = await client.call_tool("fail", {"n": 1})
        assert result.is_error
        assert SECRET not in result.text
        assert "Traceback" not in result.text
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"


async def test_a_plain_function_does_not_hold_up_the_loop():
    entered, leave = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return leave.wait(BOUND)

    async with client_of(hold) as client, asyncio.TaskGroup() as tasks:
        held = tasks.create_task(client.call_tool("hold"))
        await asyncio.to_thread(entered.wait, BOUND)
        assert (await client.call_tool("echo", {"text": "meanwhile"})).text == "meanwhile"
        assert not held.done()
        leave.set()
    assert held.result().data == {"result": True}
