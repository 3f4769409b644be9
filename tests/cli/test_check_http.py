"""`toolkeep check`: what answers at an address, and what it agrees to."""

import contextlib
from typing import Any

import pytest

from tests.cli.helpers_checking import Found, Seeded, answering, page, told_twice
from tests.cli.helpers_running import Home
from toolkeep.testing import Behaviour, Recorded, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("O2")

FAULTS = [
    Seeded("keyless", "http", "http-401", "none were sent", "'api_key'"),
    Seeded("stale", "http", "http-401", "were sent (api_key)", "Renew or correct 'api_key'"),
    Seeded("forbidden", "http", "http-403", "'not for you'", "'api_key'"),
    Seeded("astray", "http", "http-404", "nothing at /rpc", "/mcp: an MCP server answers there"),
    Seeded("nowhere", "http", "http-404", "nothing at /mcp", "no usual path answers"),
    Seeded("static", "http", "http-405", "does not accept POST", "address of the MCP endpoint"),
    Seeded("portal", "http", "not-mcp", "'Please log in'", "address of the MCP endpoint"),
    Seeded("shop", "http", "not-mcp", "HTTP 404 with a web page ('Shop')", "address of the MCP"),
    Seeded("blocked", "http", "not-mcp", "HTTP 403 with a web page ('No')", "address of the MCP"),
    Seeded("walled", "http", "http-401", "Its answer: 'ask the admin'", "'api_key'"),
    Seeded("down", "http", "http-503", "HTTP 502", "gateway"),
    Seeded("text", "http", "not-mcp", "'just some words'", "address of the MCP endpoint"),
    Seeded("older", "http", "sse-as-streamable", "speaks HTTP+SSE", "to 'sse', or remove it"),
    Seeded("newer", "http", "streamable-as-sse", "streamable HTTP", "to 'http', or remove it"),
    Seeded("moved", "http", "redirect", "http://elsewhere.test/mcp", "in 'url'"),
    Seeded("busy", "http", "http-429", "HTTP 429", "Try again in 7 s"),
    Seeded("away", "http", "http-503", "HTTP 503", "gateway"),
    Seeded("sick", "http", "http-5xx", "HTTP 500", "log"),
    Seeded("teapot", "http", "http-refused", "'short and stout'", "'headers'"),
    Seeded("mute", "http", "connection-broken", "the connection ", "server's log"),
    Seeded("ancient", "handshake", "version-mismatch", "supports 1999-01-01", "Update the server"),
    Seeded("futuristic", "handshake", "version-mismatch", "supports 2999-01-01", "Update toolkeep"),
    Seeded("pinned", "handshake", "version-mismatch", "'mode'", "to 'auto'"),
    Seeded("unwilling", "handshake", "handshake-rejected", "error -32603: not today", "log"),
    Seeded("forgetful", "session", "session-lost", "has just opened", "balancer"),
    Seeded("secretive", "tools", "request-rejected", "error -32000: no list", "log"),
    Seeded("guarded", "tools", "http-401", "401", "'api_key'"),
    Seeded("fickle", "tools", "connection-broken", "closed the connection", "log"),
    Seeded("endless", "tools", "endless-list", "page 2 leads back", "nextCursor"),
    Seeded("misspelt", "tools", "malformed-schema", "tool 'bad': the schema", "Correct it"),
    Seeded("shapeless", "tools", "malformed-schema", "tool 'bad': inputSchema", "Correct it"),
    Seeded("nameless", "tools", "malformed-tool", "tool 'number 15': name", "Correct it"),
]
WELL = {"ok", "skipped"}
Told = tuple[Found, str, dict[str, list[Recorded]]]
"""What programs are told, what people are, and what the servers saw."""


def always(**do: Any) -> Rule:
    """Also to requests that the protocol would refuse."""
    return Rule(do=Behaviour(run=False, **do))


def instead(method: str, **do: Any) -> Rule:
    return Rule(method=method, do=Behaviour(**do))


def minting(session: str) -> Rule:
    """As servers of the Python SDK do: a session for whoever has none, also if he is refused."""
    body = '{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "no session"}}'
    head = {"mcp-session-id": session}
    kind = {"body": body, "content_type": "application/json"}
    return instead("ping", run=False, status=400, headers=head, **kind)


def agreeing_to(version: str) -> Rule:
    about = {"capabilities": {}, "serverInfo": {"name": "odd", "version": "1"}}
    return instead("initialize", result={"protocolVersion": version, **about})


def tool(name: Any = "bad", schema: Any = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"} if schema is None else schema}


def typed(kind: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": kind}}}


PLAIN = {"content_type": "text/plain"}
PAGE = {"content_type": "text/html"}
SCRIPTED: dict[str, tuple[dict[str, Any], tuple[Rule, ...]]] = {
    "keyless": ({"api_key": "the-right-key"}, ()),
    "stale": ({"api_key": "the-right-key"}, ()),
    "forbidden": ({}, (always(status=403, body="not for you", **PLAIN),)),
    "shop": ({}, (always(status=404, body="<html><title>Shop</title>", **PAGE),)),
    "blocked": ({}, (always(status=403, body="<html><title>No</title>", **PAGE),)),
    "walled": ({}, (always(status=401, body="ask the admin", **PLAIN),)),
    "down": ({}, (always(status=502, body="<html><h1>Bad Gateway", **PAGE),)),
    "astray": ({}, ()),
    "static": ({}, (always(status=405, body=""),)),
    "older": ({"transport": "sse"}, ()),
    "newer": ({}, (minting("opened-for-a-ping"),)),
    "moved": ({}, (always(redirect="http://elsewhere.test/mcp"),)),
    "busy": ({}, (always(status=429, headers={"Retry-After": "7"}, body=""),)),
    "away": ({}, (always(status=503, body=""),)),
    "sick": ({}, (always(status=500, body=""),)),
    "teapot": ({}, (always(status=418, body="short and stout", **PLAIN),)),
    "ancient": ({"era": "legacy"}, (agreeing_to("1999-01-01"),)),
    "futuristic": ({"era": "legacy"}, (agreeing_to("2999-01-01"),)),
    "pinned": ({"era": "legacy"}, ()),
    "unwilling": (
        {"era": "legacy"},
        (instead("initialize", error={"code": -32603, "message": "not today"}),),
    ),
    "forgetful": ({"era": "legacy"}, (instead("ping", status=404, body=""),)),
    "secretive": (
        {"era": "legacy"},
        (instead("tools/list", error={"code": -32000, "message": "no list"}),),
    ),
    "guarded": ({"era": "legacy"}, (instead("tools/list", status=401, body=""),)),
    "fickle": ({"era": "legacy"}, (instead("tools/list", drop="after_body"),)),
    "endless": ({}, (instead("tools/list", result={"tools": [], "nextCursor": "on"}),)),
    "misspelt": ({"tools": [tool(schema=typed("strnig"))]}, ()),
    "shapeless": ({"tools": [tool(schema="any")]}, ()),
    "nameless": ({"tools": [tool(name=7)]}, ()),
    "odd": ({"tools": [tool(name="café"), tool("twin"), tool("twin")]}, ()),
    "slow": ({"era": "legacy"}, (Rule(method="ping", skip=1, do=Behaviour(delay=1.1)),)),
    "late": ({}, (Rule(do=Behaviour(headers={"Date": "Mon, 05 Jan 2026 08:00:00 GMT"})),)),
    "toolless": (
        {"era": "legacy"},
        (instead("tools/list", error={"code": -32601, "message": "what tools?"}),),
    ),
    "empty": ({}, (instead("tools/list", result={"tools": []}),)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "stale": {"api_key": "an-old-key-of-ours"},
    "older": {"type": "http"},
    "newer": {"type": "sse"},
    "pinned": {"mode": "modern"},
    # A header that is ignored is a finding: no Python warning of it may reach standard error.
    "astray": {"headers": {"Accept": "text/html"}},
}


@pytest.fixture(scope="module")
async def told(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> Told:
    home = Home(tmp_path_factory.mktemp("http"))
    specs: dict[str, dict[str, Any]] = {}
    async with contextlib.AsyncExitStack() as stack:
        servers: dict[str, ScriptedServer] = {}
        for name, (options, rules) in SCRIPTED.items():
            servers[name] = await stack.enter_async_context(ScriptedServer.local(**options))
            await servers[name].script(*rules)
            specs[name] = {"url": servers[name].url, **SETTINGS.get(name, {})}
        specs["astray"]["url"] = specs["astray"]["url"].replace("/mcp", "/rpc")
        raw = {
            "nowhere": page("nothing here", "text/plain", "404 Not Found"),
            "portal": page("<!DOCTYPE html><title>Please log in</title>"),
            "text": page("just some words", "text/plain"),
            "mute": b"",
        }
        for name, answer in raw.items():
            url = await stack.enter_async_context(answering(answer))
            specs[name] = {"url": url}
        found, said = await told_twice(home, "-c", home.configure(specs))
        return found, said, {name: await one.requests() for name, one in servers.items()}


@pytest.mark.parametrize("seeded", FAULTS, ids=str)
def test_a_fault_of_what_answers_is_named_with_its_cause_and_its_remedy(told: Told, seeded: Seeded):
    seeded.assert_in(*told[:2])


@pytest.mark.parametrize(
    ("server", "faults"),
    [
        ("late", ["clock-skew"]),
        ("empty", ["no-tools"]),
        ("toolless", ["no-tools"]),
        ("slow", ["slow"]),
        ("odd", ["invalid-tool-name", "duplicate-tool"]),
    ],
)
def test_what_works_all_the_same_is_a_warning(told: Told, server: str, faults: list[str]):
    found = told[0].of(server)
    assert found.warnings == faults
    assert set(found.states.values()) <= WELL
    assert found.states["ping"] == "ok"


def test_a_session_that_a_mere_question_opened_is_deleted(told: Told):
    seen = told[2]["newer"]
    opened = [one for one in seen if one.rpc_method == "ping"]
    deleted = [one for one in seen if one.http_method == "DELETE"]
    assert opened
    assert len(deleted) == len(opened)
    assert {one.headers["mcp-session-id"] for one in deleted} == {"opened-for-a-ping"}


def test_a_failed_handshake_leaves_no_session_behind(told: Told):
    for name in ("ancient", "futuristic"):
        seen = [one.rpc_method or one.http_method for one in told[2][name]]
        assert seen.count("DELETE") == seen.count("initialize")


def test_the_sum_is_told_at_the_end(told: Told):
    failed = {one["server"] for one in told[0].findings if one["state"] == "failed"}
    assert failed == {seeded.server for seeded in FAULTS}
    many = len(SCRIPTED) + 4
    last = told[1].rstrip().splitlines()[-1]
    assert last.startswith(f"{len(failed)} of {many} failed; first keyless, at HTTP; ")
