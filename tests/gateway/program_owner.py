"""A process that runs a program for others: `python program_owner.py STORE SPEC LEASE`, with the
seconds of its lease. Says when it is ready, and ends when its stdin does."""

import asyncio
import json
import sys

from toolkeep import Runtime
from toolkeep.state import shared


async def main(store: str, spec: str, lease: str) -> None:
    shared.LEASE_TTL = float(lease)
    async with Runtime({"mcpServers": {"kit": json.loads(spec)}}, state=store):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
