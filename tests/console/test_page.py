"""The console's page in a real browser, on a runtime at work: every view, and how it is used."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.console.page_world import (
    AXE,
    CHROMIUM,
    ELICIT,
    LEFT_OUT,
    LOST_ANSWER,
    UNREACHABLE,
    VIEWS,
    Watch,
    World,
    go,
    open_browser,
    open_page,
    open_world,
    row,
    shop_and_files,
)
from tests.ports import free_port
from toolkeep.console import Console
from toolkeep.testing import Behaviour, Rule

pytestmark = [pytest.mark.skipif(not CHROMIUM, reason=LEFT_OUT), pytest.mark.timeout(60)]

STATIC = Path(__file__).resolve().parents[2] / "src/toolkeep/console/static"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world(shop_and_files, UNREACHABLE) as opened:
        yield opened


@pytest.fixture(scope="module")
def watched(browser: Browser, world: World) -> Iterator[tuple[Page, Watch]]:
    """One tab for all tests, logged in."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    watch = Watch(context)
    yield open_page(context, world), watch
    context.close()


@pytest.fixture
def page(watched: tuple[Page, Watch]) -> Iterator[Page]:
    """The page, loaded anew. The test fails if something went wrong in it."""
    page, watch = watched
    page.set_viewport_size({"width": 1280, "height": 800})
    page.evaluate("localStorage.clear(); location.hash = '#/servers'")
    page.reload()
    page.locator(".connection", has_text="live").wait_for()
    yield page
    faults, watch.faults = watch.faults, []
    assert faults == []


def pane(page: Page) -> Any:
    return page.locator(".detail")


def copied(page: Page, words: str) -> str:
    pane(page).get_by_role("button", name=words, exact=True).click()
    page.get_by_role("button", name="copied").wait_for()
    return page.evaluate("navigator.clipboard.readText()")


# -- opening ------------------------------------------------------------------------------------


def test_the_link_opens_the_page_and_its_token_leaves_the_address(page: Page, world: World):
    token = world.url.partition("token=")[2]
    assert token not in page.evaluate("location.href")
    expect(page.locator(".connection")).to_have_text("live")
    expect(page.locator(".process")).to_contain_text("process ")
    assert page.evaluate("document.cookie") == ""  # scripts cannot read it
    page.reload()
    expect(page.locator(".connection")).to_have_text("live")


def test_without_the_link_the_page_asks_for_it(browser: Browser, world: World):
    context = browser.new_context()
    watch = Watch(context, expected=("401",))
    page = context.new_page()
    address = world.url.partition("#")[0]
    page.goto(address)
    field = page.get_by_label("Link or token")
    field.fill(f"{address}#token=wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("not the link of this process")
    field.fill(world.url)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Servers")).to_be_visible()
    context.close()
    assert watch.faults == []


NOTE_FIRST_VIEW = """
new MutationObserver((changes, observer) => {
  if (!document.querySelector("main .bar h1")) return;
  requestAnimationFrame(() => { window.drawnAt = performance.now(); });
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });
"""


def test_the_page_is_small_and_paints_at_once(browser: Browser, world: World):
    """The first view is drawn within 300 ms, and all of the page is less than 100 kB as sent."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NOTE_FIRST_VIEW)
    protocol = context.new_cdp_session(page)
    sizes: dict[str, float] = {}
    protocol.send("Network.enable")
    protocol.on(
        "Network.loadingFinished",
        lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}),
    )
    page.goto(world.url)
    page.locator("main .bar h1").wait_for()
    page.wait_for_load_state("load")
    sent = sum(sizes.values())
    times = []
    for _ in range(3):  # the machine may be busy: the best of three
        page.reload()
        page.locator("main .bar h1").wait_for()
        times.append(page.evaluate("window.drawnAt"))
    context.close()
    assert sent < 100_000
    assert min(time for time in times if time) < 300


def test_no_script_makes_markup_from_text():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
        r"|DOMParser|createContextualFragment|setHTML|srcdoc|setAttribute\(.style|javascript:"
    )
    scripts = sorted(STATIC.glob("*.js"))
    assert scripts
    found = [path.name for path in scripts if forbidden.search(path.read_text("utf-8"))]
    assert found == []


def test_a_console_that_may_only_look_offers_no_action(browser: Browser):
    with open_world(shop_and_files, allow_calls=False) as looking:
        context = browser.new_context()
        watch = Watch(context)
        page = open_page(context, looking, "#/try/shop.add?kind=tools")
        expect(page.locator(".banner")).to_contain_text("--allow-calls")
        expect(pane(page).get_by_role("button", name="Call", exact=True)).to_be_disabled()
        looking.call("shop.echo", {"text": "a secret"}, who="ada")
        go(page, "#/calls")
        row(page, "echo").click()
        expect(pane(page)).to_contain_text("may not show values")
        expect(pane(page).get_by_role("button", name="show values")).to_have_count(0)
        go(page, "#/sessions")
        expect(row(page, "ada")).to_be_visible()
        expect(page.get_by_role("button", name="End")).to_have_count(0)
        context.close()
        assert watch.faults == []


@pytest.mark.parametrize("path", ["/tools/page", "/tools/page/"])
def test_the_page_works_below_a_path_of_another_application(
    browser: Browser, world: World, path: str
):
    with mounted(world, "/tools/page") as origin:
        context = browser.new_context()
        watch = Watch(context)
        page = context.new_page()
        page.goto(f"{origin}{path}#token=mounted")
        expect(row(page, "shop")).to_contain_text("healthy")
        expect(page.locator(".connection")).to_have_text("live")
        (cookie,) = context.cookies()
        assert cookie.get("path") == "/tools/page"
        context.close()
        assert watch.faults == []


@contextlib.contextmanager
def mounted(world: World, path: str) -> Iterator[str]:
    """The console of a world in an application of its own; the origin of that."""
    port = free_port()
    app = Starlette(routes=[Mount(path, Console(world.runtime, token="mounted"))])
    config = uvicorn.Config(app, port=port, lifespan="off", log_config=None)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    serving = world.begin(server.serve())
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        serving.result(5)


# -- servers ------------------------------------------------------------------------------------


def test_servers_show_their_health_and_what_helps(page: Page, world: World):
    expect(row(page, "shop")).to_contain_text("healthy")
    problem = page.locator(".problems li", has_text="gone")
    expect(problem).to_contain_text("down")
    expect(problem.locator(".remedy")).to_contain_text("Start the server")
    row(page, "gone").click()
    expect(pane(page).locator(".hero")).to_contain_text("refused")
    pane(page).get_by_role("button", name="Reconnect").click()
    expect(page.locator(".toast")).to_contain_text("gone")  # still not there
    page.get_by_label("Filter servers").fill("shop")
    expect(page.locator("tk-rows .body .row")).to_have_count(1)


def test_reconnecting_a_server_opens_its_next_connection(page: Page, world: World):
    row(page, "files").click()
    pane(page).get_by_role("button", name="Reconnect").click()
    expect(pane(page).locator(".notes")).to_contain_text("connected")


# -- calls --------------------------------------------------------------------------------------


def test_calls_appear_as_they_run_with_their_verdict_and_its_reason(page: Page, world: World):
    go(page, "#/calls")
    world.run(world.servers["shop"].script(LOST_ANSWER))
    world.call("shop.add", {"a": 1, "b": 2}, who="ada")
    world.call("shop.fail", {"message": "no such order"})
    world.call("shop.record")
    world.call("gone.anything")
    world.run(world.servers["shop"].clear())
    expect(row(page, "add")).to_contain_text("ran")
    expect(row(page, "add")).to_contain_text("ada")
    expect(row(page, "fail")).to_contain_text("ran, error")
    expect(row(page, "anything")).to_contain_text("did not run")
    unknown = row(page, "record")
    expect(unknown).to_contain_text("unknown")
    expect(unknown).to_contain_text("not marked read-only or idempotent")
    unknown.click()
    expect(pane(page).locator(".hero")).to_contain_text("it may have run")
    expect(pane(page).locator(".timeline li")).to_have_count(1)
    expect(pane(page).locator(".timeline")).to_contain_text("delivery: unknown")
    page.get_by_role("button", name="unknown", exact=True).click()
    expect(page.locator("tk-rows .body .row")).to_have_count(1)
    page.get_by_role("button", name="all", exact=True).click()
    page.locator("#search").fill("ada add")
    expect(page.locator("tk-rows .body .row")).to_have_count(1)


def test_a_call_that_is_retried_shows_each_attempt_and_the_decision(page: Page, world: World):
    go(page, "#/calls")
    broken = Rule(tool="record_read_only", times=1, do=Behaviour(drop="after_run"))
    world.run(world.servers["shop"].script(broken))
    world.call("shop.record_read_only")
    world.run(world.servers["shop"].clear())
    row(page, "record_read_only").click()
    lines = pane(page).locator(".timeline li")
    expect(lines).to_have_count(2)
    expect(lines.first).to_contain_text("read-only or idempotent")
    expect(lines.last).to_contain_text("answered")
    expect(pane(page).locator(".hero")).to_contain_text("Ran")


def test_values_are_masked_until_the_viewer_asks(page: Page, world: World):
    go(page, "#/calls")
    world.call("shop.echo", {"text": "for ada's eyes"})
    row(page, "echo").click()
    expect(pane(page)).to_contain_text("masked")
    expect(pane(page).locator("tk-json").first).to_contain_text("string(")
    assert "for ada's eyes" not in page.content()
    pane(page).get_by_role("button", name="show values").click()
    expect(pane(page).locator("tk-json").first).to_contain_text("for ada's eyes")
    pane(page).get_by_role("button", name="hide values").click()
    expect(pane(page)).not_to_contain_text("for ada's eyes")


def test_progress_moves_and_the_list_can_be_held_still(page: Page, world: World):
    go(page, "#/calls")
    running = world.begin(world.watch("files.steps", {"count": 200, "gap": 0.1}))
    expect(row(page, "steps")).to_contain_text("step ")
    expect(row(page, "steps").locator("progress")).to_be_visible()
    page.keyboard.press("p")
    expect(page.locator(".banner")).to_contain_text("held still")
    held = page.locator("tk-rows .body .row").count()
    world.call("shop.add", {"a": 20, "b": 2})
    expect(page.locator(".banner")).to_contain_text("1 more")
    assert page.locator("tk-rows .body .row").count() == held
    page.keyboard.press("p")
    expect(page.locator("tk-rows .body .row").first).to_contain_text("add")
    world.run(world.servers["files"].skip_delays())
    running.result(10)
    expect(row(page, "steps")).to_contain_text("ran")


@pytest.mark.parametrize("server", ["shop", "files"], ids=["modern", "legacy"])
def test_a_call_can_be_copied_and_what_was_copied_runs(page: Page, world: World, server: str):
    text = 'it\'s "quoted" $HOME `id` \\ é \u202e\x1b[31m\n'
    go(page, "#/calls")
    world.call(f"{server}.echo", {"text": text})
    go(page, f"#/calls/{world.run(newest_call(world))}")
    pane(page).get_by_role("button", name="show values").click()
    pane(page).get_by_role("button", name="hide values").wait_for()
    sent = world.servers[server]
    world.run(sent.clear())
    for words in ("curl", "CLI", "Python"):
        program = copied(page, words)
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", program)  # nothing invisible
        command = [sys.executable, "-c", program] if words == "Python" else ["bash", "-c", program]
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": "/nonexistent"}
        done = subprocess.run(command, capture_output=True, timeout=30, env=environment)
        assert done.returncode == 0, done.stderr
    calls = world.run(sent.requests(tool="echo"))
    assert [call.body["params"]["arguments"] for call in calls] == [{"text": text}] * 3


# -- trying -------------------------------------------------------------------------------------


def test_a_form_from_a_schema_calls_the_tool_with_its_values(page: Page, world: World):
    go(page, "#/try/shop.order?kind=tools")
    form = pane(page)
    expect(form).to_contain_text("Ask the customer first.")
    expect(form.get_by_label("amount", exact=True)).to_have_value("2.5")
    expect(form.get_by_role("status")).to_contain_text("2 problems")
    form.get_by_label("item", exact=True).fill("0")
    expect(form.locator(".problem")).to_contain_text("less than the minimum of 1")
    form.get_by_label("item", exact=True).fill("12345678901234567890")
    form.get_by_label("city", exact=True).fill("Ghent")
    expect(form.locator(".problem")).to_have_count(0)
    form.get_by_label("size", exact=True).select_option("large")
    form.get_by_label("express", exact=True).select_option("true")
    form.get_by_role("button", name="item", exact=True).click()
    form.get_by_label("0", exact=True).fill("by hand")
    form.get_by_label("pay", exact=True).select_option("Card")
    form.get_by_label("number", exact=True).fill("4711")
    form.get_by_label("comment", exact=True).select_option("null")
    form.get_by_label("extra", exact=True).fill('{"deep": [1, {"er": true}]}')
    form.get_by_role("button", name="Do not send amount").click()
    form.get_by_role("button", name="Call", exact=True).click()
    expect(form.locator(".hero")).to_contain_text("Ran")
    (call,) = world.run(world.servers["shop"].requests(tool="order"))
    assert call.body["params"]["arguments"] == {
        "item": 12345678901234567890,
        "size": "large",
        "express": True,
        "to": {"city": "Ghent"},
        "notes": ["by hand"],
        "pay": {"kind": "card", "number": "4711"},
        "comment": None,
        "extra": {"deep": [1, {"er": True}]},
    }
    expect(form.locator(".outcome tk-json").first).to_contain_text("12345678901234567890")


def test_arguments_can_be_written_as_json_and_a_run_repeated(page: Page, world: World):
    go(page, "#/try/shop.add?kind=tools")
    form = pane(page)
    form.get_by_label("a", exact=True).fill("1")
    form.get_by_role("button", name="JSON", exact=True).click()
    area = form.get_by_label("Arguments as JSON")
    expect(area).to_have_value(re.compile('"a": 1'))
    area.fill('{"a": 1, "b": ')
    expect(form.locator(".problem")).to_have_count(1)
    expect(form.get_by_role("button", name="Call", exact=True)).to_be_disabled()
    area.fill('{"a": 1, "b": 41}')
    page.keyboard.press("Control+Enter")
    expect(form.locator(".outcome")).to_contain_text("42")
    form.get_by_role("button", name="Form", exact=True).click()
    form.get_by_label("b", exact=True).fill("2")
    form.get_by_role("button", name="Call", exact=True).click()
    expect(form.locator(".outcome")).to_contain_text("3")
    form.get_by_role("button", name="repeat").click()
    expect(form.locator(".outcome")).to_contain_text("42")
    expect(form.get_by_role("button", name="repeat")).to_have_count(2)


def test_wrong_arguments_are_a_call_that_did_not_run(page: Page, world: World):
    go(page, "#/try/shop.add?kind=tools")
    pane(page).get_by_label("a", exact=True).fill("many")
    pane(page).get_by_role("button", name="Call", exact=True).click()
    expect(pane(page).locator(".problem").first).to_contain_text("number")
    expect(pane(page)).to_contain_text("Did not run")


def test_results_show_pictures_sound_and_links(page: Page, world: World):
    go(page, "#/try/shop.content?kind=tools")
    pane(page).get_by_role("button", name="Call", exact=True).click()
    picture = pane(page).locator("img")
    picture.wait_for()
    assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") > 0
    expect(pane(page).locator("audio")).to_be_visible()
    expect(pane(page)).to_contain_text("a note")
    pane(page).get_by_role("button", name="read it").first.click()
    expect(pane(page).locator("#uri")).to_have_value("kit://notes")
    pane(page).get_by_role("button", name="Read", exact=True).click()
    expect(pane(page).locator(".block")).to_be_visible()


def test_prompts_and_resources_can_be_tried(page: Page, world: World):
    go(page, "#/try?kind=prompts")
    row(page, "shop.greet").click()
    pane(page).get_by_label("name", exact=True).fill("Grace")
    pane(page).get_by_role("button", name="Get the prompt").click()
    expect(pane(page).locator(".block")).to_contain_text("Grace")
    go(page, "#/try?kind=resources")
    row(page, "shop", "notes").click()
    pane(page).get_by_role("button", name="Read", exact=True).click()
    expect(pane(page).locator(".block")).to_contain_text("kit://notes")


def test_a_running_try_shows_progress_and_can_be_cancelled(page: Page, world: World):
    go(page, "#/try/shop.steps?kind=tools")
    pane(page).get_by_label("count", exact=True).fill("500")
    pane(page).get_by_label("gap", exact=True).fill("0.1")
    pane(page).get_by_role("button", name="Call", exact=True).click()
    expect(pane(page).locator(".hero")).to_contain_text("step ")
    pane(page).get_by_role("button", name="Cancel").click()
    expect(pane(page).locator(".hero")).not_to_contain_text("step ")
    world.run(world.servers["shop"].cancelled(at_least=1))


# -- wire ---------------------------------------------------------------------------------------


def test_the_wire_pairs_requests_with_answers_and_exports_them(page: Page, world: World):
    go(page, "#/wire?server=shop")
    page.get_by_role("button", name="Record").click()
    page.get_by_role("button", name="Stop").wait_for()
    world.call("shop.add", {"a": 1, "b": 2})
    exchange = row(page, "tools/call", "add")
    expect(exchange).to_contain_text("answered")
    expect(exchange).to_contain_text(re.compile(r"\d [mµ]s"))
    exchange.click()
    expect(pane(page)).to_contain_text("Sent")
    expect(pane(page)).to_contain_text("Received")
    expect(pane(page).locator("tk-json").last).to_contain_text("sum")
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(download.value.path()).read_text("utf-8").splitlines()
    assert any(json.loads(line)["method"] == "tools/call" for line in lines)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Record").wait_for()


# -- catalogue ----------------------------------------------------------------------------------


def test_the_catalogue_can_be_searched_and_shows_definitions(page: Page, world: World):
    go(page, "#/catalogue")
    page.locator("#search").fill("order goods")
    expect(page.locator("tk-rows .body .row")).to_have_count(1)
    row(page, "shop.order").click()
    expect(pane(page)).to_contain_text("may destroy")
    expect(pane(page)).to_contain_text("Ask the customer first.")
    expect(pane(page).locator("tk-json").first).to_contain_text("express")
    pane(page).get_by_role("button", name="Try it").click()
    expect(pane(page).get_by_label("item", exact=True)).to_be_visible()


def test_what_changed_is_shown_word_by_word(page: Page, world: World):
    tool = {
        "name": "ship",
        "description": "Sends goods by road.",
        "inputSchema": {"type": "object"},
    }
    files = world.servers["files"]
    world.run(files.set_tools([tool]))
    world.run(files.notify("notifications/tools/list_changed"))
    go(page, "#/catalogue?kind=changes")
    expect(row(page, "files.ship")).to_contain_text("added")
    world.run(files.set_tools([tool | {"description": "Sends heavy goods by ship."}]))
    world.run(files.notify("notifications/tools/list_changed"))
    changed = row(page, "files.ship", "changed")
    changed.click()
    expect(pane(page).locator("ins")).to_have_text(["heavy ", "ship"])
    expect(pane(page).locator("del")).to_have_text(["road"])
    world.run(files.set_tools([]))
    world.run(files.notify("notifications/tools/list_changed"))
    expect(row(page, "files.ship", "removed")).to_be_visible()


# -- sessions, questions, latency ---------------------------------------------------------------


def test_sessions_are_listed_by_principal_and_can_be_ended(page: Page, world: World):
    world.call("files.add", {"a": 1, "b": 2}, who="grace")
    go(page, "#/sessions")
    session = row(page, "grace")
    expect(session).to_contain_text("files")
    session.get_by_role("button", name="End").click()
    expect(page.locator("tk-rows .body .row", has_text="grace")).to_have_count(0)
    world.call("files.add", {"a": 1, "b": 2}, who="grace")


def test_a_question_is_answered_on_the_page(page: Page, world: World):
    asking = world.begin(world.watch("shop.ask", {"requests": {"who": ELICIT}}))
    expect(page.get_by_role("link", name="Questions").locator(".count")).to_have_text("1")
    go(page, "#/questions")
    card = page.locator(".card")
    expect(card).to_contain_text("Which room?")
    expect(card.get_by_label("nights", exact=True)).to_have_value("2")
    card.get_by_label("room", exact=True).select_option("double")
    card.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".content")).to_contain_text("No server waits")
    answers = asking.result(10).data["answers"][0]["who"]
    assert answers == {"action": "accept", "content": {"room": "double", "nights": 2}}


def test_a_person_answers_in_place_of_a_model(page: Page, world: World):
    message = {"role": "user", "content": {"type": "text", "text": "Summarize the order."}}
    params = {"messages": [message], "maxTokens": 50}
    requests = {"who": {"method": "sampling/createMessage", "params": params}}
    asking = world.begin(world.watch("shop.ask", {"requests": requests}))
    go(page, "#/questions")
    card = page.locator(".card")
    expect(card).to_contain_text("Summarize the order.")
    card.get_by_label("Answer in place of the model").fill("Seven apples.")
    card.get_by_role("button", name="Send", exact=True).click()
    answer = asking.result(10).data["answers"][0]["who"]
    assert answer["content"] == {"type": "text", "text": "Seven apples."}


def test_latency_and_calls_per_second_have_charts(page: Page, world: World):
    for number in range(20):
        world.call("shop.add", {"a": number, "b": 1})
    go(page, "#/latency")
    chart = page.get_by_role("img", name=re.compile("latency of .* calls: p50"))
    expect(chart.first).to_be_visible()
    expect(page.locator(".figures")).to_contain_text("calls a second")
    page.get_by_role("button", name="shop").click()
    expect(page.locator(".series h3", has_text="add")).to_be_visible()


# -- using it -----------------------------------------------------------------------------------


def test_the_keyboard_reaches_everything(page: Page, world: World):
    for number in range(6):
        world.call("shop.add", {"a": number, "b": 1})
    page.keyboard.press("2")
    page.locator("main.view-calls").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    grid = page.get_by_role("grid")
    grid.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    active = page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
    assert active
    page.keyboard.press("Enter")
    expect(page.locator(f'[id="{active}"]')).to_have_attribute("aria-selected", "true")
    first = page.evaluate("location.hash")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("location.hash") != first  # the details follow
    page.keyboard.press("Escape")
    expect(pane(page)).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def every_view(page: Page, world: World) -> Iterator[str]:
    """Every view with something to show, and those with details open too, one after the other."""
    asking = world.begin(world.watch("shop.ask", {"requests": {"who": ELICIT}}))
    go(page, "#/wire?server=shop")
    page.locator(".bar").get_by_role("button", name=re.compile("Record|Stop")).wait_for()
    if page.get_by_role("button", name="Record").count():
        page.get_by_role("button", name="Record").click()
    page.get_by_role("button", name="Stop").wait_for()
    world.call("shop.fail", {"message": "no"}, who="ada")
    row(page, "tools/call", "fail").click()
    exchange = page.evaluate("location.hash")
    call = f"#/calls/{world.run(newest_call(world))}"
    details = ["#/servers/gone", call, "#/try/shop.order?kind=tools", "#/catalogue/shop.add"]
    views = [f"#/{view}" for view in VIEWS]
    for path in (*views, *details, exchange, "#/catalogue?kind=changes", "#/latency/shop"):
        go(page, path)
        expect(page.locator("main")).not_to_contain_text("Loading")
        yield path
    asking.cancel()


async def newest_call(world: World) -> str:
    from toolkeep.console.recorder import Recorder

    return next(reversed(world.runtime.component(Recorder).calls))


def test_every_view_is_readable_at_400_pixels(page: Page, world: World):
    page.set_viewport_size({"width": 400, "height": 800})
    wide = []
    for path in every_view(page, world):
        if page.evaluate("document.documentElement.scrollWidth") > 400:
            wide.append(path)
        boxes = page.locator("main :is(h1, h2, .row, .hero, .field, .card, .actions):visible")
        right = boxes.evaluate_all(
            "nodes => Math.max(0, ...nodes.map((node) => node.getBoundingClientRect().right))"
        )
        if right > 401:
            wide.append(f"{path}: something ends at {right}")
    assert wide == []


@pytest.mark.skipif(not AXE.exists(), reason="left out: axe-core, which `make test` installs")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(browser: Browser, world: World, theme: Any):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    page = open_page(context, world)
    page.evaluate(AXE.read_text("utf-8"))
    page.evaluate("document.body.append(document.createElement('img'))")
    assert "image-alt" in str(serious(page))  # it does look
    page.evaluate("document.body.lastChild.remove()")
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    found = {"#help": serious(page)}
    page.keyboard.press("Escape")
    for path in every_view(page, world):
        found[path] = serious(page)
    context.close()
    assert {path: faults for path, faults in found.items() if faults} == {}


def serious(page: Page) -> list[str]:
    """Findings of axe that are serious or critical."""
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:120]} {node['any'][0]['message'] if node['any'] else ''}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
