"""The console's page in a real browser, with hostile servers, floods, and a process that dies."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.page_world import (
    CHROMIUM,
    LEFT_OUT,
    Watch,
    World,
    go,
    open_browser,
    open_page,
    open_world,
    row,
)
from tests.ports import free_port
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = [pytest.mark.skipif(not CHROMIUM, reason=LEFT_OUT), pytest.mark.timeout(90)]

MARKUP = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
RIGHT_TO_LEFT = "\u202egnp.exe"
ANSI = "\x1b[31mred\x1b[0m"
HOSTILE = f"{MARKUP} {RIGHT_TO_LEFT} {ANSI}"
TOOL_COUNT = 9_984
"""With those of the scripted server these are 10,000, as many as a client takes."""
MEGABYTE = 1024 * 1024

HOSTILE_TOOL = {
    "name": "evil",
    "title": HOSTILE,
    "description": HOSTILE,
    "inputSchema": {
        "type": "object",
        "properties": {
            MARKUP: {"type": "string", "description": HOSTILE, "default": HOSTILE},
            "__proto__": {"type": "string", "title": HOSTILE},
            "constructor": {"enum": [HOSTILE, MARKUP]},
            "endless": {"$ref": "#"},
            "foreign": {"$ref": "http://127.0.0.1:9/schema.json"},
            "odd": {"type": 7, "enum": "no list", "properties": []},
        },
    },
}
LONG_TOOL = {
    "name": "long",
    "description": "endless " * (MEGABYTE // 8),
    "inputSchema": {"type": "object"},
}
HOSTILE_RESULT = {
    "content": [
        {"type": "text", "text": HOSTILE},
        {"type": "text", "text": "x" * (MEGABYTE // 4)},
        {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zy8+"},
        {"type": "image", "mimeType": "image/png", "data": "not base64 <b>"},
        {"type": "audio", "mimeType": 'audio/wav"><script>', "data": "AAAA"},
        {"type": "resource_link", "uri": "javascript:alert(1)", "name": MARKUP},
        {"type": "resource", "resource": {"uri": "x:y", "blob": "AAAA", "mimeType": "text/html"}},
    ],
    "isError": False,
}
QUESTIONS = {
    "form": {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": HOSTILE,
            "requestedSchema": {"type": "object", "properties": {"who": {"type": "string"}}},
        },
    },
    "url": {
        "method": "elicitation/create",
        "params": {
            "mode": "url",
            "message": HOSTILE,
            "url": "javascript:alert(1)",
            "elicitationId": "e",
        },
    },
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def hostile_servers() -> dict[str, ScriptedServer]:
    plain = [{"name": f"tool_{number}", "inputSchema": {}} for number in range(TOOL_COUNT)]
    tools = [tool | {"inputSchema": {"type": "object"}} for tool in plain]
    return {
        "evil": ScriptedServer.local(
            era="modern", encoding="sse", tools=[HOSTILE_TOOL, LONG_TOOL, *tools]
        )
    }


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world(hostile_servers) as opened:
        opened.run(
            opened.servers["evil"].script(
                Rule(tool="evil", do=Behaviour(result=HOSTILE_RESULT)),
                Rule(tool="record", do=Behaviour(error={"code": -32000, "message": HOSTILE})),
            )
        )
        yield opened


@pytest.fixture
def page(browser: Browser, world: World) -> Iterator[Page]:
    """The page, logged in. The test fails if a server's text did anything in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    watch = Watch(context)
    page = open_page(context, world)
    yield page
    assert page.evaluate("window.hacked") is None
    context.close()
    assert watch.faults == []


def assert_harmless(page: Page, selector: str = "main") -> None:
    """What the server wrote is there as text: no element of it, nothing hidden."""
    assert page.locator(f"{selector} :is(script, iframe, object, img[onerror])").count() == 0
    text = page.locator(selector).inner_text()
    assert not set(text) & {"\u202e", "\x1b"}
    assert "<script>" in text


def test_names_descriptions_and_schemas_stay_text(page: Page, world: World):
    go(page, "#/catalogue")
    page.locator("#search").fill("hacked")
    row(page, "evil.evil").click()
    marks = page.locator(".detail .ctl")
    expect(marks.filter(has_text="RLO").first).to_be_visible()
    expect(marks.filter(has_text="ESC").first).to_be_visible()
    assert_harmless(page)
    page.locator(".detail").get_by_role("button", name="Try it").click()
    expect(page.locator(".detail form")).to_be_visible()
    assert_harmless(page)
    page.locator(".detail").get_by_label("__proto__", exact=True).fill("mine")
    page.locator(".detail").get_by_role("button", name="JSON", exact=True).click()
    assert '"__proto__": "mine"' in page.get_by_label("Arguments as JSON").input_value()
    assert page.evaluate("({}).mine === undefined && Object.prototype.title === undefined")


def test_results_errors_and_links_stay_text(page: Page, world: World):
    go(page, "#/try/evil.evil?kind=tools")
    page.locator(".detail").get_by_role("button", name="Call", exact=True).click()
    expect(page.locator(".outcome .block").first).to_contain_text("<script>")
    assert_harmless(page)
    assert page.locator(".outcome").locator("img, audio, a").count() == 0
    shown = page.locator(".outcome tk-text").all()
    assert all(len(text.inner_text()) < 5_000 for text in shown)
    world.call("evil.record")
    go(page, "#/calls")
    row(page, "record").click()
    expect(page.locator(".detail .hero")).to_contain_text("<script>")
    assert_harmless(page)


def test_questions_stay_text_and_their_links_are_checked(page: Page, world: World):
    asking = world.begin(world.watch("evil.ask", {"requests": QUESTIONS}))
    go(page, "#/questions")
    expect(page.locator(".card")).to_have_count(2)
    assert_harmless(page)
    expect(page.locator(".card", has_text="no web address")).to_have_count(1)
    assert page.locator(".card a").count() == 0
    for left in (1, 0):
        page.get_by_role("button", name="Decline").first.click()
        expect(page.locator(".card")).to_have_count(left)
    asking.result(10)


def test_a_description_of_a_megabyte_is_cut_and_shown_in_steps(page: Page, world: World):
    go(page, "#/catalogue/evil.long")
    text = page.locator(".detail .about tk-text")
    expect(text).to_contain_text("more characters")
    assert len(text.inner_text()) < 3_000
    text.get_by_role("button").click()
    assert 50_000 < len(text.inner_text()) < 100_000
    page.locator(".detail").get_by_role("button", name="load all of it").click()
    expect(page.locator(".detail .about .more")).to_contain_text(",")
    assert page.evaluate("document.body.innerText.length") < 200_000


def test_ten_thousand_tools_are_a_list_of_a_few_rows(page: Page, world: World):
    go(page, "#/catalogue")
    page.locator("tk-rows .body .row").first.wait_for()
    expect(page.locator(".foot")).to_contain_text("10,000")
    assert page.locator("tk-rows .body .row").count() < 60
    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    expect(row(page, f"evil.tool_{TOOL_COUNT - 1}")).to_be_visible()
    assert page.locator("tk-rows .body .row").count() < 60
    page.locator("#search").fill("tool_4711")
    expect(page.locator("tk-rows .body .row")).to_have_count(1)
    expect(row(page, "evil.tool_4711")).to_be_visible()


def test_a_thousand_events_a_second_leave_the_page_usable(page: Page, world: World):
    """Progress that floods: the page draws as often as it can, and answers meanwhile."""
    go(page, "#/calls")
    seen = [0]
    observation = world.run(observe(world, seen))
    flood = [
        world.begin(world.watch("evil.steps", {"count": 2_000, "gap": 0.0015, "key": str(number)}))
        for number in range(3)
    ]
    expect(row(page, "steps").locator("progress")).to_be_visible()
    for view in ("servers", "calls"):
        page.get_by_role("link", name=view.title()).click()
        page.locator(f"main.view-{view}").wait_for(timeout=2_000)
    for each in flood:
        each.result(30)
    observation.close()
    assert seen[0] >= 6_000
    expect(page.locator("tk-rows .body .row", has_text="running")).to_have_count(0)
    expect(row(page, "steps")).to_contain_text("ran")


async def observe(world: World, seen: list[int]) -> Any:
    def count(event: object) -> None:
        seen[0] += 1

    return world.runtime.observe(count)


def test_what_the_page_missed_is_said(browser: Browser, world: World):
    context = browser.new_context()
    watch = Watch(context, expected=("ERR_CONNECTION",))
    proxy = FaultProxy.to(
        "127.0.0.1", int(world.url.partition("#")[0].strip("/").rpartition(":")[2])
    )
    world.run(world.enter(proxy))
    page = open_page(context, world, "#/calls", through=proxy)
    world.call("evil.echo", {"text": "before"})
    expect(row(page, "echo")).to_be_visible()
    world.run(cut_off(proxy))
    expect(page.locator("main > .banner")).to_contain_text("does not answer")
    world.run(many_calls(world, 1_200), 40)
    world.run(proxy.heal())
    page.locator(".connection", has_text="live").wait_for(timeout=15_000)
    expect(page.locator("tk-rows .body .row.gap")).to_contain_text("calls are not shown")
    context.close()
    assert watch.faults == []


async def cut_off(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.kill_connections()


async def many_calls(world: World, count: int) -> None:
    async def some(share: int) -> None:
        for _ in range(share):
            await world.runtime.call("evil.echo", {"text": "x"})

    await asyncio.gather(*(some(count // 20) for _ in range(20)))


# -- another process ----------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from toolkeep import Runtime

async def main(url, name, port, token):
    async with Runtime.open({name: url}) as runtime:
        await runtime.serve_console(int(port), token=token)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.contextmanager
def process(url: str, name: str, port: int, token: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, url, name, str(port), token]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert running.stdout
    try:
        assert running.stdout.readline() == b"ready\n"
        yield running
    finally:
        running.kill()
        running.wait(10)
        running.stdout.close()


def test_the_page_survives_the_death_of_its_process(browser: Browser, world: World):
    url, port = world.servers["evil"].url, free_port()
    context = browser.new_context()
    watch = Watch(context, expected=("Failed to load resource",))
    page = context.new_page()
    with process(url, "first", port, "token-1") as running:
        page.goto(f"http://127.0.0.1:{port}/#token=token-1")
        expect(row(page, "first")).to_contain_text("healthy")
        pid = running.pid
    expect(page.locator("main > .banner")).to_contain_text("does not answer")
    with process(url, "second", port, "token-1") as running:
        expect(page.locator("main > .banner")).to_contain_text(
            f"restarted: this is process {running.pid}", timeout=15_000
        )
        assert running.pid != pid
        expect(row(page, "second")).to_contain_text("healthy")
        expect(row(page, "first")).to_have_count(0)
    with process(url, "third", port, "token-2"):
        expect(page.locator("main.login")).to_contain_text("was restarted", timeout=15_000)
        page.get_by_label("Link or token").fill(f"http://127.0.0.1:{port}/#token=token-2")
        page.get_by_role("button", name="Open").click()
        expect(row(page, "third")).to_contain_text("healthy")
    context.close()
    assert watch.faults == []
