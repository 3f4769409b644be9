"""Servers for the kit's own tests, in both homes."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.kit.wire import Wire, wire_to
from toolkeep.testing import ScriptedServer


@pytest.fixture(params=["local", "spawn"])
def home(request: pytest.FixtureRequest) -> Callable[..., ScriptedServer]:
    return ScriptedServer.local if request.param == "local" else ScriptedServer.spawn


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer.local() as server:
        yield server


@pytest.fixture
async def wire(server: ScriptedServer) -> AsyncIterator[Wire]:
    """A connection with a legacy session."""
    async with wire_to(server.port) as wire:
        await wire.initialize()
        await server.clear()
        yield wire
