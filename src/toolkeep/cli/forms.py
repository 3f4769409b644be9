"""A server's question (elicitation) at the terminal: a flat form, one line for each field.

Nothing is sent that the person has not typed or confirmed. Ctrl-D at any field says no to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli import asking, shapes
from toolkeep.cli.screen import Screen, one_line

if TYPE_CHECKING:
    from toolkeep import InputNeeded

TRIES = 3
_FLAT = {"string", "integer", "number", "boolean"}
DECLINED = {"action": "decline"}


async def fill_in(needed: InputNeeded, screen: Screen) -> Any:
    given: object = needed.params.get("requestedSchema")
    schema = cast("dict[str, Any]", given) if isinstance(given, dict) else None
    message = one_line(str(needed.params.get("message") or "")) or "it does not say what for"
    if schema is None or not is_simple(schema):
        screen.note(f"{needed.server} asks: {message}\n  declined: it takes more than a form")
        return DECLINED
    screen.note(f"{needed.server} asks: {message}")
    if not await asking.yes("Answer it?"):
        return DECLINED
    content: dict[str, Any] = {}
    for name, part in shapes.properties(schema).items():
        if not await _fill(content, name, part, schema, screen):
            screen.note("  declined")
            return DECLINED
    return {"action": "accept", "content": content}


def is_simple(schema: shapes.Schema) -> bool:
    fields = shapes.properties(schema).values()
    return all(shapes.kinds(part, schema) <= _FLAT for part in fields)


async def _fill(
    content: dict[str, Any], name: str, part: Any, schema: shapes.Schema, screen: Screen
) -> bool:
    """Whether the form can go on."""
    needed, default = name in shapes.required(schema), shapes.resolved(part, schema).get("default")
    hint = shapes.asked_for(part, schema)
    end = f" [{default}]" if default is not None else "" if needed else " (may be left out)"
    for _ in range(TRIES):
        text = await asking.line(f"  {name}: {hint}{end}: ")
        if text is None:
            return False
        if not text and default is not None:
            content[name] = default
            return True
        if not text and not needed:
            return True
        try:
            content[name] = shapes.value_of(text, part, schema)
            return True
        except shapes.Unlike as unlike:
            screen.note(f"  {unlike}")
    return False
