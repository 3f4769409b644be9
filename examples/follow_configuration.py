"""Edits of a configuration are applied to what they concern, and to nothing else."""

import asyncio
import json
import tempfile
from contextlib import aclosing
from pathlib import Path

from toolkeep import Client, ConfigError, ServerGroup, load
from toolkeep.config import Difference, watch
from toolkeep.testing import ScriptedServer


async def apply(edit: Difference | ConfigError, group: ServerGroup[Client]) -> None:
    if isinstance(edit, ConfigError):
        print("not applied:", edit.key, edit.problem)
        return
    for name in edit.removed:
        await group.remove(name)
    for spec in edit.added:
        await group.add(Client(spec))
    for spec in edit.changed:
        await group.replace(spec.name, Client(spec))
    print([client.name for client in group.connected], "untouched:", *edit.unchanged)


async def main(folder: Path) -> None:
    async with ScriptedServer.local() as server, ServerGroup[Client]() as group:
        url, file = {"url": server.url}, folder / "mcp.json"
        async with aclosing(watch(file, since=load({}))) as edits:
            for entries in ({"a": url, "b": url}, {"a": url, "b": {}}, {"b": url, "c": url}):
                file.write_text(json.dumps({"mcpServers": entries}))  # as an editor would
                await apply(await anext(edits), group)


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(Path(place)))
