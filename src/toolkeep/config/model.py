"""What the configuration's models share: frozen, strict about keys, plain in their errors."""

from __future__ import annotations

from collections.abc import Mapping
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
            problem, remedy = "unknown key", f"Known keys: {', '.join(sorted(model.model_fields))}"
        case "missing":
            problem, remedy = "missing", f"Add {key!r}"
        case "toolkeep":
            problem, remedy = str(context["problem"]), str(context["remedy"])
            key = key or str(context["key"])
        case "value_error" if isinstance(inner, ConfigError):
            problem, remedy, key = inner.problem, inner.remedy, f"{key}.{inner.key}"
        case _:
            problem, remedy = first["msg"], _remedy(first)
    return ConfigError(problem, key=key, server=server, remedy=remedy)


_REMEDIES = {
    "bool": "Give true or false",
    "dict": "Give a mapping",
    "finite": "Give a finite number",
    "float": "Give a number",
    "frozen": "Give a list",
    "greater": "Give a larger number",
    "int": "Give a whole number",
    "mapping": "Give a mapping",
    "model": "Give a mapping",
    "string": "Give a text",
    "tuple": "Give a list",
}
"""By the first word of pydantic's name for what is wrong."""


def _remedy(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return f"Give {error.get('ctx', {}).get('expected')}"
    return _REMEDIES.get(error["type"].partition("_")[0], "Correct the value")
