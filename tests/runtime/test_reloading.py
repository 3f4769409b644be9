"""Edits of the configuration: what is told, what is refused, and what a runtime makes of them."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime._life import (
    Ear,
    config_of,
    ended,
    failure_of,
    sessions_in,
    write,
)
from toolkeep import CallContext, ConfigError, Runtime, ServerUnavailable
from toolkeep.events import Reloaded, ReloadFailed
from toolkeep.testing import ScriptedServer


@pytest.mark.requirement("G6")
@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "",
        '{"mcpServers": {"one": {}}}',
        '{"mcpServers": {"one": {"url": "${NO_SUCH_VARIABLE}"}}}',
    ],
)
async def test_an_edit_that_cannot_be_read_is_told_and_changes_nothing(tmp_path: Path, bad: str):
    path = tmp_path / "mcp.json"
    async with ScriptedServer.local(era="legacy") as server:
        write(path, config_of(one=server, two=server))
        async with Runtime.open(path, auto_reload=True) as runtime:
            ear, before = Ear(runtime), runtime.configuration
            write(path, bad)
            assert isinstance((await ear.first(ReloadFailed)).error, ConfigError)
            assert isinstance(await failure_of(runtime.reload()), ConfigError)
            assert runtime.configuration is before
            assert (await runtime.call("two.echo", {"text": "a"})).text == "a"
            assert len(await server.requests("initialize")) == 2
            write(path, config_of(one=server))
            assert (await ear.first(Reloaded)).removed == ("two",)


@pytest.mark.requirement("G6")
async def test_an_edit_that_cannot_be_applied_changes_nothing(tmp_path: Path):
    """It can be read, and one of its servers names a file of prompts that is not there."""
    path = tmp_path / "mcp.json"
    async with ScriptedServer.local(era="legacy") as server:
        write(path, config_of(one=server, two=server, three=server))
        async with Runtime.open(path) as runtime:
            missing = {**server.spec, "prompts_file": str(tmp_path / "none.md")}
            write(path, config_of(two={**server.spec, "tags": ["new"]}, three=missing))
            assert isinstance(await failure_of(runtime.reload()), ConfigError)
            assert [one.name for one in runtime.servers] == ["one", "two", "three"]
            assert (await runtime.call("one.echo", {"text": "a"})).text == "a"
            assert len(await server.requests("initialize")) == 3
            write(path, config_of(two={**server.spec, "tags": ["new"]}))
            await runtime.reload()
            assert runtime.catalogue.tool("two.echo").tags == {"new"}
            assert [one.name for one in runtime.servers] == ["two"]


@pytest.mark.requirement("G6")
async def test_a_server_that_does_not_open_after_an_edit_takes_the_place_and_is_tried_again():
    async with ScriptedServer.local() as server, ScriptedServer.local() as gone:
        nowhere = gone.spec
        await gone.__aexit__(None, None, None)
        async with Runtime.open(config_of(one=server), backoff=None) as runtime:
            await runtime.reload(config_of(one=nowhere, two=server))
            error = await failure_of(runtime.call("one.echo", {"text": "a"}, timeout=1.0))
            assert isinstance(error, ServerUnavailable)
            assert error.server == "one"
            assert (await runtime.call("two.echo", {"text": "a"})).text == "a"
            await runtime.reload(config_of(one=server))
            assert (await runtime.call("one.echo", {"text": "a"})).text == "a"


@pytest.mark.requirement("G6")
async def test_a_strict_runtime_keeps_what_it_has_when_an_edit_brings_what_cannot_be_opened():
    async with ScriptedServer.local() as server, ScriptedServer.local() as gone:
        nowhere = gone.spec
        await gone.__aexit__(None, None, None)
        async with Runtime.open(config_of(one=server), strict=True) as runtime:
            error = await failure_of(runtime.reload(config_of(one=nowhere)))
            assert isinstance(error, ServerUnavailable)
            assert (await runtime.call("one.echo", {"text": "a"})).text == "a"
            await runtime.reload(config_of(one={**server.spec, "tags": ["again"]}))
            assert runtime.catalogue.tool("one.echo").tags == {"again"}


async def test_the_order_is_that_of_the_configuration():
    async with (
        ScriptedServer.local() as server,
        Runtime.open(config_of(b=server, a=server)) as runtime,
    ):
        await runtime.reload(config_of(c=server, a=server, b=server))
        assert [one.name for one in runtime.servers] == ["c", "a", "b"]
        edit = await runtime.reload(config_of(a=server, b=server, c=server))
        assert [one.name for one in runtime.servers] == ["a", "b", "c"]
        assert not edit


@pytest.mark.requirement("G6")
async def test_edits_at_once_take_turns():
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime.open(config_of(one=server)) as runtime,
    ):
        edits = [
            config_of(one={**server.spec, "tags": [f"t{n}"]}, **{f"s{n}": server}) for n in range(6)
        ]
        done = await ended(*(asyncio.create_task(runtime.reload(edit)) for edit in edits))
        assert [one for one in done if isinstance(one, BaseException)] == []
        assert [one.name for one in runtime.servers] == ["one", "s5"]
        assert runtime.catalogue.tool("one.echo").tags == {"t5"}


async def test_an_edit_that_is_cancelled_leaves_the_runtime_in_use():
    async with (
        ScriptedServer.local() as server,
        ScriptedServer.local(era="legacy", initialize_delay=60) as slow,
        Runtime.open(config_of(one=server)) as runtime,
    ):
        edit = asyncio.create_task(runtime.reload(config_of(one=server, two=slow)))
        await slow.requests("initialize", at_least=1)
        edit.cancel()
        await ended(edit)
        assert edit.cancelled()
        assert (await runtime.call("one.echo", {"text": "a"})).text == "a"
        await runtime.reload(config_of(one=server, three=server))
        assert (await runtime.call("three.echo", {"text": "a"})).text == "a"
        assert [one.name for one in runtime.servers] == ["one", "three"]


async def test_by_hand_and_by_edit_is_the_same_world():
    """What was added or removed by hand stays so until an edit says otherwise."""
    async with (
        ScriptedServer.local() as server,
        Runtime.open(config_of(one=server, two=server)) as runtime,
    ):
        await runtime.remove("one")
        await runtime.add({"name": "three", **server.spec})
        await runtime.reload(config_of(two=server, three={**server.spec, "tags": ["edit"]}))
        assert [one.name for one in runtime.servers] == ["two", "three"]
        assert runtime.catalogue.tool("three.echo").tags == {"edit"}


async def test_sessions_of_principals_survive_an_edit_that_is_not_about_them():
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime.open(config_of(one=server, two=server)) as runtime,
    ):
        ada = CallContext(principal="ada")
        await runtime.call("one.record", {"key": "before"}, context=ada)
        await runtime.reload(config_of(one=server, two={**server.spec, "tags": ["x"]}))
        await runtime.call("one.record", {"key": "after"}, context=ada)
        seen = await server.requests(tool="record")
        assert len(sessions_in(seen)) == 1
