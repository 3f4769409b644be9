"""What is true of one server now, for people and programs that look after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from toolkeep._catalogue.supplier import Supplier
from toolkeep._engine.endpoints import Endpoint, endpoints_of
from toolkeep._engine.figures import Figures, ServerFigures
from toolkeep._rules.membership import Health, Member, MemberState

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """A snapshot: it does not change when the server does."""

    name: str
    transport: str
    """`http`, `sse`, `stdio` or `local`."""
    state: MemberState
    health: Health
    error: BaseException | None = None
    """Why it is not connected, while it is not."""
    last_error: BaseException | None = None
    """What went wrong last, however long ago."""
    latency: float | None = None
    """Seconds that its last sign of life took."""
    era: str | None = None
    protocol_version: str | None = None
    server_version: str | None = None
    """What it calls itself."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    stale: bool = False
    """Whether these are what it last offered, because it is out of reach."""
    sessions: int = 0
    """Of principals, beside its own."""
    in_flight: int = 0
    endpoints: tuple[Endpoint, ...] = ()
    """Its addresses, if it has several."""
    figures: ServerFigures


def status_of(member: Member[Supplier], figures: Figures) -> ServerStatus:
    supplier, sessions = member.server, member.server.now
    client = sessions.own if sessions else None
    stock, said = supplier.stock, client.handshake if client else None
    offer = stock.shown if stock else supplier.nothing
    info = _info(said)
    return ServerStatus(
        name=member.name,
        transport=_transport(supplier),
        state=member.state,
        health=member.health,
        error=member.error,
        last_error=member.last_error,
        latency=member.latency,
        era=client.era if client else None,
        protocol_version=client.protocol_version if client else None,
        server_version=info,
        tools=len(offer.tools),
        prompts=len(offer.prompts),
        resources=len(offer.resources),
        stale=offer.stale,
        sessions=sessions.admission.size if sessions else 0,
        in_flight=figures.server(member.name).in_flight,
        endpoints=endpoints_of(sessions.grounds) if sessions else (),
        figures=figures.server(member.name),
    )


def _info(said: Any) -> str | None:
    """Legacy servers say it in their handshake, modern ones in the `_meta` of their discovery."""
    if said is None:
        return None
    info: Any = getattr(said, "server_info", None)
    if info is not None:
        return f"{info.name} {info.version}"
    meta: Mapping[str, Any] = said.meta or {}
    found = meta.get(_SERVER_INFO)
    if not isinstance(found, Mapping):
        return None
    given = cast("Mapping[str, Any]", found)
    return " ".join(str(given[key]) for key in ("name", "version") if given.get(key)) or None


def _transport(supplier: Supplier) -> str:
    spec, sessions = supplier.spec, supplier.now
    if spec.transport is not None:
        return spec.transport
    if spec.url:
        return "sse" if sessions and sessions.grounds[0].older else "http"
    return "stdio" if spec.command else "local"
