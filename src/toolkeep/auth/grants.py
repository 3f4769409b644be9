"""`Grant`: what is kept of a login, so that any later process can use, refresh and revoke it.

It holds the tokens, their absolute expiry, the issuer, the token endpoint, the client, scopes and
resource.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from toolkeep._rules.egress import AddressRange, EgressPolicy
from toolkeep.auth.authorizer import Login, OAuthError
from toolkeep.auth.registration import OAuthClient
from toolkeep.auth.tokens import Tokens
from toolkeep.config import redact_url
from toolkeep.errors import SealBroken
from toolkeep.state import Store

logger = logging.getLogger("toolkeep.auth")

PREFIX = "toolkeep:grant:"
FORMAT = 1

REFRESH_MARGIN, REFRESH_MARGIN_SHARE = 60.0, 0.1
"""Refresh this many seconds before expiry, but at most this share of the token's lifetime."""
_TUPLE_FIELDS = ("requested", "scopes", "ranges", "wanted")
"""Fields of `Grant` that JSON stores as lists."""


@dataclass(frozen=True, slots=True)
class GrantKey:
    """Identifies a login. Includes the URL, so that a token never follows a name to another URL."""

    server: str
    url: str
    principal: str | None

    @property
    def text(self) -> str:
        parts = json.dumps([self.server, self.url, self.principal])
        return f"{PREFIX}{hashlib.sha256(parts.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The stored result of a login: tokens, and what is needed to refresh and revoke them."""

    key: GrantKey
    client: OAuthClient
    token_endpoint: str
    revocation_endpoint: str = ""
    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: float | None = None
    obtained_at: float
    requested: tuple[str, ...] = ()
    """The scopes that the last login requested."""
    scopes: tuple[str, ...] = ()
    """The scopes that were granted."""
    resource: str = ""
    """The resource indicator to send; empty for none."""
    ranges: tuple[str, ...] = ()
    """Address ranges at which the MCP server was reached; its issuer may use them too."""
    wanted: tuple[str, ...] = ()
    """Scopes that the MCP server has requested since the login."""
    step_ups: int = 0
    """Logins in a row that were made to get more scopes."""
    renewals: int = 0
    """Refreshes since the login."""
    refreshing: bool = False
    """A refresh has begun, and its outcome is not stored yet."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    @property
    def due_at(self) -> float:
        """When to refresh it: shortly before it expires."""
        if self.expires_at is None:
            return math.inf
        lifetime = max(0.0, self.expires_at - self.obtained_at)
        return self.expires_at - min(REFRESH_MARGIN, REFRESH_MARGIN_SHARE * lifetime)

    def is_due(self, now: float) -> bool:
        return now >= self.due_at

    def policy(self, policy: EgressPolicy) -> EgressPolicy:
        """`policy`, which also allows this grant's address ranges."""
        kept = {AddressRange(value) for value in self.ranges}
        return replace(policy, ranges=policy.ranges | kept)

    def renewed(self, tokens: Tokens, now: float) -> Grant:
        """This grant with new tokens. Omitted fields keep their values (RFC 6749, section 6)."""
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

    @property
    def login(self) -> Login:
        """What may be shown of it."""
        return Login(
            server=self.key.server,
            principal=self.key.principal,
            url=redact_url(self.key.url),
            issuer=self.client.issuer,
            scopes=self.scopes,
            expires=self.expires_at,
            is_renewable=bool(self.refresh_token),
        )

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Grant:
        try:
            found: dict[str, Any] = json.loads(stored)
            if found.pop("format") != FORMAT:
                raise ValueError
            found |= {name: tuple(found[name]) for name in _TUPLE_FIELDS}
            key, client = GrantKey(**found.pop("key")), OAuthClient.from_json(found.pop("client"))
            return cls(key=key, client=client, **found)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # not chained: the cause would quote the stored secrets
        raise OAuthError("storage", "a stored login cannot be read", remedy="Log in again")


async def stored_grants(store: Store) -> AsyncIterator[Grant]:
    """Every readable grant in a store, of all servers."""
    async for text in store.scan(PREFIX):
        try:
            entry = await store.get(text)
            grant = None if entry is None else Grant.from_bytes(entry.value)
        except (OAuthError, SealBroken):
            logger.warning("skipping a stored login that cannot be read")
            continue
        if grant is not None:
            yield grant
