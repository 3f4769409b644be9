"""What a configuration says about a server's tools: which are offered, with which tags, headers
and guides.

Checked as far as it can be before the server has said what it has: a tool that nobody knows is no
mistake, for the server may gain it. Names of tools are the server's own; where a pattern may stand,
it is a glob (`*`, `?`, `[…]`) over them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from toolkeep.config.frozen import FrozenDict
from toolkeep.config.parts import Number
from toolkeep.config.urls import problem
from toolkeep.errors import ConfigError

DERIVED: Mapping[str, str] = FrozenDict(
    {
        "user": "x-user-id",
        "session": "x-session-id",
        "execution": "x-execution-id",
        "trace": "x-trace-id",
        "principal": "x-principal",
    }
)
"""What a header can be derived from, and its name where none is given."""

EVERY_PROMPT = "*"
"""As a guide: whatever the prompts file has."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_TAG = re.compile(r"[^\s*?\[\]!#,]{1,64}")


def _frozen(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return FrozenDict(given)


def _some(given: Any) -> Any:
    """None at all, or all: whoever wrote `[]` meant one of them, and nobody can tell which."""
    if given == []:
        raise problem("an empty list offers nothing", "Leave it out to offer all tools")
    return given


def _for_all(given: Any) -> Any:
    """A number alone goes for every tool; so does one that a variable held."""
    number = as_number(given)
    return given if number is None else {"*": number}


def _named(given: Any) -> Any:
    """`true`, or the keys alone: the usual names."""
    if isinstance(given, bool):
        return dict(DERIVED) if given else {}
    if isinstance(given, list | tuple | set | frozenset):
        listed = cast("list[Any]", given)
        if all(isinstance(key, str) for key in listed):
            return {key: DERIVED.get(key, "") for key in listed}
    return cast("Any", given)


def _derived(given: Mapping[str, str]) -> Mapping[str, str]:
    for key, name in given.items():
        if key not in DERIVED:
            raise problem(f"nothing is derived from {key[:80]!r}", f"Use: {', '.join(DERIVED)}")
        if not _TOKEN.fullmatch(name) or name.lower().startswith("mcp-"):
            what = f"the name for {key!r} is no header's, or the protocol's own"
            raise problem(what, f"Name a header, such as {DERIVED[key]}")
    lowered = {key: name.lower() for key, name in given.items()}
    if len(set(lowered.values())) < len(lowered):
        raise problem("two headers have the same name", "Give each its own")
    return FrozenDict(lowered)


def _tag(given: str) -> str:
    if not _TAG.fullmatch(given):
        remedy = "Use 1 to 64 characters, without blanks, commas and * ? [ ] ! #"
        raise problem(f"{given[:80]!r} is not a tag", remedy)
    return given


def _guide(given: str) -> str:
    if not given.strip():
        raise problem("an empty guide", "Name a prompt, or write the text")
    return given


Pattern = Annotated[str, Field(min_length=1)]
Patterns = tuple[Pattern, ...]
Offered = Annotated[Patterns, BeforeValidator(_some), Field(json_schema_extra={"minItems": 1})]
Tag = Annotated[str, AfterValidator(_tag)]
Tags = frozenset[Tag]
ToolTags = Annotated[Mapping[Pattern, tuple[Tag, ...]], AfterValidator(_frozen)]
ToolHeaders = Annotated[
    Mapping[Pattern, Annotated[Mapping[str, str], AfterValidator(_frozen)]],
    AfterValidator(_frozen),
]
Guides = Annotated[
    Mapping[Pattern, Annotated[str, AfterValidator(_guide)]], AfterValidator(_frozen)
]
_Lasting = Annotated[float, Field(gt=0, allow_inf_nan=False), Number]
Kept = Annotated[
    Mapping[Pattern, _Lasting],
    BeforeValidator(_for_all),
    AfterValidator(_frozen),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {
                    "type": "object",
                    "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
                },
            ]
        }
    ),
]
DerivedHeaders = Annotated[
    Mapping[str, str],
    BeforeValidator(_named),
    AfterValidator(_derived),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [True, False]},
                {"type": "array", "items": {"enum": list(DERIVED)}},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {key: {"type": "string"} for key in DERIVED},
                },
            ]
        }
    ),
]


def as_number(value: object) -> float | None:
    """What a number is, also as a text that a variable held; all else is judged later."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def guides_of(association: Any) -> Any:
    """What Cortex-Flow's PROMPT_TOOL_ASSOCIATION says: the tool that its prompts file is about, or
    several in a JSON array; also a JSON object from prompts to tools."""
    text = str(association or "").strip()
    if not text.startswith(("{", "[")):
        return {text: EVERY_PROMPT} if text else {}
    remedy = 'Write a tool\'s name, ["tool", …] or {"prompt": "tool"}'
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("it is not JSON", remedy=remedy) from None
    about = cast("dict[str, object]", found) if isinstance(found, dict) else {EVERY_PROMPT: found}
    guides: dict[str, str] = {}
    for prompt, tools in about.items():
        for tool in cast("list[object]", tools) if isinstance(tools, list) else [tools]:
            if not isinstance(tool, str) or re.search(r"\s", prompt):
                raise ConfigError("prompts and tools are named by one word", remedy=remedy)
            if guides.setdefault(tool, prompt) != prompt:
                raise ConfigError(f"two prompts for {tool[:80]!r}", remedy="Keep one of them")
    return guides
