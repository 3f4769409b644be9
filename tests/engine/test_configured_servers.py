"""From a file to answers: what a configuration says is what its servers see."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND
from toolkeep import CallTimedOut, Client, ServerGroup, load
from toolkeep.config import MemoryApprovals, approve
from toolkeep.testing import Behaviour, Rule, ScriptedServer


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.requirement("C1", "H5")
async def test_servers_of_every_kind_in_one_file_can_be_called(tmp_path: Path):
    async with (
        ScriptedServer.local(api_key="key-of-the-web") as web,
        ScriptedServer.local(transport="sse") as old,
        ScriptedServer.stdio() as program,
        asyncio.timeout(BOUND * 2),
    ):
        servers = {
            "web": {"url": web.url, "headers": {"Authorization": "Bearer ${WEB_KEY}"}},
            "old": {"type": "sse", "url": old.url},
            "program": {key: program.spec[key] for key in ("command", "args", "env")},
        }
        file = written(tmp_path, "mcp.json", {"mcpServers": servers})
        found = load(file, env={"WEB_KEY": "key-of-the-web"})
        async with ServerGroup([Client(spec) for spec in found.servers]) as group:
            assert [client.name for client in group.connected] == ["web", "old", "program"]
            for client in group.connected:
                result = await client.call_tool("echo", {"text": client.name})
                assert result.text == client.name


@pytest.mark.requirement("C2")
async def test_a_timeout_of_the_environment_is_kept_and_a_servers_own_wins(tmp_path: Path):
    async with ScriptedServer.local() as server:
        await server.script(Rule(tool="record", do=Behaviour(hang=True)))
        text = f'[servers.a]\nurl = "{server.url}"\n[servers.b]\nurl = "{server.url}"\n'
        file = written(tmp_path, "toolkeep.toml", f"{text}timeouts = {{call = {BOUND * 4}}}\n")
        found = load(file, env={"MCP_CLIENT_TIMEOUT": "0.3"})
        async with Client(found["a"]) as quick, Client(found["b"]) as patient:
            waiting = asyncio.ensure_future(patient.call_tool("record"))
            async with asyncio.timeout(BOUND):
                with pytest.raises(CallTimedOut):
                    await quick.call_tool("record")
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait((waiting,))


@pytest.mark.requirement("C4")
async def test_a_file_that_was_found_starts_its_program_only_once_approved(tmp_path: Path):
    approvals = MemoryApprovals()
    async with ScriptedServer.stdio() as program, asyncio.timeout(BOUND * 2):
        entry = {key: program.spec[key] for key in ("command", "args", "env")}
        written(tmp_path, "mcp.json", {"mcpServers": {"tools": entry}})
        found = load(env={}, cwd=tmp_path, approvals=approvals)
        async with ServerGroup([Client(spec) for spec in found.servers]) as group:
            assert group.configured == []
        assert await program.starts() == 0
        approve(found, "tools", approvals)
        (spec,) = load(env={}, cwd=tmp_path, approvals=approvals).servers
        async with Client(spec) as client:
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        entry["args"] = [*entry["args"], "--changed"]
        written(tmp_path, "mcp.json", {"mcpServers": {"tools": entry}})
        changed = load(env={}, cwd=tmp_path, approvals=approvals)
        assert (changed.servers, [one.name for one in changed.needs_approval]) == ((), ["tools"])
        assert await program.starts() == 1
