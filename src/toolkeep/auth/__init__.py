"""Who we are to a server: the `Authorizer` seam, and the simplest of them.

An authorizer is asked for headers before every request, the handshake and health included, and
once more after a 401 or 403. It must take its token, release its locks and return: it never sees
the request being sent. A failing authorizer fails the request; nothing goes out without identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

__all__ = ["Authorizer", "StaticKey"]


@runtime_checkable
class Authorizer(Protocol):
    """Gives each request its credentials."""

    async def headers(
        self, server: str, principal: str | None, method: str, url: str
    ) -> Mapping[str, str]:
        """Headers for one HTTP request (`method` is the HTTP method)."""
        ...

    async def challenged(self, status: int, headers: Mapping[str, str]) -> bool:
        """Asked once a call after a 401 or 403. True: credentials changed, send again."""
        ...


class StaticKey:
    """One key, sent as a bearer token."""

    def __init__(self, key: str) -> None:
        self._headers = {"authorization": f"Bearer {key}"}

    def __repr__(self) -> str:
        return "StaticKey(***)"

    async def headers(
        self, server: str, principal: str | None, method: str, url: str
    ) -> Mapping[str, str]:
        return self._headers

    async def challenged(self, status: int, headers: Mapping[str, str]) -> bool:
        return False
