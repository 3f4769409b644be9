"""What `servers`, `tools`, `prompts` and `resources` show: rows for people, objects for programs.

A server that is not there is named on standard error, and the rest are listed all the same. A list
fails only if no server could be asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from toolkeep.cli import columns, memory
from toolkeep.cli.ending import DONE, FAILED, Misused
from toolkeep.cli.failing import remedy_for
from toolkeep.cli.place import Place, opened
from toolkeep.cli.screen import Screen, one_line
from toolkeep.cli.standing import Lost, Standing, standings, tell_troubles
from toolkeep.context import CallContext

if TYPE_CHECKING:
    from toolkeep import Catalogue, Runtime, Tool
    from toolkeep._catalogue.offer import Prompt, Resource, Template


@dataclass(frozen=True, kw_only=True)
class Sought:
    """Which of the tools."""

    pattern: str | None = None
    words: str | None = None
    limit: int = 10
    group: str | None = None

    @property
    def narrows(self) -> bool:
        return any(one is not None for one in (self.pattern, self.words, self.group))

    def named(self, name: str, short: str) -> bool:
        pattern = self.pattern
        return pattern is None or fnmatchcase(name, pattern) or fnmatchcase(short, pattern)


def context_of(principal: str | None) -> CallContext | None:
    return None if principal is None else CallContext(principal=principal)


# -- servers ------------------------------------------------------------------------------------


async def servers(place: Place, screen: Screen, names: Sequence[str]) -> int:
    async with opened(place, screen, only=names or None) as runtime:
        found = await standings(runtime, names)
        summary = runtime.summary()
        memory.keep(place, runtime.catalogue, whole=not names)
    heads = ("name", "transport", "era", "version", "health", "latency", "tools", "last error")
    columns.show(screen, heads, [one.row() for one in found])
    for one in found:
        if one.last_error:
            screen.tell(f"{one.name}: {one_line(one.last_error)}")
    screen.say(summary)
    screen.give({"servers": [one.as_dict() for one in found], "summary": summary})
    return _verdict(found, asked=bool(names) or place.is_one_off)


def _verdict(found: Iterable[Standing], *, asked: bool) -> int:
    return FAILED if asked and not all(one.is_healthy for one in found) else DONE


# -- tools --------------------------------------------------------------------------------------


async def tools(
    place: Place, screen: Screen, sought: Sought, principal: str | None, *, schema: bool
) -> int:
    context = context_of(principal)
    async with opened(place, screen) as runtime:
        lost = tell_troubles(runtime, screen)
        view = await _listed(runtime, place, context)
        found = await _sought(runtime, view, sought, context)
    if schema and not screen.json:
        _show_schemas(screen, found)
    else:
        columns.show(screen, ("tool", "what it does"), [(t.name, t.description) for t in found])
    screen.give({"tools": [_tool(one) for one in found]})
    nothing = f"none of {len(view)} tools matches" if sought.narrows else "no server offers a tool"
    return _end(screen, found, lost, nothing, sought.narrows)


async def _sought(
    runtime: Runtime, view: Catalogue, sought: Sought, context: CallContext | None
) -> list[Tool]:
    if sought.group is not None:
        _check_group(view, sought.group)
    ranked = list(view)
    if sought.words is not None:
        ranked = await runtime.search(sought.words, max(len(view), 1), context=context)
    found = [one for one in ranked if sought.named(one.name, one.tool)]
    found = [one for one in found if sought.group in (None, one.server, *one.tags)]
    return found[: sought.limit] if sought.words is not None else found


def _check_group(view: Catalogue, group: str) -> None:
    known = sorted({*view.servers, *view.groups()})
    if group not in known:
        raise Misused(f"--group {group!r} is no server and no tag; there are: {', '.join(known)}")


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": tool.server,
        "tool": tool.tool,
        "title": tool.title,
        "description": tool.description,
        "tags": sorted(tool.tags),
        "read_only": tool.read_only,
        "destructive": tool.destructive,
        "idempotent": tool.idempotent,
        "open_world": tool.open_world,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
    }


def _show_schemas(screen: Screen, found: Iterable[Tool]) -> None:
    for place, tool in enumerate(found):
        screen.say(("\n" if place else "") + tool.name)
        if tool.description:
            screen.say("".join(f"  {line}\n" for line in tool.description.splitlines()).rstrip())
        screen.say(f"  {_marks(tool)}")
        screen.say("input schema\n" + _pretty(tool.input_schema))
        if tool.output_schema is not None:
            screen.say("output schema\n" + _pretty(tool.output_schema))


def _marks(tool: Tool) -> str:
    """What its server says of it, or what must be assumed because it does not; and its tags."""
    nature = "read-only" if tool.read_only else "may destroy" if tool.destructive else "adds only"
    repeated = "may be repeated" if tool.idempotent else "not to be repeated blindly"
    reach = "reaches beyond its server" if tool.open_world else "stays inside its server"
    tags = f"tags: {', '.join(sorted(tool.tags))}" if tool.tags else ""
    return "; ".join(part for part in (nature, repeated, reach, tags) if part)


def _pretty(schema: object) -> str:
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    return "".join(f"  {line}\n" for line in text.splitlines()).rstrip("\n")


# -- prompts and resources ----------------------------------------------------------------------


async def prompts(place: Place, screen: Screen, principal: str | None) -> int:
    async with opened(place, screen) as runtime:
        lost = tell_troubles(runtime, screen)
        found = (await _listed(runtime, place, context_of(principal))).prompts
    rows = [(one.name, _wanted(one), one.definition.description or "") for one in found]
    columns.show(screen, ("prompt", "arguments", "what it is for"), rows)
    screen.give({"prompts": [_prompt(one) for one in found]})
    return _end(screen, found, lost, "no server offers a prompt")


def _wanted(prompt: Prompt) -> str:
    """An argument that may be left out stands in brackets."""
    given = prompt.definition.arguments or ()
    return " ".join(one.name if one.required else f"[{one.name}]" for one in given)


def _prompt(prompt: Prompt) -> dict[str, Any]:
    wanted = prompt.definition.arguments or ()
    return {
        "name": prompt.name,
        "server": prompt.server,
        "prompt": prompt.prompt,
        "description": prompt.definition.description,
        "arguments": [
            {"name": one.name, "description": one.description, "required": bool(one.required)}
            for one in wanted
        ],
    }


async def resources(place: Place, screen: Screen, principal: str | None) -> int:
    async with opened(place, screen) as runtime:
        lost = tell_troubles(runtime, screen)
        view = await _listed(runtime, place, context_of(principal))
    rows = [(one.uri, one.server, *_described(one)) for one in view.resources]
    rows += [(one.uri_template, one.server, *_described(one)) for one in view.templates]
    columns.show(screen, ("uri", "server", "type", "what it is"), rows)
    screen.give(
        {
            "resources": [{"uri": one.uri, **_resource(one)} for one in view.resources],
            "templates": [
                {"uri_template": one.uri_template, **_resource(one)} for one in view.templates
            ],
        }
    )
    return _end(screen, rows, lost, "no server offers a resource")


def _described(one: Resource | Template) -> tuple[str, str]:
    about = one.definition
    return about.mime_type or "", about.description or about.title or about.name


def _resource(one: Resource | Template) -> dict[str, Any]:
    about = one.definition
    return {
        "server": one.server,
        "name": about.name,
        "title": about.title,
        "description": about.description,
        "mime_type": about.mime_type,
    }


# -- what they share ----------------------------------------------------------------------------


async def _listed(runtime: Runtime, place: Place, context: CallContext | None) -> Catalogue:
    view = await runtime.catalogue_for(context)
    memory.keep(place, view)
    return view


def _end(
    screen: Screen, found: Sequence[object], lost: Lost, nothing: str, narrowed: bool = False
) -> int:
    """What was looked for and not found is a failure; that there is nothing to list is none."""
    if found:
        return DONE
    if lost.is_all:
        remedies = dict.fromkeys(remedy_for(error) for error in lost.errors)
        nothing = "\n  ".join(("no server could be asked", *filter(None, remedies)))
    screen.note(nothing)
    return FAILED if narrowed or lost.errors else DONE
