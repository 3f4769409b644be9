"""Remove secrets from URLs, command lines and text before they are shown, logged or raised.

A value is a secret because of its name (`token`, `api_key`), its place (user and password of a
URL) or its shape (a generated key).
"""

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
"""Names that are secret in a URL's query but harmless in most other places."""
_NAME_AND_VALUE = re.compile(r"-{0,2}(?P<name>[A-Za-z][\w.-]*)(?:=|:\s+)(?P<value>.+)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
HIDDEN = "***"

_TOKEN_PREFIX = re.compile(
    r"(?:sk|pk|rk|gh[a-z]|glpat|github_pat|xox[a-z]|xapp|ya29|hf|npm|pat|AKIA|AIza|eyJ)[-_.A-Za-z0-9]"
)
_LETTER_DIGIT_BOUNDARY = re.compile(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_MIN_OPAQUE, _MIN_MIXED_CASE, _MIN_ALTERNATING = 32, 20, 16
"""Minimum length of a token: of any letters and digits; with several groups of capitals; with
letters and digits that alternate."""
_SECRET_PATH_SEGMENTS = frozenset(
    {"apikey", "api-key", "api_key", "jwt", "key", "pass", "password", "pwd", "secret", "token"}
)
_MIN_SECRET_LENGTH, _MIN_PASSWORD_LENGTH = 8, 4
"""Minimum length of a secret to redact: shorter values are words, and redacting them would spoil
the text. A value that is certainly a password may be shorter."""
_PARAMETER = re.compile(
    r'(?P<name>[\w.!$%*+-]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;,"]+))'
)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether the value of this query parameter is a secret."""
    return is_secret_name(name) or _SECRET_PARAMETER.fullmatch(name) is not None


def looks_like_token(text: str) -> bool:
    """Whether a text looks like a generated key, not like a word, a version or a date."""
    plain = re.sub(r"[-_.~:=+]", "", text)
    if not plain.isascii() or not plain.isalnum() or len(plain) < _MIN_ALTERNATING:
        return False
    return (
        len(_LETTER_DIGIT_BOUNDARY.findall(plain)) >= 3
        or (
            len(plain) >= _MIN_MIXED_CASE
            and len(_CAPITALS.findall(plain)) >= 2
            and not plain.isupper()
        )
        or any(len(run) >= _MIN_OPAQUE for run in re.split(r"[-_.~:=+]", text))
        or _TOKEN_PREFIX.match(text) is not None
    )


def redact_url(url: str) -> str:
    """The URL without user and password, secret query parameters, and anything in its path or query
    that looks like a token."""
    try:
        parts = urlsplit(url)
        if not parts.netloc and "@" in url:
            return HIDDEN  # malformed, and the place of the credentials is unknown
        path = "/".join(HIDDEN if hidden else one for one, hidden in _segments(parts.path))
        query = "&".join(
            _redact_parameter(name, value) for name, value in parse_qsl(parts.query, True)
        )
        return urlunsplit((parts.scheme, _host_and_port(parts), path, query, ""))
    except ValueError:
        return HIDDEN


def secrets_of_url(url: str) -> tuple[str, ...]:
    """The secrets in a URL: credentials, secret query parameters, and anything that looks like a
    token."""
    parts = urlsplit(url)
    tokens = [unquote(one) for one, hidden in _segments(parts.path) if hidden]
    tokens += [value for _, value in parse_qsl(parts.query, True) if looks_like_token(value)]
    return tuple(dict.fromkeys((*misplaced_url_secrets(url), *tokens)))


def misplaced_url_secrets(url: str) -> tuple[str, ...]:
    """The secrets in a URL that belong in a header: credentials and secret query parameters."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query, True) if is_secret_parameter(name)]
    credentials = [unquote(value) for value in (parts.username, parts.password) if value]
    return (*credentials, *named)


def _segments(path: str) -> Iterator[tuple[str, bool]]:
    """The segments of a URL's path, and whether each is secret: it looks like a token, follows a
    segment such as `/token/`, or has a secret parameter (`;key=x`)."""
    before = ""
    for segment in path.split("/"):
        plain = unquote(segment)
        follows = bool(segment) and before.lower() in _SECRET_PATH_SEGMENTS
        has = any(is_secret_parameter(one.partition("=")[0]) for one in plain.split(";")[1:])
        yield segment, follows or has or looks_like_token(plain)
        before = plain


def secret_parts(value: str) -> Iterator[str]:
    """A secret and its parts that are secrets too: the key after `Bearer`, user and password of
    `Basic`, the values of cookies and parameters, credentials of a URL, each of several lines."""
    _, _, after = value.partition(" ")
    known = [value, after, *value.splitlines(), *_URL.findall(value)]
    for found in _PARAMETER.finditer(value):
        known.append(found["bare"] or re.sub(r"\\(.)", r"\1", found["quoted"] or ""))
    passwords: list[str] = []
    for url in _URL.findall(value):
        with contextlib.suppress(ValueError):
            passwords += secrets_of_url(url)
    user, colon, password = _decode_basic(after or value).partition(":")
    if colon:
        known += [f"{user}:{password}", user]
        passwords.append(password)
    for one in known:
        if len(one) >= _MIN_SECRET_LENGTH:
            yield one
    for one in passwords:
        if len(one) >= _MIN_PASSWORD_LENGTH:
            yield one


def _decode_basic(text: str) -> str:
    """Decode the base64 of a `Basic` header; empty if it is not base64."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def secrets_of_args(args: Sequence[str]) -> tuple[str, ...]:
    """The secrets in a command line: values after a secret name, as in `--api-key X`, `--token=X`,
    `KEY=X` and `Authorization: Bearer X`, and the secrets of URLs."""
    return tuple(secret for _, secrets in _redact_each(args) for secret in secrets)


def redact_args(args: Sequence[str]) -> list[str]:
    """The command line with its secrets hidden."""
    return [shown for shown, _ in _redact_each(args)]


def _redact_each(args: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each argument with its secrets hidden, and these secrets."""
    for before, arg in zip(("", *args), args, strict=False):
        named = _NAME_AND_VALUE.match(arg)
        if named is not None and is_secret_name(named["name"]):
            yield f"{arg[: named.start('value')]}{HIDDEN}", (named["value"],)
        elif _is_secret_option(before) and not arg.startswith("-"):
            yield HIDDEN, (arg,)
        else:
            yield _redact_urls_in(arg)


def _redact_urls_in(arg: str) -> tuple[str, tuple[str, ...]]:
    secrets: list[str] = []

    def shown(found: re.Match[str]) -> str:
        try:
            secrets.extend(of_it := secrets_of_url(found[0]))
        except ValueError:
            return HIDDEN
        return redact_url(found[0]) if of_it else found[0]

    return _URL.sub(shown, arg), tuple(secrets)


def _is_secret_option(option: str) -> bool:
    return option.startswith("-") and "=" not in option and is_secret_name(option)


def _host_and_port(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host


def _redact_parameter(name: str, value: str) -> str:
    hidden = is_secret_parameter(name) or looks_like_token(value)
    return f"{quote(name)}={HIDDEN if hidden else quote(value)}"
