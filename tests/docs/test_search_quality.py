"""The page about many tools says what a search really finds."""

import pytest

from benchmarks import search_quality as quality


@pytest.mark.requirement("T11")
def test_the_page_shows_how_good_the_search_is():
    page = quality.PAGE.read_text(encoding="utf-8")
    shown = page.partition(quality.BEGIN)[2].partition(quality.END)[0].strip()
    assert shown == quality.table(), "run benchmarks/search_quality.py --write"


def test_every_answer_that_is_expected_is_in_a_real_catalogue():
    names = {tool.name for tool in quality.real()}
    assert not [right for right in quality.QUERIES.values() if not set(right) <= names]
