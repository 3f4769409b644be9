"""Every test of telemetry has OpenTelemetry's SDK for itself: nothing global is set."""

from collections.abc import Iterator

import pytest

from tests.telemetry.helpers_otel import Telescope


@pytest.fixture
def telescope() -> Iterator[Telescope]:
    telescope = Telescope()
    yield telescope
    telescope.close()
