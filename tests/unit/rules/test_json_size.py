"""How large a JSON value is taken to be."""

from itertools import islice
from typing import Any

import pytest

from toolkeep._rules.limits import MIN_VALUE_SIZE, PORTION_VALUES, json_size, json_size_portions


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, MIN_VALUE_SIZE),
        (5, MIN_VALUE_SIZE),
        ("text", MIN_VALUE_SIZE + 4),
        ([], MIN_VALUE_SIZE),
        ([1, 2], 3 * MIN_VALUE_SIZE),
        ({"ab": "c"}, 3 * MIN_VALUE_SIZE + 3),
        ([[["x"], {}], 1], 6 * MIN_VALUE_SIZE + 1),
    ],
)
def test_texts_count_by_their_length_and_every_value_for_something(value: Any, size: int):
    assert json_size(value, 10**9) == size


def test_counting_stops_where_it_is_enough():
    endless: list[Any] = []
    endless.append(endless)
    assert (
        json_size(endless * 10, PORTION_VALUES * MIN_VALUE_SIZE // 2)
        > PORTION_VALUES * MIN_VALUE_SIZE // 2
    )


def test_a_long_list_is_counted_in_portions():
    assert len(list(json_size_portions([1] * PORTION_VALUES * 3))) == 4
    assert (
        sum(islice(json_size_portions([1] * PORTION_VALUES * 3), 2))
        == 2 * PORTION_VALUES * MIN_VALUE_SIZE
    )


def test_a_deep_value_needs_no_stack():
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    assert json_size(value, 10**9) == 100_001 * MIN_VALUE_SIZE
