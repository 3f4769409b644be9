"""A world for the tests of the console's page: a runtime with real servers, and a real browser.

The runtime, its servers and its console live in a thread with an event loop of their own, because
Playwright's synchronous interface needs this one. A world takes its traffic from the tests.
"""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    sync_playwright,
)

from toolkeep import CallContext, Runtime
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
LEFT_OUT = "left out: the tests of the console's page need Chromium; `make browser` installs it"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
WAIT = 10.0
"""Seconds for anything that the loop of a world does."""
PAGE_WAIT = 8_000
"""Milliseconds for anything that a page shows."""
VIEWS = ("servers", "calls", "try", "wire", "catalogue", "sessions", "questions", "latency")

ADDRESS = {
    "type": "object",
    "description": "Where it goes.",
    "required": ["city"],
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
ORDER = {
    "name": "order",
    "title": "Place an order",
    "description": "Order goods.\nAsk the customer first.",
    "annotations": {"destructiveHint": True},
    "inputSchema": {
        "type": "object",
        "required": ["item", "to"],
        "$defs": {"address": ADDRESS},
        "properties": {
            "item": {"type": "integer", "minimum": 1, "description": "Its number."},
            "size": {"enum": ["small", "large"]},
            "amount": {"type": "number", "default": 2.5},
            "express": {"type": "boolean"},
            "to": {"$ref": "#/$defs/address"},
            "notes": {"type": "array", "items": {"type": "string"}},
            "pay": {
                "oneOf": [
                    {
                        "title": "Card",
                        "type": "object",
                        "required": ["kind", "number"],
                        "properties": {"kind": {"const": "card"}, "number": {"type": "string"}},
                    },
                    {
                        "title": "Invoice",
                        "type": "object",
                        "required": ["kind"],
                        "properties": {"kind": {"const": "invoice"}, "days": {"type": "integer"}},
                    },
                ]
            },
            "comment": {"type": ["string", "null"]},
            "extra": {"type": "object"},
        },
    },
}
ELICIT = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which room?",
        "requestedSchema": {
            "type": "object",
            "required": ["room"],
            "properties": {
                "room": {"type": "string", "enum": ["single", "double"]},
                "nights": {"type": "integer", "default": 2},
            },
        },
    },
}


T = TypeVar("T")


class World:
    """A runtime and its console, at work in a thread. Made by `open_world`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="world", daemon=True)
        self._stack = AsyncExitStack()
        self.runtime: Runtime
        self.url = ""
        """The link that opens the page."""
        self.servers: dict[str, ScriptedServer] = {}

    def run(self, work: Awaitable[T], within: float = WAIT) -> T:
        """The result of a coroutine in the world's loop."""

        async def bounded() -> T:
            async with asyncio.timeout(within):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(within + 5)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Start a coroutine in the world's loop; its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def enter(self, context: contextlib.AbstractAsyncContextManager[T]) -> T:
        """Enter a context that lives as long as the world."""
        return await self._stack.enter_async_context(context)

    async def watch(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call of the program, which watches it: progress is asked for, and questions wait."""
        async with self.runtime.stream(name, arguments) as running:
            return await running.result()

    def call(self, name: str, arguments: dict[str, Any] | None = None, who: str = "") -> Any:
        """A call of the program. The error, if it failed."""

        async def call() -> Any:
            try:
                context = CallContext(principal=who) if who else None
                return await self.runtime.call(name, arguments or {}, context=context)
            except Exception as error:
                return error

        return self.run(call())

    async def _open(
        self, servers: dict[str, ScriptedServer], more: dict[str, Any], **console: Any
    ) -> None:
        for name, server in servers.items():
            self.servers[name] = await self._stack.enter_async_context(server)
        config = {**{name: server.spec for name, server in servers.items()}, **more}
        self.runtime = await self._stack.enter_async_context(
            Runtime.open(config, elicitation="caller", sampling="caller")
        )
        served = await self.runtime.serve_console(**{"port": 0, "allow_calls": True} | console)
        self.url = served.url


@contextlib.contextmanager
def open_world(
    servers: Callable[[], dict[str, ScriptedServer]],
    more: dict[str, Any] | None = None,
    **console: Any,
) -> Iterator[World]:
    """A world with these servers. `console`: options of `Runtime.serve_console`."""
    world = World()
    world._thread.start()
    try:
        world.run(world._open(servers(), more or {}, **console), 30)
        yield world
    finally:
        try:
            world.run(world._stack.aclose(), 20)
        finally:
            world._loop.call_soon_threadsafe(world._loop.stop)
            world._thread.join(5)
            world._loop.close()


def shop_and_files() -> dict[str, ScriptedServer]:
    return {
        "shop": ScriptedServer.local(era="modern", encoding="sse", tools=[ORDER]),
        "files": ScriptedServer.local(era="legacy", encoding="sse"),
    }


UNREACHABLE = {"gone": {"url": "http://127.0.0.1:1/mcp"}}
"""Nothing listens there."""
LOST_ANSWER = Rule(tool="record", do=Behaviour(drop="after_run"))


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What went wrong in the pages of one browser context: errors, broken policy, foreign requests,
    dialogs."""

    def __init__(self, context: BrowserContext, *, expected: tuple[str, ...] = ()) -> None:
        self.faults: list[str] = []
        self.expected = [*expected]
        context.on("weberror", lambda error: self._add(str(error.error)))
        context.on("console", self._hear)
        context.on("dialog", self._dismiss)
        context.on("request", lambda request: self._check(request.url))

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self._add(said.text)

    def _dismiss(self, dialog: Dialog) -> None:
        self._add(f"dialog {dialog.message}")
        dialog.dismiss()

    def _add(self, fault: str) -> None:
        if not any(part in fault for part in self.expected):
            self.faults.append(fault)

    def _check(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:")):
            self._add(f"a request to {url}")


def open_page(
    context: BrowserContext, world: World, path: str = "", through: FaultProxy | None = None
) -> Page:
    """The page of a world, logged in, at a view."""
    page = context.new_page()
    page.set_default_timeout(PAGE_WAIT)
    link = world.url if through is None else f"{through.url('/')}#{world.url.partition('#')[2]}"
    page.goto(link)
    page.wait_for_selector("main .bar h1, main.login")
    if path:
        go(page, path)
    return page


def go(page: Page, path: str) -> None:
    page.evaluate("path => { location.hash = path }", path)
    view = path.removeprefix("#/").partition("/")[0].partition("?")[0]
    page.wait_for_selector(f"main.view-{view}")


def row(page: Page, *texts: str) -> Any:
    """The first row of the table that has all these texts."""
    found = page.locator("tk-rows .body .row")
    for text in texts:
        found = found.filter(has_text=text)
    return found.first
