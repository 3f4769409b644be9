"""Whose call it is, and what nobody may read, over stdio, HTTP+SSE and in-process."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from tests.engine.helpers_secrets import chain
from tests.engine.helpers_tasks import LONG, closing, outcome
from tests.engine.helpers_transports import (
    IN_PROCESS,
    SSE,
    STDIO,
    Kit,
    Way,
    over_stdio,
    served,
    serving,
)
from toolkeep import CallOutcomeUnknown, CallRejected, Client, InvalidArguments, NotPermitted
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.events import Event
from toolkeep.testing import Behaviour, Rule

user: ContextVar[str] = ContextVar("user", default="nobody")
SECRET = "sekret-of-the-environment"


# -- headers ------------------------------------------------------------------------------------


async def test_a_call_for_somebody_else_is_refused_before_anything_is_sent():
    async with serving(SSE, {"non_identity_headers": ["x-colour"]}) as (server, client):
        await client.call_tool("record", {"key": "ada"}, headers={"x-user": "ada"})
        error = await outcome(client.call_tool("record", {"key": "bob"}, headers={"X-User": "bob"}))
        assert type(error) is NotPermitted
        for colour in ("red", "green"):
            neutral = {"x-user": "ada", "x-colour": colour, "traceparent": f"00-{colour}"}
            await client.call_tool("record", {"key": "ada"}, headers=neutral)
        assert await server.ledger() == {"ada": 3}
        await client.aclose()
        await client.call_tool("record", {"key": "bob"}, headers={"x-user": "bob"})
        assert await server.executions("bob") == 1


@pytest.mark.parametrize("way", [*STDIO, *IN_PROCESS], ids=str)
async def test_a_header_that_could_not_travel_is_refused_with_its_call(way: Way):
    async with serving(way) as (server, client):
        error = await outcome(client.call_tool("record", headers={"x-user": "ada"}))
        assert type(error) is InvalidArguments
        assert (error.tool, await server.ledger()) == ("record", {})
        assert (await client.call_tool("echo", {"text": "x"}, headers={})).text == "x"


@pytest.mark.requirement("H3")
async def test_the_headers_of_a_hundred_callers_over_sse_are_never_mixed_up():
    spec = {"headers": {"x-server": "s"}, "non_identity_headers": ["x-call"], "api_key": "k"}
    async with serving(SSE, spec) as (server, client):

        async def who(n: int) -> tuple[str, str, str]:
            result = await client.call_tool("headers", {}, headers={"x-call": f"{n}"})
            return tuple(result.data[name] for name in ("x-call", "x-server", "authorization"))

        calls = [asyncio.create_task(who(n)) for n in range(100)]
        found = [await outcome(call) for call in calls]
        assert found == [(f"{n}", "s", "Bearer k") for n in range(100)]
        assert await server.openings() == 1


class Witness:
    """An authorizer that says whose context it is asked in."""

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"x-asked-by": user.get()}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.mark.requirement("S17")
async def test_no_callers_context_or_headers_reach_what_an_sse_connection_sends_by_itself():
    async with served(SSE) as server:
        client = Client({"name": "kit", **server.spec}, auth=Witness())
        async with closing(client):
            user.set("ada")
            for _ in range(2):
                await client.call_tool("record", headers={"x-request-id": "one"})
                await server.server.forget_sessions()
        records = await server.server.requests()
        by = {
            (r.rpc_method or r.http_method): (
                r.headers["x-asked-by"],
                r.headers.get("x-request-id"),
            )
            for r in records
        }
        assert by.pop("tools/call") == ("ada", "one")
        assert set(by) == {"GET", "initialize", "notifications/initialized"}
        assert set(by.values()) == {("nobody", None)}
        assert len(await server.server.requests("initialize")) == 2


@pytest.mark.requirement("S17")
async def test_a_server_in_this_process_lives_in_nobodys_context_and_its_tools_in_their_callers():
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        seen.append(user.get())
        yield

    async def whoami() -> str:
        return user.get()

    server = MCPServer("context", lifespan=lifespan)
    server.add_tool(whoami)
    async with closing(Client({"name": "context", "server": server})) as client:
        user.set("ada")
        assert (await client.call_tool("whoami")).text == "ada"
        user.set("bob")
        assert (await client.call_tool("whoami")).text == "bob"
    assert seen == ["nobody"]


# -- secrets ------------------------------------------------------------------------------------


class Exposed:
    """All that a person could read of one client."""

    def __init__(self, client: Client, logs: pytest.LogCaptureFixture) -> None:
        self._client, self._logs = client, logs
        self.events: list[Event] = []
        self.errors: list[BaseException] = []
        client.observe(self.events.append, listen=False)

    async def fail(self, work: Any) -> Any:
        error = await outcome(work)
        assert isinstance(error, Exception)
        self.errors.append(error)
        return error

    def text(self) -> str:
        spec = self._client.spec
        said = [repr(self._client), repr(spec), str(spec), spec.model_dump_json()]
        for error in self.errors:
            said += traceback.format_exception(error)
            for each in chain(error):
                said += [str(each), repr(each), repr(each.__dict__)]
        for event in self.events:
            said += [repr(event), str(event), event.to_json()]
        formatter = logging.Formatter()
        for record in self._logs.records:
            said += [formatter.format(record), repr(record.args)]
        return "\n".join(said)


@asynccontextmanager
async def exposed(
    way: Way, caplog: pytest.LogCaptureFixture, **options: Any
) -> AsyncIterator[tuple[Kit, Client, Exposed]]:
    for name in ("toolkeep", "asyncio", "mcp", "aiohttp"):
        caplog.set_level(logging.DEBUG, logger=name)
    async with served(way, **options) as server:
        env = {**server.spec["env"], "KIT_TOKEN": SECRET, "KIT_EMPTY": ""}
        spec = {"name": "kit", "mode": way.era, **server.spec, "env": env, "max_retries": 0}
        async with closing(Client(spec)) as client:
            shown = Exposed(client, caplog)
            yield server, client, shown
        control = env["TOOLKEEP_KIT_CONTROL"]
        text = shown.text()
        assert SECRET not in text
        assert control not in text


@pytest.mark.requirement("H6", "S16")
@over_stdio
async def test_no_secret_of_the_environment_is_shown_when_a_program_fails(
    way: Way, caplog: pytest.LogCaptureFixture
):
    words = f"rejected: {SECRET}\n"
    noise = {"stderr": words, "stdout_noise": words}
    async with exposed(way, caplog, **noise) as (server, client, shown):
        await client.connect()
        (launch,) = await server.server.launches()  # pyright: ignore[reportAttributeAccessIssue]
        assert launch.environment["KIT_TOKEN"] == SECRET
        no = {"code": -32000, "message": f"bad token {SECRET}", "data": {"token": SECRET}}
        await server.server.script(
            Rule(tool="record", times=1, do=Behaviour(error=no)),
            Rule(tool="record", times=1, do=Behaviour(prefix_lines=words, hang=True)),
            Rule(tool="record", do=Behaviour(drop="mid_answer", exit_code=2, prefix_lines=words)),
        )
        assert type(await shown.fail(client.call_tool("record"))) is CallRejected
        await shown.fail(client.call_tool("record", timeout=0.1))
        last = await shown.fail(client.call_tool("record"))
        assert type(last) is CallOutcomeUnknown
        assert "rejected: " in last.stderr


@pytest.mark.requirement("H6", "S16")
@over_stdio
async def test_no_secret_of_the_environment_is_shown_when_a_program_does_not_start(
    way: Way, caplog: pytest.LogCaptureFixture
):
    words = f"cannot use {SECRET}\n"
    noise: dict[str, Any] = {"stderr": words, "stdout_noise": words, "exit_at_start": 3}
    async with exposed(way, caplog, **noise) as (_, client, shown):
        error = await shown.fail(client.call_tool("record"))
        assert error.exit_code == 3
        assert "cannot use" in error.stderr


@pytest.mark.requirement("S16")
@over_stdio
async def test_a_program_sees_what_is_configured_and_little_else(
    way: Way, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("LD_PRELOAD_NOT", "mine")
    async with serving(way) as (server, client):
        await client.call_tool("slow", {"seconds": 0})
        (launch,) = await server.server.launches()
        assert "mine" not in launch.environment.values()
        assert "PATH" in launch.environment


@pytest.mark.requirement("H6")
async def test_no_secret_of_an_sse_session_is_shown(caplog: pytest.LogCaptureFixture):
    for name in ("toolkeep", "aiohttp", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    spec = {"headers": {"x-secret": SECRET}, "api_key": "sekret-key", "max_retries": 0}
    async with serving(SSE, spec) as (server, client):
        shown = Exposed(client, caplog)
        await client.connect()
        session = client.session_id
        assert session
        await server.server.script(
            Rule(tool="record", times=1, do=Behaviour(drop="after_body")),
            Rule(tool="record", times=1, do=Behaviour(status=500, body=f"{SECRET} {session}")),
            Rule(tool="record", do=Behaviour(status=404)),
        )
        for _ in range(3):
            await shown.fail(client.call_tool("record", headers={"x-request-id": "sekret-call"}))
        await client.connect()
        slow = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        await server.die()
        await shown.fail(slow)
        text = shown.text()
    assert "sekret" not in text
    assert session not in text
