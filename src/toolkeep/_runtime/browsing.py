"""Two tools in place of all: `search_tools` finds some by a query, `call_tool` calls one by name.

For models that could not be shown every tool: with these two they see thousands. Both speak for
whoever calls them. A search shows what that caller may see, and a call goes the way of any other:
past the same gate, with the same deadlines, progress, questions and errors.

An error of `call_tool` is the called tool's own, and says whether that one ran. Only a name that no
tool has is no error, but an answer: with the nearest names, and how to search.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any, Protocol, cast

from toolkeep._catalogue.tool import SHOWN, Caller, Tool
from toolkeep._engine.call import Call, Emit
from toolkeep._runtime.own_tools import SERVER, Kind, answer, shown_name
from toolkeep.context import CallContext
from toolkeep.errors import ToolkeepError, UnknownTool
from toolkeep.events import CallEvent, Completed, Failed
from toolkeep.results import CallResult

__all__ = ["browsing"]

SEARCH, CALL = "search_tools", "call_tool"

MOST_FOUND = 50
LONGEST_DESCRIPTION = 500
"""Characters of a description in what a search brings."""
LONGEST_SCHEMA = 6_000
"""Characters of a schema, as JSON: of a longer one the model sees names and types alone."""

_SEARCH = Kind(
    SEARCH,
    "Search the tools that are available. Gives the best matches with their names, descriptions"
    f" and input schemas. Call one of them with {shown_name(CALL)}.",
    {
        "query": {
            "type": "string",
            "minLength": 1,
            "description": "A few words about what the tool should do.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_FOUND,
            "default": 10,
            "description": "How many tools to show at most.",
        },
    },
    "query",
)
_CALL = Kind(
    CALL,
    f"Call a tool that {shown_name(SEARCH)} has found, by its name, with arguments that fit its"
    " input_schema. The result is that tool's own.",
    {
        "name": {
            "type": "string",
            "minLength": 1,
            "description": f"The tool's name, as {shown_name(SEARCH)} shows it.",
        },
        "arguments": {
            "type": "object",
            "default": {},
            "description": "The tool's arguments. They must fit its input_schema.",
        },
    },
    "name",
    reads=False,
)


class Browsed(Caller, Protocol):
    """Who is browsed: a `Runtime`."""

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        context: CallContext | None = None,
        tags: Collection[str] | None = None,
    ) -> list[Tool]: ...


def browsing(runtime: Browsed, context: CallContext | None = None) -> list[Tool]:
    """The two tools, for an adapter or to be called: `tools(browsing(runtime))`.

    They speak for `context`, unless a call says for whom. They may be kept for as long as the
    runtime, and see what it offers at the time of each call.
    """
    browser = Browser(runtime)
    return [kind.tool(browser, context) for kind in (_SEARCH, _CALL)]


class Browser:
    """The caller of the two. Holds nothing but the runtime, and opens and closes nothing."""

    def __init__(self, runtime: Browsed) -> None:
        self._runtime = runtime

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        if name.tool == SEARCH:
            given, timeout = _SEARCH.checked(arguments), options.get("timeout")
            return await _SEARCH.within(timeout, self._search(given, context))
        given = _CALL.checked(arguments)
        meant = given["name"]
        try:
            return await self._runtime.call(meant, given["arguments"], context=context, **options)
        except UnknownTool as error:
            return _unknown(meant, error)
        except ToolkeepError as error:
            error.called = meant[:SHOWN]
            raise

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        if name.tool == SEARCH:
            return _SEARCH.watched(lambda: self.call(name, arguments, context=context, **options))

        async def run(emit: Emit) -> CallResult:
            return await self._watched(_CALL.checked(arguments), emit, context, options)

        return Call(run)

    async def _watched(
        self,
        given: Mapping[str, Any],
        emit: Emit,
        context: CallContext | None,
        options: Mapping[str, Any],
    ) -> CallResult:
        meant = given["name"]
        last: CallEvent | None = None
        try:
            call = self._runtime.stream(meant, given["arguments"], context=context, **options)
            async with call as running:
                async for event in running:
                    last = event
                    if not (isinstance(event, Failed) and isinstance(event.error, UnknownTool)):
                        emit(event)
                return await running.result()
        except UnknownTool as error:
            result = _unknown(meant, error)
            call_id = last.call_id if last else ""
            emit(Completed(server=SERVER, tool=CALL, call_id=call_id, result=result))
            return result
        except ToolkeepError as error:
            error.called = meant[:SHOWN]
            raise

    async def _search(self, given: Mapping[str, Any], context: CallContext | None) -> CallResult:
        began = monotonic()
        found = await self._runtime.search(given["query"], given["limit"], context=context)
        data = {"tools": [_shown(tool) for tool in found]}
        if not found:
            data["note"] = cast("Any", "Nothing was found. Try other, fewer or broader words.")
        return answer(SEARCH, json.dumps(data, ensure_ascii=False), data, monotonic() - began)


def _shown(tool: Tool) -> dict[str, Any]:
    about = tool.description
    if len(about) > LONGEST_DESCRIPTION:
        about = f"{about[:LONGEST_DESCRIPTION]}…"
    return {"name": tool.name, "description": about, "input_schema": _schema(tool.input_schema)}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The tool's own, or an outline of one that would fill a model's context."""
    try:
        if len(json.dumps(schema, ensure_ascii=False)) <= LONGEST_SCHEMA:
            return dict(schema)
    except RecursionError:
        pass  # deeper than the stack
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    kinds = {name: _kind(one) for name, one in list(properties.items())[:100]}
    required = schema.get("required")
    return {"type": "object", "properties": kinds, **({"required": required} if required else {})}


def _kind(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or "type" not in schema:
        return {}
    return {"type": cast("Mapping[str, Any]", schema)["type"]}


def _unknown(name: str, error: UnknownTool) -> CallResult:
    near = [one[:SHOWN] for one in error.suggestions[:10]]
    meant = f" Nearest: {', '.join(near)}." if near else ""
    text = f"No single tool is called {name[:SHOWN]!r}, so nothing was called.{meant}"
    return answer(
        CALL, f"{text} Search with {shown_name(SEARCH)} and use a name from there.", is_error=True
    )
