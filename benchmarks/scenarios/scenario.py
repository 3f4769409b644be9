"""What a scenario is: words about it, a server for it, and the function that plays it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Unpack

from benchmarks.scenarios.stage import Stage
from toolkeep.testing.script import ServerOptions

Era = Literal["legacy", "modern"]
Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One trouble, and what a client should make of it."""

    name: str
    trouble: str
    wanted: str
    play: Play
    choice: str = ""
    """Where another client may rightly decide otherwise: how. No total counts it."""
    eras: tuple[Era, ...] = ("legacy", "modern")
    server: ServerOptions = field(default_factory=ServerOptions)
    """Options of its `ScriptedServer`."""


def scenario(
    trouble: str,
    wanted: str,
    *,
    choice: str = "",
    eras: tuple[Era, ...] = ("legacy", "modern"),
    **server: Unpack[ServerOptions],
) -> Callable[[Play], Scenario]:
    """Make a scenario of the function that plays it, and name it after that function."""

    def named(play: Play) -> Scenario:
        name = getattr(play, "__name__", "").replace("_", "-")
        return Scenario(name, trouble, wanted, play, choice, eras, server)

    return named
