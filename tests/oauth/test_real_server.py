"""Logins at a real authorization server (oidc-provider), without a browser."""

import sys

import pytest

from tests.oauth.world import (
    CLIENT_DOCUMENT,
    REDIRECT,
    approve_device,
    browse,
    call,
    client,
    direct,
    faulty,
    ledger,
    request_of,
    running,
    running_provider,
)
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.login import (
    begin_device_login,
    begin_login,
    complete_device_login,
    complete_login,
    logout,
    server_of,
)
from toolkeep.auth.oauth import OAuthSettings
from toolkeep.auth.registration import ClientSettings
from toolkeep.auth.services import ClientCredentials
from toolkeep.auth.storage import LoginStorage
from toolkeep.errors import AuthNeeded
from toolkeep.state import MemoryStore

CONFIGURED = ClientSettings(client_id="configured", client_secret="configured:secret/+")


@pytest.mark.requirement("N3", "N5")
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (ClientSettings(), "dynamic"),
        (CONFIGURED, "configured"),
        (ClientSettings(metadata_url=CLIENT_DOCUMENT), "document"),
    ],
    ids=["dynamic", "configured", "document"],
)
async def test_a_person_logs_in_with_every_kind_of_client(
    provider: str, settings: ClientSettings, kind: str
):
    oauth = client(provider, client=settings)
    with pytest.raises(AuthNeeded, match=r"begin_login\('files', 'alice'\)"):
        await call(oauth)
    login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
    grant = await complete_login(oauth, await browse(login.url), principal="alice")
    assert grant.client.kind == kind
    assert grant.refresh_token
    reply = await call(oauth)
    assert (reply.status, reply.body["user"]) == (200, "alice")


@pytest.mark.requirement("N5")
async def test_another_process_completes_a_login_that_this_one_began(provider: str):
    storage = LoginStorage(MemoryStore())
    login = await begin_login(client(provider, storage), "bob", redirect_uri=REDIRECT)
    callback = await browse(login.url, "bob")
    assert await server_of(storage, callback) == ("files", "bob")
    other = client(provider, storage)
    await complete_login(other, callback)
    assert (await call(other, "bob")).body["user"] == "bob"
    with pytest.raises(OAuthError, match="no login is waiting for this callback"):
        await complete_login(other, callback)


@pytest.mark.requirement("N7")
async def test_two_people_at_one_server_keep_their_own_accounts(provider: str):
    oauth = client(provider)
    for name in ("alice", "bob"):
        login = await begin_login(oauth, name, redirect_uri=REDIRECT)
        await complete_login(oauth, await browse(login.url, name), principal=name)
    assert [(await call(oauth, name)).body["user"] for name in ("alice", "bob")] == ["alice", "bob"]
    with pytest.raises(AuthNeeded):
        await call(oauth, None)


@pytest.mark.requirement("N4")
async def test_a_refused_token_is_refreshed_before_anybody_is_asked(provider: str):
    with running_provider(ttl=1) as origin:
        storage = LoginStorage(MemoryStore())
        oauth = client(origin, storage)
        login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
        first = await complete_login(oauth, await browse(login.url))
        await oauth.grants.update(first, expires_at=None)  # as of a server that does not say
        while (reply := await call(oauth)).status == 200 and await same_token(oauth, first):
            pass  # until the token's second is over
        assert reply.status == 200
        done = await ledger(origin)
        assert done["grants"] == ["authorization_code", "refresh_token"]
        # A process that starts later knows where to refresh.
        assert (await call(client(origin, storage))).status == 200


async def same_token(oauth, grant) -> bool:
    stored = await oauth.grants.stored(grant.key)
    return stored.access_token == grant.access_token


@pytest.mark.requirement("N3")
async def test_a_call_that_needs_more_scopes_leads_to_a_login_for_all_of_them(provider: str):
    oauth = client(provider, scopes=("files:read",))
    login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
    await complete_login(oauth, await browse(login.url))
    writing = f"{provider}/mcp?scope=files:write"
    with pytest.raises(AuthNeeded) as caught:
        await call(oauth, url=writing)
    assert set(caught.value.scopes) >= {"files:read", "files:write"}
    # The scopes are remembered with the grant: the login needs not be told.
    login = await begin_login(oauth, "alice", redirect_uri=REDIRECT)
    grant = await complete_login(oauth, await browse(login.url))
    assert {"files:read", "files:write"} <= set(grant.scopes)
    assert (await call(oauth, url=writing)).status == 200


@pytest.mark.requirement("N5")
async def test_a_person_logs_in_on_another_device(provider: str):
    oauth = client(provider)
    login = await begin_device_login(oauth, "carol")
    assert login.device_code not in repr(login)
    await approve_device(login.verification_uri, login.user_code, "carol")
    await complete_device_login(oauth, login)
    assert (await call(oauth, "carol")).body["user"] == "carol"


@pytest.mark.requirement("N5")
async def test_a_logout_revokes_and_forgets(provider: str):
    oauth = client(provider)
    login = await begin_login(oauth, "dave", redirect_uri=REDIRECT)
    grant = await complete_login(oauth, await browse(login.url, "dave"))
    assert await logout(oauth, "dave")
    assert await oauth.headers(request_of(oauth, "dave")) == {}
    await oauth.grants.save(grant)  # a copy that was kept is worth nothing
    with pytest.raises(AuthNeeded, match="invalid_grant"):
        await call(oauth, "dave")
    assert await logout(oauth, "nobody")


@pytest.mark.requirement("N6")
async def test_a_service_proves_itself_with_a_secret(provider: str):
    settings = ClientSettings(
        client_id="service", client_secret="service-secret", auth_method="client_secret_post"
    )
    asked = OAuthSettings("files", f"{provider}/mcp", client=settings, scopes=("files:read",))
    service = ClientCredentials(asked, LoginStorage(MemoryStore()), fetch=direct)
    reply = await call(service)
    assert (reply.status, reply.body["user"]) == (200, "service")
    reply = await call(service, url=f"{provider}/mcp?scope=files:write")
    assert (reply.status, set(reply.body["scopes"])) == (200, {"files:read", "files:write"})
    assert "service-secret" not in repr(service) + repr(asked)


@pytest.mark.requirement("N6")
async def test_a_service_proves_itself_with_a_signed_assertion():
    key, public = signing_key()
    with running_provider(jwks={"keys": [public]}) as origin:
        settings = ClientSettings(client_id="signer", signing_key=key, key_id="one")
        asked = OAuthSettings("files", f"{origin}/mcp", client=settings)
        service = ClientCredentials(asked, LoginStorage(MemoryStore()), fetch=direct)
        assert (await call(service)).body["user"] == "signer"
        assert (await call(service)).status == 200
        assert (await ledger(origin))["grants"] == ["client_credentials"]
    assert "PRIVATE" not in repr(settings)


def signing_key() -> tuple[str, dict[str, str]]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from jwt.algorithms import ECAlgorithm

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return pem.decode(), {**public, "kid": "one", "use": "sig", "alg": "ES256"}


async def test_what_is_registered_says_what_kind_of_application_it_is(provider: str):
    oauth = client(provider)
    await begin_login(oauth, redirect_uri=REDIRECT)
    before = len((await ledger(provider))["registered"])
    await begin_login(oauth, redirect_uri=REDIRECT)
    registered = (await ledger(provider))["registered"]
    assert len(registered) == before, "a registration is used again"
    assert registered[-1]["application_type"] == "native"
    await begin_login(oauth, redirect_uri="https://app.example/callback")
    assert (await ledger(provider))["registered"][-1]["application_type"] == "web"


MOCK = """
import sys, oidc_provider_mock
with oidc_provider_mock.run_server_in_thread() as server:
    print(f"port={server.server_port}", file=sys.stderr, flush=True)
    sys.stdin.read()
"""


@pytest.mark.requirement("N3")
async def test_a_real_server_that_says_nothing_of_pkce_is_refused():
    with running([sys.executable, "-c", MOCK], {}) as port:
        issuer = f"http://localhost:{port}"
        async with faulty() as server:
            server.standard()
            named = {"resource": f"{server.origin}/mcp", "authorization_servers": [issuer]}
            server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
            with pytest.raises(OAuthError, match=f"{issuer} does not offer PKCE with S256"):
                await begin_login(client(server.origin), redirect_uri=REDIRECT)
