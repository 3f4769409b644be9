"""What may be shown to a person. A secret never leaves through a message, a log line or a repr."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

_SECRET_NAME = re.compile(
    r"key|token|secret|password|passwd|auth|sig|credential|session", re.IGNORECASE
)
_NAMED = re.compile(r"-{0,2}(?P<name>[A-Za-z][\w.-]*)(?:=|:\s+)(?P<value>.+)", re.DOTALL)
HIDDEN = "***"


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def redact_url(url: str) -> str:
    """The URL without user, password and the values of query parameters that sound secret."""
    try:
        parts = urlsplit(url)
        if not parts.netloc and "@" in url:
            return HIDDEN  # credentials in a place where only a guess could find them
        query = "&".join(_shown(name, value) for name, value in parse_qsl(parts.query, True))
        return urlunsplit((parts.scheme, _without_user(parts), parts.path, query, ""))
    except ValueError:
        return HIDDEN


def secrets_of_url(url: str) -> tuple[str, ...]:
    """What a URL carries that should be a header: credentials, or values that sound secret."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query, True) if is_secret_name(name)]
    credentials = [unquote(value) for value in (parts.username, parts.password) if value]
    return (*credentials, *named)


def secrets_of_args(args: Sequence[str]) -> tuple[str, ...]:
    """What a command line carries that should be in the environment: what follows a name that
    sounds secret, as in `--api-key X`, `--token=X`, `KEY=X` and `Authorization: Bearer X`."""
    return tuple(secret for _, secret in _split_args(args) if secret)


def redact_args(args: Sequence[str]) -> list[str]:
    return [f"{shown}{HIDDEN}" if secret else shown for shown, secret in _split_args(args)]


def _split_args(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument as what may be shown, and what may not."""
    for before, arg in zip(("", *args), args, strict=False):
        named = _NAMED.match(arg)
        if named is not None and is_secret_name(named["name"]):
            yield arg[: named.start("value")], named["value"]
        elif _asks_for_a_secret(before) and not arg.startswith("-"):
            yield "", arg
        else:
            yield arg, ""


def _asks_for_a_secret(option: str) -> bool:
    return option.startswith("-") and "=" not in option and is_secret_name(option)


def _without_user(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host


def _shown(name: str, value: str) -> str:
    return f"{quote(name)}={HIDDEN if is_secret_name(name) else quote(value)}"
