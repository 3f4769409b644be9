"""The headers of every HTTP request of one connection.

From low to high: the server's own, its credentials, the call's, the protocol's. The session id and
the version belong to the connection, and nobody else can set them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep._wire.exchange import unreadable
from toolkeep._wire.fault import CredentialsFault
from toolkeep._wire.hush import KnownSecrets
from toolkeep._wire.reply import Reply

Credentials = Callable[[str, bool], Awaitable[Mapping[str, str]]]
"""From an HTTP method to the headers that authorize it; and whether the request is a call that
brings all that is said of its principal with it."""

VERSION = "mcp-protocol-version"
_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,4096}")  # visible ASCII, as the specification demands


class Heading:
    """Lives as long as its dispatcher."""

    def __init__(
        self, headers: Mapping[str, str], credentials: Credentials | None, secrets: KnownSecrets
    ) -> None:
        self._credentials, self._secrets = credentials, secrets
        self._noted: Mapping[str, str] = {}
        self._noted_call: Mapping[str, str] = {}
        self._base = {
            **headers,
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        self.session_id: str | None = None

    async def write(
        self, method: str, protocol: Mapping[str, str], call: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The headers of one request. Raises `CredentialsFault`."""
        headers = dict(self._base)
        if self._credentials is not None:
            given = await self._authorize(self._credentials, method, call is not None)
            if given != self._noted:
                self._secrets.note(given)
                self._noted = dict(given)
            headers.update(given)
        if call:
            if call != self._noted_call:
                self._secrets.note(call)
                self._noted_call = call
            headers.update(call)
        headers.update(protocol)
        if self.session_id is not None:
            headers[_SESSION] = self.session_id
        return headers

    async def _authorize(
        self, credentials: Credentials, method: str, own: bool
    ) -> Mapping[str, str]:
        before = cancellations()
        try:
            return await credentials(method, own)
        except asyncio.CancelledError as error:
            if is_cancelled(before):
                raise
            kind = type(error).__name__
        except Exception as error:
            kind = type(error).__name__
        # Not chained: what an authorizer raises may quote the credentials it works with.
        raise CredentialsFault(f"the authorizer failed with {kind}")

    def resume(self, session_id: str, version: str) -> None:
        self.session_id = session_id
        self._secrets.note({_SESSION: session_id})
        self._base[VERSION] = version

    def remember_version(self, protocol: Mapping[str, str]) -> None:
        """GET and DELETE are made outside of the typed layer, which stamps the rest."""
        version = protocol.get(VERSION)
        if version is not None and version not in MODERN_PROTOCOL_VERSIONS:
            self._base[VERSION] = version

    def capture_session(self, reply: Reply) -> None:
        """Take the session id from the answer to `initialize`, the only place to look for it."""
        session_id = reply.headers.get(_SESSION)
        if session_id is not None and not _SESSION_ID.fullmatch(session_id):
            raise unreadable("the server sent a session id that is not visible ASCII", reply.status)
        self.session_id = session_id
        if session_id is not None:
            self._secrets.note({_SESSION: session_id})
