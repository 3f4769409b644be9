"""`toolkeep check` of servers that are well: every step passes, and nothing stays behind there."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.helpers_checking import Found, check, paragraphs
from tests.cli.helpers_running import COLUMNS, Home
from toolkeep.testing import Behaviour, Recorded, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("O2")

HTTP = ["configuration", "dns", "tcp", "http", "handshake", "session", "tools", "ping"]
STDIO = ["configuration", "command", "process", "handshake", "tools", "ping"]
SERVERS: dict[str, dict[str, Any]] = {
    "legacy": {"era": "legacy"},
    "modern": {"era": "modern"},
    "streamed": {"era": "legacy", "encoding": "sse"},
    "sessionless": {"era": "legacy", "sessions": False},
    "older": {"era": "legacy", "transport": "sse"},
}
PROGRAMS: dict[str, dict[str, Any]] = {
    "program": {"era": "modern"},
    "old-program": {"era": "legacy"},
}
Told = tuple[Found, str, dict[str, list[Recorded]]]


@pytest.fixture(scope="module")
async def told(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> Told:
    home = Home(tmp_path_factory.mktemp("healthy"))
    async with contextlib.AsyncExitStack() as stack:
        servers: dict[str, ScriptedServer] = {}
        for name, options in SERVERS.items():
            servers[name] = await stack.enter_async_context(ScriptedServer.local(**options))
        for name, options in PROGRAMS.items():
            servers[name] = await stack.enter_async_context(ScriptedServer.stdio(**options))
        moved = await stack.enter_async_context(ScriptedServer.local())
        await moved.script(Rule(times=1, do=Behaviour(run=False, redirect="/mcp")))
        about = {"serverInfo": {"name": "unversioned", "version": ""}}
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, **about}
        await servers["sessionless"].script(Rule(method="initialize", do=Behaviour(result=agreed)))
        specs = {name: server.spec for name, server in servers.items()}
        pair = {"urls": [servers["modern"].url, moved.url.replace("127.0.0.1", "localhost")]}
        named = home.configure({**specs, "moved": moved.spec, "pair": pair})
        found = await check(home, "-c", named)
        seen = {name: await server.requests() for name, server in servers.items()}
        said = await home.run("check", "legacy", "program", "-c", named)
        assert (said.code, said.err) == (0, "")
        return found, said.out, seen


def test_a_server_without_a_version_is_named_alone(told: Told):
    (agreed,) = (one for one in told[0].of("sessionless").findings if one["step"] == "handshake")
    assert agreed["seen"].startswith("unversioned, protocol ")


@pytest.mark.parametrize("server", [*SERVERS, *PROGRAMS])
def test_every_step_passes_and_is_timed(told: Told, server: str):
    found = told[0].of(server)
    assert list(found.states) == (STDIO if server in PROGRAMS else HTTP)
    for one in found.findings:
        assert one["state"] in ("ok", "skipped"), one
        assert (one["seconds"] is None) == (one["state"] == "skipped"), one
        assert one["seen"]


@pytest.mark.parametrize(
    ("server", "agreed"),
    [
        ("legacy", "toolkeep-scripted 1, protocol 2025-11-25 (legacy)"),
        ("modern", "protocol 2026-07-28 (modern)"),
        ("older", "over HTTP+SSE of 2024-11-05"),
        ("old-program", "toolkeep-scripted 1, protocol 2025-11-25 (legacy)"),
    ],
)
def test_what_was_agreed_on_is_told(told: Told, server: str, agreed: str):
    (handshake,) = (one for one in told[0].of(server).findings if one["step"] == "handshake")
    assert agreed in handshake["seen"]


def test_a_session_is_tried_where_there_is_one(told: Told):
    tried = {name: told[0].of(name).states["session"] for name in SERVERS}
    assert tried.pop("modern") == "skipped"
    assert tried.pop("sessionless") == "skipped"
    assert set(tried.values()) == {"ok"}


def test_a_redirect_inside_the_origin_is_followed_and_worth_a_word(told: Told):
    moved = told[0].of("moved")
    assert moved.warnings == ["redirect"]
    assert moved.states["ping"] == "ok"


def test_each_address_of_a_server_is_looked_at_and_a_name_is_looked_up(told: Told):
    names = {one["server"] for one in told[0].findings}
    first, second = sorted(name for name in names if name.startswith("pair at http://"))
    assert told[0].of(first).states["dns"] == "skipped"
    assert told[0].of(second).states["dns"] == "ok"
    for name in (first, second):
        assert told[0].of(name).states["ping"] == "ok"


def asked(seen: Sequence[Recorded]) -> list[str]:
    return [one.rpc_method or one.http_method for one in seen]


@pytest.mark.parametrize("server", ["legacy", "streamed"])
def test_one_session_is_opened_and_it_is_deleted(told: Told, server: str):
    seen = told[2][server]
    assert asked(seen).count("initialize") == 1
    assert asked(seen).count("DELETE") == 1
    assert asked(seen)[-1] == "DELETE"
    assert asked(seen).count("tools/call") == 0
    assert len({one.session_id for one in seen if one.session_id}) == 1


def test_people_get_a_line_for_each_step_and_the_verdict(told: Told):
    said = told[1]
    assert list(paragraphs(said)) == ["legacy", "program"], "only those that were asked for"
    assert said.rstrip().endswith("all 2 are well")
    assert "  ok    handshake" in said


async def test_one_server_can_be_given_on_the_command_line_and_looks_good_on_a_terminal(
    home: Home,
):
    async with ScriptedServer.local(api_key="a-key-for-the-kit") as server:
        header = ("--header", "Authorization: Bearer a-key-for-the-kit")
        ran = await home.shown("check", "--url", server.url, *header)
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert "✓  handshake" in ran.out
    assert lines[-1].strip() == "all is well"
    assert all(len(line) <= COLUMNS for line in lines)
    assert b"\x1b[32m" in ran.raw


async def test_a_server_is_watched_for_a_while(home: Home):
    async with ScriptedServer.stdio() as steady:
        found = await check(home, "--for", "1s", "-c", home.configure({"steady": steady.spec}))
    (watched,) = (one for one in found.of("steady").findings if one["step"] == "watch")
    assert watched["state"] == "ok"
    assert "answered in 1 s" in watched["seen"]


async def test_a_connection_that_ends_while_it_is_watched_is_a_fault(home: Home):
    async with ScriptedServer.stdio(era="legacy") as fickle:
        # The first ping is the check's own; the next one is answered by the end of the program.
        await fickle.script(
            Rule(method="ping", skip=1, times=1, do=Behaviour(drop="after_body", exit_code=3))
        )
        found = await check(home, "--for", "2s", "-c", home.configure({"fickle": fickle.spec}))
    (watched,) = (one for one in found.of("fickle").findings if one["step"] == "watch")
    assert (watched["state"], watched["fault"]) == ("failed", "unstable")


async def test_a_duration_that_is_none_is_refused(home: Home):
    ran = await home.run("check", "--for", "soon")
    assert ran.code == 2
    assert "write 10s, 5m or 1h" in ran.err
