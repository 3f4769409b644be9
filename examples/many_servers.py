"""Many servers as one catalogue: found, called, watched, looked after."""

import asyncio

from toolkeep import AmbiguousTool, Progress, Runtime, UnknownTool
from toolkeep.testing import FaultProxy, ScriptedServer


async def use(runtime: Runtime) -> None:
    print((await runtime.call("notes.echo", {"text": "hello"})).text)
    async with runtime.stream("notes.steps", {"count": 2}) as call:
        async for event in call:
            print("  ", event.message if isinstance(event, Progress) else event.kind)
    for name in ("echo", "notes.ehco"):
        try:
            await runtime.resolve([name])
        except AmbiguousTool as error:
            print("several:", *error.candidates)
        except UnknownTool as error:
            print("none, but:", *error.suggestions)
    (add,) = await runtime.resolve(["notes__add"])
    print(add, add.model_name, (await add.call({"a": 2, "b": 3})).data)


async def main() -> None:
    up = ScriptedServer.local(encoding="sse")
    async with up as server, FaultProxy.to("127.0.0.1", server.port) as road:
        servers = {"notes": server.url, "search": road.url()}
        async with Runtime.open(servers) as runtime:
            print(runtime.summary())
            await use(runtime)
            road.refuse()
            await runtime.reconnect(failed_only=False)
            for one in runtime.servers:
                print(one.name, one.health.value, one.tools, "stale" if one.stale else "true")


asyncio.run(main())
