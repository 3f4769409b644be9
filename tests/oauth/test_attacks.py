"""Hostile servers, forged callbacks, crafted storage, and callers that leave at any moment."""

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.oauth.test_grants import bearer, client_with, grant_at, refused, stored
from tests.oauth.world import (
    REDIRECT,
    Request,
    callback_for,
    client,
    direct,
    faulty,
    request_of,
    token,
)
from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import FetchResponse
from toolkeep.auth.authorizer import AuthRequest, OAuthError
from toolkeep.auth.login import (
    begin_device_login,
    begin_login,
    complete_device_login,
    complete_login,
)
from toolkeep.auth.oauth import OAuthSettings, challenge_of, read_callback
from toolkeep.auth.registration import ClientSettings
from toolkeep.auth.services import ClientCredentials
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.token_refresh import GrantRefresher
from toolkeep.errors import AuthNeeded
from toolkeep.state import MemoryStore, StoreUnavailable


def asked_for(login_url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(login_url).query)


# -- mix-up ---------------------------------------------------------------------------------------


@pytest.mark.requirement("N3")
async def test_a_code_of_an_honest_server_is_not_sent_to_the_server_that_borrowed_its_page():
    """The hostile metadata names the honest server's authorization endpoint, and its own token
    endpoint. The honest server says in the callback who it is."""
    async with faulty() as honest, faulty() as hostile:
        honest.standard()
        hostile.standard(authorization_endpoint=f"{honest.origin}/authorize")
        oauth = client(hostile.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        assert login.url.startswith(honest.origin)
        with pytest.raises(OAuthError, match="an issuer other than"):
            await complete_login(oauth, callback_for(login.url, iss=honest.origin))
        assert "/token" not in hostile.paths() + honest.paths()


@pytest.mark.requirement("N3")
async def test_the_query_of_an_authorization_endpoint_decides_nothing_that_is_ours():
    async with faulty() as server:
        own = "p=policy&audience=x"
        evil = urlencode(
            {
                "redirect_uri": "https://evil.example/",
                "scope": "admin",
                "state": "known",
                "client_id": "evil",
                "response_mode": "fragment",
                "request_uri": "urn:evil",
                "code_challenge": "known",
                "code_challenge_method": "plain",
                "request": "jwt",
                "resource": "https://evil.example/",
            }
        )
        server.standard(authorization_endpoint=f"{server.origin}/authorize?{own}&{evil}")
        login = await begin_login(client(server.origin, resource="omit"), redirect_uri=REDIRECT)
        found = asked_for(login.url)
    assert (found["p"], found["audience"]) == (["policy"], ["x"])
    assert found["redirect_uri"] == [REDIRECT]
    assert found["code_challenge_method"] == ["S256"]
    assert not {"scope", "resource", "request", "request_uri", "response_mode"} & found.keys()
    assert not [values for values in found.values() if len(values) > 1 or "evil" in values[0]]


@pytest.mark.requirement("N3", "N6")
async def test_the_secret_of_a_service_goes_to_no_other_issuer_even_after_a_restart():
    async with faulty() as server, faulty() as hostile:
        server.standard()
        hostile.standard()
        storage = LoginStorage(MemoryStore())
        settings = ClientSettings(client_id="service", client_secret="s3cret-of-it")
        asked = OAuthSettings("files", f"{server.origin}/mcp", client=settings)
        request = AuthRequest("files", None, "POST", asked.url)
        service = ClientCredentials(asked, storage, fetch=direct)
        assert (await service.headers(request))["authorization"] == "Bearer first"
        moved = {"resource": f"{server.origin}/mcp", "authorization_servers": [hostile.origin]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, moved)
        restarted = ClientCredentials(asked, storage, fetch=direct)
        with pytest.raises(OAuthError, match="is bound to"):
            await restarted.headers(request)
        assert "/token" not in hostile.paths()
        pinned = replace(asked, issuer=hostile.origin)
        service = ClientCredentials(pinned, storage, fetch=direct)
        assert await service.headers(request)


@pytest.mark.requirement("N2", "N8")
async def test_a_pinned_issuer_may_be_where_the_configuration_says_and_nothing_else_may():
    """The MCP server is public, its pinned issuer is on loopback."""
    async with faulty() as issuer:
        document = issuer.standard()
        url = "https://mcp.example/mcp"

        async def fetch(method: str, url: str, *, policy: EgressPolicy, **options: Any) -> Any:
            if url.startswith("https://mcp.example/"):
                named = {"authorization_servers": [issuer.origin]}
                found = "oauth-protected-resource" in url
                return FetchResponse(
                    200 if found else 401, {}, json.dumps(named).encode(), url, "1.1.1.1"
                )
            return await direct(method, url, policy=policy, **options)

        oauth = client("", url=url, issuer=issuer.origin, fetch=fetch)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        await complete_login(oauth, callback_for(login.url, iss=issuer.origin))
        elsewhere = {**document, "token_endpoint": "http://127.0.0.1:9/token"}
        issuer.routes["/.well-known/oauth-authorization-server"] = (200, elsewhere)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match="loopback"):
            await complete_login(oauth, callback_for(login.url, iss=issuer.origin))
        with pytest.raises(OAuthError, match="loopback"):
            await begin_login(client("", url=url, fetch=fetch), redirect_uri=REDIRECT)  # not pinned


# -- callbacks ------------------------------------------------------------------------------------


@pytest.mark.requirement("N5")
@pytest.mark.parametrize(
    "url", ["http://[::1/?state=x&code=y", "//[", "?state=%zz&code=\x00", "#?"]
)
async def test_a_callback_that_is_no_url_is_an_error_of_oauth(url: str):
    with pytest.raises(OAuthError):
        await complete_login(client("http://127.0.0.1:1"), url)


def test_a_fragment_is_no_part_of_a_code():
    assert read_callback("https://app/cb?state=s&code=c#_=_").code == "c"


@pytest.mark.requirement("N5")
async def test_a_callback_is_taken_once_also_after_it_failed():
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        server.routes["/token"] = (400, {"error": "invalid_grant"})
        for said in ("invalid_grant", "no login is waiting"):
            with pytest.raises(OAuthError, match=said):
                await complete_login(oauth, callback_for(login.url))
        assert len(server.asked("/token")) == 1


@pytest.mark.requirement("N5")
async def test_a_code_of_one_login_does_not_complete_another():
    """Injection: each code goes out with the verifier of the login whose state came with it."""
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        mine = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        theirs = await begin_login(oauth, "mallory", redirect_uri=REDIRECT)
        stolen = callback_for(theirs.url, code="code-of-alice")
        await complete_login(oauth, stolen, principal="mallory")
        (sent,) = server.asked("/token")
        challenge = challenge_of(sent.form["code_verifier"])
        assert challenge == asked_for(theirs.url)["code_challenge"][0]
        assert challenge != asked_for(mine.url)["code_challenge"][0]
        assert await stored(oauth) is None


# -- the storage ----------------------------------------------------------------------------------


@pytest.mark.requirement("N7")
async def test_a_grant_that_was_put_in_the_place_of_another_is_not_used():
    async with faulty() as server:
        oauth = await client_with(server, expires_at=time.time() + 60)
        store = await oauth.grants.storage.open()
        mine, hers = oauth.settings.key("mallory"), oauth.settings.key("alice")
        entry = await store.get(hers.text)
        assert entry is not None
        await store.put(mine.text, entry.value)
        with pytest.raises(OAuthError, match="belongs to another"):
            await oauth.headers(request_of(oauth, "mallory"))
        elsewhere = client(server.origin, oauth.grants.storage, url=f"{server.origin}/other")
        await store.put(elsewhere.settings.key("alice").text, entry.value)
        with pytest.raises(OAuthError, match="belongs to another"):
            await elsewhere.headers(request_of(elsewhere))


@pytest.mark.requirement("N4")
async def test_more_scopes_that_are_wanted_during_a_refresh_do_not_lose_the_new_tokens():
    async with faulty() as server:
        at_server, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Any:
            if at_server.is_set():
                return 400, {"error": "invalid_grant"}  # a token is taken once
            at_server.set()
            await go_on.wait()
            return 200, token("new", "refresh-1")

        server.routes["/token"] = slow
        oauth = await client_with(server)
        running = asyncio.create_task(bearer(oauth))
        await at_server.wait()
        need = 'Bearer error="insufficient_scope", scope="files:write"'
        other = client(server.origin, oauth.grants.storage)
        with pytest.raises(AuthNeeded):
            await other.challenged(request_of(other), refused(other, "old", 403, need))
        go_on.set()
        assert await running == "new"
        grant = await stored(oauth)
        assert grant is not None
        assert (grant.access_token, grant.refresh_token) == ("new", "refresh-1")
        assert (grant.wanted, grant.refreshing) == (("files:write",), False)


@pytest.mark.requirement("N4")
async def test_a_process_that_stood_still_longer_than_its_lease_still_stores_its_tokens():
    """Another process took the lease and sent the old token again: the strict server refuses."""
    async with faulty() as server:
        used, both_asked = list[str](), asyncio.Event()

        async def strict(request: Request) -> Any:
            used.append(request.form["refresh_token"])
            if len(used) == 1:
                await both_asked.wait()
                return 200, token("new", "refresh-1")
            both_asked.set()
            while (grant := await stored(late)) is None or grant.access_token != "new":
                await asyncio.sleep(0.01)
            return 400, {"error": "invalid_grant"}

        server.routes["/token"] = strict
        frozen = await client_with(server)
        storage = frozen.grants.storage
        how: dict[str, Any] = {"settings": ClientSettings(), "policy": frozen.policy}
        frozen.grants = GrantRefresher(Unrenewed(storage), fetch=direct, lease=0.05, **how)  # pyright: ignore[reportArgumentType]
        late = client(server.origin, storage)
        first = asyncio.create_task(bearer(frozen))
        async with asyncio.timeout(20):
            while not used:
                await asyncio.sleep(0.01)
            second = await asyncio.gather(bearer(late), first, return_exceptions=True)
        assert second == ["new", "new"]
        assert used == ["refresh-0", "refresh-0"]
        grant = await stored(late)
        assert grant is not None
        assert grant.refresh_token == "refresh-1"


class Unrenewed:
    """A storage whose leases are not renewed, as if the process stood still."""

    def __init__(self, storage: LoginStorage) -> None:
        self._storage = storage

    async def open(self, *, to_log_in: bool = False) -> Any:
        store = await self._storage.open()

        class Frozen:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def renew(self, lease: Any, ttl: float) -> bool:
                raise StoreUnavailable("the process stands still", store="memory")

        return Frozen()


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.requirement("N4")
async def test_a_token_that_a_process_with_a_fast_clock_stored_is_refreshed_when_it_is_refused():
    async with faulty() as server:
        server.routes["/token"] = (200, token("new", "refresh-1"))
        ahead = time.time() + 3600
        changes = {"obtained_at": ahead, "expires_at": ahead + 60, "renewals": 1}
        oauth = await client_with(server, **changes)
        assert await bearer(oauth) == "old"
        assert await oauth.challenged(request_of(oauth), refused(oauth, "old"))
        assert await bearer(oauth) == "new"


@pytest.mark.requirement("N4")
async def test_a_token_that_is_said_to_live_for_no_time_is_used_until_it_is_refused():
    async with faulty() as server:
        server.routes["/token"] = (200, token("new", "refresh-1", 0))
        oauth = await client_with(server)
        assert [await bearer(oauth) for _ in range(3)] == ["new"] * 3
        assert len(server.asked("/token")) == 1


# -- what is shown --------------------------------------------------------------------------------


@pytest.mark.requirement("N7")
@pytest.mark.parametrize("status", [200, 400, 401])
@pytest.mark.parametrize("field", ["error", "error_description"])
@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic"])
async def test_an_error_that_echoes_the_clients_secret_does_not_show_it(
    status: int, field: str, method: str
):
    async with faulty() as server:
        server.standard()

        def echo(request: Request) -> Any:
            sent = request.body.decode() + " " + request.headers.get("authorization", "")
            secret = request.form.get("client_secret") or sent
            return status, {"error": "bad", field: f"no: {secret}"}

        server.routes["/token"] = echo
        settings = ClientSettings(client_id="c", client_secret="p/w+1-of-it", auth_method=method)
        oauth = client(server.origin, client=settings)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError) as caught:
            await complete_login(oauth, callback_for(login.url, code="sesame"))
    for secret in ("p/w+1-of-it", "sesame", "p%2Fw%2B1-of-it", "Basic "):
        assert secret not in str(caught.value)


@pytest.mark.requirement("N7")
async def test_an_unexpected_error_in_a_refresh_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
):
    secret = "".join(["ses", "ame"])  # not as it is in a line that a traceback shows

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(secret)

    async with faulty() as server:
        storage = LoginStorage(MemoryStore())
        grant = grant_at(server)
        await (await storage.open()).put(grant.key.text, grant.to_bytes())
        oauth = client(server.origin, storage, fetch=broken)
        with caplog.at_level(logging.DEBUG), pytest.raises(OAuthError, match="RuntimeError") as e:
            await bearer(oauth)
    assert secret not in caplog.text + str(e.value)
    assert "in broken" in caplog.text, "the place is logged"


@pytest.mark.requirement("N7")
async def test_the_address_of_a_login_is_in_no_repr():
    async with faulty() as server:
        server.standard()
        login = await begin_login(client(server.origin), redirect_uri=REDIRECT)
    assert login.state in login.url
    assert login.state not in repr(login)


# -- floods ---------------------------------------------------------------------------------------


@pytest.mark.requirement("N2")
@pytest.mark.parametrize(
    "path", ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"]
)
async def test_an_endless_document_is_not_read_to_its_end(path: str):
    async with faulty() as server:
        server.standard()
        server.routes[path] = (200, b'{"x": "' + b"y" * 10_000_000)
        with pytest.raises(OAuthError, match="more than 262144 bytes"):
            await begin_login(client(server.origin), redirect_uri=REDIRECT)


@pytest.mark.requirement("N3")
@pytest.mark.parametrize("number", [10**400, -(10**400), 1e308, float("inf"), float("nan")])
async def test_numbers_that_fit_nowhere_are_taken_for_none(number: Any):
    async with faulty() as server:
        server.standard(
            device_authorization_endpoint=f"{server.origin}/device",
            token_endpoint_auth_methods_supported=["client_secret_post"],
        )
        registered = {"client_id": "c", "client_secret": "s", "client_secret_expires_at": number}
        server.routes["/register"] = (201, registered)
        shown = {"device_code": "d", "user_code": "U", "verification_uri": f"{server.origin}/d"}
        server.routes["/device"] = (200, {**shown, "expires_in": number, "interval": number})
        server.routes["/token"] = (200, token("a", "r", number))
        oauth = client(server.origin)
        begun = await begin_device_login(oauth)
        assert 0 < begun.expires - time.time() <= 3600
        assert 1 <= begun.interval <= 60
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        assert (await complete_login(oauth, callback_for(login.url))).expires_at is None


@pytest.mark.requirement("N2", "N5")
@pytest.mark.parametrize(
    "address",
    ["http://10.0.0.1/d", "http://169.254.169.254/", "javascript:alert(1)", "https://a b"],
)
async def test_a_person_is_not_sent_to_an_internal_address_with_a_device_code(address: str):
    async with faulty() as server:
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        shown = {"device_code": "d", "user_code": "U", "verification_uri": address}
        server.routes["/device"] = (200, shown)
        with pytest.raises(OAuthError):
            await begin_device_login(client(server.origin))


async def test_a_server_cannot_have_another_one_polled_without_a_pause():
    async with faulty() as server:
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        shown = {"device_code": "d", "user_code": "U", "verification_uri": f"{server.origin}/d"}
        server.routes["/device"] = (200, {**shown, "interval": 0.000001, "expires_in": 2})
        server.routes["/token"] = (400, {"error": "authorization_pending"})
        oauth = client(server.origin)
        with pytest.raises(OAuthError, match="the code has expired"):
            await complete_device_login(oauth, await begin_device_login(oauth))
        assert 1 <= len(server.asked("/token")) <= 2


# -- a caller that leaves -------------------------------------------------------------------------


@pytest.mark.requirement("N4", "N5")
@pytest.mark.parametrize("steps", range(24))
async def test_a_login_survives_a_caller_that_leaves_at_any_moment(steps: int):
    """Cancelled after any number of turns of the event loop, the code is redeemed or still can be:
    never is a token given and not kept."""
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        callback = callback_for(login.url)
        leaving = asyncio.create_task(complete_login(oauth, callback))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await oauth.aclose()
        if server.asked("/token"):
            assert (await stored(oauth)) is not None


@pytest.mark.requirement("N4")
@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_a_refresh_survives_a_caller_that_leaves_at_any_moment(steps: int):
    async with faulty() as server:
        answers = iter(range(1, 100))
        server.routes["/token"] = lambda _: (200, token(f"t{(n := next(answers))}", f"r{n}"))
        oauth = await client_with(server)
        leaving = asyncio.create_task(bearer(oauth))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await bearer(oauth) == "t1"
        assert [request.form["refresh_token"] for request in server.asked("/token")] == [
            "refresh-0"
        ]
        grant = await stored(oauth)
        assert grant is not None
        assert not grant.refreshing
