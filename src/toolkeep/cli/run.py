"""`run`: a Python program that calls tools, in the sandbox of `toolkeep.code_mode`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkeep.cli.call import CallProgress
from toolkeep.cli.completion import complete_tool
from toolkeep.cli.errors import OK, USAGE, UsageError, exit_code, show_error
from toolkeep.cli.output import Output, to_json
from toolkeep.cli.source import (
    PrincipalOption,
    ServerSource,
    TimeoutOption,
    context_for,
    note_unavailable,
)
from toolkeep.events import CallEvent

if TYPE_CHECKING:
    from toolkeep.code_mode import CodeResult, CodeRun

MAX_CHARACTERS = 1_000_000
"""Characters of a program that are read."""


async def run_program(
    output: Output,
    source: ServerSource,
    file: Annotated[
        str, typer.Argument(metavar="FILE.py|-", help="The program; - reads standard input.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Variables of the program: JSON, or else text.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="PATTERN",
            help="Allow these tools, although they are not marked read-only. May be repeated.",
            autocompletion=complete_tool,
            show_default=False,
        ),
    ] = None,
    timeout: TimeoutOption = None,
    principal: PrincipalOption = None,
) -> int:
    """Run a Python program that calls tools, in a sandbox. It is type-checked before it runs.

    \b
    hits = await shop__find(query=query)
    await asyncio.gather(*[shop__price(id=hit["id"]) for hit in hits["items"]])

    \b
    toolkeep run prices.py query=lamp
    toolkeep run order.py --allow shop.pay --timeout 120

    Each tool is an async function, server__tool. Standard output has what the program prints and
    the value of its last line. After a failure, standard error has the outcome of each call.

    Exit code 1: the program failed. 2: it was not started. 3: a call may have run; find out before
    you repeat it. 130: interrupted with Ctrl-C, and its calls were cancelled.
    """
    try:
        from toolkeep.code_mode import CodeRefused, stream_code
    except ImportError as missing:
        raise UsageError(str(missing)) from None
    text = read_program(file)
    options: dict[str, Any] = {"inputs": parse_inputs(inputs or ()), "allow": tuple(allow or ())}
    if timeout is not None:
        options["timeout"] = timeout
    progress = CallProgress(output, bar=True)
    async with source.open(output, **progress.handlers()) as runtime:
        note_unavailable(runtime, output)
        running = stream_code(runtime, text, context=context_for(principal), **options)
        try:
            result = await _follow(running, progress)
        except CodeRefused as refused:
            show_error(refused, json=output.json)
            return USAGE
        except asyncio.CancelledError:
            print_result(output, await running.result())
            raise
    return print_result(output, result)


async def _follow(running: CodeRun, progress: CallProgress) -> CodeResult:
    async with running:
        with progress:
            async for event in running:
                if isinstance(event, CallEvent):
                    progress.show(event)
        return await running.result()


def print_result(output: Output, result: CodeResult) -> int:
    """Print what the program printed and its value, or what became of its calls."""
    from toolkeep.code_mode import CodeFailed

    output.print_json(result.to_json())
    if not output.json and result.printed:
        output.write(result.printed if result.printed.endswith("\n") else f"{result.printed}\n")
    if result.ok:
        if result.value is not None:
            output.print(result.value if isinstance(result.value, str) else to_json(result.value))
        return OK
    output.note(replace(result, printed="").text())
    return exit_code(CodeFailed(result))


def read_program(file: str) -> str:
    if file == "-":
        return sys.stdin.read(MAX_CHARACTERS)
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the program {file}: {error}") from None


def parse_inputs(words: Sequence[str]) -> dict[str, Any]:
    """`name=value`, where the value is JSON if it parses as such, and otherwise text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"the input {word!r} must be written as name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
