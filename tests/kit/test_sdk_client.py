"""The SDK's own client takes the scripted server for an MCP server, in both eras and encodings."""

from collections.abc import Callable
from typing import Any

import pytest
from mcp import Client

from toolkeep.testing import ScriptedServer

ERAS = [
    ("legacy", "legacy"),
    ("legacy", "auto"),
    ("both", "legacy"),
    ("both", "auto"),
    ("modern", "auto"),
]


@pytest.mark.parametrize("encoding", ["json", "sse"])
@pytest.mark.parametrize(("era", "mode"), ERAS)
async def test_the_sdk_client_can_use_every_feature(encoding: Any, era: Any, mode: Any):
    async with ScriptedServer.local(era=era, encoding=encoding) as server:
        async with Client(server.url, mode=mode) as client:
            tools = await client.list_tools()
            added = await client.call_tool("add", {"a": 1, "b": 2})
            content = await client.call_tool("content", {})
            failed = await client.call_tool("fail", {"message": "no"})
            prompt = await client.get_prompt("greet", {"name": "Ada"})
            note = await client.read_resource("kit://notes")
            await client.list_prompts()
            await client.list_resources()
            await client.list_resource_templates()
        assert {"echo", "add", "record", "slow"} <= {tool.name for tool in tools.tools}
        assert added.structured_content == {"sum": 3}
        assert [part.type for part in content.content] == [
            *("text", "image", "audio", "resource_link", "resource")
        ]
        assert failed.is_error
        assert len(prompt.messages) == len(note.contents) == 1
        assert await server.executions("add") == 1


async def test_both_homes_serve_the_sdk_client(home: Callable[..., ScriptedServer]):
    async with home() as server:
        async with Client(server.url) as client:
            await client.call_tool("record", {"key": "k"})
        assert await server.ledger() == {"k": 1}
        assert [r.rpc_method for r in await server.requests()][:2] == [
            "server/discover",
            "tools/call",
        ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_progress_reaches_the_sdk_client(mode: Any):
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with (
        ScriptedServer.local(encoding="sse") as server,
        Client(server.url, mode=mode) as client,
    ):
        await client.call_tool("steps", {"count": 3}, progress_callback=listen)
    assert sorted(heard) == [1, 2, 3]


async def test_a_modern_listener_hears_that_the_tools_changed():
    async with ScriptedServer.local(era="modern") as server, Client(server.url) as client:
        async with client.listen(tools_list_changed=True) as changes:
            await server.set_tools([{"name": "new", "inputSchema": {"type": "object"}}])
            assert await server.notify("notifications/tools/list_changed") == 1
            assert await anext(aiter(changes)) is not None
        assert "new" in {tool.name for tool in (await client.list_tools()).tools}
