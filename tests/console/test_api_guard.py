"""Who may look at a console, and what never leaves it."""

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
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
from toolkeep.console.app import MAX_RUNNING, MAX_STREAMS
from toolkeep.console.views import KINDS
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
        for wrong in ("", "x", viewer.token[:-1], "\ud800", None, 7, {"a": 1}):
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
        foreign = (f"evil.example:{port}", "rebound.attacker.test", "127.0.0.1.evil.example", "")
        malformed = ("[::1", "127.0.0.1:a", "127.0.0.1#evil.example", "a@127.0.0.1", "[::1]evil")
        for host in (*foreign, *malformed):
            for path in ("/api/state", "/api/events", "/callback", "/"):
                answer = await viewer.request("GET", path, headers={"host": host})
                assert answer.status in (400, 403), (host, path)
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
            {"origin": "http://["},
            {"origin": f"http://127.0.0.1:{port}.evil.example"},
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
        # The cookie goes to all ports of a host: also with what a page at another port asks for.
        for site, status in (("same-site", 403), ("cross-site", 403), ("same-origin", 200)):
            read = await viewer.get("state", **{"sec-fetch-site": site})
            assert read.status == status, site
        page = await viewer.request("GET", "/", headers={"sec-fetch-site": "cross-site"})
    assert page.status == 200  # a link to it
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
        outer = Console(runtime, token="another-token")
        app = Starlette(
            routes=[
                Route("/", home),
                Mount("/tools", own),
                Mount("/deep/console", by_token),
                Mount("/deep", outer),
            ]
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
            assert (await Viewer(session, f"{url}/deep", "another-token").log_in()).status == 204
            assert (await other.get("state")).status == 200  # browsers send both cookies to it
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
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(app, lifespan=lifespan, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve(sockets=[listener]))
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


async def test_streams_and_calls_at_once_are_bounded():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
    ):
        streams = [viewer.stream() for _ in range(MAX_STREAMS + 8)]
        told = await asyncio.gather(*map(anext, streams), return_exceptions=True)
        assert sum(not isinstance(one, BaseException) for one in told) == MAX_STREAMS
        await asyncio.gather(*(stream.aclose() for stream in streams))
        slow = {"name": "kit.slow", "arguments": {"seconds": 30}}
        made = await asyncio.gather(*(viewer.post("call", slow) for _ in range(MAX_RUNNING + 4)))
        assert sorted(one.status for one in made) == [202] * MAX_RUNNING + [429] * 4


async def test_an_id_of_another_stream_is_no_error():
    async with Runtime.open({}) as runtime, viewing(runtime) as viewer:
        async with following(viewer) as first:
            instance = first.told[0].data["process"]["instance"]
        for last in ("-1", f"{instance}-{'9' * 5000}", f"{instance}-x", "\u00e9"):
            async with following(viewer, last) as follower:
                assert follower.told[0].data["resumed"] is False, last


QUOTING = """
import json, os, sys
said = f"{os.environ['WITNESS']} {sys.argv[-1]}"
print(said, file=sys.stderr, flush=True)

def out(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def tell(method, **params):
    out(method=method, params=params)

LISTS = {
    "tools": [{"name": f"t {said}", "title": said, "description": "x" * 490 + said,
               "inputSchema": {"type": "object", "properties": {said: {"description": said}}}}],
    "prompts": [{"name": f"p {said}", "arguments": [{"name": said, "description": said}]}],
    "resources": [{"name": said, "uri": f"kit://{said}", "mimeType": said}],
    "resources/templates": [{"name": said, "uriTemplate": f"kit://{said}/{{x}}"}],
}
for line in sys.stdin:
    asked = json.loads(line)
    method, number = asked["method"], asked.get("id")
    params = asked.get("params") or {}
    if number is None:
        continue
    kind, _, what = method.rpartition("/")
    if method == "initialize":
        capabilities = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}}
        out(id=number, result={"protocolVersion": params["protocolVersion"], "instructions": said,
            "capabilities": capabilities, "serverInfo": {"name": said, "version": said}})
    elif what == "list":
        out(id=number, result={kind.replace("resources/t", "resourceT"): LISTS[kind]})
        LISTS["tools"][0]["description"] += said
    elif method == "prompts/get":
        out(id=number, result={"description": said, "messages": []})
    elif method == "resources/read":
        out(id=number, result={"contents": [{"uri": "kit://x", "text": said}]})
    elif method == "tools/call":
        token = params.get("_meta", {}).get("progressToken")
        tell("notifications/progress", progressToken=token, progress=1, message=said)
        tell("notifications/message", level="info", logger=said, data={said: said})
        tell(f"notifications/{said}")
        schema = {"type": "object", "properties": {"a": {"type": "string", "title": said}}}
        out(id="q", method="elicitation/create",
            params={"message": said, "requestedSchema": schema})
        while "q" != json.loads(sys.stdin.readline()).get("id"):
            pass
        out(id=number, error={"code": -32000, "message": said, "data": {said: said}})
    else:
        out(id=number, result={})
"""


@pytest.mark.filterwarnings("ignore:.*the URL contains a secret")
async def test_secrets_never_reach_the_browser(tmp_path: Path):
    """Every route, and the stream, with servers that quote all that they were given."""
    witness = {
        name: f"sekret-{name}-{secrets.token_hex(4)}"
        for name in ("key", "head", "query", "user", "password", "env", "arg", "context")
    }
    program = tmp_path / "quoting.py"
    program.write_text(QUOTING)
    quoted = f"{witness['env']} {witness['arg']}"
    async with ScriptedServer.local(era="legacy") as server:
        sent = " ".join(value for value in witness.values() if value not in quoted)
        error = {"code": -32000, "message": f"I was sent {sent}"}
        await server.script(Rule(tool="echo", do=Behaviour(error=error)))
        credentials = f"{witness['user']}:{witness['password']}@"
        url = f"{server.url.replace('//', f'//{credentials}')}?token={witness['query']}"
        given = {"api_key": witness["key"], "headers": {"x-secret": witness["head"]}}
        config = {
            "web": {"url": url, **given},
            "down": {"url": f"http://{credentials}127.0.0.1:9/?token={witness['query']}", **given},
            "kit": {
                "command": sys.executable,
                "args": [str(program), "--token", witness["arg"]],
                "env": {"WITNESS": witness["env"]},
            },
        }
        async with (
            Runtime.open({"servers": config}, backoff=None, elicitation="caller") as runtime,
            viewing(runtime, allow_calls=True) as viewer,
            following(viewer) as follower,
        ):
            for name in ("web", "kit"):
                await viewer.post(f"servers/{name}/trace", {"on": True})
            headers = {"authorization": f"Bearer {witness['context']}"}
            context = CallContext(principal="ada", headers=headers)
            await runtime.call("web.headers", context=context)
            with pytest.raises(ToolkeepError):
                await runtime.call("web.echo", {"text": "x"}, context=context)
            tool, prompt = f"kit.t {quoted}", f"kit.p {quoted}"
            await viewer.post("call", {"name": tool})
            (question,) = await follower.until(lambda: follower.state.get("questions"))
            await viewer.post(f"questions/{question['id']}", {"action": "decline"})
            await follower.until(
                lambda: [c["state"] for c in follower.calls.values()] == ["ended"] * 3
            )
            await runtime.refresh("kit")
            (change, *_) = (await viewer.get("changes")).json["changes"]
            exchanges = [
                one["id"]
                for name in ("web", "kit")
                for one in (await viewer.get(f"wire?server={name}")).json["exchanges"]
            ]
            asked = {
                "calls/{id}": [f"calls/{call}?values=1" for call in follower.calls],
                "catalogue": [f"catalogue?kind={kind}" for kind in KINDS],
                "item": [
                    f"item?kind=tools&name={tool}&whole=1",
                    f"item?kind=prompts&name={prompt}",
                ],
                "changes/{id:int}": [f"changes/{change['id']}"],
                "latency": ["latency", "latency?server=kit", "latency?server=web"],
                "wire": ["wire?server=web", "wire?server=kit"],
                "wire/{id:int}": [f"wire/{one}" for one in exchanges],
                "servers/{name}/wire.jsonl": [f"servers/{n}/wire.jsonl" for n in ("web", "kit")],
            }
            for method, path, _ in Console(runtime)._routes():
                for one in asked.get(path, [path]) if method == "GET" else ():
                    assert (await viewer.get(one)).status == 200, one
            posts = [("prompt", {"name": prompt}), ("check", {"name": tool})]
            posts += [("resource", {"server": "kit", "uri": f"kit://{quoted}"})]
            posts += [("servers/kit/reconnect", {})]
            for path, body in posts:
                assert (await viewer.post(path, body)).status in (200, 502), path
            await viewer.get("state")
    shown = "".join(viewer.everything)
    assert "kit.t ***" in shown
    assert change["name"] == "kit.t *** ***"
    for value in witness.values():
        before, found, _ = shown.partition(value[:-1])
        assert not found, before[-300:]
