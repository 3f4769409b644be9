"""What the configuration's models share: frozen, strict about keys, plain in their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mainstay.errors import ConfigError


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _plain_error(type(self), error, given) from None


def _plain_error(
    model: type[BaseModel], error: ValidationError, given: Mapping[str, Any]
) -> ConfigError:
    """The first thing that pydantic found, said in one line, without the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    key, context = ".".join(str(part) for part in first["loc"]), first.get("ctx", {})
    name = given.get("name")
    server = name if isinstance(name, str) else None
    inner = context.get("error")
    match first["type"]:
        case "extra_forbidden":
            problem, remedy = "unknown key", f"Known keys: {', '.join(sorted(model.model_fields))}"
        case "missing":
            problem, remedy = "missing", f"Add {key!r}"
        case "mainstay":
            problem, remedy = str(context["problem"]), str(context["remedy"])
            key = key or str(context["key"])
        case "value_error" if isinstance(inner, ConfigError):
            problem, remedy, key = inner.problem, inner.remedy, f"{key}.{inner.key}"
        case _:
            problem, remedy = first["msg"], f"Correct {key!r}"
    return ConfigError(problem, key=key, server=server, remedy=remedy)
