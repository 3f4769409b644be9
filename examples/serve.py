"""An MCP server to play with: `python examples/serve.py [PORT]`. Ctrl-C ends it."""

import asyncio
import contextlib
import sys

from toolkeep.testing import ScriptedServer


async def main(port: int) -> None:
    async with ScriptedServer.local(port=port, encoding="sse") as server:
        print(f"An MCP server at {server.url}. Ctrl-C ends it.", flush=True)
        await asyncio.Event().wait()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000))
