"""A web application with the console of its runtime, for its administrators."""

from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from toolkeep import Runtime
from toolkeep.console import Action, Console


def is_admin(request: Request) -> bool:
    return request.headers.get("x-user") == "admin"  # whom your own login has found


async def allow(action: Action) -> bool:
    if action.kind == "call":
        return action.server == "math" and action.principal is None
    return action.kind in ("show", "reconnect")


def make_app(config: str | dict[str, Any]) -> Starlette:
    runtime = Runtime(config)

    @asynccontextmanager
    async def lifespan(_: Starlette):
        async with runtime:
            yield

    console = Console(runtime, authenticate=is_admin, allow_calls=allow)
    return Starlette(routes=[Mount("/toolkeep", console)], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(make_app("mcp.json"), host="127.0.0.1", port=8000)
