"""One server, one way to it: what does not go together is named before anything is opened."""

import re
from typing import Any

import pytest
from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError

URL, PROGRAM = {"url": "http://localhost:8000/mcp"}, {"command": "python"}


def add(a: int, b: int) -> int:
    return a + b


class Adding:
    """A tool in the clothes of an object."""

    def __call__(self, a: int) -> int:
        return a


def shown(value: object) -> str:
    """The same in every process, for tests that are shared out by their names."""
    return re.sub(r" at 0x\w+", "", repr(value))


LOCAL = {"server": add}

MISFITS: list[tuple[dict[str, Any], str]] = [
    ({}, "url"),
    ({**URL, **PROGRAM}, "url"),
    ({**URL, **LOCAL}, "url"),
    ({**PROGRAM, **LOCAL}, "command"),
    ({**URL, "transport": "stdio"}, "transport"),
    ({**URL, "transport": "local"}, "transport"),
    ({**PROGRAM, "transport": "http"}, "transport"),
    ({**PROGRAM, "transport": "sse"}, "transport"),
    ({**LOCAL, "transport": "stdio"}, "transport"),
    ({**URL, "args": ["-v"]}, "args"),
    ({**URL, "env": {"A": "b"}}, "env"),
    ({**URL, "cwd": "/"}, "cwd"),
    ({**PROGRAM, "headers": {"x-tenant": "blue"}}, "headers"),
    ({**PROGRAM, "api_key": "sk-123456789"}, "api_key"),
    ({**PROGRAM, "proxy": "http://localhost:1"}, "proxy"),
    ({**LOCAL, "headers": {"x-tenant": "blue"}}, "headers"),
    ({**LOCAL, "args": ["-v"]}, "args"),
    ({**LOCAL, "env": {"A": "b"}}, "env"),
    ({**URL, "transport": "sse", "mode": "modern"}, "transport"),
]


@pytest.mark.parametrize(("given", "key"), MISFITS, ids=shown)
@pytest.mark.requirement("S13")
def test_what_does_not_go_together_is_named(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"name": "kit", **given})
    assert caught.value.key == key
    assert caught.value.remedy


@pytest.mark.parametrize(
    "given",
    [
        *({**URL, "transport": one} for one in (None, "http", "sse")),
        {**URL, "transport": "sse", "mode": "legacy"},
        {**URL, "transport": "http", "mode": "modern", "headers": {"x-tenant": "blue"}},
        {**PROGRAM, "transport": "stdio", "args": ["-v"], "env": {"A": "b"}, "cwd": "/"},
        {**LOCAL, "transport": "local"},
    ],
    ids=shown,
)
def test_what_goes_together_is_taken(given: dict[str, Any]) -> None:
    assert ServerSpec.parse({"name": "kit", **given}).name == "kit"


@pytest.mark.parametrize(
    ("server", "name"),
    [
        (add, "add"),
        ([add], "add"),
        ((add, print), "add"),
        (Adding(), "local"),
        (MCPServer("my tools"), "my-tools"),
        (Server("low"), "low"),
    ],
    ids=["function", "list", "tuple", "object", "MCPServer", "Server"],
)
def test_a_server_in_this_process_needs_no_mapping_and_has_a_name(server: Any, name: str) -> None:
    spec = ServerSpec.parse(server)
    assert spec.server is not None
    assert spec.name == name


@pytest.mark.parametrize("value", [[], (), [add, 1], Adding, 5, None, b"python"], ids=shown)
def test_what_is_no_server_is_none(value: Any) -> None:
    with pytest.raises(ConfigError):
        ServerSpec.parse(value)


@pytest.mark.parametrize(
    ("given", "transport"),
    [
        ({**PROGRAM, "type": "stdio"}, "stdio"),
        ({**URL, "type": "sse"}, "sse"),
        *(({**URL, "type": f"streamable{end}"}, "http") for end in ("-http", "_http", "Http")),
        ({**URL, "type": "http"}, "http"),
    ],
    ids=shown,
)
def test_the_type_of_other_products_is_the_transport(given: dict[str, Any], transport: str) -> None:
    assert ServerSpec.parse(given).transport == transport


@pytest.mark.parametrize(
    "given",
    [{**URL, "type": "carrier pigeon"}, {**URL, "type": "sse", "transport": "sse"}],
    ids=shown,
)
def test_a_type_that_says_nothing_is_an_unknown_key(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse(given)
    assert caught.value.key == "type"


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_file_of_servers_is_no_server(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({key: {"kit": URL}})
    assert caught.value.remedy
