"""Gathers what the tests of this folder prove; `--interop-table` writes it into the docs.

Without the option the page is held to the marks by test_the_page.py.
"""

import time
from collections.abc import Iterator

import pytest

from tests.interop.matrix import MARKS, PAGE, Cell, cells_of, holes, page, table_of

MARKED = pytest.StashKey[list[Cell]]()
PASSED = pytest.StashKey[dict[str, list[Cell]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--interop-table", action="store_true", help="write docs/reference/interop.md")


def pytest_configure(config: pytest.Config) -> None:
    for mark, about in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {about}")
    config.stash[MARKED], config.stash[PASSED] = [], {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[MARKED] = [cell for item in items for cell in cells_of(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[PASSED][item.nodeid] = cells_of(item)
    elif report.failed:
        item.config.stash[PASSED].pop(item.nodeid, None)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if not config.getoption("--interop-table", default=False) or exitstatus != 0:
        return
    table = table_of(cell for cells in config.stash[PASSED].values() for cell in cells)
    missing = holes(table)
    if missing:
        raise pytest.UsageError("no test says anything of: " + "; ".join(missing))
    PAGE.write_text(page(table, time.strftime("%Y-%m-%d")), "utf-8")


@pytest.fixture
def marked(request: pytest.FixtureRequest) -> list[Cell]:
    """Of all tests that were collected."""
    return request.config.stash[MARKED]
