"""OAuth for people: what is asked of the authorization server, and the `OAuth` authorizer.

Above are pure builders and readers: scopes, PKCE, the authorization URL, the callback. `OAuth`
gives each request the token of its principal, refreshes it before anything else, and says
`LoginNeeded` when only a person can help. It opens no browser: see `login`.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from toolkeep._wire.egress import policy_for
from toolkeep.auth.authorizer import AuthRequest, Challenge, LoginNeeded, OAuthError
from toolkeep.auth.discovery import (
    MAX_SCOPES,
    BearerChallenge,
    Fetch,
    ResourceMetadata,
    ServerMetadata,
    bearer_challenge,
    canonical_resource,
    shown,
)
from toolkeep.auth.grants import ENDS, Grant, GrantKey, Grants
from toolkeep.auth.registration import ClientSettings, OAuthClient
from toolkeep.auth.storage import Storage

__all__ = ["OAuth", "OAuthSettings"]

AUTHORIZATION = "authorization"
OFFLINE = "offline_access"
MAX_STEP_UPS = 5
"""Logins that one grant may cost because the server wants more scopes."""
YOUTH, YOUTH_SHARE = 5.0, 0.25
"""A token that is refused within these seconds of a refresh, or this share of its life, is not
refreshed: it would not help. Short lives are rounded by servers, so the share is small."""


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """What the user says about OAuth at one MCP server."""

    server: str
    url: str
    client: ClientSettings = field(default_factory=ClientSettings)
    scopes: tuple[str, ...] = ()
    resource: str = ""
    """A resource indicator to send instead of the server's own, or `omit` for none."""
    issuer: str = ""
    """The one issuer that is trusted, whatever the server names."""
    allow: tuple[str, ...] = ()
    """Of the egress policy."""

    def key(self, principal: str | None) -> GrantKey:
        return GrantKey(self.server, self.url, principal)


# -- scopes -------------------------------------------------------------------------------------


def union(*several: tuple[str, ...]) -> tuple[str, ...]:
    """Each scope once, in order, and no more than a login can reasonably ask for."""
    return tuple(dict.fromkeys(scope for scopes in several for scope in scopes))[:MAX_SCOPES]


def select_scopes(
    configured: tuple[str, ...],
    challenge: BearerChallenge | None,
    resource: ResourceMetadata | None,
    server: ServerMetadata,
    previous: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The scopes to ask for: the challenge's, else the resource's, else none.

    The user's own are always among them, and what earlier logins asked for. With scopes of the
    user's own, the list of all that the resource knows is left out.
    """
    wanted = challenge.scopes if challenge else ()
    if not wanted and not configured and resource is not None:
        wanted = resource.scopes
    selected = union(configured, previous, wanted)
    offers_refresh = not server.grant_types or "refresh_token" in server.grant_types
    if selected and OFFLINE in server.scopes and offers_refresh:
        selected = union(selected, (OFFLINE,))
    return selected


def step_up(grant: Grant, challenge: BearerChallenge) -> tuple[str, ...]:
    """The scopes of a login that satisfies the challenge as well. Raises `OAuthError`."""
    known = union(grant.requested, grant.scopes)
    wanted = union(known, challenge.scopes)
    if grant.step_ups >= MAX_STEP_UPS:
        raise OAuthError(AUTHORIZATION, f"{MAX_STEP_UPS} logins for more scopes were not enough")
    if challenge.scopes and set(challenge.scopes) <= set(grant.scopes or grant.requested):
        said = " ".join(challenge.scopes)
        problem = f"the server refuses a token with the scopes that it asks for ({shown(said)})"
        raise OAuthError(AUTHORIZATION, problem, remedy="Ask its operator what is missing")
    return wanted


# -- authorization request and response -----------------------------------------------------------


def new_verifier() -> str:
    return secrets.token_urlsafe(48)


def challenge_of(verifier: str) -> str:
    """PKCE with S256 (RFC 7636)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def authorization_url(
    endpoint: str,
    client: OAuthClient,
    *,
    redirect_uri: str,
    state: str,
    verifier: str,
    scopes: tuple[str, ...],
    resource: str,
) -> str:
    """Where the person's browser goes. A query that the endpoint has is kept."""
    asked = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": "S256",
    }
    if scopes:
        asked["scope"] = " ".join(scopes)
    if resource:
        asked["resource"] = resource
    if OFFLINE in scopes:
        asked["prompt"] = "consent"  # OpenID Connect gives no refresh token without it
    parts = urlsplit(endpoint)
    kept = [(name, value) for name, value in parse_qsl(parts.query, True) if name not in asked]
    return urlunsplit(parts._replace(query=urlencode([*kept, *asked.items()])))


@dataclass(frozen=True, slots=True)
class Callback:
    """What the browser brought back. Each field once, or the callback is refused."""

    state: str = field(repr=False)
    code: str = field(default="", repr=False)
    iss: str | None = None
    error: str = ""
    description: str = ""


def read_callback(url: str) -> Callback:
    """The parameters of a callback URL, or of its query alone."""
    query = urlsplit(url).query if "?" in url else url
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        found = {}
    names = ("state", "code", "iss", "error", "error_description")
    if any(len(found.get(name, [])) > 1 for name in names):
        raise OAuthError(AUTHORIZATION, "the callback holds a parameter twice")
    values = {name: found[name][0] for name in names if name in found}
    if not values.get("state"):
        remedy = "Paste the whole address that the browser was sent to"
        raise OAuthError(AUTHORIZATION, "the callback holds no state", remedy=remedy)
    return Callback(
        state=values["state"],
        code=values.get("code", ""),
        iss=values.get("iss"),
        error=values.get("error", ""),
        description=values.get("error_description", ""),
    )


def check_callback(callback: Callback, issuer: str, sends_iss: bool) -> str:
    """The code, if the callback comes from the issuer that was asked. Raises `OAuthError`.

    The issuer is compared as it is (RFC 9207), and first: what another issuer says is not shown.
    """
    if callback.iss is None and sends_iss:
        raise OAuthError(AUTHORIZATION, "the callback does not say from which issuer it comes")
    if callback.iss is not None and callback.iss != issuer:
        raise OAuthError(AUTHORIZATION, f"the callback comes from another issuer than {issuer}")
    if callback.error:
        said = shown(callback.description)
        problem = f"{shown(callback.error)}: {said}" if said else shown(callback.error)
        raise OAuthError(AUTHORIZATION, problem, error=shown(callback.error))
    if not callback.code:
        raise OAuthError(AUTHORIZATION, "the callback holds no code")
    return callback.code


def resource_for(settings: OAuthSettings, metadata: ResourceMetadata | None) -> str:
    """The resource indicator to send. Empty: none."""
    if settings.resource:
        return "" if settings.resource == "omit" else settings.resource
    named = metadata.resource if metadata is not None else ""
    return named or canonical_resource(settings.url)


# -- the authorizer -----------------------------------------------------------------------------


class OAuth:
    """The authorizer of one MCP server, for any number of principals."""

    def __init__(self, settings: OAuthSettings, storage: Storage, *, fetch: Fetch) -> None:
        self.settings, self.fetch = settings, fetch
        self.policy = policy_for(settings.url, settings.allow)
        self.grants = Grants(storage, fetch=fetch, settings=settings.client, policy=self.policy)
        self._origin = _origin(settings.url)

    def __repr__(self) -> str:
        return f"OAuth({self.settings.server!r})"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        """The token of the request's principal; nothing if it has never logged in."""
        key = self.settings.key(request.principal)
        if request.url != self.settings.url and _origin(request.url) != self._origin:
            raise OAuthError(AUTHORIZATION, "a token is not sent to another origin than its own")
        grant = self.grants.cached(key) or await self._usable(key)
        return {} if grant is None else {"authorization": f"Bearer {grant.access_token}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        """Renew what was refused. True: send again. Raises `LoginNeeded` if a person has to."""
        said = bearer_challenge(challenge.www_authenticate)
        key = self.settings.key(request.principal)
        sent = challenge.sent.get("authorization", "").removeprefix("Bearer ")
        if challenge.status == 401:
            return await self._refused(key, sent, said)
        if challenge.status == 403 and said.error == "insufficient_scope":
            return await self._insufficient(key, sent, said)
        return False

    async def aclose(self) -> None:
        await self.grants.aclose()

    async def _usable(self, key: GrantKey, rejected: str = "") -> Grant | None:
        try:
            return await self.grants.usable(key, rejected)
        except OAuthError as error:
            if error.error not in ENDS:
                raise
            ended = error.problem
        raise self._login_needed(key, f"the login has ended: {ended}")

    async def _refused(self, key: GrantKey, sent: str, said: BearerChallenge) -> bool:
        grant = await self.grants.stored(key)
        why = ": ".join(part for part in (said.error, said.description) if part)
        if grant is None:
            raise self._login_needed(key, why or "nobody has logged in yet", said.scopes)
        age = time.time() - grant.obtained_at
        if grant.access_token == sent and grant.renewals and age < _youth(grant):
            young = f"the server refuses a token that was refreshed {age:.0f} s ago"
            raise self._login_needed(key, f"{young} ({why or 'it gives no reason'})")
        return await self._usable(key, rejected=sent) is not None

    async def _insufficient(self, key: GrantKey, sent: str, said: BearerChallenge) -> bool:
        grant = await self.grants.stored(key)
        if grant is None:
            raise self._login_needed(key, "the server wants scopes", said.scopes)
        if sent and grant.access_token != sent:
            return await self._usable(key, rejected=sent) is not None
        wanted = step_up(grant, said)
        if set(wanted) - set(grant.wanted):
            await self.grants.update(grant, wanted=wanted)
        reason = said.description or f"more scopes are needed: {shown(' '.join(said.scopes))}"
        raise self._login_needed(key, reason, wanted)

    def _login_needed(
        self, key: GrantKey, reason: str, scopes: tuple[str, ...] = ()
    ) -> LoginNeeded:
        server, principal = key.server, key.principal
        return LoginNeeded(reason, server=server, principal=principal, scopes=scopes)


def _youth(grant: Grant) -> float:
    if grant.expires_at is None:
        return YOUTH
    return min(YOUTH, YOUTH_SHARE * (grant.expires_at - grant.obtained_at))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default
