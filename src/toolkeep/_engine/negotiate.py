"""From an open wire to an agreed protocol version.

In auto mode one `server/discover` asks for the era, unless it is known already. The verdict is the
caller's to remember. Faults pass through untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.client.session import ClientSession
from mcp_types import DiscoverResult, InitializeResult
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from toolkeep._rules.classify import classify
from toolkeep._rules.era import Era, Verdict, supported_versions, verdict
from toolkeep._wire.exchange import unreadable
from toolkeep._wire.fault import InvalidAnswer, WireFault
from toolkeep.errors import FailureKind


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides settled on."""

    era: Era
    version: str
    result: InitializeResult | DiscoverResult


class DiedOfProbe(WireFault):
    """The server's process ended while it was asked for its era.

    Some legacy servers (rmcp's) end when the first message is not `initialize`; the next process
    deserves to be asked nothing else.
    """


async def negotiate(
    session: ClientSession,
    *,
    mode: str,
    known: Era | None,
    discovered: DiscoverResult | None = None,
    probe_within: float,
) -> Agreement:
    """Settle era and version. `known` is an earlier verdict; it spares the probe. `discovered` is
    what the server said to another client; it spares everything."""
    if discovered is not None and mode != "legacy":
        return _adopt(session, discovered)
    if mode == "modern":
        return _adopt(session, await _discover_or_refuse(session))
    if mode == "legacy":
        return await _initialize(session)
    if known is Era.LEGACY:
        return await _initialize_or_probe(session, probe_within)
    discovered = await _probe(session, probe_within)
    if discovered is not None:
        return _adopt(session, discovered)
    return await _initialize_or_probe(session, probe_within)


async def _probe(session: ClientSession, within: float) -> DiscoverResult | None:
    """What the server says of itself, or None when it is of the legacy era."""
    try:
        async with asyncio.timeout(within):
            found = await _discover(session)
    except TimeoutError:
        return None  # silent on a method it does not know; the handshake will tell
    except WireFault as fault:
        if fault.evidence.exit_code is not None:
            raise DiedOfProbe(fault.evidence) from None
        if _judge(fault) not in (Verdict.LEGACY, Verdict.OTHER_VERSION):
            raise
        return None  # OTHER_VERSION: it refused the very version that it had asked for
    except (InvalidAnswer, ValidationError):
        return None  # malformed; the handshake will tell
    modern = any(version in MODERN_PROTOCOL_VERSIONS for version in found.supported_versions)
    return found if modern else None


async def _discover(session: ClientSession) -> DiscoverResult:
    try:
        raw = await session.send_discover(LATEST_MODERN_VERSION)
    except WireFault as fault:
        if _judge(fault) is not Verdict.OTHER_VERSION:
            raise
        raw = await session.send_discover(_mutual(fault))
    return DiscoverResult.model_validate(raw)


async def _discover_or_refuse(session: ClientSession) -> DiscoverResult:
    """Discovery where there is no way back: a legacy server is the wrong server, not an outage."""
    try:
        return await _discover(session)
    except ValidationError:
        raise unreadable("the answer to server/discover is not a discovery", None) from None
    except WireFault as fault:
        unread = classify(fault.evidence).kind is FailureKind.UNREADABLE
        if unread or _judge(fault) is not Verdict.LEGACY:
            raise
        reason = fault.evidence.error.message if fault.evidence.error else fault.evidence.detail
    raise unreadable(f"the server knows no modern version ({reason})", None)


async def _initialize_or_probe(session: ClientSession, within: float) -> Agreement:
    """Handshake; a -32022 to it is a modern server after all."""
    try:
        return await _initialize(session)
    except WireFault as fault:
        if _judge(fault) is not Verdict.OTHER_VERSION:
            raise
        refusal = fault
    discovered = await _probe(session, within)
    if discovered is None:
        raise refusal
    return _adopt(session, discovered)


def is_known(handshake: Mapping[str, Any]) -> bool:
    """Whether a handshake that was made earlier means something to this version of ours."""
    try:
        found = InitializeResult.model_validate(handshake)
    except ValidationError:
        return False
    return found.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def adopt(session: ClientSession, handshake: Mapping[str, Any]) -> Agreement:
    """Take up a session where another process left it, without a request. It `is_known`."""
    result = InitializeResult.model_validate(handshake)
    session.adopt(result)
    return Agreement(Era.LEGACY, result.protocol_version, result)


async def _initialize(session: ClientSession) -> Agreement:
    try:
        result = await session.initialize()
    except ValidationError:
        raise unreadable("the answer to initialize is not a handshake", None) from None
    except RuntimeError as error:  # how the SDK says "unsupported version"
        raise unreadable(str(error), None) from None
    return Agreement(Era.LEGACY, result.protocol_version, result)


def _adopt(session: ClientSession, result: DiscoverResult) -> Agreement:
    try:
        session.adopt(result)
    except RuntimeError as error:
        raise unreadable(str(error), None) from None
    return Agreement(Era.MODERN, session.protocol_version or "", result)


def _judge(fault: WireFault) -> Verdict:
    failure = classify(fault.evidence)
    return verdict(failure, modern=MODERN_PROTOCOL_VERSIONS, legacy=HANDSHAKE_PROTOCOL_VERSIONS)


def _mutual(fault: WireFault) -> str:
    supported = supported_versions(classify(fault.evidence).data)
    return [version for version in MODERN_PROTOCOL_VERSIONS if version in supported][-1]
