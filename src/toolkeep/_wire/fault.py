"""How trouble leaves the wire: as one exception that carries its evidence.

`WireFault` is an `MCPError`, because the SDK's listen driver contains nothing else, with a code
outside of -32768…-32000, the range in which a peer's errors live.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

from mcp.shared.exceptions import MCPError

from toolkeep._rules.classify import Evidence
from toolkeep._rules.era import handshake_stands

logger = logging.getLogger("toolkeep.wire")

LOCAL_FAULT = -1
"""The code of faults that no peer sent."""


class WireFault(MCPError):
    """A request that brought no result, with all that is known about it."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(code=LOCAL_FAULT, message=evidence.detail)
        self.evidence = evidence


class InvalidAnswer(MCPError):
    """The server answered this request with something the protocol does not allow."""

    def __init__(self, detail: str, raw: dict[str, Any]) -> None:
        super().__init__(code=LOCAL_FAULT, message=detail)
        self.raw = raw


class CredentialsFault(MCPError):
    """The authorizer failed, so the request was not sent."""

    def __init__(self, detail: str) -> None:
        super().__init__(code=LOCAL_FAULT, message=detail)


@contextlib.contextmanager
def tolerating(method: str) -> Generator[None]:
    """Around sending a notification: an error of the server's own does not undo the handshake."""
    try:
        yield
    except WireFault as fault:
        if not handshake_stands(method, fault.evidence.status):
            raise
        logger.debug("%s was answered by HTTP %s", method, fault.evidence.status)
