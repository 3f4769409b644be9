"""Remove secrets from what a server says before it reaches errors, events and logs.

Servers quote what they were sent: session ids, keys, tokens. This module knows what was sent to
one server and removes it, in plain, URL-encoded and JSON-escaped form. It runs on failures
only, so a successful call pays nothing. It never logs and never changes what is sent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

from toolkeep._rules.classify import Evidence
from toolkeep.config.redact import HIDDEN, secret_parts

PUBLIC_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "mcp-protocol-version", "mcp-method", "mcp-name"}
)
"""Headers whose values are not secret."""
_MAX_REMEMBERED = 64
"""Sent values that one server's `KnownSecrets` keeps."""


class KnownSecrets:
    """The secrets that one server was given: those of its URL, and recently sent header values.

    Lives as long as the HTTP client. A later response can still quote a token that was refreshed
    or the id of a session that was replaced, so old values are kept; the oldest go first.
    """

    def __init__(self, fixed: Iterable[str]) -> None:
        self._fixed = tuple(fixed)
        self._sent: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._fixed
        yield from self._sent

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Remember the values of headers that are about to be sent."""
        for name, value in headers.items():
            if name not in PUBLIC_HEADERS:
                self._sent.pop(value, None)
                self._sent[value] = None
        while len(self._sent) > _MAX_REMEMBERED:
            del self._sent[next(iter(self._sent))]


class Redactor:
    """Replaces secrets in texts, in every form in which servers quote them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {
            form
            for secret in dict.fromkeys(secrets)
            for part in secret_parts(secret)
            for form in secret_forms(part)
        }
        self.forms = sorted(forms, key=len, reverse=True)

    def redact(self, value: Any) -> Any:
        """The value without secrets. Recurses into lists and mappings, keys included."""
        match value:
            case str():
                for secret in self.forms:
                    value = value.replace(secret, HIDDEN)
                return value
            case Mapping():
                mapping = cast("Mapping[Any, Any]", value)
                return {self.redact(key): self.redact(item) for key, item in mapping.items()}
            case list():
                return [self.redact(item) for item in cast("list[Any]", value)]
            case _:
                return value


def redact_evidence(
    evidence: Evidence, sent: Mapping[str, str], secrets: Iterable[str]
) -> Evidence:
    """The evidence without `secrets` and without the values of the request's `sent` headers."""
    values = [value for name, value in sent.items() if name not in PUBLIC_HEADERS]
    redactor = Redactor((*values, *secrets))
    if not redactor.forms:
        return evidence
    error = evidence.error
    if error is not None:
        error = dataclasses.replace(
            error, message=redactor.redact(error.message), data=redactor.redact(error.data)
        )
    return dataclasses.replace(
        evidence,
        error=error,
        detail=redactor.redact(evidence.detail),
        text=redactor.redact(evidence.text),
        headers=redactor.redact(evidence.headers),
    )


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets."""
    return Redactor(secrets).redact(text)


def secret_forms(secret: str) -> Iterator[str]:
    """The secret as it is, URL-encoded, and escaped as JSON encoders do it."""
    yield secret
    yield quote(secret, safe="", errors="replace")
    yield quote(secret, errors="replace")
    for written in (json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        yield written[1:-1]
        yield written[1:-1].replace("/", "\\/")
