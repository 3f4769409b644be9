"""References within a JSON Schema: resolved as jsonschema-rs resolves them."""

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from toolkeep._rules.json_schema import compile_schema
from toolkeep._rules.schema_references import resolve_reference

ONE = {"const": 1}
ROOT: dict[str, Any] = {
    "prefixItems": [{"type": "string"}, ONE],
    "$defs": {
        "plain": ONE,
        "a b": ONE,
        "c/d": ONE,
        "e~f": ONE,
        "~1": ONE,
        "50%": ONE,
        "ä": ONE,
        "": ONE,
        "7": ONE,
        "deep": {"anyOf": [ONE, {"properties": {"x": ONE}}]},
    },
}
SPELLINGS = [
    *("#/$defs/plain", "#/%24defs/plain", "#/$defs%2Fplain", "#/$defs/a%20b", "#/$defs/c~1d"),
    *("#/$defs/e~0f", "#/$defs/~01", "#/$defs/50%25", "#/$defs/%C3%A4", "#/$defs/", "#/$defs/7"),
    *("#/prefixItems/1", "#/prefixItems/%31", "#/$defs/deep/anyOf/1/properties/x"),
]


@pytest.mark.parametrize("reference", SPELLINGS)
def test_a_reference_finds_the_part_that_the_validator_applies(reference: str) -> None:
    validator = Draft202012Validator({**ROOT, "properties": {"a": {"$ref": reference}}})
    assert not validator.is_valid({"a": 2})
    assert validator.is_valid({"a": 1})
    assert resolve_reference(reference, ROOT) == ONE


def test_the_root_is_a_part_too() -> None:
    assert resolve_reference("#", ROOT) is ROOT


@pytest.mark.parametrize(
    "reference",
    [
        *("#/$defs/missing", "#/$defs/plain/const/x", "#/prefixItems/2", "#/prefixItems/-1"),
        *("#/prefixItems/x", "#/prefixItems/" + "9" * 5000, "#anchor", "other.json#/$defs/plain"),
        *("", "$defs/plain", None, 7, ["#"], {"$ref": "#"}),
    ],
)
def test_what_points_elsewhere_or_to_nothing_accepts_everything(reference: Any) -> None:
    assert resolve_reference(reference, ROOT) is True


def doubling(spelling: str, parts: int) -> dict[str, Any]:
    """Each part applies the next one twice: 2 to the power of `parts` validations of one value."""
    chain: list[dict[str, Any]] = []
    for number in range(1, parts):
        chain.append(
            {"allOf": [{"$ref": spelling.format(number)}, {"$ref": spelling.format(number)}]}
        )
    return {"properties": {"a": {"$ref": spelling.format(0)}}, "prefixItems": [*chain, ONE]}


@pytest.mark.parametrize(
    "spelling", ["#/prefixItems/{}", "#/prefixItems%2F{}", "#/%70refixItems/{}"]
)
def test_parts_in_a_list_are_counted_however_they_are_referred_to(spelling: str) -> None:
    few, many = (compile_schema(doubling(spelling, parts), what="arguments") for parts in (5, 40))
    assert few.check({"a": 2}).problems
    assert few.check({"a": 1}).problems == ()
    assert not many.usable
