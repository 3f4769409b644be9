"""The two halves of a login, at authorization servers that misbehave."""

import asyncio
import json
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
    token,
)
from toolkeep.auth.authorizer import AuthRequest, Challenge, OAuthError
from toolkeep.auth.discovery import BearerChallenge, ResourceMetadata, ServerMetadata
from toolkeep.auth.grants import Grant
from toolkeep.auth.login import (
    begin_device_login,
    begin_login,
    complete_device_login,
    complete_login,
    logout,
)
from toolkeep.auth.oauth import (
    OAuthSettings,
    challenge_of,
    new_verifier,
    read_callback,
    resource_for,
    select_scopes,
    union,
)
from toolkeep.auth.registration import ClientSettings, application_type
from toolkeep.auth.services import ClientCredentials
from toolkeep.auth.storage import LoginStorage
from toolkeep.state import MemoryStore

pytestmark = pytest.mark.requirement("N3", "N5")


async def logged_in(server: Faulty, **settings: Any):
    oauth = client(server.origin, **settings)
    login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
    return oauth, await complete_login(oauth, callback_for(login.url, iss=server.origin))


# -- what is sent ---------------------------------------------------------------------------------


def test_pkce_is_computed_as_in_the_example_of_its_specification():
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    assert 43 <= len(new_verifier()) <= 128
    assert new_verifier() != new_verifier()


async def test_the_code_is_redeemed_with_its_verifier_and_its_resource():
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        asked = Request("GET", "", {}, {}, login.url.partition("?")[2].encode()).form
        await complete_login(oauth, callback_for(login.url))
        sent = server.asked("/token")[0].form
    assert challenge_of(sent["code_verifier"]) == asked["code_challenge"]
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert asked["resource"] == sent["resource"] == f"{server.origin}/mcp"
    assert (sent["redirect_uri"], sent["client_id"], sent["code"]) == (
        *(REDIRECT, "registered"),
        "the-code",
    )


@pytest.mark.requirement("N8")
@pytest.mark.parametrize("given", ["omit", "api://files"])
async def test_the_resource_is_what_the_user_says(given: str):
    async with faulty() as server:
        server.standard()
        await logged_in(server, resource=given)
        sent = server.asked("/token")[0].form
    assert sent.get("resource") == (None if given == "omit" else given)


SERVER = ServerMetadata("https://as", "", "https://as/token")
OFFLINE = ServerMetadata("https://as", "", "https://as/token", scopes=("offline_access",))
RESOURCE = ResourceMetadata("", (), ("r1", "r2"))


@pytest.mark.parametrize(
    ("configured", "challenged", "resource", "server", "previous", "expected"),
    [
        ((), ("c",), RESOURCE, SERVER, (), ("c",)),
        ((), (), RESOURCE, SERVER, (), ("r1", "r2")),
        ((), (), None, SERVER, (), ()),
        ((), (), None, OFFLINE, (), ()),
        (("mine",), (), RESOURCE, SERVER, (), ("mine",)),
        (("mine",), ("c",), RESOURCE, SERVER, (), ("mine", "c")),
        (("mine",), ("c",), RESOURCE, OFFLINE, (), ("mine", "c", "offline_access")),
        ((), ("c",), None, SERVER, ("before", "c"), ("before", "c")),
    ],
)
def test_scopes_come_from_the_challenge_then_the_resource_then_nowhere(
    configured: Any, challenged: Any, resource: Any, server: Any, previous: Any, expected: Any
):
    challenge = BearerChallenge(scopes=challenged)
    assert select_scopes(configured, challenge, resource, server, previous) == expected


def test_a_server_cannot_ask_for_endless_scopes():
    assert len(union(tuple(map(str, range(500))))) == 100


def test_the_servers_own_name_for_itself_is_the_resource():
    settings = OAuthSettings("a", "https://a.example/mcp?x=1")
    assert resource_for(settings, None) == "https://a.example/mcp"
    assert resource_for(settings, ResourceMetadata("https://a.example", (), ())) == (
        "https://a.example"
    )


@pytest.mark.parametrize(
    ("redirect", "expected"),
    [
        ("http://127.0.0.1:7777/callback", "native"),
        ("http://localhost/callback", "native"),
        ("http://[::1]:1/callback", "native"),
        ("com.example.app:/callback", "native"),
        ("", "native"),
        ("https://app.example/callback", "web"),
    ],
)
def test_the_application_type_follows_from_the_redirect(redirect: str, expected: str):
    assert application_type(redirect) == expected


# -- callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advertised", "iss", "accepted"),
    [
        (True, "{issuer}", True),
        (True, "", False),
        (True, "{issuer}/", False),
        (True, "https://evil.example", False),
        (None, "", True),
        (None, "{issuer}", True),
        (None, "HTTP://127.0.0.1", False),
        (False, "https://evil.example", False),
    ],
)
async def test_a_callback_of_another_issuer_is_refused_before_its_code_is_sent(
    advertised: Any, iss: str, accepted: bool
):
    async with faulty() as server:
        server.standard(authorization_response_iss_parameter_supported=advertised)
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        callback = callback_for(login.url, iss=iss.format(issuer=server.origin))
        if accepted:
            await complete_login(oauth, callback)
        else:
            with pytest.raises(OAuthError, match="issuer"):
                await complete_login(oauth, callback)
            assert server.asked("/token") == []


async def test_an_error_is_shown_only_if_it_comes_from_the_right_issuer():
    async with faulty() as server:
        server.standard(authorization_response_iss_parameter_supported=True)
        oauth = client(server.origin)
        for iss, shown in (("https://evil.example", False), (server.origin, True)):
            login = await begin_login(oauth, redirect_uri=REDIRECT)
            fields = {"error": "access_denied", "error_description": "call +1-800-EVIL"}
            with pytest.raises(OAuthError) as caught:
                await complete_login(oauth, callback_for(login.url, code="", iss=iss, **fields))
            assert ("EVIL" in str(caught.value)) is shown
            assert (caught.value.error == "access_denied") is shown


@pytest.mark.parametrize(
    "callback",
    [
        *("", "https://x/", f"{REDIRECT}?code=1", f"{REDIRECT}?state=&code=1"),
        *(f"{REDIRECT}?state=a&state=b&code=1", f"{REDIRECT}?state=a&code=1&code=2"),
        *(f"{REDIRECT}?state=unknown&code=1", f"{REDIRECT}?" + "a=1&" * 99),
    ],
)
async def test_a_callback_that_belongs_to_no_login_is_refused(callback: str):
    async with faulty() as server:
        server.standard()
        with pytest.raises(OAuthError):
            await complete_login(client(server.origin), callback)
        assert server.requests == []


async def test_a_pasted_query_is_as_good_as_the_whole_url():
    assert read_callback("state=a&code=b").code == "b"


async def test_a_callback_without_a_code_is_refused():
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match="no code"):
            await complete_login(oauth, callback_for(login.url, code=""))


async def test_only_who_began_a_login_may_complete_it():
    """Or one user, who sends another the link, would be given that user's account."""
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, "mallory", redirect_uri=REDIRECT)
        callback = callback_for(login.url)
        for other in ("alice", None):
            with pytest.raises(OAuthError, match="another principal"):
                await complete_login(oauth, callback, principal=other)
        assert server.asked("/token") == []
        await complete_login(oauth, callback, principal="mallory")


async def test_a_callback_that_arrives_twice_at_once_is_redeemed_once():
    async with faulty() as server:
        server.standard()
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        several = [complete_login(oauth, callback_for(login.url)) for _ in range(5)]
        done = await asyncio.gather(*several, return_exceptions=True)
        assert sum(isinstance(one, Grant) for one in done) == 1
        assert len(server.asked("/token")) == 1


async def test_a_callback_is_not_completed_at_another_server():
    async with faulty() as server:
        server.standard()
        storage = LoginStorage(MemoryStore())
        login = await begin_login(client(server.origin, storage), redirect_uri=REDIRECT)
        other = client(server.origin, storage, server="mail")
        with pytest.raises(OAuthError, match="another server"):
            await complete_login(other, callback_for(login.url))


# -- clients --------------------------------------------------------------------------------------


async def test_a_server_without_pkce_is_refused_before_anybody_is_registered():
    async with faulty() as server:
        server.standard(code_challenge_methods_supported=None)
        with pytest.raises(OAuthError, match="PKCE"):
            await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert server.asked("/register") == []


async def test_nothing_is_registered_where_the_metadata_offers_no_registration():
    async with faulty() as server:
        server.standard(registration_endpoint=None)
        with pytest.raises(OAuthError, match="set 'client_id'"):
            await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert server.asked("/register") == []


async def test_registration_goes_to_the_authorization_server_and_not_to_the_mcp_server():
    async with faulty() as issuer, faulty() as server:
        issuer.standard()
        server.standard()
        named = {"resource": f"{server.origin}/mcp", "authorization_servers": [issuer.origin]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
        await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert [request.method for request in issuer.asked("/register")] == ["POST"]
        assert server.asked("/register") == []
        sent = json.loads(issuer.asked("/register")[0].body)
        assert (sent["application_type"], sent["redirect_uris"]) == ("native", [REDIRECT])
        assert sent["grant_types"] == ["authorization_code", "refresh_token"]


async def test_a_registration_endpoint_on_an_internal_address_is_refused():
    async with faulty() as server:
        server.standard(registration_endpoint="http://169.254.169.254/register")
        with pytest.raises(OAuthError, match="may not name a host"):
            await begin_login(client(server.origin), redirect_uri=REDIRECT)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            (400, {"error": "invalid_redirect_uri", "error_description": "no loopback"}),
            "no loopback",
        ),
        ((403, b"<html>"), "answered 403"),
        ((503, {}), "answered 503"),
        ((201, {}), "no client_id"),
        ((201, {"client_id": 3}), "no client_id"),
        ((201, {"client_id": "a", "token_endpoint_auth_method": "tls_client_auth"}), "tls_client"),
        (
            (201, {"client_id": "a", "token_endpoint_auth_method": "client_secret_post"}),
            "no secret",
        ),
    ],
)
async def test_a_registration_that_cannot_be_used_is_said_at_once(answer: Any, said: str):
    async with faulty() as server:
        server.standard()
        server.routes["/register"] = answer
        with pytest.raises(OAuthError, match=said) as caught:
            await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert caught.value.transient is (answer[0] == 503)


@pytest.mark.parametrize(
    ("method", "where"),
    [("client_secret_basic", "header"), ("client_secret_post", "body"), (None, "header")],
)
async def test_a_secret_that_was_registered_is_sent_as_agreed(method: Any, where: str):
    async with faulty() as server:
        server.standard(token_endpoint_auth_methods_supported=["client_secret_basic"])
        given = {"client_id": "a b", "client_secret": "s:1", "token_endpoint_auth_method": method}
        server.routes["/register"] = (201, given)
        await logged_in(server)
        sent = server.asked("/token")[0]
        assert (sent.headers.get("authorization") == "Basic YSUyMGI6cyUzQTE=") is (
            where == "header"
        )
        assert (sent.form.get("client_secret") == "s:1") is (where == "body")


async def test_a_secret_that_has_expired_is_registered_anew():
    async with faulty() as server:
        server.standard()
        old = {"client_id": "a", "client_secret": "s", "client_secret_expires_at": 1}
        server.routes["/register"] = (201, old)
        oauth = client(server.origin)
        for _ in range(2):
            await begin_login(oauth, redirect_uri=REDIRECT)
        assert len(server.asked("/register")) == 2


async def test_a_registration_belongs_to_its_issuer():
    async with faulty() as first, faulty() as second, faulty() as server:
        server.standard()
        oauth = client(server.origin)
        for issuer in (first, second, first):
            issuer.standard()
            issuer.routes["/register"] = (201, {"client_id": f"of-{issuer.port}"})
            named = {"resource": f"{server.origin}/mcp", "authorization_servers": [issuer.origin]}
            server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
            login = await begin_login(oauth, redirect_uri=REDIRECT)
            assert f"client_id=of-{issuer.port}" in login.url
        assert (len(first.asked("/register")), len(second.asked("/register"))) == (1, 1)


async def test_the_secret_of_a_configured_client_goes_to_no_other_issuer():
    async with faulty() as evil, faulty() as server:
        server.standard()
        evil.standard()
        mine = ClientSettings(client_id="mine", client_secret="sesame")
        storage = LoginStorage(MemoryStore())
        oauth = client(server.origin, storage, client=mine)
        await begin_login(oauth, redirect_uri=REDIRECT)
        named = {"resource": f"{server.origin}/mcp", "authorization_servers": [evil.origin]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
        with pytest.raises(OAuthError, match="set 'issuer'"):
            await begin_login(oauth, redirect_uri=REDIRECT)
        pinned = client(server.origin, storage, client=mine, issuer=evil.origin)
        await begin_login(pinned, redirect_uri=REDIRECT)


@pytest.mark.parametrize("url", ["http://a.example/c", "https://a.example", "https://a.example/"])
async def test_a_client_document_must_have_an_https_url_with_a_path(url: str):
    async with faulty() as server:
        server.standard(client_id_metadata_document_supported=True)
        oauth = client(server.origin, client=ClientSettings(metadata_url=url))
        with pytest.raises(OAuthError, match="client_metadata_url"):
            await begin_login(oauth, redirect_uri=REDIRECT)


async def test_a_client_document_is_used_only_where_it_is_understood():
    mine = ClientSettings(metadata_url="https://a.example/client.json")
    for understood, expected in ((True, "https%3A%2F%2Fa.example"), (None, "registered")):
        async with faulty() as server:
            server.standard(client_id_metadata_document_supported=understood)
            login = await begin_login(client(server.origin, client=mine), redirect_uri=REDIRECT)
            assert f"client_id={expected}" in login.url


async def test_a_client_that_the_server_has_forgotten_is_registered_anew():
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (401, {"error": "invalid_client"})
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match="invalid_client"):
            await complete_login(oauth, callback_for(login.url))
        await begin_login(oauth, redirect_uri=REDIRECT)
        assert len(server.asked("/register")) == 2


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {}), "no usable token"),
        ((200, {"access_token": ""}), "no usable token"),
        ((200, {"access_token": "a b"}), "no usable token"),
        ((200, {"access_token": "a\r\nx: y"}), "no usable token"),
        ((200, {"access_token": "é"}), "no usable token"),
        ((200, {"access_token": "a", "refresh_token": 7}), "no usable token"),
        ((200, {"access_token": "a", "token_type": "mac"}), "of type 'mac'"),
        ((200, {"error": "invalid_grant"}), "invalid_grant"),  # GitHub answers errors with 200
        ((400, {"error": "invalid_grant", "error_description": "used"}), "invalid_grant: used"),
        ((500, b"oops"), "answered 500"),
        ((302, {}, {"location": "http://169.254.169.254/"}), "answered 302"),
    ],
)
async def test_an_answer_without_a_token_is_no_login(answer: Any, said: str):
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = answer
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match=said):
            await complete_login(oauth, callback_for(login.url))
        assert await oauth.grants.stored(oauth.settings.key(None)) is None


@pytest.mark.requirement("N7")
async def test_an_error_that_echoes_a_secret_is_shown_without_its_words():
    async with faulty() as server:
        server.standard()

        def echo(request: Request) -> Any:
            code, verifier = request.form["code"], request.form["code_verifier"]
            return 400, {"error": "bad", "error_description": f"code {code} {verifier}"}

        server.routes["/token"] = echo
        oauth = client(server.origin)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match="bad") as caught:
            await complete_login(oauth, callback_for(login.url, code="sesame"))
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "known"),
    [(60, True), ("60", True), (None, False), ("soon", False), (-5, False), (True, False)],
)
async def test_the_expiry_is_absolute_where_the_server_tells_one(said: Any, known: bool):
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (200, token("a", "r", said))
        _, grant = await logged_in(server)
        assert (grant.expires_at is not None) is known
        assert 50 < (grant.expires_at or grant.obtained_at + 60) - grant.obtained_at <= 60


@pytest.mark.requirement("N7")
async def test_no_token_is_in_any_repr():
    async with faulty() as server:
        server.standard()
        oauth, grant = await logged_in(server)
        shown = repr([oauth, oauth.settings, oauth.grants.storage, grant, grant.client])
        assert "first" not in shown
        assert "refresh-1" not in shown


# -- devices, logout, services --------------------------------------------------------------------


async def test_a_device_login_waits_slows_down_and_survives_an_outage():
    async with faulty() as server:
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        shown = {"device_code": "dev", "user_code": "AB-CD", "verification_uri": "https://as/d"}
        server.routes["/device"] = (200, {**shown, "interval": 0.01, "expires_in": 60})
        answers = [(400, {"error": "authorization_pending"}), (503, {}), (200, token("t", "r"))]
        server.routes["/token"] = lambda request: answers.pop(0)
        oauth = client(server.origin)
        login = await begin_device_login(oauth, "alice")
        grant = await complete_device_login(oauth, login)
        assert (grant.access_token, grant.key.principal) == ("t", "alice")
        assert "redirect_uris" in json.loads(server.asked("/register")[0].body)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, {"error": "access_denied"}), "access_denied"),
        ((400, {"error": "expired_token"}), "exp"),
    ],
)
async def test_a_device_login_that_is_denied_ends(answer: Any, said: str):
    async with faulty() as server:
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        shown = {"device_code": "dev", "user_code": "AB-CD", "verification_uri": "https://as/d"}
        server.routes |= {"/device": (200, {**shown, "interval": 0.01}), "/token": answer}
        oauth = client(server.origin)
        with pytest.raises(OAuthError, match=said):
            await complete_device_login(oauth, await begin_device_login(oauth))


async def test_a_server_without_device_logins_says_so():
    async with faulty() as server:
        server.standard()
        with pytest.raises(OAuthError, match="does not support login by device code"):
            await begin_device_login(client(server.origin))
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        for answer in ((200, {}), (400, {"error": "unauthorized_client"})):
            server.routes["/device"] = answer
            with pytest.raises(OAuthError):
                await begin_device_login(client(server.origin))


async def test_a_logout_revokes_both_tokens_and_forgets_even_if_that_fails():
    async with faulty() as server:
        server.standard()
        for answer, revoked in (((200, {}), True), ((503, {}), False)):
            server.routes["/revoke"] = answer
            oauth, grant = await logged_in(server)
            assert await logout(oauth, "alice") is revoked
            assert await oauth.grants.stored(grant.key) is None
        sent = [request.form["token"] for request in server.asked("/revoke")[:2]]
        assert sent == ["refresh-1", "first"]
        server.standard(revocation_endpoint=None)
        oauth, _ = await logged_in(server)
        assert await logout(oauth, "alice") is False


@pytest.mark.requirement("N6")
async def test_a_service_asks_once_for_all_callers_and_not_again_for_a_token_just_given():
    async with faulty() as server:
        server.standard()
        mine = ClientSettings(client_id="svc", client_secret="sesame")
        settings = OAuthSettings("files", f"{server.origin}/mcp", client=mine)
        service = ClientCredentials(settings, LoginStorage(MemoryStore()), fetch=direct)
        request = AuthRequest("files", None, "POST", settings.url)
        given = await asyncio.gather(*(service.headers(request) for _ in range(20)))
        assert {one["authorization"] for one in given} == {"Bearer first"}
        assert len(server.asked("/token")) == 1
        refused = Challenge(401, {"WWW-Authenticate": "Bearer"}, given[0])
        assert await service.challenged(request, refused) is False
        assert await service.challenged(request, Challenge(500, {})) is False
        old = Challenge(401, {}, {"authorization": "Bearer older"})
        assert await service.challenged(request, old) is True
        server.routes["/token"] = (503, {})
        more = Challenge(403, {"www-authenticate": 'Bearer error="insufficient_scope", scope="w"'})
        with pytest.raises(OAuthError, match="503") as caught:
            await service.challenged(request, more)
        assert caught.value.transient
        await service.aclose()
    with pytest.raises(OAuthError, match="a secret or a key"):
        ClientCredentials(
            OAuthSettings("files", "https://a.example/mcp"),
            LoginStorage(MemoryStore()),
            fetch=direct,
        )


# -- what is refused before anything is sent ------------------------------------------------------


@pytest.mark.parametrize("redirect", ["", "callback", "http://app.example/callback"])
async def test_a_code_is_not_sent_across_a_network_in_the_clear(redirect: str):
    async with faulty() as server:
        server.standard()
        with pytest.raises(OAuthError, match="redirect URI"):
            await begin_login(client(server.origin), redirect_uri=redirect)
        assert server.requests == []


async def test_a_server_that_has_no_page_for_people_says_so():
    async with faulty() as server:
        server.standard(authorization_endpoint=None)
        with pytest.raises(OAuthError, match="no authorization endpoint"):
            await begin_login(client(server.origin), redirect_uri=REDIRECT)


async def test_an_mcp_server_that_is_away_is_named_as_what_failed():
    async with faulty() as server:
        server.routes["/mcp"] = lambda request: None
        with pytest.raises(OAuthError, match="the MCP server") as caught:
            await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert caught.value.transient


async def test_a_device_login_shows_no_address_that_is_none():
    async with faulty() as server:
        server.standard(device_authorization_endpoint=f"{server.origin}/device")
        shown = {"device_code": "d", "user_code": "u", "verification_uri": "javascript:alert(1)"}
        server.routes["/device"] = (200, shown)
        with pytest.raises(OAuthError, match="verification_uri is not an http"):
            await begin_device_login(client(server.origin))


async def test_scopes_of_a_login_at_another_issuer_are_not_carried_over():
    async with faulty() as other, faulty() as server:
        server.standard()
        other.standard()
        oauth, grant = await logged_in(server, scopes=("mine",))
        await oauth.grants.update(grant, wanted=("theirs",))
        named = {"resource": f"{server.origin}/mcp", "authorization_servers": [other.origin]}
        again = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        assert "scope=mine+theirs" in again.url
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
        moved = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        assert "scope=mine&" in moved.url


@pytest.mark.requirement("N6", "N7")
@pytest.mark.parametrize("key", ["", "-----BEGIN PRIVATE KEY-----\nsesame\n-----END-----"])
async def test_a_signing_key_that_cannot_sign_is_said_and_not_shown(key: str):
    async with faulty() as server:
        server.standard()
        mine = ClientSettings(client_id="a", signing_key=key, auth_method="private_key_jwt")
        oauth = client(server.origin, client=mine)
        login = await begin_login(oauth, redirect_uri=REDIRECT)
        with pytest.raises(OAuthError, match="signing_key") as caught:
            await complete_login(oauth, callback_for(login.url))
        assert "sesame" not in str(caught.value)
        assert caught.value.__context__ is None
        assert server.asked("/token") == []
