"""What one server offers to one identity: its tools, prompts, resources and templates.

An `Offer` is made whole from one complete listing and never changes; the next listing makes the
next one. A server that is out of reach keeps its last offer, marked stale. One that never
answered has an empty offer: its name is then known, and no other server's tool can pass for one
of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from toolkeep._catalogue.tool import SHOWN, Tool, alike
from toolkeep._rules.naming import full_name

if TYPE_CHECKING:
    import mcp_types

__all__ = ["Listed", "Offer", "Prompt", "Resource", "Template"]

Definition = TypeVar("Definition")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Listed(ABC, Generic[Definition]):
    """Something that a server has listed. Its identity is the pair `key`."""

    server: str
    definition: Definition
    """As the server listed it. To be read only."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, str]: ...

    @property
    def name(self) -> str:
        """The key in one string: unique among its kind in a catalogue."""
        return full_name(*self.key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.server == other.server and alike(self.definition, other.definition)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name[:SHOWN]!r})"


class Prompt(Listed["mcp_types.Prompt"]):
    """One prompt of one server; its name is `server.prompt`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.name

    @property
    def prompt(self) -> str:
        """What the server itself calls it."""
        return self.definition.name


class Resource(Listed["mcp_types.Resource"]):
    """One resource of one server; its name is `server.uri`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.uri

    @property
    def uri(self) -> str:
        return self.definition.uri


class Template(Listed["mcp_types.ResourceTemplate"]):
    """One template of resources of one server; its name is `server.uri_template`."""

    __slots__ = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.uri_template

    @property
    def uri_template(self) -> str:
        return self.definition.uri_template


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """Made by who lists; compared by identity: the same offer is the same listing."""

    server: str
    tools: tuple[Tool, ...] = ()
    prompts: tuple[mcp_types.Prompt, ...] = ()
    resources: tuple[mcp_types.Resource, ...] = ()
    templates: tuple[mcp_types.ResourceTemplate, ...] = ()
    stale: bool = False
    """Whether the server is out of reach, and this is what it last said."""
    instructions: str | None = None
    """What the server tells a model about itself."""
    missing: bool = False
    """Whether it could not be asked just now: what it offers to this caller is not known."""

    def __repr__(self) -> str:
        counts: dict[str, Any] = {
            "tools": len(self.tools),
            "prompts": len(self.prompts),
            "resources": len(self.resources),
            "templates": len(self.templates),
        }
        said = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"Offer({self.server!r}{said}{', stale' if self.stale else ''})"
