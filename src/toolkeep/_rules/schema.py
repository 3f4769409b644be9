"""Does a value keep to a JSON Schema? Asked before a call is sent, and of what came back.

A schema is the server's word: it may be wrong, outside the standard, or hostile. So nothing here
raises because of a schema, nothing is ever fetched, and a check has a bound. Whatever cannot be
decided is no problem: the server checks again, and a check of ours that is missing costs one
request, while a problem that is none would make a tool unusable. The problems we tell are real.

A check cannot be interrupted: jsonschema-rs holds the GIL, so a thread would stop the event loop
too. Its cost is therefore computed before it starts, from the schema (once) and the size of the
value at each depth. A value that costs more than `MOST_COST` is not checked, and `Check` says so.

- Dialect: JSON Schema 2020-12, or the one that `$schema` names, if it is known. `format` is an
  annotation, as the standard has it. A tuple is an array, because it is sent as one.
- `$ref` reaches into the schema itself and the standard's own meta-schemas. Any other makes the
  schema not `usable`; so does being invalid, or over the bounds below.

The validator is jsonschema-rs. Measured on 3.11 against jsonschema 4.26: a check costs 0.3 µs and
not 10 to 25, compiling 6 µs and not 1,600, its regular expressions cannot explode, and a schema
that refers to itself does not exhaust the stack. What it leaves to us (0.60.3): references that
double at every step make it build 2^n parts, so they are counted before (`MOST_PARTS`); an error
copies the value and the choices it is about, so that listing the errors of one value took 4.7 s
where the check took 0.01 ms; a pattern with counted groups took 270 ms for 1,000 characters.
It is imported by the first `compile`, never by importing toolkeep.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

__all__ = ["Check", "Checker", "compile", "strip_none"]

OBJECTS = (dict, Mapping)
"""A dict is recognised at once; asking for a Mapping alone takes ten times as long."""

MOST_NODES = 4_000
"""Objects and arrays in a schema: our choice, far above any honest tool's."""

MOST_ENTRIES = 25_000
"""Values of any kind in a schema, such as the choices of an `enum`: our choice, likewise."""

MOST_TEXT = 2_000_000
"""Characters in all texts of a schema: 10 million of them take 20 ms to copy."""

MOST_DEPTH = 100
"""Levels of a schema: our choice, likewise."""

MOST_PARTS = 100_000
"""Parts of a schema with all its references written out: 2^30 of them took 12 s (0.60.3)."""

MOST_STATES = 10_000
"""States of all regular expressions in a schema: one takes about 3 µs to build."""

MOST_COST = 300_000
"""Units that one check may cost; a unit is about 50 ns, and the bound about 15 ms."""

MOST_VALUES = 150_000
"""Values within one value: counting them takes about 10 ms."""

MOST_LINKS = 50_000
"""Steps from one part of a schema to another that the computation of its cost looks at."""

BACKTRACKS = 500
"""Steps back that a regular expression with look-around or back references may take."""

MOST_PROBLEMS = 5
"""Enough to mend a call, and short enough to be shown to a model."""

LONGEST_TEXT = 200
"""Characters of one problem: it quotes the value, which may be of any size."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    problems: tuple[str, ...] = ()
    unchecked: str = ""
    """Why the value was not checked: one line for a log. Empty: it was."""


FINE = Check()


@dataclass(frozen=True, slots=True)
class Checker:
    """One schema, compiled. Immutable, for any number of checks; kept by who knows the tool."""

    what: str
    usable: bool
    reason: str = ""
    """Why not usable: one line for a log."""
    validator: Any = field(default=None, repr=False)
    costs: Costs | None = field(default=None, repr=False)

    def problems(self, value: Any) -> tuple[str, ...]:
        """What is wrong with the value: at most five, none if nothing can be said."""
        return self.check(value).problems

    def check(self, value: Any) -> Check:
        """What is wrong with the value, or why that was not looked at."""
        if self.costs is None:
            return FINE
        if not self.costs.is_small(value):
            extent = extent_of(value, characters=self.costs.has_patterns)
            if extent is None or self.costs.of_checking(extent) > MOST_COST:
                return Check(unchecked=f"checking the {self.what} would take too long")
        try:
            return FINE if self.validator.is_valid(value) else Check(self._told(value))
        except ValueError:
            return FINE  # not JSON: whoever writes it to the wire says so

    def _told(self, value: Any) -> tuple[str, ...]:
        """The problems of a value that has some. An error copies the value that it is about, so
        of a large value only the first problem is told, or that there is one."""
        extent = extent_of(value, characters=True)
        assert self.costs is not None
        assert extent is not None
        if self.costs.of_telling(extent) <= MOST_COST:
            errors = (e for e in self.validator.iter_errors(value) if is_decided(e))
            return tuple(told(error) for error in itertools.islice(errors, MOST_PROBLEMS))
        if self.costs.of_telling_one(extent) <= MOST_COST:
            try:
                self.validator.validate(value)
            except ValueError as error:
                return (told(error),) if is_decided(error) else ()
        if self.costs.has_backtracking:
            return ()  # perhaps only a regular expression that was given up
        return ("it does not match the schema, and is too large to say where",)


def compile(schema: Mapping[str, Any], *, what: str) -> Checker:
    """A checker for the schema; `what` names it in `reason`."""
    try:
        reason = oversized(schema)
        if reason:
            return unusable(what, reason)
        costs = Costs(schema)
        return Checker(what, usable=True, validator=validator_of(schema), costs=costs)
    except (ValueError, TypeError, RecursionError) as error:
        return unusable(what, told(error) if hasattr(error, "kind") else short(str(error)))


def unusable(what: str, reason: str) -> Checker:
    return Checker(what, usable=False, reason=f"the schema of {what} cannot be used: {reason}")


def validator_of(schema: Mapping[str, Any]) -> Any:
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions, validator_cls_for

    written = dict(schema)
    dialect = validator_cls_for(written)
    if dialect is Draft202012Validator:
        written.pop("$schema", None)  # an unknown dialect is read as the newest
    patterns = FancyRegexOptions(backtrack_limit=BACKTRACKS)
    return dialect(written, validate_formats=False, offline=True, pattern_options=patterns)


# --- bounds ------------------------------------------------------------------------------------


def oversized(schema: Mapping[str, Any]) -> str:
    """Why the schema is not even tried, or nothing. Iterative: it may be of any depth."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    seen = entries = text = 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        entries += len(node)
        if seen > MOST_NODES:
            return f"it has more than {MOST_NODES} objects and arrays"
        if entries > MOST_ENTRIES:
            return f"it has more than {MOST_ENTRIES} entries"
        if depth > MOST_DEPTH:
            return f"it is more than {MOST_DEPTH} levels deep"
        text += sum(len(held) for held in values_of(node) if isinstance(held, str))
        waiting += [(child, depth + 1) for child in children(node)]
    if text > MOST_TEXT:
        return f"its texts have more than {MOST_TEXT} characters"
    if parts(schema, schema, {}) > MOST_PARTS:
        return f"its references unfold to more than {MOST_PARTS} parts"
    return ""


def values_of(node: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", node.values() if isinstance(node, OBJECTS) else node)


def children(node: Any) -> list[Any]:
    return [child for child in values_of(node) if isinstance(child, dict | list)]


def parts(node: Any, root: Mapping[str, Any], counted: dict[int, int]) -> int:
    """How many parts a node has with its references written out. A circle counts once."""
    key = id(node)
    if key in counted:
        return counted[key]
    counted[key] = 1
    total = 1 + sum(parts(child, root, counted) for child in children(node))
    if isinstance(node, Mapping):
        reference = cast("Mapping[str, Any]", node).get("$ref")
        target = local(reference, root)
        if isinstance(target, dict | list):
            total += parts(target, root, counted)
        elif isinstance(reference, str) and not reference.startswith("https://json-schema.org/"):
            total += MOST_PARTS // 100  # an anchor: where it leads is not looked up
    counted[key] = total
    return total


# --- cost --------------------------------------------------------------------------------------

ANOTHER = -1
"""Stands for all properties, or items, that a part of a schema does not name."""

IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
BY_PROPERTY = ("dependentSchemas", "dependencies")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
OF_ITEMS = ("additionalItems", "contains", "unevaluatedItems")
OF_PROPERTIES = ("propertyNames", "unevaluatedProperties")
OF_ANY_NAME = frozenset((*OF_PROPERTIES, "patternProperties", "additionalProperties"))

APPLICATORS = OF_ANY_NAME.union(
    (*IN_PLACE, *BY_PROPERTY, *REFERENCES, *OF_ITEMS),
    ("properties", "items", "prefixItems", "uniqueItems"),
)
"""Keywords without which a part is applied to one value and to nothing else."""

BACKTRACKING = re.compile(r"\(\?[=!<>(]|\\[1-9kgG]|[*+?}]\+")
"""What only an engine that steps back can match."""
ATOMS = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<least>\d+)(?P<most>,\d*)?\}|.", re.DOTALL
)
LARGE_CLASS = re.compile(r"\\(?P<property>[pP])|\\[wWDS]|\[\^|[^\x00-\x7f]")
BUILT_FOR_A_CLASS, BUILT_FOR_A_PROPERTY = 20, 100
"""States that a class of many characters is built of."""


CONTAINERS = (dict, list, tuple)
SCALARS = frozenset({str, int, float, bool, type(None)})


def everywhere(part: dict[str, Any]) -> Mapping[str, Any]:
    """A part that applies to all values within the value, too."""
    part["items"] = part["additionalProperties"] = part
    return part


META_SCHEMA = everywhere({"required": [""] * 40})
"""Stands for the standard's own meta-schemas, which look at each value of a schema once."""
COMPARED = everywhere({})
"""Stands for comparing a value with others (`uniqueItems`)."""


class Weight(NamedTuple):
    """What applying a part of a schema costs, in units."""

    value: int = 0
    """For each value."""
    character: int = 0
    """For each character of a text, or of a property's name."""


class Extent(NamedTuple):
    """How much there is of a value at each depth."""

    values: list[int]
    characters: list[int]
    """Empty unless asked for."""


def extent_of(value: Any, *, characters: bool) -> Extent | None:
    """None: there is more of it than is ever checked."""
    values: list[int] = []
    texts: list[int] = []
    level, names, total = [value], 0, 1
    while level:
        values.append(len(level))
        if characters:
            texts.append(names + sum(len(one) for one in level if isinstance(one, str)))
            objects = [cast("dict[Any, Any]", one) for one in level if isinstance(one, dict)]
            names = sum(len(str(key)) for one in objects for key in one)
        below: list[Any] = []
        for one in level:
            if isinstance(one, CONTAINERS):
                total += len(cast("list[Any]", one))
                if total > MOST_VALUES or len(values) > MOST_DEPTH:
                    return None
                below += one.values() if isinstance(one, dict) else one
        level = below
    return Extent(values, texts)


Steps = list[dict[int, int]]
"""Of one state: for each property and item, the states that are applied to it, and how often."""


class Costs:
    """What checking and telling cost at most, by depth; an account in which no check stops early.

    Every part of the schema that can be applied to a value is a state. Known of each state: which
    parts are applied to the same value (`allOf`, `$ref`: its closure), and which states are then
    applied to each property and item (its steps). So the cost at one depth follows from the costs
    one step further down, and a schema that refers to itself in two branches costs twice as much
    with every step. A level is computed when a value is first that deep, and kept.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._references = References(schema)
        self._parts: dict[int, Mapping[str, Any]] = {id(schema): schema}
        self._closures: dict[int, dict[int, int]] = {}
        self._patterns: dict[str, Mapping[str, Any]] = {}
        self._built = self._links = 0
        self.has_backtracking = self._has_branches = self._names_are_checked = False
        steps = self._reach(schema)
        self._root = id(schema)
        self._steps = {key: found for key, found in steps.items() if found}
        self._level = {key: self._weight(self._closures[key]) for key in steps}
        self._levels = [self._level[self._root]]
        if self._built > MOST_STATES:
            raise ValueError(f"its regular expressions have more than {MOST_STATES} states")
        self._left = MOST_LINKS
        dearest = max(self._at(1).value, 1)
        self._flat = 0 if self._built else (MOST_COST - self._levels[0].value) // dearest
        """How many properties an object may have, if none of them holds others."""

    @property
    def has_patterns(self) -> bool:
        return bool(self._built)

    def is_small(self, value: Any) -> bool:
        """Whether the value is seen at a glance to cost little: an object of plain values."""
        if type(value) is not dict:
            return False
        held = cast("dict[Any, Any]", value)
        if len(held) > self._flat:
            return False
        return SCALARS.issuperset(map(type, held.values()))

    def of_checking(self, extent: Extent) -> int:
        """Units at most for `is_valid`."""
        cost = 0
        for depth, count in enumerate(extent.values):
            weight = self._at(depth)
            cost += count * weight.value
            if extent.characters:
                cost += extent.characters[depth] * weight.character
        return cost

    def of_telling(self, extent: Extent) -> int:
        """Units at most for all errors: each takes about 3 µs, and copies what it is about."""
        cost, below, characters = 0, sum(extent.values), sum(extent.characters)
        whole = below if self._names_are_checked else 0  # copied for each of its names
        for depth, count in enumerate(extent.values):
            each = 60 * count + 2 * below + 2 * count * whole + characters // 5
            cost += self._at(depth).value * each
            below -= count
        return cost

    def of_telling_one(self, extent: Extent) -> int:
        """Units at most for the first error alone. Of `anyOf` and `oneOf` it holds all others."""
        if self._has_branches:
            return MOST_COST + 1
        return 2 * sum(extent.values) + sum(extent.characters) // 5

    def _at(self, depth: int) -> Weight:
        while depth >= len(self._levels) and self._levels[-1].value:
            self._left -= sum(map(len, self._steps.values()))
            if self._levels[-1].value > MOST_COST or self._left < 0:
                return Weight(MOST_COST + 1)
            self._level = {key: self._next(steps) for key, steps in self._steps.items()}
            self._levels.append(self._level.get(self._root, Weight()))
            inner = self._steps.keys()
            self._steps = {
                key: kept
                for key, steps in self._steps.items()
                if (kept := [step for step in steps if not inner.isdisjoint(step)])
            }
        return self._levels[depth] if depth < len(self._levels) else Weight()

    def _next(self, steps: Steps) -> Weight:
        """What the dearest step of a state costs one level further down."""
        value = character = 0
        for step in steps:
            reached = [
                (times, self._level[key]) for key, times in step.items() if key in self._level
            ]
            value = max(value, sum(times * weight.value for times, weight in reached))
            character = max(character, sum(times * weight.character for times, weight in reached))
        return Weight(value, character)

    def _reach(self, schema: Mapping[str, Any]) -> dict[int, Steps]:
        """The steps of all states that can be reached from the root."""
        found: dict[int, Steps] = {}
        waiting = [id(schema)]
        while waiting:
            state = waiting.pop()
            if state not in found:
                closure = self._closure(self._parts[state], ())
                alone = len(closure) == 1 and APPLICATORS.isdisjoint(self._parts[state])
                found[state] = [] if alone else self._steps_of(closure)
                waiting += [key for step in found[state] for key in step]
        return found

    # -- what is applied to the same value ------------------------------------------------------

    def _closure(self, part: Mapping[str, Any], above: tuple[int, ...]) -> dict[int, int]:
        """All parts that are applied to the value that this one is applied to, and how often."""
        key = id(part)
        if key in above:
            raise ValueError("it refers to itself without a step into the value")
        if key in self._closures:
            return self._closures[key]
        self._parts[key] = part
        # `unevaluated…` asks each of the others again what it has looked at.
        times = 4 if "unevaluatedProperties" in part or "unevaluatedItems" in part else 1
        found = {key: 1}
        for beside in () if APPLICATORS.isdisjoint(part) else self._beside(part):
            for other, count in self._closure(beside, (*above, key)).items():
                self._count_link()
                found[other] = found.get(other, 0) + times * count
        self._closures[key] = found
        return found

    def _beside(self, part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        self._has_branches |= "anyOf" in part or "oneOf" in part
        for keyword in IN_PLACE:
            yield from schemas_in(part.get(keyword))
        for keyword in BY_PROPERTY:
            yield from schemas_in(list(mapping(part.get(keyword)).values()))
        for keyword in REFERENCES:
            yield from self._references.targets(part.get(keyword))

    def _weight(self, closure: Mapping[int, int]) -> Weight:
        own = [(times, self._own(self._parts[key])) for key, times in closure.items()]
        return Weight(
            sum(times * weight.value for times, weight in own),
            sum(times * weight.character for times, weight in own),
        )

    def _own(self, part: Mapping[str, Any]) -> Weight:
        value = 1 + len(part) + weight_of_choices(part)
        for keyword in ("required", "dependentRequired", *BY_PROPERTY):
            value += entries_in(part.get(keyword))
        return Weight(value, self._weight_of_pattern(part.get("pattern")))

    def _weight_of_pattern(self, pattern: Any) -> int:
        if not isinstance(pattern, str):
            return 0
        states, built = states_of(pattern)
        self._built += built
        if BACKTRACKING.search(pattern) is None:
            return states
        self.has_backtracking = True
        return states * BACKTRACKS // 5

    # -- what is applied to a property or an item -----------------------------------------------

    def _steps_of(self, closure: Mapping[int, int]) -> Steps:
        """For each property and item that is named, and for any other, its states."""
        parts = [(self._parts[key], times) for key, times in closure.items()]
        steps = self._steps_to_properties(parts)
        longest = max(len(prefix_of(part)) for part, _ in parts)
        for place in (*range(longest), ANOTHER):
            reached = ((self._of_item(part, place), times) for part, times in parts)
            steps.append(self._step(reached))
        return [step for step in steps if step]

    def _steps_to_properties(self, parts: list[tuple[Mapping[str, Any], int]]) -> Steps:
        named: dict[Any, list[tuple[Iterable[Mapping[str, Any]], int]]] = {ANOTHER: []}
        for part, times in parts:
            for name, below in mapping(part.get("properties")).items():
                named.setdefault(name, []).append((schemas_in(below), times))
        open_parts = [(part, times) for part, times in parts if not OF_ANY_NAME.isdisjoint(part)]
        for name, reached in named.items():
            reached += ((self._of_any_name(part, name), times) for part, times in open_parts)
        return [self._step(reached) for reached in named.values()]

    def _step(self, reached: Iterable[tuple[Iterable[Mapping[str, Any]], int]]) -> dict[int, int]:
        step: dict[int, int] = {}
        for parts, times in reached:
            self._count_link()
            for part in parts:
                self._parts[id(part)] = part
                step[id(part)] = step.get(id(part), 0) + times
        return step

    def _of_any_name(self, part: Mapping[str, Any], name: Any) -> Iterator[Mapping[str, Any]]:
        """What is applied to a property beside what is said of it by name."""
        if name not in mapping(part.get("properties")):
            yield from schemas_in(part.get("additionalProperties"))
        patterns = mapping(part.get("patternProperties"))
        for pattern, below in patterns.items():
            self._count_link()
            yield self._patterns.setdefault(pattern, {"pattern": pattern})
            yield from schemas_in(below)
        for keyword in OF_PROPERTIES:
            yield from schemas_in(part.get(keyword))
        self._names_are_checked |= "propertyNames" in part

    def _of_item(self, part: Mapping[str, Any], place: int) -> Iterator[Mapping[str, Any]]:
        prefix, others = prefix_of(part), part.get("items")
        if 0 <= place < len(prefix):
            yield from schemas_in(prefix[place])
        elif isinstance(others, Mapping):
            yield cast("Mapping[str, Any]", others)
        for keyword in OF_ITEMS:
            yield from schemas_in(part.get(keyword))
        if part.get("uniqueItems"):
            yield COMPARED

    def _count_link(self) -> None:
        self._links += 1
        if self._links > MOST_LINKS:
            raise ValueError(f"its parts depend on each other in more than {MOST_LINKS} ways")


class References:
    """Where the references of a schema may lead. In doubt to several places, never to too few."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root, self._identified = schema, list[Mapping[str, Any]]()
        self._anchors: dict[str, list[Mapping[str, Any]]] = {}
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            if isinstance(node, OBJECTS):
                self._note(cast("Mapping[str, Any]", node))

    def _note(self, node: Mapping[str, Any]) -> None:
        for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
            name = node.get(keyword)
            if isinstance(name, str) and keyword.endswith("nchor"):
                self._anchors.setdefault(name, []).append(node)
            elif isinstance(name, str) and name.startswith("#"):
                self._anchors.setdefault(name[1:], []).append(node)
            elif isinstance(name, str) and node is not self._root:
                self._identified.append(node)

    def targets(self, reference: Any) -> Iterator[Mapping[str, Any]]:
        if not isinstance(reference, str):
            return
        base, _, fragment = reference.partition("#")
        if "//json-schema.org/" in base:
            yield META_SCHEMA
        elif fragment and not fragment.startswith("/"):
            yield from self._anchors.get(unquote(fragment), ())
        else:
            pointer = f"#{unquote(fragment)}" if fragment else ""
            for holder in (self._root, *self._identified):
                if not base or last_segment(base) == last_segment(holder.get("$id", "")):
                    yield from schemas_in(local(pointer, holder) if pointer else holder)


def unquote(fragment: str) -> str:
    def decoded(run: re.Match[str]) -> str:
        return bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace")

    return re.sub(r"(?:%[0-9a-fA-F]{2})+", decoded, fragment)


def last_segment(uri: Any) -> str:
    return re.split(r"[/:]", str(uri).partition("#")[0])[-1]


def schemas_in(found: Any) -> Iterator[Mapping[str, Any]]:
    """The schema, or those in the list; True and False cost nothing."""
    for one in cast("list[Any]", found) if isinstance(found, list) else (found,):
        if isinstance(one, OBJECTS):
            yield cast("Mapping[str, Any]", one)


def mapping(found: Any) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", found) if isinstance(found, OBJECTS) else {}


def prefix_of(part: Mapping[str, Any]) -> list[Any]:
    """What is said of single items; before 2020-12 in `items`."""
    found = part.get("prefixItems", part.get("items"))
    return cast("list[Any]", found) if isinstance(found, list) else []


def entries_in(found: Any) -> int:
    """Entries of a list or a mapping, with those of the lists in it."""
    if not isinstance(found, list | Mapping):
        return 0
    inner = [cast("list[Any]", held) for held in values_of(found) if isinstance(held, list)]
    return len(cast("list[Any]", found)) + sum(map(len, inner))


def weight_of_choices(part: Mapping[str, Any]) -> int:
    """`enum` and `const`: texts and integers are looked up or compared at once, others are walked
    through (1.5 µs for a number with a fraction)."""
    choices = part.get("enum", [part["const"]] if "const" in part else [])
    if not isinstance(choices, list):
        return 0
    known = cast("list[Any]", choices)
    if {type(one) for one in known} in ({str}, {int}):
        return 3 + len(known)
    total, waiting = 0, list[Any](known)
    while waiting:
        one = waiting.pop()
        total += 1
        if isinstance(one, dict | list):
            waiting += values_of(one)
    return 30 * total


def built_for(atom: str) -> int:
    found = LARGE_CLASS.search(atom)
    if found is None:
        return 1
    return BUILT_FOR_A_CLASS if found["property"] is None else BUILT_FOR_A_PROPERTY


def states_of(pattern: str) -> tuple[int, int]:
    """How many states a regular expression has, and of how many it is built: repetitions that are
    counted are written out."""
    outer: list[tuple[int, int]] = []
    states = built = last = last_built = 0
    for found in ATOMS.finditer(pattern):
        atom = found[0]
        if found["least"] is not None:
            most = int(((found["most"] or "")[1:] or found["least"])[:9])
            states, built = states + last * max(most - 1, 0), built + last_built * max(most - 1, 0)
            last, last_built = last * max(most, 1), last_built * max(most, 1)
            continue
        last, last_built = 1, built_for(atom)
        if atom == "(":
            outer.append((states, built))
            states = built = 0
        elif atom == ")" and outer:
            last, last_built = states + 1, built + 1
            before, built_before = outer.pop()
            states, built = before + last, built_before + last_built
            continue
        states, built = states + last, built + last_built
    for before, built_before in outer:
        states, built = states + before, built + built_before
    return states, built


# --- telling -----------------------------------------------------------------------------------


def is_decided(error: Any) -> bool:
    """Whether the value is at fault, and not a regular expression that was given up."""
    from jsonschema_rs import ValidationErrorKind

    given_up = (ValidationErrorKind.BacktrackLimitExceeded, ValidationErrorKind.RegexEngineFailure)
    return not isinstance(error.kind, given_up)


def told(error: Any) -> str:
    place, message = place_of(error.instance_path), short(error.message)
    branches = [branch[0].message for branch in getattr(error.kind, "context", ()) if branch]
    if branches:
        message = short(f"{message}: {', '.join(branches)}")
    return f"{place}: {message}" if place else message


def place_of(path: list[str | int]) -> str:
    """The path as one would write it: `user.tags[2]`."""
    place = ""
    for step in path:
        if isinstance(step, int) or not step.isidentifier():
            place += f"[{step!r}]"
        else:
            place += f".{step}" if place else step
    return short(place)


def short(text: str) -> str:
    """The text, with its middle left out when it is long: the end names the fault."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}…{text[-half:]}"


# --- arguments that are None -------------------------------------------------------------------


def strip_none(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that are None, optional, and may not be null; in objects and
    lists within them, too, as far as the schema says plainly what is there. A copy."""
    return Nulls(schema).stripped(arguments, schema, 0)


class Nulls:
    """Where a schema accepts null; lives for one `strip_none`. In doubt it does: then None is
    sent, as it was given. Parts that refer to each other are looked at once, and no more than
    `MOST_ENTRIES` of them."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_ENTRIES
        self._known: dict[int, bool] = {}

    def stripped(self, value: Any, part: Any, depth: int) -> Any:
        if isinstance(part, Mapping) and "$ref" in part:
            part = local(cast("Mapping[str, Any]", part)["$ref"], self._root)
        if not isinstance(part, Mapping) or depth > MOST_DEPTH:
            return value
        given = cast("Mapping[str, Any]", part)
        if isinstance(value, list):
            items, found = given.get("items"), cast("list[Any]", value)
            return [self.stripped(one, items, depth + 1) for one in found]
        if not isinstance(value, Mapping):
            return value
        properties = mapping(given.get("properties"))
        kept: dict[str, Any] = {}
        for name, one in cast("Mapping[str, Any]", value).items():
            if one is not None or name not in properties or self._keeps(name, given):
                kept[name] = self.stripped(one, properties.get(name), depth + 1)
        return kept

    def _keeps(self, name: str, given: Mapping[str, Any]) -> bool:
        """Whether None is sent for this property."""
        return name in self._listed(given, "required") or self._accepts(given["properties"][name])

    def _accepts(self, part: Any, depth: int = 0) -> bool:
        self._left -= 1
        if not isinstance(part, Mapping) or depth > MOST_DEPTH or self._left < 0:
            return part is not False
        given = cast("Mapping[str, Any]", part)
        if id(given) not in self._known:
            self._known[id(given)] = True  # as long as nothing else is known
            self._known[id(given)] = self._reads(given, depth + 1)
        return self._known[id(given)]

    def _reads(self, given: Mapping[str, Any], depth: int) -> bool:
        """Read off the schema itself."""
        types = given.get("type", "null")
        return (
            (types == "null" or (isinstance(types, list) and "null" in types))
            and given.get("const") is None
            and ("enum" not in given or None in self._listed(given, "enum"))
            and all(self._accepts(sub, depth) for sub in self._listed(given, "allOf"))
            and all(
                any(self._accepts(sub, depth) for sub in self._listed(given, key))
                for key in ("anyOf", "oneOf")
                if given.get(key)
            )
            and self._accepts(local(given.get("$ref"), self._root), depth)
        )

    def _listed(self, given: Mapping[str, Any], keyword: str) -> list[Any]:
        found = given.get(keyword)
        listed = cast("list[Any]", found) if isinstance(found, list) else []
        self._left -= len(listed)
        return listed if self._left >= 0 else [None, True]


def local(reference: Any, root: Mapping[str, Any]) -> Any:
    """The part of the schema that a plain `#/…` points to. True, which accepts all, if none."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return True
    found: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            return True
        found = cast("Mapping[str, Any]", found).get(step.replace("~1", "/").replace("~0", "~"))
    return found
