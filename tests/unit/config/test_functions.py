"""What cannot be a tool is told before anything is opened."""

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from toolkeep import Client, ConfigError
from toolkeep._runtime.builtin import builtin_server, tool
from toolkeep.config import ServerSpec


def plain(n: int) -> int:
    return n


async def later(n: int) -> int:
    return n


def variadic(*args: int) -> int:
    return len(args)


def keywords(n: int, **kwargs: int) -> int:
    return n


def unknown_type(n: "Nowhere") -> int:  # noqa: F821  # pyright: ignore
    return 1


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "functions",
    [
        [5],
        [None],
        ["echo"],
        [int],
        [lambda: 1],
        [variadic],
        [keywords],
        [unknown_type],
        [generator],
        [async_generator],
        [max],
        [plain, plain],
        [plain, functools.partial(plain)],
        [plain, tool(later, name="plain")],
    ],
    ids=range(14),
)
def test_what_cannot_be_a_tool_is_a_mistake_before_anything_is_opened(functions: list[Any]):
    with pytest.raises(ConfigError) as caught:
        builtin_server(functions)
    assert (caught.value.key, bool(caught.value.remedy)) == ("server", True)


@pytest.mark.parametrize("name", ["", "two words", "a\nb", "x" * 129, "<lambda>"])
def test_a_name_that_is_none_is_a_mistake(name: str):
    with pytest.raises(ConfigError):
        tool(plain, name=name)


async def test_what_only_the_sdk_refuses_is_a_mistake_when_it_is_opened():
    def hidden(_n: int) -> int:
        return 1

    client = Client(builtin_server([hidden]))
    with pytest.raises(ConfigError) as caught:
        await client.list_tools()
    await client.aclose()
    assert (caught.value.server, caught.value.key) == ("builtin", "server")


def test_tags_of_functions_are_tags_of_their_tools_unless_the_server_says_otherwise():
    mine, other = tool(plain, tags=["a", "b"]), tool(later, tags=["c"])
    assert ServerSpec(name="x", server=mine).tool_tags == {"plain": ("a", "b")}
    spec = ServerSpec(name="x", server=[mine, other], tool_tags={"later": ("d",)})
    assert spec.tool_tags == {"plain": ("a", "b"), "later": ("d",)}
    with pytest.raises(ConfigError) as caught:
        ServerSpec(name="x", server=tool(plain, tags=["two words"]))
    assert caught.value.key == "tool_tags.plain.0"
