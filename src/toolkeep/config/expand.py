"""Expand `${VAR}`, `${VAR:-default}`, `${env:VAR}` and `${input:id}` in configuration values.

Pure: the environment and the function that answers inputs are arguments. `$${` is a literal
`${`. An unset variable without a default and an incomplete `${` are errors that name the key.
Expanded text is not expanded again, so a value can neither loop nor inject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep.errors import ConfigError

_REFERENCE = re.compile(
    r"\$\$\{"  # an escaped ${
    r"|\$\{input:(?P<input>[^${}]+)\}"
    r"|\$\{(?P<known>/)\}"  # VS Code's short form of pathSeparator
    r"|\$\{(?P<env>env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|(?P<malformed>\$\{)"
)


class ExpandedText(str):
    """Text from a variable or a file. It may stand for a number; text given in Python may not."""

    __slots__ = ()


def reject_input(id_: str) -> str:
    """Raise `ConfigError`: the default for dialects without inputs."""
    raise ConfigError(
        f"the input {id_[:80]!r} cannot be answered: this format has no inputs",
        remedy="Use ${NAME}, or declare the input under 'inputs' in a VS Code file",
    )


@dataclass(frozen=True, slots=True)
class References:
    """The values that references expand to."""

    env: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Names that precede the environment, such as `workspaceFolder`."""
    input_value: Callable[[str], str] = reject_input


def expand(value: Any, env: Mapping[str, str] | References, *, key: str = "") -> Any:
    """Return `value` with every string in it expanded. Mappings and lists are copied."""
    references = env if isinstance(env, References) else References(env)
    match value:
        case str():
            return _expand_text(value, references, key)
        case Mapping():
            items = cast("Mapping[str, Any]", value)
            return {k: expand(v, references, key=_join_key(key, k)) for k, v in items.items()}
        case list() | tuple():
            entries = cast("list[Any]", value)
            return [expand(v, references, key=_join_key(key, i)) for i, v in enumerate(entries)]
        case _:
            return value


def _join_key(key: str, part: object) -> str:
    return f"{key}.{part}" if key else str(part)


def _expand_text(text: str, references: References, key: str) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found["malformed"]:
            raise ConfigError(
                "'${' does not begin a reference",
                key=key,
                remedy="Write ${NAME}, ${NAME:-default} or ${env:NAME}; $${ for a literal ${",
            )
        if found["input"]:
            return _input_value(found["input"], references, key)
        name = found["name"] or found["known"]
        if name is None:
            return "${"
        if not found["env"] and name in references.variables:
            return references.variables[name]
        return _variable_value(name, found["default"], references.env, key)

    expanded = _REFERENCE.sub(value_of, text)
    return ExpandedText(expanded) if expanded != text else text


def _input_value(id_: str, references: References, key: str) -> str:
    try:
        return references.input_value(id_)
    except ConfigError as error:
        raise ConfigError(error.problem, key=key, remedy=error.remedy) from None


def _variable_value(name: str, default: str | None, env: Mapping[str, str], key: str) -> str:
    value = env.get(name)
    if value is None or (not value and default is not None):
        value = default  # as in a shell, `:-` also replaces an empty value
    if value is not None:
        return value
    raise ConfigError(
        f"the environment variable {name} is not set",
        key=key,
        remedy=f"Set {name}, or give a default: ${{{name}:-…}}",
    )
