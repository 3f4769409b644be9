"""All servers of an mcp.json, one catalogue, calls for whoever they are made for."""

import asyncio
import contextlib
import json
import logging
import tempfile
from pathlib import Path

from toolkeep import CallContext, Runtime
from toolkeep.testing import ScriptedServer


async def main() -> None:
    async with Runtime.open("mcp.json") as runtime:
        print(runtime.summary())
        ada = CallContext(principal="ada", headers={"authorization": "Bearer ada's token"})
        result = await runtime.call("math.add", {"a": 2, "b": 3}, context=ada)
        print(result.data["sum"])
        for tool in await runtime.search("sum of two numbers", limit=1, context=ada):
            print(tool.name, "-", tool.description)


async def with_servers(folder: Path) -> None:
    async with ScriptedServer.local() as server:  # stands in for yours
        servers = {"math": {"url": server.url}, "notes": {"url": "http://127.0.0.1:9/mcp"}}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        await main()


# That a server is skipped is logged. Without a handler Python would print it among our own words.
logging.getLogger("toolkeep").addHandler(logging.NullHandler())
with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
    asyncio.run(with_servers(Path(place)))
