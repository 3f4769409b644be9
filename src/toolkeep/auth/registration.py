"""OAuth clients: which one to use with an authorization server, and how it authenticates.

In the order of the MCP specification: the configured client, a client ID metadata document, dynamic
registration (RFC 7591), or an error that says what to configure. A registration is used only with
the issuer that made it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import EgressRefused, FetchFailed, FetchResponse
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import Fetch, ServerMetadata, json_object, shown
from toolkeep.config import redact_url
from toolkeep.config.fields import is_loopback
from toolkeep.state import Store

STEP, AUTHENTICATION = "client registration", "client authentication"
"""The steps, as error messages name them."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_LIFETIME = 60.0
"""Seconds that a signed assertion is valid."""

Kind = Literal["configured", "document", "dynamic"]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The user's configuration of the client."""

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    metadata_url: str = ""
    """The https URL of a client ID metadata document that the user hosts."""
    name: str = "toolkeep"
    auth_method: str = ""
    """`client_secret_basic`, `client_secret_post`, `private_key_jwt`, `none`, or empty: choose."""
    signing_key: str = field(default="", repr=False)
    """A private key in PEM, for `private_key_jwt`."""
    signing_algorithm: str = "ES256"
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client as one issuer knows it. Configured secrets are never copied into it."""

    issuer: str
    client_id: str
    kind: Kind
    auth_method: str = "none"
    client_secret: str = field(default="", repr=False)
    secret_expires_at: float = 0.0
    """Seconds since the epoch; 0 if it never expires."""
    redirect_uri: str = ""
    """The redirect URI of a dynamic registration."""
    scopes: tuple[str, ...] = ()
    """The scopes of a dynamic registration: some servers grant a client no others."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> OAuthClient:
        given: dict[str, Any] = {**found, "scopes": tuple(found["scopes"])}
        return cls(**given)


# -- choice -------------------------------------------------------------------------------------


def known_client(metadata: ServerMetadata, settings: ClientSettings) -> OAuthClient | None:
    """The client that needs no dynamic registration. None: register one. Raises `OAuthError`."""
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
    supported = "only client ID metadata documents" if metadata.takes_metadata_document else "none"
    raise OAuthError(
        STEP,
        f"{shown(issuer)} does not support dynamic registration (supported: {supported})",
        remedy="Register a client with its operator, and set 'client_id' (and 'client_secret')"
        + (", or set 'client_metadata_url'" if metadata.takes_metadata_document else ""),
    )


def check_metadata_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.path in ("", "/") or parts.fragment or parts.username:
        raise OAuthError(
            STEP,
            "the client metadata URL must be an https URL with a path",
            remedy="Set 'client_metadata_url' to the URL of the document",
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
    """The body of a registration request. Without a redirect URI it is for device logins."""
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
    """`web` for a redirect to a remote host; `native` for loopback, custom schemes, devices."""
    parts = urlsplit(redirect_uri)
    remote = parts.scheme in ("http", "https") and not is_loopback(parts.hostname or "")
    return "web" if remote else "native"


def _registered_method(metadata: ServerMetadata) -> str:
    offered = metadata.auth_methods
    if not offered or "none" in offered:
        return "none"
    known = ("client_secret_basic", "client_secret_post")
    return next((method for method in known if method in offered), "none")


def read_registration(response: FetchResponse, metadata: ServerMetadata) -> OAuthClient:
    document = json_object(response.body)
    if response.status not in (200, 201) or document is None:
        raise _registration_error(response, document or {})
    client_id, secret = document.get("client_id"), document.get("client_secret") or ""
    method = document.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "")
    if not isinstance(client_id, str) or not client_id or not isinstance(secret, str):
        raise OAuthError(STEP, "the response has no client_id")
    if method not in ("", "none", "client_secret_basic", "client_secret_post"):
        raise OAuthError(STEP, f"the server chose the unsupported method {shown(str(method))!r}")
    if method.startswith("client_secret") and not secret:
        raise OAuthError(STEP, f"the server chose the method {method!r} but sent no secret")
    expires = document.get("client_secret_expires_at")
    return OAuthClient(
        issuer=metadata.issuer,
        client_id=client_id,
        kind="dynamic",
        auth_method=method or "none",
        client_secret=secret,
        secret_expires_at=_expiry(expires),
    )


def _expiry(seconds: object) -> float:
    """0 if the secret never expires."""
    return float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e11 else 0.0


def _registration_error(response: FetchResponse, document: Mapping[str, Any]) -> OAuthError:
    error = shown(str(document.get("error", "")))
    reason = shown(str(document.get("error_description", ""))) or error or "no reason given"
    return OAuthError(
        STEP,
        f"{redact_url(response.url)} answered {response.status} ({reason})",
        remedy="Register a client with its operator, and set 'client_id'",
        error=error,
        transient=response.status >= 500 or response.status == 429,
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
        response = await fetch("POST", url, policy=policy, headers=headers, body=body)
    except FetchFailed as failed:
        transient = not isinstance(failed, EgressRefused)
        raise OAuthError(STEP, str(failed), transient=transient) from None
    client = read_registration(response, metadata)
    return replace(client, redirect_uri=redirect_uri, scopes=scopes)


# -- client authentication ------------------------------------------------------------------------


def with_secret(client: OAuthClient, settings: ClientSettings) -> OAuthClient:
    """Add the currently configured secret to a configured client."""
    if client.kind != "configured" or client.client_id != settings.client_id:
        return client
    return replace(client, client_secret=settings.client_secret)


def authenticated(
    client: OAuthClient, settings: ClientSettings, form: Mapping[str, str], now: float
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a form, authenticated as this client."""
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
    """A signed JWT that authenticates the client to its issuer (RFC 7523)."""
    if not settings.signing_key:
        remedy = "Set 'signing_key'"
        raise OAuthError(AUTHENTICATION, "private_key_jwt needs a signing key", remedy=remedy)
    try:
        import jwt
    except ImportError:
        remedy = "Install toolkeep[oauth]"
        raise OAuthError(AUTHENTICATION, "PyJWT is not installed", remedy=remedy) from None
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
    except Exception:  # not chained: it may quote the key
        problem = "the signing key does not fit its algorithm"
    remedy = "Check 'signing_key' and 'signing_algorithm'"
    raise OAuthError(AUTHENTICATION, problem, remedy=remedy)


# -- stored registrations -------------------------------------------------------------------------


def client_key(issuer: str, redirect_uri: str) -> str:
    """The storage key of a dynamic registration."""
    parts = json.dumps([issuer, redirect_uri])
    return f"toolkeep:client:{hashlib.sha256(parts.encode()).hexdigest()}"


async def load_client(
    store: Store, issuer: str, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient | None:
    """The stored registration, unless its secret has expired or it lacks scopes."""
    entry = await store.get(client_key(issuer, redirect_uri))
    if entry is None:
        return None
    try:
        client = OAuthClient.from_json(json.loads(entry.value))
    except (ValueError, TypeError, KeyError):
        return None
    expired = 0 < client.secret_expires_at <= time.time()
    lacks = bool(client.scopes) and not set(scopes) <= set(client.scopes)
    return None if expired or lacks or client.issuer != issuer else client


async def save_client(store: Store, client: OAuthClient) -> None:
    value = json.dumps(dataclasses.asdict(client)).encode()
    await store.put(client_key(client.issuer, client.redirect_uri), value)


async def bind_client(store: Store, url: str, client: OAuthClient) -> None:
    """Bind a configured client to the issuer of its first use at this MCP server.

    Otherwise an MCP server that names another issuer later could have the secret sent there.
    """
    digest = hashlib.sha256(json.dumps([url, client.client_id]).encode()).hexdigest()
    key, issuer = f"toolkeep:issuer:{digest}", client.issuer.encode()
    if await store.put(key, issuer, if_version=0) is not None:
        return
    bound = await store.get(key)
    if bound is not None and bound.value != issuer:
        raise OAuthError(
            "client registration",
            f"the client is bound to {shown(bound.value.decode())}, but the MCP server now names "
            f"{shown(client.issuer)}",
            remedy="If that is right, set 'issuer' to it and check 'client_id'",
        )


async def forget_client(store: Store, client: OAuthClient) -> None:
    """Delete a registration that its issuer no longer accepts, so that the next login registers."""
    if client.kind == "dynamic":
        key = client_key(client.issuer, client.redirect_uri)
        entry = await store.get(key)
        if entry is not None and client.client_id in entry.value.decode():
            await store.delete(key, if_version=entry.version)
