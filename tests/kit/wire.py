"""A bare HTTP client for the kit's own tests: it says exactly how an answer ended."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

BOUND = 5.0
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    ended: Literal["whole", "closed", "reset"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        text = self.body.decode().replace("\r\n", "\n")
        lines = [line for line in text.split("\n") if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: "]

    @property
    def ids(self) -> list[str]:
        return [line[4:] for line in self.body.decode().splitlines() if line.startswith("id: ")]


class Wire:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.session: str | None = None

    async def send(
        self, verb: str, message: Any = None, *, path: str = "/mcp", **headers: str
    ) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        known = {"host": "kit", "accept": "application/json, text/event-stream"}
        if self.session is not None:
            known["mcp-session-id"] = self.session
        for name, value in headers.items():
            known[name.replace("_", "-")] = value
        known["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in known.items())
        self.writer.write(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await self.writer.drain()

    async def receive(self) -> Answer:
        answer = Answer(0, {}, b"", "whole")
        try:
            async with asyncio.timeout(BOUND):
                await self._receive(answer)
        except asyncio.IncompleteReadError as error:
            answer.body += error.partial if answer.status else b""
            answer.ended = "closed"
        except ConnectionResetError:
            answer.ended = "reset"
        return answer

    async def _receive(self, answer: Answer) -> None:
        start, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        answer.headers = dict(line.lower().split(": ", 1) for line in lines[:-2])
        answer.status = int(start.split()[1])
        if "chunked" in answer.headers.get("transfer-encoding", ""):
            while size := int((await self.reader.readuntil(b"\r\n")), 16):
                answer.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif "content-length" in answer.headers:
            left = int(answer.headers["content-length"])
            while left and (piece := await self.reader.read(left)):
                answer.body, left = answer.body + piece, left - len(piece)
            if left:
                raise asyncio.IncompleteReadError(b"", left)
        else:
            answer.body = await self.reader.read()

    async def ask(self, verb: str, message: Any = None, **headers: str) -> Answer:
        await self.send(verb, message, **headers)
        return await self.receive()

    async def initialize(self) -> Answer:
        client = {"name": "wire", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.session = None
        answer = await self.ask("POST", request("initialize", params))
        self.session = answer.headers.get("mcp-session-id")
        return answer

    async def call(self, tool: str, about: Any = 7, **arguments: Any) -> Answer:
        params = {"name": tool, "arguments": arguments}
        return await self.ask("POST", request("tools/call", params, about))

    async def modern(
        self, method: str, params: Any = None, about: Any = 7, **headers: str
    ) -> Answer:
        await self.send_modern(method, params, about, **headers)
        return await self.receive()

    async def send_modern(
        self, method: str, params: Any = None, about: Any = 7, **more: str
    ) -> None:
        full = {**(params or {}), "_meta": {**ENVELOPE, **(params or {}).get("_meta", {})}}
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
        if "name" in full:
            headers["mcp_name"] = full["name"]
        await self.send("POST", request(method, full, about), **headers, **more)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def request(method: str, params: Any = None, about: Any = 7) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": about, "method": method, "params": params or {}}


@asynccontextmanager
async def wire_to(port: int) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        await wire.close()
