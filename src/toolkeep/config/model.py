"""What the configuration's models share: frozen, strict about keys, plain in their errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from toolkeep.errors import ConfigError


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _plain_errors(type(self), error, given)[0] from None

    @classmethod
    def mistakes(cls, given: Mapping[str, Any]) -> list[ConfigError]:
        """All that is wrong with these values; making one raises the first."""
        try:
            cls.__pydantic_validator__.validate_python(given, self_instance=cls.__new__(cls))
        except ValidationError as error:
            return _plain_errors(cls, error, given)
        return []


def _plain_errors(
    model: type[BaseModel], error: ValidationError, given: Mapping[str, Any]
) -> list[ConfigError]:
    found = error.errors(include_url=False, include_input=False)
    return [_plain_error(model, one, given) for one in found]


def _plain_error(
    model: type[BaseModel], first: ErrorDetails, given: Mapping[str, Any]
) -> ConfigError:
    """What pydantic found, said in one line, without the value."""
    key, context = ".".join(str(part) for part in first["loc"]), first.get("ctx", {})
    name = given.get("name")
    server = name if isinstance(name, str) else None
    inner = context.get("error")
    match first["type"]:
        case "extra_forbidden":
            problem, remedy = unknown_key(key, model.model_fields)
        case "missing":
            problem, remedy = "missing", f"Add {key!r}"
        case "toolkeep":
            problem, remedy = str(context["problem"]), str(context["remedy"])
            key = key or str(context["key"])
        case "value_error" if isinstance(inner, ConfigError):
            problem, remedy, key = inner.problem, inner.remedy, f"{key}.{inner.key}"
        case "literal_error":
            problem, remedy = "it is none of what it can be", f"Give {context.get('expected')}"
        case "greater_than" | "greater_than_equal":
            least = context.get("gt", context.get("ge"))
            above = "more than" if "gt" in context else "at least"
            problem, remedy = f"it has to be {above} {least}", "Give a larger number"
        case "too_long":
            problem = f"it has more than {context.get('max_length')} members"
            remedy = "List fewer of them"
        case kind:
            problem, remedy = _MEANINGS.get(kind, _MEANINGS.get(kind.partition("_")[0], _UNUSABLE))
    return ConfigError(problem, key=key, server=server, remedy=remedy)


_UNUSABLE = ("it cannot be used", "Correct the value")
_MEANINGS = {
    "bool": ("it is neither true nor false", "Give true or false"),
    "dict": ("it is no mapping", "Give a mapping"),
    "finite": ("it is not finite", "Give a finite number"),
    "float": ("it is no number", "Give a number"),
    "frozen": ("it is no list", "Give a list"),
    "int": ("it is no whole number", "Give a whole number"),
    "mapping": ("it is no mapping", "Give a mapping"),
    "model": ("it is no mapping", "Give a mapping"),
    "string": ("it is no text", "Give a text"),
    "string_too_short": ("it is empty", "Give a text"),
    "tuple": ("it is no list", "Give a list"),
}
"""By pydantic's name for what is wrong, or the first word of it: no text of pydantic's is shown."""


def unknown_key(key: str, known: Iterable[str]) -> tuple[str, str]:
    """What is said of a key that means nothing, and what to do about it."""
    own, names = key.rpartition(".")[2], sorted(known)
    meant = nearest(own, names)
    if meant is None:
        return f"unknown key {own[:80]!r}", f"Known keys: {', '.join(names)}"
    return f"unknown key {own[:80]!r}, did you mean {meant!r}?", f"Write {meant!r}, or remove it"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that a misspelt one was meant to be, if one is near enough."""
    plain: dict[str, str] = {}
    for name in known:
        plain.setdefault(_plain(name), name)
    near = get_close_matches(_plain(key[:80]), plain, n=1, cutoff=0.75)
    return plain[near[0]] if near else None


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")


_KINDS: dict[type[Any], str] = {
    bool: "true or false",
    dict: "a mapping",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    tuple: "a list",
    type(None): "nothing",
}


def kind_of(value: object) -> str:
    """What a value is, for people."""
    return _KINDS.get(type(value), type(value).__name__)
