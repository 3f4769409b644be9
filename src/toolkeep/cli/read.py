"""`read` and `prompt`: the contents of a resource, and the messages of a prompt.

Bytes go to a file or a pipe, never to a terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli import arguments
from toolkeep.cli.call import block_text, decode_base64
from toolkeep.cli.completion import complete_prompt, complete_server, complete_uri, save_names
from toolkeep.cli.errors import FAILED, OK, UsageError, suggest
from toolkeep.cli.output import Output
from toolkeep.cli.source import (
    PrincipalOption,
    ServerSource,
    context_for,
    note_unavailable,
    server_names,
)

if TYPE_CHECKING:
    from toolkeep import CallContext, Runtime
    from toolkeep.runtime import Prompt

Contents = list[dict[str, Any]]


async def read(
    output: Output,
    source: ServerSource,
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="The URI of the resource.", autocompletion=complete_uri),
    ],
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="NAME",
            help="The server that has it.",
            autocompletion=complete_server,
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to this file.")
    ] = None,
    principal: PrincipalOption = None,
) -> int:
    """Print a resource as it is. Bytes need --output or a pipe."""
    context = context_for(principal)
    only = None if server is None else (server,)
    async with source.open(output, only=only) as runtime:
        owner = await _find_server(runtime, source, output, uri, context)
        found = await runtime.read_resource(uri, server=owner, context=context)
    contents = [one.model_dump(mode="json", exclude_none=True) for one in found.contents]
    if file is not None:
        _save(contents, file)
    elif not output.json:
        _print(contents, output)
    output.print_json({"contents": contents})
    return OK if contents else FAILED


async def _find_server(
    runtime: Runtime, source: ServerSource, output: Output, uri: str, context: CallContext | None
) -> str | None:
    """The only server, or the only one with a template that matches; None if a server lists it."""
    if len(runtime.servers) == 1:
        status = runtime.servers[0]
        if status.error is not None:
            raise status.error
        return status.name
    note_unavailable(runtime, output)
    catalogue = await runtime.catalogue_for(context)
    save_names(source, catalogue)
    if any(one.uri == uri for one in catalogue.resources):
        return None
    matching = sorted({x.server for x in catalogue.templates if matches(x.uri_template, uri)})
    if len(matching) > 1:
        text = f"several servers have a template for {uri[:200]!r}: name one with --server"
        raise UsageError(f"{text}: {', '.join(matching)}")
    return matching[0] if matching else None


def matches(template: str, uri: str) -> bool:
    """Whether the URI can be made from this URI template (RFC 6570). A variable takes as little as
    possible; one without an operator takes no slash."""
    first, *rest = re.split(r"\{([^{}]*)\}", template)
    if not uri.startswith(first):
        return False
    left = uri[len(first) :]
    for number, (expression, literal) in enumerate(zip(rest[::2], rest[1::2], strict=True)):
        is_last = 2 * number + 2 == len(rest)
        is_query = expression[:1] in ("?", "&")
        end = len(left) - len(literal) if is_last else left.find(literal, 0 if is_query else 1)
        if end < 0 or left[end : end + len(literal)] != literal:
            return False
        value, left = left[:end], left[end + len(literal) :]
        if is_query:
            fits = not value or value[0] == expression[0]
        else:
            takes_slash = expression[:1] in ("+", "#", "/") or expression.endswith("*")
            fits = bool(value) and (takes_slash or "/" not in value)
        if not fits:
            return False
    return not left


def _print(contents: Contents, output: Output) -> None:
    for one in contents:
        if "text" in one:
            text: str = one["text"]
            line_end = "\n" if output.is_terminal and not text.endswith("\n") else ""
            output.write(text + line_end)
            continue
        data = decode_base64(one.get("blob")) or b""
        if output.is_terminal:
            kind = one.get("mime_type", "of unknown type")
            raise UsageError(
                f"the resource is {len(data)} bytes, {kind}: give --output FILE, or use a pipe"
            )
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _save(contents: Contents, file: str) -> None:
    parts = [
        one["text"].encode() if "text" in one else decode_base64(one.get("blob")) or b""
        for one in contents
    ]
    try:
        Path(file).expanduser().write_bytes(b"".join(parts))
    except OSError as error:
        raise UsageError(f"cannot write --output {file}: {error.strerror}") from None


# -- prompt --------------------------------------------------------------------------------------


async def prompt(
    output: Output,
    source: ServerSource,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The prompt: server.prompt, or the prompt alone if only one server has it.",
            autocompletion=complete_prompt,
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...|JSON",
            help="The arguments: key=value, or a JSON object of texts.",
            show_default=False,
        ),
    ] = None,
    principal: PrincipalOption = None,
) -> int:
    """Fill in a prompt and print its messages.

    \b
    toolkeep prompt notes.summarize topic=trains
    """
    typed, context = arguments.parse(words or ()), context_for(principal)
    only = (name.partition(".")[0],) if "." in name and not source.is_one_server else None
    only = only if only and only[0] in server_names(source.load()) else None
    async with source.open(output, only=only) as runtime:
        unavailable = note_unavailable(runtime, output)
        if unavailable.are_all:
            raise unavailable.errors[0]
        catalogue = await runtime.catalogue_for(context)
        save_names(source, catalogue, complete=False)
        found = catalogue.prompt(name)
        given = _prompt_arguments(found, typed)
        filled = await runtime.get_prompt(found.name, given, context=context)
    document = filled.model_dump(mode="json", exclude_none=True, by_alias=True)
    output.print_json(document)
    messages: Sequence[Mapping[str, Any]] = document.get("messages", ())
    for number, message in enumerate(messages):
        text = block_text(message.get("content", {}))
        # One message alone is printed as it is, ready for a pipe.
        role = f"{message.get('role', '')}: " if len(messages) > 1 else ""
        output.print(("\n" if number else "") + role + text)
    return OK


def _prompt_arguments(prompt: Prompt, typed: arguments.TypedArguments) -> dict[str, str]:
    """The arguments as texts. Raises `UsageError` for an unknown or a missing one."""
    given = dict(typed.pairs)
    for key, value in (typed.whole or {}).items():
        if not isinstance(value, str):
            raise UsageError(f"{key}: an argument of a prompt is a text; put it in quotes")
        given[key] = value
    declared = {one.name: bool(one.required) for one in prompt.definition.arguments or ()}
    problems = [
        f"{one} is not an argument: {suggest(one, declared)}" for one in given.keys() - declared
    ]
    problems += [f"{one} is missing" for one in declared if declared[one] and one not in given]
    if problems:
        keys = [f"{one}=STRING" if declared[one] else f"[{one}=STRING]" for one in declared]
        usage = f"{prompt.name} takes {' '.join(keys) or 'no arguments'}"
        raise UsageError("\n  ".join((f"{prompt.name}: {problems[0]}", *problems[1:], usage)))
    return given
