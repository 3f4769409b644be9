"""What a gateway refuses over HTTP: wrong messages, headers and hosts, callers without rights, and
too much of anything; and what it writes down about it."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.front import KEYS, MODERN, front, next_message, until, wire
from tests.runtime._catalogue import tool
from toolkeep import ConfigError, Runtime
from toolkeep.config.gateway import GatewaySettings
from toolkeep.gateway import Caller, Gateway, hash_key
from toolkeep.gateway.errors import ERRORS, RpcError
from toolkeep.gateway.http import decode
from toolkeep.state import MemoryStore
from toolkeep.testing import ScriptedServer

ALICE, BOB = "tk_alice", "tk_bob"
TWO = {"keys": {"alice": hash_key(ALICE), "bob": hash_key(BOB)}}
ECHO = {"name": "kit__echo", "arguments": {"text": "x"}}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_what_is_not_json_is_a_parse_error(body: bytes):
    with pytest.raises(RpcError) as refused:
        decode(body)
    assert (refused.value.code, refused.value.status) == (-32700, 400)


@pytest.mark.parametrize(
    "message",
    [
        [],
        [{"jsonrpc": "2.0", "id": 1, "method": "ping"}],
        7,
        "ping",
        None,
        {},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": True, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
        {"jsonrpc": "2.0", "id": {}, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": 7},
        {"jsonrpc": "2.0", "id": 1, "method": ""},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}},
        {"jsonrpc": "2.0", "id": 1},
    ],
)
def test_what_is_not_one_message_is_an_invalid_request(message: Any):
    with pytest.raises(RpcError) as refused:
        decode(json.dumps(message).encode())
    assert (refused.value.code, refused.value.status) == (-32600, 400)


async def test_http_is_checked_before_the_message():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"limits": {"body_bytes": 2000}}) as gateway,
        wire(gateway.url) as client,
    ):
        body = client.request("ping")
        assert (await client.send(body, content_type="text/plain")).status == 415
        assert (await client.send(body, accept="text/html")).status == 406
        assert (await client.send(b"x" * 3000)).status == 413
        put = await client.send(body, verb="PUT")
        assert (put.status, put.headers["allow"]) == (405, "POST, GET, DELETE")
        modern = await client.send(verb="GET", mcp_protocol_version=MODERN)
        assert (modern.status, modern.headers["allow"]) == (405, "POST")
        assert (await client.send(body)).error["code"] == -32600  # no session
        assert (await client.send([body])).error["code"] == -32600  # a batch
        assert (await client.send(verb="GET", accept="application/json")).status == 406
        assert (await client.send(body, url=gateway.url.replace("/mcp", "/nothing"))).status == 404
        await client.initialize()
        assert (await client.call("nonsense")).error["code"] == -32601
        assert (await client.call("nonsense")).status == 200


async def test_a_body_that_comes_in_pieces_is_bounded_too():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"limits": {"body_bytes": 2000}}) as gateway,
        wire(gateway.url) as client,
    ):

        async def pieces() -> Any:
            for _ in range(100):
                yield b"x" * 1000

        headers = {"content-type": "application/json"}
        async with client.session.post(client.url, data=pieces(), headers=headers) as answer:
            assert answer.status == 413


async def test_modern_headers_must_repeat_the_body():
    region = {"type": "string", "x-mcp-header": "Region"}
    listed = {**tool("routed"), "inputSchema": {"type": "object", "properties": {"to": region}}}
    async with (
        ScriptedServer.local(tools=[listed]) as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        body, headers = client.modern_request("tools/call", {}, {}, dict(ECHO))
        assert (await client.send(body, **headers)).status == 200
        for name, value in {
            "mcp-method": "tools/list",
            "mcp-name": "kit__add",
            "mcp-protocol-version": "2026-01-01",
        }.items():
            answer = await client.send(body, **{**headers, name: value})
            wanted = -32022 if name == "mcp-protocol-version" else -32020
            assert (answer.status, answer.error["code"]) == (400, wanted)
            left_out = {one: text for one, text in headers.items() if one != name}
            assert (await client.send(body, **left_out)).status == 400
        unnamed, about = client.modern_request("tools/list", {}, {}, {})
        del unnamed["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert (await client.send(unnamed, **about)).error["code"] == -32602
        routed = {"name": "kit__routed", "arguments": {"to": "eu"}}
        body, headers = client.modern_request("tools/call", {}, {}, routed)
        assert (await client.send(body, **headers)).error["code"] == -32020
        assert (await client.send(body, **headers, mcp_param_region="us")).status == 400
        answer = await client.send(body, **headers, mcp_param_region="eu")
        assert answer.json["result"]["isError"] is False
        assert (await client.modern("nonsense")).status == 404
        assert (await client.modern("initialize")).status == 404
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
        assert (await client.send(note, mcp_protocol_version=MODERN)).status == 202


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:8000", None, True),
        ("localhost", "http://localhost:3000", True),
        ("[::1]:8000", None, True),
        ("evil.example", None, False),
        ("localhost", "https://evil.example", False),
        ("localhost", "null", False),
        ("localhost.evil.example", None, False),
        ("tools.example.com", None, True),
        ("tools.example.com", "https://chat.example.com", True),
        ("tools.example.com", "https://tools.example.com", True),
    ],
)
async def test_only_known_hosts_and_origins_reach_it(host: str, origin: str | None, allowed: bool):
    settings = {
        "allowed_hosts": ("tools.example.com",),
        "allowed_origins": ("https://chat.example.com",),
    }
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=settings) as gateway,
        wire(gateway.url) as client,
    ):
        headers = {"host": host} | ({"origin": origin} if origin else {})
        answer = await client.send(client.request("ping"), **headers)
        assert (answer.status != 403) == allowed
        if not allowed:
            assert answer.error["code"] == -32011
        elif origin:
            assert answer.headers["access-control-allow-origin"] == origin
            preflight = await client.send(verb="OPTIONS", **headers)
            assert preflight.status == 204


# -- who may ------------------------------------------------------------------------------------


async def test_a_session_of_one_principal_is_unknown_to_another():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
        wire(gateway.url) as nobody,
    ):
        await alice.initialize()
        assert (await alice.call("tools/list")).status == 200
        bob.headers["mcp-session-id"] = alice.headers["mcp-session-id"]
        stolen = await bob.call("tools/list")
        assert (stolen.status, stolen.error["code"]) == (404, -32001)
        assert (await bob.send(verb="GET")).status == 404
        assert (await bob.send(verb="DELETE")).status == 404
        nobody.headers["mcp-session-id"] = alice.headers["mcp-session-id"]
        refused = await nobody.call("tools/list")
        assert (refused.status, refused.error["code"]) == (401, -32010)
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert (await alice.call("tools/list")).status == 200


async def test_a_parked_call_belongs_to_its_principal():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
    ):
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        requests = {"a": {"method": "elicitation/create", "params": form}}
        call: Any = {"name": "kit__ask", "arguments": {"requests": requests}}
        can: Any = {"capabilities": {"elicitation": {}}}
        asked = (await alice.modern("tools/call", **call, **can)).json["result"]
        state = {"requestState": asked["requestState"], "inputResponses": {}}
        assert (await bob.modern("tools/call", **call, **can, **state)).error["code"] == -32602
        again = (await alice.modern("tools/call", **call, **can, **state)).json["result"]
        assert again["resultType"] == "input_required"


async def test_the_caller_is_the_principal_of_upstream_calls_and_its_token_stays_here():
    async with (
        ScriptedServer.local() as kit,
        front(
            {"kit": {"url": kit.url, "derived_headers": {"principal": "x-user"}}},
            settings={"keys": {"alice": {"hash": hash_key(ALICE), "claims": {"team": "a"}}}},
            permissions=lambda action, what, context: (
                context.metadata.get("team") == "a" and what.name != "kit.add"
            ),
        ) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        seen = (await alice.modern("tools/call", name="kit__headers", arguments={})).json["result"]
        sent = seen["structuredContent"]
        assert sent["x-user"] == "alice"
        assert ALICE not in json.dumps(sent)
        withheld = await alice.modern("tools/call", name="kit__add", arguments={"a": 1, "b": 1})
        assert withheld.error["code"] == -32602
        listed = (await alice.modern("tools/list")).json["result"]["tools"]
        assert "kit__add" not in {one["name"] for one in listed}


async def test_forged_cut_and_ended_session_ids_are_not_found():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        text = client.headers["mcp-session-id"]
        for forged in (text[:-1], text[:40], "x", "A" * 5000, f"{text[:-4]}AAAA", "é", "%00"):
            client.headers["mcp-session-id"] = forged
            answer = await client.call("tools/list")
            assert (answer.status, answer.error["code"]) == (404, -32001)
        client.headers["mcp-session-id"] = text
        assert (await client.call("ping")).status == 200
        assert (await client.send(verb="DELETE")).status == 200
        for _ in range(2):  # at both replicas
            assert (await client.call("ping")).status == 404


async def test_a_replica_that_has_not_seen_a_session_gives_it_to_its_principal_alone():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, replicas=2, store=MemoryStore(), settings=TWO) as gateway,
        wire(gateway.hosts[0], authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.hosts[1], authorization=f"Bearer {BOB}") as bob,
    ):
        await alice.initialize()
        bob.headers["mcp-session-id"] = alice.headers["mcp-session-id"]
        stolen = await bob.call("tools/list")
        assert (stolen.status, stolen.error["code"]) == (404, -32001)
        own = await alice.send(alice.request("tools/list"), url=gateway.hosts[1])
        assert own.status == 200


async def test_a_session_survives_a_change_of_keys_and_ends_with_its_key():
    new, old = "22" * 32, KEYS[0]
    store = MemoryStore()
    async with (
        ScriptedServer.local() as kit,
        front(
            {"kit": kit.url}, replicas=3, store=store, keys=([old], [new, old], [new])
        ) as gateway,
        wire(gateway.hosts[0]) as client,
    ):
        await client.initialize()
        assert (await client.send(client.request("ping"), url=gateway.hosts[1])).status == 200
        assert (await client.send(client.request("ping"), url=gateway.hosts[2])).status == 404


async def test_an_old_session_ends(monkeypatch: pytest.MonkeyPatch):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        monkeypatch.setattr("toolkeep.gateway.sessions.MAX_AGE", -1.0)
        assert (await client.call("ping")).status == 404


async def test_a_client_that_says_much_about_itself_gets_a_short_session_id():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        huge = {"name": "n" * 10_000, "version": "v" * 10_000, "icons": ["x" * 10_000]}
        more = {"experimental": {"x" * 1000: {}}, "elicitation": {"form": {}, "y": "x" * 9000}}
        answer = await client.call(
            "initialize", protocolVersion="2025-11-25", capabilities=more, clientInfo=huge
        )
        assert len(answer.headers["mcp-session-id"]) < 2000


async def test_a_shared_store_needs_keys():
    async with ScriptedServer.local() as kit:
        gateway = Gateway(Runtime({"kit": kit.url}, state=MemoryStore()))
        with pytest.raises(ConfigError, match="keys"):
            await gateway.start()
        assert not gateway.runtime.is_open


# -- how much -----------------------------------------------------------------------------------


async def test_rates_refuse_with_the_time_to_wait_at_every_replica():
    settings = {**TWO, "rate": "1/h"}
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=settings, replicas=2) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
    ):
        assert (await alice.modern("tools/call", **ECHO)).status == 200
        for _ in range(2):  # at both replicas
            late = await alice.modern("tools/call", **ECHO)
            assert (late.status, late.error["code"]) == (429, -32012)
            assert int(late.headers["retry-after"]) > 60
        assert (await bob.modern("tools/call", **ECHO)).status == 200
        assert (await alice.modern("tools/list")).status == 200
        assert len(await kit.requests(tool="echo")) == 2


async def test_requests_at_the_same_time_are_bounded():
    limits = {"requests": 3, "requests_per_principal": 2}
    slow = {"name": "kit__slow", "arguments": {"seconds": 30}}
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={**TWO, "limits": limits}) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization=f"Bearer {BOB}") as bob,
    ):
        calls = [asyncio.create_task(alice.modern("tools/call", **slow)) for _ in range(2)]
        await kit.requests(tool="slow", at_least=2)
        full = await alice.modern("tools/call", **slow)
        assert (full.status, full.error["code"]) == (503, -32013)
        assert "retry-after" in full.headers
        calls.append(asyncio.create_task(bob.modern("tools/call", **slow)))
        await kit.requests(tool="slow", at_least=3)
        assert (await bob.modern("tools/list")).status == 503
        await kit.skip_delays()
        assert [one.status for one in await asyncio.gather(*calls)] == [200] * 3
        assert gateway.gateway.in_flight == 0


async def test_streams_are_bounded_and_draining_refuses_them():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"limits": {"streams": 1}}) as gateway,
        wire(gateway.url) as client,
        wire(gateway.url) as other,
    ):
        await client.initialize()
        await other.initialize()
        async with await client.open(verb="GET") as stream:
            assert stream.status == 200
            assert (await other.send(verb="GET")).status == 503
            assert await gateway.gateway.drain(1.0)
            assert await next_message(stream) is None
        await until(lambda: gateway.gateway.endpoint.stream_count == 0)
        assert (await other.send(verb="GET")).status == 503
        assert (await other.modern("subscriptions/listen", notifications={})).status == 503
        assert (await other.modern("tools/call", **ECHO)).status == 200
        ready = await other.send(verb="GET", url=gateway.url.replace("/mcp", "/readyz"))
        assert (ready.status, ready.json["problems"]) == (503, ["it is stopping"])


# -- what is written down -------------------------------------------------------------------------


async def test_every_request_has_its_line_in_the_audit_stream(tmp_path: Path):
    file = tmp_path / "audit.jsonl"
    settings = {**TWO, "audit": str(file)}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": {"url": kit.url, "retry": "never"}}, settings=settings) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
        wire(gateway.url, authorization="Bearer tk_wrong") as thief,
    ):
        await alice.modern("tools/call", **ECHO)
        await alice.modern("tools/call", name="kit__fail", arguments={"message": "secret"})
        await alice.modern("tools/call", name="kit__add", arguments={})
        await alice.modern("tools/call", name="kit__nothing", arguments={})
        await alice.modern("tools/list")
        await thief.modern("tools/list")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(line["method"], line.get("tool"), line["outcome"]) for line in lines]
    assert told == [
        ("tools/call", "echo", "ran"),
        ("tools/call", "fail", "tool error"),
        ("tools/call", "add", "did not run"),
        ("tools/call", "kit__nothing", "did not run"),
        ("tools/list", None, "ran"),
        ("POST", None, "did not run"),
    ]
    assert [line["principal"] for line in lines] == ["alice"] * 5 + [None]
    assert "secret" not in file.read_text()


async def test_the_calls_of_search_and_code_mode_are_limited_and_written_down(tmp_path: Path):
    file = tmp_path / "audit.jsonl"
    settings = {
        **TWO,
        "audit": str(file),
        "rate": {"tool:kit.echo": "1/h"},
        "profiles": {"search": {"mode": "search"}},
    }
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=settings) as gateway,
        wire(f"{gateway.url}/search", authorization=f"Bearer {ALICE}") as alice,
    ):
        listed = (await alice.modern("tools/list")).json["result"]["tools"]
        name = next(one["name"] for one in listed if one["name"].endswith("call_tool"))
        made = {"name": "kit.echo", "arguments": {"text": "x"}}
        assert (await alice.modern("tools/call", name=name, arguments=made)).status == 200
        late = await alice.modern("tools/call", name=name, arguments=made)
        assert (late.status, late.error["code"]) == (429, -32012)
        direct = await alice.modern("tools/call", **ECHO)
        assert direct.error["code"] == -32602  # the profile does not show it
        assert len(await kit.requests(tool="echo")) == 1
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (echo,) = [line for line in lines if line.get("tool") == "echo"]
    assert (echo["principal"], echo["profile"], echo["outcome"]) == ("alice", "search", "ran")


async def test_oauth_clients_find_the_metadata_by_the_challenge():
    jwt = {
        "issuer": "https://login.example.com/",
        "audience": "https://tools.example.com/mcp",
        "jwks_url": "https://login.example.com/keys",
    }
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"jwt": jwt}) as gateway,
        wire(gateway.url) as client,
    ):
        refused = await client.send(client.request("ping"))
        assert refused.status == 401
        where = "/.well-known/oauth-protected-resource/mcp"
        assert f"https://tools.example.com{where}" in refused.headers["www-authenticate"]
        found = await client.send(verb="GET", url=gateway.url.replace("/mcp", where))
        assert found.json["resource"] == "https://tools.example.com/mcp"
        assert found.json["authorization_servers"] == ["https://login.example.com/"]


class Passes:
    """Every caller is `ann`, for some time."""

    def __init__(self, seconds: float) -> None:
        self.expires = time.time() + seconds

    async def authenticate(self, headers: Any) -> Caller:
        return Caller("ann", {}, "jwt", self.expires)

    def metadata(self, url: str) -> None:
        return None


async def test_streams_end_with_the_credential_of_their_caller():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, access=Passes(0.3)) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        body, headers = client.modern_request("subscriptions/listen", {}, {}, {"notifications": {}})
        async with (
            await client.open(verb="GET") as legacy,
            await client.open(body, **headers) as modern,
        ):
            assert (await next_message(modern))["method"].endswith("acknowledged")
            assert await next_message(legacy) is None
            assert (await next_message(modern))["result"]["resultType"] == "complete"


async def test_other_settings_end_the_streams_of_those_who_may_not_listen_any_more():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        await alice.initialize()
        async with await alice.open(verb="GET") as stream:
            fewer: Any = {"keys": {"bob": hash_key(BOB)}}
            gateway.gateway.apply(GatewaySettings(**fewer))
            assert await next_message(stream) is None
        assert (await alice.send(verb="GET")).status == 401


async def test_metrics_show_calls_and_are_for_callers_only():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        await alice.modern("tools/call", **ECHO)
        where = gateway.url.replace("/mcp", "/metrics")
        page = await alice.send(verb="GET", url=where)
        line = 'calls_total{server="kit",tool="echo",outcome="ran"} 1'
        assert line in page.text
        assert "toolkeep_gateway_requests 0" in page.text
        assert (await alice.send(verb="GET", url=where, drop=["authorization"])).status == 401
        health = await alice.send(verb="GET", url=gateway.url.replace("/mcp", "/healthz"))
        assert (health.status, health.text) == (200, "ok\n")


async def test_settings_can_be_replaced_while_it_serves():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        assert (await alice.modern("tools/list")).status == 200
        fewer: Any = {"keys": {"bob": hash_key(BOB)}, "profiles": {"one": {}}}
        gateway.gateway.apply(GatewaySettings(**fewer))
        assert (await alice.modern("tools/list")).status == 401
        bob = {"authorization": f"Bearer {BOB}"}
        body, headers = alice.modern_request("tools/list", {}, {}, {})
        url = f"{gateway.url}/one"
        assert (await alice.send(body, url=url, **{**headers, **bob})).status == 200


def test_the_documented_table_of_errors_is_the_one_in_the_code():
    page = Path(__file__).parents[2] / "docs" / "reference" / "gateway-errors.md"
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| -32")]
    wanted = [
        f"| {code} | {row.status} | {row.meaning} | {row.remedy} |" for code, row in ERRORS.items()
    ]
    assert rows == wanted
