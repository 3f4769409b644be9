"""What an adapter offers its framework, and on whose behalf it calls.

The tools are those of a runtime, looked up at each turn, or tools that were resolved before. Who
speaks is asked of the user's function at every look and every call: when it fails, nothing is
listed and nothing is sent. It never means that nobody speaks. A `ConfigError` stays one.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from toolkeep._catalogue.tool import Tool
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, NotPermitted, UnknownTool
from toolkeep.runtime import Runtime

Run = TypeVar("Run")
"""The framework's own object for a run."""

Source = Runtime | Iterable[Tool]
Speaks = CallContext | Callable[[Run], CallContext | Awaitable[CallContext]]


class Offered:
    """Made by an adapter, for as long as its framework keeps it. Opens and closes nothing."""

    def __init__(self, source: Source, names: Iterable[str] | None = None) -> None:
        self._runtime = source if isinstance(source, Runtime) else None
        self._names = None if names is None else tuple(names)
        self._fixed = {} if isinstance(source, Runtime) else _by_model_name(source)
        if self._runtime is None and self._names is not None:
            remedy = "Give the runtime, or leave the names out"
            raise ConfigError("tools that are resolved need no names", key="names", remedy=remedy)

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            remedy = "Give the runtime in place of its tools"
            raise ConfigError("tools alone have no prompts and no resources", remedy=remedy)
        return self._runtime

    @property
    def is_live(self) -> bool:
        return self._runtime is not None

    async def tools(self, context: CallContext | None) -> list[Tool]:
        """Those that this context may see; of names, all or an error that says what is missing."""
        if self._runtime is None:
            return list(self._fixed.values())
        if self._names is not None:
            return await self._runtime.resolve(self._names, context)
        return list((await self._runtime.catalogue_for(context)).tools)

    async def find(self, name: str, context: CallContext | None) -> Tool:
        """The tool that the model calls so, ready to be called."""
        if self._runtime is not None:
            return (await self._runtime.resolve([name], context))[0]
        if name not in self._fixed:
            raise UnknownTool(f"there is no tool {name[:200]!r} among those that were given")
        return self._fixed[name]


class Speaker(Generic[Run]):
    """Finds out for whom a run calls.

    `given`: a context for all runs, or a function of a run. With neither, a run whose own context
    is a `CallContext` speaks with that.
    """

    def __init__(self, given: Speaks[Run] | None) -> None:
        if not (given is None or isinstance(given, CallContext) or callable(given)):
            remedy = "Give a CallContext, or a function that makes one of a run"
            raise ConfigError("it is neither", key="context", remedy=remedy)
        self._given = given

    async def of(self, run: Run | None, own: object) -> CallContext | None:
        """`own`: what the user gave the framework for this run."""
        given = self._given
        if isinstance(given, CallContext):
            return given
        if given is None:
            return own if isinstance(own, CallContext) else None
        if run is None:
            raise NotPermitted("the context comes from a run, and there is none")
        try:
            made: Any = given(run)
            made = await made if inspect.isawaitable(made) else made
        except ConfigError:
            raise
        except Exception as error:
            raise NotPermitted("for whom this run calls could not be found out") from error
        if not isinstance(made, CallContext):
            kind = type(cast("object", made)).__name__
            raise NotPermitted(f"the function for the context gave no CallContext, but {kind}")
        return made


def _by_model_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(cast("object", tool), Tool) or tool.caller is None:
            remedy = "Give a runtime, or what `await runtime.resolve(…)` brought"
            raise ConfigError("these are no tools that can be called", remedy=remedy)
        found[tool.model_name] = tool
    return found
