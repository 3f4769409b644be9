"""Login in two halves, and by device code; logout.

`begin_login` finds the authorization server, chooses a client and returns the URL for a browser.
`complete_login` takes the callback, in any process that shares the storage: all that it needs is
stored under the login's `state`, for ten minutes, and taken from there once.
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
from typing import Any, Final
from urllib.parse import urlsplit

from toolkeep._rules.egress import EgressPolicy
from toolkeep._wire.egress import FetchFailed
from toolkeep.auth.authorizer import HEADER, OAuthError
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
from toolkeep.auth.grants import (
    Grant,
    GrantKey,
    Tokens,
    forget_client,
    load_client,
    post_form,
    read_tokens,
    save_client,
    token_error,
)
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
from toolkeep.auth.registration import DEVICE_GRANT, OAuthClient, known_client, register
from toolkeep.auth.storage import Storage
from toolkeep.config.urls import is_loopback

__all__ = [
    "DeviceLogin",
    "LoginRequest",
    "begin_device_login",
    "begin_login",
    "complete_device_login",
    "complete_login",
    "logout",
    "server_of",
]

LIFETIME = 600.0
"""Seconds between the two halves of a login."""
TOKEN, DEVICE = "code exchange", "device authorization"
SLOWER = 5.0
"""Seconds that `slow_down` adds between two polls (RFC 8628)."""
LONGEST_INTERVAL = 60.0
ANYONE: Final = object()
_PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A login that has begun. Open `url` in the person's browser before `expires`."""

    url: str
    state: str = field(repr=False)
    expires: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A login by code: show the person `verification_uri` and `user_code`."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires: float
    interval: float
    device_code: str = field(repr=False)
    pending: _Pending = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """What the second half of a login needs."""

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


# -- first half ---------------------------------------------------------------------------------


async def begin_login(
    oauth: OAuth,
    principal: str | None = None,
    *,
    redirect_uri: str,
    scopes: tuple[str, ...] = (),
) -> LoginRequest:
    """Prepare a login and say which URL to open; `scopes` are asked for in addition.

    Raises `OAuthError`.
    """
    _check_redirect(redirect_uri)
    found, previous, wanted = await _prepared(oauth, principal, scopes)
    if not found.server.authorization_endpoint:
        raise OAuthError(AUTHORIZATION, f"{found.server.issuer} names no authorization endpoint")
    require_pkce(found.server)
    check_browser_url(found.server.authorization_endpoint, found.policy)
    client = await _client(oauth, found, redirect_uri, wanted)
    pending = _pending(oauth, principal, found, client, wanted, previous, redirect_uri)
    state = secrets.token_urlsafe(32)
    storage = oauth.grants.storage
    await storage.put(_login_key(state), pending.to_bytes(), ttl=LIFETIME)
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
    """A code must not cross a network in the clear."""
    parts = urlsplit(uri)
    if not parts.scheme or (parts.scheme == "http" and not is_loopback(parts.hostname or "")):
        problem = "the redirect URI is neither https nor on this machine"
        raise OAuthError(AUTHORIZATION, problem, remedy="Use https, or http://127.0.0.1")


async def _prepared(
    oauth: OAuth, principal: str | None, scopes: tuple[str, ...]
) -> tuple[Discovered, Grant | None, tuple[str, ...]]:
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
    try:
        previous = await oauth.grants.stored(settings.key(principal))
    except OAuthError:  # it cannot be read, and is about to be replaced
        previous = None
    if previous is not None and previous.client.issuer != found.server.issuer:
        previous = None
    before = () if previous is None else (*previous.requested, *previous.wanted)
    mine = (*settings.scopes, *scopes)
    wanted = select_scopes(mine, challenge, found.resource, found.server, before)
    return found, previous, wanted


async def _probe(oauth: OAuth, policy: EgressPolicy) -> tuple[BearerChallenge, EgressPolicy]:
    """Ask the MCP server, without credentials, what it wants."""
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    url = oauth.settings.url
    try:
        answer = await oauth.fetch("POST", url, policy=policy, headers=headers, body=_PROBE)
    except FetchFailed as failed:
        raise OAuthError("the MCP server", str(failed), transient=True) from None
    said = answer.headers.get(HEADER, "") if answer.status in (401, 403) else ""
    return bearer_challenge(said), policy.reached(answer.peer)


async def _client(
    oauth: OAuth, found: Discovered, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """The client for this issuer: known, registered before, or registered now."""
    settings, storage = oauth.settings.client, oauth.grants.storage
    client = known_client(found.server, settings)
    if client is not None:
        if client.kind == "configured" and not oauth.settings.issuer:
            await _check_binding(storage, oauth.settings.url, client)
        return client
    client = await load_client(storage, found.server.issuer, redirect_uri, scopes)
    if client is None:
        client = await register(
            *(found.server, settings, redirect_uri, scopes), fetch=oauth.fetch, policy=found.policy
        )
        await save_client(storage, client)
    return client


async def _check_binding(storage: Storage, url: str, client: OAuthClient) -> None:
    """A configured client belongs to the issuer of its first login: its secret goes nowhere
    else because the MCP server now names another."""
    digest = hashlib.sha256(json.dumps([url, client.client_id]).encode()).hexdigest()
    key, issuer = f"toolkeep:issuer:{digest}", client.issuer.encode()
    if await storage.put(key, issuer, if_version=0) is not None:
        return
    bound = await storage.get(key)
    if bound is not None and bound.value != issuer:
        raise OAuthError(
            "client registration",
            f"the client belongs to {shown(bound.value.decode())}, and the MCP server now names "
            f"{shown(client.issuer)}",
            remedy="If that is right, set 'issuer' to it and check 'client_id'",
        )


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


# -- second half --------------------------------------------------------------------------------


async def server_of(storage: Storage, callback_url: str) -> tuple[str, str | None]:
    """The server and the principal of the login that a callback belongs to."""
    pending, _ = await _taken(storage, read_callback(callback_url).state)
    return pending.key.server, pending.key.principal


async def complete_login(oauth: OAuth, callback_url: str, *, principal: object = ANYONE) -> Grant:
    """Redeem the code of a callback and store the grant. Raises `OAuthError`.

    In a web application pass the `principal` of the session that brought the callback: only who
    began a login may complete it, or one user could be given the account of another.
    """
    callback = read_callback(callback_url)
    storage = oauth.grants.storage
    pending, version = await _taken(storage, callback.state)
    if pending.key != oauth.settings.key(pending.key.principal):
        raise OAuthError(AUTHORIZATION, "the callback belongs to a login at another server")
    if principal is not ANYONE and principal != pending.key.principal:
        raise OAuthError(AUTHORIZATION, "the callback belongs to a login of another principal")
    if not await storage.delete(_login_key(callback.state), if_version=version):
        raise _unknown_login()
    code = check_callback(callback, pending.client.issuer, pending.sends_iss)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": pending.redirect_uri,
        "code_verifier": pending.verifier,
    }
    return await _saved(oauth, pending, await _tokens(oauth, TOKEN, pending, form))


async def _taken(storage: Storage, state: str) -> tuple[_Pending, int]:
    entry = await storage.get(_login_key(state))
    if entry is None:
        raise _unknown_login()
    return _Pending.from_bytes(entry.value), entry.version


def _unknown_login() -> OAuthError:
    return OAuthError(
        AUTHORIZATION,
        "the callback belongs to no login that is under way",
        remedy="Begin again: a login may be completed once, within ten minutes",
    )


def _login_key(state: str) -> str:
    return f"toolkeep:login:{hashlib.sha256(state.encode()).hexdigest()}"


async def _tokens(oauth: OAuth, step: str, pending: _Pending, form: Mapping[str, str]) -> Tokens:
    asked = {**form, "resource": pending.resource} if pending.resource else dict(form)
    now, client = time.time(), oauth.settings.client
    policy = _policy(oauth, pending)
    url = pending.token_endpoint
    try:
        answer = await post_form(
            *(step, url, asked, pending.client, client), fetch=oauth.fetch, policy=policy, now=now
        )
        return read_tokens(step, answer, now)
    except OAuthError as error:
        if error.error == "invalid_client":
            await forget_client(oauth.grants.storage, pending.client)
        raise


def _policy(oauth: OAuth, pending: _Pending) -> EgressPolicy:
    return _grant(pending, Tokens("-", "", None, None)).policy(oauth.policy)


async def _saved(oauth: OAuth, pending: _Pending, tokens: Tokens) -> Grant:
    grant = _grant(pending, tokens)
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
    found, previous, wanted = await _prepared(oauth, principal, scopes)
    url = found.server.device_authorization_endpoint
    if not url:
        problem = f"{found.server.issuer} offers no login by device code"
        raise OAuthError(DEVICE, problem, remedy="Log in with a browser")
    client = await _client(oauth, found, "", wanted)
    pending = _pending(oauth, principal, found, client, wanted, previous)
    form = {"scope": " ".join(wanted)} if wanted else {}
    if pending.resource:
        form["resource"] = pending.resource
    now, settings = time.time(), oauth.settings.client
    answer = await post_form(
        *(DEVICE, url, form, client, settings), fetch=oauth.fetch, policy=found.policy, now=now
    )
    document = json_object(answer.body)
    if answer.status != 200 or document is None or "error" in document:
        raise token_error(DEVICE, answer, document or {})
    return _device(document, pending, now)


def _device(document: Mapping[str, Any], pending: _Pending, now: float) -> DeviceLogin:
    def text(name: str) -> str:
        value = document.get(name)
        return value if isinstance(value, str) else ""

    def number(name: str, default: float) -> float:
        value = document.get(name)
        return float(value) if isinstance(value, int | float) and value > 0 else default

    if not (text("device_code") and text("user_code") and text("verification_uri")):
        raise OAuthError(DEVICE, "the answer holds no code for the person")
    for name in ("verification_uri", "verification_uri_complete"):
        if text(name):
            check_url(text(name), name)
    return DeviceLogin(
        user_code=shown(text("user_code")),
        verification_uri=text("verification_uri"),
        verification_uri_complete=text("verification_uri_complete"),
        expires=now + min(number("expires_in", LIFETIME), 3600.0),
        interval=min(number("interval", SLOWER), LONGEST_INTERVAL),
        device_code=text("device_code"),
        pending=pending,
    )


async def complete_device_login(oauth: OAuth, login: DeviceLogin) -> Grant:
    """Wait until the person has entered the code, or it has expired. Raises `OAuthError`."""
    form = {"grant_type": DEVICE_GRANT, "device_code": login.device_code}
    interval = login.interval
    while time.time() < login.expires:
        await asyncio.sleep(interval)
        try:
            return await _saved(
                oauth, login.pending, await _tokens(oauth, DEVICE, login.pending, form)
            )
        except OAuthError as error:
            if error.error == "slow_down":
                interval = min(LONGEST_INTERVAL, interval + SLOWER)
            elif error.error != "authorization_pending" and not error.transient:
                raise
    raise OAuthError(DEVICE, "the code has expired", remedy="Begin again")


# -- logout -------------------------------------------------------------------------------------


async def logout(oauth: OAuth, principal: str | None = None) -> bool:
    """Forget a login and revoke its tokens. False: it is forgotten, and could not be revoked."""
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
            revoked = await _revoked(oauth, grant, url, token, kind) and revoked
    return revoked


async def _revocation_endpoint(oauth: OAuth, grant: Grant) -> str:
    """Of an issuer that has begun to offer it since."""
    try:
        policy = grant.policy(oauth.policy)
        found = await server_metadata(grant.client.issuer, oauth.fetch, policy)
    except OAuthError:
        return ""
    return found.revocation_endpoint


async def _revoked(oauth: OAuth, grant: Grant, url: str, token: str, kind: str) -> bool:
    form = {"token": token, "token_type_hint": kind}
    settings, policy = oauth.settings.client, grant.policy(oauth.policy)
    try:
        answer = await post_form(
            *("revocation", url, form, grant.client, settings),
            fetch=oauth.fetch,
            policy=policy,
            now=time.time(),
        )
    except OAuthError:
        return False
    return answer.status == 200
