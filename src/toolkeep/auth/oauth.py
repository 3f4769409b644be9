"""OAuth for users: the authorization request and its callback, and the `OAuth` authorizer.

The functions build and parse without I/O: scopes, PKCE, the authorization URL, the callback.
`OAuth` adds the token of its principal to each request, refreshes it when needed, and raises
`AuthNeeded` when a user must log in. It opens no browser: see `login`.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import policy_for
from toolkeep.auth.authorizer import AuthRequest, Challenge, OAuthError, login_needed
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
from toolkeep.auth.grants import Grant, GrantKey
from toolkeep.auth.registration import ClientSettings, OAuthClient
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.token_refresh import GrantRefresher
from toolkeep.auth.tokens import GRANT_ENDING_ERRORS
from toolkeep.errors import AuthNeeded

__all__ = ["OAuth", "OAuthSettings"]

AUTHORIZATION = "authorization"
OFFLINE = "offline_access"
MAX_STEP_UPS = 5
"""Logins in a row that the server may demand for more scopes."""
OWN_PARAMETERS = frozenset({"scope", "resource", "request", "request_uri", "response_mode"})
"""Parameters that are ours to send, or not: the endpoint's own query may not add them."""
FRESH, FRESH_SHARE = 5.0, 0.25
"""A token that is rejected within these seconds after a refresh, or this share of its lifetime, is
not refreshed again: it would not help. Servers round short lifetimes, so the share is small."""


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """The user's OAuth configuration for one MCP server."""

    server: str
    url: str
    client: ClientSettings = field(default_factory=ClientSettings)
    scopes: tuple[str, ...] = ()
    resource: str = ""
    """The resource indicator to send instead of the server's own; `omit` sends none."""
    issuer: str = ""
    """The only issuer to trust, whichever the server names."""
    redirect_uri: str = ""
    """The callback URL of a web application."""
    allow: tuple[str, ...] = ()
    """Hosts that the egress policy allows."""

    def key(self, principal: str | None) -> GrantKey:
        return GrantKey(self.server, self.url, principal)

    @property
    def policy(self) -> EgressPolicy:
        """The configuration names the MCP server, and the issuer if it is pinned."""
        return policy_for(self.url, self.issuer, allow=self.allow)


# -- scopes -------------------------------------------------------------------------------------


def union(*several: tuple[str, ...]) -> tuple[str, ...]:
    """Each scope once, in order, at most `MAX_SCOPES`."""
    return tuple(dict.fromkeys(scope for scopes in several for scope in scopes))[:MAX_SCOPES]


def select_scopes(
    configured: tuple[str, ...],
    challenge: BearerChallenge | None,
    resource: ResourceMetadata | None,
    server: ServerMetadata,
    previous: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The scopes to request: those of the challenge, else those of the resource metadata.

    Always includes the configured scopes and those of earlier logins. If scopes are configured,
    those of the resource metadata are ignored.
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
    """The scopes for a new login that also satisfies the challenge. Raises `OAuthError`."""
    known = union(grant.requested, grant.scopes)
    wanted = union(known, challenge.scopes)
    if grant.step_ups >= MAX_STEP_UPS:
        raise OAuthError(AUTHORIZATION, f"{MAX_STEP_UPS} logins for more scopes were not enough")
    if challenge.scopes and set(challenge.scopes) <= set(grant.scopes or grant.requested):
        scopes = shown(" ".join(challenge.scopes))
        problem = f"the server rejects a token that has the scopes it requires ({scopes})"
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
    """The URL for the user's browser. Keeps the query of the endpoint, without parameters that
    decide what is authorized and where the code goes."""
    fields = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": "S256",
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if resource:
        fields["resource"] = resource
    if OFFLINE in scopes:
        fields["prompt"] = "consent"  # without it, OpenID Connect issues no refresh token
    parts = urlsplit(endpoint)
    dropped = OWN_PARAMETERS | fields.keys()
    kept = [(name, value) for name, value in parse_qsl(parts.query, True) if name not in dropped]
    return urlunsplit(parts._replace(query=urlencode([*kept, *fields.items()])))


@dataclass(frozen=True, slots=True)
class Callback:
    """The parameters of a callback."""

    state: str = field(repr=False)
    code: str = field(default="", repr=False)
    iss: str | None = None
    error: str = ""
    description: str = ""


def read_callback(url: str) -> Callback:
    """Parse a callback URL, or its query alone. Raises `OAuthError` for a repeated parameter."""
    query = (url.partition("?")[2] if "?" in url else url).partition("#")[0]
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        found = {}
    names = ("state", "code", "iss", "error", "error_description")
    if any(len(found.get(name, [])) > 1 for name in names):
        raise OAuthError(AUTHORIZATION, "the callback repeats a parameter")
    values = {name: found[name][0] for name in names if name in found}
    if not values.get("state"):
        remedy = "Paste the whole address from the browser"
        raise OAuthError(AUTHORIZATION, "the callback has no state", remedy=remedy)
    return Callback(
        state=values["state"],
        code=values.get("code", ""),
        iss=values.get("iss"),
        error=values.get("error", ""),
        description=values.get("error_description", ""),
    )


def check_callback(callback: Callback, issuer: str, sends_iss: bool) -> str:
    """The code, if the callback comes from the expected issuer. Raises `OAuthError`.

    Compares the issuer first and exactly (RFC 9207): the text of another issuer is not shown.
    """
    if callback.iss is None and sends_iss:
        raise OAuthError(AUTHORIZATION, "the callback does not name its issuer")
    if callback.iss is not None and callback.iss != issuer:
        raise OAuthError(AUTHORIZATION, f"the callback comes from an issuer other than {issuer}")
    if callback.error:
        description = shown(callback.description)
        error = shown(callback.error)
        problem = f"{error}: {description}" if description else error
        raise OAuthError(AUTHORIZATION, problem, error=error)
    if not callback.code:
        raise OAuthError(AUTHORIZATION, "the callback has no code")
    return callback.code


def resource_for(settings: OAuthSettings, metadata: ResourceMetadata | None) -> str:
    """The resource indicator to send; empty for none."""
    if settings.resource:
        return "" if settings.resource == "omit" else settings.resource
    named = metadata.resource if metadata is not None else ""
    return named or canonical_resource(settings.url)


_NOT_READY: tuple[float, Mapping[str, str]] = (0.0, {})

# -- the authorizer -----------------------------------------------------------------------------


class OAuth:
    """The authorizer of one MCP server, for any number of principals. Close it with `aclose`."""

    def __init__(self, settings: OAuthSettings, storage: LoginStorage, *, fetch: Fetch) -> None:
        self.settings, self.fetch = settings, fetch
        self.policy = settings.policy
        self.grants = GrantRefresher(
            storage, fetch=fetch, settings=settings.client, policy=self.policy
        )
        self._origin = _origin(settings.url)
        self._ready: dict[str | None, tuple[float, Mapping[str, str]]] = {}
        """By principal: headers that may be sent again, until when. Most calls need no more."""
        self._changes = -1
        """`Grants.changes` when these headers were made."""
        self.was_used = False
        """Whether it has given a token to a request."""

    def __repr__(self) -> str:
        return f"OAuth({self.settings.server!r})"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        """The token of the request's principal; no header if the principal has no login."""
        until, ready = self._ready.get(request.principal, _NOT_READY)
        is_current = time.time() < until and self._changes == self.grants.changes
        if is_current and request.url == self.settings.url:
            return ready
        return await self._find_headers(request)

    async def _find_headers(self, request: AuthRequest) -> Mapping[str, str]:
        key = self.settings.key(request.principal)
        if request.url != self.settings.url and _origin(request.url) != self._origin:
            raise OAuthError(AUTHORIZATION, "a token is sent only to the origin of its server")
        grant = self.grants.cached(key) or await self._usable(key)
        if grant is None:
            return {}
        self.was_used = True
        if self._changes != self.grants.changes:
            self._changes = self.grants.changes
            self._ready.clear()
        ready = {"authorization": f"Bearer {grant.access_token}"}
        if self.grants.cached(key) is grant:
            self._ready[request.principal] = grant.due_at, ready
        return ready

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        """Refresh a rejected token. True: send again. Raises `AuthNeeded` if that cannot help."""
        bearer = bearer_challenge(challenge.www_authenticate)
        key = self.settings.key(request.principal)
        sent = challenge.sent.get("authorization", "").removeprefix("Bearer ")
        if challenge.status == 401:
            return await self._rejected(key, sent, bearer)
        if challenge.status == 403 and bearer.error == "insufficient_scope":
            return await self._insufficient(key, sent, bearer)
        return False

    async def aclose(self) -> None:
        await self.grants.aclose()

    async def _usable(self, key: GrantKey, rejected: str = "") -> Grant | None:
        try:
            return await self.grants.usable(key, rejected)
        except OAuthError as error:
            if error.error not in GRANT_ENDING_ERRORS:
                raise
            problem = error.problem
        raise self._login_needed(key, f"the login is no longer valid: {problem}")

    async def _rejected(self, key: GrantKey, sent: str, bearer: BearerChallenge) -> bool:
        grant = await self.grants.stored(key)
        why = ": ".join(part for part in (bearer.error, bearer.description) if part)
        if grant is None:
            raise self._login_needed(key, why or "there is no login yet", bearer.scopes)
        age = time.time() - grant.obtained_at
        is_fresh = 0 <= age < _fresh_for(grant)  # below 0: refreshed by a clock that is ahead
        if grant.access_token == sent and grant.renewals and is_fresh:
            problem = f"the server rejects a token that was refreshed {age:.0f} s ago"
            raise self._login_needed(key, f"{problem} ({why or 'no reason given'})")
        return await self._usable(key, rejected=sent) is not None

    async def _insufficient(self, key: GrantKey, sent: str, bearer: BearerChallenge) -> bool:
        grant = await self.grants.stored(key)
        if grant is None:
            raise self._login_needed(key, "the server requires scopes", bearer.scopes)
        if sent and grant.access_token != sent:
            return await self._usable(key, rejected=sent) is not None
        wanted = step_up(grant, bearer)
        if set(wanted) - set(grant.wanted):
            await self.grants.update(grant, wanted=wanted)
        reason = bearer.description or f"more scopes are needed: {shown(' '.join(bearer.scopes))}"
        raise self._login_needed(key, reason, wanted)

    def _login_needed(self, key: GrantKey, reason: str, scopes: tuple[str, ...] = ()) -> AuthNeeded:
        server, principal = key.server, key.principal
        return login_needed(reason, server=server, principal=principal, scopes=scopes)


def _fresh_for(grant: Grant) -> float:
    """Seconds after its refresh in which a token counts as fresh."""
    if grant.expires_at is None:
        return FRESH
    return min(FRESH, FRESH_SHARE * (grant.expires_at - grant.obtained_at))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default
