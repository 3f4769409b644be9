"""The seam of credentials: asked before every request, challenged once, and fatal when it fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, HANDSHAKE, Era, closing, every_era, outcome
from toolkeep import AuthNeeded, Client
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.config.spec import ConfigWarning
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("N1")

KEY = "sk-live-0123456789"


class Rotating:
    """Tokens that a refresh replaces."""

    def __init__(self, *tokens: str, pause: float = 0.0) -> None:
        self.tokens, self.pause = list(tokens), pause
        self.refreshes: list[tuple[int, str]] = []
        self.sent: list[str] = []

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.tokens[0]}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        self.refreshes.append((challenge.status, challenge.www_authenticate))
        self.sent.append(challenge.sent["authorization"])
        await asyncio.sleep(self.pause)
        if len(self.tokens) == 1:
            return False
        self.tokens.pop(0)
        return True


@contextlib.asynccontextmanager
async def authorized(
    era: Era, auth: Any, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    async with ScriptedServer.local(era=era, **options) as server:
        spec = {"name": "kit", "url": server.url, "mode": era}
        async with closing(Client(spec, auth=auth)) as client:
            yield server, client


@every_era
async def test_a_challenge_is_answered_once_and_the_call_sent_once_more(era: Era):
    auth = Rotating("old", KEY)
    async with authorized(era, auth, api_key=KEY) as (server, client):
        result = await client.call_tool("headers")
        assert result.data["authorization"] == f"Bearer {KEY}"
        assert [status for status, _ in auth.refreshes] == [401]
        assert auth.sent == ["Bearer old"]
        assert auth.refreshes[0][1].startswith("Bearer")
        assert len(await server.requests(HANDSHAKE[era])) == 2
        assert len(await server.requests("tools/call")) == 1


@every_era
async def test_a_token_that_expires_between_calls_is_refreshed_on_the_same_session(era: Era):
    auth = Rotating("old", "new")
    async with authorized(era, auth) as (server, client):
        await client.connect()
        await server.script(Rule(tool="headers", do=Behaviour(status=401), times=1))
        result = await client.call_tool("headers")
        assert (result.data["authorization"], result.attempts) == ("Bearer new", 2)
        assert len(await server.requests(HANDSHAKE[era])) == 1


@pytest.mark.requirement("S15")
@pytest.mark.parametrize("status", [401, 403])
@every_era
async def test_a_challenge_that_the_authorizer_cannot_answer_fails_the_call(era: Era, status: int):
    auth = Rotating("only")
    async with authorized(era, auth) as (server, client):
        await client.connect()
        challenge = {"www-authenticate": 'Bearer scope="more"'}
        refuse = Behaviour(status=status, headers=challenge)
        await server.script(Rule(tool="record", do=refuse))
        error = await outcome(client.call_tool("record"))
        assert type(error) is AuthNeeded
        assert (error.status, error.www_authenticate) == (status, 'Bearer scope="more"')
        assert auth.refreshes == [(status, 'Bearer scope="more"')]
        assert len(await server.requests(tool="record")) == 1
        assert await server.executions("record") == 0


@every_era
async def test_a_server_that_refuses_the_new_token_too_is_asked_twice_only(era: Era):
    auth = Rotating(*"abcdef")
    async with authorized(era, auth) as (server, client):
        await client.connect()
        await server.script(Rule(tool="record", do=Behaviour(status=401)))
        assert type(await outcome(client.call_tool("record"))) is AuthNeeded
        assert len(auth.refreshes) == 1
        assert len(await server.requests(tool="record")) == 2


@pytest.mark.parametrize("pause", [0.0, 0.05])
@pytest.mark.parametrize("when", ["the handshake", "a call"])
@every_era
async def test_a_hundred_refused_calls_refresh_once(era: Era, when: str, pause: float):
    """Also when their refusals arrive one after the other, some after the refresh is done."""
    auth = Rotating(KEY if when == "a call" else "old", KEY, "one too many", pause=pause)
    async with authorized(era, auth, api_key=KEY) as (_, client):
        if when == "a call":
            await client.connect()
            auth.tokens[0] = "expired"
        calls = (client.call_tool("echo", {"text": str(n)}) for n in range(100))
        async with asyncio.timeout(BOUND * 2):
            results = await asyncio.gather(*map(outcome, calls))
        assert [getattr(r, "text", r) for r in results] == [str(n) for n in range(100)]
        assert len(auth.refreshes) == 1


@every_era
async def test_a_caller_cancelled_during_the_refresh_keeps_no_other_from_it(era: Era):
    auth = Rotating("old", KEY, pause=20.0)
    async with authorized(era, auth, api_key=KEY) as (server, client):
        first = asyncio.create_task(client.call_tool("echo", {"text": "first"}))
        await server.requests(HANDSHAKE[era], at_least=1)
        async with asyncio.timeout(BOUND):
            while not auth.refreshes:
                await asyncio.sleep(0.002)
        second = asyncio.create_task(client.call_tool("echo", {"text": "second"}))
        await server.requests(HANDSHAKE[era], at_least=2)
        auth.pause = 0.0
        first.cancel()
        assert (await asyncio.wait_for(second, BOUND)).text == "second"
        assert first.cancelled()
        assert len(auth.refreshes) == 2


class Failing:
    """An authorizer that breaks down, and quotes what it should not."""

    def __init__(self, where: str) -> None:
        self.where, self.armed = where, False

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.armed and self.where == "headers":
            raise RuntimeError(f"cannot refresh {KEY}")
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        raise RuntimeError(f"cannot refresh {KEY}")


@pytest.mark.parametrize("opened", [True, False])
@every_era
async def test_an_authorizer_that_fails_fails_the_call_and_nothing_is_sent(era: Era, opened: bool):
    auth = Failing("headers")
    async with authorized(era, auth) as (server, client):
        if opened:
            await client.connect()
        before, auth.armed = len(await server.requests()), True
        error = await outcome(client.call_tool("record"))
        assert type(error) is AuthNeeded
        assert len(await server.requests()) == before
        auth.armed = False
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"


@every_era
async def test_an_authorizer_that_fails_at_a_challenge_fails_the_call(era: Era):
    async with authorized(era, Failing("challenge")) as (server, client):
        await client.connect()
        await server.script(Rule(tool="record", do=Behaviour(status=401)))
        error = await outcome(client.call_tool("record"))
        assert type(error) is AuthNeeded
        assert error.status == 401


class Giving:
    """An authorizer that gives these headers."""

    def __init__(self, headers: Any) -> None:
        self.given: Any = headers

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return self.given

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


class Asking:
    """An authorizer that asks for a login, before a request or at a challenge."""

    def __init__(self, where: str) -> None:
        self.where, self.key = where, ""
        self.error = AuthNeeded("log in", server="kit", login_url="https://login.example/")

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.where == "headers" and not self.key:
            raise self.error
        return {"authorization": f"Bearer {self.key or 'none'}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        raise self.error


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("where", ["headers", "challenge"])
@every_era
async def test_what_an_authorizer_asks_of_a_person_reaches_the_caller(
    era: Era, where: str, opened: bool
):
    auth = Asking(where)
    async with authorized(era, auth, api_key=KEY) as (_, client):
        if opened:
            auth.key = KEY
            await client.connect()
            auth.key = ""
        calls = (outcome(client.call_tool("echo", {"text": "x"})) for _ in range(3))
        for error in await asyncio.gather(*calls):
            assert isinstance(error, AuthNeeded)
            assert (str(error), error.login_url) == ("log in", "https://login.example/")
            assert (error.www_authenticate is not None) == (where == "challenge")
        auth.key = KEY
        assert (await client.call_tool("echo", {"text": "y"})).text == "y"


@every_era
async def test_the_error_says_what_the_server_asks_for(era: Era):
    async with authorized(era, Rotating("only")) as (server, client):
        await client.connect()
        told = 'Bearer error="invalid_token", error_description="expired", scope="a b"'
        refuse = Behaviour(status=401, headers={"www-authenticate": told})
        await server.script(Rule(tool="record", do=refuse))
        error = await outcome(client.call_tool("record"))
        assert isinstance(error, AuthNeeded)
        assert (error.reason, error.scopes) == ("invalid_token: expired", ("a", "b"))


class Watching(Giving):
    """An authorizer that takes the responses."""

    def __init__(self) -> None:
        super().__init__({})
        self.seen: list[tuple[AuthRequest, Mapping[str, str]]] = []

    def answered(self, request: AuthRequest, headers: Mapping[str, str]) -> None:
        self.seen.append((request, headers))
        raise RuntimeError("this must not fail the call")


@every_era
async def test_an_authorizer_may_take_the_headers_of_every_response(era: Era):
    auth = Watching()
    async with authorized(era, auth) as (server, client):
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        posts = [record for record in await server.requests() if record.http_method == "POST"]
        seen = [entry for entry in auth.seen if entry[0].method == "POST"]
        assert len(seen) == len(posts) > 0
        request, headers = seen[-1]
        assert (request.server, request.url) == ("kit", server.url)
        assert headers["content-type"] == "application/json"


UNFIT = {
    "a line break": {"authorization": "Bearer x\r\nx-injected: y"},
    "the session": {"Mcp-Session-Id": "stolen"},
    "the host": {"Host": "elsewhere"},
    "a number": {"x-number": 1},
    "no headers": "Bearer x",
    "nothing": None,
}


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("given", UNFIT)
@every_era
async def test_headers_that_an_authorizer_may_not_give_fail_the_call(
    era: Era, given: str, opened: bool
):
    auth = Giving({})
    async with authorized(era, auth) as (server, client):
        if opened:
            await client.connect()
        before, auth.given = len(await server.requests()), UNFIT[given]
        assert type(await outcome(client.call_tool("record"))) is AuthNeeded
        assert len(await server.requests()) == before
        auth.given = {}
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"


@every_era
async def test_an_authorizer_does_not_change_what_a_body_is(era: Era):
    auth = Giving({"Content-Type": "text/plain", "accept": "text/html", "X-Given": "yes"})
    async with authorized(era, auth) as (_, client):
        found = (await client.call_tool("headers")).data
        assert found["content-type"] == "application/json"
        assert found["accept"] == "application/json, text/event-stream"
        assert found["x-given"] == "yes"


@pytest.mark.requirement("H5")
@every_era
async def test_a_key_wins_over_credentials_in_the_url(era: Era):
    async with ScriptedServer.local(era=era) as server:
        url = server.url.replace("127.0.0.1", "user:password@127.0.0.1")
        with pytest.warns(ConfigWarning):
            client = Client({"name": "kit", "url": url, "mode": era, "api_key": KEY})
        async with closing(client):
            found = (await client.call_tool("headers")).data
        assert found["authorization"] == f"Bearer {KEY}"
