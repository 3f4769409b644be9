"""`servers`, `tools`, `prompts` and `resources`: tables for people, objects with `--json`.

A server that is not there is named on standard error, and the others are listed all the same. A
list fails if no server could be asked, or if nothing matches what was searched for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli.completion import complete_server, complete_tool, save_names
from toolkeep.cli.errors import FAILED, OK, UsageError, evidence_of, remedy_for
from toolkeep.cli.output import Output, first_line
from toolkeep.cli.source import (
    PrincipalOption,
    ServerSource,
    Unavailable,
    context_for,
    note_unavailable,
)
from toolkeep.errors import ConfigError, ToolkeepError

if TYPE_CHECKING:
    from toolkeep import CallContext, Runtime, Tool
    from toolkeep._catalogue.listing import Prompt, Resource, Template
    from toolkeep.runtime import Catalogue, ServerStatus

PING_TIMEOUT = 5.0
SERVER_HEADERS = ("name", "transport", "era", "version", "health", "latency", "tools", "last error")

# -- servers -------------------------------------------------------------------------------------


async def servers(
    output: Output,
    source: ServerSource,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Only these servers; exit code 1 if one of them is not healthy.",
            autocompletion=complete_server,
            show_default=False,
        ),
    ] = None,
) -> int:
    """List the servers: protocol, health, latency, number of tools."""
    async with source.open(output, only=names or None) as runtime:
        found = await server_reports(runtime, names or ())
        summary = runtime.summary()
        save_names(source, runtime.catalogue, complete=not names)
    output.print_table(SERVER_HEADERS, [one.row() for one in found])
    for one in found:
        if one.last_error:
            output.print_wrapped(f"{one.name}: {first_line(one.last_error)}")
    output.print(summary)
    output.print_json({"servers": [vars(one) for one in found], "summary": summary})
    all_healthy = all(one.is_healthy for one in found)
    return OK if all_healthy or not (names or source.is_one_server) else FAILED


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """What is known of one server. Its fields are the keys of `servers --json`."""

    name: str
    transport: str | None = None
    era: str | None = None
    protocol_version: str | None = None
    server_version: str | None = None
    health: str
    latency: float | None = None
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    fault: str | None = None
    """The kind of the last error, in a word or two."""
    last_error: str | None = None

    @property
    def is_healthy(self) -> bool:
        return self.health == "healthy"

    def row(self) -> tuple[str, ...]:
        return (
            self.name,
            self.transport or "",
            self.era or "",
            self.protocol_version or "",
            self.health,
            milliseconds(self.latency),
            str(self.tools) if self.is_healthy else "",
            self.fault or "",
        )


async def server_reports(runtime: Runtime, names: Collection[str]) -> list[ServerReport]:
    """One for each configured server, or for each of `names`."""
    latencies = await ping_all(runtime)
    found = [_report(status, latencies[status.name]) for status in runtime.servers]
    if names:
        return found
    configured = runtime.configuration
    pending = [
        ServerReport(
            name=one.name, transport="stdio", health="needs approval", last_error=one.command_line
        )
        for one in configured.needs_approval
    ]
    disabled = [
        ServerReport(name=name, health="disabled", last_error=why)
        for name, why in configured.disabled.items()
    ]
    return [*found, *pending, *disabled]


def _report(status: ServerStatus, latency: float | None) -> ServerReport:
    error = status.error or status.last_error
    return ServerReport(
        name=status.name,
        transport=status.transport,
        era=status.era,
        protocol_version=status.protocol_version,
        server_version=status.server_version,
        health=status.health.value,
        latency=latency,
        tools=status.tools,
        prompts=status.prompts,
        resources=status.resources,
        fault=_fault(error),
        last_error=evidence_of(error) or None,
    )


def _fault(error: BaseException | None) -> str | None:
    failure = error.failure if isinstance(error, ToolkeepError) else None
    if failure is not None:
        return failure.kind.value
    if isinstance(error, ConfigError):
        return "misconfigured"
    return None if error is None else type(error).__name__


async def ping_all(runtime: Runtime) -> dict[str, float | None]:
    """Seconds until each server answers; None for one that does not."""
    latencies = await asyncio.gather(*(_ping(runtime, status) for status in runtime.servers))
    return {one.name: took for one, took in zip(runtime.servers, latencies, strict=True)}


async def _ping(runtime: Runtime, status: ServerStatus) -> float | None:
    if status.error is not None:
        return None
    method = "server/discover" if status.era == "modern" else "ping"
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await runtime.request(status.name, method, timeout=PING_TIMEOUT)
    except ToolkeepError:
        return None
    return clock() - began


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms"


# -- tools ---------------------------------------------------------------------------------------


async def tools(
    output: Output,
    source: ServerSource,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN",
            help="A name, or a pattern such as 'git.*' or '*_status'.",
            autocompletion=complete_tool,
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search", "-s", metavar="WORDS", help="Find the tools that match these words best."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many tools --search finds.")
    ] = 10,
    schemas: Annotated[
        bool, typer.Option("--schema", help="Show the input and output schema of each tool.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="SERVER|TAG",
            help="Only the tools of this server, or with this tag.",
            autocompletion=complete_server,
        ),
    ] = None,
    principal: PrincipalOption = None,
) -> int:
    """List the tools of all servers, or those that match."""
    context = context_for(principal)
    async with source.open(output) as runtime:
        unavailable = note_unavailable(runtime, output)
        catalogue = await _catalogue(runtime, source, context)
        _check_group(group, catalogue)
        found = list(catalogue)
        if search is not None:
            found = await runtime.search(search, max(len(catalogue), 1), context=context)
    found = [one for one in found if _matches(one, pattern, group)]
    found = found if search is None else found[:limit]
    if schemas:
        _print_schemas(output, found)
    else:
        rows = [(one.name, one.description) for one in found]
        output.print_table(("tool", "description"), rows)
    output.print_json({"tools": [_tool_as_dict(one) for one in found]})
    searched = any(one is not None for one in (pattern, search, group))
    empty = f"none of {len(catalogue)} tools matches" if searched else "no server offers a tool"
    return _finish(output, found, unavailable, empty, searched=searched)


def _check_group(group: str | None, catalogue: Catalogue) -> None:
    known = sorted({*catalogue.servers, *catalogue.by_tag()})
    if group is not None and group not in known:
        listed = ", ".join(known)
        raise UsageError(f"--group {group!r} is neither a server nor a tag; known names: {listed}")


def _matches(tool: Tool, pattern: str | None, group: str | None) -> bool:
    names = (tool.name, tool.tool)
    is_named = pattern is None or any(fnmatchcase(name, pattern) for name in names)
    return is_named and group in (None, tool.server, *tool.tags)


def _tool_as_dict(tool: Tool) -> dict[str, Any]:
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


def _print_schemas(output: Output, found: Iterable[Tool]) -> None:
    for number, tool in enumerate(found):
        output.print(("\n" if number else "") + tool.name)
        if tool.description:
            output.print(_indent(tool.description))
        output.print(f"  {_annotations(tool)}")
        output.print("input schema\n" + _indent(_pretty(tool.input_schema)))
        if tool.output_schema is not None:
            output.print("output schema\n" + _indent(_pretty(tool.output_schema)))


def _annotations(tool: Tool) -> str:
    """The hints of its server, or the protocol's defaults for them; and its tags."""
    effect = "read-only" if tool.read_only else "destructive" if tool.destructive else "additive"
    repeat = "idempotent" if tool.idempotent else "not idempotent"
    world = "open world" if tool.open_world else "closed world"
    tags = f"tags: {', '.join(sorted(tool.tags))}" if tool.tags else ""
    return "; ".join(part for part in (effect, repeat, world, tags) if part)


def _pretty(schema: object) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


# -- prompts and resources -----------------------------------------------------------------------


async def prompts(output: Output, source: ServerSource, principal: PrincipalOption = None) -> int:
    """List the prompts of all servers. Arguments in brackets are optional."""
    async with source.open(output) as runtime:
        unavailable = note_unavailable(runtime, output)
        found = (await _catalogue(runtime, source, context_for(principal))).prompts
    rows = [(one.name, _prompt_arguments(one), one.definition.description or "") for one in found]
    output.print_table(("prompt", "arguments", "description"), rows)
    output.print_json({"prompts": [_prompt_as_dict(one) for one in found]})
    return _finish(output, found, unavailable, "no server offers a prompt")


def _prompt_arguments(prompt: Prompt) -> str:
    given = prompt.definition.arguments or ()
    return " ".join(one.name if one.required else f"[{one.name}]" for one in given)


def _prompt_as_dict(prompt: Prompt) -> dict[str, Any]:
    return {
        "name": prompt.name,
        "server": prompt.server,
        "prompt": prompt.prompt,
        "description": prompt.definition.description,
        "arguments": [
            {"name": one.name, "description": one.description, "required": bool(one.required)}
            for one in prompt.definition.arguments or ()
        ],
    }


async def resources(output: Output, source: ServerSource, principal: PrincipalOption = None) -> int:
    """List the resources and resource templates of all servers."""
    async with source.open(output) as runtime:
        unavailable = note_unavailable(runtime, output)
        found = await _catalogue(runtime, source, context_for(principal))
    rows = [_resource_row(one.uri, one) for one in found.resources]
    rows += [_resource_row(one.uri_template, one) for one in found.templates]
    output.print_table(("uri", "server", "type", "description"), rows)
    output.print_json(
        {
            "resources": [{"uri": one.uri, **_resource_as_dict(one)} for one in found.resources],
            "templates": [
                {"uri_template": one.uri_template, **_resource_as_dict(one)}
                for one in found.templates
            ],
        }
    )
    return _finish(output, rows, unavailable, "no server offers a resource")


def _resource_row(uri: str, one: Resource | Template) -> tuple[str, ...]:
    about = one.definition
    return uri, one.server, about.mime_type or "", about.description or about.title or about.name


def _resource_as_dict(one: Resource | Template) -> dict[str, Any]:
    about = one.definition
    return {
        "server": one.server,
        "name": about.name,
        "title": about.title,
        "description": about.description,
        "mime_type": about.mime_type,
    }


# -- shared --------------------------------------------------------------------------------------


async def _catalogue(
    runtime: Runtime, source: ServerSource, context: CallContext | None
) -> Catalogue:
    found = await runtime.catalogue_for(context)
    save_names(source, found)
    return found


def _finish(
    output: Output,
    found: Sequence[object],
    unavailable: Unavailable,
    empty: str,
    *,
    searched: bool = False,
) -> int:
    """The exit code of a list. An empty list is a failure if something was searched for, or if a
    server could not be asked."""
    if found:
        return OK
    if unavailable.are_all:
        remedies = dict.fromkeys(remedy_for(error) for error in unavailable.errors)
        empty = "\n  ".join(("no server could be asked", *filter(None, remedies)))
    output.note(empty)
    return FAILED if searched or unavailable.errors else OK
