"""Arguments that a UiPath definition sets itself (`argumentProperties`): hidden from the model, and
put into every call.

A value is static, or made from the agent's input. A path is a JSONPath of names and indexes, such
as `$['user']['id']` or `$['tags'][*]`. What the model gives at such a path is replaced. A value
that does not fit the tool is an error of the definition, so it is never told to the model.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from toolkeep._catalogue.tool import Tool, ToolCaller
from toolkeep._client.call import Call
from toolkeep._client.request import Emit
from toolkeep._rules.json_schema import compile_schema, format_path
from toolkeep._rules.schema_references import resolve_reference
from toolkeep.errors import ConfigError, InvalidArguments
from toolkeep.results import CallResult

Step = str | int | None
"""A property, an index, or None for each element of an array."""
Path = tuple[Step, ...]

_STEP = re.compile(
    r"\.([A-Za-z_][\w-]*)|\[(\d+)\]|\[(\*)\]"
    r"|\['((?:[^'\\]|\\.)*)'\]"
    r'|\["((?:[^"\\]|\\.)*)"\]'
)
_MARKERS = ("arrayBuilder", "objectBuilder")
"""Variants without a value: each element or property has one of its own."""
_MAX_INDEX = 1000
_MAX_DEPTH = 8
"""References and alternatives within another that are followed at one place of a schema."""
_MAX_BRANCHES = 20
"""Alternatives at one place of a schema that are searched."""


@dataclass(frozen=True, slots=True)
class SetArgument:
    """One argument that the definition sets."""

    path: Path
    value: Any
    sensitive: bool


def set_arguments(
    properties: Mapping[str, Any], agent_input: Mapping[str, Any] | None, server: str
) -> tuple[SetArgument, ...]:
    """The values of a tool's `argument_properties`. Raises `ConfigError` for what cannot be read,
    or needs the agent's input where there is none."""
    parsed = {parse_path(text, server): one for text, one in properties.items()}
    whole = {path for path, one in parsed.items() if str(one.variant.value) not in _MARKERS}
    found: list[SetArgument] = []
    for path in sorted(parsed, key=len):  # an array before its elements
        one = parsed[path]
        if any(path[:length] in whole for length in range(1, len(path))):
            continue  # the value of the parent is the whole value
        for value in _values(one, path, agent_input, server):
            found.append(SetArgument(path, value, bool(getattr(one, "is_sensitive", False))))
    return tuple(found)


def _values(
    one: Any, path: Path, agent_input: Mapping[str, Any] | None, server: str
) -> Iterator[Any]:
    """The value, or none if the agent's input has none."""
    match str(one.variant.value):
        case "static":
            yield one.value
        case "argument":
            yield from _find(
                _needed(agent_input, path, server), parse_path(one.argument_path, server)
            )
        case "textBuilder":
            from uipath.agent.utils.text_tokens import (  # pyright: ignore[reportMissingTypeStubs]
                build_string_from_tokens,
            )

            variable = any(token.type.value == "variable" for token in one.tokens)
            given = dict(_needed(agent_input, path, server) if variable else {})
            yield build_string_from_tokens(one.tokens, given)
        case "arrayBuilder":
            yield []
        case "objectBuilder":
            return
        case other:
            what = f"the argument {format_path(_shown(path))!r} has an unknown variant {other!r}"
            raise ConfigError(what, server=server, key="argumentProperties")


def _needed(agent_input: Mapping[str, Any] | None, path: Path, server: str) -> Mapping[str, Any]:
    if agent_input is not None:
        return agent_input
    what = f"the argument {format_path(_shown(path))!r} comes from the agent's input"
    remedy = "Give the input as `agent_input`"
    raise ConfigError(what, server=server, key="argumentProperties", remedy=remedy)


def parse_path(text: str, server: str) -> Path:
    """The steps of a JSONPath. Raises `ConfigError`."""
    steps: list[Step] = []
    at = 1 if text.startswith("$") else len(text) + 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            break
        name, index, each, single, double = found.groups()
        quoted = single if single is not None else double
        if index is not None:
            steps.append(int(index))
        elif each is not None:
            steps.append(None)
        else:
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        at = found.end()
    if at != len(text) or not steps or not isinstance(steps[0], str):
        what = f"{text[:100]!r} is not a path to an argument"
        remedy = "Write it as $['name'], with further names and indexes"
        raise ConfigError(what, server=server, key="argumentProperties", remedy=remedy)
    if any(isinstance(step, int) and step > _MAX_INDEX for step in steps):
        raise ConfigError(f"an index in {text[:100]!r} is too large", server=server)
    return tuple(steps)


def _find(value: Any, path: Path) -> Iterator[Any]:
    """The value at a path, if there is one."""
    for step in path:
        try:
            value = value[0 if step is None else step]
        except (KeyError, IndexError, TypeError):
            return
    yield value


# -- the schema that the model sees -------------------------------------------------------------


def hide_arguments(schema: Mapping[str, Any], given: tuple[SetArgument, ...]) -> dict[str, Any]:
    """A copy of an input schema without these arguments. An object or array that has nothing else
    is hidden with them."""
    root = copy.deepcopy(dict(schema))
    for one in given:
        _hide(root, root, one.path)
    return root


def _hide(schema: Any, root: dict[str, Any], path: Path) -> bool:
    """Remove what a path leads to. Whether nothing is left for the model to give."""
    step, rest = path[0], path[1:]
    found = False
    for branch in islice(_branches(schema, root), _MAX_BRANCHES):
        if not isinstance(step, str):
            found = found or not rest or _hide(branch.get("items"), root, rest)
            continue
        properties = branch.get("properties")
        if not isinstance(properties, dict) or step not in properties:
            continue
        left = cast("dict[str, Any]", properties)
        if rest and not _hide(left[step], root, rest):
            continue
        del left[step]
        if "required" in branch:
            branch["required"] = [name for name in branch["required"] if name != step]
        found = found or not left
    return found


def _branches(
    schema: Any, root: dict[str, Any], depth: int = _MAX_DEPTH
) -> Iterator[dict[str, Any]]:
    """The schema, with a local reference replaced by a copy of its target, and its alternatives.
    The schema may come from a server, and may refer to itself."""
    if not isinstance(schema, dict) or not depth:
        return
    branch = cast("dict[str, Any]", schema)
    found = resolve_reference(branch.get("$ref"), root)
    if isinstance(found, dict):
        del branch["$ref"]
        branch.update({**copy.deepcopy(cast("dict[str, Any]", found)), **branch})
        yield from _branches(branch, root, depth - 1)
        return
    yield branch
    for word in ("anyOf", "oneOf", "allOf"):
        for one in cast("list[Any]", branch.get(word) or ()):
            yield from _branches(one, root, depth - 1)


# -- calls --------------------------------------------------------------------------------------


def fill_arguments(
    arguments: Mapping[str, Any] | None, given: tuple[SetArgument, ...]
) -> dict[str, Any]:
    """A copy of the arguments with those that the definition sets."""
    filled: dict[str, Any] = copy.deepcopy(dict(arguments or {}))
    for one in given:
        _put(filled, one.path, one.value)
    return filled


def _put(target: Any, path: Path, value: Any) -> None:
    step, rest = path[0], path[1:]
    if step is None:
        target[:] = target or [{} if rest and isinstance(rest[0], str) else None]
        steps: list[Any] = list(range(len(target)))
    else:
        steps = [step]
        if isinstance(step, int):
            target += [None] * (step + 1 - len(target))
    for key in steps:
        if not rest:
            target[key] = copy.deepcopy(value)
            continue
        kind: type[Any] = dict if isinstance(rest[0], str) else list
        known = not isinstance(target, dict) or key in target
        if not known or not isinstance(target[key], kind):
            target[key] = kind()
        _put(target[key], rest, value)


class ArgumentSetter:
    """Calls one tool with the arguments that the definition sets. A `ToolCaller`; lives as long as
    the tool. Checks them first by the schema that it knows: what a runtime reports of a mistake
    quotes the values, also to observers."""

    def __init__(
        self,
        caller: ToolCaller,
        server: str,
        given: tuple[SetArgument, ...],
        schema: Mapping[str, Any],
    ) -> None:
        self._caller, self._server, self._given = caller, server, given
        self._validator = compile_schema(schema, what="the arguments")

    def _filled(self, name: Tool, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        filled = fill_arguments(arguments, self._given)
        if self._validator.usable and (problems := self._validator.problems(filled)):
            wrong = InvalidArguments("", server=name.server, tool=name.tool, problems=problems)
            raise self._without_values(wrong)
        return filled

    async def call(
        self, name: Tool, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> CallResult:
        filled = self._filled(name, arguments)
        try:
            return await self._caller.call(name, filled, **options)
        except InvalidArguments as error:
            problem = self._without_values(error)
        raise problem

    def stream(
        self, name: Tool, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Call:
        async def run(emit: Emit) -> CallResult:
            filled = self._filled(name, arguments)
            try:
                async with self._caller.stream(name, filled, **options) as call:
                    async for event in call:
                        emit(event)
                    return await call.result()
            except InvalidArguments as error:
                problem = self._without_values(error)
            raise problem

        return Call(run)

    def _without_values(self, error: InvalidArguments) -> Exception:
        """The error for the model, without the definition's values; or a `ConfigError`, if one of
        these is the problem. Problems quote the values that they are about."""
        for one in self._given:
            place = format_path(_shown(one.path))
            if any(re.match(rf"{re.escape(place)}[.:\[]", text) for text in error.problems):
                what = f"the definition's value for {place!r} does not fit the tool {error.tool!r}"
                return ConfigError(what, server=self._server, key="argumentProperties")
        hidden = [text for one in self._given for text in _texts(one.value, one.sensitive)]
        # A problem that was cut may hold a part of a value.
        whole = [text for text in error.problems if not hidden or "…" not in text]
        problems = tuple(_masked(text, hidden) for text in whole)
        text = f"{error.server}.{error.tool}: {'; '.join(problems) or 'the arguments do not fit'}"
        return InvalidArguments(text, server=error.server, tool=error.tool, problems=problems)


def _shown(path: Path) -> list[str | int]:
    """The path up to the first array whose elements are all meant."""
    return list(cast("tuple[str | int, ...]", path[: path.index(None)] if None in path else path))


def _texts(value: Any, sensitive: bool) -> Iterator[str]:
    """How the leaves of a value look in a problem."""
    if isinstance(value, Mapping):
        for one in cast("Mapping[str, Any]", value).values():
            yield from _texts(one, sensitive)
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _texts(one, sensitive)
    elif isinstance(value, str) and value:
        yield json.dumps(value, ensure_ascii=False)[1:-1]
    elif sensitive:
        yield json.dumps(value)


def _masked(text: str, hidden: list[str]) -> str:
    for one in sorted(hidden, key=len, reverse=True):
        text = text.replace(one, "***")
    return text
