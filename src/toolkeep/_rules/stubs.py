"""Python stubs for tools: what a type checker and a model are told of a tool, from its schemas.

A tool becomes an `async def` with keyword-only parameters; objects become TypedDicts, enums become
Literals, an output schema becomes the return type:

    class ShopFindResult(TypedDict):
        items: list[str]

    async def shop__find(*, query: str, limit: int = 10) -> ShopFindResult:

- Whatever Python's types cannot say is `Any`. The stubs are for finding mistakes early: a value
  that fits them may still break the schema, and is checked against it before it is sent.
- A parameter whose name is no Python name is passed as `**{"the-name": value}`.
- A tool without an output schema returns `Any`.

A schema is the server's word. Nothing here raises because of one, its texts cannot leave their
comment, string or name, and the size of the result is bounded.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from toolkeep._rules.strict import (
    Schema,
    Within,
    Writer,
    as_schema,
    forks,
    items_of,
    target_of,
    texts,
    types_of,
)

__all__ = ["HEADER", "signature"]

HEADER = "from typing import Any, Literal, NotRequired, TypedDict\n"
"""What the stubs of any number of tools begin with."""

LONGEST_STUB = 6_000
"""Characters of one tool's stub: a longer one is written with less detail."""
LONGEST_DESCRIPTION = 500
LONGEST_COMMENT = 120
LONGEST_NAME = 80
LONGEST_DEFAULT = 40
MOST_LITERALS = 50
"""Values of an enum that are listed. Of a longer one, only the type is written."""
MOST_BRANCHES = 20
"""Members of a union. A longer one is `Any`."""
DEEPEST = 8
"""Objects and lists within each other. What is deeper is `Any`."""

SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
WORD = re.compile(r"[A-Za-z0-9]+")
TYPE_NAME = re.compile(r"\w+")
UNPRINTABLE = re.compile(r"[^ -~\u00a0-\u2027\u2030-\ud7ff\ue000-\uffff]+")


def signature(
    name: str,
    input_schema: Any,
    output_schema: Any = None,
    *,
    description: str = "",
    taken: set[str] | None = None,
) -> str:
    """The stub of one tool, called `name`, with its TypedDicts before it.

    With a description it is for a model: it has a docstring, and comments for parameters. `taken`
    holds the class names of other tools in the same stubs, and gets those of this one.
    """
    used = set[str]() if taken is None else taken
    for described, depth in ((bool(description), DEEPEST), (False, DEEPEST), (False, 0)):
        stub = Stub(name, set(used), depth, described)
        text = stub.written(input_schema, output_schema, description)
        if len(text) <= LONGEST_STUB:
            used |= stub.taken
            return text
    return f"async def {name}(**arguments: Any) -> Any:{body(description)}\n"


class Stub:
    """Writes the stub of one tool."""

    def __init__(self, name: str, taken: set[str], depth: int, described: bool) -> None:
        self.name, self.taken, self.depth, self.described = name, taken, depth, described
        self.classes: list[str] = []
        self.references: dict[str, str] = {}
        """The TypedDicts of references, so that one may refer to itself."""
        self.unfinished: set[str] = set()
        """Those of them that are being written."""
        self.root: Schema = {}
        self.writer = Writer(self.root)

    def written(self, input_schema: Any, output_schema: Any, description: str) -> str:
        self.begin(input_schema)
        parameters = self.parameters()
        returns = "Any"
        if output_schema is not None:
            self.begin(output_schema)
            returns = self.type_of(self.root, ("result",), 0, frozenset())
        head = f"async def {self.name}({parameters}) -> {returns}:{body(description)}\n"
        return "".join(f"{each}\n\n" for each in self.classes) + head

    def begin(self, schema: Any) -> None:
        """References are about the schema that they stand in."""
        self.root = as_schema(schema)
        self.writer = Writer(self.root)
        self.references = {}

    # -- parameters -----------------------------------------------------------------------------

    def parameters(self) -> str:
        flat, within = self.writer.flat(self.root, 0, frozenset(), alone=False)
        given = as_schema(flat.get("properties"))
        required = texts(flat.get("required"))
        written = [
            self.parameter(name, part, name in required, within)
            for name, part in given.items()
            if is_plain(name)
        ]
        odd = [name for name in given if not is_plain(name)]
        if odd or is_open(flat) or "properties" not in flat:
            written.append(("**arguments: Any", odd_names(odd)))
        keywords = ["*"] if any(not one.startswith("**") for one, _ in written) else []
        if not any(comment for _, comment in written):
            return ", ".join([*keywords, *(one for one, _ in written)])
        lines = [*((one, "") for one in keywords), *written]
        return "".join(f"\n    {one},{comment_of(comment)}" for one, comment in lines) + "\n"

    def parameter(self, name: str, part: Any, required: bool, within: Within) -> tuple[str, str]:
        kind = self.type_of(part, (name,), 0, within)
        default = "" if required else f" = {default_of(part, kind)}"
        return f"{name}: {kind}{default}", self.comment(part)

    def comment(self, part: Any) -> str:
        said = as_schema(part).get("description")
        return cleaned(said, LONGEST_COMMENT) if self.described and isinstance(said, str) else ""

    # -- types ----------------------------------------------------------------------------------

    def type_of(self, part: Any, path: tuple[str, ...], depth: int, within: Within) -> str:
        """`path`: where the part stands, for the name of its TypedDict."""
        flat, inside = self.writer.flat(as_schema(part), depth, within)
        reference = flat.get("$ref")
        if isinstance(reference, str):
            return self.referred(reference, depth, inside)
        if "const" in flat:
            return literals([flat["const"]]) or "Any"
        if isinstance(flat.get("enum"), list):
            found = literals(cast("list[Any]", flat["enum"]))
            if found:
                return found
        branches = forks(flat)
        if branches:
            return union(self.type_of(one, path, depth + 1, inside) for one in branches)
        return union(self.kind(one, flat, path, depth, inside) for one in types_of(flat))

    def referred(self, reference: str, depth: int, within: Within) -> str:
        if reference in self.references:
            return self.references[reference]
        if reference in within:
            return "Any"  # refers to itself, and is no object
        target = target_of(reference, self.root)
        path = (reference.rpartition("/")[2],)
        flat = as_schema(target)
        if is_record(flat) and depth < self.depth:
            name = self.references[reference] = self.class_name(path)
            self.unfinished.add(name)
            self.record(name, flat, path, depth, within)
            self.unfinished.discard(name)
            return name
        return self.type_of(target, path, depth + 1, within | {reference})

    def kind(
        self, kind: str, flat: Schema, path: tuple[str, ...], depth: int, within: Within
    ) -> str:
        if kind in SCALARS:
            return SCALARS[kind]
        deeper = depth < self.depth
        if kind == "array":
            items = items_of(flat)
            inside = (*path, "item")
            return f"list[{self.type_of(items, inside, depth + 1, within) if deeper else 'Any'}]"
        if is_record(flat) and deeper:
            return self.record(self.class_name(path), flat, path, depth, within)
        extra = flat.get("additionalProperties")
        free = isinstance(extra, Mapping) and not flat.get("properties") and deeper
        inside = (*path, "value")
        return f"dict[str, {self.type_of(extra, inside, depth + 1, within) if free else 'Any'}]"

    def record(
        self, name: str, flat: Schema, path: tuple[str, ...], depth: int, within: Within
    ) -> str:
        """A TypedDict for an object whose properties are all known. Its name."""
        required = texts(flat.get("required"))
        fields: list[tuple[str, str, str]] = []
        for key, part in as_schema(flat.get("properties")).items():
            kind = self.type_of(part, (*path, key), depth + 1, within)
            kind = kind if key in required else f"NotRequired[{kind}]"
            fields.append((key, kind, self.comment(part)))
        if all(is_plain(key) for key, _, _ in fields):
            lines = [f"    {key}: {kind}{comment_of(said)}" for key, kind, said in fields]
            self.classes.append("\n".join([f"class {name}(TypedDict):", *lines]))
        else:
            lines = [
                f"    {key!r}: {self.forward(kind)},{comment_of(said)}"
                for key, kind, said in fields
            ]
            self.classes.append("\n".join([f'{name} = TypedDict("{name}", {{', *lines, "})"]))
        return name

    def forward(self, kind: str) -> str:
        """A type in a call of `TypedDict`: there, what is not defined yet stands in quotes."""
        if self.unfinished.isdisjoint(TYPE_NAME.findall(kind)):
            return kind
        optional = kind.startswith("NotRequired[")
        inner = repr(kind.removeprefix("NotRequired[")[:-1] if optional else kind)
        inner = "Any" if "\\" in inner else inner  # a quoted type has no escapes
        return f"NotRequired[{inner}]" if optional else inner

    def class_name(self, path: tuple[str, ...]) -> str:
        words = [word for one in (self.name, *path) for word in WORD.findall(one)]
        name = "".join(word[:1].upper() + word[1:] for word in words)[:LONGEST_NAME]
        name = f"T{name}" if name[:1].isdigit() else name
        number = 1
        wanted = name
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


# --- parts ---------------------------------------------------------------------------------------


def is_plain(name: str) -> bool:
    """Whether it can be written as the name of a parameter or a field."""
    return PLAIN_NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def odd_names(names: list[str]) -> str:
    """How parameters are passed whose names are no Python names."""
    if not names:
        return ""
    return cleaned(f'pass as **{{"name": value}}: {", ".join(map(repr, names))}', LONGEST_COMMENT)


def is_open(flat: Schema) -> bool:
    """Whether the schema says that there may be other properties. Not said counts as no: most
    schemas leave it out, and a mistyped name is to be found."""
    extra = flat.get("additionalProperties")
    return extra is True or isinstance(extra, Mapping) or bool(flat.get("patternProperties"))


def is_record(flat: Schema) -> bool:
    return bool(as_schema(flat.get("properties"))) and not is_open(flat)


def union(kinds: Iterable[str]) -> str:
    found = list(dict.fromkeys(kinds))
    if not found or "Any" in found or len(found) > MOST_BRANCHES:
        return "Any"
    return " | ".join(found)


def literals(values: list[Any]) -> str:
    """A Literal of these; empty, if Python or good measure has none."""
    fit = [one for one in values if one is None or isinstance(one, str | bool | int)]
    written = list(dict.fromkeys(map(repr, fit)))
    if not fit or len(fit) < len(values) or len(written) > MOST_LITERALS:
        return ""
    return f"Literal[{', '.join(written)}]"


def default_of(part: Any, kind: str) -> str:
    value = as_schema(part).get("default")
    written = repr(value)
    fits = type(value).__name__ == kind and isinstance(value, str | int | bool)
    return written if fits and len(written) <= LONGEST_DEFAULT else "..."


def body(description: str) -> str:
    """The docstring, and what stands in place of the code."""
    if not description:
        return " ..."
    lines = (cleaned(line, LONGEST_DESCRIPTION) for line in description.splitlines())
    text = "\n    ".join(line for line in lines if line)
    if len(text) > LONGEST_DESCRIPTION:
        text = f"{text[:LONGEST_DESCRIPTION]}…"
    text = text.replace("\\", "/").replace('"""', "'''").rstrip('"')
    return f'\n    """{text}"""'


def comment_of(text: str) -> str:
    return f"  # {text}" if text else ""


def cleaned(text: str, longest: int) -> str:
    """One line of it, without what could end the line."""
    line = " ".join(UNPRINTABLE.sub(" ", text[: 2 * longest]).split())
    return line if len(line) <= longest else f"{line[:longest]}…"
