"""A home for each test of the command line."""

from pathlib import Path

import pytest

from tests.cli.helpers_running import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
