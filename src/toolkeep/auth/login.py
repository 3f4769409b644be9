"""Login with a browser or a device code, and logout.

`begin_login` discovers the authorization server, chooses a client and returns the URL to open.
`complete_login` takes the callback, in any process that shares the storage: everything it needs is
stored under the login's `state` for ten minutes, and can be used once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import FetchFailed
from toolkeep.auth.authorizer import ANY_PRINCIPAL, HEADER, LoginRequest, OAuthError
from toolkeep.auth.discovery import (
    BearerChallenge,
    Discovered,
    bearer_challenge,
    check_browser_url,
    check_url,
    discover,
    json_object,
    require_pkce,
    server_metadata,
    shown,
)
from toolkeep.auth.grants import Grant, GrantKey
from toolkeep.auth.oauth import (
    AUTHORIZATION,
    OAuth,
    authorization_url,
    check_callback,
    new_verifier,
    read_callback,
    resource_for,
    select_scopes,
)
from toolkeep.auth.registration import (
    DEVICE_GRANT,
    OAuthClient,
    bind_client,
    forget_client,
    known_client,
    load_client,
    register,
    save_client,
)
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.tokens import Tokens, post_form, read_tokens, token_error
from toolkeep.config.fields import is_loopback
from toolkeep.state import Store

__all__ = [
    "DeviceLogin",
    "begin_device_login",
    "begin_login",
    "complete_device_login",
    "complete_login",
    "logout",
    "server_of",
]

LIFETIME = 600.0
"""Seconds in which a login must be completed."""
TOKEN, DEVICE = "code exchange", "device authorization"
"""The steps of a login, as error messages name them."""
MIN_POLL_INTERVAL, POLL_INTERVAL, MAX_POLL_INTERVAL = 1.0, 5.0, 60.0
"""Seconds between two polls for a device login. `slow_down` adds the usual ones (RFC 8628)."""
_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A login by device code: show the user `verification_uri` and `user_code`."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires: float
    interval: float
    device_code: str = field(repr=False)
    pending: _Pending = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """The stored state of a login that has begun: what completing it needs."""

    key: GrantKey
    client: OAuthClient
    token_endpoint: str
    revocation_endpoint: str
    sends_iss: bool
    redirect_uri: str
    verifier: str = field(repr=False)
    scopes: tuple[str, ...]
    resource: str
    ranges: tuple[str, ...]
    step_ups: int

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> _Pending:
        found: dict[str, Any] = json.loads(stored)
        key, client = GrantKey(**found.pop("key")), OAuthClient.from_json(found.pop("client"))
        found |= {name: tuple(found[name]) for name in ("scopes", "ranges")}
        return cls(key=key, client=client, **found)


# -- begin --------------------------------------------------------------------------------------


async def begin_login(
    oauth: OAuth,
    principal: str | None = None,
    *,
    redirect_uri: str,
    scopes: tuple[str, ...] = (),
) -> LoginRequest:
    """Prepare a login and return the URL to open. `scopes` are requested in addition.

    Raises `OAuthError`.
    """
    _check_redirect(redirect_uri)
    store = await oauth.grants.storage.open(to_log_in=True)
    found, previous, wanted = await _prepare(oauth, principal, scopes)
    if not found.server.authorization_endpoint:
        raise OAuthError(AUTHORIZATION, f"{found.server.issuer} has no authorization endpoint")
    require_pkce(found.server)
    where = found.server.authorization_endpoint
    check_browser_url(where, found.policy, "the authorization endpoint")
    client = await _client(oauth, found, redirect_uri, wanted)
    pending = _pending(oauth, principal, found, client, wanted, previous, redirect_uri)
    state = secrets.token_urlsafe(32)
    await store.put(_login_key(state), pending.to_bytes(), ttl=LIFETIME)
    url = authorization_url(
        found.server.authorization_endpoint,
        client,
        redirect_uri=redirect_uri,
        state=state,
        verifier=pending.verifier,
        scopes=wanted,
        resource=pending.resource,
    )
    return LoginRequest(url, state, time.time() + LIFETIME)


def _check_redirect(uri: str) -> None:
    """Reject plain http to another host: it would expose the authorization code."""
    parts = urlsplit(uri)
    if not parts.scheme or (parts.scheme == "http" and not is_loopback(parts.hostname or "")):
        problem = "the redirect URI must use https or a loopback address"
        raise OAuthError(AUTHORIZATION, problem, remedy="Use https, or http://127.0.0.1")


async def _prepare(
    oauth: OAuth, principal: str | None, scopes: tuple[str, ...]
) -> tuple[Discovered, Grant | None, tuple[str, ...]]:
    settings = oauth.settings
    found, challenge = await find_authorization_server(oauth)
    try:
        previous = await oauth.grants.stored(settings.key(principal))
    except OAuthError:  # unreadable, and about to be replaced
        previous = None
    if previous is not None and previous.client.issuer != found.server.issuer:
        previous = None
    earlier = () if previous is None else (*previous.requested, *previous.wanted)
    configured = (*settings.scopes, *scopes)
    wanted = select_scopes(configured, challenge, found.resource, found.server, earlier)
    return found, previous, wanted


async def find_authorization_server(oauth: OAuth) -> tuple[Discovered, BearerChallenge]:
    """The authorization server, and what the MCP server asks for. Raises `OAuthError`."""
    settings = oauth.settings
    challenge, policy = await _probe(oauth, oauth.policy)
    found = await discover(
        settings.url,
        fetch=oauth.fetch,
        policy=policy,
        challenge=challenge,
        issuer=settings.issuer,
        resource=settings.resource,
    )
    return found, challenge


async def _probe(oauth: OAuth, policy: EgressPolicy) -> tuple[BearerChallenge, EgressPolicy]:
    """Send a request without credentials, to get the MCP server's challenge."""
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    url = oauth.settings.url
    try:
        response = await oauth.fetch("POST", url, policy=policy, headers=headers, body=_PING)
    except FetchFailed as failed:
        raise OAuthError("the MCP server", str(failed), transient=True) from None
    header = response.headers.get(HEADER, "") if response.status in (401, 403) else ""
    return bearer_challenge(header), policy.reached(response.peer)


async def _client(
    oauth: OAuth, found: Discovered, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """The client for this issuer: configured, registered earlier, or registered now."""
    settings, store = oauth.settings.client, await oauth.grants.storage.open()
    client = known_client(found.server, settings)
    if client is not None:
        if client.kind == "configured" and not oauth.settings.issuer:
            await bind_client(store, oauth.settings.url, client)
        return client
    client = await load_client(store, found.server.issuer, redirect_uri, scopes)
    if client is None:
        client = await register(
            *(found.server, settings, redirect_uri, scopes), fetch=oauth.fetch, policy=found.policy
        )
        await save_client(store, client)
    return client


def _pending(
    oauth: OAuth,
    principal: str | None,
    found: Discovered,
    client: OAuthClient,
    scopes: tuple[str, ...],
    previous: Grant | None,
    redirect_uri: str = "",
) -> _Pending:
    stepping_up = previous is not None and bool(previous.wanted)
    return _Pending(
        key=oauth.settings.key(principal),
        client=client,
        token_endpoint=found.server.token_endpoint,
        revocation_endpoint=found.server.revocation_endpoint,
        sends_iss=found.server.sends_iss,
        redirect_uri=redirect_uri,
        verifier=new_verifier(),
        scopes=scopes,
        resource=resource_for(oauth.settings, found.resource),
        ranges=tuple(sorted(one.value for one in found.policy.ranges)),
        step_ups=previous.step_ups + 1 if previous is not None and stepping_up else 0,
    )


# -- complete -----------------------------------------------------------------------------------


async def server_of(storage: LoginStorage, callback_url: str) -> tuple[str, str | None]:
    """The server and the principal whose login a callback completes."""
    pending, _ = await _load_pending(await storage.open(), read_callback(callback_url).state)
    return pending.key.server, pending.key.principal


async def complete_login(
    oauth: OAuth, callback_url: str, *, principal: object = ANY_PRINCIPAL
) -> Grant:
    """Exchange the code of a callback for tokens and store the grant. Raises `OAuthError`.

    In a web application, pass the `principal` of the web session that received the callback. Then
    only the user who began a login can complete it; otherwise an attacker could log a user in to
    the attacker's account.
    """
    callback = read_callback(callback_url)
    store = await oauth.grants.storage.open()
    pending, version = await _load_pending(store, callback.state)
    if pending.key != oauth.settings.key(pending.key.principal):
        raise OAuthError(AUTHORIZATION, "the callback belongs to a login at another server")
    if principal is not ANY_PRINCIPAL and principal != pending.key.principal:
        raise OAuthError(AUTHORIZATION, "the callback belongs to a login of another principal")
    if not await store.delete(_login_key(callback.state), if_version=version):
        raise _unknown_login()
    code = check_callback(callback, pending.client.issuer, pending.sends_iss)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": pending.redirect_uri,
        "code_verifier": pending.verifier,
    }
    return await oauth.grants.run_to_end(_redeem(oauth, TOKEN, pending, form))


async def _load_pending(store: Store, state: str) -> tuple[_Pending, int]:
    entry = await store.get(_login_key(state))
    if entry is None:
        raise _unknown_login()
    return _Pending.from_bytes(entry.value), entry.version


def _unknown_login() -> OAuthError:
    return OAuthError(
        AUTHORIZATION,
        "no login is waiting for this callback",
        remedy="Begin again: a login can be completed once, within ten minutes",
    )


def _login_key(state: str) -> str:
    return f"toolkeep:login:{hashlib.sha256(state.encode()).hexdigest()}"


async def _tokens(oauth: OAuth, step: str, pending: _Pending, form: Mapping[str, str]) -> Tokens:
    fields = {**form, "resource": pending.resource} if pending.resource else dict(form)
    now, client = time.time(), oauth.settings.client
    policy = _policy(oauth, pending)
    url = pending.token_endpoint
    try:
        response = await post_form(
            *(step, url, fields, pending.client, client), fetch=oauth.fetch, policy=policy, now=now
        )
        return read_tokens(step, response, now)
    except OAuthError as error:
        if error.error == "invalid_client":
            await forget_client(await oauth.grants.storage.open(), pending.client)
        raise


def _policy(oauth: OAuth, pending: _Pending) -> EgressPolicy:
    return _grant(pending, Tokens("-", "", None, None)).policy(oauth.policy)


async def _redeem(oauth: OAuth, step: str, pending: _Pending, form: Mapping[str, str]) -> Grant:
    grant = _grant(pending, await _tokens(oauth, step, pending, form))
    await oauth.grants.save(grant)
    return grant


def _grant(pending: _Pending, tokens: Tokens) -> Grant:
    return Grant(
        key=pending.key,
        client=pending.client,
        token_endpoint=pending.token_endpoint,
        revocation_endpoint=pending.revocation_endpoint,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token,
        expires_at=tokens.expires_at,
        obtained_at=time.time(),
        requested=pending.scopes,
        scopes=pending.scopes if tokens.scopes is None else tokens.scopes,
        resource=pending.resource,
        ranges=pending.ranges,
        step_ups=pending.step_ups,
    )


# -- device code --------------------------------------------------------------------------------


async def begin_device_login(
    oauth: OAuth, principal: str | None = None, *, scopes: tuple[str, ...] = ()
) -> DeviceLogin:
    """Begin a login on another device (RFC 8628). Raises `OAuthError`."""
    await oauth.grants.storage.open(to_log_in=True)
    found, previous, wanted = await _prepare(oauth, principal, scopes)
    url = found.server.device_authorization_endpoint
    if not url:
        problem = f"{found.server.issuer} does not support login by device code"
        raise OAuthError(DEVICE, problem, remedy="Log in with a browser")
    client = await _client(oauth, found, "", wanted)
    pending = _pending(oauth, principal, found, client, wanted, previous)
    form = {"scope": " ".join(wanted)} if wanted else {}
    if pending.resource:
        form["resource"] = pending.resource
    now, settings = time.time(), oauth.settings.client
    response = await post_form(
        *(DEVICE, url, form, client, settings), fetch=oauth.fetch, policy=found.policy, now=now
    )
    document = json_object(response.body)
    if response.status != 200 or document is None or "error" in document:
        raise token_error(DEVICE, response, document or {})
    return _read_device_login(document, pending, now, found.policy)


def _read_device_login(
    document: Mapping[str, Any], pending: _Pending, now: float, policy: EgressPolicy
) -> DeviceLogin:
    def text(name: str) -> str:
        value = document.get(name)
        return value if isinstance(value, str) else ""

    def number(name: str, default: float) -> float:
        value = document.get(name)
        return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else default

    if not (text("device_code") and text("user_code") and text("verification_uri")):
        raise OAuthError(DEVICE, "the response holds no code to show to the user")
    for name in ("verification_uri", "verification_uri_complete"):
        if text(name):
            check_url(text(name), name)
            check_browser_url(text(name), policy, "the verification address")
    return DeviceLogin(
        user_code=shown(text("user_code")),
        verification_uri=text("verification_uri"),
        verification_uri_complete=text("verification_uri_complete"),
        expires=now + min(number("expires_in", LIFETIME), 3600.0),
        interval=max(MIN_POLL_INTERVAL, min(number("interval", POLL_INTERVAL), MAX_POLL_INTERVAL)),
        device_code=text("device_code"),
        pending=pending,
    )


async def complete_device_login(oauth: OAuth, login: DeviceLogin) -> Grant:
    """Wait until the user has entered the code, or it has expired. Raises `OAuthError`."""
    form = {"grant_type": DEVICE_GRANT, "device_code": login.device_code}
    interval = login.interval
    while time.time() < login.expires:
        await asyncio.sleep(interval)
        try:
            return await oauth.grants.run_to_end(_redeem(oauth, DEVICE, login.pending, form))
        except OAuthError as error:
            if error.error == "slow_down":
                interval = min(MAX_POLL_INTERVAL, interval + POLL_INTERVAL)
            elif error.error != "authorization_pending" and not error.transient:
                raise
    raise OAuthError(DEVICE, "the code has expired", remedy="Begin again")


# -- logout -------------------------------------------------------------------------------------


async def logout(oauth: OAuth, principal: str | None = None) -> bool:
    """Delete a login and revoke its tokens. False: deleted, but not (all) revoked."""
    try:
        grant = await oauth.grants.remove(oauth.settings.key(principal))
    except OAuthError:
        return False
    if grant is None:
        return True
    url = grant.revocation_endpoint or await _revocation_endpoint(oauth, grant)
    if not url:
        return False
    revoked = True
    for kind in ("refresh_token", "access_token"):
        token = getattr(grant, kind)
        if token:
            revoked = await _revoke(oauth, grant, url, token, kind) and revoked
    return revoked


async def _revocation_endpoint(oauth: OAuth, grant: Grant) -> str:
    """The issuer's current revocation endpoint; it may not have had one at login."""
    try:
        policy = grant.policy(oauth.policy)
        found = await server_metadata(grant.client.issuer, oauth.fetch, policy)
    except OAuthError:
        return ""
    return found.revocation_endpoint


async def _revoke(oauth: OAuth, grant: Grant, url: str, token: str, kind: str) -> bool:
    form = {"token": token, "token_type_hint": kind}
    settings, policy = oauth.settings.client, grant.policy(oauth.policy)
    try:
        response = await post_form(
            *("revocation", url, form, grant.client, settings),
            fetch=oauth.fetch,
            policy=policy,
            now=time.time(),
        )
    except OAuthError:
        return False
    return response.status == 200
