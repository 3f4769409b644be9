"""Python stubs of tools, written from their schemas for a type checker and for a model.

A tool becomes an `async def` with keyword-only parameters, an object a TypedDict, an enum a
Literal, an output schema the return type:

    class ShopFindResult(TypedDict):
        items: list[str]

    async def shop__find(*, query: str, limit: int = 10) -> ShopFindResult:

What Python's types cannot express is `Any`; a tool without an output schema returns `Any`. A
parameter whose name is not a Python name is passed as `**{"the-name": value}`. No schema makes it
raise, no text of a schema can break out of its comment, string or name, and the size of a stub is
limited.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from toolkeep._rules.schema_references import resolve_reference
from toolkeep._rules.strict_schema import (
    OpenReferences,
    Schema,
    StrictSchemaWriter,
    as_schema,
    items_of,
    strings,
    types_of,
    union_branches,
)

HEADER = "from typing import Any, Literal, NotRequired, TypedDict\n"
"""The imports that the stubs of all tools share."""

MAX_STUB = 6_000
"""Characters of one tool's stub: a longer one is written with less detail."""
MAX_DESCRIPTION = 500
MAX_COMMENT = 120
MAX_NAME = 80
MAX_DEFAULT = 40
MAX_LITERALS = 50
"""Values of an enum. A longer enum is written as its type."""
MAX_BRANCHES = 20
"""Members of a union. A longer one is `Any`."""
MAX_DEPTH = 8
"""Nested objects and lists. What is deeper is `Any`."""

SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
WORD = re.compile(r"[A-Za-z0-9]+")
TYPE_NAME = re.compile(r"\w+")
UNPRINTABLE = re.compile(r"[^ -~\u00a0-\u2027\u2030-\ud7ff\ue000-\uffff]+")


def write_stub(
    name: str,
    input_schema: Any,
    output_schema: Any = None,
    *,
    description: str = "",
    taken: set[str] | None = None,
) -> str:
    """The stub of the tool `name`, preceded by its TypedDicts.

    With a description it is for a model: it gets a docstring, and comments for parameters. `taken`
    holds the class names of the other stubs; those of this one are added to it.
    """
    used = set[str]() if taken is None else taken
    for described, depth in ((bool(description), MAX_DEPTH), (False, MAX_DEPTH), (False, 0)):
        stub = StubWriter(name, set(used), depth, described)
        text = stub.write(input_schema, output_schema, description)
        if len(text) <= MAX_STUB:
            used |= stub.used_names
            return text
    return f"async def {name}(**arguments: Any) -> Any:{stub_body(description)}\n"


class StubWriter:
    """Writes the stub of one tool."""

    def __init__(self, name: str, taken: set[str], depth: int, described: bool) -> None:
        self.name, self.used_names, self.depth, self.described = name, taken, depth, described
        self.classes: list[str] = []
        self.references: dict[str, str] = {}
        """The TypedDict of each reference, so that an object may refer to itself."""
        self.unfinished: set[str] = set()
        """The TypedDicts that are being written."""
        self.root: Schema = {}
        self.writer = StrictSchemaWriter(self.root)

    def write(self, input_schema: Any, output_schema: Any, description: str) -> str:
        self.start_schema(input_schema)
        parameters = self.parameters()
        returns = "Any"
        if output_schema is not None:
            self.start_schema(output_schema)
            returns = self.type_of(self.root, ("result",), 0, frozenset())
        head = f"async def {self.name}({parameters}) -> {returns}:{stub_body(description)}\n"
        return "".join(f"{each}\n\n" for each in self.classes) + head

    def start_schema(self, schema: Any) -> None:
        """Resolve references within this schema from now on."""
        self.root = as_schema(schema)
        self.writer = StrictSchemaWriter(self.root)
        self.references = {}

    # -- parameters -----------------------------------------------------------------------------

    def parameters(self) -> str:
        flat, within = self.writer.flatten(self.root, 0, frozenset(), alone=False)
        given = as_schema(flat.get("properties"))
        required = strings(flat.get("required"))
        written = [
            self.parameter(name, part, name in required, within)
            for name, part in given.items()
            if is_python_name(name)
        ]
        odd = [name for name in given if not is_python_name(name)]
        if odd or is_open(flat) or "properties" not in flat:
            written.append(("**arguments: Any", unusual_names(odd)))
        keywords = ["*"] if any(not one.startswith("**") for one, _ in written) else []
        if not any(comment for _, comment in written):
            return ", ".join([*keywords, *(one for one, _ in written)])
        lines = [*((one, "") for one in keywords), *written]
        return "".join(f"\n    {one},{format_comment(comment)}" for one, comment in lines) + "\n"

    def parameter(
        self, name: str, part: Any, required: bool, within: OpenReferences
    ) -> tuple[str, str]:
        kind = self.type_of(part, (name,), 0, within)
        default = "" if required else f" = {default_of(part, kind)}"
        return f"{name}: {kind}{default}", self.comment(part)

    def comment(self, part: Any) -> str:
        text = as_schema(part).get("description")
        return clean_line(text, MAX_COMMENT) if self.described and isinstance(text, str) else ""

    # -- types ----------------------------------------------------------------------------------

    def type_of(self, part: Any, path: tuple[str, ...], depth: int, within: OpenReferences) -> str:
        """The type of a schema. `path`: its place, for the name of its TypedDict."""
        flat, inside = self.writer.flatten(as_schema(part), depth, within)
        reference = flat.get("$ref")
        if isinstance(reference, str):
            return self.type_of_reference(reference, depth, inside)
        if "const" in flat:
            return literals([flat["const"]]) or "Any"
        if isinstance(flat.get("enum"), list):
            found = literals(cast("list[Any]", flat["enum"]))
            if found:
                return found
        branches = union_branches(flat)
        if branches:
            return union(self.type_of(one, path, depth + 1, inside) for one in branches)
        return union(self.type_of_kind(one, flat, path, depth, inside) for one in types_of(flat))

    def type_of_reference(self, reference: str, depth: int, within: OpenReferences) -> str:
        if reference in self.references:
            return self.references[reference]
        if reference in within:
            return "Any"  # refers to itself without being an object
        target = resolve_reference(reference, self.root)
        path = (reference.rpartition("/")[2],)
        flat = as_schema(target)
        if is_closed_object(flat) and depth < self.depth:
            name = self.references[reference] = self.class_name(path)
            self.unfinished.add(name)
            self.write_typed_dict(name, flat, path, depth, within)
            self.unfinished.discard(name)
            return name
        return self.type_of(target, path, depth + 1, within | {reference})

    def type_of_kind(
        self, kind: str, flat: Schema, path: tuple[str, ...], depth: int, within: OpenReferences
    ) -> str:
        if kind in SCALARS:
            return SCALARS[kind]
        deeper = depth < self.depth
        if kind == "array":
            items = items_of(flat)
            inside = (*path, "item")
            return f"list[{self.type_of(items, inside, depth + 1, within) if deeper else 'Any'}]"
        if is_closed_object(flat) and deeper:
            return self.write_typed_dict(self.class_name(path), flat, path, depth, within)
        extra = flat.get("additionalProperties")
        free = isinstance(extra, Mapping) and not flat.get("properties") and deeper
        inside = (*path, "value")
        return f"dict[str, {self.type_of(extra, inside, depth + 1, within) if free else 'Any'}]"

    def write_typed_dict(
        self, name: str, flat: Schema, path: tuple[str, ...], depth: int, within: OpenReferences
    ) -> str:
        """Write a TypedDict for an object whose properties are all known, and return its name."""
        required = strings(flat.get("required"))
        fields: list[tuple[str, str, str]] = []
        for key, part in as_schema(flat.get("properties")).items():
            kind = self.type_of(part, (*path, key), depth + 1, within)
            kind = kind if key in required else f"NotRequired[{kind}]"
            fields.append((key, kind, self.comment(part)))
        if all(is_python_name(key) for key, _, _ in fields):
            lines = [f"    {key}: {kind}{format_comment(comment)}" for key, kind, comment in fields]
            self.classes.append("\n".join([f"class {name}(TypedDict):", *lines]))
        else:
            lines = [
                f"    {key!r}: {self.quote_unfinished(kind)},{format_comment(comment)}"
                for key, kind, comment in fields
            ]
            self.classes.append("\n".join([f'{name} = TypedDict("{name}", {{', *lines, "})"]))
        return name

    def quote_unfinished(self, kind: str) -> str:
        """Quote a type that is not defined yet, as a call of `TypedDict` needs it."""
        if self.unfinished.isdisjoint(TYPE_NAME.findall(kind)):
            return kind
        optional = kind.startswith("NotRequired[")
        inner = repr(kind.removeprefix("NotRequired[")[:-1] if optional else kind)
        inner = "Any" if "\\" in inner else inner  # a quoted type has no escapes
        return f"NotRequired[{inner}]" if optional else inner

    def class_name(self, path: tuple[str, ...]) -> str:
        words = [word for one in (self.name, *path) for word in WORD.findall(one)]
        name = "".join(word[:1].upper() + word[1:] for word in words)[:MAX_NAME]
        name = f"T{name}" if name[:1].isdigit() else name
        number = 1
        wanted = name
        while name in self.used_names:
            number += 1
            name = f"{wanted}_{number}"
        self.used_names.add(name)
        return name


# --- parts ---------------------------------------------------------------------------------------


def is_python_name(name: str) -> bool:
    """Whether it can be the name of a parameter or a field."""
    return PLAIN_NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def unusual_names(names: list[str]) -> str:
    """A comment on how to pass parameters whose names are not Python names."""
    if not names:
        return ""
    return clean_line(f'pass as **{{"name": value}}: {", ".join(map(repr, names))}', MAX_COMMENT)


def is_open(flat: Schema) -> bool:
    """Whether the schema explicitly allows other properties.

    If it does not say, the answer is no: most schemas omit it, and the type checker should find
    mistyped names.
    """
    extra = flat.get("additionalProperties")
    return extra is True or isinstance(extra, Mapping) or bool(flat.get("patternProperties"))


def is_closed_object(flat: Schema) -> bool:
    return bool(as_schema(flat.get("properties"))) and not is_open(flat)


def union(kinds: Iterable[str]) -> str:
    found = list(dict.fromkeys(kinds))
    if not found or "Any" in found or len(found) > MAX_BRANCHES:
        return "Any"
    return " | ".join(found)


def literals(values: list[Any]) -> str:
    """A Literal of the values; empty if Python has none for them or they are too many."""
    usable = [one for one in values if one is None or isinstance(one, str | bool | int)]
    written = list(dict.fromkeys(map(repr, usable)))
    if not usable or len(usable) < len(values) or len(written) > MAX_LITERALS:
        return ""
    return f"Literal[{', '.join(written)}]"


def default_of(part: Any, kind: str) -> str:
    value = as_schema(part).get("default")
    written = repr(value)
    fits = type(value).__name__ == kind and isinstance(value, str | int | bool)
    return written if fits and len(written) <= MAX_DEFAULT else "..."


def stub_body(description: str) -> str:
    """The docstring, or `...` without a description."""
    if not description:
        return " ..."
    lines = (clean_line(line, MAX_DESCRIPTION) for line in description.splitlines())
    text = "\n    ".join(line for line in lines if line)
    if len(text) > MAX_DESCRIPTION:
        text = f"{text[:MAX_DESCRIPTION]}…"
    text = text.replace("\\", "/").replace('"""', "'''").rstrip('"')
    return f'\n    """{text}"""'


def format_comment(text: str) -> str:
    return f"  # {text}" if text else ""


def clean_line(text: str, limit: int) -> str:
    """The text in one line, without characters that could end the line."""
    line = " ".join(UNPRINTABLE.sub(" ", text[: 2 * limit]).split())
    return line if len(line) <= limit else f"{line[:limit]}…"
