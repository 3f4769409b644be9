"""How large a JSON value is taken to be."""

from itertools import islice
from typing import Any

import pytest

from toolkeep._rules.size import EACH, PORTION, portions, size_of


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, EACH),
        (5, EACH),
        ("text", EACH + 4),
        ([], EACH),
        ([1, 2], 3 * EACH),
        ({"ab": "c"}, 3 * EACH + 3),
        ([[["x"], {}], 1], 6 * EACH + 1),
    ],
)
def test_texts_count_by_their_length_and_every_value_for_something(value: Any, size: int):
    assert size_of(value, 10**9) == size


def test_counting_stops_where_it_is_enough():
    endless: list[Any] = []
    endless.append(endless)
    assert size_of(endless * 10, PORTION * EACH // 2) > PORTION * EACH // 2


def test_a_long_list_is_counted_in_portions():
    assert len(list(portions([1] * PORTION * 3))) == 4
    assert sum(islice(portions([1] * PORTION * 3), 2)) == 2 * PORTION * EACH


def test_a_deep_value_needs_no_stack():
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    assert size_of(value, 10**9) == 100_001 * EACH
