"""Refreshing: once for all, before anybody is asked, and without losing a grant."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.oauth.world import (
    REDIRECT,
    Faulty,
    Request,
    callback_for,
    client,
    direct,
    faulty,
    request_of,
    token,
)
from toolkeep.auth.authorizer import AuthRequest, Challenge, OAuthError
from toolkeep.auth.discovery import BearerChallenge
from toolkeep.auth.grants import Grant, GrantKey, stored_grants
from toolkeep.auth.login import begin_login, complete_login, logout
from toolkeep.auth.oauth import MAX_STEP_UPS, OAuth, step_up
from toolkeep.auth.registration import OAuthClient
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.token_refresh import SAVE_PAUSES, GrantRefresher
from toolkeep.errors import AuthNeeded
from toolkeep.state import MemoryStore, StoreUnavailable

pytestmark = pytest.mark.requirement("N4")


def grant_at(server: Faulty, **changes: Any) -> Grant:
    """A grant as an earlier login has left it: expired, with a refresh token."""
    now = time.time()
    given = {
        "key": GrantKey("files", f"{server.origin}/mcp", "alice"),
        "client": OAuthClient(server.origin, "registered", "dynamic", redirect_uri=REDIRECT),
        "token_endpoint": f"{server.origin}/token",
        "access_token": "old",
        "refresh_token": "refresh-0",
        "obtained_at": now - 100,
        "expires_at": now - 10,
        "ranges": ("loopback",),
        **changes,
    }
    return Grant(**given)


async def client_with(server: Faulty, storage: Any = None, **changes: Any) -> OAuth:
    oauth = client(server.origin, storage or LoginStorage(MemoryStore()))
    grant = grant_at(server, **changes)
    await (await oauth.grants.storage.open()).put(grant.key.text, grant.to_bytes())
    return oauth


async def bearer(oauth: OAuth) -> str:
    headers = await oauth.headers(request_of(oauth))
    return headers.get("authorization", "").removeprefix("Bearer ")


async def stored(oauth: OAuth) -> Grant | None:
    return await oauth.grants.stored(oauth.settings.key("alice"))


def refused(oauth: OAuth, text: str, status: int = 401, said: str = "Bearer") -> Challenge:
    return Challenge(status, {"WWW-Authenticate": said}, {"authorization": f"Bearer {text}"})


# -- once ---------------------------------------------------------------------------------------


async def test_a_hundred_callers_cost_one_refresh():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        given = await asyncio.gather(*(bearer(oauth) for _ in range(100)))
        assert set(given) == {"first"}
        sent = [request.form for request in server.asked("/token")]
        assert [form["refresh_token"] for form in sent] == ["refresh-0"]
        kept = await stored(oauth)
        assert kept is not None
        assert (kept.refresh_token, kept.refreshing) == ("refresh-1", False)


async def test_clients_that_share_a_storage_cost_one_refresh():
    async with faulty() as server:
        server.standard()
        first = await client_with(server)
        others = [client(server.origin, first.grants.storage) for _ in range(7)]
        given = await asyncio.gather(*(bearer(oauth) for oauth in [first, *others] * 5))
        assert set(given) == {"first"}
        assert len(server.asked("/token")) == 1


async def test_a_cancelled_caller_poisons_nothing_and_the_answer_is_stored():
    release, asked = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Any:
        asked.set()
        await release.wait()
        return 200, token("second", "refresh-2")

    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        server.routes["/token"] = slow
        callers = [asyncio.create_task(bearer(oauth)) for _ in range(3)]
        await asked.wait()
        for caller in callers:
            caller.cancel()
        done = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        late = asyncio.create_task(bearer(oauth))
        await asyncio.sleep(0)
        release.set()
        assert await late == "second"
        kept = await stored(oauth)
        assert kept is not None
        assert kept.refresh_token == "refresh-2"
        assert len(server.asked("/token")) == 1


async def test_closing_lets_a_refresh_end():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        caller = asyncio.create_task(bearer(oauth))
        while not server.asked("/token"):
            await asyncio.sleep(0.001)
        caller.cancel()
        await oauth.aclose()
        kept = await stored(oauth)
        assert kept is not None
        assert kept.refresh_token == "refresh-1"
        await asyncio.gather(caller, return_exceptions=True)


@pytest.mark.parametrize(("left", "refreshes"), [(30.0, 0), (5.0, 1)])
async def test_a_token_is_refreshed_a_little_before_it_expires(left: float, refreshes: int):
    now = time.time()
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, obtained_at=now - 100 + left, expires_at=now + left)
        assert await bearer(oauth) == ("first" if refreshes else "old")
        assert len(server.asked("/token")) == refreshes


async def test_a_later_process_refreshes_at_the_authorization_server():
    """And not at the MCP server, which has a /token of its own."""
    async with faulty() as issuer, faulty() as server:
        issuer.standard()
        server.standard()
        oauth = await client_with(server, token_endpoint=f"{issuer.origin}/token")
        assert await bearer(oauth) == "first"
        assert (len(issuer.asked("/token")), server.requests) == (1, [])


async def test_a_refresh_keeps_what_the_server_does_not_say_again():
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (200, token("second"))
        oauth = await client_with(server, scopes=("a",), resource="https://r.example")
        await bearer(oauth)
        kept = await stored(oauth)
        assert kept is not None
        assert (kept.refresh_token, kept.scopes) == ("refresh-0", ("a",))
        assert server.asked("/token")[0].form["resource"] == "https://r.example"


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        (503, {}),
        (500, {"error": "invalid_grant"}),  # a proxy that is confused
        (429, {"error": "invalid_client"}),
        (400, {"error": "invalid_scope"}),
        (400, {"error": "unauthorized_client"}),
        (400, b"<html>bad gateway"),
        (200, b"<html>welcome to this hotel"),
        (200, {"access_token": 5}),
        None,
    ],
    ids=str,
)
async def test_what_is_not_the_end_of_a_grant_keeps_it(answer: Any):
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = lambda request: answer
        oauth = await client_with(server)
        with pytest.raises(OAuthError) as caught:
            await bearer(oauth)
        assert not isinstance(caught.value, AuthNeeded)
        kept = await stored(oauth)
        assert kept is not None
        assert kept.refresh_token == "refresh-0"
        server.standard()
        assert await bearer(client(server.origin, oauth.grants.storage)) == "first"


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client"])
async def test_the_end_of_a_grant_asks_a_person(error: str):
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (400, {"error": error})
        oauth = await client_with(server)
        with pytest.raises(AuthNeeded, match=f"no longer valid.*{error}") as caught:
            await bearer(oauth)
        assert "interrupted" not in str(caught.value)
        assert await stored(oauth) is None
        assert await bearer(oauth) == "", "a request without a token finds out what is wanted"


async def test_an_outage_does_not_matter_while_the_token_is_valid():
    now = time.time()
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (503, {})
        due = {"obtained_at": now - 100, "expires_at": now + 5}
        oauth = await client_with(server, **due)
        await oauth.grants.save(grant_at(server, **due))
        assert await bearer(oauth) == "old"


async def test_an_outage_of_the_token_endpoint_is_not_answered_with_a_storm():
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (503, {})
        oauth = await client_with(server)
        for _ in range(20):
            with pytest.raises(OAuthError, match="503") as caught:
                await bearer(oauth)
            assert caught.value.transient
        assert len(server.asked("/token")) == 1


async def test_a_grant_without_refresh_token_ends_with_its_token():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, refresh_token="")
        with pytest.raises(AuthNeeded, match="no refresh token"):
            await bearer(oauth)
        now = time.time()
        oauth = await client_with(
            server, refresh_token="", obtained_at=now - 99, expires_at=now + 9
        )
        assert await bearer(oauth) == "old"
        assert server.requests == []


@pytest.mark.parametrize("reusable", [True, False])
async def test_a_refresh_that_was_interrupted_is_tried_once_more_and_told(reusable: bool):
    """A process was killed between the answer of the token endpoint and the save."""
    async with faulty() as server:
        server.standard()
        if not reusable:
            server.routes["/token"] = (400, {"error": "invalid_grant"})
        oauth = await client_with(server, refreshing=True)
        if reusable:
            assert await bearer(oauth) == "first"
        else:
            with pytest.raises(AuthNeeded, match="a refresh was interrupted"):
                await bearer(oauth)
        assert len(server.asked("/token")) == 1


async def test_an_answer_that_never_came_counts_as_an_interruption():
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = lambda request: None
        oauth = await client_with(server)
        with pytest.raises(OAuthError):
            await bearer(oauth)
        server.routes["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(AuthNeeded, match="a refresh was interrupted"):
            await bearer(client(server.origin, oauth.grants.storage))


class Flaky(MemoryStore):
    """A storage that refuses the next `failures` writes of renewed grants."""

    failures = 0

    async def put(self, key: str, value: bytes, **options: Any) -> int | None:
        if b'"renewals": 1' in value and self.failures:
            self.failures -= 1
            raise StoreUnavailable("the store is away", store="test")
        return await super().put(key, value, **options)


async def test_a_renewed_grant_is_stored_as_soon_as_the_storage_is_back():
    async with faulty() as server:
        server.standard()
        store = Flaky()
        oauth = await client_with(server, LoginStorage(store))
        store.failures = 3
        assert await bearer(oauth) == "first"
        kept = await stored(oauth)
        assert kept is not None
        assert kept.refresh_token == "refresh-1"


async def test_a_renewed_grant_that_cannot_be_stored_is_used_and_stored_later():
    async with faulty() as server:
        server.standard()
        store = Flaky()
        oauth = await client_with(server, LoginStorage(store))
        store.failures = len(SAVE_PAUSES) + 1
        assert await bearer(oauth) == "first"
        kept = await stored(oauth)  # reading finds the storage back
        assert kept is not None
        assert kept.refresh_token == "refresh-1"


async def test_a_login_during_a_refresh_wins():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        other = client(server.origin, oauth.grants.storage)

        async def meanwhile(request: Request) -> Any:
            now = time.time()
            newer = grant_at(server, access_token="newer", obtained_at=now, expires_at=now + 99)
            await other.grants.save(newer)
            return 400, {"error": "invalid_grant"}

        server.routes["/token"] = meanwhile
        assert await bearer(oauth) == "newer"


async def test_a_process_that_holds_the_lease_for_too_long_is_not_waited_for_endlessly():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        oauth.grants = GrantRefresher(
            oauth.grants.storage,
            fetch=direct,
            settings=oauth.settings.client,
            policy=oauth.policy,
            lease_wait=0.05,
        )
        lease = await (await oauth.grants.storage.open()).lease(
            f"{oauth.settings.key('alice').text}:refresh", 60
        )
        assert lease is not None
        with pytest.raises(OAuthError, match="another process") as caught:
            await bearer(oauth)
        assert caught.value.transient
        await (await oauth.grants.storage.open()).release(lease)
        assert await bearer(oauth) == "first"


def impatient(oauth: OAuth, lease: float) -> OAuth:
    """The same with a lease that is over soon."""
    settings, policy = oauth.settings.client, oauth.policy
    oauth.grants = GrantRefresher(
        oauth.grants.storage, fetch=direct, settings=settings, policy=policy, lease=lease
    )
    return oauth


async def test_the_lease_of_a_process_that_was_killed_is_over_soon():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, refreshing=True)
        assert await (await oauth.grants.storage.open()).lease(
            f"{oauth.settings.key('alice').text}:refresh", 0.2
        )
        assert await bearer(oauth) == "first"


async def test_a_refresh_that_takes_longer_than_its_lease_keeps_it():
    release = asyncio.Event()

    async def slow(request: Request) -> Any:
        await release.wait()
        return 200, token("second", "refresh-2")

    async with faulty() as server:
        server.standard()
        server.routes["/token"] = slow
        first = impatient(await client_with(server), 1.0)
        second = impatient(client(server.origin, first.grants.storage), 1.0)
        callers = [asyncio.create_task(bearer(oauth)) for oauth in (first, second)]
        await asyncio.sleep(2.5)  # longer than two leases
        release.set()
        assert await asyncio.gather(*callers) == ["second", "second"]
        assert len(server.asked("/token")) == 1


async def test_what_is_stored_and_cannot_be_read_is_said_without_quoting_it():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        key = oauth.settings.key("alice").text
        for value in (b"", b"{}", b'{"format": 99, "secret": "sesame"}', b'{"format": 1}', b"[1]"):
            await (await oauth.grants.storage.open()).put(key, value)
            with pytest.raises(OAuthError, match="cannot be read") as caught:
                await bearer(oauth)
            assert "sesame" not in str(caught.value)


# -- challenges -----------------------------------------------------------------------------------


async def test_a_refused_token_is_refreshed_once_for_all_who_sent_it():
    now = time.time()
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, expires_at=now + 900)
        assert await bearer(oauth) == "old"
        asked = [oauth.challenged(request_of(oauth), refused(oauth, "old")) for _ in range(20)]
        assert await asyncio.gather(*asked) == [True] * 20
        assert (await bearer(oauth), len(server.asked("/token"))) == ("first", 1)
        # The answer to an older token comes late: there is a newer one already.
        assert await oauth.challenged(request_of(oauth), refused(oauth, "old"))
        assert len(server.asked("/token")) == 1


async def test_a_token_that_another_process_has_renewed_is_read_and_not_refreshed():
    now = time.time()
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, expires_at=now + 900)
        assert await bearer(oauth) == "old"
        other = client(server.origin, oauth.grants.storage)
        await other.grants.save(grant_at(server, access_token="newer", expires_at=now + 900))
        assert await oauth.challenged(request_of(oauth), refused(oauth, "old"))
        assert (await bearer(oauth), server.requests) == ("newer", [])


async def test_a_server_that_refuses_fresh_tokens_does_not_cause_refreshes_for_ever():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        assert await bearer(oauth) == "first"
        said = 'Bearer error="invalid_token", error_description="wrong audience"'
        for _ in range(5):
            with pytest.raises(AuthNeeded, match=r"refreshed \d s ago.*wrong audience"):
                await oauth.challenged(request_of(oauth), refused(oauth, "first", said=said))
        assert len(server.asked("/token")) == 1


async def test_who_never_logged_in_is_told_what_helps():
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        said = Challenge(401, {"www-authenticate": 'Bearer scope="a b"'})
        with pytest.raises(AuthNeeded, match=r"begin_login\('files', 'alice'\)") as caught:
            await oauth.challenged(request_of(oauth), said)
        assert (caught.value.scopes, caught.value.server) == (("a", "b"), "files")
        assert caught.value.principal == "alice"
        need = 'Bearer error="insufficient_scope", scope="a"'
        with pytest.raises(AuthNeeded):
            await oauth.challenged(request_of(oauth), refused(oauth, "x", 403, need))
        assert not await oauth.challenged(request_of(oauth), refused(oauth, "x", 403))


async def test_a_step_up_ends():
    async with faulty() as server:
        now = time.time()
        grant = grant_at(server, scopes=("a",), requested=("a", "b"), expires_at=now + 900)
        assert step_up(grant, BearerChallenge(scopes=("c", "a"))) == ("a", "b", "c")
        with pytest.raises(OAuthError, match="that has the scopes it requires"):
            step_up(grant, BearerChallenge(scopes=("a",)))
        with pytest.raises(OAuthError, match="were not enough"):
            step_up(replace(grant, step_ups=MAX_STEP_UPS), BearerChallenge(scopes=("c",)))
        server.standard()
        oauth = await client_with(server, scopes=("a",), expires_at=now + 900)
        for number in range(1, MAX_STEP_UPS + 1):
            server.routes["/token"] = (200, token(f"t{number}", "r"))
            need = f'Bearer error="insufficient_scope", scope="s{number}"'
            sent = await bearer(oauth)
            with pytest.raises(AuthNeeded):
                await oauth.challenged(request_of(oauth), refused(oauth, sent, 403, need))
            login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
            grant = await complete_login(oauth, callback_for(login.url))
            assert grant.step_ups == number
        sent = await bearer(oauth)
        need = 'Bearer error="insufficient_scope", scope="more"'
        with pytest.raises(OAuthError, match="were not enough"):
            await oauth.challenged(request_of(oauth), refused(oauth, sent, 403, need))


async def test_a_step_up_that_another_process_has_done_is_read():
    now = time.time()
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, expires_at=now + 900)
        need = 'Bearer error="insufficient_scope", scope="more"'
        assert await oauth.challenged(request_of(oauth), refused(oauth, "older", 403, need))


@pytest.mark.requirement("N7")
async def test_a_token_is_sent_to_its_own_origin_only():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, expires_at=time.time() + 900)
        for url in ("https://evil.example/mcp", server.origin.replace("127.0.0.1", "localhost")):
            with pytest.raises(OAuthError, match="only to the origin of its server"):
                await oauth.headers(AuthRequest("files", "alice", "GET", url))
        own = AuthRequest("files", "alice", "GET", f"{server.origin}/other")
        assert await oauth.headers(own) == {"authorization": "Bearer old"}


@pytest.mark.requirement("N7")
async def test_a_grant_is_found_by_its_server_its_url_and_its_principal():
    keys = {
        GrantKey("a", "https://a/", None).text,
        GrantKey("a", "https://a/", "None").text,
        GrantKey("a", "https://a/", "").text,
        GrantKey("a", "https://b/", None).text,
        GrantKey("b", "https://a/", None).text,
    }
    assert len(keys) == 5


async def test_all_grants_are_listed():
    async with faulty() as server:
        oauth = await client_with(server)
        await oauth.grants.save(grant_at(server, key=oauth.settings.key("bob")))
        found = [
            grant.key.principal async for grant in stored_grants(await oauth.grants.storage.open())
        ]
        assert sorted(map(str, found)) == ["alice", "bob"]


class Away(MemoryStore):
    """A storage that does not answer."""

    away = False

    async def get(self, key: str) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away", store="test")
        return await super().get(key)


async def test_calls_go_on_with_what_is_in_memory_while_the_storage_is_away():
    now = time.time()
    async with faulty() as server:
        server.standard()
        store = Away()
        storage = LoginStorage(store)
        oauth = await client_with(server, storage, obtained_at=now, expires_at=now + 900)
        assert await bearer(oauth) == "old"
        store.away = True
        assert await bearer(oauth) == "old"
        with pytest.raises(OAuthError, match="the store is away") as caught:
            await bearer(client(server.origin, storage))
        assert caught.value.transient
        # A token that is due, and not yet over, is used as well.
        due = grant_at(server, obtained_at=now - 100, expires_at=now + 5)
        await oauth.grants.save(due)
        assert await bearer(oauth) == "old"


async def test_a_logout_elsewhere_is_noticed_with_the_first_refused_token():
    now = time.time()
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server, expires_at=now + 900)
        assert await bearer(oauth) == "old"
        await (await oauth.grants.storage.open()).delete(oauth.settings.key("alice").text)
        with pytest.raises(AuthNeeded):
            await oauth.challenged(request_of(oauth), refused(oauth, "old"))
        assert await bearer(oauth) == ""


async def test_a_grant_that_cannot_be_read_can_be_replaced_removed_and_passed_over():
    async with faulty() as server:
        server.standard()
        oauth = await client_with(server)
        storage, broken = await oauth.grants.storage.open(), oauth.settings.key("bob")
        await storage.put(broken.text, b"{}")
        assert [
            grant.key.principal async for grant in stored_grants(await oauth.grants.storage.open())
        ] == ["alice"]
        login = await begin_login(oauth, "bob", redirect_uri=REDIRECT)
        await complete_login(oauth, callback_for(login.url))
        assert await oauth.grants.stored(broken) is not None
        await storage.put(broken.text, b"{}")
        assert await logout(oauth, "bob") is False, "what cannot be read cannot be revoked"
        assert await storage.get(broken.text) is None
