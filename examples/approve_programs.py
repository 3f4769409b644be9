"""A file that was found starts no program before a person has approved it."""

import asyncio
import sys
import tempfile
from pathlib import Path

from toolkeep import Client, Configuration, load
from toolkeep.config import FileApprovals, approve

HERE = Path(__file__).resolve().parent
MCP_JSON = """{"mcpServers": {"notes": {
  "command": "${PYTHON}", "args": ["notes_server.py"],
  "cwd": "${HERE}", "env": {"NOTES_KEY": "n-123"}
}}}"""


async def main(folder: Path) -> None:
    kept = FileApprovals(folder / "state" / "approvals.json")

    def loaded() -> Configuration:
        env = {"PYTHON": sys.executable, "HERE": str(HERE)}
        return load(cwd=folder, env=env, approvals=kept)

    (folder / "mcp.json").write_text(MCP_JSON)
    configuration = loaded()
    for pending in configuration.needs_approval:
        print(f"{pending.origin} wants to start {pending.name}: {pending.shown}")
        configuration = approve(configuration, pending.name, kept)  # if the person says yes
    async with Client(configuration["notes"]) as client:
        print((await client.call_tool("surroundings")).text)

    print("loaded again:", len(loaded().needs_approval), "to approve")
    (folder / "mcp.json").write_text(MCP_JSON.replace("n-123", "n-124"))
    print("edited:", len(loaded().needs_approval), "to approve")


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(Path(place)))
