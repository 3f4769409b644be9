"""A server on the official SDK, run as a program: `python official_server.py PORT json|sse`."""

import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("official")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def steps(ctx: Context, count: int) -> str:
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step}")
        await anyio.sleep(0.1)
    return "done"


@server.tool()
async def wait(seconds: float) -> str:
    try:
        await anyio.sleep(seconds)
    except BaseException:
        print("cancelled", flush=True)
        raise
    return "waited"


@server.tool()
def fail(why: str) -> str:
    raise ValueError(why)


@server.prompt()
def greet(name: str) -> str:
    return f"Hello, {name}"


@server.resource("note://one")
def note() -> str:
    return "the note"


if __name__ == "__main__":
    server.run(
        transport="streamable-http", port=int(sys.argv[1]), json_response=sys.argv[2] == "json"
    )
