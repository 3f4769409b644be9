"""Python functions as tools: `tool` and `ToolFunction`.

A function is checked once, before anything is opened: one that cannot be called by name with
typed arguments raises a `ConfigError`. Functions are not run here, and the MCP SDK is not
imported.
"""

from __future__ import annotations

import functools
import glob
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep.errors import ConfigError

__all__ = ["ToolFunction", "as_tool", "as_tools", "tool", "with_function_tags"]

_MAX_NAME_LENGTH = 128  # of a tool, in MCP since 2025-11-25
_REMEDY = "Give functions with typed parameters"
_Parameter = inspect.Parameter


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A function and the properties of its tool. Made by `tool`; accepted like a plain function."""

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
        plain = _unwrap_partial(self.function)
        return any(map(inspect.iscoroutinefunction, (plain, type(plain).__call__)))

    def signature(self) -> inspect.Signature:
        """The signature for callers: without the parameters that a `functools.partial` has bound,
        whose values would be in the schema. A parameter without a type accepts anything."""
        full = inspect.signature(self.function, eval_str=True)
        bound = _bound_names(self.function)
        parameters = [
            one.replace(annotation=Any) if one.annotation is _Parameter.empty else one
            for one in full.parameters.values()
            if one.name not in bound
        ]
        return full.replace(parameters=parameters)


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
    """Make a tool of a function. Name and description default to the function's."""
    if not callable(function) or isinstance(function, type):
        raise _error(f"{type(function).__name__} is neither a server nor a function", _REMEDY)
    plain = _unwrap_partial(function)
    named = name if name is not None else getattr(plain, "__name__", type(plain).__name__)
    made = ToolFunction(
        function=function,
        name=_check_name(named),
        description=_docstring(plain)
        if description is None
        else inspect.cleandoc(description).strip(),
        title=title,
        read_only=read_only,
        destructive=destructive,
        idempotent=idempotent,
        open_world=open_world,
        tags=frozenset(tags),
    )
    _check_signature(made)
    return made


def as_tool(function: Any) -> ToolFunction:
    return function if isinstance(function, ToolFunction) else tool(function)


def as_tools(functions: Iterable[Any]) -> tuple[ToolFunction, ...]:
    made = tuple(as_tool(function) for function in functions)
    seen: set[str] = set()
    for one in made:
        if one.name in seen:
            what = f"two functions have the name {one.name!r}"
            raise _error(what, "Rename one of them, or use tool(function, name=…)")
        seen.add(one.name)
    return made


def with_function_tags(given: Any) -> Any:
    """A server's values with the tags of its functions in `tool_tags`."""
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
    given_tags = found.get("tool_tags", {})
    if not own or not isinstance(given_tags, Mapping):
        return found
    return {**found, "tool_tags": {**own, **cast("Mapping[str, Any]", given_tags)}}


def _unwrap_partial(function: Any) -> Any:
    """The function inside of any `functools.partial`."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _bound_names(function: Any) -> set[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        bound = cast("functools.partial[Any]", function)
        names |= bound.keywords.keys()
        function = bound.func
    return names


def _docstring(plain: Any) -> str:
    """The docstring; of a callable object, that of its `__call__`."""
    is_object = not inspect.isroutine(plain)
    return inspect.getdoc(type(plain).__call__ if is_object else plain) or ""


def _check_name(name: object) -> str:
    if name == "<lambda>":
        raise _error("a lambda has no name", "Use tool(function, name=…), or def")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_LENGTH or len(name.split()) != 1:
        remedy = f"Use 1 to {_MAX_NAME_LENGTH} characters without spaces"
        raise _error(f"{str(name)[:80]!r} is not a tool name", remedy)
    return name


def _check_signature(made: ToolFunction) -> None:
    plain = _unwrap_partial(made.function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise _error(f"{made.name} cannot be a tool: it is a generator", "Return a list instead")
    try:
        parameters = made.signature().parameters.values()
    except Exception as error:
        # A missing name in an annotation, an annotation that raises, a function written in C.
        raise _error(f"{made.name} cannot be a tool: {error}", _REMEDY) from None
    for one in parameters:
        if one.kind in (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD):
            what = f"{made.name} cannot be a tool: {one} has no named arguments"
            raise _error(what, "Name each parameter")


def _error(problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, key="server")
