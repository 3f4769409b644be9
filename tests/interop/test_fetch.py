"""`mcp-server-fetch`, which is sent to a server on this machine: one page, and one that hangs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from tests.interop.matrix import Feature, at, lacks, proves
from tests.interop.programs import BOUND, Heard, Mode, Person, assert_lacks
from toolkeep import Client

LACKING: tuple[Feature, ...] = (
    *("resources", "completion", "progress", "logging", "list changes"),
    *("sampling", "elicitation", "roots"),
)
eras = pytest.mark.parametrize(
    "mode",
    [pytest.param(era, marks=at("mcp-server-fetch", "stdio", era)) for era in ("legacy", "modern")],
)
PAGE = b"<html><body><main><h1>A page</h1><p>About the sea and its ships.</p></main></body></html>"


class Site:
    """Two pages: `/page`, and `/never`, which notes when its reader goes."""

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Site"]:
        listener = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        async with listener:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /never"):
            self.asked.set()
            await reader.read()
            self.left.set()
        else:
            size = b"Content-Length: %d" % len(PAGE)
            lines = (b"HTTP/1.1 200 OK", b"Content-Type: text/html", size, b"Connection: close")
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + PAGE)
            await writer.drain()
        writer.close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


@asynccontextmanager
async def client_of(mode: Mode) -> AsyncIterator[Client]:
    args = ["-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"]
    spec: dict[str, Any] = {"name": "fetch", "command": sys.executable, "args": args, "mode": mode}
    heard = Heard()
    async with asyncio.timeout(BOUND), Client(spec, **Person().answers()) as client:
        with closing(client.observe(heard)):
            yield client
            await assert_lacks(client, heard, LACKING)


@eras
@pytest.mark.requirement("S12", "S13", "P5")
@proves("tools", "prompts", "cancellation")
@lacks(*LACKING)
async def test_a_page_is_fetched_and_one_that_never_comes_is_given_up(mode: Mode):
    async with Site().open() as site, client_of(mode) as client:
        assert client.era == mode
        assert [tool.name for tool in await client.list_tools()] == ["fetch"]
        fetched = await client.call_tool("fetch", {"url": site.url("page"), "raw": True})
        assert "the sea and its ships" in fetched.text
        (prompt,) = await client.list_prompts()
        (message,) = (await client.get_prompt(prompt.name, {"url": site.url("page")})).messages
        assert "the sea" in str(message.content)
        calling = asyncio.create_task(client.call_tool("fetch", {"url": site.url("never")}))
        await site.asked.wait()
        calling.cancel()
        await site.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await client.call_tool("fetch", {"url": site.url("page")})).success
