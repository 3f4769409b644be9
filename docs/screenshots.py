"""`python -m docs.screenshots`: the views of the console, light and dark, in `docs/pictures/`.

The page shows a real runtime with real servers of the test kit, some of them in trouble. The
pictures differ a little each time: times and ports are in them.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.console.page_world import (
    CHROMIUM,
    LEFT_OUT,
    World,
    go,
    open_browser,
    open_page,
    open_world,
    row,
)
from toolkeep import CallContext, ToolkeepError
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PICTURES = Path(__file__).resolve().parent / "pictures"
SIZE: Any = {"width": 1080, "height": 620}
MAX_BYTES = 150_000
SECONDS = 40
"""Of traffic, before the first picture."""

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def tool(name: str, description: str, hints: dict[str, bool], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {
        "name": name,
        "description": description,
        "annotations": hints,
        "inputSchema": schema,
    }


READS, REPEATABLE, DESTROYS = (
    {"readOnlyHint": True},
    {"idempotentHint": True, "destructiveHint": False},
    {"destructiveHint": True},
)
ADDRESS = {
    "type": "object",
    "description": "Where it goes.",
    "required": ["city"],
    "properties": {"street": TEXT, "city": TEXT, "country": {"enum": ["BE", "FR", "NL"]}},
}
SHOP = [
    tool("find_order", "Find the orders of a customer.", READS, customer=TEXT, limit=NUMBER),
    tool("set_address", "Change where an order goes.", REPEATABLE, order=NUMBER, to=ADDRESS),
    tool(
        *("pay", "Pay an order at once. The money cannot be called back.", DESTROYS),
        order={"type": "integer", "minimum": 1, "description": "The number of the order."},
        amount={"type": "number", "default": 9.5},
        to=ADDRESS,
        tags={"type": "array", "items": TEXT},
    ),
    tool("refund", "Give the money of an order back.", DESTROYS, order=NUMBER),
]
PAY = SHOP[2] | {"description": "Pay an open order, and tell the customer."}
CALENDAR = [
    tool("free_days", "The days on which nothing is planned.", READS, month=TEXT),
    tool("book", "Book a meeting room for a day.", DESTROYS, day=TEXT),
]
ROOM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "The Blue Room is taken on that day. Which other room do you want?",
        "requestedSchema": {
            "type": "object",
            "required": ["room"],
            "properties": {
                "room": TEXT | {"enum": ["Green Room", "Library"], "description": "With a view."},
                "people": {"type": "integer", "minimum": 1, "default": 4},
                "coffee": {"type": "boolean"},
            },
        },
    },
}


def result(text: str, **structured: Any) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": structured,
        "isError": False,
    }


ORDERS = result("2 orders", orders=[{"order": 7, "state": "open"}, {"order": 4, "state": "paid"}])
LOST = Rule(tool="pay", times=1, do=Behaviour(drop="after_run"))
FLAKY = Rule(tool="find_order", times=1, skip=40, do=Behaviour(drop="after_run"))
RULES = (
    LOST,
    FLAKY,
    Rule(tool="find_order", do=Behaviour(result=ORDERS)),
    Rule(tool="pay", do=Behaviour(result=result("paid", paid=True, total=9.5))),
    Rule(
        tool="refund",
        do=Behaviour(result={**result("order 4 was refunded before"), "isError": True}),
    ),
)
CALLS: list[tuple[str, dict[str, Any]]] = [
    *[("shop.find_order", {"customer": "ada@example.com", "limit": 2})] * 5,
    *[("calendar.free_days", {"month": "2026-12"})] * 3,
    ("shop.set_address", {"order": 7, "to": {"city": "Ghent"}}),
    ("shop.pay", {"order": 7, "amount": 9.5}),
    ("shop.refund", {"order": 4}),
    ("billing.invoice", {"order": 7}),
]
WHO = (None, "ada", "grace", "linus")


def servers() -> dict[str, ScriptedServer]:
    return {
        "shop": ScriptedServer.local(era="modern", encoding="sse", tools=SHOP),
        "calendar": ScriptedServer.local(era="legacy", encoding="sse", tools=CALENDAR),
    }


async def traffic(world: World) -> None:
    """What an agent might do, until it is cancelled."""
    random.seed(7)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        while True:
            name, arguments = random.choice(CALLS)
            group.create_task(one_call(world, name, arguments))
            await asyncio.sleep(0.12 + 0.08 * math.sin((loop.time() - began) / 4))


async def only_ours(world: World) -> None:
    """The shop without the tools of the test kit."""
    await world.servers["shop"].set_tools(SHOP, built_in=False)
    await world.servers["shop"].notify("notifications/tools/list_changed")
    while world.runtime.servers[0].tools != len(SHOP):  # noqa: ASYNC110 - in the runtime's own time
        await asyncio.sleep(0.05)


async def one_call(world: World, name: str, arguments: dict[str, Any]) -> None:
    who = random.choice(WHO)
    with suppress(ToolkeepError):
        await asyncio.sleep(random.expovariate(20))
        await world.runtime.call(
            name, arguments, context=CallContext(principal=who) if who else None
        )


# -- the pictures -------------------------------------------------------------------------------


def show_servers(page: Page, world: World) -> None:
    go(page, "#/servers")
    row(page, "shop").wait_for()


def show_calls(page: Page, world: World) -> None:
    go(page, "#/calls")
    page.get_by_role("button", name="unknown", exact=True).click()
    row(page, "pay").click()
    page.get_by_role("button", name="all", exact=True).click()
    page.locator(".detail .timeline").wait_for()


def show_try(page: Page, world: World) -> None:
    go(page, "#/try/shop.pay?kind=tools")
    pane = page.locator(".detail")
    pane.get_by_label("order", exact=True).fill("7")
    pane.get_by_role("button", name="Call", exact=True).click()
    pane.locator(".outcome .block, .outcome tk-json").first.wait_for()
    pane.locator(".hero").evaluate("node => node.scrollIntoView({block: 'center'})")


def show_wire(page: Page, world: World) -> None:
    go(page, "#/wire?server=shop")
    page.locator(".bar").get_by_role("button").first.wait_for()
    if page.get_by_role("button", name="Record").count():
        page.get_by_role("button", name="Record").click()
    row(page, "tools/call", "find_order").click()
    page.locator(".detail tk-json").first.wait_for()


def show_catalogue(page: Page, world: World) -> None:
    go(page, "#/catalogue?kind=changes")
    row(page, "shop.pay", "changed").click()
    page.locator(".detail ins").first.wait_for()


def show_sessions(page: Page, world: World) -> None:
    go(page, "#/sessions")
    row(page, "grace").wait_for()


def show_questions(page: Page, world: World) -> None:
    go(page, "#/questions")
    page.locator(".card form").wait_for()


def show_latency(page: Page, world: World) -> None:
    go(page, "#/latency")
    page.locator(".histogram").first.wait_for()


VIEWS = {
    "servers": show_servers,
    "calls": show_calls,
    "try": show_try,
    "wire": show_wire,
    "catalogue": show_catalogue,
    "sessions": show_sessions,
    "questions": show_questions,
    "latency": show_latency,
}


def photograph(browser: Browser, world: World, theme: Any, seconds: float) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme=theme)
    page = open_page(context, world)
    page.wait_for_timeout(1000 * seconds)
    for name, show in VIEWS.items():
        show(page, world)
        page.wait_for_timeout(700)  # hover and highlight of what was clicked are over
        path = PICTURES / f"console-{name}-{theme}.png"
        page.screenshot(path=path)
        size = path.stat().st_size
        print(f"{path.name}: {size // 1000} kB")
        if size > MAX_BYTES:
            raise SystemExit(f"{path.name} has more than {MAX_BYTES // 1000} kB")
    context.close()


def main() -> None:
    gone = {"billing": {"url": "http://127.0.0.1:1/mcp"}}
    with open_world(servers, gone) as world, open_browser() as browser:
        shop = world.servers["shop"]
        world.run(shop.script(*RULES))
        world.run(only_ours(world))
        first = open_page(browser.new_context(), world)  # from now on calls are recorded
        asking = world.begin(world.watch("calendar.ask", {"requests": {"room": ROOM}}))
        work = world.begin(traffic(world))
        first.wait_for_timeout(1000)
        world.run(shop.set_tools([*SHOP[:2], PAY, SHOP[3]], built_in=False))
        world.run(shop.notify("notifications/tools/list_changed"))
        try:
            photograph(browser, world, "light", SECONDS)
            photograph(browser, world, "dark", 2)
        finally:
            for each in (work, asking):
                each.cancel()


if __name__ == "__main__":
    if not CHROMIUM:
        sys.exit(LEFT_OUT)
    sys.argv[0] = "agent.py"  # the page names the program
    main()
