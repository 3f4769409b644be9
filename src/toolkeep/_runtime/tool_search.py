"""`tool_search`: two tools, `search_tools` and `call_tool`, in place of a whole catalogue.

Both act for the context of their caller, with the same access checks, deadlines and errors as
any call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any, Protocol, cast

from toolkeep._catalogue.tool import MAX_NAME_SHOWN, Tool, ToolCaller
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._runtime.builtin import OWN_SERVER, OwnTool, own_tool_name, tool_result
from toolkeep.context import CallContext
from toolkeep.errors import ToolkeepError, UnknownTool
from toolkeep.events import CallEvent, Completed, Failed
from toolkeep.results import CallResult

SEARCH_TOOL, CALL_TOOL = "search_tools", "call_tool"

MAX_RESULTS = 50
MAX_DESCRIPTION = 500
"""Characters of a description in search results."""
MAX_SCHEMA = 6_000
"""Characters of a schema, as JSON: a longer one is reduced to names and types."""

_SEARCH_TOOLS = OwnTool(
    SEARCH_TOOL,
    "Search the tools that are available. Gives the best matches with their names, descriptions"
    f" and input schemas. Call one of them with {own_tool_name(CALL_TOOL)}.",
    {
        "query": {
            "type": "string",
            "minLength": 1,
            "description": "A few words about what the tool should do.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_RESULTS,
            "default": 10,
            "description": "How many tools to show at most.",
        },
    },
    "query",
)
_CALL_TOOL = OwnTool(
    CALL_TOOL,
    f"Call a tool that {own_tool_name(SEARCH_TOOL)} has found, by its name, with arguments that fit"
    " its input_schema. The result is that tool's own.",
    {
        "name": {
            "type": "string",
            "minLength": 1,
            "description": f"The tool's name, as {own_tool_name(SEARCH_TOOL)} shows it.",
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


class SearchableRuntime(ToolCaller, Protocol):
    """What the tools search and call: a `Runtime`."""

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        context: CallContext | None = None,
        tags: Collection[str] | None = None,
    ) -> list[Tool]: ...


def tool_search(runtime: SearchableRuntime, context: CallContext | None = None) -> list[Tool]:
    """The two tools, for an adapter or to be called: `tools(tool_search(runtime))`.

    They act for `context`, unless a call gives another. They work as long as the runtime, with what
    it offers at the time of each call.
    """
    caller = ToolSearchCaller(runtime)
    return [kind.tool(caller, context) for kind in (_SEARCH_TOOLS, _CALL_TOOL)]


class ToolSearchCaller:
    """Runs the calls of both tools. Holds only the runtime; opens and closes nothing."""

    def __init__(self, runtime: SearchableRuntime) -> None:
        self._runtime = runtime

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> CallResult:
        if name.tool == SEARCH_TOOL:
            given, timeout = _SEARCH_TOOLS.check_arguments(arguments), options.get("timeout")
            return await _SEARCH_TOOLS.run_within(timeout, self._search(given, context))
        given = _CALL_TOOL.check_arguments(arguments)
        target = given["name"]
        try:
            return await self._runtime.call(target, given["arguments"], context=context, **options)
        except UnknownTool as error:
            return _unknown_tool(target, error)
        except ToolkeepError as error:
            error.called = target[:MAX_NAME_SHOWN]
            raise

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        if name.tool == SEARCH_TOOL:
            return _SEARCH_TOOLS.as_call(
                lambda: self.call(name, arguments, context=context, **options)
            )

        async def run(emit: Emit) -> CallResult:
            return await self._stream(_CALL_TOOL.check_arguments(arguments), emit, context, options)

        return Call(run)

    async def _stream(
        self,
        given: Mapping[str, Any],
        emit: Emit,
        context: CallContext | None,
        options: Mapping[str, Any],
    ) -> CallResult:
        target = given["name"]
        last: CallEvent | None = None
        try:
            call = self._runtime.stream(target, given["arguments"], context=context, **options)
            async with call as running:
                async for event in running:
                    last = event
                    if not (isinstance(event, Failed) and isinstance(event.error, UnknownTool)):
                        emit(event)
                return await running.result()
        except UnknownTool as error:
            result = _unknown_tool(target, error)
            call_id = last.call_id if last else ""
            emit(Completed(server=OWN_SERVER, tool=CALL_TOOL, call_id=call_id, result=result))
            return result
        except ToolkeepError as error:
            error.called = target[:MAX_NAME_SHOWN]
            raise

    async def _search(self, given: Mapping[str, Any], context: CallContext | None) -> CallResult:
        began = monotonic()
        found = await self._runtime.search(given["query"], given["limit"], context=context)
        data = {"tools": [_tool_summary(tool) for tool in found]}
        if not found:
            data["note"] = cast("Any", "Nothing was found. Try other, fewer or broader words.")
        return tool_result(
            SEARCH_TOOL, json.dumps(data, ensure_ascii=False), data, monotonic() - began
        )


def _tool_summary(tool: Tool) -> dict[str, Any]:
    about = tool.description
    if len(about) > MAX_DESCRIPTION:
        about = f"{about[:MAX_DESCRIPTION]}…"
    return {
        "name": tool.name,
        "description": about,
        "input_schema": _schema_outline(tool.input_schema),
    }


def _schema_outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The tool's schema, or an outline of one that would fill a model's context."""
    try:
        if len(json.dumps(schema, ensure_ascii=False)) <= MAX_SCHEMA:
            return dict(schema)
    except RecursionError:
        pass  # nested deeper than the stack
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    kinds = {name: _property_type(one) for name, one in list(properties.items())[:100]}
    required = schema.get("required")
    return {"type": "object", "properties": kinds, **({"required": required} if required else {})}


def _property_type(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or "type" not in schema:
        return {}
    return {"type": cast("Mapping[str, Any]", schema)["type"]}


def _unknown_tool(name: str, error: UnknownTool) -> CallResult:
    near = [one[:MAX_NAME_SHOWN] for one in error.suggestions[:10]]
    hint = f" Nearest: {', '.join(near)}." if near else ""
    text = f"No single tool is called {name[:MAX_NAME_SHOWN]!r}, so nothing was called.{hint}"
    return tool_result(
        CALL_TOOL,
        f"{text} Search with {own_tool_name(SEARCH_TOOL)} and use a name from there.",
        is_error=True,
    )
