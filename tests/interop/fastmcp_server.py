"""A server made with FastMCP: `python fastmcp_server.py stdio`, or `http` with the port in PORT.

It offers by the same names what typescript_server.mjs offers, so that one set of tests is for both.
"""

import os
import sys

import anyio
import mcp_types as types
from fastmcp import Context, FastMCP

server = FastMCP("fastmcp")
given_up: list[str] = []
QUESTIONS: dict[str, types.InputRequest] = {
    "name": types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message="Who are you?",
            requested_schema={"type": "object", "properties": {"name": {"type": "string"}}},
        )
    ),
    "words": types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(text="?"))],
            max_tokens=9,
        )
    ),
    "roots": types.ListRootsRequest(),
}


@server.tool
def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def steps(ctx: Context, count: int) -> str:
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step}")
    return "done"


@server.tool
async def log(ctx: Context, line: str) -> str:
    await ctx.warning(line)
    return "logged"


@server.tool
async def wait(tag: str) -> str:
    try:
        await anyio.sleep(60)
    except BaseException:
        given_up.append(tag)
        raise
    return "waited"


@server.tool
def ended() -> str:
    """Which waits were given up."""
    return " ".join(given_up)


@server.tool
async def ask(ctx: Context, what: str) -> str | types.InputRequiredResult:
    """Ask the client for a name, for words of its model, or for its roots."""
    assert ctx.request_context is not None
    answer = (ctx.input_responses or {}).get(what)
    if answer is None and ctx.request_context.protocol_version >= "2026-07-28":
        return types.InputRequiredResult(input_requests={what: QUESTIONS[what]})
    if answer is None:
        answer = await ask_now(ctx, QUESTIONS[what])
    return answer.model_dump_json(by_alias=True)


async def ask_now(ctx: Context, question: types.InputRequest) -> types.ClientResult:
    match question:
        case types.ElicitRequest(params=types.ElicitRequestFormParams() as form):
            return await ctx.session.elicit_form(
                form.message, form.requested_schema, ctx.request_id
            )
        case types.CreateMessageRequest(params=wanted):
            return await ctx.session.create_message(
                wanted.messages, max_tokens=wanted.max_tokens, related_request_id=ctx.request_id
            )
        case _:
            return await ctx.session.list_roots()


@server.tool
async def grow(name: str, ctx: Context) -> str:
    """One tool more, which its clients are told of."""
    server.add_tool(types_of(name))
    await ctx.send_notification(types.ToolListChangedNotification())
    return "grown"


def types_of(name: str):  # the type is FastMCP's own
    from fastmcp.tools import Tool

    return Tool.from_function(lambda: name, name=name)


@server.prompt
def greet(name: str) -> str:
    return f"Hello, {name}"


@server.resource("note://one")
def note() -> str:
    return "the note"


@server.resource("note://of/{name}")
def note_of(name: str) -> str:
    return f"the note of {name}"


@server.completion
def complete(ref: object, argument: types.CompletionArgument, context: object) -> list[str]:
    return [name for name in ("Ada", "Alan", "Grace") if name.startswith(argument.value)]


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(transport="stdio", show_banner=False)
    else:
        port = int(os.environ["PORT"])
        server.run(transport="http", host="127.0.0.1", port=port, show_banner=False)
