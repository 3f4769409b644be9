"""Watch a tool at work: events as they happen, then exactly one that is final."""

import asyncio

from toolkeep import Client, Completed, Failed, Log, Progress
from toolkeep.testing import ScriptedServer


async def watch(client: Client) -> None:
    async with client.stream("steps", {"count": 4, "gap": 0.1}) as call:
        async for event in call:
            match event:
                case Progress(fraction, message) if fraction is not None:
                    print(f"{fraction:4.0%}  {message}")
                case Log(level, data):
                    print(f"{level}: {data}")
                case Completed(result):
                    print("done:", result.text)
                case Failed(error):
                    print("failed:", error)


async def only_progress(client: Client) -> None:
    result = await client.call_tool(
        "steps",
        {"count": 2, "gap": 0.1},
        on_progress=lambda progress, total, message: print(f"{progress} of {total}"),
    )
    print("done:", result.text)


async def main() -> None:
    async with ScriptedServer.spawn(encoding="sse") as server, Client(server.url) as client:
        await watch(client)
        await only_progress(client)


asyncio.run(main())
