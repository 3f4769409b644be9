"""One server under examination: what is configured, where that is written, and how long to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from toolkeep._wire.tap import Tap
from toolkeep.config import Origin, ServerSpec, redact_url, secrets_of_url

HTTP_WAIT, PROGRAM_WAIT = 10.0, 60.0
"""Seconds for each step; `npx` and `uvx` may have to download a program before it speaks."""


@dataclass(frozen=True, slots=True)
class Case:
    spec: ServerSpec
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """Where each of its keys is written."""
    timeout: float | None = None
    slow: float = 1.0
    """Seconds from which on an answer is worth a word."""
    tap: Tap | None = None
    alone: bool = True
    """Whether the server has this address only."""

    @property
    def label(self) -> str:
        return self.spec.name if self.alone else f"{self.spec.name} at {self.url}"

    @property
    def wait(self) -> float:
        default = PROGRAM_WAIT if self.spec.command else HTTP_WAIT
        return default if self.timeout is None else self.timeout

    @property
    def host(self) -> str:
        return urlsplit(self.spec.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.spec.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def secure(self) -> bool:
        return urlsplit(self.spec.url).scheme == "https"

    @property
    def url(self) -> str:
        """As it may be shown."""
        return redact_url(self.spec.url)

    @property
    def private(self) -> tuple[str, ...]:
        """What the configuration says in confidence."""
        spec = self.spec
        key = (spec.api_key.get_secret_value(),) if spec.api_key is not None else ()
        urls = secrets_of_url(spec.url), secrets_of_url(spec.proxy or "")
        return (*key, *spec.headers.values(), *urls[0], *urls[1], *spec.secrets)

    def place(self, key: str) -> str:
        """A key, and where it is written or would be: `'url' (mcp.json:4)`."""
        near = (self.origins[one] for one in (key, *_AROUND) if one in self.origins)
        origin = next(near, None)
        written = str(origin) if origin is not None and origin != Origin() else ""
        if written and key not in self.origins:
            written = f"{origin.file if origin else ''}, server {self.spec.name!r}".lstrip(", ")
        return f"{key!r} ({written})" if written else repr(key)


_AROUND = ("url", "urls", "command")
