"""Values as JSON has them, and the problems that were found on the way.

Whoever reads goes on after a problem, to find all of them. How deep and how many is bounded, so
that no text, however made, takes long.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from toolkeep.compose._problems import PlanRefused, Problem, nearest, short
from toolkeep.compose._refs import NOTHING, Ref, is_word, parse
from toolkeep.compose._writing import FROM

__all__ = ["DEEPEST", "PlainReader", "loaded"]

LONGEST = 1_000_000
"""Characters or bytes of a plan's JSON: our choice."""
MOST = 100_000
"""Values in a plan, likewise."""
DEEPEST = 60
"""Levels of anything in a plan: far above what the check lets through."""
MOST_BITS = 4_096
"""Of a whole number. Python itself does not write numbers of more than 4,300 digits."""


def loaded(text: str | bytes) -> Any:
    """What the text says, if it is JSON and says everything once. Raises `PlanRefused`."""
    if len(text) > LONGEST:
        refuse(f"it is longer than {LONGEST} characters")
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        refuse(f"it is no JSON: {short(str(error))}")


def refuse(problem: str) -> NoReturn:
    raise PlanRefused([Problem("", problem)]) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {short(twice)!r} stands twice in one object")
    return found


class PlainReader:
    """Used once, for one plan."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._count = 0

    def complain(self, place: str, problem: str, remedy: str = "") -> None:
        self.problems.append(Problem(place, problem, remedy))

    def count(self) -> None:
        """One value more."""
        self._count += 1
        if self._count > MOST:
            refuse(f"it has more than {MOST} values")

    # -- values -----------------------------------------------------------------------------------

    def value(self, given: Any, place: str, depth: int = 0, *, refs: bool = True) -> Any:
        """A value in which there may be references; without `refs`, nothing is taken for one."""
        self.count()
        if depth > DEEPEST:
            self.complain(place, f"it is more than {DEEPEST} levels deep")
            return None
        match given:
            case Mapping() if refs and FROM in given:
                return self.ref(cast("Mapping[str, Any]", given), place)
            case Mapping():
                return self._object(cast("Mapping[Any, Any]", given), place, depth, refs)
            case list() | tuple():
                many = enumerate(cast("list[Any]", given))
                return [self.value(one, f"{place}[{at}]", depth + 1, refs=refs) for at, one in many]
            case None | bool():
                return given
            case int() | float() | str():
                return self._scalar(given, place)
            case _:
                self.complain(place, f"JSON has no {type(given).__name__}")
                return None

    def _object(self, given: Mapping[Any, Any], place: str, depth: int, refs: bool) -> Any:
        found: dict[str, Any] = {}
        for key, one in given.items():
            inside = f"{place}.{short(str(key))}"
            if not isinstance(key, str):
                self.complain(inside, "it is no key: in JSON they are texts")
                continue
            own = key[1:] if refs and key.startswith("$$") else key
            if own in found:
                self.complain(inside, "the key stands twice")
            self._scalar(key, inside)
            found[own] = self.value(one, inside, depth + 1, refs=refs)
        return found

    def _scalar(self, given: int | float | str, place: str) -> Any:
        if isinstance(given, float) and not math.isfinite(given):
            self.complain(place, "JSON has no such number")
        elif isinstance(given, int) and given.bit_length() > MOST_BITS:
            self.complain(place, "it is too large a number")
        elif isinstance(given, str) and not _can_be_sent(given):
            self.complain(place, "it is no text: half of a surrogate pair is in it")
        return given

    def ref(self, given: Mapping[str, Any], place: str) -> Ref:
        self.only(given, (FROM, "default"), place)
        path = given[FROM]
        try:
            if not isinstance(path, str):
                raise ValueError("a path is a text")
            step, keys = parse(path)
        except ValueError as error:
            self.complain(place, str(error), "Write it so: step.data.items[0].title")
            return Ref("inputs")
        inside = f"{place}.default"
        default = NOTHING
        if "default" in given:
            default = self.value(given["default"], inside, refs=False)
        return Ref(step, keys, default)

    # -- small things -----------------------------------------------------------------------------

    def mapping(self, given: Any, place: str, remedy: str) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            return cast("Mapping[str, Any]", given)
        self.complain(place, f"it is no object, but {type(given).__name__}", remedy)
        return {}

    def only(self, found: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
        for key in found:
            if key not in known:
                shown = short(str(key))
                inside = f"{place}.{shown}" if place else shown
                self.complain(inside, "there is no such key here", nearest(str(key), known))

    def word(self, given: Any, place: str) -> str:
        if not isinstance(given, str) or not is_word(given):
            self.complain(place, "it is no name", "Use up to 64 letters, digits, - and _")
            return "step"
        return given

    def one_of(self, given: Any, known: tuple[str, ...], place: str) -> Any:
        if given not in known:
            self.complain(place, "it is none of those", f"Say {' or '.join(map(repr, known))}")
            return known[0]
        return given

    def number(self, given: Any, place: str, most: int) -> int:
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 1 <= given <= most or given != int(given):
            self.complain(place, f"it is no whole number from 1 to {most}")
            return 1
        return int(given)  # in JSON, 2.0 is one

    def seconds(self, given: Any, place: str, most: int) -> float | None:
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and (not is_number or not 0 < given <= most):
            self.complain(place, f"it is no number of seconds, above 0 and up to {most}")
            return None
        return given


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
