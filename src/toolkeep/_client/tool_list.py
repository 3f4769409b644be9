"""The tools that a server listed, immutable, with their compiled schemas.

A malformed tool is skipped and logged; the others are kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

from mcp_types import Tool, ToolAnnotations
from pydantic import ConfigDict, ValidationError

from toolkeep._rules.json_schema import SchemaValidator, compile_schema
from toolkeep._rules.protocol_headers import (
    Path,
    annotated_paths,
    annotation_problem,
    param_headers,
)
from toolkeep.config.fields import freeze, thaw

logger = logging.getLogger("toolkeep.client")

TOOLS_PER_SLICE = 100
"""Tools that are parsed without yielding to the event loop: about 2 ms."""
_MAX_LOGGED = 20
"""Skipped tools of one listing that are logged by name."""


class FrozenAnnotations(ToolAnnotations):
    """A tool's annotations, immutable."""

    model_config = ConfigDict(frozen=True)


class FrozenTool(Tool):
    """A tool as its server listed it, immutable: the client's checks and the catalogues share
    it."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, tool: Tool) -> Self:
        fields = {name: freeze(value) for name, value in tool.__dict__.items()}
        annotations = tool.annotations
        if annotations is not None:
            fields_set = annotations.model_fields_set
            fields["annotations"] = FrozenAnnotations.model_construct(
                fields_set, **annotations.__dict__
            )
        return cls.model_construct(tool.model_fields_set, **fields)

    def copied(self) -> Tool:
        """A mutable copy. `model_copy(deep=True)` takes more than twice as long."""
        fields = {name: thaw(value) for name, value in self.__dict__.items()}
        if self.annotations is not None:
            fields["annotations"] = ToolAnnotations.model_construct(
                self.annotations.model_fields_set, **self.annotations.__dict__
            )
        if self.execution is not None:
            fields["execution"] = self.execution.model_copy()
        if self.icons is not None:
            fields["icons"] = [icon.model_copy() for icon in self.icons]
        return Tool.model_construct(self.model_fields_set, **fields)


@dataclass
class ListedTool:
    """A listed tool with its schema validators, compiled when first needed."""

    server: str
    tool: Tool
    _warned: frozenset[str] = frozenset()

    @property
    def is_repeatable(self) -> bool:
        """Whether the server marks the tool as read-only or idempotent."""
        annotations = self.tool.annotations
        return bool(annotations and (annotations.read_only_hint or annotations.idempotent_hint))

    @cached_property
    def arguments_checker(self) -> SchemaValidator:
        return self._compile(self.tool.input_schema, "arguments")

    @cached_property
    def output_checker(self) -> SchemaValidator | None:
        found = self.tool.output_schema
        return None if found is None else self._compile(found, "result")

    @cached_property
    def _header_paths(self) -> dict[Path, str]:
        return annotated_paths(self.tool.input_schema)

    def param_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Mcp-Param-*` headers of a modern call, taken from its arguments."""
        return param_headers(self._header_paths, arguments)

    def problems(self, checker: SchemaValidator, value: Any) -> tuple[str, ...]:
        """What is wrong with the value. If it could not be checked, that is logged once for each
        schema."""
        found = checker.check(value)
        if found.skipped_because and checker.subject not in self._warned:
            self._warned |= {checker.subject}
            self._warn_unchecked(checker.subject, found.skipped_because)
        return found.problems

    def _warn_unchecked(self, what: str, why: str) -> None:
        name = self.tool.name
        logger.warning("%s: the %s of %s cannot be checked: %s", self.server, what, name, why)

    def _compile(self, found: Mapping[str, Any], what: str) -> SchemaValidator:
        checker = compile_schema(thaw(found), what=what)  # jsonschema-rs takes plain lists only
        if not checker.usable:
            self._warn_unchecked(what, checker.reason)
        return checker


class ToolList:
    """The tools of the last complete listing, by name.

    Never changes. An expired list is still used to check calls; the next `list_tools` lists again.
    """

    def __init__(self, server: str, raw_tools: Iterable[Any], *, modern: bool) -> None:
        self.expires_at: float | None = None
        """When the server's `ttlMs` ends, in seconds since the epoch; None: no limit."""
        self.ttl = 0.0
        """The server's `ttlMs` in seconds; 0: not given."""
        self.public = False
        """Whether the server says that the list is the same for all principals."""
        self.tools: list[FrozenTool] = []
        self._by_name: dict[str, ListedTool] = {}
        skipped = SkippedTools(server)
        for raw in raw_tools:
            self._add(server, raw, skipped, modern=modern)
        skipped.log_remainder()

    @classmethod
    async def of(cls, server: str, raw_tools: Iterable[Any], *, modern: bool) -> Self:
        """Parse a tool list in slices, so that a long one does not block the event loop."""
        tools, skipped = cls(server, (), modern=modern), SkippedTools(server)
        for number, raw in enumerate(raw_tools, 1):
            tools._add(server, raw, skipped, modern=modern)
            if number % TOOLS_PER_SLICE == 0:
                await asyncio.sleep(0)
        skipped.log_remainder()
        return tools

    async def copies(self) -> list[Tool]:
        """Mutable copies of the tools; calls are checked by the originals."""
        copies: list[Tool] = []
        for tool in self.tools:
            copies.append(tool.copied())
            if len(copies) % TOOLS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return copies

    def _add(self, server: str, raw: Any, skipped: SkippedTools, *, modern: bool) -> None:
        tool = _parse_tool(raw, skipped, modern=modern)
        if tool is not None and tool.name in self._by_name:
            skipped.add(tool.name, "it is listed twice; the first entry is used")
        elif tool is not None:
            self.tools.append(tool)
            self._by_name[tool.name] = ListedTool(server, tool)

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at

    def get(self, name: str) -> ListedTool | None:
        return self._by_name.get(name)


class SkippedTools:
    """Logs the unusable tools of one listing, the first few by name."""

    def __init__(self, server: str) -> None:
        self._server, self._number = server, 0

    def add(self, name: str, why: str) -> None:
        self._number += 1
        if self._number <= _MAX_LOGGED:
            logger.warning("%s: the tool %s is skipped: %s", self._server, name[:200], why)

    def log_remainder(self) -> None:
        if self._number > _MAX_LOGGED:
            more = self._number - _MAX_LOGGED
            logger.warning("%s: %d more tools are skipped", self._server, more)


def _parse_tool(raw: Any, skipped: SkippedTools, *, modern: bool) -> FrozenTool | None:
    try:
        tool = Tool.model_validate(raw, by_name=False)
    except ValidationError as error:
        where = error.errors(include_url=False, include_input=False)[0]["loc"]
        name = cast("dict[str, Any]", raw).get("name") if isinstance(raw, dict) else None
        place = ".".join(map(str, where))
        why = f"it is malformed at {place}" if place else "it must be an object"
        skipped.add(name if isinstance(name, str) else "without a name", why)
        return None
    # 2026-07-28: a client MUST skip tools whose header annotations are invalid.
    if modern and (reason := annotation_problem(tool.input_schema)):
        skipped.add(tool.name, f"invalid x-mcp-header: {reason}")
        return None
    return FrozenTool.of(tool)
