"""A server's journal outlives it, and a call may say what is done to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkeep import CallOutcomeUnknown, Client
from toolkeep.testing import ScriptedServer


def lines_of(journal: Path) -> list[Any]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


async def test_what_a_killed_process_ran_is_in_its_journal(tmp_path: Path):
    journal = tmp_path / "journal"
    async with (
        ScriptedServer.spawn(journal=str(journal)) as server,
        Client({"url": server.url, "headers": {"x-who": "ada"}}) as client,
    ):
        await client.call_tool("record", {"key": "before"})
        await server.restart()
        await client.call_tool("record", {"key": "after"})
        assert await server.ledger() == {}
    ran = lines_of(journal)
    assert [line[:3] for line in ran] == [["ran", "before", "record"], ["ran", "after", "record"]]
    assert [line[4] for line in ran] == [{"x-who": "ada"}] * 2


async def test_the_behaviour_of_a_call_is_applied_once(tmp_path: Path):
    journal = tmp_path / "journal"
    behaviour = {"drop": "after_run"}
    async with (
        ScriptedServer.local(journal=str(journal), call_behaviours=True) as server,
        Client(server.url) as client,
    ):
        await client.list_tools()
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("record", {"key": "once", "behaviour": behaviour})
        result = await client.call_tool(
            "record_idempotent", {"key": "twice", "behaviour": behaviour}
        )
        assert result.attempts == 2
    ran = [line[:2] for line in lines_of(journal)]
    once = [["behaviour", "once"], ["ran", "once"]]
    assert ran == [*once, ["behaviour", "twice"], ["ran", "twice"], ["ran", "twice"]]


async def test_without_the_option_a_behaviour_is_an_argument_like_any_other():
    async with ScriptedServer.local() as server, Client(server.url) as client:
        await client.call_tool("record", {"key": "plain", "behaviour": {"drop": "after_run"}})
        assert await server.executions("plain") == 1


async def test_a_program_keeps_a_journal_too(tmp_path: Path):
    journal = tmp_path / "journal"
    async with ScriptedServer.stdio(journal=str(journal), call_behaviours=True) as server:
        async with Client(server.spec) as client:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "k", "behaviour": {"drop": "after_run"}})
        assert await server.starts() == 1
    (applied, ran) = lines_of(journal)
    assert applied == ["behaviour", "k"]
    assert ran[:3] == ["ran", "k", "record"]


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_server_that_records_nothing_answers_all_the_same(transport: str):
    over = ScriptedServer.stdio if transport == "stdio" else ScriptedServer.local
    async with over(record=False) as server, Client(server.spec) as client:
        await client.call_tool("record", {"key": "k"})
        assert await server.requests() == []
        assert await server.executions("k") == 1
