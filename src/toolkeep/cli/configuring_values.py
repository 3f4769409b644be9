"""What may be shown of a value that is written in a configuration's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from toolkeep.config.redact import HIDDEN, is_secret_name, redact_args, redact_url, secrets_of_args

REFERENCE = re.compile(
    r"\$\{(?:env:)?(?P<name>input:[^${}]+|[A-Za-z_][A-Za-z0-9_]*)(?P<rest>[^}]*)\}"
)
_CONFIDENTIAL = ("headers", "env", "tool_headers", "api_key")
"""Keys whose values are treated as secrets, whatever they are called."""
_SCHEMES = re.compile(r"(?:Bearer|Basic|Token) *", re.IGNORECASE)


def variables_of(value: Any) -> tuple[str, ...]:
    """The names that a value refers to, once each."""
    found = dict.fromkeys(one["name"] for text in _texts(value) for one in REFERENCE.finditer(text))
    return tuple(found)


def redacted(key: str, value: Any) -> Any:
    """With its references as they are written, and no secret."""
    if isinstance(value, list | tuple):
        listed = [str(one) for one in cast("list[object]", value)]
        if key in ("urls", "args"):
            redact = redact_args if key == "args" else _redact_urls
            return _restoring(listed, redact)
        return listed
    if not isinstance(value, str):
        return value
    if key.partition(".")[0] in _CONFIDENTIAL:
        return _references_of(value)
    if key in ("url", "proxy"):
        return _restoring([value], _redact_urls)[0]
    return value


def _redact_urls(urls: list[str]) -> list[str]:
    return [redact_url(url) for url in urls]


def _references_of(text: str) -> str:
    """`Bearer ${TOKEN}`; whatever else stands beside them is hidden, and so are defaults."""
    parts: list[str] = []
    place = 0
    for found in REFERENCE.finditer(text):
        parts += [_literal(text[place : found.start()]), f"${{{found['name']}}}"]
        place = found.end()
    return "".join((*parts, _literal(text[place:])))


def _literal(text: str) -> str:
    return text if not text or _SCHEMES.fullmatch(text) else HIDDEN


def _restoring(texts: list[str], redact: Callable[[list[str]], list[str]]) -> list[str]:
    """References would be taken for something else: they are put aside and back again."""
    aside: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        aside.append(f"${{{found['name']}}}")
        return f"zz{len(aside) - 1}zz"

    hidden = redact([REFERENCE.sub(put_aside, text) for text in texts])
    return [re.sub(r"zz(\d+)zz", lambda one: aside[int(one[1])], text) for text in hidden]


def literal_secrets(entry: Mapping[str, Any]) -> list[str]:
    """The keys of a server's entry under which a secret is written out, rather than referred to."""
    found = [
        f"{group}.{name}"
        for group in ("env", "headers")
        for name, value in mapping_of(entry.get(group)).items()
        if is_secret_name(str(name)) and _is_literal(value)
    ]
    found += [key for key in ("api_key", "apiKey") if _is_literal(entry.get(key))]
    args = entry.get("args")
    listed = [str(one) for one in cast("list[object]", args)] if isinstance(args, list) else []
    found += ["args"] * any(_is_literal(secret) for secret in secrets_of_args(listed))
    url = entry.get("url")
    found += ["url"] * (isinstance(url, str) and _carries_a_secret(url))
    return found


def _carries_a_secret(url: str) -> bool:
    from toolkeep.config import secrets_of_url

    try:
        return any(_is_literal(secret) for secret in secrets_of_url(url))
    except ValueError:
        return False


def _is_literal(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not REFERENCE.search(value)


def mapping_of(value: object) -> Mapping[Any, Any]:
    """Empty if it is none."""
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for one in cast("list[Any]", value) for text in _texts(one)]
    return [value] if isinstance(value, str) else []
