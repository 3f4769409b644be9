"""A tool at work, shown on a page: its events as server-sent events of a web application."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from toolkeep import CallContext, Runtime
from toolkeep.testing import ScriptedServer


async def told(runtime: Runtime, user: str) -> AsyncIterator[str]:
    context = CallContext(principal=user)
    async with runtime.stream("notes.steps", {"count": 3, "gap": 0.1}, context=context) as call:
        async for event in call:
            yield f"data: {event.to_json()}\n\n"


async def main(server: ScriptedServer) -> None:
    async with server as own, Runtime.open({"notes": own.url}) as runtime:

        async def progress(request: Request) -> StreamingResponse:
            lines = told(runtime, request.path_params["user"])
            return StreamingResponse(lines, media_type="text/event-stream")

        page = httpx2.ASGITransport(Starlette(routes=[Route("/{user}", progress)]))
        async with httpx2.AsyncClient(transport=page, base_url="http://page") as browser:
            for line in filter(None, (await browser.get("/ada")).text.split("\n\n")):
                event = json.loads(line.removeprefix("data: "))
                print(event["event"], event.get("message", "-"))


asyncio.run(main(ScriptedServer.spawn(encoding="sse")))
