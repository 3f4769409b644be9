"""Challenges, metadata and the order in which they are asked for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oauth.world import REDIRECT, callback_for, client, direct, faulty
from toolkeep._rules.egress import AddressRange
from toolkeep._transport.egress import FetchResponse, policy_for
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import (
    BearerChallenge,
    bearer_challenge,
    canonical_resource,
    challenges,
    discover,
    read_resource_metadata,
    read_server_metadata,
    require_pkce,
    resource_metadata_urls,
    server_metadata_urls,
)
from toolkeep.auth.login import begin_login

pytestmark = pytest.mark.requirement("N3")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", []),
        ("Bearer", [("bearer", {})]),
        ("bearer realm=x", [("bearer", {"realm": "x"})]),
        ('Bearer scope="a b", error=e', [("bearer", {"scope": "a b", "error": "e"})]),
        ('BEARER Error = "x"', [("bearer", {"error": "x"})]),
        (r'Bearer a="say \"no\", twice"', [("bearer", {"a": 'say "no", twice'})]),
        ('Basic r="a, b", Bearer e="x"', [("basic", {"r": "a, b"}), ("bearer", {"e": "x"})]),
        ("Negotiate abc==, Bearer a=b", [("negotiate", {}), ("bearer", {"a": "b"})]),
        ("Negotiate, Basic realm=a", [("negotiate", {}), ("basic", {"realm": "a"})]),
        (',, Bearer a="1",,b="2"', [("bearer", {"a": "1", "b": "2"})]),
        ('Bearer a="1", a="2"', [("bearer", {"a": "1"})]),
        ('Bearer a="open', [("bearer", {})]),
        ('Bearer a="https://a/b?c=d,e"', [("bearer", {"a": "https://a/b?c=d,e"})]),
    ],
)
def test_a_challenge_is_read_as_its_grammar_says(header: str, expected: list[Any]):
    assert list(challenges(header)) == expected


@given(st.text(max_size=300))
def test_any_header_is_read_to_its_end(header: str):
    list(challenges(header))
    bearer_challenge(header)


def test_the_challenge_that_says_most_is_taken():
    header = 'Bearer realm="x", DPoP algs="ES256", Bearer error="e", scope="b a b"'
    assert bearer_challenge(header) == BearerChallenge(error="e", scopes=("b", "a"))
    assert bearer_challenge('Basic realm="x"') == BearerChallenge()
    assert len(bearer_challenge(f'Bearer scope="{" ".join(map(str, range(999)))}"').scopes) == 100


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("https://MCP.example/mcp?key=secret#x", "https://mcp.example/mcp"),
        ("https://mcp.example:443/", "https://mcp.example"),
        ("http://user:pw@[::1]:8000/mcp/", "http://[::1]:8000/mcp/"),
    ],
)
def test_the_resource_indicator_holds_no_secret(url: str, resource: str):
    assert canonical_resource(url) == resource


def test_protected_resource_metadata_is_asked_by_challenge_then_path_then_root():
    well_known = "https://a.example/.well-known/oauth-protected-resource"
    assert resource_metadata_urls("https://a.example/public/mcp?x=1", "https://b.example/m") == [
        "https://b.example/m",
        f"{well_known}/public/mcp",
        well_known,
    ]
    assert resource_metadata_urls("https://a.example/") == [well_known]
    assert resource_metadata_urls("https://a.example/m", f"{well_known}/m") == [
        f"{well_known}/m",
        well_known,
    ]


def test_authorization_server_metadata_is_asked_in_the_specified_order():
    assert server_metadata_urls("https://a.example/t1") == [
        "https://a.example/.well-known/oauth-authorization-server/t1",
        "https://a.example/.well-known/openid-configuration/t1",
        "https://a.example/t1/.well-known/openid-configuration",
    ]
    for issuer in ("https://a.example", "https://a.example/"):
        assert server_metadata_urls(issuer) == [
            "https://a.example/.well-known/oauth-authorization-server",
            "https://a.example/.well-known/openid-configuration",
        ]


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        ("https://a.example/mcp", True),
        ("https://A.example:443/mcp/", True),
        ("https://a.example", True),
        ("https://a.example/mc", False),
        ("https://a.example/mcp/deeper", False),
        ("http://a.example/mcp", False),
        ("https://b.example/mcp", False),
        ("https://a.example:8443/mcp", False),
        ("https://a.example:x/mcp", False),
        ("api://configured", True),
    ],
)
def test_metadata_of_another_resource_is_not_used(resource: str, fits: bool):
    document = {"resource": resource, "authorization_servers": ["https://as.example", 3]}
    url, configured = "https://a.example/mcp", "api://configured"
    if fits:
        found = read_resource_metadata(document, url, configured)
        assert found.authorization_servers == ("https://as.example",)
    else:
        with pytest.raises(OAuthError, match="the document describes"):
            read_resource_metadata(document, url, configured)


GOOD = {"issuer": "https://as.example/t", "token_endpoint": "https://as.example/token"}


@pytest.mark.parametrize(
    "issuer",
    [
        "https://as.example/t/",
        "https://AS.example/t",
        "https://as.example:443/t",
        "https://evil",
        "",
    ],
)
def test_a_document_of_another_issuer_is_refused_without_normalization(issuer: str):
    with pytest.raises(OAuthError, match="names the issuer"):
        read_server_metadata({**GOOD, "issuer": issuer}, "https://as.example/t")


@pytest.mark.parametrize(
    "endpoint",
    [
        *("javascript:alert(1)", "file:///etc/passwd", "//as.example/a", "https://", "a", "x:y"),
        *("https://u:p@as.example/a", "https://as.example/a#b", "https://as.example/$(a) b"),
        *("https://as.example/'`id`", "https://as.example:0/", "https://[::1/", "ms-settings:a"),
    ],
)
@pytest.mark.parametrize(
    "key", ["authorization_endpoint", "token_endpoint", "registration_endpoint"]
)
def test_an_endpoint_that_is_no_plain_url_is_refused(key: str, endpoint: str):
    with pytest.raises(OAuthError, match="not an http"):
        read_server_metadata({**GOOD, key: endpoint}, GOOD["issuer"])


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256", [None]])
def test_a_server_without_pkce_is_refused(methods: Any):
    found = read_server_metadata(
        {**GOOD, "code_challenge_methods_supported": methods}, GOOD["issuer"]
    )
    with pytest.raises(OAuthError, match="PKCE with S256"):
        require_pkce(found)


def test_a_server_without_a_token_endpoint_is_refused():
    with pytest.raises(OAuthError, match="no token endpoint"):
        read_server_metadata({"issuer": "https://a"}, "https://a")


async def found_at(origin: str, **options: Any) -> Any:
    url = f"{origin}/mcp"
    return await discover(url, fetch=direct, policy=policy_for(url), **options)


async def test_a_challenge_that_names_a_metadata_service_is_refused_and_not_fetched():
    async with faulty() as server:
        server.standard()
        hostile = BearerChallenge(resource_metadata="http://169.254.169.254/latest/meta-data")
        with pytest.raises(OAuthError, match="cloud metadata address"):
            await found_at(server.origin, challenge=hostile)
        assert server.requests == []


@pytest.mark.parametrize(
    "issuer",
    ["http://169.254.169.254", "http://10.0.0.1/as", "http://[fd00:ec2::254]", "http://100.64.0.9"],
)
async def test_an_issuer_on_an_internal_address_is_refused(issuer: str):
    async with faulty() as server:
        server.standard()
        document = {"resource": f"{server.origin}/mcp", "authorization_servers": [issuer]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, document)
        with pytest.raises(OAuthError, match="may not name a host"):
            await found_at(server.origin)


@pytest.mark.parametrize("issuer", ["javascript:x", "as.example", "", "https://a b"])
async def test_an_issuer_that_is_no_url_is_refused(issuer: str):
    async with faulty() as server:
        server.standard()
        document = {"authorization_servers": [issuer]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, document)
        with pytest.raises(OAuthError):
            await found_at(server.origin)


async def test_the_root_is_asked_when_the_path_has_no_metadata():
    async with faulty() as server:
        server.standard()
        found = server.routes.pop("/.well-known/oauth-protected-resource/mcp")
        server.routes["/.well-known/oauth-protected-resource"] = found
        assert (await found_at(server.origin)).server.issuer == server.origin
        assert server.paths() == [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-authorization-server",
        ]
        assert all("mcp-protocol-version" in request.headers for request in server.requests)


async def test_a_server_with_a_path_is_found_by_any_of_its_three_addresses():
    paths = [
        "/.well-known/oauth-authorization-server/t1",
        "/.well-known/openid-configuration/t1",
        "/t1/.well-known/openid-configuration",
    ]
    for path in paths:
        async with faulty() as server:
            issuer = f"{server.origin}/t1"
            document = server.standard(issuer=issuer)
            del server.routes["/.well-known/oauth-authorization-server"]
            named = {"resource": f"{server.origin}/mcp", "authorization_servers": [issuer]}
            server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
            server.routes[path] = (200, document)
            assert (await found_at(server.origin)).server.issuer == issuer
            assert server.paths()[1:] == paths[: paths.index(path) + 1]


async def test_a_fault_of_the_server_is_no_proof_that_it_has_no_metadata():
    async with faulty() as server:
        server.standard()
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (503, {})
        with pytest.raises(OAuthError, match="answered 503") as caught:
            await found_at(server.origin)
        assert caught.value.transient
        assert "/.well-known/oauth-authorization-server" not in server.paths()


@pytest.mark.parametrize("answer", [b"", b"[]", b"<html>", b"[" * 100_000, b'"text"'])
async def test_what_is_no_json_object_is_no_metadata(answer: bytes):
    async with faulty() as server:
        server.standard()
        server.routes["/.well-known/oauth-authorization-server"] = (200, answer)
        with pytest.raises(OAuthError, match="publishes no metadata"):
            await found_at(server.origin)


async def test_a_server_of_2025_03_26_is_its_own_authorization_server():
    async with faulty() as server:
        server.standard(issuer=f"{server.origin}/")
        del server.routes["/.well-known/oauth-protected-resource/mcp"]
        found = await found_at(server.origin)
        assert (found.resource, found.server.issuer) == (None, f"{server.origin}/")
        del server.routes["/.well-known/oauth-authorization-server"]
        assert (
            await found_at(server.origin)
        ).server.registration_endpoint == f"{server.origin}/register"


@pytest.mark.requirement("N8")
async def test_a_pinned_issuer_is_the_only_one_that_is_asked():
    """A server that names an attacker's authorization server gains nothing."""
    async with faulty() as evil, faulty() as good, faulty() as server:
        good.standard()
        evil.standard(issuer=good.origin)
        named = {"resource": f"{server.origin}/mcp", "authorization_servers": [evil.origin]}
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, named)
        found = await found_at(server.origin, issuer=good.origin)
        assert found.server.token_endpoint == f"{good.origin}/token"
        assert evil.requests == []
        with pytest.raises(OAuthError, match="names the issuer"):
            await found_at(server.origin)


@pytest.mark.requirement("N2")
@pytest.mark.parametrize(
    ("named", "widened"), [("https://elsewhere.example/m", False), ("https://mcp.example/m", True)]
)
async def test_only_the_configured_server_widens_where_its_authorization_server_may_be(
    named: str, widened: bool
):
    """A document that came from 10.0.0.1 because the user allows its host proves nothing."""
    answers: dict[str, Any] = {
        named: {"authorization_servers": ["https://as.example"]},
        "https://as.example/.well-known/oauth-authorization-server": {
            "issuer": "https://as.example",
            "token_endpoint": "https://as.example/token",
        },
    }

    async def fetch(method: str, url: str, **given: Any) -> FetchResponse:
        return FetchResponse(200, {}, json.dumps(answers[url]).encode(), url, "10.0.0.1")

    mcp = "https://mcp.example/mcp"
    challenge = BearerChallenge(resource_metadata=named)
    found = await discover(mcp, fetch=fetch, policy=policy_for(mcp), challenge=challenge)
    assert found.policy.ranges == ({AddressRange.PRIVATE} if widened else frozenset())


async def test_metadata_that_names_no_authorization_server_says_what_to_set():
    async with faulty() as server:
        server.standard()
        server.routes["/.well-known/oauth-protected-resource/mcp"] = (200, {})
        with pytest.raises(OAuthError, match="Set 'issuer'"):
            await found_at(server.origin)


@pytest.mark.parametrize("endpoint", ["http://as.example/authorize", "http://10.0.0.1/authorize"])
async def test_a_browser_is_not_sent_to_a_place_that_a_server_may_not_name(endpoint: str):
    async with faulty() as server:
        server.standard(authorization_endpoint=endpoint)
        oauth = client(server.origin)
        if "10." in endpoint:
            with pytest.raises(OAuthError, match="authorization endpoint is refused"):
                await begin_login(oauth, redirect_uri=REDIRECT)
        else:  # the server itself was reached on loopback: plain http is its user's choice
            assert (await begin_login(oauth, redirect_uri=REDIRECT)).url.startswith(endpoint)


async def test_an_authorization_endpoint_keeps_its_query():
    async with faulty() as server:
        server.standard(
            authorization_endpoint=f"{server.origin}/authorize?tenant=a%20b&state=theirs"
        )
        login = await begin_login(client(server.origin), redirect_uri=REDIRECT)
        assert "tenant=a+b" in login.url
        assert "theirs" not in login.url
        assert callback_for(login.url).startswith(REDIRECT)
