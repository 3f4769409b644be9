"""A server that cannot list what it has spoils nothing else, and comes when it can."""

import logging
from typing import Any

import pytest

from tests.runtime._catalogue import (
    PROMPTS_CHANGED,
    Era,
    both_eras,
    listed,
    names,
    opened,
    server,
    tool,
    when,
)
from toolkeep import RemoteProtocolError, ServerUnavailable, ToolkeepError
from toolkeep.testing import ScriptedServer

SLOW = {"connect_timeout": 1.0, "backoff": None}


async def good_beside(kit: ScriptedServer, **settings: Any) -> BaseException | None:
    """Open it beside a good one; what the bad one is not connected for."""
    async with (
        ScriptedServer.local() as good,
        opened(server(kit, "bad", **settings), server(good, "good"), **SLOW) as (run, _),
    ):
        assert (await run.call("good.echo", {"text": "hi"})).text == "hi"
        assert run.catalogue.servers == ("bad", "good")
        assert not [one for one in run.catalogue if one.server == "bad"]
        assert run.catalogue.stale == ("bad",)
        assert run.summary() == "1/2 servers healthy, 14 tools"
        with pytest.raises(ToolkeepError) as caught:
            await run.call("bad.echo", {"text": "hi"}, timeout=1)
        assert getattr(caught.value, "server", None) == "bad"
        return run.servers[0].error


@both_eras
@pytest.mark.requirement("T1")
async def test_of_pages_that_turn_in_a_circle_the_tools_up_to_there_are_used(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer.local(era=era) as kit:
        page = listed(tool("again"), nextCursor="again")
        await kit.script(when("tools/list", result=page))
        async with opened(server(kit, "bad")) as (run, _):
            assert names(run.catalogue) == ["bad.again"]
    assert "bad: the result of tools/list repeats a cursor" in caplog.text


@both_eras
@pytest.mark.requirement("T1")
async def test_a_strict_runtime_refuses_pages_that_turn_in_a_circle(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit:
        page = listed(tool("again"), nextCursor="again")
        await kit.script(when("tools/list", result=page))
        with pytest.raises(RemoteProtocolError, match="repeats a cursor"):
            async with opened(server(kit, "bad"), strict=True):
                pass


@both_eras
@pytest.mark.parametrize(
    "trouble",
    [{"status": 500}, {"hang": True}, {"error": {"code": -32603, "message": "broken"}}],
    ids=["500", "hangs", "error"],
)
@pytest.mark.requirement("T1", "O3")
async def test_a_server_that_cannot_list_its_tools_spoils_nothing_else(
    era: Era, trouble: dict[str, Any]
) -> None:
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("tools/list", **trouble))
        error = await good_beside(kit, timeouts={"connect": 0.5, "call": 0.5})
        assert isinstance(error, ToolkeepError | TimeoutError)


@both_eras
async def test_a_server_that_cannot_list_is_tried_again_and_comes(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("tools/list", times=1, error={"code": -32603, "message": "not yet"}))
        async with opened(server(kit)) as (run, diary):
            await diary.until(lambda: len(run.catalogue) == 14)
            assert run.summary() == "1/1 servers healthy, 14 tools"


@both_eras
@pytest.mark.requirement("T1")
async def test_a_server_that_knows_no_tools_has_none_and_is_healthy(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit:
        unknown = {"code": -32601, "message": "Method not found"}
        await kit.script(when("tools/list", error=unknown))
        async with opened(server(kit)) as (run, _):
            assert (len(run.catalogue), run.catalogue.stale) == (0, ())
            assert names(run.catalogue.prompts) == ["kit.greet"]
            assert run.summary() == "1/1 servers healthy, 0 tools"


@both_eras
@pytest.mark.parametrize("trouble", ["error", "circle", "no list"])
@pytest.mark.requirement("T1", "T9")
async def test_prompts_that_fail_to_list_leave_the_tools(
    era: Era, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    how: dict[str, Any] = {
        "error": {"error": {"code": -32603, "message": "broken"}},
        "circle": {"result": {**hints, "prompts": [], "nextCursor": "again"}},
        "no list": {"result": {**hints, "prompts": None}},
    }[trouble]
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("prompts/list", times=2 if trouble == "circle" else 1, **how))
        with caplog.at_level(logging.WARNING, "toolkeep"):
            async with opened(server(kit)) as (run, diary):
                assert len(run.catalogue) == 14
                assert not run.catalogue.stale
                assert names(run.catalogue.prompts) == []
                assert names(run.catalogue.resources) == ["kit.kit://notes"]
                assert any("prompts" in one.getMessage() for one in caplog.records)
                await kit.notify(PROMPTS_CHANGED)
                await diary.until(lambda: names(run.catalogue.prompts) == ["kit.greet"])


@both_eras
async def test_a_first_call_of_a_server_that_never_lists_ends_with_its_deadline(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("tools/list", hang=True))
        brief = {"connect": 0.5, "call": 0.5}
        async with opened(server(kit, timeouts=brief), **SLOW) as (run, _):
            with pytest.raises(ServerUnavailable) as caught:
                await run.call("kit.echo", {"text": "hi"}, timeout=0.3)
            assert caught.value.server == "kit"
            assert await kit.requests("tools/call") == []
