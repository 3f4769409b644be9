"""Two tools for models: one searches the tools, the other runs a program that calls them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._client.request import Emit, OnProgress
from toolkeep._runtime.builtin import OWN_SERVER, OwnTool, own_tool_name, tool_result
from toolkeep.code_mode._access import Policy, ProgramRuntime, ProgramTools
from toolkeep.code_mode._program import TIMEOUT, CodeLimits, OnEvent, ProgramRun
from toolkeep.code_mode._report import CodeRefused, names_of
from toolkeep.code_mode._stubs import write_stub
from toolkeep.context import CallContext
from toolkeep.events import Completed, Event, Failed, Log, Progress, Started
from toolkeep.results import CallResult

__all__ = ["code_tools"]

MAX_SIGNATURES = 40_000
"""Characters of all signatures that one search shows."""
MAX_CANDIDATES = 100
"""Search results that are examined for tools that a program may call."""
MAX_RESULTS = 20
"""Tools that one search shows."""

SEARCH, RUN = "search_tools", "run_code"

SEARCH_KIND = OwnTool(
    SEARCH,
    "Search the tools that a program can call. Gives the Python signatures of the best matches."
    f" Call them in a program with {own_tool_name(RUN)}.",
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
            "default": 5,
            "description": "How many tools to show at most.",
        },
    },
    "query",
)
RUN_DESCRIPTION = (
    "Run a short Python program that calls tools. Each tool is an async function, with keyword"
    f" arguments, as {own_tool_name(SEARCH)} shows it: `hits = await shop__find(query='lamp')`. Run"
    " independent calls at once with `await asyncio.gather(a(…), b(…))`. The value of the last"
    " line, an expression, is the result; print is kept too. A call that fails raises"
    " RuntimeError. The program is type-checked first. It has no files, no network, and of the"
    " standard library only parts (asyncio, json, re, math, datetime). It cannot use return at top"
    " level, and keeps nothing for the next one."
)
SOURCE_SCHEMA = {"type": "string", "minLength": 1, "description": "The program."}


def code_tools(
    runtime: ProgramRuntime,
    context: CallContext | None = None,
    *,
    tools: Collection[str] | None = None,
    allow: Collection[str] = (),
    timeout: float = TIMEOUT,
    limits: CodeLimits | None = None,
) -> list[Tool]:
    """Two tools for a model, for any adapter: `search_tools` and `run_code`.

    They use `context` unless a call passes its own, and are valid as long as the runtime. The other
    arguments are those of `run_code`.
    """
    policy = Policy.of(tools, allow)
    run = OwnTool(RUN, RUN_DESCRIPTION, {"code": SOURCE_SCHEMA}, "code", reads=not allow)
    caller = CodeToolCaller(runtime, policy, run, timeout, limits)
    return [kind.tool(caller, context) for kind in (SEARCH_KIND, run)]


class CodeToolCaller:
    """Runs calls of the two tools. Owns nothing that needs closing."""

    def __init__(
        self,
        runtime: ProgramRuntime,
        policy: Policy,
        run: OwnTool,
        timeout: float,
        limits: CodeLimits | None,
    ) -> None:
        self._runtime, self._policy, self._run_kind = runtime, policy, run
        self._timeout, self._limits = timeout, limits

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> CallResult:
        """Other `options` concern a request to a server, and are ignored."""
        if name.tool == SEARCH:
            given = SEARCH_KIND.check_arguments(arguments)
            return await SEARCH_KIND.run_within(timeout, self._search(given, context))
        source = self._run_kind.check_arguments(arguments)["code"]
        program = self._program(source, context, timeout, headers, on_progress)
        return await self._run(program, lambda event: None)

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Call:
        """Also emits the progress and log events of the program's calls."""
        if name.tool == SEARCH:
            return SEARCH_KIND.as_call(lambda: self.call(name, arguments, context=context))

        async def run(emit: Emit) -> CallResult:
            about: Any = {"server": OWN_SERVER, "tool": RUN, "call_id": uuid.uuid4().hex}
            emit(Started(**about))
            try:
                source = self._run_kind.check_arguments(arguments)["code"]
                program = self._program(
                    source, context, timeout, headers, on_progress, with_events=True
                )
                result = await self._run(program, lambda event: forward(event, emit))
            except BaseException as error:
                emit(Failed(error=error, **about))
                raise
            emit(Completed(result=result, **about))
            return result

        return Call(run)

    def _program(
        self,
        source: str,
        context: CallContext | None,
        timeout: float | None,
        headers: Mapping[str, str] | None,
        on_progress: OnProgress | None,
        *,
        with_events: bool = False,
    ) -> ProgramRun:
        return ProgramRun(
            self._runtime,
            source,
            context,
            self._policy,
            None,
            timeout or self._timeout,
            self._limits,
            with_events=with_events,
            headers=headers,
            on_progress=on_progress,
        )

    async def _run(self, program: ProgramRun, emit: OnEvent) -> CallResult:
        try:
            result = await program.run(emit)
        except CodeRefused as refused:
            return tool_result(RUN, f"{refused}\nFix the program and run it again.", is_error=True)
        return tool_result(RUN, result.text(), duration=result.seconds, is_error=not result.ok)

    async def _search(self, given: Mapping[str, Any], context: CallContext | None) -> CallResult:
        began = monotonic()
        toolset = await ProgramTools.of(self._runtime, context, self._policy)
        names = {tool.key: name for name, tool in toolset.names.items()}
        found = await self._runtime.search(given["query"], MAX_CANDIDATES, context=context)
        usable = [tool for tool in found if self._policy.permits(tool)][: given["limit"]]
        text = signatures({names[tool.key]: tool for tool in usable if tool.key in names})
        others = [
            tool.name
            for tool in found[: given["limit"]]
            if self._policy.shows(tool) and not self._policy.permits(tool)
        ]
        if others:
            text += f"\nNot allowed here, because they may change something: {names_of(others)}."
        return tool_result(SEARCH, text.lstrip(), duration=monotonic() - began)


def signatures(tools: Mapping[str, Tool]) -> str:
    if not tools:
        return "Nothing was found. Try other, fewer or broader words.\n"
    taken = {*tools}
    shown: list[str] = []
    left = MAX_SIGNATURES
    for name, tool in tools.items():
        about = tool.description or tool.title
        text = write_stub(
            name, tool.input_schema, tool.output_schema, description=about, taken=taken
        )
        left -= len(text)
        if left < 0:
            shown.append(f"# {len(tools) - len(shown)} more are not shown\n")
            break
        shown.append(text)
    return "\n\n".join(shown)


def forward(event: Event, emit: Emit) -> None:
    if isinstance(event, Progress | Log):
        emit(event)
