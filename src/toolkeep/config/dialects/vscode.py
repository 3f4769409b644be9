"""VS Code's `servers` with `inputs`.

An input is a value that the file leaves open: `${input:id}` stands for the answer of whoever loads
it. Those with `"password": true` are secrets. A `timeout` is none of VS Code's words; it is ours,
in seconds. Source: code.visualstudio.com/docs/copilot/reference/mcp-configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep.config.dialects.plain import entries
from toolkeep.config.dialects.products import as_texts
from toolkeep.config.draft import Draft, Input, Steps
from toolkeep.config.model import kind_of
from toolkeep.config.words import OF_OTHERS, OURS, Vocabulary

Values = dict[str, Any]
WORDS = Vocabulary(
    words={**OURS, **OF_OTHERS, "envFile": "env_file", "disabled": "disabled"},
    silent=frozenset({"dev", "gallery", "version"}),
    convert={"env": as_texts},
)


def has_settings(given: Mapping[str, object]) -> bool:
    """Whether these are VS Code's settings, with the servers under `mcp`."""
    if _framed(given):
        return "servers" in cast("Mapping[str, Any]", given["mcp"])
    return "inputs" in given and "servers" in given


def _framed(given: Mapping[str, object]) -> bool:
    return isinstance(given.get("mcp"), Mapping) and "servers" not in given


def read(draft: Draft) -> None:
    whole = cast("Mapping[str, Any]", draft.document.value)
    steps: Steps = ("mcp",) if _framed(whole) else ()
    given = cast("Mapping[str, Any]", whole["mcp"]) if steps else whole
    draft.of_an_editor = True
    for key in given:
        if key not in ("servers", "inputs", "$schema"):
            origin = draft.document.origin((*steps, key))
            draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)
    _read_inputs(draft, given.get("inputs", []), (*steps, "inputs"))
    entries(draft, given["servers"], WORDS, (*steps, "servers"))


def _read_inputs(draft: Draft, given: Any, steps: Steps) -> None:
    if not isinstance(given, list):
        problem = f"inputs are a list, not {kind_of(given)}"
        remedy = 'Write [{"type": "promptString", "id": "…"}]'
        origin = draft.document.origin(steps)
        draft.mistakes.add(problem, remedy=remedy, origin=origin, key=".".join(map(str, steps)))
        return
    for place, one in enumerate(cast("list[object]", given)):
        _read_input(draft, one, (*steps, place))


def _read_input(draft: Draft, given: object, steps: Steps) -> None:
    one: Mapping[str, Any] = cast("Values", given) if isinstance(given, dict) else {}
    id_, key = one.get("id"), ".".join(map(str, (*steps, "id")))
    origin = draft.document.origin((*steps, "id"))
    if not isinstance(id_, str) or not id_:
        remedy = 'Write {"type": "promptString", "id": "…"}'
        draft.mistakes.add("an input has an id", remedy=remedy, origin=origin, key=key)
    elif id_ in draft.inputs:
        draft.mistakes.add(
            "this input is declared twice", remedy="Keep one", origin=origin, key=key
        )
    else:
        draft.inputs[id_] = Input(
            id=id_,
            description=str(one.get("description") or ""),
            password=one.get("password") is True,
            default=one["default"] if isinstance(one.get("default"), str) else None,
            options=tuple(_options(one.get("options"))),
        )


def _options(given: object) -> list[str]:
    """Texts, or `{"label": …, "value": …}`."""
    listed = cast("list[Any]", given) if isinstance(given, list) else []
    values = [cast("Values", one).get("value") if isinstance(one, dict) else one for one in listed]
    return [one for one in values if isinstance(one, str)]
