"""Validate values against a tool's JSON Schema: arguments before a call, results after it.

A schema comes from a server: it may be wrong, non-standard or hostile. Nothing here raises
because of a schema, and nothing is fetched. What cannot be decided is not reported: the server
validates again, so a missed problem costs one request, while a false problem would make a tool
unusable.

A validation cannot be interrupted: jsonschema-rs holds the GIL, so even in a thread it would
stop the event loop. Its cost is therefore computed before it starts, from the schema (once) and
the size of the value at each depth. A value that costs more than `MAX_COST` is not validated,
and `ValidationResult` says so.

- Dialect: JSON Schema 2020-12, or the one that `$schema` names, if it is known. `format` is an
  annotation, as in the standard. A tuple is an array, because it is sent as one.
- `$ref` may point into the schema itself and to the meta-schemas of the standard. A schema with
  any other reference is not `usable`; nor is one that is invalid or exceeds the limits below.

Measured on Python 3.11 against jsonschema 4.26: a validation takes 0.3 µs instead of 10 to 25,
compiling 6 µs instead of 1,600, regular expressions have no exponential case, and a schema that
refers to itself does not exhaust the stack. jsonschema-rs (0.60.3) does not protect against
these: references that double at every step build 2^n parts (`MAX_PARTS`); an error copies the
value and the choices it is about, so listing the errors of one value took 4.7 s where the
validation took 0.01 ms; a pattern with counted groups took 270 ms for 1,000 characters. The
first `compile_schema` imports it; `import toolkeep` does not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from toolkeep._rules.schema_references import decode_fragment, resolve_pointer, resolve_reference

OBJECTS = (dict, Mapping)
"""With `dict` first: `isinstance(x, Mapping)` alone takes ten times as long."""

MAX_NODES = 4_000
"""Objects and arrays in a schema: our choice, far above real tools."""

MAX_ENTRIES = 25_000
"""Values of any kind in a schema, such as the choices of an `enum`: our choice."""

MAX_TEXT = 2_000_000
"""Characters in all strings of a schema: 10 million of them take 20 ms to copy."""

MAX_DEPTH = 100
"""Levels of a schema: our choice."""

MAX_PARTS = 100_000
"""Parts of a schema with all references expanded: 2^30 of them took 12 s (0.60.3)."""

MAX_STATES = 10_000
"""States of all regular expressions in a schema: building one takes about 3 µs."""

MAX_COST = 300_000
"""Units that one validation may cost. A unit is about 50 ns, so this is about 15 ms."""

MAX_VALUES = 150_000
"""Values nested in one value: counting them takes about 10 ms."""

MAX_LINKS = 50_000
"""Links between parts of a schema that the cost model follows."""

MAX_BACKTRACKS = 500
"""Backtracking steps for a regular expression with look-around or back references."""

MAX_PROBLEMS = 5
"""Problems reported for one value: enough to correct a call, few enough to show to a model."""

MAX_PROBLEM_LENGTH = 200
"""Characters of one problem: it quotes the value, which may be of any size."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one validation."""

    problems: tuple[str, ...] = ()
    skipped_because: str = ""
    """Why the value was not validated, for a log; empty if it was."""


VALID = ValidationResult()


@dataclass(frozen=True, slots=True)
class SchemaValidator:
    """One compiled schema. Immutable; lives as long as the tool's entry in a listing."""

    subject: str
    usable: bool
    reason: str = ""
    """Why it is not usable, for a log."""
    validator: Any = field(default=None, repr=False)
    costs: CostModel | None = field(default=None, repr=False)

    def problems(self, value: Any) -> tuple[str, ...]:
        """The problems of the value, at most `MAX_PROBLEMS`; empty if undecided."""
        return self.check(value).problems

    def check(self, value: Any) -> ValidationResult:
        """Validate the value, unless that would take too long."""
        if self.costs is None:
            return VALID
        if not self.costs.is_small(value):
            extent = extent_of(value, characters=self.costs.has_patterns)
            if extent is None or self.costs.validation_cost(extent) > MAX_COST:
                return ValidationResult(
                    skipped_because=f"checking the {self.subject} would take too long"
                )
        try:
            return (
                VALID
                if self.validator.is_valid(value)
                else ValidationResult(self._describe_problems(value))
            )
        except ValueError:
            return VALID  # not JSON; encoding the request reports that

    def _describe_problems(self, value: Any) -> tuple[str, ...]:
        """The problems of an invalid value. An error copies the value that it is about, so of a
        large value only the first problem is described, or none."""
        extent = extent_of(value, characters=True)
        assert self.costs is not None
        assert extent is not None
        if self.costs.all_errors_cost(extent) <= MAX_COST:
            errors = (e for e in self.validator.iter_errors(value) if is_decided(e))
            return tuple(describe_error(error) for error in itertools.islice(errors, MAX_PROBLEMS))
        if self.costs.first_error_cost(extent) <= MAX_COST:
            try:
                self.validator.validate(value)
            except ValueError as error:
                return (describe_error(error),) if is_decided(error) else ()
        if self.costs.has_backtracking:
            return ()  # the only problem may be a regular expression that was given up
        return ("it does not match the schema (too large to show where)",)


def compile_schema(schema: Mapping[str, Any], *, what: str) -> SchemaValidator:
    """Compile the schema. `what` names its owner in messages."""
    try:
        reason = size_problem(schema)
        if reason:
            return unusable_schema(what, reason)
        costs = CostModel(schema)
        return SchemaValidator(what, usable=True, validator=build_validator(schema), costs=costs)
    except (ValueError, TypeError, RecursionError) as error:
        return unusable_schema(
            what, describe_error(error) if hasattr(error, "kind") else shorten(str(error))
        )


def unusable_schema(what: str, reason: str) -> SchemaValidator:
    return SchemaValidator(
        what, usable=False, reason=f"the schema of {what} cannot be used: {reason}"
    )


def build_validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions, validator_cls_for

    copy = dict(schema)
    dialect = validator_cls_for(copy)
    if dialect is Draft202012Validator:
        copy.pop("$schema", None)  # an unknown dialect is read as the newest
    patterns = FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)
    return dialect(copy, validate_formats=False, offline=True, pattern_options=patterns)


# --- limits ------------------------------------------------------------------------------------


def size_problem(schema: Mapping[str, Any]) -> str:
    """Why the schema exceeds a limit, or an empty string. Iterative, for schemas of any depth."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    seen = entries = text = 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        entries += len(node)
        if seen > MAX_NODES:
            return f"it has more than {MAX_NODES} objects and arrays"
        if entries > MAX_ENTRIES:
            return f"it has more than {MAX_ENTRIES} entries"
        if depth > MAX_DEPTH:
            return f"it is more than {MAX_DEPTH} levels deep"
        text += sum(len(held) for held in values_of(node) if isinstance(held, str))
        waiting += [(child, depth + 1) for child in children(node)]
    if text > MAX_TEXT:
        return f"its strings have more than {MAX_TEXT} characters"
    if count_parts(schema, schema, {}) > MAX_PARTS:
        return f"its references expand to more than {MAX_PARTS} parts"
    return ""


def values_of(node: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", node.values() if isinstance(node, OBJECTS) else node)


def children(node: Any) -> list[Any]:
    return [child for child in values_of(node) if isinstance(child, dict | list)]


def count_parts(node: Any, root: Mapping[str, Any], counted: dict[int, int]) -> int:
    """How many parts a node has with its references expanded. A cycle counts once."""
    key = id(node)
    if key in counted:
        return counted[key]
    counted[key] = 1
    total = 1 + sum(count_parts(child, root, counted) for child in children(node))
    if isinstance(node, Mapping):
        reference = cast("Mapping[str, Any]", node).get("$ref")
        target = resolve_reference(reference, root)
        if isinstance(target, dict | list):
            total += count_parts(target, root, counted)
        elif isinstance(reference, str) and not reference.startswith("https://json-schema.org/"):
            total += MAX_PARTS // 100  # an anchor: its target is not looked up
    counted[key] = total
    return total


# --- cost --------------------------------------------------------------------------------------

UNNAMED = -1
"""Stands for all properties or items that a part of a schema does not name."""

IN_PLACE_KEYWORDS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
DEPENDENCY_KEYWORDS = ("dependentSchemas", "dependencies")
REFERENCE_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")
ITEM_KEYWORDS = ("additionalItems", "contains", "unevaluatedItems")
PROPERTY_KEYWORDS = ("propertyNames", "unevaluatedProperties")
ANY_NAME_KEYWORDS = frozenset((*PROPERTY_KEYWORDS, "patternProperties", "additionalProperties"))

APPLICATORS = ANY_NAME_KEYWORDS.union(
    (*IN_PLACE_KEYWORDS, *DEPENDENCY_KEYWORDS, *REFERENCE_KEYWORDS, *ITEM_KEYWORDS),
    ("properties", "items", "prefixItems", "uniqueItems"),
)
"""Keywords that apply other parts. A part without them checks one value only."""

BACKTRACKING = re.compile(r"\(\?[=!<>(]|\\[1-9kgG]|[*+?}]\+")
"""Syntax that needs a backtracking engine."""
ATOMS = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<least>\d+)(?P<most>,\d*)?\}|.", re.DOTALL
)
LARGE_CLASS = re.compile(r"\\(?P<property>[pP])|\\[wWDS]|\[\^|[^\x00-\x7f]")
STATES_PER_CLASS, STATES_PER_PROPERTY = 20, 100
"""States built for a class of many characters."""


CONTAINERS = (dict, list, tuple)
SCALARS = frozenset({str, int, float, bool, type(None)})


def applied_everywhere(part: dict[str, Any]) -> Mapping[str, Any]:
    """Make a part apply to all nested values too."""
    part["items"] = part["additionalProperties"] = part
    return part


META_SCHEMA = applied_everywhere({"required": [""] * 40})
"""Stands for the meta-schemas of the standard, which check each value of a schema once."""
COMPARISON = applied_everywhere({})
"""Stands for comparing a value with others (`uniqueItems`)."""


class Weight(NamedTuple):
    """The cost of applying a part of a schema, in units."""

    value: int = 0
    """For each value."""
    character: int = 0
    """For each character of a string or of a property name."""


class Extent(NamedTuple):
    """The size of a value at each depth."""

    values: list[int]
    characters: list[int]
    """Empty unless requested."""


def extent_of(value: Any, *, characters: bool) -> Extent | None:
    """Measure a value. None if it exceeds `MAX_VALUES` or `MAX_DEPTH`."""
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
                if total > MAX_VALUES or len(values) > MAX_DEPTH:
                    return None
                below += one.values() if isinstance(one, dict) else one
        level = below
    return Extent(values, texts)


Steps = list[dict[int, int]]
"""Of one state: for each property and item, the states applied to it, with their counts."""


class CostModel:
    """Upper bounds for the cost of validating a value and of describing its errors.

    The bounds assume that no check stops early. Every part of the schema that can be applied to a
    value is a state. Its closure is the parts applied to the same value (`allOf`, `$ref`); its
    steps are the states applied to each property and item. So the cost at one depth follows from
    the costs at the next depth, and a schema that refers to itself in two branches doubles its
    cost with every level. A level is computed for the first value of that depth, and cached.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._references = ReferenceIndex(schema)
        self._parts: dict[int, Mapping[str, Any]] = {id(schema): schema}
        self._closures: dict[int, dict[int, int]] = {}
        self._patterns: dict[str, Mapping[str, Any]] = {}
        self._states_built = self._links = 0
        self.has_backtracking = self._has_branches = self._names_are_checked = False
        steps = self._reach(schema)
        self._root = id(schema)
        self._steps = {key: found for key, found in steps.items() if found}
        self._level = {key: self._weight(self._closures[key]) for key in steps}
        self._levels = [self._level[self._root]]
        if self._states_built > MAX_STATES:
            raise ValueError(f"its regular expressions have more than {MAX_STATES} states")
        self._left = MAX_LINKS
        costliest = max(self._at(1).value, 1)
        self._max_scalars = (
            0 if self._states_built else (MAX_COST - self._levels[0].value) // costliest
        )
        """How many properties an object of scalars may have within `MAX_COST`."""

    @property
    def has_patterns(self) -> bool:
        return bool(self._states_built)

    def is_small(self, value: Any) -> bool:
        """Whether the value certainly costs little: an object of scalars. A quick check."""
        if type(value) is not dict:
            return False
        held = cast("dict[Any, Any]", value)
        if len(held) > self._max_scalars:
            return False
        return SCALARS.issuperset(map(type, held.values()))

    def validation_cost(self, extent: Extent) -> int:
        """Maximum units for `is_valid`."""
        cost = 0
        for depth, count in enumerate(extent.values):
            weight = self._at(depth)
            cost += count * weight.value
            if extent.characters:
                cost += extent.characters[depth] * weight.character
        return cost

    def all_errors_cost(self, extent: Extent) -> int:
        """Maximum units for all errors: each takes about 3 µs, and copies what it is about."""
        cost, below, characters = 0, sum(extent.values), sum(extent.characters)
        whole = below if self._names_are_checked else 0  # copied for each of its names
        for depth, count in enumerate(extent.values):
            each = 60 * count + 2 * below + 2 * count * whole + characters // 5
            cost += self._at(depth).value * each
            below -= count
        return cost

    def first_error_cost(self, extent: Extent) -> int:
        """Maximum units for the first error. With `anyOf` and `oneOf` it contains all others."""
        if self._has_branches:
            return MAX_COST + 1
        return 2 * sum(extent.values) + sum(extent.characters) // 5

    def _at(self, depth: int) -> Weight:
        while depth >= len(self._levels) and self._levels[-1].value:
            self._left -= sum(map(len, self._steps.values()))
            if self._levels[-1].value > MAX_COST or self._left < 0:
                return Weight(MAX_COST + 1)
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
        """The cost of the most expensive step of a state, one level further down."""
        value = character = 0
        for step in steps:
            reached = [
                (times, self._level[key]) for key, times in step.items() if key in self._level
            ]
            value = max(value, sum(times * weight.value for times, weight in reached))
            character = max(character, sum(times * weight.character for times, weight in reached))
        return Weight(value, character)

    def _reach(self, schema: Mapping[str, Any]) -> dict[int, Steps]:
        """The steps of all states reachable from the root."""
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

    # -- parts applied to the same value --------------------------------------------------------

    def _closure(self, part: Mapping[str, Any], above: tuple[int, ...]) -> dict[int, int]:
        """All parts applied to the same value as this one, with their counts."""
        key = id(part)
        if key in above:
            raise ValueError("it refers to itself without descending into the value")
        if key in self._closures:
            return self._closures[key]
        self._parts[key] = part
        # `unevaluated…` evaluates each of the other parts again.
        times = 4 if "unevaluatedProperties" in part or "unevaluatedItems" in part else 1
        found = {key: 1}
        for beside in () if APPLICATORS.isdisjoint(part) else self._in_place_schemas(part):
            for other, count in self._closure(beside, (*above, key)).items():
                self._count_link()
                found[other] = found.get(other, 0) + times * count
        self._closures[key] = found
        return found

    def _in_place_schemas(self, part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        self._has_branches |= "anyOf" in part or "oneOf" in part
        for keyword in IN_PLACE_KEYWORDS:
            yield from schemas_in(part.get(keyword))
        for keyword in DEPENDENCY_KEYWORDS:
            yield from schemas_in(list(as_mapping(part.get(keyword)).values()))
        for keyword in REFERENCE_KEYWORDS:
            yield from self._references.targets(part.get(keyword))

    def _weight(self, closure: Mapping[int, int]) -> Weight:
        own = [(times, self._own_weight(self._parts[key])) for key, times in closure.items()]
        return Weight(
            sum(times * weight.value for times, weight in own),
            sum(times * weight.character for times, weight in own),
        )

    def _own_weight(self, part: Mapping[str, Any]) -> Weight:
        value = 1 + len(part) + weight_of_choices(part)
        for keyword in ("required", "dependentRequired", *DEPENDENCY_KEYWORDS):
            value += entries_in(part.get(keyword))
        return Weight(value, self._weight_of_pattern(part.get("pattern")))

    def _weight_of_pattern(self, pattern: Any) -> int:
        if not isinstance(pattern, str):
            return 0
        states, built = states_of(pattern)
        self._states_built += built
        if BACKTRACKING.search(pattern) is None:
            return states
        self.has_backtracking = True
        return states * MAX_BACKTRACKS // 5

    # -- parts applied to a property or an item -------------------------------------------------

    def _steps_of(self, closure: Mapping[int, int]) -> Steps:
        """The states of each named property and item, and of all others."""
        parts = [(self._parts[key], times) for key, times in closure.items()]
        steps = self._steps_to_properties(parts)
        longest = max(len(prefix_of(part)) for part, _ in parts)
        for place in (*range(longest), UNNAMED):
            reached = ((self._of_item(part, place), times) for part, times in parts)
            steps.append(self._step(reached))
        return [step for step in steps if step]

    def _steps_to_properties(self, parts: list[tuple[Mapping[str, Any], int]]) -> Steps:
        named: dict[Any, list[tuple[Iterable[Mapping[str, Any]], int]]] = {UNNAMED: []}
        for part, times in parts:
            for name, below in as_mapping(part.get("properties")).items():
                named.setdefault(name, []).append((schemas_in(below), times))
        open_parts = [
            (part, times) for part, times in parts if not ANY_NAME_KEYWORDS.isdisjoint(part)
        ]
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
        """The parts applied to a property in addition to those for its name."""
        if name not in as_mapping(part.get("properties")):
            yield from schemas_in(part.get("additionalProperties"))
        patterns = as_mapping(part.get("patternProperties"))
        for pattern, below in patterns.items():
            self._count_link()
            yield self._patterns.setdefault(pattern, {"pattern": pattern})
            yield from schemas_in(below)
        for keyword in PROPERTY_KEYWORDS:
            yield from schemas_in(part.get(keyword))
        self._names_are_checked |= "propertyNames" in part

    def _of_item(self, part: Mapping[str, Any], place: int) -> Iterator[Mapping[str, Any]]:
        prefix, others = prefix_of(part), part.get("items")
        if 0 <= place < len(prefix):
            yield from schemas_in(prefix[place])
        elif isinstance(others, Mapping):
            yield cast("Mapping[str, Any]", others)
        for keyword in ITEM_KEYWORDS:
            yield from schemas_in(part.get(keyword))
        if part.get("uniqueItems"):
            yield COMPARISON

    def _count_link(self) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise ValueError(f"its parts have more than {MAX_LINKS} links to each other")


class ReferenceIndex:
    """Finds the possible targets of references: rather too many than too few."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root, self._identified = schema, list[Mapping[str, Any]]()
        self._anchors: dict[str, list[Mapping[str, Any]]] = {}
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            if isinstance(node, OBJECTS):
                self._add(cast("Mapping[str, Any]", node))

    def _add(self, node: Mapping[str, Any]) -> None:
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
        base, _, encoded = reference.partition("#")
        fragment = decode_fragment(encoded)
        if "//json-schema.org/" in base:
            yield META_SCHEMA
        elif fragment and not fragment.startswith("/"):
            yield from self._anchors.get(fragment, ())
        else:
            for holder in (self._root, *self._identified):
                if not base or last_segment(base) == last_segment(holder.get("$id", "")):
                    yield from schemas_in(resolve_pointer(fragment, holder))


def last_segment(uri: Any) -> str:
    return re.split(r"[/:]", str(uri).partition("#")[0])[-1]


def schemas_in(found: Any) -> Iterator[Mapping[str, Any]]:
    """The schema, or the schemas in the list; without True and False, which cost nothing."""
    for one in cast("list[Any]", found) if isinstance(found, list) else (found,):
        if isinstance(one, OBJECTS):
            yield cast("Mapping[str, Any]", one)


def as_mapping(found: Any) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", found) if isinstance(found, OBJECTS) else {}


def prefix_of(part: Mapping[str, Any]) -> list[Any]:
    """The schemas of single items; before 2020-12 in `items`."""
    found = part.get("prefixItems", part.get("items"))
    return cast("list[Any]", found) if isinstance(found, list) else []


def entries_in(found: Any) -> int:
    """The number of entries of a list or mapping, plus those of the lists in it."""
    if not isinstance(found, list | Mapping):
        return 0
    inner = [cast("list[Any]", held) for held in values_of(found) if isinstance(held, list)]
    return len(cast("list[Any]", found)) + sum(map(len, inner))


def weight_of_choices(part: Mapping[str, Any]) -> int:
    """The cost of `enum` and `const`. Strings and integers are looked up; other values are
    compared one by one (1.5 µs for a number with a fraction)."""
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


def states_built(atom: str) -> int:
    found = LARGE_CLASS.search(atom)
    if found is None:
        return 1
    return STATES_PER_CLASS if found["property"] is None else STATES_PER_PROPERTY


def states_of(pattern: str) -> tuple[int, int]:
    """How many states a regular expression has, and how many are built for it: counted
    repetitions are expanded."""
    outer: list[tuple[int, int]] = []
    states = built = last = last_built = 0
    for found in ATOMS.finditer(pattern):
        atom = found[0]
        if found["least"] is not None:
            most = int(((found["most"] or "")[1:] or found["least"])[:9])
            states, built = states + last * max(most - 1, 0), built + last_built * max(most - 1, 0)
            last, last_built = last * max(most, 1), last_built * max(most, 1)
            continue
        last, last_built = 1, states_built(atom)
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


# --- messages ----------------------------------------------------------------------------------


def is_decided(error: Any) -> bool:
    """Whether the value is invalid. False if a regular expression was given up."""
    from jsonschema_rs import ValidationErrorKind

    given_up = (ValidationErrorKind.BacktrackLimitExceeded, ValidationErrorKind.RegexEngineFailure)
    return not isinstance(error.kind, given_up)


def describe_error(error: Any) -> str:
    place, message = format_path(error.instance_path), shorten(error.message)
    branches = [branch[0].message for branch in getattr(error.kind, "context", ()) if branch]
    if branches:
        message = shorten(f"{message}: {', '.join(branches)}")
    return f"{place}: {message}" if place else message


def format_path(path: list[str | int]) -> str:
    """The path in Python syntax: `user.tags[2]`."""
    place = ""
    for step in path:
        if isinstance(step, int) or not step.isidentifier():
            place += f"[{step!r}]"
        else:
            place += f".{step}" if place else step
    return shorten(place)


def shorten(text: str) -> str:
    """Cut the middle out of a long text: the end names the fault."""
    if len(text) <= MAX_PROBLEM_LENGTH:
        return text
    half = MAX_PROBLEM_LENGTH // 2
    return f"{text[:half]}…{text[-half:]}"


# --- arguments that are None -------------------------------------------------------------------


def strip_none(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the arguments without those that are None, optional and not nullable.

    Also in nested objects and lists, as far as `properties`, `items` and `$ref` describe them.
    """
    return NullStripper(schema).strip(arguments, schema, 0)


class NullStripper:
    """Finds where a schema accepts null; lives for one `strip_none`.

    In doubt the schema accepts it, and None is sent as given. Each part is examined once, and at
    most `MAX_ENTRIES` parts.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MAX_ENTRIES
        self._known: dict[int, bool] = {}

    def strip(self, value: Any, part: Any, depth: int) -> Any:
        if isinstance(part, Mapping) and "$ref" in part:
            part = resolve_reference(cast("Mapping[str, Any]", part)["$ref"], self._root)
        if not isinstance(part, Mapping) or depth > MAX_DEPTH:
            return value
        given = cast("Mapping[str, Any]", part)
        if isinstance(value, list):
            items, found = given.get("items"), cast("list[Any]", value)
            return [self.strip(one, items, depth + 1) for one in found]
        if not isinstance(value, Mapping):
            return value
        properties = as_mapping(given.get("properties"))
        kept: dict[str, Any] = {}
        for name, one in cast("Mapping[str, Any]", value).items():
            if one is not None or name not in properties or self._keeps_null(name, given):
                kept[name] = self.strip(one, properties.get(name), depth + 1)
        return kept

    def _keeps_null(self, name: str, given: Mapping[str, Any]) -> bool:
        """Whether to send None for this property."""
        return name in self._list_of(given, "required") or self._accepts(given["properties"][name])

    def _accepts(self, part: Any, depth: int = 0) -> bool:
        self._left -= 1
        if not isinstance(part, Mapping) or depth > MAX_DEPTH or self._left < 0:
            return part is not False
        given = cast("Mapping[str, Any]", part)
        if id(given) not in self._known:
            self._known[id(given)] = True  # for parts that refer back to this one
            self._known[id(given)] = self._accepts_by_keywords(given, depth + 1)
        return self._known[id(given)]

    def _accepts_by_keywords(self, given: Mapping[str, Any], depth: int) -> bool:
        """Whether all keywords of the schema accept null."""
        types = given.get("type", "null")
        return (
            (types == "null" or (isinstance(types, list) and "null" in types))
            and given.get("const") is None
            and ("enum" not in given or None in self._list_of(given, "enum"))
            and all(self._accepts(sub, depth) for sub in self._list_of(given, "allOf"))
            and all(
                any(self._accepts(sub, depth) for sub in self._list_of(given, key))
                for key in ("anyOf", "oneOf")
                if given.get(key)
            )
            and self._accepts(resolve_reference(given.get("$ref"), self._root), depth)
        )

    def _list_of(self, given: Mapping[str, Any], keyword: str) -> list[Any]:
        found = given.get(keyword)
        listed = cast("list[Any]", found) if isinstance(found, list) else []
        self._left -= len(listed)
        return listed if self._left >= 0 else [None, True]
