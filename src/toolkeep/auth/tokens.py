"""Requests to a token endpoint, and the `Tokens` that it returns.

The one place that sends codes, refresh tokens and client secrets. No error quotes them, even if the
server's response does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl

from toolkeep._rules.egress import EgressPolicy
from toolkeep._transport.egress import EgressRefused, FetchFailed, FetchResponse
from toolkeep._transport.redaction import secret_forms
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.discovery import Fetch, json_object, scopes_of, shown
from toolkeep.auth.registration import ClientSettings, OAuthClient, authenticated, with_secret
from toolkeep.config import redact_url

GRANT_ENDING_ERRORS = frozenset({"invalid_grant", "invalid_client"})
"""Error codes after which a login is over."""
SECRET_FIELDS = frozenset(
    {"code", "code_verifier", "refresh_token", "token", "device_code", "client_secret"}
    | {"client_assertion"}
)
"""Form fields whose values are secret."""
MIN_SECRET = 6
"""Characters of a secret that is looked for in errors. Shorter ones are parts of words."""
MAX_TOKEN = 64 * 1024


@dataclass(frozen=True, slots=True)
class Tokens:
    """The response of a token endpoint. `expires_at` is absolute, by the local clock."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_at: float | None
    scopes: tuple[str, ...] | None


def read_tokens(step: str, response: FetchResponse, sent_at: float) -> Tokens:
    """The tokens of a response. Raises `OAuthError` with the server's error code."""
    document = json_object(response.body)
    if response.status != 200 or document is None or "error" in document:
        raise token_error(step, response, document or {})
    access, refresh = _token(document, "access_token"), _token(document, "refresh_token")
    if not access or (document.get("refresh_token") and not refresh):
        raise OAuthError(step, f"{redact_url(response.url)} sent no usable token")
    kind = document.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthError(
            step,
            f"{redact_url(response.url)} sent a token of type {shown(str(kind))!r}, not Bearer",
        )
    scope = document.get("scope")
    return Tokens(
        access_token=access,
        refresh_token=refresh,
        expires_at=_expiry(document.get("expires_in"), sent_at),
        scopes=scopes_of(scope) if isinstance(scope, str) else None,
    )


def _token(document: Mapping[str, Any], name: str) -> str:
    """A token that fits in a header (visible ASCII only); empty if there is none."""
    value = document.get(name)
    if not isinstance(value, str) or len(value) > MAX_TOKEN or " " in value:
        return ""
    return value if value.isascii() and value.isprintable() else ""


def _expiry(seconds: object, sent_at: float) -> float | None:
    if isinstance(seconds, str) and seconds.isdecimal() and len(seconds) < 12:
        seconds = int(seconds)  # some servers send a string
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e11:
        return None  # 0 too: a token that never lived would be refreshed before every request
    return sent_at + seconds


def token_error(step: str, response: FetchResponse, document: Mapping[str, Any]) -> OAuthError:
    error = document.get("error")
    code = shown(error) if isinstance(error, str) else ""
    given = document.get("error_description")
    description = shown(given) if isinstance(given, str) else ""
    detail = ": ".join(part for part in (code, description) if part) or "no reason given"
    transient = response.status >= 500 or response.status in (408, 429)
    code = code if not transient and code else f"http_{response.status}"
    problem = f"{redact_url(response.url)} answered {response.status} ({detail})"
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
) -> FetchResponse:
    """POST a form as this client. Raises `OAuthError`, without a code if no response came."""
    known = with_secret(client, settings)
    headers, body = authenticated(known, settings, form, now)
    try:
        response = await fetch("POST", url, policy=policy, headers=headers, body=body)
    except FetchFailed as failed:
        refused = isinstance(failed, EgressRefused)
        raise OAuthError(step, str(failed), transient=not refused) from None
    sent = dict(parse_qsl(body.decode()))
    secrets = [sent.get(name, "") for name in SECRET_FIELDS]
    secrets += [known.client_secret, headers.get("authorization", "").removeprefix("Basic ")]
    return _without_echo(response, [secret for secret in secrets if len(secret) >= MIN_SECRET])


def _without_echo(response: FetchResponse, secrets: list[str]) -> FetchResponse:
    """A failed response without those of its fields that quote a secret."""
    document = json_object(response.body)
    if document is None or (response.status == 200 and "error" not in document):
        return response
    forms = [form for secret in secrets for form in secret_forms(secret)]
    kept = {
        name: text
        for name in ("error", "error_description")
        if isinstance(text := document.get(name), str) and not any(form in text for form in forms)
    }
    return replace(response, body=json.dumps({"error": "", **kept}).encode())
