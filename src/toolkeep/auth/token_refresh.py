"""`GrantRefresher`: the grants for one MCP server, refreshed once for all callers and processes.

A refresh runs in a task of its own, under a lease in the storage. Cancelling a caller does not
cancel it. Only `invalid_grant` and `invalid_client` end a grant.

The refresh token that was sent stays stored until the new one is stored. A grant is marked as
`refreshing` before it is sent: a mark that is found later means that a refresh was interrupted.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from toolkeep._rules.egress import EgressPolicy
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import Fetch
from toolkeep.auth.grants import Grant, GrantKey
from toolkeep.auth.registration import ClientSettings, forget_client
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.tokens import GRANT_ENDING_ERRORS, Tokens, post_form, read_tokens
from toolkeep.errors import ToolkeepError, unraised_copy
from toolkeep.state import Entry, Lease

logger = logging.getLogger("toolkeep.auth")
T = TypeVar("T")

REFRESH = "refresh"
"""The step, as error messages name it."""
LEASE = 10.0
"""Seconds until the lease of a process that was killed during a refresh expires. A live process
renews its lease."""
LEASE_WAIT, CLOSE_WAIT = 60.0, 30.0
"""Seconds to wait for another process's refresh, and for our own when closing."""
FIRST_POLL, MAX_POLL = 0.02, 0.25
"""Seconds between checks whether another process has finished its refresh."""
SAVE_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to store a refreshed grant."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Seconds without a new attempt after a refresh failed transiently; doubles each time."""
MAX_CACHED = 10_000


class GrantRefresher:
    """The grants for one MCP server: cached, stored and refreshed.

    Lives as long as its `OAuth` authorizer. Used from one event loop at a time; other processes may
    use the same storage.
    """

    def __init__(
        self,
        storage: LoginStorage,
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
        self.changes = 0
        """Grows whenever a cached grant is replaced or dropped."""
        self._unsaved: dict[GrantKey, tuple[int, Grant]] = {}
        self._renewals: dict[GrantKey, asyncio.Task[Grant | OAuthError | None]] = {}
        self._exchanges: set[asyncio.Task[Any]] = set()
        self._pauses: dict[GrantKey, tuple[float, float, OAuthError]] = {}

    def cached(self, key: GrantKey) -> Grant | None:
        """The cached grant, unless it is due for a refresh."""
        grant = self._cached.get(key)
        return grant if grant is not None and not grant.is_due(time.time()) else None

    async def usable(self, key: GrantKey, rejected: str = "") -> Grant | None:
        """The grant to use, refreshed if it is due or if its token is the `rejected` one.

        None: there is no login. Raises `OAuthError`.
        """
        grant = self.cached(key)
        if grant is not None and grant.access_token != rejected:
            return grant
        outcome: Grant | OAuthError | None = None
        for _ in range(2):  # a running refresh may not know of the rejection
            outcome = await self._refresh_shared(key, rejected)
            if not isinstance(outcome, Grant) or outcome.access_token != rejected:
                break
        if isinstance(outcome, OAuthError):
            known = self._cached.get(key)
            if known is None or known.access_token == rejected or not outcome.transient:
                raise unraised_copy(outcome)
            if known.is_expired(time.time()):
                raise unraised_copy(outcome)
            return known
        return outcome

    async def save(self, grant: Grant) -> None:
        """Store the grant of a new login; replaces the previous one."""
        await (await self.storage.open()).put(grant.key.text, grant.to_bytes())
        self._unsaved.pop(grant.key, None)
        self._pauses.pop(grant.key, None)
        self._remember(grant)

    async def update(self, grant: Grant, **changes: Any) -> None:
        """Change the stored grant, unless another one has replaced it."""
        entry, stored = await self._stored(grant.key)
        if entry is not None and stored is not None and stored.access_token == grant.access_token:
            changed = replace(stored, **changes)
            value = changed.to_bytes()
            if (
                await (await self.storage.open()).put(
                    grant.key.text, value, if_version=entry.version
                )
                is not None
            ):
                self._remember(changed)

    async def remove(self, key: GrantKey) -> Grant | None:
        """Delete a grant and return it, so that the caller can revoke it.

        Raises `OAuthError` if it could not be read; it is deleted nevertheless.
        """
        try:
            _, stored = await self._stored(key)
        finally:
            await (await self.storage.open()).delete(key.text)
            self._forget(key)
        return stored

    async def stored(self, key: GrantKey) -> Grant | None:
        """The grant in the storage, read past the cache."""
        _, grant = await self._stored(key)
        if grant is None:
            self._forget(key)
        return grant

    async def run_to_end(self, exchange: Coroutine[Any, Any, T]) -> T:
        """Run in a task of its own, which ends even if the caller is cancelled: the code that it
        redeems cannot be redeemed again."""
        task = asyncio.get_running_loop().create_task(exchange, context=contextvars.Context())
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait for running refreshes: new tokens that are not stored would be lost."""
        loop = asyncio.get_running_loop()
        tasks = [*self._renewals.values(), *self._exchanges]
        running = [task for task in tasks if task.get_loop() is loop]
        if running:
            _, late = await asyncio.wait(running, timeout=CLOSE_WAIT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- one refresh for all callers --------------------------------------------------------------

    async def _refresh_shared(self, key: GrantKey, rejected: str) -> Grant | OAuthError | None:
        task = self._renewals.get(key)
        loop = asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            # An empty context: the task must not inherit the context variables of one caller.
            context = contextvars.Context()
            task = loop.create_task(self._refresh_outcome(key, rejected), context=context)
            self._renewals[key] = task
            task.add_done_callback(lambda done: self._drop_task(key, done))
        return await asyncio.shield(task)

    def _drop_task(self, key: GrantKey, task: asyncio.Task[Any]) -> None:
        if self._renewals.get(key) is task:
            del self._renewals[key]

    async def _refresh_outcome(self, key: GrantKey, rejected: str) -> Grant | OAuthError | None:
        """Return failures instead of raising them: any number of callers may wait, even none."""
        try:
            return await self._refreshed(key, rejected)
        except OAuthError as error:
            return error
        except ToolkeepError as error:
            return OAuthError("storage", str(error), transient=True)
        except Exception as error:  # its text may quote a token: only the place is logged
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("a token refresh failed with %s at\n%s", type(error).__name__, where)
            return OAuthError(REFRESH, f"unexpected {type(error).__name__}", transient=True)

    async def _refreshed(self, key: GrantKey, rejected: str) -> Grant | None:
        give_up, poll = time.monotonic() + self._lease_wait, FIRST_POLL
        while True:
            entry, grant = await self._stored(key)
            if entry is None or grant is None:
                self._forget(key)
                return None
            if (valid := self._if_valid(grant, rejected)) is not None:
                return valid
            self._check_pause(key)
            lease = await (await self.storage.open()).lease(f"{key.text}:refresh", self._lease)
            if lease is not None:
                renewing = asyncio.create_task(self._renew_lease(lease))
                try:
                    refreshed = await self._refresh_under_lease(key, rejected)
                finally:
                    renewing.cancel()
                    await self._release(lease)
                if refreshed is not None:
                    return refreshed
            elif time.monotonic() > give_up:
                problem = f"another process has been refreshing for over {self._lease_wait:g} s"
                raise OAuthError(REFRESH, problem, transient=True)
            else:
                await asyncio.sleep(poll)
                poll = min(MAX_POLL, poll * 1.5)

    def _if_valid(self, grant: Grant, rejected: str) -> Grant | None:
        """The grant, if it can be used as it is. Raises if it has ended and cannot be refreshed."""
        now = time.time()
        is_rejected = grant.access_token == rejected
        if not is_rejected and not grant.is_due(now):
            self._remember(grant)
            return grant
        if grant.refresh_token:
            return None
        if is_rejected or grant.is_expired(now):
            self._forget(grant.key)
            problem = "the token is no longer valid, and there is no refresh token"
            raise OAuthError(REFRESH, problem, error="invalid_grant")
        self._remember(grant)
        return grant

    async def _refresh_under_lease(self, key: GrantKey, rejected: str) -> Grant | None:
        """Refresh, unless the previous lease holder has. None: read the storage again."""
        entry, grant = await self._stored(key)
        if entry is None or grant is None or self._if_valid(grant, rejected) is not None:
            return None
        marked = replace(grant, refreshing=True).to_bytes()
        version = await (await self.storage.open()).put(key.text, marked, if_version=entry.version)
        if version is None:
            return None
        sent_at = time.time()
        try:
            tokens = await self._request_tokens(grant, sent_at)
        except OAuthError as error:
            return await self._handle_failure(grant, version, error)
        self._pauses.pop(key, None)
        return await self._store(grant, tokens, sent_at, version)

    async def _request_tokens(self, grant: Grant, now: float) -> Tokens:
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        if grant.resource:
            form["resource"] = grant.resource
        response = await post_form(
            *(REFRESH, grant.token_endpoint, form, grant.client, self._settings),
            fetch=self._fetch,
            policy=grant.policy(self._policy),
            now=now,
        )
        return read_tokens(REFRESH, response, now)

    async def _handle_failure(self, grant: Grant, version: int, error: OAuthError) -> None:
        key = grant.key
        if error.error in GRANT_ENDING_ERRORS:
            if not await (await self.storage.open()).delete(key.text, if_version=version):
                return  # a new login has replaced it
            self._forget(key)
            if error.error == "invalid_client":
                await forget_client(await self.storage.open(), grant.client)
            raise _interrupted(error) if grant.refreshing else error
        self._pause(key, error)
        if error.error and not grant.refreshing:
            # The server answered, so the refresh token that was sent is still valid.
            await (await self.storage.open()).put(key.text, grant.to_bytes(), if_version=version)
        raise error

    async def _store(self, old: Grant, tokens: Tokens, now: float, version: int) -> Grant | None:
        """Store a refreshed grant. Tries repeatedly: the old refresh token may be invalid now.

        If the stored grant has changed but still waits for this refresh, the new tokens go into it:
        another process asked for more scopes, or held the lease while this one stood still.
        """
        grant = old.renewed(tokens, now)
        for pause in (*SAVE_PAUSES, 0.0):
            try:
                store = await self.storage.open()
                if (
                    await store.put(grant.key.text, grant.to_bytes(), if_version=version)
                    is not None
                ):
                    self._remember(grant)
                    return grant
                entry, stored = await self._stored(grant.key)
            except ToolkeepError:
                await asyncio.sleep(pause)
                continue
            if entry is None or stored is None or stored.refresh_token != old.refresh_token:
                return None  # logged out, or logged in anew
            version, grant = entry.version, stored.renewed(tokens, now)
        logger.warning("the refreshed login of %r could not be stored yet", grant.key.server)
        self._unsaved[grant.key] = version, grant
        self._remember(grant)
        return grant

    async def _stored(self, key: GrantKey) -> tuple[Entry | None, Grant | None]:
        entry = await (await self.storage.open()).get(key.text)
        if entry is None:
            return None, None
        version, unsaved = self._unsaved.pop(key, (0, None))
        if unsaved is not None and version == entry.version:
            saved = await (await self.storage.open()).put(
                key.text, unsaved.to_bytes(), if_version=version
            )
            if saved is not None:
                return Entry(unsaved.to_bytes(), saved), unsaved
            return await self._stored(key)
        grant = Grant.from_bytes(entry.value)
        if grant.key != key:
            raise OAuthError("storage", "a stored login belongs to another", remedy="Log in again")
        return entry, grant

    async def _renew_lease(self, lease: Lease) -> None:
        """Renew the lease until cancelled, or lost: then compare-and-set decides who may store."""
        held = True
        while held:
            await asyncio.sleep(self._lease / 3)
            try:
                held = await (await self.storage.open()).renew(lease, self._lease)
            except ToolkeepError:
                logger.debug("a lease could not be renewed")

    async def _release(self, lease: Lease) -> None:
        try:
            await (await self.storage.open()).release(lease)
        except ToolkeepError:
            logger.debug("a lease could not be released and will expire")

    # -- cache and pauses -------------------------------------------------------------------------

    def _remember(self, grant: Grant) -> None:
        self.changes += 1
        self._cached.pop(grant.key, None)
        self._cached[grant.key] = grant
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]

    def _forget(self, key: GrantKey) -> None:
        self.changes += 1
        self._cached.pop(key, None)
        self._unsaved.pop(key, None)

    def _pause(self, key: GrantKey, error: OAuthError) -> None:
        _, last, _ = self._pauses.get(key, (0.0, 0.0, error))
        pause = min(MAX_PAUSE, last * 2 or FIRST_PAUSE)
        self._pauses[key] = time.monotonic() + pause, pause, error
        if len(self._pauses) > MAX_CACHED:
            del self._pauses[next(iter(self._pauses))]

    def _check_pause(self, key: GrantKey) -> None:
        until, _, error = self._pauses.get(key, (0.0, 0.0, None))
        if error is not None and time.monotonic() < until:
            raise error


def _interrupted(error: OAuthError) -> OAuthError:
    return OAuthError(
        error.step,
        "a refresh was interrupted before the new token was stored, and the authorization server "
        f"does not accept the old one again ({error.problem})",
        error=error.error,
    )
