"""One tool of one server, as the catalogue shows it.

What the server said is `definition`, and it is never altered: whatever differs for a model or a
user stands beside it, or is made on a copy. The hints are the server's word about itself, read
with the defaults of the specification; tags, headers and the guide are ours.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from toolkeep._rules import headers as header_rules
from toolkeep._rules.naming import full_name, model_name
from toolkeep._rules.strict import strict
from toolkeep.config.frozen import FrozenDict, thawed
from toolkeep.context import CallContext
from toolkeep.errors import InvalidArguments
from toolkeep.results import CallResult

if TYPE_CHECKING:
    import mcp_types

    from toolkeep._engine.call import Call

__all__ = ["Tool"]

_NO_HEADERS: FrozenDict[str] = FrozenDict()
_NO_TAGS: frozenset[str] = frozenset()
_NONE_YET: frozenset[tuple[str, str]] = frozenset()


class Caller(Protocol):
    """Somebody who can call tools: a `Runtime`."""

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
    ) -> CallResult: ...

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
    ) -> Call: ...


SHOWN = 200
"""Characters of a name in a repr: a server may call its tool anything."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool:
    """Frozen, small, and valid for as long as anyone keeps it. Its identity is the pair `key`."""

    server: str
    definition: mcp_types.Tool
    """As the server listed it. In a catalogue it is frozen: altering it raises."""
    tags: frozenset[str] = _NO_TAGS
    """The user's, from the configuration. A server cannot tag itself."""
    headers: Mapping[str, str] = _NO_HEADERS
    """Sent with every call of this tool, where there is HTTP: as configured when this was made.
    Values are treated as secrets."""
    own_headers: Mapping[str, str] = _NO_HEADERS
    """What `with_headers` has put on it. It says who is calling, as the headers of a call do."""
    guide: str = ""
    """How to use it well, in the user's words: appended to the description."""
    stale: bool = False
    """Whether the server is out of reach, and this is what it last said."""
    progressed: Container[tuple[str, str]] = _NONE_YET
    """The keys of all tools that have reported progress: one record, shared and alive."""
    caller: Caller | None = None
    """Whoever can call it: the runtime that resolved it."""
    context: CallContext | None = None
    """On whose behalf it is called, unless the call says otherwise."""

    @property
    def name(self) -> str:
        """`server.tool`: unique in a catalogue."""
        return full_name(self.server, self.definition.name)

    @property
    def tool(self) -> str:
        """What the server itself calls it."""
        return self.definition.name

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.definition.name

    @property
    def model_name(self) -> str:
        """The name for model providers: `[A-Za-z0-9_-]{1,64}`, the same in every process."""
        return model_name(self.server, self.definition.name)

    @property
    def title(self) -> str:
        """For people: the title, or else the name."""
        marks = self.definition.annotations
        older = marks.title if marks else None
        return self.definition.title or older or self.definition.name

    @property
    def description(self) -> str:
        """The server's, and after a blank line the guide."""
        said = self.definition.description or ""
        return "\n\n".join(part for part in (said, self.guide) if part)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The server's own; a copy, to do with as one likes."""
        return thawed(self.definition.input_schema)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """A copy, likewise."""
        return thawed(self.definition.output_schema)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The server's `_meta`."""
        return self.definition.meta or {}

    @property
    def read_only(self) -> bool:
        """It changes nothing, says its server. Not said: it may."""
        marks = self.definition.annotations
        return bool(marks and marks.read_only_hint)

    @property
    def destructive(self) -> bool:
        """It may destroy something. Not said: it may, unless it is read-only."""
        marks = self.definition.annotations
        return not self.read_only and not (marks and marks.destructive_hint is False)

    @property
    def idempotent(self) -> bool:
        """Once or twice is the same, says its server; of what is read-only, always."""
        marks = self.definition.annotations
        return self.read_only or bool(marks and marks.idempotent_hint)

    @property
    def open_world(self) -> bool:
        """It may reach beyond its server. Not said: it may."""
        marks = self.definition.annotations
        return not (marks and marks.open_world_hint is False)

    @property
    def supports_streaming(self) -> bool:
        """Whether it has reported progress before."""
        return self.key in self.progressed

    async def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        """Call it. The options are those of `Runtime.call`."""
        return await self._caller().call(
            self, arguments, context=context or self.context, **options
        )

    def stream(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        """Call it and watch, as with `Runtime.stream`."""
        return self._caller().stream(self, arguments, context=context or self.context, **options)

    def _caller(self) -> Caller:
        if self.caller is None:
            raise RuntimeError("only a tool that a runtime has resolved can be called")
        return self.caller

    def strict_schema(self) -> dict[str, Any]:
        """The input schema for a provider's strict mode, as near as it comes. A copy."""
        return strict(self.definition.input_schema)

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        """A copy that sends these too; of two with one name, the new one is sent."""
        try:
            given = header_rules.check(headers, origin="the tool")
        except header_rules.HeaderRefused as refused:
            why = f"{self.name[:SHOWN]}: {refused}"
            raise InvalidArguments(why, server=self.server, tool=self.tool) from None
        merged = header_rules.merge(given, self.own_headers)
        return replace(self, own_headers=FrozenDict(merged))

    def with_description(self, text: str) -> Self:
        """A copy with exactly this description, and no guide."""
        return replace(
            self, definition=self.definition.model_copy(update={"description": text}), guide=""
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tool):
            return NotImplemented
        return self is other or (
            self.stale == other.stale
            and dict(self.headers) == dict(other.headers)
            and dict(self.own_headers) == dict(other.own_headers)
            and offers_the_same(self, other)
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Tool({self.name[:SHOWN]!r}{', stale' if self.stale else ''})"


def offers_the_same(one: Tool, other: Tool) -> bool:
    """Whether a model would be told the same of both."""
    return (
        one.server == other.server
        and one.guide == other.guide
        and one.tags == other.tags
        and alike(one.definition, other.definition)
    )


def alike(one: object, other: object) -> bool:
    """Equality of what servers sent: nested deeper than the stack, it counts as different."""
    try:
        return one is other or one == other
    except RecursionError:
        return False
