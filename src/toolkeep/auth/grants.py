"""What a login gives, how it is kept, and how it is renewed.

A `Grant` holds everything that a later process needs: tokens, absolute expiry, issuer, token
endpoint, client, scopes, resource. `Grants` renews it: once for all callers, in a task of its own,
and once for all processes, under a lease in the storage. A caller that is cancelled stops waiting
and nothing else. Only `invalid_grant` and `invalid_client` end a grant.

The refresh token that was sent stays stored until its successor is. A grant is marked before it
is refreshed: a mark that is found there later means that a refresh was interrupted.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolkeep._rules.egress import EgressPolicy, Range
from toolkeep._wire.egress import Answer, EgressRefused, FetchFailed
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import Fetch, json_object, scopes_of, shown
from toolkeep.auth.registration import ClientSettings, OAuthClient, authenticated, with_secret
from toolkeep.auth.storage import Entry, Lease, Storage
from toolkeep.config import redact_url
from toolkeep.errors import ToolkeepError

logger = logging.getLogger("toolkeep.auth")

PREFIX = "toolkeep:grant:"
FORMAT = 1
REFRESH = "refresh"

ENDS = frozenset({"invalid_grant", "invalid_client"})
EARLIEST, EARLY_SHARE = 60.0, 0.1
"""Refresh this many seconds before expiry, and at most this share of the token's life."""
LEASE = 10.0
"""Seconds after which a process that was killed in a refresh is in nobody's way. A living one
renews its lease."""
LEASE_WAIT, CLOSE_WAIT = 60.0, 30.0
"""Seconds to wait for the refresh of another process, and for one's own when closing."""
FIRST_POLL, LONGEST_POLL = 0.02, 0.25
SAVE_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Between refreshes that fail for now."""
MAX_CACHED = 10_000
MAX_TOKEN = 64 * 1024


@dataclass(frozen=True, slots=True)
class GrantKey:
    """Whose login, where. The URL is part of it: a token never follows a name to another host."""

    server: str
    url: str
    principal: str | None

    @property
    def text(self) -> str:
        parts = json.dumps([self.server, self.url, self.principal])
        return f"{PREFIX}{hashlib.sha256(parts.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The answer of a token endpoint. `expires_at` is absolute, by our clock."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_at: float | None
    scopes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    key: GrantKey
    client: OAuthClient
    token_endpoint: str
    revocation_endpoint: str = ""
    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: float | None = None
    obtained_at: float
    requested: tuple[str, ...] = ()
    """The scopes that the last login asked for."""
    scopes: tuple[str, ...] = ()
    """The scopes that were granted."""
    resource: str = ""
    """The resource indicator. Empty: none is sent."""
    ranges: tuple[str, ...] = ()
    """Where the MCP server was reached: its authorization server may be there too."""
    wanted: tuple[str, ...] = ()
    """Scopes that the MCP server has asked for since."""
    step_ups: int = 0
    renewals: int = 0
    refreshing: bool = False

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def is_due(self, now: float) -> bool:
        """Whether to refresh it now: a little before it expires."""
        if self.expires_at is None:
            return False
        early = min(EARLIEST, EARLY_SHARE * max(0.0, self.expires_at - self.obtained_at))
        return now >= self.expires_at - early

    def policy(self, policy: EgressPolicy) -> EgressPolicy:
        kept = {Range(value) for value in self.ranges}
        return replace(policy, ranges=policy.ranges | kept)

    def renewed(self, tokens: Tokens, now: float) -> Grant:
        """What a refresh answers; what it leaves out stays as it was (RFC 6749, section 6)."""
        return replace(
            self,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or self.refresh_token,
            expires_at=tokens.expires_at,
            obtained_at=now,
            scopes=self.scopes if tokens.scopes is None else tokens.scopes,
            renewals=self.renewals + 1,
            refreshing=False,
        )

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Grant:
        try:
            found: dict[str, Any] = json.loads(stored)
            if found.pop("format") != FORMAT:
                raise ValueError
            found |= {name: tuple(found[name]) for name in _LISTS}
            key, client = GrantKey(**found.pop("key")), OAuthClient.from_json(found.pop("client"))
            return cls(key=key, client=client, **found)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # the cause would quote what is stored
        raise OAuthError("storage", "a stored login cannot be read", remedy="Log in again")


_LISTS = ("requested", "scopes", "ranges", "wanted")


# -- token requests -------------------------------------------------------------------------------


def read_tokens(step: str, answer: Answer, sent_at: float) -> Tokens:
    """The tokens of an answer. Raises `OAuthError` with the server's code."""
    document = json_object(answer.body)
    if answer.status != 200 or document is None or "error" in document:
        raise token_error(step, answer, document or {})
    access, refresh = _token(document, "access_token"), _token(document, "refresh_token")
    if not access or (document.get("refresh_token") and not refresh):
        raise OAuthError(step, f"{redact_url(answer.url)} answered no usable token")
    kind = document.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthError(
            step, f"{redact_url(answer.url)} answered a token of type {shown(str(kind))!r}"
        )
    scope = document.get("scope")
    return Tokens(
        access_token=access,
        refresh_token=refresh,
        expires_at=_expiry(document.get("expires_in"), sent_at),
        scopes=scopes_of(scope) if isinstance(scope, str) else None,
    )


def _token(document: Mapping[str, Any], name: str) -> str:
    """It becomes a header: visible ASCII only. Empty: no such token."""
    value = document.get(name)
    if not isinstance(value, str) or len(value) > MAX_TOKEN or " " in value:
        return ""
    return value if value.isascii() and value.isprintable() else ""


def _expiry(seconds: object, sent_at: float) -> float | None:
    if isinstance(seconds, str) and seconds.isdecimal() and len(seconds) < 12:
        seconds = int(seconds)  # some servers send a text
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e11:
        return None
    return sent_at + seconds


def token_error(step: str, answer: Answer, document: Mapping[str, Any]) -> OAuthError:
    error = document.get("error")
    code = shown(error) if isinstance(error, str) else ""
    said = document.get("error_description")
    words = shown(said) if isinstance(said, str) else ""
    detail = ": ".join(part for part in (code, words) if part) or "no reason"
    transient = answer.status >= 500 or answer.status in (408, 429)
    code = code if not transient and code else f"http_{answer.status}"
    problem = f"{redact_url(answer.url)} answered {answer.status} ({detail})"
    return OAuthError(step, problem, error=code, transient=transient)


async def post_form(
    step: str,
    url: str,
    form: Mapping[str, str],
    client: OAuthClient,
    settings: ClientSettings,
    *,
    fetch: Fetch,
    policy: EgressPolicy,
    now: float,
) -> Answer:
    """POST a form as this client. Raises `OAuthError`; one without a code had no answer."""
    headers, body = authenticated(with_secret(client, settings), settings, form, now)
    secrets_sent = [value for name, value in form.items() if name in SECRET_FIELDS]
    try:
        answer = await fetch("POST", url, policy=policy, headers=headers, body=body)
    except FetchFailed as failed:
        refused = isinstance(failed, EgressRefused)
        raise OAuthError(step, str(failed), transient=not refused) from None
    if answer.status != 200 and any(value.encode() in answer.body for value in secrets_sent):
        return replace(answer, body=_without_words(answer.body))
    return answer


SECRET_FIELDS = frozenset({"code", "code_verifier", "refresh_token", "token", "device_code"})


def _without_words(body: bytes) -> bytes:
    """An error that echoes a secret, without its description."""
    error = (json_object(body) or {}).get("error")
    return json.dumps({"error": error} if isinstance(error, str) else {}).encode()


# -- all grants of a storage --------------------------------------------------------------------


class Grants:
    """The grants for one MCP server. Belongs to one event loop at a time; shares its storage."""

    def __init__(
        self,
        storage: Storage,
        *,
        fetch: Fetch,
        settings: ClientSettings,
        policy: EgressPolicy,
        lease: float = LEASE,
        lease_wait: float = LEASE_WAIT,
    ) -> None:
        self.storage, self._lease, self._lease_wait = storage, lease, lease_wait
        self._fetch, self._settings, self._policy = fetch, settings, policy
        self._cached: dict[GrantKey, Grant] = {}
        self._unsaved: dict[GrantKey, tuple[int, Grant]] = {}
        self._renewals: dict[GrantKey, asyncio.Task[Grant | OAuthError | None]] = {}
        self._pauses: dict[GrantKey, tuple[float, float, OAuthError]] = {}

    def cached(self, key: GrantKey) -> Grant | None:
        """The grant, if it is known here and not due. The fast path of every call."""
        grant = self._cached.get(key)
        return grant if grant is not None and not grant.is_due(time.time()) else None

    async def usable(self, key: GrantKey, rejected: str = "") -> Grant | None:
        """A grant to send with, refreshed if it is due or if its token is the `rejected` one.

        None: nobody has logged in. Raises `OAuthError`.
        """
        grant = self.cached(key)
        if grant is not None and grant.access_token != rejected:
            return grant
        outcome: Grant | OAuthError | None = None
        for _ in range(2):  # a renewal under way may not know of the rejection
            outcome = await self._joined(key, rejected)
            if not isinstance(outcome, Grant) or outcome.access_token != rejected:
                break
        if isinstance(outcome, OAuthError):
            known = self._cached.get(key)
            if known is None or known.access_token == rejected or not outcome.transient:
                raise _same(outcome)
            if known.is_expired(time.time()):
                raise _same(outcome)
            return known
        return outcome

    async def save(self, grant: Grant) -> None:
        """Store the grant of a new login, in place of any other."""
        await self.storage.put(grant.key.text, grant.to_bytes())
        self._unsaved.pop(grant.key, None)
        self._pauses.pop(grant.key, None)
        self._remember(grant)

    async def update(self, grant: Grant, **changes: Any) -> None:
        """Change what is stored, unless it has become another grant meanwhile."""
        entry, stored = await self._stored(grant.key)
        if entry is not None and stored is not None and stored.access_token == grant.access_token:
            changed = replace(stored, **changes)
            value = changed.to_bytes()
            if await self.storage.put(grant.key.text, value, if_version=entry.version) is not None:
                self._remember(changed)

    async def remove(self, key: GrantKey) -> Grant | None:
        """Forget a grant; the one that was stored, for its revocation.

        Raises `OAuthError` if that could not be read; it is removed all the same.
        """
        try:
            _, stored = await self._stored(key)
        finally:
            await self.storage.delete(key.text)
            self._forget(key)
        return stored

    async def stored(self, key: GrantKey) -> Grant | None:
        """What is stored now, whatever is cached."""
        _, grant = await self._stored(key)
        if grant is None:
            self._forget(key)
        return grant

    async def all(self) -> AsyncIterator[Grant]:
        """Every grant in the storage that can be read, of all servers."""
        async for text in self.storage.scan(PREFIX):
            entry = await self.storage.get(text)
            if entry is None:
                continue
            try:
                grant = Grant.from_bytes(entry.value)
            except OAuthError:
                logger.warning("a stored login cannot be read")
                continue
            yield grant

    async def aclose(self) -> None:
        """Let refreshes that are under way end: an answer that is not stored is lost."""
        loop = asyncio.get_running_loop()
        running = [task for task in self._renewals.values() if task.get_loop() is loop]
        if running:
            _, late = await asyncio.wait(running, timeout=CLOSE_WAIT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- one renewal for all callers --------------------------------------------------------------

    async def _joined(self, key: GrantKey, rejected: str) -> Grant | OAuthError | None:
        task = self._renewals.get(key)
        loop = asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            # In a context of its own: what a caller has set there is not this task's.
            context = contextvars.Context()
            task = loop.create_task(self._renewal(key, rejected), context=context)
            self._renewals[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: GrantKey, task: asyncio.Task[Any]) -> None:
        if self._renewals.get(key) is task:
            del self._renewals[key]

    async def _renewal(self, key: GrantKey, rejected: str) -> Grant | OAuthError | None:
        """Failures are values: several callers wait for them, or none."""
        try:
            return await self._renewed(key, rejected)
        except OAuthError as error:
            return error
        except ToolkeepError as error:
            return OAuthError("storage", str(error), transient=True)
        except Exception as error:
            logger.exception("a refresh failed unexpectedly")
            return OAuthError(REFRESH, f"unexpected {type(error).__name__}", transient=True)

    async def _renewed(self, key: GrantKey, rejected: str) -> Grant | None:
        give_up, poll = time.monotonic() + self._lease_wait, FIRST_POLL
        while True:
            entry, grant = await self._stored(key)
            if entry is None or grant is None:
                self._forget(key)
                return None
            if (good := self._as_it_is(grant, rejected)) is not None:
                return good
            self._check_pause(key)
            lease = await self.storage.lease(f"{key.text}:refresh", self._lease)
            if lease is not None:
                keeping = asyncio.create_task(self._keep_lease(lease))
                try:
                    renewed = await self._under_lease(key, rejected)
                finally:
                    keeping.cancel()
                    await self._release(lease)
                if renewed is not None:
                    return renewed
            elif time.monotonic() > give_up:
                problem = "another process has been refreshing for too long"
                raise OAuthError(REFRESH, problem, transient=True)
            else:
                await asyncio.sleep(poll)
                poll = min(LONGEST_POLL, poll * 1.5)

    def _as_it_is(self, grant: Grant, rejected: str) -> Grant | None:
        """The stored grant, if it is good enough. Raises if it never will be."""
        now = time.time()
        is_rejected = grant.access_token == rejected
        if not is_rejected and not grant.is_due(now):
            self._remember(grant)
            return grant
        if grant.refresh_token:
            return None
        if is_rejected or grant.is_expired(now):
            self._forget(grant.key)
            problem = "the token has ended, and there is no refresh token"
            raise OAuthError(REFRESH, problem, error="invalid_grant")
        self._remember(grant)
        return grant

    async def _under_lease(self, key: GrantKey, rejected: str) -> Grant | None:
        """Refresh, unless the last holder of the lease has. None: look again."""
        entry, grant = await self._stored(key)
        if entry is None or grant is None or self._as_it_is(grant, rejected) is not None:
            return None
        marked = replace(grant, refreshing=True).to_bytes()
        version = await self.storage.put(key.text, marked, if_version=entry.version)
        if version is None:
            return None
        sent_at = time.time()
        try:
            tokens = await self._ask(grant, sent_at)
        except OAuthError as error:
            return await self._refused(grant, version, error)
        self._pauses.pop(key, None)
        return await self._keep(grant.renewed(tokens, sent_at), version)

    async def _ask(self, grant: Grant, now: float) -> Tokens:
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        if grant.resource:
            form["resource"] = grant.resource
        answer = await post_form(
            *(REFRESH, grant.token_endpoint, form, grant.client, self._settings),
            fetch=self._fetch,
            policy=grant.policy(self._policy),
            now=now,
        )
        return read_tokens(REFRESH, answer, now)

    async def _refused(self, grant: Grant, version: int, error: OAuthError) -> None:
        key = grant.key
        if error.error in ENDS:
            if not await self.storage.delete(key.text, if_version=version):
                return  # a new login has come between
            self._forget(key)
            if error.error == "invalid_client":
                await forget_client(self.storage, grant.client)
            raise _interrupted(error) if grant.refreshing else error
        self._pause(key, error)
        if error.error and not grant.refreshing:
            # It was answered, so the token that was sent is still the one to send.
            await self.storage.put(key.text, grant.to_bytes(), if_version=version)
        raise error

    async def _keep(self, grant: Grant, version: int) -> Grant | None:
        """Store a renewed grant; the old refresh token may be worthless by now."""
        for pause in (*SAVE_PAUSES, 0.0):
            try:
                saved = await self.storage.put(grant.key.text, grant.to_bytes(), if_version=version)
            except ToolkeepError:
                await asyncio.sleep(pause)
                continue
            if saved is not None:
                self._remember(grant)
            return None if saved is None else grant
        logger.warning("a renewed login of %r could not be stored yet", grant.key.server)
        self._unsaved[grant.key] = version, grant
        self._remember(grant)
        return grant

    async def _stored(self, key: GrantKey) -> tuple[Entry | None, Grant | None]:
        entry = await self.storage.get(key.text)
        if entry is None:
            return None, None
        version, unsaved = self._unsaved.pop(key, (0, None))
        if unsaved is not None and version == entry.version:
            saved = await self.storage.put(key.text, unsaved.to_bytes(), if_version=version)
            if saved is not None:
                return Entry(unsaved.to_bytes(), saved), unsaved
            return await self._stored(key)
        return entry, Grant.from_bytes(entry.value)

    async def _keep_lease(self, lease: Lease) -> None:
        """Renew until cancelled, or lost: then compare-and-set decides whose answer counts."""
        kept = True
        while kept:
            await asyncio.sleep(self._lease / 3)
            try:
                kept = await self.storage.renew(lease, self._lease)
            except ToolkeepError:
                logger.debug("a lease could not be renewed")

    async def _release(self, lease: Lease) -> None:
        try:
            await self.storage.release(lease)
        except ToolkeepError:
            logger.debug("a lease is left to expire")

    # -- memory -----------------------------------------------------------------------------------

    def _remember(self, grant: Grant) -> None:
        self._cached.pop(grant.key, None)
        self._cached[grant.key] = grant
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]

    def _forget(self, key: GrantKey) -> None:
        self._cached.pop(key, None)
        self._unsaved.pop(key, None)

    def _pause(self, key: GrantKey, error: OAuthError) -> None:
        _, last, _ = self._pauses.get(key, (0.0, 0.0, error))
        pause = min(LONGEST_PAUSE, last * 2 or FIRST_PAUSE)
        self._pauses[key] = time.monotonic() + pause, pause, error
        if len(self._pauses) > MAX_CACHED:
            del self._pauses[next(iter(self._pauses))]

    def _check_pause(self, key: GrantKey) -> None:
        until, _, error = self._pauses.get(key, (0.0, 0.0, None))
        if error is not None and time.monotonic() < until:
            raise error


# -- registrations --------------------------------------------------------------------------------


def client_key(issuer: str, redirect_uri: str) -> str:
    """Where a dynamic registration is stored."""
    parts = json.dumps([issuer, redirect_uri])
    return f"toolkeep:client:{hashlib.sha256(parts.encode()).hexdigest()}"


async def load_client(
    storage: Storage, issuer: str, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient | None:
    """The registration with this issuer, unless its secret has expired or it lacks scopes."""
    entry = await storage.get(client_key(issuer, redirect_uri))
    if entry is None:
        return None
    try:
        client = OAuthClient.from_json(json.loads(entry.value))
    except (ValueError, TypeError, KeyError):
        return None
    ended = 0 < client.secret_expires_at <= time.time()
    lacks = bool(client.scopes) and not set(scopes) <= set(client.scopes)
    return None if ended or lacks or client.issuer != issuer else client


async def save_client(storage: Storage, client: OAuthClient) -> None:
    value = json.dumps(dataclasses.asdict(client)).encode()
    await storage.put(client_key(client.issuer, client.redirect_uri), value)


async def forget_client(storage: Storage, client: OAuthClient) -> None:
    """Register anew next time: the issuer does not know this client any more."""
    if client.kind == "dynamic":
        key = client_key(client.issuer, client.redirect_uri)
        entry = await storage.get(key)
        if entry is not None and client.client_id in entry.value.decode():
            await storage.delete(key, if_version=entry.version)


def _interrupted(error: OAuthError) -> OAuthError:
    return OAuthError(
        error.step,
        "a refresh was interrupted before its answer was stored, and the authorization server does "
        f"not take the old token again ({error.problem})",
        error=error.error,
    )


def _same(error: OAuthError) -> OAuthError:
    """A copy: an exception that several tasks raise would collect all their tracebacks."""
    return OAuthError(
        error.step,
        error.problem,
        remedy=error.remedy,
        error=error.error,
        transient=error.transient,
    )
