"""From an mcp.json to clients: read, checked, and told where each value came from."""

import asyncio
import tempfile
from pathlib import Path

from toolkeep import Client, ConfigError, load
from toolkeep.testing import ScriptedServer

MCP_JSON = """{
  "mcpServers": {
    "notes": {
      "url": "${NOTES_URL}",
      "headers": {"X-Team": "${TEAM:-blue}"},
      "timeout": 20000
    },
    "archive": {"url": "https://archive.example/mcp", "disabled": true}
  }
}"""


async def main(folder: Path) -> None:
    (folder / "mcp.json").write_text(MCP_JSON)
    async with ScriptedServer.local() as server:
        configuration = load(cwd=folder, env={"NOTES_URL": server.url})
        for spec in configuration.servers:
            async with Client(spec) as client:
                print(spec.name, (await client.call_tool("echo", {"text": "hello"})).text)
        for key, origin in configuration.origins["notes"].items():
            print(f"{key:15} {origin}")
        print(dict(configuration.disabled))
    try:
        load(cwd=folder, env={})
    except ConfigError as error:
        print(error)


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(Path(place)))
