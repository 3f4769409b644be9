"""How a scripted server is built: one frozen record that crosses the process border as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from mainstay.testing.losses import PYTHON_SDK, SessionLoss
from mainstay.testing.script import Encoding, JsonObject

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
Era = Literal["legacy", "modern", "both"]


class ServerOptions(TypedDict, total=False):
    """The keyword arguments of `ScriptedServer.spawn` and `ScriptedServer.local`."""

    era: Era
    encoding: Encoding
    sessions: bool
    session_loss: SessionLoss
    tools: Sequence[JsonObject]
    page_size: int | None
    protocol_version: str
    get_stream: bool
    api_key: str | None
    port: int
    tls: tuple[str, str] | None
    initialize_delay: float
    keep_alive: float | None
    strict: bool
    record: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    era: Era = "both"
    encoding: Encoding = "json"
    sessions: bool = True
    session_loss: SessionLoss = PYTHON_SDK
    tools: Sequence[JsonObject] = ()
    page_size: int | None = None
    protocol_version: str = LEGACY[-1]
    get_stream: bool = True
    api_key: str | None = None
    port: int = 0
    tls: tuple[str, str] | None = None
    initialize_delay: float = 0.0
    keep_alive: float | None = None
    strict: bool = True
    record: bool = True

    def __post_init__(self) -> None:
        if self.protocol_version not in LEGACY:
            raise ValueError(f"protocol_version must be one of {', '.join(LEGACY)}")

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Settings:
        known: dict[str, Any] = {**raw, "session_loss": SessionLoss(**raw["session_loss"])}
        return cls(**known)
