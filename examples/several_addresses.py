"""One server with three addresses: calls are spread over them, and one of them goes away."""

import asyncio

from toolkeep import Runtime
from toolkeep.testing import ScriptedServer


async def main() -> None:
    async with ScriptedServer.spawn(era="modern") as one, ScriptedServer.spawn(era="modern") as two:
        async with ScriptedServer.spawn(era="modern") as three:
            spec = {"name": "notes", "urls": [one.url, two.url, three.url]}
            runtime = Runtime([spec])
            await runtime.connect()
            for number in range(9):
                await runtime.call("notes.record", {"key": f"note {number}"})
            for server in (one, two, three):
                print(f"{len(await server.requests('tools/call'))} calls")

        done = [await runtime.call("notes.record_read_only", {"key": "read"}) for _ in range(6)]
        print(f"without the third: {sum(each.success for each in done)} of 6")
        read = [await server.executions("read") for server in (one, two)]
        print(f"run by the others: {sum(read)}")
        (status,) = runtime.servers
        print(f"faults: {[each.faults > 0 for each in status.endpoints]}")
        await runtime.aclose()


asyncio.run(main())
