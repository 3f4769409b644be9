"""Which tools a program may see and call.

By default a program sees the whole catalogue of its context and may call what is marked read-only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from toolkeep._catalogue.catalogue import Catalogue, closest_names
from toolkeep._catalogue.tool import Tool
from toolkeep._rules.access import PatternSet, split_patterns
from toolkeep._runtime.resolve import RuntimeResource
from toolkeep._runtime.tool_search import SearchableRuntime
from toolkeep.context import CallContext

Owned = TypeVar("Owned", bound=RuntimeResource)

WORD = re.compile(r"[^\W\d]\w*")


class ProgramRuntime(SearchableRuntime, Protocol):
    """What programs search and call: a `Runtime`, or a part of one."""

    async def catalogue_for(self, context: CallContext | None = None) -> Catalogue: ...

    def component(self, kind: type[Owned]) -> Owned: ...


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Selects tools by patterns; `!pattern` excludes."""

    included: PatternSet
    excluded: PatternSet

    @classmethod
    def of(cls, patterns: Collection[str], key: str) -> ToolFilter:
        included, excluded = split_patterns(patterns, key)
        return cls(PatternSet.of(included), PatternSet.of(excluded))

    def matches(self, tool: Tool) -> bool:
        subject = (*tool.key, tool.tags)
        return self.included.match(*subject) and not self.excluded.match(*subject)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which tools a program may see, and which it may call."""

    visible: ToolFilter
    allowed: ToolFilter

    @classmethod
    def of(cls, tools: Collection[str] | None, allow: Collection[str]) -> Policy:
        visible = ToolFilter.of(("*",) if tools is None else tools, "tools")
        return cls(visible, ToolFilter.of(allow, "allow"))

    def shows(self, tool: Tool) -> bool:
        return self.visible.matches(tool)

    def permits(self, tool: Tool) -> bool:
        """Whether a program may call it: visible, and read-only or allowed."""
        return self.shows(tool) and (tool.read_only or self.allowed.matches(tool))


@dataclass(frozen=True, slots=True)
class ProgramTools:
    """The tools of one context, by their names in a program, and the policy for them."""

    names: Mapping[str, Tool]
    policy: Policy

    @classmethod
    async def of(
        cls, runtime: ProgramRuntime, context: CallContext | None, policy: Policy
    ) -> ProgramTools:
        return cls((await runtime.catalogue_for(context)).python_names, policy)

    def mentioned(self, source: str) -> dict[str, Tool]:
        """The permitted tools whose names occur in the source: it can call no others."""
        found = {word: self.names[word] for word in WORD.findall(source) if word in self.names}
        return {name: tool for name, tool in found.items() if self.policy.permits(tool)}

    def explain(self, name: str) -> str:
        """Why a name is undefined in the program; empty if the name suggests no tool."""
        tool = self.names.get(name)
        if tool is not None and self.policy.shows(tool):
            allow = f'allow=["{tool.name[:200]}"]'
            return f"{name} is not marked read-only: the caller of this program can {allow}"
        if "__" not in name:
            return ""
        near = closest_names(
            name, (one for one, tool in self.names.items() if self.policy.permits(tool))
        )
        return f"there is no tool {name}. Did you mean {' or '.join(near)}?" if near else ""
