"""Who may look at a console, and what never leaves it."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tests.console.viewer import Viewer, browser, following, port_of, viewing
from toolkeep import CallContext, Runtime, ToolkeepError
from toolkeep.console import Console, ConsoleServer
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.timeout(60)

READS = ("state", "events", "ticks", "catalogue", "sessions", "latency", "changes", "wire?server=a")


@asynccontextmanager
async def served(runtime: Runtime, **options: Any) -> AsyncIterator[ConsoleServer]:
    server = await runtime.serve_console(0, **options)
    yield server
    await server.aclose()


async def test_nothing_is_told_before_the_token_is_exchanged_for_a_cookie():
    async with Runtime.open({}) as runtime, served(runtime) as server, browser() as session:
        viewer = Viewer.of(session, server)
        for path in READS:
            assert (await viewer.get(path)).status == 401, path
        assert (await viewer.post("call", {"name": "a.b"})).status == 401
        for wrong in ("", "x", viewer.token[:-1], None, 7, {"a": 1}):
            assert (await viewer.post("login", {"token": wrong})).status == 401
        right = await viewer.log_in()
        assert (await viewer.get("state")).status == 200
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "Path=/" in cookie
    assert viewer.token not in cookie


async def test_each_start_has_a_token_of_its_own():
    async with Runtime.open({}) as runtime:
        async with served(runtime) as first:
            tokens = {first.url.partition("#")[2]}
        async with served(runtime) as second:
            tokens.add(second.url.partition("#")[2])
    assert len(tokens) == 2
    assert all(len(token) > 40 for token in tokens)


async def test_a_foreign_name_of_this_address_is_refused():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        port = port_of(viewer)
        for host in (f"evil.example:{port}", "rebound.attacker.test", "127.0.0.1.evil.example", ""):
            answer = await viewer.get("state", host=host)
            assert answer.status in (400, 403), host
        page = await viewer.request("GET", "/", headers={"host": "evil.example"})
        fine = [await viewer.get("state", host=f"{name}:{port}") for name in ("localhost", "[::1]")]
    assert page.status == 403
    # Cookies belong to a name, so the others log in anew; they are not refused for their name.
    assert [answer.status for answer in fine] == [200, 200]


async def test_a_post_of_another_page_or_of_a_form_is_refused():
    async with Runtime.open({}) as runtime, viewing(runtime, allow_calls=True) as viewer:
        port = port_of(viewer)
        foreign = [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"http://localhost:{port}"},
            {"origin": f"http://127.0.0.1:{port + 1}"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ]
        for headers in foreign:
            answer = await viewer.post("check", {"name": "a.b"}, **headers)
            assert answer.status == 403, headers
        form = await viewer.post("check", b"name=a", **{"content-type": "text/plain"})
        own = await viewer.post("check", {"name": "a.b"}, origin=f"http://127.0.0.1:{port}")
    assert form.status == 415
    assert own.status == 404  # there is no such tool


async def test_bodies_are_bounded_and_must_be_objects():
    async with Runtime.open({}) as runtime, viewing(runtime, allow_calls=True) as viewer:
        large = await viewer.post("call", b'{"name": "' + b"x" * 2_000_000 + b'"}')
        broken = [await viewer.post("call", body) for body in (b"{", b"[1]", b"[" * 100_000)]
        wrong = await viewer.post("call", {"name": 5})
        number = await viewer.get("catalogue?offset=-1")
    assert large.status == 413
    assert [answer.status for answer in broken] == [400, 400, 400]
    assert (wrong.status, number.status) == (400, 400)


async def test_every_answer_forbids_scripts_of_others_frames_and_guessing_of_types():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        answers = [
            await viewer.request("GET", path)
            for path in ("/", "/static/nothing.js", "/static/../app.py", "/api/state", "/nothing")
        ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    assert [answer.status for answer in answers[1:]] == [404, 404, 200, 404]


async def test_only_files_of_the_page_are_served_and_they_may_be_kept():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        page = await viewer.request("GET", "/")
        tag = page.headers["etag"]
        again = await viewer.request("GET", "/", headers={"if-none-match": tag})
        for name in ("..%2fapp.py", "%2e%2e/app.py", "../guard.py", "index.html%00.py", "."):
            answer = await viewer.request("GET", f"/static/{name}")
            assert answer.status == 404, name
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert (again.status, again.headers["cache-control"]) == (304, "no-cache")


async def test_the_console_of_an_application_lives_below_its_path_with_its_own_login():
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("home")

    def is_admin(request: Request) -> bool:
        return request.headers.get("x-user") == "admin"

    async with ScriptedServer.local() as server, Runtime.open({"kit": server.url}) as runtime:
        own = Console(runtime, authenticate=is_admin)
        by_token = Console(runtime, token="a-token-of-the-application")
        app = Starlette(
            routes=[Route("/", home), Mount("/tools", own), Mount("/deep/console", by_token)]
        )
        async with running(app) as url, browser() as session:
            viewer = Viewer(session, f"{url}/tools")
            assert (await viewer.get("state")).status == 401
            state = await viewer.get("state", **{"x-user": "admin", "host": "tools.example.com"})
            assert state.json["servers"][0]["name"] == "kit"
            assert (
                (await viewer.request("GET", "/")).headers["content-type"].startswith("text/html")
            )
            other = Viewer(session, f"{url}/deep/console", "a-token-of-the-application")
            assert "Path=/deep/console" in (await other.log_in()).headers["set-cookie"]
            assert (await other.get("state")).status == 200
            assert (await other.get("state", host="tools.example.com")).status == 403
            whole = Viewer(session, url)
            assert (await whole.request("GET", "/")).text == "home"


async def test_the_application_of_the_page_shows_its_console_to_administrators():
    from examples.console import make_app

    admin = {"x-user": "admin"}
    async with (
        ScriptedServer.local() as server,
        running(make_app({"math": server.url, "other": server.url}), lifespan="on") as url,
        browser() as session,
    ):
        viewer = Viewer(session, f"{url}/toolkeep")
        stranger = await viewer.get("state")
        state = (await viewer.get("state", **admin)).json
        made = await viewer.post("call", {"name": "math.add"}, **admin)
        other = await viewer.post("call", {"name": "other.add"}, **admin)
    assert stranger.status == 401
    assert [one["name"] for one in state["servers"]] == ["math", "other"]
    assert (made.status, other.status) == (202, 403)


async def test_a_check_of_the_application_that_fails_refuses():
    def broken(request: Request) -> bool:
        raise RuntimeError("the database is down")

    async with Runtime.open({}) as runtime:
        app = Console(runtime, authenticate=broken, allow_calls=lambda action: 1 / 0 > 0)
        async with running(app) as url, browser() as session:
            assert (await Viewer(session, url).get("state")).status == 401


@asynccontextmanager
async def running(app: Any, lifespan: Any = "off") -> AsyncIterator[str]:
    """An application of the user's, in uvicorn."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, lifespan=lifespan, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve(sockets=[listener]))
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


@pytest.mark.filterwarnings("ignore:.*the URL contains a secret")
async def test_secrets_never_reach_the_browser():
    """Every body that a viewer gets, with a server that quotes all that it was sent."""
    witness = {name: f"sekret-{name}-{secrets.token_hex(4)}" for name in ("key", "head", "query")}
    of_user = f"sekret-user-{secrets.token_hex(4)}"
    async with ScriptedServer.local(era="legacy") as server:
        everything = " ".join(witness.values())
        await server.set_tools([{"name": "evil", "description": everything, "inputSchema": {}}])
        error = {"code": -32000, "message": f"I was sent {everything} and {of_user}"}
        await server.script(Rule(tool="evil", do=Behaviour(error=error)))
        spec = {
            "url": f"{server.url}?token={witness['query']}",
            "api_key": witness["key"],
            "headers": {"x-secret": witness["head"]},
        }
        config = {"servers": {"kit": spec}}
        async with (
            Runtime.open(config) as runtime,
            viewing(runtime, allow_calls=True) as viewer,
            following(viewer) as follower,
        ):
            await viewer.post("servers/kit/trace", {"on": True})
            context = CallContext(principal="ada", headers={"authorization": f"Bearer {of_user}"})
            await runtime.call("kit.headers", context=context)
            with pytest.raises(ToolkeepError):
                await runtime.call("kit.evil", context=context)
            await follower.ended("evil")
            for call in follower.calls:
                await viewer.get(f"calls/{call}?values=1")
            for path in (*READS, "servers/kit/wire.jsonl", "item?kind=tools&name=kit.evil"):
                if path != "events":
                    assert (await viewer.get(path)).status == 200, path
            await viewer.get("wire?server=kit")
    shown = "".join(viewer.everything)
    assert "kit.evil" in shown
    assert [name for name, value in witness.items() if value in shown] == []
    assert of_user not in shown
    assert os.environ.get("TOOLKEEP_CONSOLE") is None
