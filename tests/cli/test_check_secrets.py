"""`toolkeep check --trace` shows every request and answer, and no secret: neither what is sent, nor
what servers quote of it, on whatever page, in whatever spelling."""

import base64
import contextlib
import json
import sys
from typing import Any

import pytest

from tests.cli.helpers_checking import answering, page
from tests.cli.helpers_running import Home, Ran
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("O2", "H6")

MARK = "sekret"
KEY, HEADER, QUERY = "sekret-api-key", 'sekret/"quoted" header', "sekret-in-the-query"
USER, PASSWORD = "sekret-user", "sekret-password"
BASIC = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
ENV, ARG = "sekret-of-the-environment", "sekret-argument"
SPOKEN = f"{KEY}, {HEADER}, {QUERY}"
ESCAPED = json.dumps(SPOKEN).replace("/", "\\/")
QUOTING = """
import os, sys
told = sys.argv[-1] + " and " + os.environ["NOTES"]
print("stdout: " + told, flush=True)
print("stderr: " + told, file=sys.stderr, flush=True)
sys.stdin.readline()
sys.exit(5)
"""


BROKEN_OFF = {
    "breaks": ("401 Unauthorized", f"no such key: Bearer {KEY}"[:-3]),
    "issues": ("400 Bad Request", f'{{"access_token":"{KEY[:6]}-of-the-server'),
}


def broken_off(status: str, body: str) -> bytes:
    """An answer that ends long before it said that it would."""
    return page(f"{body:500}", "application/json", status).rstrip()


def quoting() -> list[Rule]:
    """A server that says what it was told wherever it can."""
    about = {"name": f"kit for {KEY}", "version": QUERY}
    agreed = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": about}
    tool = {"name": KEY, "description": SPOKEN, "inputSchema": {"type": HEADER}}
    headers = {"X-Echo": SPOKEN, "Server": KEY}
    return [
        Rule(method="initialize", do=Behaviour(result=agreed, headers=headers)),
        Rule(method="tools/list", do=Behaviour(result={"tools": [tool]})),
    ]


def refusing() -> Rule:
    body = f'{{"jsonrpc": "2.0", "id": 2, "error": {{"code": -32000, "message": {ESCAPED}}}}}'
    return Rule(do=Behaviour(run=False, status=400, body=body, content_type="application/json"))


def challenging(whom: str, spoken: str) -> Rule:
    challenge = {"WWW-Authenticate": f'Bearer error_description="{whom} has expired"'}
    return Rule(do=Behaviour(run=False, status=401, headers=challenge, body=spoken))


@pytest.fixture(scope="module")
async def told(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = Home(tmp_path_factory.mktemp("secrets"))
    secrets = {"api_key": KEY, "headers": {"X-Notes": HEADER}}
    async with contextlib.AsyncExitStack() as stack:
        specs: dict[str, Any] = {}
        servers: dict[str, ScriptedServer] = {}
        rules = {
            "quotes": quoting(),
            "refuses": [refusing()],
            "challenges": [challenging(KEY, SPOKEN)],
        }
        for name, said in rules.items():
            servers[name] = await stack.enter_async_context(ScriptedServer.local(era="legacy"))
            await servers[name].script(*said)
            specs[name] = {"url": f"{servers[name].url}?token={QUERY}", **secrets}
        shown = page(f"<!doctype html><title>{KEY} {HEADER}</title>")
        site = await stack.enter_async_context(answering(shown))
        specs["site"] = {"url": site, **secrets}
        for name, said in BROKEN_OFF.items():
            url = await stack.enter_async_context(answering(broken_off(*said)))
            specs[name] = {"url": url, **secrets}
        basic = await stack.enter_async_context(ScriptedServer.local())
        await basic.script(challenging(USER, f"{PASSWORD} {BASIC}"))
        specs["user"] = {"url": basic.url.replace("//", f"//{USER}:{PASSWORD}@")}
        specs["program"] = {
            "command": sys.executable,
            "args": ["-c", QUOTING, "--api-key", ARG],
            "env": {"NOTES": ENV},
        }
        named = home.configure(specs)
        ran = await home.run("check", "-c", named, "--trace", "--json")
        sent = (await servers["quotes"].requests())[0]
        assert sent.headers["authorization"] == f"Bearer {KEY}", "the secrets do go there"
        assert sent.headers["x-notes"] == HEADER
        assert (await basic.requests())[0].headers["authorization"] == BASIC
    return ran


def test_no_secret_is_among_the_findings_or_in_the_trace(told: Ran):
    assert told.code == 1
    secret = (MARK, BASIC.split()[1])
    assert [line for line in told.said.splitlines() if any(one in line for one in secret)] == []


def test_the_trace_has_every_request_and_answer_all_the_same(told: Ran):
    trace = told.err.splitlines()
    sent = [line.split(" > ", 1)[1] for line in trace if " > " in line]
    came = [line.split(" < ", 1)[1] for line in trace if " < " in line]
    assert "authorization: ***" in sent
    assert "x-notes: ***" in sent
    for method in ("initialize", "notifications/initialized", "tools/list"):
        assert any(f'"method":"{method}"' in line for line in sent)
    assert any(line.endswith("?token=***") for line in sent)
    assert any("DELETE" in line for line in sent)
    assert any("HTTP 401" in line for line in came)
    assert "x-echo: ***, ***, ***" in came
    assert any(line.rstrip() == "no such key:" for line in came)
    assert '{"access_token":"***' in came
    assert any("kit for ***" in line for line in came)
    assert "stdout: *** and ***" in came


def test_the_findings_quote_what_is_no_secret(told: Ran):
    failed = {one["server"]: one for one in told.document if one["state"] == "failed"}
    assert failed["quotes"]["fault"] == "malformed-schema"
    assert "tool '***'" in failed["quotes"]["cause"]
    assert "*** has expired" in failed["challenges"]["cause"]
    assert "'*** ***'" in failed["site"]["cause"]
    assert failed["breaks"]["fault"] == "http-401"
    assert "access_token" in failed["issues"]["cause"]
    assert "stderr: *** and ***" in failed["program"]["cause"]
    assert failed["user"]["fault"] == "http-401"
