"""OAuth for services: the client credentials grant, with a secret or a signed assertion.

Needs no user. A token is requested when there is no valid one, once for all callers, in a task of
its own. Only the issuer of the client is stored: its secret goes to no other.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Mapping
from typing import Any

from toolkeep.auth.authorizer import AuthRequest, Challenge, OAuthError
from toolkeep.auth.discovery import BearerChallenge, Discovered, Fetch, bearer_challenge, discover
from toolkeep.auth.grants import Grant
from toolkeep.auth.oauth import OAuthSettings, resource_for, union
from toolkeep.auth.registration import bind_client, known_client
from toolkeep.auth.storage import LoginStorage
from toolkeep.auth.tokens import post_form, read_tokens
from toolkeep.errors import unraised_copy

__all__ = ["ClientCredentials"]

STEP = "client credentials"
FRESH = 5.0
"""Seconds after its issue in which a rejected token is not requested again."""


class ClientCredentials:
    """The authorizer of a service at one MCP server. All principals share the service's token."""

    def __init__(self, settings: OAuthSettings, storage: LoginStorage, *, fetch: Fetch) -> None:
        client = settings.client
        if not client.client_id or not (client.client_secret or client.signing_key):
            remedy = "Set 'client_id', and 'client_secret' or 'signing_key'"
            raise OAuthError(STEP, "a service needs a client with a secret or a key", remedy=remedy)
        self._settings, self._storage, self._fetch = settings, storage, fetch
        self._grant: Grant | None = None
        self._found: Discovered | None = None
        self._scopes = settings.scopes
        self._task: asyncio.Task[Grant | OAuthError] | None = None

    def __repr__(self) -> str:
        return f"ClientCredentials({self._settings.server!r})"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        grant = self._grant
        if grant is None or grant.is_due(time.time()):
            grant = await self._new_token(None)
        return {"authorization": f"Bearer {grant.access_token}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        """Request a new token, with missing scopes added. False: it would not differ."""
        bearer = bearer_challenge(challenge.www_authenticate)
        lacks = challenge.status == 403 and bearer.error == "insufficient_scope"
        if challenge.status != 401 and not lacks:
            return False
        grant = self._grant
        sent = challenge.sent.get("authorization", "")
        if grant is not None and sent and sent != f"Bearer {grant.access_token}":
            return True
        wanted = union(self._scopes, bearer.scopes)
        fresh = grant is not None and time.time() - grant.obtained_at < FRESH
        if fresh and wanted == self._scopes:
            return False
        self._scopes = wanted
        await self._new_token(bearer)
        return True

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _new_token(self, challenge: BearerChallenge | None) -> Grant:
        task, loop = self._task, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            context = contextvars.Context()
            task = loop.create_task(self._outcome(challenge), context=context)
            self._task = task
        outcome = await asyncio.shield(task)
        if isinstance(outcome, OAuthError):
            raise unraised_copy(outcome)
        return outcome

    async def _outcome(self, challenge: BearerChallenge | None) -> Grant | OAuthError:
        try:
            self._grant = await self._request_token(challenge)
        except OAuthError as error:
            self._found = None  # discover again: the endpoint may have moved
            return error
        return self._grant

    async def _request_token(self, challenge: BearerChallenge | None) -> Grant:
        settings = self._settings
        found = self._found or await discover(
            settings.url,
            fetch=self._fetch,
            policy=settings.policy,
            challenge=challenge,
            issuer=settings.issuer,
            resource=settings.resource,
        )
        client = known_client(found.server, settings.client)
        assert client is not None  # `__init__` requires a client_id
        if not settings.issuer:
            await bind_client(await self._storage.open(), settings.url, client)
        form: dict[str, Any] = {"grant_type": "client_credentials"}
        scopes = self._scopes or (found.resource.scopes if found.resource else ())
        resource = resource_for(settings, found.resource)
        form |= {"scope": " ".join(scopes)} if scopes else {}
        form |= {"resource": resource} if resource else {}
        now, url = time.time(), found.server.token_endpoint
        response = await post_form(
            *(STEP, url, form, client, settings.client),
            fetch=self._fetch,
            policy=found.policy,
            now=now,
        )
        tokens = read_tokens(STEP, response, now)
        self._found = found
        return Grant(
            key=settings.key(None),
            client=client,
            token_endpoint=url,
            access_token=tokens.access_token,
            expires_at=tokens.expires_at,
            obtained_at=now,
            requested=scopes,
            scopes=scopes if tokens.scopes is None else tokens.scopes,
            resource=resource,
        )
