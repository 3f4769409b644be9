"""What a runtime counts, and whom it tells: figures by server and tool, observers, logs, traces."""

import asyncio
import json
import logging
from collections.abc import Awaitable

import pytest

from tests.runtime._life import LONG, PATIENCE, Ear, config_of, ended, failure_of
from tests.telemetry.helpers_otel import Telescope
from toolkeep import CallContext, CallResult, Runtime
from toolkeep.events import (
    CallEvent,
    Completed,
    Connected,
    Event,
    ServerAdded,
    ServerRemoved,
    Started,
)
from toolkeep.telemetry import LogObserver
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ADA = CallContext(principal="ada", headers={"authorization": "Bearer s3cr3t-t0ken"})


def doing(work: Awaitable[CallResult]) -> "asyncio.Task[CallResult]":
    return asyncio.ensure_future(work)


@pytest.mark.requirement("O1")
async def test_calls_are_counted_by_server_and_tool_and_by_how_they_went():
    async with ScriptedServer.local() as kit, ScriptedServer.stdio() as program:
        refusal = Behaviour(error={"code": -32000, "message": "no"})
        await kit.script(Rule(do=refusal, tool="record", times=1))
        async with Runtime.open(config_of(kit=kit, program=program)) as runtime:
            for context in (None, ADA):
                await runtime.call("kit.echo", {"text": "a"}, context=context)
            await runtime.call("program.echo", {"text": "a"})
            await runtime.call("kit.fail", {"message": "no"})
            await failure_of(runtime.call("kit.record"))
            await failure_of(runtime.call("kit.slow", {"seconds": LONG}, timeout=0.2))
            given_up = doing(runtime.call("kit.slow", {"seconds": LONG}))
            await kit.requests(tool="slow", at_least=2)
            assert runtime.servers[0].in_flight == runtime.stats.server("kit").in_flight == 1
            given_up.cancel()
            await ended(given_up)

            figures = runtime.stats
            total, echo, slow = (
                figures.server("kit"),
                figures.tool("kit", "echo"),
                figures.tool("kit", "slow"),
            )
            assert (total.calls, total.in_flight, total.tool_errors) == (6, 0, 1)
            assert total.errors == {"CallRejected/answered": 1, "CallTimedOut/unknown": 1}
            assert (total.failed, total.cancelled) == (2, 1)
            assert total.last_error == "CallTimedOut/unknown"
            assert total.latency.count == 3, "those that brought a result"
            assert (echo.calls, echo.latency.count, echo.errors) == (2, 2, {})
            assert (slow.calls, slow.cancelled, slow.latency.count) == (2, 1, 0)
            for part in (echo.latency.p50, echo.latency.p95, echo.latency.p99, echo.latency.max):
                assert part is not None
                assert 0 < part < PATIENCE
            assert figures.server("program").calls == runtime.servers[1].stats.calls == 1
            assert json.loads(json.dumps(figures.as_dict()))["kit"]["tools"]["echo"]["calls"] == 2


@pytest.mark.requirement("O1")
async def test_a_call_that_was_replayed_counts_once_and_its_attempts_all():
    async with ScriptedServer.local() as kit:
        await kit.script(Rule(do=Behaviour(drop="after_run"), tool="record_read_only", times=2))
        async with Runtime.open(config_of(kit=kit)) as runtime:
            await runtime.call("kit.record_read_only")
            found = runtime.stats.tool("kit", "record_read_only")
            assert (found.calls, found.attempts, found.retries) == (1, 3, 2)


async def test_what_comes_to_nothing_before_there_is_a_tool_counts_for_no_server():
    async with ScriptedServer.local() as kit, Runtime.open(config_of(kit=kit)) as runtime:
        await failure_of(runtime.call("kit.nonesuch"))
        assert runtime.stats.server("kit").calls == 0
        await failure_of(runtime.call("kit.echo", {}))
        assert runtime.stats.tool("kit", "echo").errors == {"InvalidArguments/not sent": 1}


@pytest.mark.requirement("O1", "G6")
async def test_the_figures_of_a_server_that_was_removed_are_forgotten_and_of_a_changed_one_kept():
    async with (
        ScriptedServer.local() as kit,
        Runtime.open(config_of(kit=kit, other=kit)) as runtime,
    ):
        ear = Ear(runtime)
        for name in ("kit", "other"):
            await runtime.call(f"{name}.record")
        held = doing(runtime.call("other.slow", {"seconds": 60}))
        await kit.requests(tool="slow", at_least=1)
        await runtime.remove("other")
        await kit.skip_delays()
        assert (await held).text == "done"
        assert runtime.stats.server("other").calls == 0
        assert "other" not in runtime.stats.as_dict()
        assert [one.tool for one in ear.of(Completed, "other")] == ["record", "slow"]
        await runtime.reload(config_of(kit={**kit.spec, "tags": ["new"]}))
        assert runtime.stats.tool("kit", "record").calls == 1
        await runtime.add({"name": "other", **kit.spec})
        await runtime.call("other.record")
        assert runtime.stats.server("other").calls == 1


@pytest.mark.requirement("O1")
async def test_observers_hear_of_all_servers_until_their_handle_is_closed():
    async with ScriptedServer.local() as kit, ScriptedServer.stdio() as program:
        runtime = Runtime(config_of(kit=kit, program=program))
        ear = Ear(runtime)
        async with runtime:
            assert {one.server for one in ear.of(Connected)} == {"kit", "program"}
            assert {one.server for one in ear.of(ServerAdded)} == {"kit", "program"}
            for name in ("kit", "program"):
                await runtime.call(f"{name}.record", context=ADA)
            told = [(type(one), one.server) for one in ear.of(CallEvent)]
            expected = [
                (kind, name) for name in ("kit", "program") for kind in (Started, Completed)
            ]
            assert told == expected
            ear.handle.close()
            ear.handle.close()
            before = len(ear.events)
            later = Ear(runtime)
            await runtime.call("kit.record")
            assert len(ear.events) == before
            assert [type(one) for one in later.of(CallEvent)] == [Started, Completed]
        assert {one.server for one in later.of(ServerRemoved)} == {"kit", "program"}
        async with runtime:
            await runtime.call("kit.record")
        assert len(later.of(Started)) == 2, "a handle outlives the closing"


@pytest.mark.requirement("O1", "H6")
async def test_events_are_plain_data_and_hold_no_credentials():
    async with ScriptedServer.local(era="legacy", api_key="s3cr3t-t0ken") as kit:
        locked = {**kit.spec, "api_key": "s3cr3t-t0ken"}
        runtime, told = Runtime(config_of(kit=locked)), list[Event]()
        runtime.observe(told.append)
        async with runtime:
            await runtime.call("kit.record", context=ADA)
            await failure_of(runtime.call("kit.nonesuch", context=ADA))
            await runtime.reload(
                config_of(kit={**kit.spec, "api_key": "s3cr3t-t0ken", "tags": ["a"]})
            )
        for event in told:
            assert "s3cr3t" not in event.to_json()
            assert "s3cr3t" not in repr(event)
        assert {"catalogue", "reloaded"} <= {event.kind[:9] for event in told}


@pytest.mark.requirement("O1", "H6")
async def test_the_log_observer_writes_of_all_servers_and_no_secrets(
    caplog: pytest.LogCaptureFixture,
):
    async with ScriptedServer.local() as kit, ScriptedServer.stdio() as program:
        runtime = Runtime(config_of(kit=kit, program=program))
        runtime.observe(LogObserver())
        with caplog.at_level(logging.DEBUG, logger="toolkeep"):
            async with runtime:
                await runtime.call("kit.echo", {"text": "what-is-in-it"}, context=ADA)
                await runtime.call("program.echo", {"text": "what-is-in-it"})
                await failure_of(runtime.call("kit.slow", {"seconds": LONG}, timeout=0.2))
        lines = [one.getMessage() for one in caplog.records if hasattr(one, "toolkeep")]
        assert any("kit" in line and "echo" in line for line in lines)
        assert any("program" in line and "echo" in line for line in lines)
        assert any("slow" in line and "CallTimedOut" in line for line in lines)
        assert "s3cr3t" not in caplog.text
        assert "what-is-in-it" not in "\n".join(lines)


@pytest.mark.requirement("O1")
async def test_open_telemetry_has_a_span_for_each_call_and_its_context_is_sent_along():
    telescope = Telescope()
    async with ScriptedServer.local() as kit, ScriptedServer.stdio() as program:
        runtime = Runtime(config_of(kit=kit, program=program))
        runtime.observe(telescope.observer())
        async with runtime:
            with telescope.tracer.start_as_current_span("task") as task:
                for name in ("kit", "program"):
                    await runtime.call(f"{name}.record", context=ADA)
                await failure_of(runtime.call("kit.nonesuch"))
        spans = telescope.calls()
        assert [span.name for span in spans[:2]] == ["tools/call record"] * 2
        parent = task.get_span_context()
        assert all(span.parent and span.parent.span_id == parent.span_id for span in spans)
        (sent,) = await kit.requests(tool="record")
        assert f"{parent.trace_id:032x}" in sent.body["params"]["_meta"]["traceparent"]
        assert telescope.points("mcp.client.operation.duration")
        addresses = {str((span.attributes or {}).get("server.port")) for span in spans[:2]}
        assert str(kit.port) in addresses, "the observer knows where each server is"
    telescope.close()
