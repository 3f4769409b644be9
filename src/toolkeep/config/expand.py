"""`${VAR}`, `${VAR:-default}`, `${env:VAR}` and `${input:id}` in any string of a configuration.

Pure: the environment is an argument, and so is whoever answers inputs. `$${` stands for a literal
`${`. An unset variable without a default is an error that names the key it stands in; a
half-written `${` is one too. What a variable holds is never expanded again, so a value can neither
loop nor inject.
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
    r"|\$\{(?P<known>/)\}"  # VS Code's other word for pathSeparator
    r"|\$\{(?P<env>env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|(?P<malformed>\$\{)"
)


class FromVariable(str):
    """A text that a variable or a file held: it may stand for a number, which no text that was
    given in Python does."""

    __slots__ = ()


def no_inputs(id_: str) -> str:
    """For dialects that know none."""
    raise ConfigError(
        f"nothing here answers the input {id_[:80]!r}",
        remedy="Declare it under 'inputs', in a file of VS Code's, or use ${NAME}",
    )


@dataclass(frozen=True, slots=True)
class Meanings:
    """What references stand for."""

    env: Mapping[str, str] = field(repr=False)
    known: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Words that come before the environment, such as `workspaceFolder`."""
    answer: Callable[[str], str] = no_inputs


def expand(value: Any, env: Mapping[str, str] | Meanings, *, key: str = "") -> Any:
    """`value` with every string in it expanded; mappings and lists are walked, never mutated."""
    meanings = env if isinstance(env, Meanings) else Meanings(env)
    match value:
        case str():
            return _expand_text(value, meanings, key)
        case Mapping():
            items = cast("Mapping[str, Any]", value)
            return {k: expand(v, meanings, key=_below(key, k)) for k, v in items.items()}
        case list() | tuple():
            entries = cast("list[Any]", value)
            return [expand(v, meanings, key=_below(key, i)) for i, v in enumerate(entries)]
        case _:
            return value


def _below(key: str, part: object) -> str:
    return f"{key}.{part}" if key else str(part)


def _expand_text(text: str, meanings: Meanings, key: str) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found["malformed"]:
            raise ConfigError(
                "'${' does not begin a reference",
                key=key,
                remedy="Write ${NAME}, ${NAME:-default} or ${env:NAME}; $${ for a literal ${",
            )
        if found["input"]:
            return _answer(found["input"], meanings, key)
        name = found["name"] or found["known"]
        if name is None:
            return "${"
        if not found["env"] and name in meanings.known:
            return meanings.known[name]
        return _variable(name, found["default"], meanings.env, key)

    expanded = _REFERENCE.sub(value_of, text)
    return FromVariable(expanded) if expanded != text else text


def _answer(id_: str, meanings: Meanings, key: str) -> str:
    try:
        return meanings.answer(id_)
    except ConfigError as error:
        raise ConfigError(error.problem, key=key, remedy=error.remedy) from None


def _variable(name: str, default: str | None, env: Mapping[str, str], key: str) -> str:
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
