"""A home for each test of the command line, and the time that many short runs take."""

from pathlib import Path

import pytest

from tests.cli.helpers_running import Home

LONGEST = 300.0
"""Seconds for one test. Some run a dozen commands, a second each; on a busy machine ten."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONGEST))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
