"""Takes out of an answer what we sent in confidence.

Servers quote: "unknown session 3f…", "the key sk-… has expired". What they say ends up in errors,
events and logs; what we know to be secret does not. Costs nothing on the way of success.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from toolkeep._rules.classify import Evidence
from toolkeep.config.redact import HIDDEN

_PUBLIC = ("accept", "content-type", "user-agent", "mcp-protocol-version", "mcp-method", "mcp-name")
_SHORTEST = 8
"""Shorter values are words, not secrets; taking them out would spoil the text."""


def hushed(evidence: Evidence, sent: Mapping[str, str], private: Sequence[str]) -> Evidence:
    """The evidence without the values of the headers that went with the request, and without
    what else is `private`."""
    secrets = _secrets(sent, private)
    if not secrets:
        return evidence
    error = evidence.error
    if error is not None:
        error = dataclasses.replace(
            error, message=_without(error.message, secrets), data=_without(error.data, secrets)
        )
    return dataclasses.replace(
        evidence,
        error=error,
        detail=_without(evidence.detail, secrets),
        text=_without(evidence.text, secrets),
        headers=_without(evidence.headers, secrets),
    )


def quiet(text: str, private: Iterable[str]) -> str:
    """The text without what is private."""
    return _without(text, _secrets({}, tuple(private)))


def _secrets(sent: Mapping[str, str], private: Sequence[str]) -> list[str]:
    values = [value for name, value in sent.items() if name not in _PUBLIC]
    values += private
    values += [value.partition(" ")[2] for value in values]  # the key after "Bearer"
    return sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)


def _without(value: Any, secrets: list[str]) -> Any:
    match value:
        case str():
            for secret in secrets:
                value = value.replace(secret, HIDDEN)
            return value
        case Mapping():
            found = cast("Mapping[Any, Any]", value)
            return {key: _without(item, secrets) for key, item in found.items()}
        case list():
            return [_without(item, secrets) for item in cast("list[Any]", value)]
        case _:
            return value
