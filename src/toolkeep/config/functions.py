"""Plain Python functions as tools: which can be one, and what is said about it.

Looked at once, before anything is opened: whatever cannot be called by name with typed arguments is
a `ConfigError`. Nothing here runs a function, and the SDK is not needed.
"""

from __future__ import annotations

import functools
import glob
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep.errors import ConfigError

__all__ = ["ToolFunction", "as_tool", "as_tools", "tool", "with_tags"]

_LONGEST_NAME = 128  # of a tool, in MCP since 2025-11-25
_REMEDY = "Give functions with typed parameters"
_Kind = inspect.Parameter


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A function with what its signature cannot say. Made by `tool`; given wherever a function can
    be."""

    function: Callable[..., Any]
    name: str
    description: str
    title: str | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    tags: frozenset[str] = field(default=frozenset())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        plain = _plain(self.function)
        return any(map(inspect.iscoroutinefunction, (plain, type(plain).__call__)))

    def signature(self) -> inspect.Signature:
        """Of what a caller may give: what a `functools.partial` has fixed is nobody's business, for
        it would stand in the schema. What has no type takes anything."""
        whole = inspect.signature(self.function, eval_str=True)
        fixed = _fixed(self.function)
        left = [
            one.replace(annotation=Any) if one.annotation is _Kind.empty else one
            for one in whole.parameters.values()
            if one.name not in fixed
        ]
        return whole.replace(parameters=left)


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    tags: Iterable[str] = (),
) -> ToolFunction:
    """The function as a tool. Without them, its name and its docstring are the tool's."""
    if not callable(function) or isinstance(function, type):
        raise _error(f"{type(function).__name__} is neither a server nor a function", _REMEDY)
    plain = _plain(function)
    named = name if name is not None else getattr(plain, "__name__", type(plain).__name__)
    made = ToolFunction(
        function=function,
        name=_checked_name(named),
        description=_doc(plain) if description is None else inspect.cleandoc(description).strip(),
        title=title,
        read_only=read_only,
        destructive=destructive,
        idempotent=idempotent,
        open_world=open_world,
        tags=frozenset(tags),
    )
    _check(made)
    return made


def as_tool(function: Any) -> ToolFunction:
    return function if isinstance(function, ToolFunction) else tool(function)


def as_tools(functions: Iterable[Any]) -> tuple[ToolFunction, ...]:
    made = tuple(as_tool(function) for function in functions)
    seen: set[str] = set()
    for one in made:
        if one.name in seen:
            what = f"two functions have the same name, {one.name!r}"
            raise _error(what, "Rename one of them, or give tool(function, name=…)")
        seen.add(one.name)
    return made


def with_tags(given: Any) -> Any:
    """What is given for a server, with the tags of its functions among its `tool_tags`."""
    if not isinstance(given, dict):
        return given
    found = cast("dict[str, Any]", given)
    server = found.get("server")
    parts = cast("list[Any]", server) if isinstance(server, list | tuple) else [server]
    own = {
        glob.escape(one.name): tuple(sorted(one.tags))
        for one in parts
        if isinstance(one, ToolFunction) and one.tags
    }
    said = found.get("tool_tags", {})
    if not own or not isinstance(said, Mapping):
        return found
    return {**found, "tool_tags": {**own, **cast("Mapping[str, Any]", said)}}


def _plain(function: Any) -> Any:
    """What a `functools.partial` is about."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _fixed(function: Any) -> set[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        bound = cast("functools.partial[Any]", function)
        names |= bound.keywords.keys()
        function = bound.func
    return names


def _doc(plain: Any) -> str:
    """An object that can be called is described where it is called."""
    is_object = not inspect.isroutine(plain)
    return inspect.getdoc(type(plain).__call__ if is_object else plain) or ""


def _checked_name(name: object) -> str:
    if name == "<lambda>":
        raise _error("a lambda has no name", "Give tool(function, name=…), or use def")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or len(name.split()) != 1:
        remedy = f"Use 1 to {_LONGEST_NAME} characters without blanks"
        raise _error(f"{str(name)[:80]!r} is not a tool's name", remedy)
    return name


def _check(made: ToolFunction) -> None:
    plain = _plain(made.function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise _error(f"{made.name} cannot be a tool: it yields", "Return a list instead")
    try:
        parameters = made.signature().parameters.values()
    except Exception as error:
        # A name that is missing at run time, an annotation that fails, a function written in C.
        raise _error(f"{made.name} cannot be a tool: {error}", _REMEDY) from None
    for one in parameters:
        if one.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
            what = f"{made.name} cannot be a tool: {one} takes anything, under no name"
            raise _error(what, "Name its parameters")


def _error(problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, key="server")
