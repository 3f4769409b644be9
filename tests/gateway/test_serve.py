"""`toolkeep serve` over HTTP: what it says, who may call, workers, edits, and its end."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import mcp
import pytest

from tests.cli.helpers_running import Home
from tests.gateway.serving import BOUND, configure, serving
from toolkeep import CallOutcomeUnknown, Client
from toolkeep.cli import serve
from toolkeep.cli.errors import UsageError
from toolkeep.cli.output import Output
from toolkeep.cli.source import ServerSource
from toolkeep.config.gateway import hash_key, new_key
from toolkeep.errors import AuthNeeded, ConfigError
from toolkeep.testing import ScriptedServer

pytestmark = [pytest.mark.requirement("W7"), pytest.mark.timeout(60)]


@pytest.fixture
async def kit() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer.local(encoding="sse") as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_it_says_where_it_serves_and_to_whom_and_real_clients_can_use_it(
    kit: ScriptedServer, tmp_path: Path
):
    lines = "[gateway.profiles.few]\ninclude = ['echo']\n"
    configure(tmp_path, {"kit": kit.spec}, lines)
    async with serving(tmp_path, "-c", "toolkeep.toml") as served:
        assert served.said[0] == f"serving {served.url} {served.url}/few"
        assert served.said[1].startswith("1/1 servers healthy")
        assert served.said[2] == "callers: everybody on this machine"
        base = served.url.removesuffix("/mcp")
        assert (await get(f"{base}/healthz"))[0] == 200
        status, body = await get(f"{base}/readyz")
        assert (status, json.loads(body)["ready"]) == (200, True)
        for mode in ("legacy", "auto"):
            async with mcp.Client(f"{served.url}/few", mode=mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["kit__echo"]
                assert not (await client.call_tool("kit__echo", {"text": "x"})).is_error
        assert await served.stop() == 0


async def test_it_is_alive_but_not_ready_while_no_server_can_be_reached(tmp_path: Path):
    configure(tmp_path, {"gone": {"url": "http://127.0.0.1:1/mcp"}})
    async with serving(tmp_path, "-c", "toolkeep.toml") as served:
        base = served.url.removesuffix("/mcp")
        assert (await get(f"{base}/healthz"))[0] == 200
        status, body = await get(f"{base}/readyz")
        assert status == 503
        assert "server" in " ".join(json.loads(body)["problems"])
        assert await served.stop(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines"),
        ({"stdio": True, "port": 1}, "--stdio serves one client"),
        ({"profile": "x"}, "is for --stdio"),
        ({"workers": 2, "console": True}, "shows one process"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    options: dict[str, Any], said: str, tmp_path: Path
):
    path = configure(tmp_path, {"kit": {"url": "http://127.0.0.1:1/mcp"}})
    with pytest.raises((UsageError, ConfigError), match=said):
        serve.serve(Output(), ServerSource(str(path)), **options)


def test_a_port_that_is_taken_is_refused(tmp_path: Path):
    path = configure(tmp_path, {"kit": {"url": "http://127.0.0.1:1/mcp"}})
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageError, match="cannot listen"),
    ):
        serve.serve(Output(), ServerSource(str(path)), port=taken.getsockname()[1])


async def test_the_command_ends_with_2_and_the_reason(home: Home):
    name = home.configure({"kit": {"url": "http://127.0.0.1:1/mcp"}})
    ran = await home.run("serve", "-c", name, "--stdio", "--profile", "x")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no profile 'x'" in ran.err


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec

    def without_uvicorn(name: str, *more: Any) -> Any:
        return None if name == "uvicorn" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without_uvicorn)
    with pytest.raises(UsageError, match=r"uvicorn.*toolkeep\[gateway\]"):
        serve.serve(Output(), ServerSource())


async def test_workers_share_sessions_and_one_that_dies_is_replaced(
    kit: ScriptedServer, tmp_path: Path
):
    configure(tmp_path, {"kit": kit.spec})
    async with serving(tmp_path, "-c", "toolkeep.toml", "--workers", "2") as served:
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
        if not children.exists():
            pytest.skip("only Linux lists the children of a process")
        before = children.read_text().split()
        assert len(before) == 2
        # A connection for each request, so that both workers get some.
        spec = {"url": served.url, "keep_alive": 0.001, "mode": "legacy"}
        async with Client(spec) as client:
            for number in range(20):
                await client.call_tool("kit__add", {"a": number, "b": 1})
            session = client.session_id
            os.kill(int(before[0]), signal.SIGKILL)
            await served.until("worker ")
            async with asyncio.timeout(BOUND):
                while len(children.read_text().split()) < 2:
                    await asyncio.sleep(0.05)
            for number in range(20):
                await client.call_tool("kit__add", {"a": number, "b": 1})
            assert client.session_id == session
        after = children.read_text().split()
        assert await served.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in after)


async def test_edits_of_keys_are_followed_and_wrong_ones_are_refused(
    kit: ScriptedServer, tmp_path: Path
):
    first, second = new_key(), new_key()
    configure(tmp_path, {"kit": kit.spec}, f'[gateway.keys]\nada = "{hash_key(first)}"')
    async with serving(tmp_path, "-c", "toolkeep.toml") as served:
        assert served.said[2] == "callers: API keys of ada"

        async def tools(key: str) -> int:
            async with Client({"url": served.url, "api_key": key}) as client:
                return len(await client.list_tools())

        assert await tools(first) > 1
        with pytest.raises(AuthNeeded):
            await tools(second)
        configure(tmp_path, {"kit": kit.spec}, '[gateway.keys]\nada = "not a hash"')
        await served.until("not the hash of a key")
        assert await tools(first) > 1
        configure(tmp_path, {"kit": kit.spec}, f'[gateway.keys]\nada = "{hash_key(second)}"')
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    assert await tools(second) > 1
                    break
                except AuthNeeded:
                    await asyncio.sleep(0.1)
        with pytest.raises(AuthNeeded):
            await tools(first)


async def test_the_first_signal_drains_it_and_the_second_one_ends_it_at_once(
    kit: ScriptedServer, tmp_path: Path
):
    configure(tmp_path, {"kit": kit.spec})
    async with (
        serving(tmp_path, "-c", "toolkeep.toml") as served,
        Client(served.url) as client,
        aiohttp.ClientSession() as session,
    ):
        ready = f"{served.url.removesuffix('/mcp')}/readyz"
        async with session.get(ready) as response:  # leaves a connection open, once it is read
            assert (await response.json())["ready"] is True
        call = asyncio.create_task(client.call_tool("kit__slow", {"seconds": 25}))
        while not await kit.executions("slow"):
            await asyncio.sleep(0.01)
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await served.process.wait()
        async with session.get(ready) as response:
            assert response.status == 503
            assert (await response.json())["problems"] == ["it is stopping"]
            assert response.headers["connection"] == "close"
        with pytest.raises(aiohttp.ClientConnectorError):  # to go on to another replica
            await get(ready)
        async with asyncio.timeout(5.0):
            assert await served.stop() == 130
        with pytest.raises(CallOutcomeUnknown):
            await call
