"""Who may see and call what: patterns, tags, and a function of your own."""

import asyncio

from toolkeep import CallContext, NotPermitted, Runtime, Tool, UnknownTool
from toolkeep.testing import ScriptedServer

PERMISSIONS = {
    "*": ["notes.echo"],
    "team-*": {"see": ["notes.*"], "call": ["#safe", "notes.record*"]},
    "team-intern": ["!notes.record"],
    "admin": ["*"],
}


def on_weekdays(tool: Tool, context: CallContext) -> bool:
    return tool.tool != "slow" or context.metadata.get("day") != "Sunday"


async def main() -> None:
    async with ScriptedServer.local() as server:
        notes = {"url": server.url, "exclude_tools": ["bad_*"], "tool_tags": {"add": ["safe"]}}
        rules = {"permissions": PERMISSIONS, "filter": on_weekdays}
        async with Runtime.open({"notes": notes}, **rules) as runtime:
            for name in (None, "team-a", "team-intern", "admin"):
                seen = await runtime.catalogue_for(CallContext(principal=name))
                print(f"{name}: {len(seen)} of {len(runtime.catalogue)} tools")

            admin = CallContext(principal="admin", metadata={"day": "Sunday"})
            print("slow on Sunday:", "notes.slow" in await runtime.catalogue_for(admin))
            for name in ("notes.add", "notes.record", "notes.echo", "notes.slow"):
                try:
                    context = CallContext(principal="team-intern")
                    await runtime.call(name, {"a": 1, "b": 2, "text": ""}, context=context)
                except (NotPermitted, UnknownTool) as error:
                    print(f"{type(error).__name__}: {error}")


asyncio.run(main())
