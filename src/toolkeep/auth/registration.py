"""Which OAuth client we are to an authorization server.

In the order of the specification: the client that the configuration names, a client ID metadata
document, dynamic registration (RFC 7591), or an error that says what to configure. A registration
belongs to the issuer that made it and is never shown to another. Also here: how a client proves
itself at a token endpoint.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from toolkeep._rules.egress import EgressPolicy
from toolkeep._wire.egress import Answer, EgressRefused, FetchFailed
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import Fetch, ServerMetadata, json_object, shown
from toolkeep.config import redact_url
from toolkeep.config.urls import is_loopback

STEP = "client registration"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_LIFETIME = 60.0

Kind = Literal["configured", "document", "dynamic"]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What the user says about the client."""

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    metadata_url: str = ""
    """The https URL of a client ID metadata document that the user hosts."""
    name: str = "toolkeep"
    auth_method: str = ""
    """`client_secret_basic`, `client_secret_post`, `private_key_jwt` or `none`; else chosen."""
    signing_key: str = field(default="", repr=False)
    """A private key in PEM, for `private_key_jwt`."""
    signing_algorithm: str = "ES256"
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client as one issuer knows it. Secrets that are configured are not copied into it."""

    issuer: str
    client_id: str
    kind: Kind
    auth_method: str = "none"
    client_secret: str = field(default="", repr=False)
    secret_expires_at: float = 0.0
    """Seconds since the epoch; 0: never."""
    redirect_uri: str = ""
    """What a dynamic client was registered with."""
    scopes: tuple[str, ...] = ()
    """Likewise: some servers give a client no others."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> OAuthClient:
        given: dict[str, Any] = {**found, "scopes": tuple(found["scopes"])}
        return cls(**given)


# -- which client -------------------------------------------------------------------------------


def known_client(metadata: ServerMetadata, settings: ClientSettings) -> OAuthClient | None:
    """The client that needs no registration. None: register one. Raises `OAuthError`."""
    issuer = metadata.issuer
    if settings.client_id:
        method = _configured_method(metadata, settings)
        return OAuthClient(issuer, settings.client_id, "configured", method)
    if settings.metadata_url and metadata.takes_metadata_document:
        check_metadata_url(settings.metadata_url)
        method = "private_key_jwt" if settings.signing_key else "none"
        return OAuthClient(issuer, settings.metadata_url, "document", method)
    if metadata.registration_endpoint:
        return None
    offers = "client ID metadata documents" if metadata.takes_metadata_document else "neither"
    raise OAuthError(
        STEP,
        f"{shown(issuer)} registers no clients by itself (it offers {offers})",
        remedy="Register one with its operator, and set 'client_id' (and 'client_secret')"
        + (", or set 'client_metadata_url'" if metadata.takes_metadata_document else ""),
    )


def check_metadata_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.path in ("", "/") or parts.fragment or parts.username:
        raise OAuthError(
            STEP,
            "the client metadata URL is not an https URL with a path",
            remedy="Set 'client_metadata_url' to the document's own address",
        )


def _configured_method(metadata: ServerMetadata, settings: ClientSettings) -> str:
    if settings.auth_method:
        return settings.auth_method
    if settings.signing_key:
        return "private_key_jwt"
    if not settings.client_secret:
        return "none"
    posts = "client_secret_post" in metadata.auth_methods
    basic = not metadata.auth_methods or "client_secret_basic" in metadata.auth_methods
    return "client_secret_post" if posts and not basic else "client_secret_basic"


# -- dynamic registration -------------------------------------------------------------------------


def registration_request(
    metadata: ServerMetadata, settings: ClientSettings, redirect_uri: str, scopes: tuple[str, ...]
) -> bytes:
    """The body of a registration. Without a redirect URI it is for device logins."""
    grants = ["authorization_code", "refresh_token"] if redirect_uri else ["refresh_token"]
    if not redirect_uri:
        grants.insert(0, DEVICE_GRANT)
    wanted: dict[str, Any] = {
        "client_name": settings.name,
        "grant_types": grants,
        "response_types": ["code"] if redirect_uri else [],
        "redirect_uris": [redirect_uri] if redirect_uri else [],
        "application_type": application_type(redirect_uri),
        "token_endpoint_auth_method": _registered_method(metadata),
    }
    if scopes:
        wanted["scope"] = " ".join(scopes)
    return json.dumps(wanted).encode()


def application_type(redirect_uri: str) -> str:
    """`web` for a redirect to a remote host; `native` for loopback, own schemes and devices."""
    parts = urlsplit(redirect_uri)
    remote = parts.scheme in ("http", "https") and not is_loopback(parts.hostname or "")
    return "web" if remote else "native"


def _registered_method(metadata: ServerMetadata) -> str:
    offered = metadata.auth_methods
    if not offered or "none" in offered:
        return "none"
    known = ("client_secret_basic", "client_secret_post")
    return next((method for method in known if method in offered), "none")


def read_registration(answer: Answer, metadata: ServerMetadata) -> OAuthClient:
    document = json_object(answer.body)
    if answer.status not in (200, 201) or document is None:
        raise _refused(answer, document or {})
    client_id, secret = document.get("client_id"), document.get("client_secret") or ""
    method = document.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "")
    if not isinstance(client_id, str) or not client_id or not isinstance(secret, str):
        raise OAuthError(STEP, "the answer holds no client_id")
    if method not in ("", "none", "client_secret_basic", "client_secret_post"):
        raise OAuthError(STEP, f"it gave the method {shown(str(method))!r}, which cannot be used")
    if method.startswith("client_secret") and not secret:
        raise OAuthError(STEP, f"it gave the method {method!r} and no secret")
    expires = document.get("client_secret_expires_at")
    return OAuthClient(
        issuer=metadata.issuer,
        client_id=client_id,
        kind="dynamic",
        auth_method=method or "none",
        client_secret=secret,
        secret_expires_at=float(expires) if isinstance(expires, int | float) else 0.0,
    )


def _refused(answer: Answer, document: Mapping[str, Any]) -> OAuthError:
    error = shown(str(document.get("error", "")))
    said = shown(str(document.get("error_description", ""))) or error or "no reason"
    return OAuthError(
        STEP,
        f"{redact_url(answer.url)} answered {answer.status} ({said})",
        remedy="Register a client with its operator, and set 'client_id'",
        error=error,
        transient=answer.status >= 500 or answer.status == 429,
    )


async def register(
    metadata: ServerMetadata,
    settings: ClientSettings,
    redirect_uri: str,
    scopes: tuple[str, ...],
    *,
    fetch: Fetch,
    policy: EgressPolicy,
) -> OAuthClient:
    """Register a client with the issuer, at the endpoint that its metadata names."""
    body = registration_request(metadata, settings, redirect_uri, scopes)
    headers = {"content-type": "application/json", "accept": "application/json"}
    url = metadata.registration_endpoint
    try:
        answer = await fetch("POST", url, policy=policy, headers=headers, body=body)
    except FetchFailed as failed:
        transient = not isinstance(failed, EgressRefused)
        raise OAuthError(STEP, str(failed), transient=transient) from None
    client = read_registration(answer, metadata)
    return replace(client, redirect_uri=redirect_uri, scopes=scopes)


# -- proof at the token endpoint ------------------------------------------------------------------


def with_secret(client: OAuthClient, settings: ClientSettings) -> OAuthClient:
    """A configured client uses the secret that is configured now."""
    if client.kind != "configured" or client.client_id != settings.client_id:
        return client
    return replace(client, client_secret=settings.client_secret)


def authenticated(
    client: OAuthClient, settings: ClientSettings, form: Mapping[str, str], now: float
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a form that the client sends to its authorization server."""
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    fields = dict(form)
    if client.auth_method == "client_secret_basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        fields["client_id"] = client.client_id
    if client.auth_method == "client_secret_post":
        fields["client_secret"] = client.client_secret
    if client.auth_method == "private_key_jwt":
        fields["client_assertion_type"] = ASSERTION_TYPE
        fields["client_assertion"] = assertion(client, settings, now)
    return headers, urlencode(fields).encode()


def assertion(client: OAuthClient, settings: ClientSettings, now: float) -> str:
    """A signed JWT that proves the client to its issuer (RFC 7523)."""
    if not settings.signing_key:
        raise OAuthError("client authentication", "private_key_jwt needs a key; set 'signing_key'")
    try:
        import jwt
    except ImportError:
        remedy = "Install toolkeep[oauth]"
        raise OAuthError("client authentication", "PyJWT is missing", remedy=remedy) from None
    claims = {
        "iss": client.client_id,
        "sub": client.client_id,
        "aud": client.issuer,
        "iat": int(now),
        "exp": int(now + ASSERTION_LIFETIME),
        "jti": secrets.token_urlsafe(16),
    }
    headers = {"kid": settings.key_id} if settings.key_id else None
    try:
        return jwt.encode(claims, settings.signing_key, settings.signing_algorithm, headers)
    except Exception:  # never chained: it may quote the key
        failed = "the signing key does not fit its algorithm"
    remedy = "Check 'signing_key' and 'signing_algorithm'"
    raise OAuthError("client authentication", failed, remedy=remedy)
