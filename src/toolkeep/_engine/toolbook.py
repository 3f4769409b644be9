"""What a client knows about its server's tools: their schemas, checked once, and their marks.

Filled by `list_tools` alone; a call never lists by itself. A malformed tool is left out and said
so, the others are kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import Tool, ToolAnnotations
from pydantic import ConfigDict, ValidationError

from toolkeep._rules import schema
from toolkeep.config.frozen import frozen, thawed

logger = logging.getLogger("toolkeep.tools")

SLICE = 100
"""Items of a list that are made into models at a time: about 2 ms."""
_MOST_NAMED = 20
"""Tools of one listing that are named in the log as left out."""


class FrozenAnnotations(ToolAnnotations):
    """The SDK's model, without a way to assign."""

    model_config = ConfigDict(frozen=True)


class FrozenTool(Tool):
    """A tool as its server listed it, which nobody can alter. The client checks calls by it, and
    catalogues show it: one object for all."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, tool: Tool) -> Self:
        held = {name: frozen(value) for name, value in tool.__dict__.items()}
        marks = tool.annotations
        if marks is not None:
            given = marks.model_fields_set
            held["annotations"] = FrozenAnnotations.model_construct(given, **marks.__dict__)
        return cls.model_construct(tool.model_fields_set, **held)

    def copied(self) -> Tool:
        """A plain copy. `model_copy(deep=True)` takes more than twice as long."""
        held = {name: thawed(value) for name, value in self.__dict__.items()}
        if self.annotations is not None:
            held["annotations"] = ToolAnnotations.model_construct(
                self.annotations.model_fields_set, **self.annotations.__dict__
            )
        if self.execution is not None:
            held["execution"] = self.execution.model_copy()
        if self.icons is not None:
            held["icons"] = [icon.model_copy() for icon in self.icons]
        return Tool.model_construct(self.model_fields_set, **held)


@dataclass
class KnownTool:
    """One listed tool. Its schemas are compiled when first needed, then kept."""

    server: str
    tool: Tool
    _said: frozenset[str] = frozenset()

    @property
    def repeatable(self) -> bool:
        """The server's word that running it twice is harmless."""
        marks = self.tool.annotations
        return bool(marks and (marks.read_only_hint or marks.idempotent_hint))

    @cached_property
    def arguments(self) -> schema.Checker:
        return self._compiled(self.tool.input_schema, "arguments")

    @cached_property
    def output(self) -> schema.Checker | None:
        found = self.tool.output_schema
        return None if found is None else self._compiled(found, "result")

    @cached_property
    def _header_map(self) -> dict[tuple[str, ...], str]:
        return x_mcp_header_map(self.tool.input_schema)

    def param_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Mcp-Param-*` headers that a modern call mirrors from its arguments."""
        found = mcp_param_headers(self._header_map, arguments)
        return {name.lower(): value for name, value in found.items()}

    def problems(self, checker: schema.Checker, value: Any) -> tuple[str, ...]:
        """What is wrong with the value. That it was not checked is said once for each schema."""
        found = checker.check(value)
        if found.unchecked and checker.what not in self._said:
            self._said |= {checker.what}
            self._say_unchecked(checker.what, found.unchecked)
        return found.problems

    def _say_unchecked(self, what: str, why: str) -> None:
        name = self.tool.name
        logger.warning("%s: the %s of %s are not checked: %s", self.server, what, name, why)

    def _compiled(self, found: Mapping[str, Any], what: str) -> schema.Checker:
        checker = schema.compile(thawed(found), what=what)  # jsonschema-rs takes plain lists only
        if not checker.usable:
            self._say_unchecked(what, checker.reason)
        return checker


class Toolbook:
    """The tools of the last complete listing, by name.

    Never changes; an expired one still marks and checks calls, since it is the best that is known,
    but the next `list_tools` lists again.
    """

    def __init__(self, server: str, raw_tools: Iterable[Any], *, modern: bool) -> None:
        self.expires_at: float | None = None
        """Until when the server vouches for it, in seconds since the epoch."""
        self.ttl = 0.0
        """For how many seconds it did, when it was listed; 0: it does not say."""
        self.public = False
        """Whether the server says that everybody is told the same."""
        self.tools: list[FrozenTool] = []
        self._known: dict[str, KnownTool] = {}
        left_out = LeftOut(server)
        for raw in raw_tools:
            self._add(server, raw, left_out, modern=modern)
        left_out.tell()

    @classmethod
    async def of(cls, server: str, raw_tools: Iterable[Any], *, modern: bool) -> Self:
        """Made in slices: the loop does not stand still for a long list."""
        book, left_out = cls(server, (), modern=modern), LeftOut(server)
        for number, raw in enumerate(raw_tools, 1):
            book._add(server, raw, left_out, modern=modern)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        left_out.tell()
        return book

    async def copies(self) -> list[Tool]:
        """The tools, for callers to do with as they like: calls are checked by the originals."""
        copies: list[Tool] = []
        for tool in self.tools:
            copies.append(tool.copied())
            if len(copies) % SLICE == 0:
                await asyncio.sleep(0)
        return copies

    def _add(self, server: str, raw: Any, left_out: LeftOut, *, modern: bool) -> None:
        tool = _parsed(raw, left_out, modern=modern)
        if tool is not None and tool.name in self._known:
            left_out.add(tool.name, "it is listed twice, and the first counts")
        elif tool is not None:
            self.tools.append(tool)
            self._known[tool.name] = KnownTool(server, tool)

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at

    def get(self, name: str) -> KnownTool | None:
        return self._known.get(name)


class LeftOut:
    """The tools of one listing that cannot be used. The first few are logged by name."""

    def __init__(self, server: str) -> None:
        self._server, self._number = server, 0

    def add(self, name: str, why: str) -> None:
        self._number += 1
        if self._number <= _MOST_NAMED:
            logger.warning("%s: the tool %s is left out: %s", self._server, name[:200], why)

    def tell(self) -> None:
        if self._number > _MOST_NAMED:
            more = self._number - _MOST_NAMED
            logger.warning("%s: %d more tools are left out", self._server, more)


def _parsed(raw: Any, left_out: LeftOut, *, modern: bool) -> FrozenTool | None:
    try:
        tool = Tool.model_validate(raw, by_name=False)
    except ValidationError as error:
        where = error.errors(include_url=False, include_input=False)[0]["loc"]
        name = cast("dict[str, Any]", raw).get("name") if isinstance(raw, dict) else None
        place = ".".join(map(str, where))
        why = f"it is malformed at {place}" if place else "it is no object"
        left_out.add(name if isinstance(name, str) else "without a name", why)
        return None
    # 2026-07-28: a client MUST leave out tools whose header annotations are invalid.
    reason = find_invalid_x_mcp_header(tool.input_schema) if modern else None
    if reason is not None:
        left_out.add(tool.name, f"invalid x-mcp-header: {reason}")
        return None
    return FrozenTool.of(tool)
