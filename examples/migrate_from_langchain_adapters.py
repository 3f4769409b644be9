"""LangChain: the tools of two servers, for the user who is served; a session for each, kept."""

import asyncio
from typing import Any

from langchain_core.tools import BaseTool

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import ScriptedServer


async def after(connections: dict[str, Any]) -> None:
    async with Runtime.open(connections) as runtime:
        found: list[BaseTool] = await tools(runtime, ["math.add", "notes.headers"])
        print([tool.name for tool in found])
        for user in ("ada", "grace", "ada"):
            headers = {"authorization": f"Bearer {user}'s"}
            run: Any = {"configurable": {"principal": user, "headers": headers}}
            call: Any = {"type": "tool_call", "id": "1", "name": found[1].name, "args": {}}
            print(user, (await found[1].ainvoke(call, run)).artifact["authorization"])


async def main() -> None:
    async with ScriptedServer.local(era="legacy") as server:  # stands in for yours
        url = {"transport": "streamable_http", "url": server.url}
        await after({"math": url, "notes": url})
        print(len(await server.requests("initialize")), "sessions")


asyncio.run(main())
