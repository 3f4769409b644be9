"""Scenarios: lists of tools that are long, wrong, or no longer true."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.scenarios.scenario import scenario
from benchmarks.scenarios.stage import Stage
from toolkeep.testing.script import Behaviour, Rule

_LAST = {"name": "last", "description": "On the last page.", "inputSchema": {"type": "object"}}
_NEW = {"name": "new", "description": "Added.", "inputSchema": {"type": "object"}}
_MOST_PAGES = 1000
_LOOKS, _LOOK = 20, 0.1
"""How often, and with which pause, to ask for a list that is about to change."""


@scenario(
    "the list has several pages",
    "the tools of all pages are listed; calls of one on the last page cost no further lists",
    page_size=4,
    tools=(_LAST,),
)
async def several_pages(stage: Stage) -> None:
    await stage.ready()
    listed = await stage.tools()
    stage.require(listed.what == "answer", f"listing: {listed}")
    stage.require("last" in listed.tools, f"only {len(listed.tools)} tools are listed")
    await stage.answered("last", key="0")
    before = len(await stage.sent("tools/list"))
    for number in range(3):
        await stage.answered("last", key=str(number))
    more = len(await stage.sent("tools/list")) - before
    stage.require(more == 0, f"{more} requests for lists in 3 calls")


@scenario(
    "the list breaks (500) after it was listed once",
    "calls of tools that were listed go on, and run once",
    page_size=4,
    tools=(_LAST,),
)
async def list_breaks_later(stage: Stage) -> None:
    await stage.ready()
    listed = await stage.tools()
    stage.require(listed.what == "answer", f"listing: {listed}")
    await stage.server.script(Rule(method="tools/list", do=Behaviour(status=500, body="oh")))
    for tool in ("record", "last"):
        if tool in listed.tools:
            await stage.answered(tool, what=f"calling {tool}", key=tool)
            await stage.ran(tool)


@scenario(
    "the server's pages go round in a circle (the same cursor again and again)",
    "listing comes to an end, with what there is or with an error",
)
async def repeated_cursor(stage: Stage) -> None:
    await stage.server.script(Rule(method="tools/list", do=Behaviour(result=_circle())))
    listed = await stage.open()  # some list when they are opened
    if listed.what == "answer":
        listed = await stage.tools()
    pages = len(await stage.sent("tools/list"))
    stage.require(listed.what in ("answer", "error"), f"listing: {listed}, {pages} pages")
    stage.require(pages <= _MOST_PAGES, f"{pages} requests")
    stage.note(f"{pages} requests, then {listed.text or 'the list'}")


def _circle() -> dict[str, Any]:
    """Also what the modern era wants of a list."""
    modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    return {"tools": [_LAST], "nextCursor": "again", **modern}


@scenario(
    "one tool of the list has no schema",
    "the others are listed, and can be called",
    tools=({"name": "broken"}, _LAST),
)
async def malformed_tool(stage: Stage) -> None:
    opened = await stage.open()
    stage.require(opened.what == "answer", f"opening: {opened}")
    listed = await stage.tools()
    stage.require("last" in listed.tools, f"listing: {listed}")
    await stage.answered("last", key="key")
    await stage.ran("key")


@scenario(
    "a tool is added, and the server says that its list has changed",
    "the new tool is listed within 2 s, and can be called",
)
async def list_changed(stage: Stage) -> None:
    await stage.ready()
    first = await stage.tools()
    stage.require(first.what == "answer", f"listing: {first}")
    await stage.server.set_tools([_NEW])
    stage.note(f"{await _say_so(stage)} listened")
    for _ in range(_LOOKS):
        if "new" in (await stage.tools()).tools:
            break
        await asyncio.sleep(_LOOK)
    else:
        stage.require(False, "the new tool is not listed")
    await stage.answered("new", key="key")
    await stage.ran("key")


async def _say_so(stage: Stage) -> int:
    """To those who listen; some list every time, and do not."""
    change = "notifications/tools/list_changed"
    try:
        return await stage.server.notify(change, within=1.0)
    except TimeoutError:
        return await stage.server.notify(change, listeners=0)


ALL = (several_pages, list_breaks_later, repeated_cursor, malformed_tool, list_changed)
