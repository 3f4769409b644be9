"""The page about many tools says what a search really finds."""

import pytest

from benchmarks import search_quality as quality

pytestmark = pytest.mark.timeout(300)
"""Seven programs of others' are started and listed, once for all tests here."""


@pytest.mark.requirement("T11")
def test_the_page_shows_how_good_the_search_is():
    page = quality.PAGE.read_text(encoding="utf-8")
    shown = page.partition(quality.BEGIN)[2].partition(quality.END)[0].strip()
    assert shown == quality.table(), "run benchmarks/search_quality.py --write"


def test_every_answer_that_is_expected_is_in_a_real_catalogue():
    names = {tool.name for tool in quality.real()}
    assert not [right for right in quality.QUERIES.values() if not set(right) <= names]


def test_no_text_of_another_author_is_kept_for_it():
    assert not list((quality.ROOT / "tests" / "fixtures").glob("catalogues/*"))
    assert {tool.server for tool in quality.real()} == {*quality.IN_JAVASCRIPT, *quality.IN_PYTHON}
