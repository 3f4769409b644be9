"""Two tools for models: one that searches the tools, one that runs a program which calls them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from toolkeep._catalogue.tool import Tool
from toolkeep._engine.call import Call, Emit
from toolkeep._engine.wanted import OnProgress
from toolkeep._rules.stubs import signature
from toolkeep._runtime.own_tools import SERVER, Kind, answer, shown_name
from toolkeep.code_mode._account import CodeRefused, names_of
from toolkeep.code_mode._program import TIMEOUT, CodeLimits, OnEvent, Policy, Program, Toolset
from toolkeep.context import CallContext
from toolkeep.events import Completed, Event, Failed, Log, Progress, Started
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

__all__ = ["code_tools"]

LONGEST_SIGNATURES = 40_000
"""Characters of all signatures that one search shows."""
SEARCHED = 100
"""Tools that are looked at for those that a program may call."""

SEARCH, RUN = "search_tools", "run_code"
MOST_FOUND = 20

SEARCH_KIND = Kind(
    SEARCH,
    "Search the tools that a program can call. Gives the Python signatures of the best matches."
    f" Call them in a program with {shown_name(RUN)}.",
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
            "default": 5,
            "description": "How many tools to show at most.",
        },
    },
    "query",
)
ABOUT_RUN = (
    "Run a short Python program that calls tools. Each tool is an async function, with keyword"
    f" arguments, as {shown_name(SEARCH)} shows it: `hits = await shop__find(query='lamp')`. Run"
    " independent calls at once with `await asyncio.gather(a(…), b(…))`. The value of the last"
    " line, an expression, is the result; print is kept too. A call that fails raises"
    " RuntimeError. The program is type-checked first. It has no files, no network, and of the"
    " standard library only parts (asyncio, json, re, math, datetime). It cannot use return at top"
    " level, and keeps nothing for the next one."
)
SOURCE = {"type": "string", "minLength": 1, "description": "The program."}


def code_tools(
    runtime: Runtime,
    context: CallContext | None = None,
    *,
    tools: Collection[str] | None = None,
    allow: Collection[str] = (),
    timeout: float = TIMEOUT,
    limits: CodeLimits | None = None,
) -> list[Tool]:
    """Two tools for a model, for any adapter: `search_tools` and `run_code`.

    They speak for `context`, unless a call says for whom, and may be kept as long as the runtime.
    The other arguments are those of `run_code`.
    """
    policy = Policy.of(tools, allow)
    run = Kind(RUN, ABOUT_RUN, {"code": SOURCE}, "code", reads=not allow)
    coder = Coder(runtime, policy, run, timeout, limits)
    return [kind.tool(coder, context) for kind in (SEARCH_KIND, run)]


class Coder:
    """The caller of the two tools. Opens and closes nothing."""

    def __init__(
        self,
        runtime: Runtime,
        policy: Policy,
        run: Kind,
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
        """`options` that are about one request of one tool are not used."""
        if name.tool == SEARCH:
            given = SEARCH_KIND.checked(arguments)
            return await SEARCH_KIND.within(timeout, self._search(given, context))
        source = self._run_kind.checked(arguments)["code"]
        program = self._program(source, context, timeout, headers, on_progress)
        return await self._answered(program, lambda event: None)

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
        """With the progress and the log lines of the program's calls."""
        if name.tool == SEARCH:
            return SEARCH_KIND.watched(lambda: self.call(name, arguments, context=context))

        async def run(emit: Emit) -> CallResult:
            about: Any = {"server": SERVER, "tool": RUN, "call_id": uuid.uuid4().hex}
            emit(Started(**about))
            try:
                source = self._run_kind.checked(arguments)["code"]
                program = self._program(
                    source, context, timeout, headers, on_progress, watched=True
                )
                result = await self._answered(program, lambda event: passed_on(event, emit))
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
        watched: bool = False,
    ) -> Program:
        return Program(
            self._runtime,
            source,
            context,
            self._policy,
            None,
            timeout or self._timeout,
            self._limits,
            watched=watched,
            headers=headers,
            on_progress=on_progress,
        )

    async def _answered(self, program: Program, emit: OnEvent) -> CallResult:
        try:
            result = await program.run(emit)
        except CodeRefused as refused:
            return answer(RUN, f"{refused}\nMend the program and run it again.", is_error=True)
        return answer(RUN, result.text(), duration=result.seconds, is_error=not result.ok)

    async def _search(self, given: Mapping[str, Any], context: CallContext | None) -> CallResult:
        began = monotonic()
        toolset = await Toolset.of(self._runtime, context, self._policy)
        names = {tool.key: name for name, tool in toolset.names.items()}
        found = await self._runtime.search(given["query"], SEARCHED, context=context)
        usable = [tool for tool in found if self._policy.lets(tool)][: given["limit"]]
        text = signatures({names[tool.key]: tool for tool in usable if tool.key in names})
        others = [
            tool.name
            for tool in found[: given["limit"]]
            if self._policy.shows(tool) and not self._policy.lets(tool)
        ]
        if others:
            text += f"\nNot allowed here, because they may change something: {names_of(others)}."
        return answer(SEARCH, text.lstrip(), duration=monotonic() - began)


def signatures(tools: Mapping[str, Tool]) -> str:
    if not tools:
        return "Nothing was found. Try other, fewer or broader words.\n"
    taken = {*tools}
    shown: list[str] = []
    left = LONGEST_SIGNATURES
    for name, tool in tools.items():
        about = tool.description or tool.title
        text = signature(
            name, tool.input_schema, tool.output_schema, description=about, taken=taken
        )
        left -= len(text)
        if left < 0:
            shown.append(f"# {len(tools) - len(shown)} more are not shown\n")
            break
        shown.append(text)
    return "\n\n".join(shown)


def passed_on(event: Event, emit: Emit) -> None:
    if isinstance(event, Progress | Log):
        emit(event)
