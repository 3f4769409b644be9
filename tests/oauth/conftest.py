"""One real authorization server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.oauth.world import running_provider


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """The origin of an oidc-provider whose tokens live for an hour."""
    with running_provider() as origin:
        yield origin
