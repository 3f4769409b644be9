"""A program that shares a stored session: `python session_user.py DIRECTORY URL`.

It does what it is told, a line of JSON at a time, and answers each with one. A call may run while
the next line is read.
"""

import asyncio
import json
import sys
from typing import Any

from toolkeep import Client


async def calls(client: Client, tags: list[str], seconds: float) -> list[str]:
    """Many at once; what each brought back."""
    asked = (client.call_tool("slow", {"tag": tag, "seconds": seconds}) for tag in tags)
    return [result.text for result in await asyncio.gather(*asked)]


async def main(directory: str, url: str) -> None:
    spec = {"name": "shared", "url": url, "mode": "legacy"}
    client = Client(spec, state=f"sqlite://{directory}/state.db")
    while line := await asyncio.to_thread(sys.stdin.readline):
        told: dict[str, Any] = json.loads(line)
        answer: Any = None
        if told["do"] == "connect":
            await client.connect()
        elif told["do"] == "call":
            answer = await calls(client, told["tags"], told["seconds"])
        print(json.dumps({"session": client.session_id, "answer": answer}), flush=True)
    await client.aclose()


asyncio.run(main(*sys.argv[1:]))
