"""`Tool`: one tool of one server, as the catalogue shows it.

The server's definition is never altered; tags, headers and guide from the configuration are
kept beside it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from toolkeep._rules.headers import HeaderRefused, check_headers, merge_headers
from toolkeep._rules.names import full_name, model_name
from toolkeep._rules.strict_schema import to_strict
from toolkeep.config.fields import FrozenDict, thaw
from toolkeep.context import CallContext
from toolkeep.errors import InvalidArguments
from toolkeep.results import CallResult

if TYPE_CHECKING:
    import mcp_types

    from toolkeep._client.call import Call

MAX_NAME_SHOWN = 200
"""Characters of a name in messages: names come from servers, and have no limit."""
_NO_HEADERS: FrozenDict[str] = FrozenDict()
_NO_TAGS: frozenset[str] = frozenset()
_NO_PROGRESS: frozenset[tuple[str, str]] = frozenset()


T = TypeVar("T")


class ToolCaller(Protocol):
    """What can call tools: a `Runtime`."""

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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool:
    """One tool of one server. Immutable; its identity is the pair `key`."""

    server: str
    definition: mcp_types.Tool
    """As the server listed it. In a catalogue it is frozen: altering it raises."""
    tags: frozenset[str] = _NO_TAGS
    """From the configuration of the user. A server cannot set them."""
    headers: Mapping[str, str] = _NO_HEADERS
    """From the configuration: sent with every call of this tool over HTTP. Values are treated as
    secrets."""
    own_headers: Mapping[str, str] = _NO_HEADERS
    """Added by `with_headers`. They identify the caller, as headers of a call do."""
    guide: str = ""
    """How to use it, from the configuration: appended to the description."""
    stale: bool = False
    """Whether the server is out of reach, and this is from its last listing."""
    tools_with_progress: Container[tuple[str, str]] = _NO_PROGRESS
    """The keys of all tools that have reported progress: one live set, shared by all tools."""
    caller: ToolCaller | None = None
    """The runtime that resolved it, and that its `call` uses."""
    context: CallContext | None = None
    """For whom it is called, unless the call gives another context."""

    @property
    def name(self) -> str:
        """`server.tool`: unique in a catalogue."""
        return full_name(self.server, self.definition.name)

    @property
    def tool(self) -> str:
        """Its name at the server."""
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
        hints = self.definition.annotations
        hinted = hints.title if hints else None
        return self.definition.title or hinted or self.definition.name

    @property
    def description(self) -> str:
        """The server's description, and after a blank line the guide."""
        parts = (self.definition.description or "", self.guide)
        return "\n\n".join(part for part in parts if part)

    @property
    def input_schema(self) -> dict[str, Any]:
        """A copy of the server's input schema."""
        return thaw(self.definition.input_schema)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """A copy of the server's output schema, if it has one."""
        return thaw(self.definition.output_schema)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The server's `_meta`."""
        return self.definition.meta or {}

    @property
    def read_only(self) -> bool:
        """Whether the server says that it changes nothing. Default: no."""
        hints = self.definition.annotations
        return bool(hints and hints.read_only_hint)

    @property
    def destructive(self) -> bool:
        """Whether it may destroy something. Default: yes, unless it is read-only."""
        hints = self.definition.annotations
        return not self.read_only and not (hints and hints.destructive_hint is False)

    @property
    def idempotent(self) -> bool:
        """Whether the server says that calling twice is like calling once. Default: if it is
        read-only."""
        hints = self.definition.annotations
        return self.read_only or bool(hints and hints.idempotent_hint)

    @property
    def open_world(self) -> bool:
        """Whether it may reach beyond its server. Default: yes."""
        hints = self.definition.annotations
        return not (hints and hints.open_world_hint is False)

    @property
    def supports_streaming(self) -> bool:
        """Whether it has reported progress before."""
        return self.key in self.tools_with_progress

    @overload
    async def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: None = None,
        **options: Any,
    ) -> CallResult: ...

    @overload
    async def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        result_type: type[T],
        **options: Any,
    ) -> T: ...

    async def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Any:
        """Call it. The options are those of `Runtime.call`."""
        return await self._require_caller().call(
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
        return self._require_caller().stream(
            self, arguments, context=context or self.context, **options
        )

    def _require_caller(self) -> ToolCaller:
        if self.caller is None:
            raise RuntimeError(
                "this tool has no runtime: get it from `runtime.resolve(…)` to call it"
            )
        return self.caller

    def strict_schema(self) -> dict[str, Any]:
        """The input schema adapted to a provider's strict mode, as far as possible. A copy."""
        return to_strict(self.definition.input_schema)

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        """A copy that also sends these headers. They replace earlier ones of the same name."""
        try:
            given = check_headers(headers, origin="the tool")
        except HeaderRefused as refused:
            why = f"{self.name[:MAX_NAME_SHOWN]}: {refused}"
            raise InvalidArguments(why, server=self.server, tool=self.tool) from None
        merged = merge_headers(given, self.own_headers)
        return replace(self, own_headers=FrozenDict(merged))

    def with_description(self, text: str) -> Self:
        """A copy with exactly this description, without the guide."""
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
            and same_for_models(self, other)
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Tool({self.name[:MAX_NAME_SHOWN]!r}{', stale' if self.stale else ''})"


def same_for_models(one: Tool, other: Tool) -> bool:
    """Whether a model sees no difference between the two."""
    return (
        one.server == other.server
        and one.guide == other.guide
        and one.tags == other.tags
        and safe_equal(one.definition, other.definition)
    )


def safe_equal(one: object, other: object) -> bool:
    """Equality of data from servers. Data nested deeper than the stack counts as different."""
    try:
        return one is other or one == other
    except RecursionError:
        return False
