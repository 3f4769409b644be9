"""What may be shown to a person. A secret never leaves through a message, a log line or a repr."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

_SECRET_NAME = re.compile(
    r"key|token|secret|passw|passphrase|pass(?![a-z])|pwd|jwt|bearer|auth|sig|credential|session",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(
    r"(?:(?:access|device|invite|login|user|verification)[_-]?)?code|creds?|otp|pin|pw|sid|ticket",
    re.IGNORECASE,
)
"""Names that are secret in a URL's query, and mean something else in most other places."""
_NAMED = re.compile(r"-{0,2}(?P<name>[A-Za-z][\w.-]*)(?:=|:\s+)(?P<value>.+)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
HIDDEN = "***"


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether the value of this query parameter is a secret."""
    return is_secret_name(name) or _SECRET_PARAMETER.fullmatch(name) is not None


_TOKEN_PREFIX = re.compile(
    r"(?:sk|pk|rk|gh[a-z]|glpat|github_pat|xox[a-z]|xapp|ya29|hf|npm|pat|AKIA|AIza|eyJ)[-_.A-Za-z0-9]"
)
_TURN = re.compile(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_OPAQUE, _MIXED, _RANDOM = 32, 20, 16
"""Letters and digits from which on a text is a token: whatever they are; if capitals stand where
words have none; if digits and letters alternate."""


def looks_like_a_token(text: str) -> bool:
    """Whether a text reads like a generated key and not like a word, a version or a date."""
    plain = re.sub(r"[-_.~:=+]", "", text)
    if not plain.isascii() or not plain.isalnum() or len(plain) < _RANDOM:
        return False
    return (
        len(_TURN.findall(plain)) >= 3
        or (len(plain) >= _MIXED and len(_CAPITALS.findall(plain)) >= 2 and not plain.isupper())
        or any(len(run) >= _OPAQUE for run in re.split(r"[-_.~:=+]", text))
        or _TOKEN_PREFIX.match(text) is not None
    )


def redact_url(url: str) -> str:
    """The URL without user and password, without the values of query parameters that sound secret,
    and without whatever in its path or query looks like a token."""
    try:
        parts = urlsplit(url)
        if not parts.netloc and "@" in url:
            return HIDDEN  # credentials in a place where only a guess could find them
        path = "/".join(HIDDEN if hidden else one for one, hidden in _segments(parts.path))
        query = "&".join(_shown(name, value) for name, value in parse_qsl(parts.query, True))
        return urlunsplit((parts.scheme, _without_user(parts), path, query, ""))
    except ValueError:
        return HIDDEN


def secrets_of_url(url: str) -> tuple[str, ...]:
    """What a URL carries in confidence: credentials, parameters that sound secret, and whatever
    looks like a token."""
    parts = urlsplit(url)
    tokens = [unquote(one) for one, hidden in _segments(parts.path) if hidden]
    tokens += [value for _, value in parse_qsl(parts.query, True) if looks_like_a_token(value)]
    return tuple(dict.fromkeys((*misplaced_secrets_of(url), *tokens)))


def misplaced_secrets_of(url: str) -> tuple[str, ...]:
    """What a URL carries that should be a header: credentials, and parameters that sound secret."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query, True) if is_secret_parameter(name)]
    credentials = [unquote(value) for value in (parts.username, parts.password) if value]
    return (*credentials, *named)


def _segments(path: str) -> Iterator[tuple[str, bool]]:
    """The parts of a URL's path, and whether each is secret: it looks like a token, it follows a
    part that announces one (`/token/x`), or it has a parameter of its own (`;key=x`)."""
    before = ""
    for segment in path.split("/"):
        plain = unquote(segment)
        announced = bool(segment) and before.lower() in _ANNOUNCING
        own = any(is_secret_parameter(one.partition("=")[0]) for one in plain.split(";")[1:])
        yield segment, announced or own or looks_like_a_token(plain)
        before = plain


_ANNOUNCING = frozenset(
    {"apikey", "api-key", "api_key", "jwt", "key", "pass", "password", "pwd", "secret", "token"}
)

_SHORTEST, _SHORTEST_PASSWORD = 8, 4
"""Shorter values are words, not secrets; taking them out would spoil the text. What is a password
for sure is taken out even if it is a short one."""
_PARAMETER = re.compile(
    r'(?P<name>[\w.!$%*+-]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;,"]+))'
)


def parts_of_secret(value: str) -> Iterator[str]:
    """A secret, and the parts of it that are secrets by themselves: the key after `Bearer`, user
    and password of `Basic`, the values of cookies and of parameters, credentials of a URL, each
    line of several."""
    _, _, after = value.partition(" ")
    known = [value, after, *value.splitlines(), *_URL.findall(value)]
    for found in _PARAMETER.finditer(value):
        known.append(found["bare"] or re.sub(r"\\(.)", r"\1", found["quoted"] or ""))
    passwords: list[str] = []
    for url in _URL.findall(value):
        with contextlib.suppress(ValueError):
            passwords += secrets_of_url(url)
    user, colon, password = _basic(after or value).partition(":")
    if colon:
        known += [f"{user}:{password}", user]
        passwords.append(password)
    for one in known:
        if len(one) >= _SHORTEST:
            yield one
    for one in passwords:
        if len(one) >= _SHORTEST_PASSWORD:
            yield one


def _basic(text: str) -> str:
    """What is behind the base64 of a `Basic` header; empty if it is none."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def secrets_of_args(args: Sequence[str]) -> tuple[str, ...]:
    """What a command line carries that should be in the environment: what follows a name that
    sounds secret, as in `--api-key X`, `--token=X`, `KEY=X` and `Authorization: Bearer X`, and the
    secrets of URLs."""
    return tuple(secret for _, secrets in _split_args(args) for secret in secrets)


def redact_args(args: Sequence[str]) -> list[str]:
    return [shown for shown, _ in _split_args(args)]


def _split_args(args: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each argument as it may be shown, and the secrets that are left out of it."""
    for before, arg in zip(("", *args), args, strict=False):
        named = _NAMED.match(arg)
        if named is not None and is_secret_name(named["name"]):
            yield f"{arg[: named.start('value')]}{HIDDEN}", (named["value"],)
        elif _asks_for_a_secret(before) and not arg.startswith("-"):
            yield HIDDEN, (arg,)
        else:
            yield _without_secrets_of_urls(arg)


def _without_secrets_of_urls(arg: str) -> tuple[str, tuple[str, ...]]:
    secrets: list[str] = []

    def shown(found: re.Match[str]) -> str:
        try:
            secrets.extend(of_it := secrets_of_url(found[0]))
        except ValueError:
            return HIDDEN
        return redact_url(found[0]) if of_it else found[0]

    return _URL.sub(shown, arg), tuple(secrets)


def _asks_for_a_secret(option: str) -> bool:
    return option.startswith("-") and "=" not in option and is_secret_name(option)


def _without_user(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host


def _shown(name: str, value: str) -> str:
    hidden = is_secret_parameter(name) or looks_like_a_token(value)
    return f"{quote(name)}={HIDDEN if hidden else quote(value)}"
