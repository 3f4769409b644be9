"""All of it runs in the sandbox."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def ready(sandbox: None) -> None:
    """See the fixture `sandbox`."""
