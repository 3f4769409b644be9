"""How a scripted server is built: frozen records that cross the process border as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from toolkeep.testing.losses import PYTHON_SDK, SessionLoss
from toolkeep.testing.script import Encoding, JsonObject

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
Era = Literal["legacy", "modern", "both"]
Transport = Literal["streamable", "sse"]


class SharedOptions(TypedDict, total=False):
    """What a server may be told on every transport."""

    era: Era
    tools: Sequence[JsonObject]
    page_size: int | None
    protocol_version: str
    initialize_delay: float
    strict: bool
    record: bool
    journal: str | None
    wishes: bool


class ServerOptions(SharedOptions, total=False):
    """The keyword arguments of `ScriptedServer.spawn` and `ScriptedServer.local`."""

    transport: Transport
    endpoint: str | None
    encoding: Encoding
    sessions: bool
    session_loss: SessionLoss
    get_stream: bool
    api_key: str | None
    port: int
    tls: tuple[str, str] | None
    keep_alive: float | None


class ProcessOptions(TypedDict, total=False):
    """What the processes of a stdio server do by themselves."""

    stdout_noise: str | None
    stderr: str | None
    exit_at_start: int | None
    ignore: Sequence[str]
    exit_on: Sequence[str]
    deaf: bool
    children: int
    stubborn: bool
    ignore_stdin_end: bool
    ignore_sigterm: bool


class StdioOptions(SharedOptions, ProcessOptions, total=False):
    """The keyword arguments of `ScriptedServer.stdio`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    era: Era = "both"
    transport: Transport = "streamable"
    endpoint: str | None = None
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
    """Whether requests are kept, to be read with `requests`. A long soak has no room for them."""
    journal: str | None = None
    """A file to which every run of a tool is written before it begins (see `_journal`), in place of
    the ledger: it survives a killed process, and costs no memory.
    """
    wishes: bool = False
    """Whether a call may say by its argument `wish` what is done to it (see `_journal`)."""

    def __post_init__(self) -> None:
        if self.protocol_version not in LEGACY:
            raise ValueError(f"protocol_version must be one of {', '.join(LEGACY)}")

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Settings:
        known: dict[str, Any] = {**raw, "session_loss": SessionLoss(**raw["session_loss"])}
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    stdout_noise: str | None = None
    """Printed first of all."""
    stderr: str | None = None
    exit_at_start: int | None = None
    """Exit with this code before anything is read."""
    ignore: Sequence[str] = ()
    """Methods that are recorded and never answered."""
    exit_on: Sequence[str] = ()
    """Methods on which the process exits with code 1, as rmcp's do when the first message is not
    `initialize`.
    """
    deaf: bool = False
    """Never reads stdin, and so does not see its end either."""
    children: int = 0
    """Child processes that live until they are killed or the test's block ends. They inherit the
    pipes. In turns: a plain one, one in a session of its own, one that is an orphan as well.
    """
    stubborn: bool = False
    """The children ignore SIGTERM and SIGHUP."""
    ignore_stdin_end: bool = False
    ignore_sigterm: bool = False

    def to_json(self) -> JsonObject:
        return asdict(self)
