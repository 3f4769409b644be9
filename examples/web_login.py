"""A web application whose users log in to an MCP server, each with an account of their own."""

from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from toolkeep import AuthNeeded, CallContext, Runtime


def make_app(config: str | dict[str, Any], callback: str) -> Starlette:
    runtime = Runtime(config)

    async def ask(request: Request) -> Response:
        user = request.headers["x-user"]  # whom your own login has found
        try:
            context = CallContext(principal=user)
            return PlainTextResponse((await runtime.call("files.headers", context=context)).text)
        except AuthNeeded as error:
            login = await runtime.begin_login(error.server, user, redirect_uri=callback)
            return RedirectResponse(login.url)

    async def complete(request: Request) -> Response:
        await runtime.complete_login(str(request.url), principal=request.headers["x-user"])
        return RedirectResponse("/")

    @asynccontextmanager
    async def lifespan(_: Starlette):
        async with runtime:
            yield

    return Starlette(routes=[Route("/", ask), Route("/callback", complete)], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(make_app("mcp.json", "http://localhost:8000/callback"))
