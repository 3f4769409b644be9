"""Clients on both TypeScript SDKs, with a gateway in front of a FastMCP server."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.gateway.front import front
from tests.interop.programs import BOUND, HERE, node, running

CLIENTS = [("1", "legacy"), ("2", "legacy"), ("2", "modern")]
FASTMCP = {"command": sys.executable, "args": [str(HERE / "fastmcp_server.py"), "stdio"]}


async def use(url: str, sdk: str, era: str) -> dict[str, Any]:
    command = node(HERE / "gateway_client.mjs", url, sdk, era)
    async with running(command, {}, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            line = await process.stdout.readline()
    assert line, f"the client of SDK {sdk}, {era}, failed"
    return json.loads(line)


@pytest.mark.timeout(120)
async def test_typescript_clients_use_everything_that_a_gateway_passes_on() -> None:
    settings = {"profiles": {"bare": {"prefix": False}}}
    async with front({"mcpServers": {"made": FASTMCP}}, settings=settings) as gateway:
        url = f"{gateway.url}/bare"
        results = await asyncio.gather(*(use(url, *client) for client in CLIENTS))
    for (sdk, era), found in zip(CLIENTS, results, strict=True):
        assert {"add", "steps", "ask", "wait"} <= set(found["tools"])
        assert found["added"] == {"result": 5}
        assert found["steps"] == ["step 1", "step 2", "step 3"]
        assert found["name"]["content"] == {"name": "Ada"}
        assert found["words"]["content"]["text"] == "words"
        assert [root["uri"] for root in found["roots"]["roots"]] == ["file:///one"]
        assert found["prompt"] == "Hello, Ada"
        assert (found["note"], found["noteOf"]) == ("the note", "the note of Ada")
        assert found["completed"] == ["Ada", "Alan"]
        assert f"{sdk}-{era}" in found["ended"].split(), "the call was not cancelled at the server"
        assert f"grown_{sdk}_{era}" in found["grown"]
