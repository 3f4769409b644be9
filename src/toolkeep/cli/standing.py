"""How each server stands: what is known of it now, in the words of a list."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkeep.cli.screen import Screen
from toolkeep.errors import ConfigError, ToolkeepError

if TYPE_CHECKING:
    from toolkeep import Runtime, ServerStatus

PATIENCE = 5.0
"""Seconds for one sign of life."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    name: str
    transport: str | None = None
    era: str | None = None
    protocol_version: str | None = None
    server_version: str | None = None
    health: str
    latency: float | None = None
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    fault: str | None = None
    """What went wrong last, in a word or two."""
    last_error: str | None = None
    """The same with its evidence."""

    @property
    def is_healthy(self) -> bool:
        return self.health == "healthy"

    def row(self) -> tuple[str, ...]:
        latency = "" if self.latency is None else f"{self.latency * 1000:.0f} ms"
        return (
            self.name,
            self.transport or "",
            self.era or "",
            self.protocol_version or "",
            self.health,
            latency,
            str(self.tools) if self.is_healthy else "",
            self.fault or "",
        )

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


async def standings(runtime: Runtime, names: Collection[str]) -> list[Standing]:
    """Of all servers that are configured, or of those that were named."""
    took = await asyncio.gather(*(_latency(runtime, status) for status in runtime.servers))
    found = [_of(status, one) for status, one in zip(runtime.servers, took, strict=True)]
    if names:
        return found
    configured = runtime.configuration
    waiting = [
        Standing(name=one.name, transport="stdio", health="needs approval", last_error=one.shown)
        for one in configured.needs_approval
    ]
    off = [
        Standing(name=name, health="disabled", last_error=why)
        for name, why in configured.disabled.items()
    ]
    return [*found, *waiting, *off]


def _fault(error: BaseException | None) -> str | None:
    failure = error.failure if isinstance(error, ToolkeepError) else None
    if failure is not None:
        return failure.kind.value
    if isinstance(error, ConfigError):
        return "misconfigured"
    return None if error is None else type(error).__name__


@dataclass(frozen=True)
class Lost:
    """The servers that are not there."""

    errors: Sequence[BaseException]
    is_all: bool


def tell_troubles(runtime: Runtime, screen: Screen) -> Lost:
    """Note the servers that are not there, each with its reason."""
    lost = [status for status in runtime.servers if status.error is not None]
    for status in lost:
        screen.note(f"warning: {status.name} is {status.health.value}: {reason(status.error)}")
    errors = [status.error for status in lost if status.error is not None]
    return Lost(errors, len(errors) == len(runtime.servers))


def reason(error: BaseException | None) -> str:
    """The evidence alone: what follows from it for a call is beside the point here."""
    failure = error.failure if isinstance(error, ToolkeepError) else None
    return str(failure or error or "")


async def _latency(runtime: Runtime, status: ServerStatus) -> float | None:
    if status.error is not None:
        return None
    method = "server/discover" if status.era == "modern" else "ping"
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await runtime.request(status.name, method, timeout=PATIENCE)
    except ToolkeepError:
        return None
    return clock() - began


def _of(status: ServerStatus, latency: float | None) -> Standing:
    return Standing(
        name=status.name,
        transport=status.transport,
        era=status.era,
        protocol_version=status.protocol_version,
        server_version=status.server_version,
        health=status.health.value,
        latency=latency,
        tools=status.tools,
        prompts=status.prompts,
        resources=status.resources,
        fault=_fault(status.error or status.last_error),
        last_error=reason(status.error or status.last_error) or None,
    )
