"""Three processes, one session: the first opens it, the others go on with it."""

import asyncio
import subprocess
import sys
import tempfile

from toolkeep import Client, FileSessionStore
from toolkeep.testing import ScriptedServer


async def work(url: str, directory: str, text: str) -> None:
    async with Client(url, store=FileSessionStore(directory)) as client:
        print((await client.call_tool("echo", {"text": text})).text, flush=True)


async def start(*arguments: str) -> None:
    command = [sys.executable, __file__, *arguments]
    await asyncio.to_thread(subprocess.run, command, check=True)


async def main() -> None:
    async with ScriptedServer.spawn(era="legacy") as server:
        with tempfile.TemporaryDirectory() as directory:
            await start(server.url, directory, "the first opens a session")
            await start(server.url, directory, "the second goes on with it")
            await server.forget_sessions()
            await start(server.url, directory, "the third opens another")
        for request in await server.requests():
            print(f"  {request.http_method} {request.rpc_method or ''}")


asyncio.run(work(*sys.argv[1:]) if sys.argv[1:] else main())
