"""A process that runs a program for others: `python program_owner.py STORE SPEC`. Says when it is
ready, and ends when its stdin does."""

import asyncio
import json
import sys

from toolkeep import Runtime


async def main(store: str, spec: str) -> None:
    async with Runtime({"mcpServers": {"kit": json.loads(spec)}}, state=store):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
