"""`run`: a program that calls tools, and what became of each call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkeep.cli import failing
from toolkeep.cli.ending import DONE, USAGE, Misused
from toolkeep.cli.lists import context_of
from toolkeep.cli.place import Place, opened
from toolkeep.cli.screen import Screen, document
from toolkeep.cli.standing import tell_troubles
from toolkeep.cli.watching import Watcher

if TYPE_CHECKING:
    from toolkeep.code_mode import CodeResult, CodeRun

LARGEST = 1_000_000
"""Characters of a program that are read."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for on the command line."""

    file: str
    inputs: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    principal: str | None = None
    timeout: float | None = None


async def run(place: Place, screen: Screen, wish: Wish) -> int:
    try:
        from toolkeep.code_mode import CodeRefused, stream_code
    except ImportError as missing:
        raise Misused(str(missing)) from None
    options: dict[str, Any] = {} if wish.timeout is None else {"timeout": wish.timeout}
    source, inputs = source_of(wish.file), inputs_of(wish.inputs)
    watcher = Watcher(screen, watching=True)
    asked: dict[str, Any] = {"elicitation": watcher.answer} if watcher.can_answer else {}
    async with opened(place, screen, **asked) as runtime:
        tell_troubles(runtime, screen)
        running = stream_code(
            runtime,
            source,
            context=context_of(wish.principal),
            allow=wish.allow,
            inputs=inputs,
            **options,
        )
        try:
            result = await watched(running, watcher)
        except CodeRefused as refused:
            failing.tell(refused, json=screen.json)
            return USAGE
        except asyncio.CancelledError:
            show(screen, await running.result())
            raise
    return show(screen, result)


async def watched(running: CodeRun, watcher: Watcher) -> CodeResult:
    from toolkeep.events import CallEvent

    async with running:
        with watcher:
            async for event in running:
                if isinstance(event, CallEvent):
                    watcher(event)
        return await running.result()


def show(screen: Screen, result: CodeResult) -> int:
    from toolkeep.code_mode import CodeFailed

    screen.give(result.to_json())
    if not screen.json and result.printed:
        screen.write(result.printed if result.printed.endswith("\n") else f"{result.printed}\n")
    if result.ok:
        if result.value is not None:
            screen.say(result.value if isinstance(result.value, str) else document(result.value))
        return DONE
    screen.note(replace(result, printed="").text())
    return failing.code_of(CodeFailed(result))


def source_of(file: str) -> str:
    """The program: of a file, or of standard input (`-`)."""
    if file == "-":
        return sys.stdin.read(LARGEST)
    try:
        with Path(file).open(encoding="utf-8") as opened_file:
            return opened_file.read(LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"{file} cannot be read: {error}") from None


def inputs_of(words: Sequence[str]) -> dict[str, Any]:
    """`key=value`: JSON where it is some, otherwise text."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Misused(f"{word!r} is no input: write it as name=value")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
