"""Headers that may not be sent, at whatever level they are given; and providers of headers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.runtime._identity import Era, every_era, failure_of, house, named, seen, sessions_of
from toolkeep import AuthNeeded, CallContext, ConfigError, InvalidArguments, Runtime
from toolkeep.config.spec import ConfigWarning

REFUSED = {
    "the session": {"Mcp-Session-Id": "stolen"},
    "a parameter": {"mcp-param-x": "1"},
    "the version": {"MCP-Protocol-Version": "1999-01-01"},
    "the host": {"Host": "elsewhere"},
    "the length": {"Content-Length": "0"},
    "the framing": {"transfer-encoding": "chunked"},
    "a line break": {"x-a": "1\r\nx-injected: 2"},
    "a lone line feed": {"x-a": "1\nx-injected: 2"},
    "a name with a line break": {"x-a\r\nx-injected": "1"},
    "a number": {"x-a": 1},
    "two values": {"x-a": "1", "X-A": "2"},
}
refused = pytest.mark.parametrize("what", REFUSED)
SECRET = "sekret"


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("level", ["call", "task", "provider"])
@refused
@every_era
async def test_a_header_that_may_not_be_sent_fails_the_call_and_nothing_is_sent(
    era: Era, what: str, level: str
):
    bad: Any = REFUSED[what]
    provider = (lambda context, server: bad) if level == "provider" else None
    async with house(era, header_provider=provider) as (server, runtime):
        before = len(await server.requests())
        context = CallContext(headers=bad if level == "task" else {})
        work = seen(runtime, context, headers=bad if level == "call" else None)
        error = await failure_of(work)
        assert isinstance(error, InvalidArguments)
        assert "injected: 2" not in str(error)
        assert len(await server.requests()) == before


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("value", ["1\r\nx-injected: 2", "\N{SNOWMAN}", "nul\0"])
async def test_an_id_of_a_context_that_cannot_be_a_header_fails_the_call(value: str):
    async with house("legacy", {"derived_headers": ["user"]}) as (server, runtime):
        before = len(await server.requests())
        error = await failure_of(seen(runtime, CallContext(user_id=value)))
        assert isinstance(error, InvalidArguments)
        assert len(await server.requests()) == before


async def refusal_of(spec: Mapping[str, Any]) -> ConfigError:
    runtime = Runtime({"mcpServers": {"bad": spec}})
    try:
        with pytest.raises(ConfigError) as caught:
            await runtime.connect()
    finally:
        await runtime.aclose()
    return caught.value


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("level", ["server", "tool"])
@refused
async def test_a_header_that_may_not_be_configured_is_said_before_anything_is_opened(
    what: str, level: str
):
    bad: Any = REFUSED[what]
    spec = {"headers": bad} if level == "server" else {"tool_headers": {"headers": bad}}
    async with house("legacy") as (server, _):
        before = len(await server.requests())
        error = await refusal_of({"url": server.url, **spec})
        assert error.server == "bad"
        assert len(await server.requests()) == before


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("name", ["mcp-session-id", "host", "content-length", "x y", ""])
async def test_a_name_that_may_not_be_derived_is_said_before_anything_is_opened(name: str):
    async with house("legacy") as (server, _):
        before = len(await server.requests())
        spec = {"url": server.url, "derived_headers": {"user": name}}
        await refusal_of(spec)
        assert len(await server.requests()) == before


# -- ignored ------------------------------------------------------------------------------------

BODY = {"Content-Type": "text/plain", "ACCEPT": "text/html"}


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("level", ["call", "task", "provider", "tool"])
@every_era
async def test_what_a_body_is_cannot_be_changed_by_a_header(era: Era, level: str):
    options: dict[str, Any] = {}
    spec = {"tool_headers": {"headers": BODY}} if level == "tool" else {}
    if level == "provider":
        options["header_provider"] = lambda context, server: BODY
    async with house(era, spec, **options) as (_, runtime):
        context = CallContext(headers=BODY if level == "task" else {})
        found = await seen(runtime, context, headers=BODY if level == "call" else None)
        assert found["content-type"] == "application/json"
        assert found["accept"] == "application/json, text/event-stream"
        assert runtime.servers[0].sessions == 0


@pytest.mark.requirement("H2")
async def test_a_configuration_that_tries_is_warned_of_it():
    async with house("legacy") as (server, _):
        runtime = Runtime({"mcpServers": {"kit": {"url": server.url, "headers": BODY}}})
        with pytest.warns(ConfigWarning, match="ignored"):
            await runtime.connect()
        try:
            assert (await seen(runtime, None))["content-type"] == "application/json"
        finally:
            await runtime.aclose()


# -- providers ----------------------------------------------------------------------------------


def by_principal(context: CallContext, server: str) -> Mapping[str, str] | None:
    if context.principal is None:
        return None
    return {"Authorization": f"Bearer {context.principal}@{server}", "X-Same": "provider"}


async def later(context: CallContext, server: str) -> Mapping[str, str] | None:
    await asyncio.sleep(0)
    return by_principal(context, server)


@pytest.mark.requirement("H1", "H3")
@pytest.mark.parametrize("provider", [by_principal, later])
@every_era
async def test_a_provider_gives_each_context_its_headers(era: Era, provider: Any):
    async with house(era, header_provider=provider) as (server, runtime):
        assert "authorization" not in await seen(runtime, None)
        for who in "ab":
            found = await seen(runtime, named(who))
            assert found["authorization"] == f"Bearer {who}@kit"
        if era == "legacy":
            records = await server.requests()
            handshakes = [r.headers.get("authorization") for r in records if not r.session_id]
            assert handshakes[-2:] == ["Bearer a@kit", "Bearer b@kit"]
            assert len(sessions_of(records, "authorization", "Bearer a@kit")) == 1


@pytest.mark.requirement("H1")
async def test_a_provider_stands_under_the_task_and_over_the_ids_and_the_server():
    spec = {"headers": {"x-same": "server"}, "derived_headers": {"user": "x-same"}}
    async with house("modern", spec, header_provider=by_principal) as (_, runtime):
        ann = CallContext(principal="ann", user_id="derived")
        assert (await seen(runtime, ann))["x-same"] == "provider"
        assert (await seen(runtime, named("ann", x_same="task")))["x-same"] == "task"
        assert (await seen(runtime, CallContext(user_id="derived")))["x-same"] == "derived"


@pytest.mark.requirement("H4")
async def test_headers_of_a_provider_tell_callers_without_a_name_apart():
    def provider(context: CallContext, server: str) -> Mapping[str, str]:
        return {"x-user": str(context.user_id)}

    async with house("legacy", header_provider=provider) as (server, runtime):
        for user in "abab":
            assert (await seen(runtime, CallContext(user_id=user)))["x-user"] == user
        records = await server.requests()
        assert [len(sessions_of(records, "x-user", user)) for user in "ab"] == [1, 1]
        assert runtime.servers[0].sessions == 2


def raising(context: CallContext, server: str) -> Mapping[str, str]:
    raise RuntimeError(f"cannot sign for {SECRET}")


async def raising_later(context: CallContext, server: str) -> Mapping[str, str]:
    await asyncio.sleep(0)
    raise ValueError(SECRET)


def wrong(context: CallContext, server: str) -> Any:
    return [("authorization", SECRET)]


@pytest.mark.requirement("H4", "H6")
@pytest.mark.parametrize("provider", [raising, raising_later, wrong])
@pytest.mark.parametrize("who", [None, CallContext(), named("ann", SECRET)])
@every_era
async def test_a_provider_that_fails_fails_the_call_and_nothing_is_sent(
    era: Era, who: CallContext | None, provider: Any
):
    async with house(era, header_provider=provider) as (server, runtime):
        before = len(await server.requests())
        error = await failure_of(seen(runtime, who))
        assert isinstance(error, AuthNeeded if provider is not wrong else InvalidArguments)
        assert error.server == "kit"
        assert SECRET not in f"{error}{error!r}{error.__cause__}{error.__context__}"
        assert len(await server.requests()) == before


@pytest.mark.requirement("H4")
@every_era
async def test_a_provider_that_recovers_is_believed_again(era: Era):
    failing = True

    def provider(context: CallContext, server: str) -> Mapping[str, str]:
        return raising(context, server) if failing else {"x-a": "1"}

    async with house(era, header_provider=provider) as (_, runtime):
        await failure_of(seen(runtime, named("ann")))
        failing = False
        assert (await seen(runtime, named("ann")))["x-a"] == "1"


@pytest.mark.requirement("H4")
async def test_a_provider_that_is_cancelled_with_its_call_sends_nothing():
    entered = asyncio.Event()

    async def provider(context: CallContext, server: str) -> Mapping[str, str]:
        entered.set()
        await asyncio.sleep(60)
        return {}

    async with house("legacy", header_provider=provider) as (server, runtime):
        before = len(await server.requests())
        call = asyncio.create_task(seen(runtime, named("ann")))
        await asyncio.wait_for(entered.wait(), 5)
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        assert len(await server.requests()) == before


@pytest.mark.requirement("H4")
async def test_the_deadline_of_a_call_covers_its_provider():
    async def provider(context: CallContext, server: str) -> Mapping[str, str]:
        await asyncio.sleep(60)
        return {}

    async with house("legacy", header_provider=provider) as (server, runtime):
        before = len(await server.requests())
        await failure_of(seen(runtime, named("ann"), timeout=0.1))
        assert len(await server.requests()) == before
