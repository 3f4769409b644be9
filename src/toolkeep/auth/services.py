"""OAuth for services: the client credentials grant, with a secret or a signed assertion.

No person takes part and nothing is stored: a token is fetched when there is none that is valid,
once for all callers, in a task of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Mapping
from typing import Any

from toolkeep._wire.egress import policy_for
from toolkeep.auth.authorizer import AuthRequest, Challenge, OAuthError
from toolkeep.auth.discovery import BearerChallenge, Discovered, Fetch, bearer_challenge, discover
from toolkeep.auth.grants import Grant, post_form, read_tokens
from toolkeep.auth.oauth import OAuthSettings, resource_for, union
from toolkeep.auth.registration import known_client

__all__ = ["ClientCredentials"]

STEP = "client credentials"
YOUNGEST = 5.0
"""A token that was refused this soon after it was issued is not asked for again."""


class ClientCredentials:
    """The authorizer of a service at one MCP server. Every principal is the service itself."""

    def __init__(self, settings: OAuthSettings, *, fetch: Fetch) -> None:
        client = settings.client
        if not client.client_id or not (client.client_secret or client.signing_key):
            remedy = "Set 'client_id', and 'client_secret' or 'signing_key'"
            raise OAuthError(STEP, "a service needs a client with a secret or a key", remedy=remedy)
        self._settings, self._fetch = settings, fetch
        self._policy = policy_for(settings.url, settings.allow)
        self._grant: Grant | None = None
        self._found: Discovered | None = None
        self._scopes = settings.scopes
        self._request: asyncio.Task[Grant | OAuthError] | None = None

    def __repr__(self) -> str:
        return f"ClientCredentials({self._settings.server!r})"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        grant = self._grant
        if grant is None or grant.is_due(time.time()):
            grant = await self._renewed(None)
        return {"authorization": f"Bearer {grant.access_token}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        """A new token, also with the scopes that were missing. False: it would be the same."""
        said = bearer_challenge(challenge.www_authenticate)
        lacks = challenge.status == 403 and said.error == "insufficient_scope"
        if challenge.status != 401 and not lacks:
            return False
        grant = self._grant
        sent = challenge.sent.get("authorization", "")
        if grant is not None and sent and sent != f"Bearer {grant.access_token}":
            return True
        wanted = union(self._scopes, said.scopes)
        young = grant is not None and time.time() - grant.obtained_at < YOUNGEST
        if young and wanted == self._scopes:
            return False
        self._scopes = wanted
        await self._renewed(said)
        return True

    async def aclose(self) -> None:
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)

    async def _renewed(self, said: BearerChallenge | None) -> Grant:
        task, loop = self._request, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            context = contextvars.Context()
            task = loop.create_task(self._outcome(said), context=context)
            self._request = task
        outcome = await asyncio.shield(task)
        if isinstance(outcome, OAuthError):
            raise OAuthError(
                *(outcome.step, outcome.problem),
                remedy=outcome.remedy,
                error=outcome.error,
                transient=outcome.transient,
            )
        return outcome

    async def _outcome(self, said: BearerChallenge | None) -> Grant | OAuthError:
        try:
            self._grant = await self._asked(said)
        except OAuthError as error:
            self._found = None  # it may have moved
            return error
        return self._grant

    async def _asked(self, said: BearerChallenge | None) -> Grant:
        settings = self._settings
        found = self._found or await discover(
            settings.url,
            fetch=self._fetch,
            policy=self._policy,
            challenge=said,
            issuer=settings.issuer,
            resource=settings.resource,
        )
        client = known_client(found.server, settings.client)
        assert client is not None  # one is configured
        if self._grant is not None and self._grant.client.issuer != client.issuer:
            raise OAuthError(
                STEP, "the MCP server now names another issuer", remedy="Set 'issuer' to it"
            )
        form: dict[str, Any] = {"grant_type": "client_credentials"}
        scopes = self._scopes or (found.resource.scopes if found.resource else ())
        resource = resource_for(settings, found.resource)
        form |= {"scope": " ".join(scopes)} if scopes else {}
        form |= {"resource": resource} if resource else {}
        now, url = time.time(), found.server.token_endpoint
        answer = await post_form(
            *(STEP, url, form, client, settings.client),
            fetch=self._fetch,
            policy=found.policy,
            now=now,
        )
        tokens = read_tokens(STEP, answer, now)
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
