"""Field types and the base model of the configuration models.

`FrozenModel` turns pydantic's validation errors into `ConfigError`s that name the key and the
remedy and never quote the value. The annotated types check one value each: numbers, URLs,
server names, tags, globs over tool names. `FrozenDict`, `FrozenJson` and `FrozenList` are
read-only containers, safe to share.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from toolkeep.config.expand import ExpandedText
from toolkeep.errors import ConfigError

SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A server's name: no dot, because `server.tool` names a tool."""

ALL_PROMPTS = "*"
"""In `guides`: the whole prompts file."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_TAG = re.compile(r"[^\s*?\[\]!#,]{1,64}")

_TYPE_NAMES: dict[type[Any], str] = {
    bool: "true or false",
    dict: "a mapping",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    tuple: "a list",
    type(None): "nothing",
}

_DEFAULT_MESSAGE = ("it cannot be used", "Correct the value")
_MESSAGES = {
    "bool": ("it is neither true nor false", "Give true or false"),
    "dict": ("it is not a mapping", "Give a mapping"),
    "finite": ("it is not finite", "Give a finite number"),
    "float": ("it is not a number", "Give a number"),
    "frozen": ("it is not a list", "Give a list"),
    "int": ("it is not a whole number", "Give a whole number"),
    "mapping": ("it is not a mapping", "Give a mapping"),
    "model": ("it is not a mapping", "Give a mapping"),
    "string": ("it is not a text", "Give a text"),
    "string_too_short": ("it is empty", "Give a text"),
    "tuple": ("it is not a list", "Give a list"),
}
"""Problem and remedy by pydantic's error type, or its first word. Pydantic's own messages are never
shown."""


def _check_number(value: object) -> object:
    """Accept a finite number, or a variable's text with one; reject `True` and `"5"`."""
    if isinstance(value, ExpandedText):
        try:
            return float(value) if any(mark in value for mark in ".eEnN") else int(value)
        except ValueError:
            raise field_error("the variable is not a number", "Set it to a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise field_error(f"it must be a number, not {type_name(value)}", "Give a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise field_error("it is not finite", "Give a finite number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise field_error("the number is too large", "Give a smaller number")
    return value


Number = BeforeValidator(_check_number)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Number]
Value = TypeVar("Value")


class FrozenDict(dict[str, Value]):
    """A hashable dictionary; every method that would change it raises TypeError."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    if not TYPE_CHECKING:  # to a type checker it is a Mapping, which has none of these

        def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            raise TypeError("a configuration cannot be changed; make a new one")

        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse


def _reject_json_change(_self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("data from a server cannot be changed; change a copy (copy.deepcopy)")


class FrozenJson(dict[str, Any]):
    """A JSON object, frozen at every depth. A deep copy is a plain dict."""

    __slots__ = ()

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _reject_json_change
        clear = pop = popitem = setdefault = update = _reject_json_change


class FrozenList(list[Any]):
    """A JSON array, frozen at every depth. A deep copy is a plain list."""

    __slots__ = ()

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self))

    def __deepcopy__(self, memo: object) -> list[Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _reject_json_change
        append = extend = insert = pop = remove = clear = sort = reverse = _reject_json_change


def freeze(value: Any) -> Any:
    """A copy of a JSON value that is frozen at every depth."""
    if isinstance(value, dict):
        return FrozenJson({k: freeze(v) for k, v in cast("dict[str, Any]", value).items()})
    if isinstance(value, list):
        return FrozenList([freeze(one) for one in cast("list[Any]", value)])
    return value


def thaw(value: Any) -> Any:
    """A plain copy of a JSON value. Takes a third of the time of `deepcopy`."""
    if isinstance(value, dict):
        return {key: thaw(held) for key, held in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [thaw(one) for one in cast("list[Any]", value)]
    return value


class FrozenModel(BaseModel):
    """Base of the configuration models. Immutable; raises `ConfigError` without the value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _to_config_errors(type(self), error, given)[0] from None

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    @classmethod
    def validation_errors(cls, given: Mapping[str, Any]) -> list[ConfigError]:
        """All errors of these values. The constructor raises the first."""
        try:
            cls.__pydantic_validator__.validate_python(given, self_instance=cls.__new__(cls))
        except ValidationError as error:
            return _to_config_errors(cls, error, given)
        return []


def _to_config_errors(
    model: type[BaseModel], error: ValidationError, given: Mapping[str, Any]
) -> list[ConfigError]:
    found = error.errors(include_url=False, include_input=False)
    return [_to_config_error(model, one, given) for one in found]


def _to_config_error(
    model: type[BaseModel], first: ErrorDetails, given: Mapping[str, Any]
) -> ConfigError:
    """An error of pydantic as a `ConfigError` of one line, without the value."""
    key, context = ".".join(str(part) for part in first["loc"]), first.get("ctx", {})
    name = given.get("name")
    server = name if isinstance(name, str) else None
    inner = context.get("error")
    match first["type"]:
        case "extra_forbidden":
            problem, remedy = describe_unknown_key(key, model.model_fields)
        case "missing":
            problem, remedy = "it is missing", f"Add {key!r}"
        case "toolkeep":
            problem, remedy = str(context["problem"]), str(context["remedy"])
            key = key or str(context["key"])
        case "value_error" if isinstance(inner, ConfigError):
            problem, remedy, key = inner.problem, inner.remedy, f"{key}.{inner.key}"
        case "literal_error":
            problem, remedy = (
                "it is not one of the allowed values",
                f"Give {context.get('expected')}",
            )
        case "greater_than" | "greater_than_equal":
            least = context.get("gt", context.get("ge"))
            above = "more than" if "gt" in context else "at least"
            problem, remedy = f"it must be {above} {least}", "Give a larger number"
        case "less_than" | "less_than_equal":
            most = context.get("lt", context.get("le"))
            below = "less than" if "lt" in context else "at most"
            problem, remedy = f"it must be {below} {most}", "Give a smaller number"
        case "too_long":
            problem = f"it has more than {context.get('max_length')} entries"
            remedy = "List fewer entries"
        case kind:
            problem, remedy = _MESSAGES.get(
                kind, _MESSAGES.get(kind.partition("_")[0], _DEFAULT_MESSAGE)
            )
    return ConfigError(problem, key=key, server=server, remedy=remedy)


def describe_unknown_key(key: str, known: Iterable[str]) -> tuple[str, str]:
    """Problem and remedy for an unknown key."""
    own, names = key.rpartition(".")[2], sorted(known)
    meant = closest_match(own, names)
    if meant is None:
        return f"unknown key {own[:80]!r}", f"Known keys: {', '.join(names)}"
    return f"unknown key {own[:80]!r}, did you mean {meant!r}?", f"Write {meant!r}, or remove it"


def closest_match(key: str, known: Iterable[str]) -> str | None:
    """The known key that is closest to a misspelled one, if it is close enough."""
    plain: dict[str, str] = {}
    for name in known:
        plain.setdefault(_normalize(name), name)
    near = get_close_matches(_normalize(key[:80]), plain, n=1, cutoff=0.75)
    return plain[near[0]] if near else None


def _normalize(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")


def type_name(value: object) -> str:
    """The type of a value, for error messages."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def field_error(what: str, remedy: str, key: str = "") -> PydanticCustomError:
    """An error for a validator to raise. `key` is for errors of a model as a whole."""
    context = {"problem": what, "remedy": remedy, "key": key}
    return PydanticCustomError("toolkeep", "{problem}", context)


def check_http_url(url: str) -> None:
    """Raise unless it is an http(s) URL with a host.

    Errors do not quote the value: if two variables are swapped, it is an API key.
    """
    remedy = "Give a full address, such as http://localhost:8000/mcp"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise field_error("it is not a URL", remedy) from None
    if parts.scheme not in ("http", "https"):
        raise field_error("it is not an http(s) URL", remedy)
    if not parts.hostname or port == 0 or re.search(r"[\s\x00-\x1f]", url):
        raise field_error("the URL has no valid host or port", remedy)


def merge_urls(given: Any) -> Any:
    """Make `url` and `urls` agree: `url` is the first of `urls`, and one address is no list."""
    if not isinstance(given, Mapping):
        return given
    values = cast("Mapping[str, Any]", given)
    urls, url = values.get("urls"), values.get("url")
    if not isinstance(urls, Sequence) or isinstance(urls, str) or not urls:
        return values
    addresses = list(cast("Sequence[Any]", urls))
    if url and url not in addresses:
        raise field_error(
            "'url' is not among 'urls'", "List every address in 'urls', and remove 'url'", "urls"
        )
    if any(addresses.count(one) > 1 for one in addresses):
        raise field_error("an address is listed twice", "List each address once", "urls")
    return {**values, "url": url or addresses[0], "urls": addresses if len(addresses) > 1 else ()}


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_from_url(url: object) -> str:
    """A server name from the host of its URL."""
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        host = None
    return to_server_name(host or "")


def to_server_name(text: str) -> str:
    """The server name closest to `text`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).strip("-_")[:64] or "server"


def valid_server_names(given: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Map each name to a legal one.

    Other products allow dots, spaces and slashes: `io.github.upstash/context7` becomes
    `io-github-upstash-context7`. A legal name stays as it is; a name that would equal another gets
    a number.
    """
    names = list(dict.fromkeys(given))
    used = {*taken, *(name for name in names if SERVER_NAME.fullmatch(name))}
    ours: dict[str, str] = {}
    for name in names:
        if SERVER_NAME.fullmatch(name):
            ours[name] = name
            continue
        near = to_server_name(name)
        numbered = (f"{near[: 63 - len(str(n))]}-{n}" for n in itertools.count(2))
        ours[name] = near if near not in used else next(one for one in numbered if one not in used)
        used.add(ours[name])
    return ours


CONTEXT_HEADER_NAMES: Mapping[str, str] = FrozenDict(
    {
        "user": "x-user-id",
        "session": "x-session-id",
        "execution": "x-execution-id",
        "trace": "x-trace-id",
        "principal": "x-principal",
    }
)
"""Fields of a call's context that can become headers, with the default header names."""


def _to_frozen_dict(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return FrozenDict(given)


def _reject_empty_list(given: Any) -> Any:
    """Reject `[]`: it could mean no tools or all tools."""
    if given == []:
        raise field_error("an empty list is ambiguous", "Leave it out to offer all tools")
    return given


def _number_for_all_tools(given: Any) -> Any:
    """Apply a single number, also one from a variable, to all tools."""
    number = to_number(given)
    return given if number is None else {"*": number}


def _default_header_names(given: Any) -> Any:
    """Add the default names to `true` and to a list of fields."""
    if isinstance(given, bool):
        return dict(CONTEXT_HEADER_NAMES) if given else {}
    if isinstance(given, list | tuple | set | frozenset):
        listed = cast("list[Any]", given)
        if all(isinstance(key, str) for key in listed):
            return {key: CONTEXT_HEADER_NAMES.get(key, "") for key in listed}
    return cast("Any", given)


def _check_context_headers(given: Mapping[str, str]) -> Mapping[str, str]:
    for key, name in given.items():
        if key not in CONTEXT_HEADER_NAMES:
            raise field_error(
                f"{key[:80]!r} is not a field of the call's context",
                f"Use one of: {', '.join(CONTEXT_HEADER_NAMES)}",
            )
        if not _HEADER_NAME.fullmatch(name) or name.lower().startswith("mcp-"):
            what = f"the header for {key!r} is not a valid name, or belongs to the protocol"
            raise field_error(what, f"Name a header, such as {CONTEXT_HEADER_NAMES[key]}")
    lowered = {key: name.lower() for key, name in given.items()}
    if len(set(lowered.values())) < len(lowered):
        raise field_error("two headers have the same name", "Give each its own")
    return FrozenDict(lowered)


def _check_tag(given: str) -> str:
    if not _TAG.fullmatch(given):
        remedy = "Use 1 to 64 characters, without spaces, commas and * ? [ ] ! #"
        raise field_error(f"{given[:80]!r} is not a tag", remedy)
    return given


def _check_guide(given: str) -> str:
    if not given.strip():
        raise field_error("the guide is empty", "Name a prompt, or write the text")
    return given


Pattern = Annotated[str, Field(min_length=1)]
Patterns = tuple[Pattern, ...]
IncludedTools = Annotated[
    Patterns, BeforeValidator(_reject_empty_list), Field(json_schema_extra={"minItems": 1})
]
Tag = Annotated[str, AfterValidator(_check_tag)]
Tags = frozenset[Tag]
ToolTags = Annotated[Mapping[Pattern, tuple[Tag, ...]], AfterValidator(_to_frozen_dict)]
ToolHeaders = Annotated[
    Mapping[Pattern, Annotated[Mapping[str, str], AfterValidator(_to_frozen_dict)]],
    AfterValidator(_to_frozen_dict),
]
Guides = Annotated[
    Mapping[Pattern, Annotated[str, AfterValidator(_check_guide)]], AfterValidator(_to_frozen_dict)
]
CacheTimes = Annotated[
    Mapping[Pattern, Seconds],
    BeforeValidator(_number_for_all_tools),
    AfterValidator(_to_frozen_dict),
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
_RATE_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
_RATE = re.compile(r"([0-9]{1,9})/(s|min|h|day)")


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: `count` calls in `seconds`, evenly, in every process together.

    A twentieth of them may come at once, so that no window has more than 5% above the count.
    """

    count: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """`"100/min"`. Raises ValueError."""
        found = _RATE.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise ValueError("a rate is a number of calls and a unit, such as 100/min or 10/s")
        return cls(int(found[1]), _RATE_UNITS[found[2]])

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _RATE_UNITS.items() if seconds == self.seconds)
        return f"{self.count}/{unit}"

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def burst(self) -> float:
        return max(1.0, self.count / 20)


def _to_rate_by_scope(given: object) -> object:
    return {"server": given} if isinstance(given, str) else given


def _check_rates(given: Mapping[str, str]) -> FrozenDict[str]:
    for scope, rate in given.items():
        if scope not in ("server", "principal") and not scope.startswith("tool:"):
            remedy = "Use server, principal, or tool: and a glob over names of tools"
            raise field_error(f"{scope[:80]!r} is not a scope of a rate", remedy)
        try:
            Rate.parse(rate)
        except ValueError:
            remedy = "Write a number of calls and a unit: 10/s, 100/min, 1000/h or 5000/day"
            raise field_error(f"{rate[:80]!r} is not a rate", remedy) from None
    return FrozenDict(given)


_RATE_SCHEMA = {"type": "string", "pattern": "^[0-9]{1,9}/(s|min|h|day)$"}
Rates = Annotated[
    Mapping[Pattern, str],
    BeforeValidator(_to_rate_by_scope),
    AfterValidator(_check_rates),
    WithJsonSchema(
        {"anyOf": [_RATE_SCHEMA, {"type": "object", "additionalProperties": _RATE_SCHEMA}]}
    ),
]
ContextHeaders = Annotated[
    Mapping[str, str],
    BeforeValidator(_default_header_names),
    AfterValidator(_check_context_headers),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [True, False]},
                {"type": "array", "items": {"enum": list(CONTEXT_HEADER_NAMES)}},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {key: {"type": "string"} for key in CONTEXT_HEADER_NAMES},
                },
            ]
        }
    ),
]


def to_number(value: object) -> float | None:
    """The value as a float, also of a text with a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
