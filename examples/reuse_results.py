"""Results of read-only tools, used again for the same caller and the same arguments."""

import asyncio

from toolkeep import CallContext, Runtime
from toolkeep.testing import ScriptedServer

ADA, GRACE = CallContext(principal="ada"), CallContext(principal="grace")


async def main() -> None:
    async with ScriptedServer.spawn() as server:
        spec = {"name": "notes", "url": server.url, "cache_results": {"record_*": 60}}
        async with Runtime.open([spec]) as runtime:

            async def read(context: CallContext) -> None:
                asked = {"key": "note 1"}
                result = await runtime.call("notes.record_read_only", asked, context=context)
                ran = await server.executions("note 1")
                print(f"{context.principal}: cached={result.cached}, run {ran} so far")

            await read(ADA)
            await read(ADA)
            await read(GRACE)
            await asyncio.gather(*(runtime.call("notes.record_read_only") for _ in range(100)))
            print(f"a hundred at once: run {await server.executions('record_read_only')}")
            await runtime.call("notes.record", {"key": "a new note"}, context=GRACE)
            await read(ADA)
            print(f"figures: {runtime.figures.server('notes').cached} were not sent")


asyncio.run(main())
