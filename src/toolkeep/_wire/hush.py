"""Takes out of an answer what we sent in confidence.

Servers quote: "unknown session 3f…", "the key sk-… has expired". What they say ends up in errors,
events and logs; what we know to be secret does not. Costs nothing on the way of success.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

from toolkeep._rules.classify import Evidence
from toolkeep.config.redact import HIDDEN, parts_of_secret

PUBLIC_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "mcp-protocol-version", "mcp-method", "mcp-name"}
)
_MOST_REMEMBERED = 64


class KnownSecrets:
    """What one server was given in confidence: what its URL holds, and recent credentials.

    Lives as long as the HTTP client. A token that was renewed, and the id of a session that was
    replaced, can still be quoted by a later answer; the oldest of them are forgotten first.
    """

    def __init__(self, fixed: Iterable[str]) -> None:
        self._fixed = tuple(fixed)
        self._sent: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._fixed
        yield from self._sent

    def note(self, headers: Mapping[str, str]) -> None:
        """These headers go with a request."""
        for name, value in headers.items():
            if name not in PUBLIC_HEADERS:
                self._sent.pop(value, None)
                self._sent[value] = None
        while len(self._sent) > _MOST_REMEMBERED:
            del self._sent[next(iter(self._sent))]


class Redaction:
    """Takes secrets out of texts, in whatever form they are quoted."""

    def __init__(self, private: Iterable[str]) -> None:
        forms = {
            form
            for secret in dict.fromkeys(private)
            for part in parts_of_secret(secret)
            for form in quoted_forms(part)
        }
        self.forms = sorted(forms, key=len, reverse=True)

    def of(self, value: Any) -> Any:
        """The same without secrets; keys of mappings are texts like all others."""
        match value:
            case str():
                for secret in self.forms:
                    value = value.replace(secret, HIDDEN)
                return value
            case Mapping():
                found = cast("Mapping[Any, Any]", value)
                return {self.of(key): self.of(item) for key, item in found.items()}
            case list():
                return [self.of(item) for item in cast("list[Any]", value)]
            case _:
                return value


def hushed(evidence: Evidence, sent: Mapping[str, str], private: Iterable[str]) -> Evidence:
    """The evidence without the values of the headers that went with the request, and without
    what else is `private`."""
    values = [value for name, value in sent.items() if name not in PUBLIC_HEADERS]
    without = Redaction((*values, *private))
    if not without.forms:
        return evidence
    error = evidence.error
    if error is not None:
        error = dataclasses.replace(
            error, message=without.of(error.message), data=without.of(error.data)
        )
    return dataclasses.replace(
        evidence,
        error=error,
        detail=without.of(evidence.detail),
        text=without.of(evidence.text),
        headers=without.of(evidence.headers),
    )


def quiet(text: str, private: Iterable[str]) -> str:
    """The text without what is private."""
    return Redaction(private).of(text)


def quoted_forms(secret: str) -> Iterator[str]:
    """As it is, as a URL has it, and as a JSON text of whatever taste has it."""
    yield secret
    yield quote(secret, safe="", errors="replace")
    yield quote(secret, errors="replace")
    for written in (json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        yield written[1:-1]
        yield written[1:-1].replace("/", "\\/")
