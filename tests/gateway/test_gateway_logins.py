"""A server that needs a login: the client is asked to open the link, or gets it in the error."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.gateway.front import front, next_message, wire
from toolkeep import AuthNeeded
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.gateway import hash_key
from toolkeep.testing import ScriptedServer

LINK = "https://login.example.com/authorize?state=x"
ALICE = "tk_alice"
SETTINGS = {"keys": {"alice": hash_key(ALICE)}}
ECHO = {"name": "kit__echo", "arguments": {"text": "x"}}
URL: Any = {"elicitation": {"url": {}}}


class Logins:
    """Who is logged in. The gateway itself is, for its own list."""

    def __init__(self) -> None:
        self.known: set[str | None] = {None}

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if request.principal not in self.known:
            raise AuthNeeded(
                "kit needs a login",
                server=request.server,
                principal=request.principal,
                login_url=LINK,
            )
        return {"authorization": f"Bearer token-of-{request.principal}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> Logins:
    monkeypatch.setattr("toolkeep.gateway.calls.LOGIN_POLL", 0.02)
    return Logins()


async def test_without_url_elicitation_the_link_is_in_the_error(logins: Logins):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=SETTINGS, auth=logins) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as client,
    ):
        result = (await client.modern("tools/call", **ECHO)).json["result"]
        assert result["isError"] is True
        assert result["_meta"]["toolkeep/login"] == LINK
        assert result["_meta"]["toolkeep/delivery"] == "not sent"
        assert LINK in result["content"][0]["text"]


async def test_a_legacy_client_opens_the_link_and_its_call_goes_on(logins: Logins):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=SETTINGS, auth=logins) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as client,
    ):
        await client.initialize(**URL)
        async with await client.open(client.request("tools/call", **ECHO)) as response:
            asked = await next_message(response)
            assert (asked["method"], asked["params"]["url"]) == ("elicitation/create", LINK)
            assert asked["params"]["mode"] == "url"
            accepted = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}
            await client.send(accepted)
            logins.known.add("alice")
            result = (await next_message(response))["result"]
        assert result["content"][0]["text"] == "x"
        (call,) = await kit.requests(tool="echo")
        assert call.headers["authorization"] == "Bearer token-of-alice"


async def test_a_modern_client_opens_the_link_and_its_call_goes_on(logins: Logins):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=SETTINGS, auth=logins, replicas=2) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as client,
    ):
        asked = (await client.modern("tools/call", **ECHO, capabilities=URL)).json["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["url"] == LINK
        logins.known.add("alice")
        more = {"requestState": asked["requestState"]}
        more["inputResponses"] = {key: {"action": "accept"}}
        again = await client.modern("tools/call", **ECHO, capabilities=URL, **more)
        assert again.json["result"]["content"][0]["text"] == "x"


async def test_a_declined_link_is_an_error_with_the_link(logins: Logins):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings=SETTINGS, auth=logins) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as client,
    ):
        asked = (await client.modern("tools/call", **ECHO, capabilities=URL)).json["result"]
        (key,) = asked["inputRequests"]
        more = {"requestState": asked["requestState"]}
        more["inputResponses"] = {key: {"action": "decline"}}
        result = (await client.modern("tools/call", **ECHO, capabilities=URL, **more)).json
        assert result["result"]["isError"] is True
        assert result["result"]["_meta"]["toolkeep/login"] == LINK
