"""`call`: one tool, once, and whether it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkeep.cli import answers, arguments, memory
from toolkeep.cli.ending import DONE, FAILED
from toolkeep.cli.lists import context_of
from toolkeep.cli.place import Place, opened
from toolkeep.cli.screen import Screen
from toolkeep.cli.standing import tell_troubles
from toolkeep.cli.watching import Watcher

if TYPE_CHECKING:
    from toolkeep import CallContext, CallResult, Runtime, Tool

_LOG_LEVEL = {"io.modelcontextprotocol/logLevel": "info"}
"""Modern servers send log lines only to who asks for them, with each request."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for on the command line."""

    name: str
    words: tuple[str, ...] = ()
    principal: str | None = None
    timeout: float | None = None
    watch: bool = False
    output: str | None = None


async def call(place: Place, screen: Screen, wish: Wish) -> int:
    typed = arguments.read(wish.words)
    context = context_of(wish.principal)
    watcher = Watcher(screen, wish.watch)
    asked: dict[str, Any] = {"elicitation": watcher.answer} if watcher.can_answer else {}
    async with opened(place, screen, about=wish.name, **asked) as runtime:
        tool = await _found(runtime, place, screen, wish, context)
        given = arguments.judged(typed, tool)
        folder = answers.made(wish.output) if wish.output else None
        result = await _called(runtime, watcher, tool, given, wish, context)
    saved, whole = answers.save(screen, result, folder) if folder else ({}, True)
    answers.show(screen, result, saved)
    return DONE if whole and not result.is_error else FAILED


async def _found(
    runtime: Runtime, place: Place, screen: Screen, wish: Wish, context: CallContext | None
) -> Tool:
    """Raises what keeps the server away, if the name says which server it is."""
    owner = wish.name.partition(".")[0]
    for status in runtime.servers:
        alone = len(runtime.servers) == 1
        if status.error is not None and (alone or status.name == owner):
            raise status.error
    tell_troubles(runtime, screen)
    view = await runtime.catalogue_for(context)
    memory.keep(place, view, whole=False)
    return view.tool(wish.name)


async def _called(
    runtime: Runtime,
    watcher: Watcher,
    tool: Tool,
    given: dict[str, Any],
    wish: Wish,
    context: CallContext | None,
) -> CallResult:
    options: dict[str, Any] = {"context": context, "timeout": wish.timeout}
    if not wish.watch:
        return await runtime.call(tool, given, **options)
    async with runtime.stream(tool, given, meta=_LOG_LEVEL, **options) as running:
        with watcher:
            async for event in running:
                watcher(event)
        return await running.result()
