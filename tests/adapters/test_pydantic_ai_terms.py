"""What a Pydantic AI agent is shown of its tools and their results, and mistakes in asking."""

import json
import subprocess
import sys
from typing import Any, cast

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import Toolset
from pydantic_ai.messages import BinaryContent, ModelMessagesTypeAdapter

from tests.adapters._pydantic_ai import Script, run
from tests.adapters._servers import eras, house, wait_for
from toolkeep import ConfigError, Runtime, ServerUnavailable, UnknownTool
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("A4")

# -- definitions and results ----------------------------------------------------------------------

FIND = {
    "name": "find",
    "description": "Finds things.",
    "inputSchema": {"type": "object", "properties": {"limit": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True},
    "_meta": {"tests/a": 1},
}


@eras
async def test_what_comes_and_goes_is_seen_at_the_next_turn(era: str):
    async with house(era) as (kit, runtime):

        async def change() -> None:
            await kit.set_tools([FIND], built_in=False)
            await runtime.refresh("kit")

        script = Script([("kit__echo", {"text": "a"})], change, [("kit__echo", {})], "Done.")
        await run(script, RuntimeToolset(runtime))
        assert "kit__echo" in script.offered[0]
        assert list(script.offered[-1]) == ["kit__find"]
        assert script.outcomes["2"][0] == "retried"


async def test_a_definition_says_what_the_server_said_on_copies():
    async with house(spec={"tags": ["search"]}) as (kit, runtime):
        await kit.set_tools([FIND], built_in=False)
        await runtime.refresh("kit")
        script = Script([("kit__find", {"limit": None})], "Done.")
        await run(script, RuntimeToolset(runtime, id="tools"))
        shown = script.offered[0]["kit__find"]
        shown.parameters_json_schema["properties"].clear()
        tool = runtime.catalogue.tool("kit.find")
        assert tool.input_schema == FIND["inputSchema"]
        assert shown.description == "Finds things."
        assert shown.timeout is None
        assert shown.toolset_id == "tools"
        assert shown.metadata == {
            "server": "kit",
            "tool": "find",
            "title": "find",
            "tags": ["search"],
            "annotations": {"readOnlyHint": True},
            "meta": {"tests/a": 1},
        }
        assert json.loads(script.outcomes["1"][1]) == {}, "the null is not sent"


async def test_each_block_of_a_result_reaches_the_model_and_a_history_can_store_it():
    async with house() as (_, runtime):
        script = Script([("kit__content", {})], "Done.")
        await run(script, RuntimeToolset(runtime))
    part = script.returns["1"]
    text, image, audio, link, embedded = cast("list[Any]", part.content)
    assert (text, embedded) == ("some text", "a note")
    assert isinstance(image, BinaryContent)
    assert isinstance(audio, BinaryContent)
    assert (image.media_type, audio.media_type) == ("image/png", "audio/wav")
    assert "kit://notes" in link
    assert part.metadata == {"server": "kit", "tool": "content", "meta": {"kit/whole": True}}
    stored = ModelMessagesTypeAdapter.dump_json(script.messages)
    assert ModelMessagesTypeAdapter.validate_json(stored) == script.messages


async def test_pydantic_ai_s_own_wrappers_work_on_it():
    async with house() as (kit, runtime):
        toolset = RuntimeToolset(runtime).filtered(lambda ctx, tool: "fail" in tool.name)
        script = Script([("my_kit__fail", {"message": ""})], "Done.")
        await run(script, toolset.prefixed("my"))
        assert list(script.offered[0]) == ["my_kit__fail"]
        assert script.outcomes["1"][0] == "failed"
        assert await kit.executions("fail") == 1


async def test_in_a_capability_it_works_without_progress(caplog: pytest.LogCaptureFixture):
    """Pydantic AI lets a capability emit events of its own only."""
    async with house() as (_, runtime):
        script = Script([("kit__steps", {"count": 1})], "Done.")
        agent: Agent[Any, str] = Agent(
            script.model, capabilities=[Toolset(RuntimeToolset(runtime))]
        )
        assert (await wait_for(agent.run("Go on."))).output == "Done."
        assert script.outcomes == {"1": ("success", "1 steps")}
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# -- mistakes -------------------------------------------------------------------------------------


async def test_a_runtime_that_is_not_open_is_an_error_and_not_an_empty_list():
    async with ScriptedServer.local() as kit:
        with pytest.raises(ServerUnavailable):
            await run(Script("never"), RuntimeToolset(Runtime({"kit": kit.spec})))


async def test_a_name_that_nobody_offers_is_an_error():
    async with house() as (_, runtime):
        with pytest.raises(UnknownTool):
            await run(Script("never"), RuntimeToolset(runtime, ["echo", "ecko"]))


def test_what_cannot_be_meant_is_refused_at_once():
    for mistake in ({"errors": "ignore"}, {"context": "ada"}):
        with pytest.raises(ConfigError):
            RuntimeToolset(Runtime({}), **mistake)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError):
        RuntimeToolset(["echo"])  # pyright: ignore[reportArgumentType]


def test_without_pydantic_ai_the_error_names_the_extra():
    program = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from toolkeep import ConfigError\n"
        "try: import toolkeep.adapters.pydantic_ai\n"
        "except ConfigError as error: print(error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "`pydantic-ai`" in done.stdout
