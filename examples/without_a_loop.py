"""The same runtime for programs without an event loop, and for threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from toolkeep import CallContext
from toolkeep.blocking import Runtime
from toolkeep.testing import ScriptedServer


def main(url: str) -> None:
    with Runtime.open({"notes": url}) as runtime:
        print(runtime.summary())
        print(runtime.call("notes.add", {"a": 2, "b": 3}).data)
        with runtime.stream("notes.steps", {"count": 2}) as call:
            print(*(event.kind for event in call), call.result().text)
        (echo,) = runtime.resolve(["echo"], CallContext(principal="ada"))

        def say(number: int) -> str:
            return echo.call({"text": f"thread {number}"}).text

        with ThreadPoolExecutor(4) as threads:
            print(*threads.map(say, range(4)), sep=", ")


async def with_a_server() -> None:
    async with ScriptedServer.local(encoding="sse") as server:  # stands in for yours
        await asyncio.to_thread(main, server.url)


asyncio.run(with_a_server())
