"""What works but is unwise: told as a warning, at the line that asked for it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

from toolkeep.config.parts import TLS
from toolkeep.config.redact import misplaced_secrets_of, redact_url
from toolkeep.config.urls import is_loopback


class ConfigWarning(UserWarning):
    """A configuration that works but is unwise."""


class Doubtful(Protocol):
    """As much of a `ServerSpec` as is judged here."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def urls(self) -> tuple[str, ...]: ...
    @property
    def tls(self) -> TLS: ...


def doubts_about(spec: Doubtful) -> tuple[str, ...]:
    urls = spec.urls or (spec.url,)
    said = list(dict.fromkeys(doubt for url in urls for doubt in _about(url, spec.tls)))
    return tuple(f"{spec.name}: {doubt}" for doubt in said)


def _about(url: str, tls: TLS) -> Iterator[str]:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        yield f"plain http beyond this machine: {redact_url(url)}"
    if misplaced_secrets_of(url):
        yield "the URL carries a secret; use headers or api_key instead"
    if not tls.verify and parts.scheme == "https":
        yield "certificates are not verified; name your own CA in tls.ca_file"


def warn(message: str) -> None:
    """Warn at the first line that is not ours."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, ConfigWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("toolkeep", "pydantic")
