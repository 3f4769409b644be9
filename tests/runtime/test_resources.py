"""Objects that live as long as a runtime is open."""

import logging

import pytest

from toolkeep import Runtime, ServerUnavailable


class Held:
    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class Broken(Held):
    async def aclose(self) -> None:
        raise OSError("it does not close")


@pytest.mark.requirement("X3")
async def test_a_resource_is_made_once_and_closed_with_the_runtime() -> None:
    runtime = Runtime({})
    with pytest.raises(ServerUnavailable):
        runtime.component(Held)
    async with runtime:
        first = runtime.component(Held)
        assert runtime.component(Held) is first
        assert first.closed == 0
    assert first.closed == 1
    with pytest.raises(ServerUnavailable):
        runtime.component(Held)
    async with runtime:
        assert runtime.component(Held) is not first
    assert first.closed == 1


async def test_a_resource_that_does_not_close_keeps_nothing_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime({}) as runtime:
        other = runtime.component(Held)
        runtime.component(Broken)
    assert other.closed == 1
    assert "Broken could not be closed" in caplog.text
    assert logging.ERROR in {record.levelno for record in caplog.records}
