"""A client with secrets wherever there is room, and all that could show one."""

import logging
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.engine.helpers_tasks import Era, closing, outcome
from toolkeep import Client
from toolkeep.events import Event
from toolkeep.testing import FaultProxy, ScriptedServer

KEY, HEADER, QUERY, MINE = "sekret-key", "sekret-header", "sekret-query", "sekret-of-the-call"
USER, PASSWORD, PROXY = "sekret-user", "sekret-password", "sekret-proxy"
MARK = "sekret"


@dataclass
class Stage:
    """A client with secrets wherever there is room, and all that could show one."""

    server: ScriptedServer
    proxy: FaultProxy
    client: Client
    logs: pytest.LogCaptureFixture
    events: list[Event] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)

    async def expect(self, kind: type[BaseException], work: Awaitable[Any]) -> None:
        error = await outcome(work)
        assert type(error) is kind, repr(error)
        self.errors.append(error)

    def shown(self) -> str:
        """Everything that a person could read."""
        spec = self.client.spec
        said = [repr(self.client), repr(spec), str(spec), repr(self.client.handshake)]
        for error in self.errors:
            said += traceback.format_exception(error)
            for each in chain(error):
                said += [str(each), repr(each), repr(getattr(each, "failure", None))]
        for event in self.events:
            said += [repr(event), str(event), event.to_json()]
        formatter = logging.Formatter()
        said += [formatter.format(record) for record in self.logs.records]
        said += [repr(record.args) for record in self.logs.records]
        return "\n".join(said)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error with all its causes and contexts, also those that a traceback would not print."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


@asynccontextmanager
async def stage(era: Era, caplog: pytest.LogCaptureFixture, **more: Any) -> AsyncIterator[Stage]:
    for name in ("toolkeep", "aiohttp", "asyncio", "mcp"):
        caplog.set_level(logging.DEBUG, logger=name)
    loss = {"session_loss": more.pop("session_loss")} if "session_loss" in more else {}
    async with (
        ScriptedServer.local(era=era, **loss) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
    ):
        spec = {
            "name": "kit",
            "url": f"{proxy.url()}?token={QUERY}",
            "mode": era,
            "api_key": KEY,
            "headers": {"x-secret": HEADER},
            "max_retries": 0,
            "breaker_threshold": 0,
            **more,
        }
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            client = Client(spec)
        acted = Stage(server, proxy, client, caplog)

        def watch(event: Event) -> None:
            acted.events.append(event)
            if client.session_id is not None:
                acted.sessions.add(client.session_id)

        client.observe(watch)
        async with closing(client):
            yield acted
        shown = acted.shown() + "\n".join(str(warning.message) for warning in warned)
        assert MARK not in shown
        assert not [session for session in acted.sessions if session in shown]
