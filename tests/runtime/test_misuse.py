"""What is wrong on the caller's side, or odd on the server's, is said as what it is."""

import asyncio
import io
import logging
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, Era, closing, every_era, outcome
from toolkeep import CallContext, CallRejected, Client, ConfigError, InvalidArguments, Runtime
from toolkeep.config import ServerSpec, Timeouts
from toolkeep.telemetry import LogObserver
from toolkeep.testing import Behaviour, Rule, ScriptedServer

BAD_CONTEXTS: dict[str, Any] = {
    "a text": "ann",
    "a mapping": {"principal": "ann"},
    "a header that cannot be sent": CallContext(headers={"x-user": "ann\r\nx-other: 1"}),
    "a header of the protocol": CallContext(headers={"bad header": "1"}),
}


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("context", BAD_CONTEXTS)
@pytest.mark.parametrize("name", ["kit.echo", "echo", "kit__echo", "nothing"])
async def test_a_bad_context_is_an_invalid_argument_however_the_tool_is_named(
    name: str, context: str
):
    bad = BAD_CONTEXTS[context]
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": {"url": server.url}}) as runtime,
    ):
        for work in (
            runtime.call(name, {"text": "x"}, context=bad),
            runtime.resolve([name], bad),
            runtime.search("echo", context=bad),
            runtime.catalogue_for(bad),
        ):
            assert isinstance(await outcome(work), InvalidArguments)
        assert await server.requests(tool="echo") == []


BAD_NUMBERS: dict[str, Any] = {
    "true": True,
    "too large": 10**400,
    "a text": "5",
    "not a number": float("nan"),
    "endless": float("inf"),
    "nothing": b"5",
}


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("key", ["call", "connect", "read", "max_call"])
def test_a_duration_is_a_number_and_what_is_none_is_refused_by_name(key: str, value: str):
    with pytest.raises(ConfigError) as caught:
        Timeouts(**{key: BAD_NUMBERS[value]})
    assert caught.value.key == key
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"url": "http://localhost/", "timeouts": {key: BAD_NUMBERS[value]}})
    assert caught.value.key == f"timeouts.{key}"


@pytest.mark.parametrize("value", [True, 10**400, "5"], ids=["true", "too large", "a text"])
@pytest.mark.parametrize("key", ["max_retries", "max_in_flight", "retry_rate", "health_interval"])
def test_so_is_any_other_number(key: str, value: Any):
    with pytest.raises(ConfigError) as caught:
        ServerSpec(name="a", url="http://localhost/", **{key: value})
    assert caught.value.key == key


def test_a_variable_may_hold_a_number():
    given = {"url": "http://localhost/", "timeouts": {"call": "${T}"}, "max_retries": "${N}"}
    spec = ServerSpec.parse(given, env={"T": "2.5", "N": "7"})
    assert (spec.timeouts.call, spec.max_retries) == (2.5, 7)
    with pytest.raises(ConfigError, match="the variable is not a number"):
        ServerSpec.parse(given, env={"T": "soon", "N": "7"})


@pytest.mark.requirement("P6")
@pytest.mark.parametrize(
    "timeout", [True, "5", 10**400, 0, -1, float("nan")], ids=lambda v: str(v)[:5]
)
async def test_a_calls_timeout_is_a_number_too(timeout: Any):
    async with ScriptedServer.local() as server, closing(Client(server.url)) as client:
        error = await outcome(client.call_tool("echo", {"text": "x"}, timeout=timeout))
        assert isinstance(error, InvalidArguments)
        assert await server.requests(tool="echo") == []


@pytest.mark.parametrize(
    "roots",
    [["https://x"], ["/tmp", "http://x/"], ["data:x"], "https://x", "/tmp", [3], [""], ["file://"]],
    ids=str,
)
def test_a_root_is_a_folder(roots: Any):
    for made in (lambda: Client("http://localhost/", roots=roots), lambda: Runtime(roots=roots)):
        with pytest.raises(ConfigError) as caught:
            made()
        assert caught.value.key == "roots"


@pytest.mark.parametrize(
    "roots", [["/tmp"], ["file:///tmp"], [Path("/tmp")], (), "caller"], ids=str
)
def test_and_a_folder_is_a_root(roots: Any):
    Client("http://localhost/", roots=roots)


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("transport", ["streamable", "sse"])
@pytest.mark.parametrize("status", [500, 502, 503])
async def test_an_error_on_initialized_does_not_undo_the_handshake(transport: Any, status: int):
    async with ScriptedServer.local(era="legacy", transport=transport) as server:
        broken = Behaviour(status=status, run=False)
        await server.script(Rule(method="notifications/initialized", do=broken))
        way = "sse" if transport == "sse" else "http"
        async with closing(Client({"url": server.url, "transport": way})) as client:
            assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert len(await server.requests("initialize")) == 1


MALFORMED: dict[str, Any] = {
    "a text": '"x"',
    "a list": "[]",
    "null": "null",
    "an object without anything": "{}",
    "an unknown type": '{"resultType": "x", "supportedVersions": ["2026-07-28"]}',
    "capabilities that are none": '{"supportedVersions": ["2026-07-28"], "capabilities": 3}',
}
REFUSING = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("answer", MALFORMED)
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_a_malformed_discovery_falls_back_to_the_handshake_once(answer: str, form: str):
    message = f'{{"jsonrpc": "2.0", "id": 1, "result": {MALFORMED[answer]}}}'
    body, kind = message, "application/json"
    if form == "sse":
        body, kind = f"data: {message}\n\n", "text/event-stream"
    async with ScriptedServer.local(era="legacy") as server:
        odd = Behaviour(status=200, body=body, content_type=kind)
        await server.script(Rule(method="server/discover", do=odd))
        async with closing(Client(server.url)) as client:
            assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert len(await server.requests("server/discover")) == 1
        assert len(await server.requests("initialize")) == 1


@pytest.mark.requirement("S12")
async def test_a_server_that_refuses_the_version_it_asked_for_is_asked_for_a_handshake():
    async with ScriptedServer.local(era="legacy") as server:
        odd = Behaviour(status=400, error=REFUSING)
        await server.script(Rule(method="server/discover", do=odd))
        async with closing(Client(server.url)) as client:
            await client.connect()
        assert len(await server.requests("server/discover")) == 2
        assert len(await server.requests("initialize")) == 1


LISTS = {
    "list_prompts": "prompts/list",
    "list_resources": "resources/list",
    "list_resource_templates": "resources/templates/list",
    "list_tools": "tools/list",
}
ABOUT = {"serverInfo": {"name": "bare", "version": "1"}}
BARE = {
    "legacy": ("initialize", {"protocolVersion": "2025-11-25", **ABOUT}),
    "modern": (
        "server/discover",
        {"supportedVersions": ["2026-07-28"], "resultType": "complete", **ABOUT},
    ),
}


def bare(era: Era, capabilities: Mapping[str, Any]) -> list[Rule]:
    method, said = BARE[era]
    unknown = Behaviour(error={"code": -32601, "message": "Method not found"})
    opening = Behaviour(result={**said, "capabilities": capabilities})
    return [
        Rule(method=method, do=opening),
        *(Rule(method=one, do=unknown) for one in LISTS.values()),
    ]


@pytest.mark.parametrize("connected", [True, False])
@every_era
async def test_a_list_without_its_capability_is_empty(era: Era, connected: bool):
    async with ScriptedServer.local(era=era) as server:
        await server.script(*bare(era, {}))
        async with closing(Client({"url": server.url, "mode": era})) as client:
            if connected:
                await client.connect()
            for listing in LISTS:
                assert await getattr(client, listing)() == []
        assert await server.requests("prompts/list", at_least=0) == [] or not connected


@every_era
async def test_a_list_that_was_promised_and_is_refused_is_an_error(era: Era):
    promised = {"prompts": {}, "resources": {}, "tools": {}}
    async with ScriptedServer.local(era=era) as server:
        await server.script(*bare(era, promised))
        async with closing(Client({"url": server.url, "mode": era})) as client:
            for listing in LISTS:
                assert isinstance(await outcome(getattr(client, listing)()), CallRejected)


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("name", [["x"], {"x": 1}, None, 5, b"x"], ids=str)
@pytest.mark.parametrize("listed", [True, False])
async def test_a_name_that_is_no_text_is_an_invalid_argument(name: Any, listed: bool):
    """Also once the tools are listed, and looked up by name."""
    written = io.StringIO()
    logger = logging.Logger("own")
    logger.addHandler(logging.StreamHandler(written))
    async with ScriptedServer.local() as server:
        async with closing(Client(server.url)) as client:
            client.observe(LogObserver(logger), listen=False)
            if listed:
                await client.list_tools()
            assert isinstance(await outcome(client.call_tool(name)), InvalidArguments)
            async with client.stream(name) as call:
                assert isinstance(await outcome(call.result()), InvalidArguments)
        async with Runtime.open({"kit": {"url": server.url}}) as runtime:
            assert isinstance(await outcome(runtime.call(name)), InvalidArguments)
    assert "InvalidArguments" in written.getvalue()


WITHOUT_WATCHFILES = """
    import asyncio, sys
    sys.modules["watchfiles"] = None
    from toolkeep import ConfigError, Runtime

    async def main():
        try:
            async with Runtime.open(sys.argv[1], auto_reload=True):
                return "open"
        except ConfigError as error:
            return str(error)

    print(asyncio.run(main()))
"""
FORKED_GROUP = """
    import asyncio, os, signal, sys
    from toolkeep import Client, ServerGroup, WrongLoop, Runtime

    signal.alarm(20)
    loop = asyncio.new_event_loop()
    group, runtime = ServerGroup(), Runtime({"kit": {"url": sys.argv[1]}})
    loop.run_until_complete(group.add(Client(sys.argv[1])))
    loop.run_until_complete(group.connect_all())
    loop.run_until_complete(runtime.connect())

    async def refused(work):
        try:
            await work
        except WrongLoop:
            return True
        return False

    child = os.fork()
    if not child:
        good = asyncio.run(refused(group.connect_all()))
        good &= asyncio.run(refused(group.reconnect(failed_only=False)))
        good &= asyncio.run(refused(runtime.connect()))
        good &= asyncio.run(refused(runtime.call("kit.echo", {"text": "x"})))
        asyncio.run(group.cleanup_all())
        asyncio.run(runtime.aclose())
        os._exit(0 if good else 2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(loop.run_until_complete(runtime.call("kit.echo", {"text": "parent"})).text)
    loop.run_until_complete(group.cleanup_all())
    loop.run_until_complete(runtime.aclose())
    loop.close()
"""


async def printed(program: str, argument: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), argument),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 6 * BOUND)
    return said.decode().strip()


async def test_without_watchfiles_following_fails_at_opening(tmp_path: Path):
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    said = await printed(WITHOUT_WATCHFILES, str(file))
    assert "needs the package watchfiles" in said
    assert "toolkeep[watch]" in said


@pytest.mark.requirement("S17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_forked_child_is_told_so_by_a_group_and_by_opening_a_runtime():
    async with ScriptedServer.local(era="legacy") as server:
        assert await printed(FORKED_GROUP, server.url) == "0\nparent"


@pytest.mark.requirement("O1")
async def test_servers_and_tools_that_are_left_out_are_logged_by_name(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, logger="toolkeep")
    good = {"name": "good", "inputSchema": {"type": "object"}}
    tools = [good, {"name": "bad", "inputSchema": 3}, good, {"inputSchema": {}}, 5]
    async with ScriptedServer.local() as server:
        await server.script(Rule(method="tools/list", do=Behaviour(result={"tools": tools})))
        servers = {"kit": {"url": server.url}, "gone": {"url": "http://127.0.0.1:9/mcp"}}
        async with Runtime.open(servers, backoff=None):
            pass
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    warned = "\n".join(text for level, text in said if level == "WARNING")
    assert "kit: the tool bad is skipped: it is malformed at inputSchema" in warned
    assert "kit: the tool good is skipped: it is listed twice" in warned
    assert "kit: the tool without a name is skipped" in warned
    assert "gone is skipped for now: " in warned
    told = [text for level, text in said if level == "INFO"]
    assert any(text.startswith("kit is registered with 1 tools, ") for text in told)
    assert "1/2 servers healthy, 1 tool" in told


async def test_the_log_names_only_the_first_of_very_many(caplog: pytest.LogCaptureFixture):
    tools = [{"name": f"bad{number}", "inputSchema": 3} for number in range(500)]
    async with ScriptedServer.local() as server:
        await server.script(Rule(method="tools/list", do=Behaviour(result={"tools": tools})))
        async with closing(Client(server.url)) as client:
            assert await client.list_tools() == []
    assert sum("is skipped" in record.getMessage() for record in caplog.records) == 20
    assert "480 more tools are skipped" in caplog.text
