"""What is wrong with the tools that a server lists. Pure: from raw entries to words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import ValidationError

from toolkeep._doctor.faults import Fault
from toolkeep._doctor.finding import Doubt
from toolkeep._rules import schema

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""As MCP has it since 2025-11-25."""

GRAVE = (Fault.BAD_TOOL, Fault.BAD_SCHEMA)


def judge(raw_tools: Iterable[Any], accepted: Iterable[str]) -> list[Doubt]:
    """`accepted` are the names that the client took."""
    found: list[Doubt] = []
    names: list[str] = []
    taken = set(accepted)
    for place, raw in enumerate(raw_tools, 1):
        name = _name_of(raw, place)
        problems = list(_about(name, raw))
        if not problems and name not in taken:
            why = "its x-mcp-header annotations are invalid, so clients must leave it out"
            problems = [_doubt(Fault.BAD_TOOL, name, why)]
        if name in names:
            problems.append(_doubt(Fault.DUPLICATE_TOOL, name, "another tool has this name"))
        names.append(name)
        found += problems
    return found


def _name_of(raw: Any, place: int) -> str:
    name: Any = cast("Mapping[str, Any]", raw).get("name") if isinstance(raw, Mapping) else None
    return name if isinstance(name, str) else f"number {place}"


def _about(name: str, raw: Any) -> Iterable[Doubt]:
    from mcp_types import Tool

    try:
        tool = Tool.model_validate(raw, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        fault = Fault.BAD_SCHEMA if "Schema" in place else Fault.BAD_TOOL
        yield _doubt(fault, name, f"{place}: {first['msg']}; it is left out")
        return
    kind = tool.input_schema.get("type", "object")
    if kind != "object":
        yield _doubt(Fault.BAD_SCHEMA, name, f"inputSchema.type is {kind!r} and must be 'object'")
    for key, found in (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema)):
        checker = schema.compile(found, what=key) if found is not None else None
        if checker is not None and not checker.usable:
            yield _doubt(Fault.BAD_SCHEMA, name, checker.reason)
    if not _NAME.fullmatch(tool.name):
        why = "the name has other signs than letters, digits, '_', '-' and '.', or is too long"
        yield _doubt(Fault.TOOL_NAME, name, why)


def _doubt(fault: Fault, name: str, why: str) -> Doubt:
    shown = name if len(name) <= 80 else f"{name[:80]}…"
    verb = "Rename" if fault in (Fault.DUPLICATE_TOOL, Fault.TOOL_NAME) else "Correct"
    return Doubt(fault, f"tool {shown!r}: {why}", f"{verb} it in the server")
