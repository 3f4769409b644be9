"""The page about other people's servers says what the tests say, and nothing else."""

import pytest

from tests.interop.matrix import HERE, PAGE, Cell, date_of, holes, page, table_of

SAYING = {
    path.name for path in HERE.glob("test_*.py") if "tests.interop.matrix" in path.read_text()
}
SAYING.discard("test_the_page.py")


def test_the_page_is_the_one_that_the_tests_would_write(
    marked: list[Cell], request: pytest.FixtureRequest
):
    if request.config.getoption("--interop-table", default=False):
        return  # it is about to be written
    if {cell.test.split("::")[0] for cell in marked} < SAYING:
        return  # only some of the files were asked for
    written, table = PAGE.read_text("utf-8"), table_of(marked)
    assert not holes(table)
    assert page(table, date_of(written)) == written
