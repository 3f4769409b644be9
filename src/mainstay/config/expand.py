"""`${VAR}`, `${VAR:-default}` and `${env:VAR}` in any string of a configuration.

Pure: the environment is an argument. `$${` stands for a literal `${`. An unset variable without a
default is an error that names the key it stands in; a half-written `${` is one too. What a
variable holds is never expanded again, so a value can neither loop nor inject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from mainstay.errors import ConfigError

_REFERENCE = re.compile(
    r"\$\$\{"  # an escaped ${
    r"|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|(?P<malformed>\$\{)"
)


def expand(value: Any, env: Mapping[str, str], *, key: str = "") -> Any:
    """`value` with every string in it expanded; mappings and lists are walked, never mutated."""
    match value:
        case str():
            return _expand_text(value, env, key)
        case Mapping():
            items = cast("Mapping[str, Any]", value)
            return {k: expand(v, env, key=_below(key, k)) for k, v in items.items()}
        case list() | tuple():
            entries = cast("list[Any]", value)
            return [expand(v, env, key=_below(key, i)) for i, v in enumerate(entries)]
        case _:
            return value


def _below(key: str, part: object) -> str:
    return f"{key}.{part}" if key else str(part)


def _expand_text(text: str, env: Mapping[str, str], key: str) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found["malformed"]:
            raise ConfigError(
                "'${' does not begin a reference",
                key=key,
                remedy="Write ${NAME}, ${NAME:-default} or ${env:NAME}; $${ for a literal ${",
            )
        name, default = found["name"], found["default"]
        if name is None:
            return "${"
        value = env.get(name)
        if value is None or (not value and default is not None):
            value = default  # as in a shell, `:-` also stands in for an empty value
        if value is not None:
            return value
        raise ConfigError(
            f"the environment variable {name} is not set",
            key=key,
            remedy=f"Set {name}, or give a default: ${{{name}:-…}}",
        )

    return _REFERENCE.sub(value_of, text)
