"""Who is let in: keys and access tokens, and how everything else is refused."""

import asyncio
import base64
import json
import logging
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from tests.gateway.tokens import (
    AUDIENCE,
    EC,
    ED,
    RSA,
    bearer,
    claims,
    issuing,
    public_jwk,
    refusal,
    sign,
)
from tests.oauth.world import direct as fetch_directly
from tests.oauth.world import running_provider
from toolkeep.auth.discovery import bearer_challenge
from toolkeep.config.gateway import GatewaySettings
from toolkeep.errors import ConfigError
from toolkeep.gateway import access as module
from toolkeep.gateway.access import (
    FORBIDDEN,
    UNAUTHORIZED,
    UNAVAILABLE,
    AnyAccess,
    ApiKey,
    Denied,
    JwtAccess,
    KeyAccess,
    OpenAccess,
    access_for,
    check_exposure,
    hash_key,
    new_key,
)

pytestmark = pytest.mark.requirement("W4")

ISSUER = "https://issuer.example"
KEYS = {"keys": [public_jwk(RSA, "RS256", kid="first")]}


def gateway_settings(**given: Any) -> GatewaySettings:
    """From values as a file has them."""
    return GatewaySettings(**given)


def token_access(**options: Any) -> JwtAccess:
    return JwtAccess(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks": KEYS, **options})


# -- open and keys --------------------------------------------------------------------------------


async def test_open_access_takes_everybody_and_names_nobody() -> None:
    caller = await OpenAccess().authenticate(bearer("whatever"))
    assert (caller.principal, caller.kind, caller.expires) == (None, "open", None)
    assert OpenAccess().metadata(AUDIENCE) is None


async def test_a_key_names_its_principal_and_claims() -> None:
    key, other = new_key(), new_key()
    held = {"alice": ApiKey(hash=(hash_key(key),), claims={"team": "ops"}), "bob": hash_key(other)}
    access = KeyAccess(gateway_settings(keys=held).keys)
    caller = await access.authenticate(bearer(key))
    assert (caller.principal, caller.claims, caller.kind) == ("alice", {"team": "ops"}, "key")
    assert (await access.authenticate({"authorization": f"bearer  {other}"})).principal == "bob"


async def test_an_old_and_a_new_key_of_one_principal_work_side_by_side() -> None:
    old, new = new_key(), new_key()
    access = KeyAccess({"ci": ApiKey(hash=(hash_key(old), hash_key(new)))})
    assert [(await access.authenticate(bearer(one))).principal for one in (old, new)] == ["ci"] * 2


@pytest.mark.parametrize(
    ("header", "says", "error"),
    [
        (None, "a credential is needed", ""),
        ("", "a credential is needed", ""),
        ("Basic YTpi", "a credential is needed", ""),
        ("Bearer", "malformed", "invalid_token"),
        ("Bearer a b", "malformed", "invalid_token"),
        ("Bearer tk_wrong, Bearer tk_wrong", "malformed", "invalid_token"),
        ('Bearer "tk"', "malformed", "invalid_token"),
        ("Bearer tk_wrong", "the API key is not valid", "invalid_token"),
        ("Bearer " + "a" * 20_000, "too large", "invalid_token"),
    ],
)
async def test_a_request_without_a_valid_key_is_challenged(
    header: str | None, says: str, error: str
) -> None:
    access = KeyAccess({"alice": ApiKey(hash=(hash_key(new_key()),))})
    denied = await refusal(access, {} if header is None else {"authorization": header})
    assert (denied.status, denied.code) == (401, UNAUTHORIZED)
    assert says in denied.message
    assert bearer_challenge(denied.headers["www-authenticate"]).error == error
    assert "tk_" not in f"{denied} {denied.headers}"


async def test_the_hash_of_a_key_is_not_the_key() -> None:
    hashed = hash_key(new_key())
    access = KeyAccess({"alice": ApiKey(hash=(hashed,))})
    for wrong in (hashed, hashed.removeprefix("sha256:")):
        assert (await refusal(access, bearer(wrong.replace(":", "_")))).status == 401


def test_new_keys_differ_and_cannot_be_guessed() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(len(base64.urlsafe_b64decode(one[3:] + "=")) == 32 for one in made)


def test_no_key_or_hash_is_shown() -> None:
    key = new_key()
    settings = gateway_settings(keys={"alice": hash_key(key)})
    shown = f"{settings!r} {settings.keys['alice']!r} {KeyAccess(settings.keys)!r}"
    assert hash_key(key)[7:] not in shown


# -- tokens that are accepted ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")],
    ids=["RSA", "EC", "Ed25519"],
)
async def test_a_token_names_its_principal(key: Any, algorithm: str) -> None:
    jwks = {"keys": [public_jwk(key, algorithm, kid="first")]}
    access = token_access(jwks=jwks, algorithms=[algorithm])
    right = claims(groups=["ops"])
    caller = await access.authenticate(bearer(sign(right, key, algorithm)))
    assert (caller.principal, caller.kind, caller.expires) == ("alice", "jwt", right["exp"])
    assert caller.claims["groups"] == ["ops"]


async def test_the_principal_may_be_another_claim_and_the_audience_one_of_several() -> None:
    access = token_access(principal_claim="email", audience=["api://other", AUDIENCE])
    right = claims(email="a@example.org", aud=["api://x", "api://other"], sub=None)
    assert (await access.authenticate(bearer(sign(right)))).principal == "a@example.org"


async def test_a_token_without_a_key_id_is_accepted_if_one_key_fits() -> None:
    token = bearer(sign(claims(), kid=None))
    assert (await token_access().authenticate(token)).principal == "alice"
    other = public_jwk(rsa.generate_private_key(65537, 2048), "RS256", kid="second")
    two = token_access(jwks={"keys": [*KEYS["keys"], other]})
    assert "unknown key" in (await refusal(two, token)).message


@pytest.mark.parametrize("granted", [{"scope": "a b c"}, {"scp": ["b", "a"]}, {"scp": "a b"}])
async def test_all_scopes_must_be_granted(granted: dict[str, Any]) -> None:
    access = token_access(scopes=["a", "b"])
    assert (await access.authenticate(bearer(sign(claims(**granted))))).principal == "alice"


async def test_missing_scopes_are_told_to_the_client() -> None:
    denied = await refusal(token_access(scopes="a b"), bearer(sign(claims(scope="a"))))
    challenge = bearer_challenge(denied.headers["www-authenticate"])
    assert (denied.status, denied.code) == (403, FORBIDDEN)
    assert (challenge.error, challenge.scopes) == ("insufficient_scope", ("a", "b"))


async def test_clocks_may_differ_by_the_leeway() -> None:
    late = claims(exp=int(time.time()) - 20)
    early = claims(nbf=int(time.time()) + 20)
    for token in (bearer(sign(late)), bearer(sign(early))):
        assert (await token_access().authenticate(token)).principal == "alice"
        assert (await refusal(token_access(leeway=5.0), token)).status == 401


async def test_a_token_that_was_accepted_ends_with_its_time() -> None:
    access = token_access(leeway=0.0)
    token = bearer(sign(claims(exp=int(time.time()) + 2)))
    assert (await access.authenticate(token)).principal == "alice"
    with pytest.raises(Denied, match="it has expired"):
        async with asyncio.timeout(10):
            while await access.authenticate(token):
                await asyncio.sleep(0.05)


# -- tokens that are refused ----------------------------------------------------------------------


def unsigned(header: dict[str, Any], given: dict[str, Any], signature: str = "") -> str:
    parts = (json.dumps(header).encode(), json.dumps(given).encode())
    head, body = (base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)
    return f"{head}.{body}.{signature}"


def public_pem() -> bytes:
    return RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def confused(secret: bytes) -> str:
    """Signed with HMAC, with a public key as the secret: jwt.encode refuses to do it."""
    import hashlib
    import hmac

    start = unsigned({"alg": "HS256", "typ": "JWT", "kid": "first"}, claims())[:-1]
    mac = hmac.new(secret, start.encode(), hashlib.sha256).digest()
    return f"{start}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def tampered() -> str:
    head, _, signature = sign(claims()).split(".")
    _, body, _ = unsigned({}, claims(sub="root")).split(".")
    return f"{head}.{body}.{signature}"


OTHER_RSA = rsa.generate_private_key(65537, 2048)
SECRET = "s3cret-in-the-token"

REFUSED = {
    "alg none": (lambda: unsigned({"alg": "none"}, claims()), "algorithm"),
    "alg None": (lambda: unsigned({"alg": "None", "kid": "first"}, claims()), "algorithm"),
    "alg missing": (lambda: unsigned({"kid": "first"}, claims()), "algorithm"),
    "alg a list": (lambda: unsigned({"alg": ["RS256"]}, claims()), "algorithm"),
    "HS256 with the public PEM": (lambda: confused(public_pem()), "algorithm"),
    "HS256 with the JWK": (lambda: confused(json.dumps(KEYS["keys"][0]).encode()), "algorithm"),
    "not pinned": (lambda: sign(claims(), RSA, "PS256"), "algorithm"),
    "EC under the id of an RSA key": (lambda: sign(claims(), EC, "ES256"), "unknown key"),
    "another key": (lambda: sign(claims(), OTHER_RSA), "signature is wrong"),
    "tampered": (tampered, "signature is wrong"),
    "no signature": (lambda: unsigned({"alg": "RS256", "kid": "first"}, claims()), "signature"),
    "unknown key": (lambda: sign(claims(), kid="nope"), "unknown key"),
    "expired": (lambda: sign(claims(exp=int(time.time()) - 100)), "expired"),
    "not yet valid": (lambda: sign(claims(nbf=int(time.time()) + 100)), "not valid yet"),
    "issued in the future": (lambda: sign(claims(iat=int(time.time()) + 100)), "not valid yet"),
    "wrong audience": (lambda: sign(claims(aud="https://other.example")), "another audience"),
    "audience below": (lambda: sign(claims(aud=AUDIENCE + "/ops")), "another audience"),
    "wrong issuer": (lambda: sign(claims(iss="https://evil.example")), "another issuer"),
    "issuer with a slash": (lambda: sign(claims(iss=ISSUER + "/")), "another issuer"),
    "no exp": (lambda: sign(claims(exp=None)), "lacks exp, iss or aud"),
    "no aud": (lambda: sign(claims(aud=None)), "lacks exp, iss or aud"),
    "no iss": (lambda: sign(claims(iss=None)), "lacks exp, iss or aud"),
    "exp a text": (lambda: sign(claims(exp="soon")), "cannot be read"),
    "exp without end": (lambda: sign(claims(exp=float("inf"))), "cannot be read"),
    "no sub": (lambda: sign(claims(sub=None)), "names no principal"),
    "empty sub": (lambda: sign(claims(sub="")), "names no principal"),
    "sub a number": (lambda: sign(claims(sub=5)), "names no principal"),
    "sub too long": (lambda: sign(claims(sub="a" * 300)), "names no principal"),
    "sub with a line break": (lambda: sign(claims(sub="a\nb")), "not printable"),
    "crit": (lambda: sign(claims(), crit=["b64"], b64=True), "it is not"),
    "kid a number": (lambda: unsigned({"alg": "RS256", "kid": 5}, claims(), "a"), "not a JWT"),
    "a logout token": (lambda: sign(claims(), typ="logout+jwt"), "not an access token"),
    "an encrypted token": (lambda: "a.b.c.d.e", "not a JWT"),
    "opaque": (lambda: "opaque-" + SECRET, "not a JWT"),
    "deep": (lambda: deep() + ".e30.a", "not a JWT"),
    "oversized": (lambda: sign(claims(note="a" * 20_000)), "too large"),
}


def deep() -> str:
    return base64.urlsafe_b64encode(b'{"alg":' + b"[" * 6000).rstrip(b"=").decode()


@pytest.mark.parametrize("case", REFUSED)
async def test_a_bad_token_is_refused_with_its_reason_and_nothing_else(case: str) -> None:
    make, says = REFUSED[case]
    token = make()
    denied = await refusal(token_access(), bearer(token))
    challenge = bearer_challenge(denied.headers["www-authenticate"])
    assert (denied.status, denied.code, challenge.error) == (401, UNAUTHORIZED, "invalid_token")
    assert says in denied.message
    assert challenge.description == denied.message
    assert denied.headers["www-authenticate"].isascii()
    told = f"{denied!r} {denied.headers} {denied.__cause__}"
    parts = [part for part in token.split(".") if len(part) > 8]
    assert not [part for part in (SECRET, "evil", "root", *parts) if part in told]


async def test_a_challenge_leads_to_the_metadata_of_the_gateway() -> None:
    access = token_access(scopes=["tools"])
    denied = await refusal(access, {})
    challenge = bearer_challenge(denied.headers["www-authenticate"])
    where = "https://gateway.example/.well-known/oauth-protected-resource/mcp"
    assert (challenge.error, challenge.scopes) == ("", ("tools",))
    assert challenge.resource_metadata == where
    assert access.metadata(AUDIENCE + "/ops") == {
        "resource": AUDIENCE,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["tools"],
    }


@given(st.text(max_size=300))
async def test_whatever_is_sent_is_refused(text: str) -> None:
    for header in (text, f"Bearer {text}", f"Bearer {text}.{text}.{text}"):
        assert (await refusal(token_access(), {"authorization": header})).status == 401


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
async def test_whatever_is_in_a_token_is_refused(head: bytes, body: bytes, end: bytes) -> None:
    parts = (base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in (head, body, end))
    assert (await refusal(token_access(), bearer(".".join(parts)))).status == 401


# -- keys of the issuer ---------------------------------------------------------------------------


UNUSABLE = {
    "for encryption": public_jwk(RSA, "RS256", kid="first", use="enc"),
    "private": {**RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "first"},
    "short": public_jwk(rsa.generate_private_key(65537, 1024), "RS256", kid="first"),
    "symmetric": {"kty": "oct", "k": "c2VjcmV0", "kid": "first", "alg": "RS256"},
    "of another algorithm": public_jwk(RSA, "RS256", kid="first", alg="RS512"),
    "of another curve": public_jwk(
        ec.generate_private_key(ec.SECP384R1()), "ES256", kid="first", alg=None
    ),
    "broken": {"kty": "RSA", "n": "!", "e": 5, "kid": "first"},
    "no key": "first",
}


@pytest.mark.parametrize("case", UNUSABLE)
async def test_a_key_that_is_not_for_this_is_not_used(case: str) -> None:
    access = token_access(jwks={"keys": [UNUSABLE[case]]}, algorithms=["RS256", "ES256"])
    for key, algorithm in ((RSA, "RS256"), (EC, "ES256")):
        denied = await refusal(access, bearer(sign(claims(), key, algorithm)))
        assert "unknown key" in denied.message


async def test_keys_are_read_once_for_many_requests() -> None:
    async with issuing() as issuer:
        access = issuer.access()
        tokens = [bearer(sign(claims(jti=str(number)))) for number in range(20)]
        found = await asyncio.gather(*(access.authenticate(one) for one in tokens))
        assert {caller.principal for caller in found} == {"alice"}
        assert issuer.reads == 1


async def test_a_new_key_is_found_and_the_withdrawn_one_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REFETCH_INTERVAL", 0.0)
    async with issuing() as issuer:
        access = issuer.access()
        old = bearer(sign(claims()))
        await access.authenticate(old)
        issuer.keys[:] = [public_jwk(OTHER_RSA, "RS256", kid="second")]
        fresh = bearer(sign(claims(sub="bob"), OTHER_RSA, kid="second"))
        assert (await access.authenticate(fresh)).principal == "bob"
        assert "unknown key" in (await refusal(access, old)).message


async def test_unknown_key_ids_do_not_make_many_requests() -> None:
    async with issuing() as issuer:
        access = issuer.access()
        bad = [bearer(sign(claims(), kid=f"made-up-{number}")) for number in range(50)]
        for one in bad:
            assert "unknown key" in (await refusal(access, one)).message
        assert issuer.reads == 1
        assert (await access.authenticate(bearer(sign(claims())))).principal == "alice"


async def test_old_keys_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with issuing() as issuer:
        access = issuer.access()
        token = bearer(sign(claims()))
        await access.authenticate(token)
        monkeypatch.setattr(module, "FRESH", 0.0)
        monkeypatch.setattr(module, "REFETCH_INTERVAL", 0.0)
        access._keys._next_read = 0.0
        await access.authenticate(token)
        assert issuer.reads == 2


@pytest.mark.parametrize(
    "answer",
    [(500, {}), (404, {}), (200, {"keys": []}), (200, b"<html>"), (200, b"[" * 5000), None],
    ids=["500", "404", "empty", "page", "deep", "nothing"],
)
async def test_without_keys_the_client_is_told_to_come_back(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with issuing() as issuer:
        issuer.server.routes["/keys"] = answer if answer else lambda request: None
        access = issuer.access()
        with caplog.at_level(logging.WARNING, "toolkeep.gateway"):
            denied = await refusal(access, bearer(sign(claims())))
            reads = issuer.reads
            again = await refusal(access, bearer(sign(claims())))
    assert (denied.status, denied.code, again.status) == (503, UNAVAILABLE, 503)
    assert denied.headers["retry-after"] == "10"
    assert issuer.reads == reads
    assert "could not be read" in caplog.text


async def test_known_keys_are_used_while_the_issuer_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with issuing() as issuer:
        access = issuer.access()
        await access.authenticate(bearer(sign(claims())))
        issuer.server.routes["/keys"] = (500, {})
        monkeypatch.setattr(module, "FRESH", 0.0)
        access._keys._next_read = 0.0
        assert (await access.authenticate(bearer(sign(claims(sub="bob"))))).principal == "bob"
        assert issuer.reads == 2
        monkeypatch.setattr(module, "USABLE", 0.0)
        assert (await refusal(access, bearer(sign(claims(sub="carol"))))).status == 503


async def test_a_cancelled_request_leaves_the_others_their_keys() -> None:
    async with issuing() as issuer:
        asked, go = asyncio.Event(), asyncio.Event()

        async def slow(request: Any) -> Any:
            asked.set()
            await go.wait()
            return 200, {"keys": issuer.keys}

        issuer.server.routes["/keys"] = slow
        access = issuer.access()
        first = asyncio.ensure_future(access.authenticate(bearer(sign(claims()))))
        await asyncio.wait_for(asked.wait(), 5)
        first.cancel()
        await asyncio.wait((first,))
        go.set()
        denied = await refusal(access, bearer(sign(claims())))
        assert first.cancelled()
        assert denied.status == 503  # until the next time that keys may be read
        access._keys._next_read = 0.0
        assert (await access.authenticate(bearer(sign(claims())))).principal == "alice"


@pytest.mark.requirement("N2")
async def test_keys_are_not_read_from_where_a_redirect_leads() -> None:
    async with issuing() as issuer, issuing() as internal:
        issuer.server.routes["/keys"] = (302, {}, {"location": internal.url})
        denied = await refusal(issuer.access(), bearer(sign(claims())))
        assert (denied.status, internal.reads) == (503, 0)


async def test_remembered_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VERIFIED", 3)
    access = token_access()
    for number in range(10):
        await access.authenticate(bearer(sign(claims(jti=str(number)))))
    assert len(access._verified) == 3


async def test_tokens_of_a_real_authorization_server_are_accepted() -> None:
    """oidc-provider issues it; nothing of it is made here."""
    with running_provider(format="jwt") as origin:
        form = "grant_type=client_credentials&client_id=service&client_secret=service-secret"
        form += f"&scope=files:read&resource={origin}/mcp"
        policy = module_policy(origin)
        answer = await fetch_directly(
            "POST",
            f"{origin}/token",
            policy=policy,
            headers={"content-type": "application/x-www-form-urlencoded"},
            body=form.encode(),
        )
        token = json.loads(answer.body)["access_token"]
        options: dict[str, Any] = {"audience": f"{origin}/mcp", "jwks_url": f"{origin}/jwks"}
        access = JwtAccess(origin, **options, scopes="files:read", fetch=fetch_directly)
        caller = await access.authenticate(bearer(token))
        assert (caller.principal, caller.claims["client_id"]) == ("service", "service")
        strict = JwtAccess(origin, **options, scopes="files:write", fetch=fetch_directly)
        assert (await refusal(strict, bearer(token))).status == 403


def module_policy(origin: str) -> Any:
    from toolkeep._transport.egress import policy_for

    return policy_for(origin)


# -- together -------------------------------------------------------------------------------------


async def test_keys_and_tokens_can_be_used_side_by_side() -> None:
    key = new_key()
    access = AnyAccess(KeyAccess({"ci": ApiKey(hash=(hash_key(key),))}), token_access(scopes=["a"]))
    assert (await access.authenticate(bearer(key))).kind == "key"
    assert (await access.authenticate(bearer(sign(claims(scope="a"))))).kind == "jwt"
    assert (await refusal(access, bearer(sign(claims())))).status == 403
    denied = await refusal(access, {})
    assert "resource_metadata=" in denied.headers["www-authenticate"]
    assert access.metadata(AUDIENCE) == token_access(scopes=["a"]).metadata(AUDIENCE)


def test_the_configuration_chooses() -> None:
    token = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": ISSUER + "/keys"}
    keys = {"alice": hash_key(new_key())}
    kinds = [
        (GatewaySettings(), OpenAccess),
        (gateway_settings(keys=keys), KeyAccess),
        (gateway_settings(jwt=token), JwtAccess),
        (gateway_settings(keys=keys, jwt=token), AnyAccess),
    ]
    assert [type(access_for(settings)) for settings, _ in kinds] == [kind for _, kind in kinds]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "gateway.example", "::"])
def test_nothing_is_open_to_other_machines(host: str) -> None:
    with pytest.raises(ConfigError, match="other machines") as caught:
        check_exposure(OpenAccess(), host)
    assert caught.value.key == "gateway.host"
    check_exposure(token_access(), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_may_be_open(host: str) -> None:
    check_exposure(OpenAccess(), host)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"algorithms": []}, "algorithms"),
        ({"audience": "api://gateway"}, "resource"),
        ({"jwks": None}, "jwks_url"),
        ({"jwks_url": "https://issuer.example/keys"}, "jwks_url"),
        ({"leeway": 3600.0}, "leeway"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JwtAccess(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks": KEYS, **options})
    assert caught.value.key == key
    assert caught.value.remedy
