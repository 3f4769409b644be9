"""Prompts, resources and completions through one runtime; the user's own prompts and guides."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime._catalogue import (
    PROMPTS_CHANGED,
    Era,
    both_eras,
    eventually,
    names,
    opened,
    server,
    tool,
    users_of,
    when,
)
from toolkeep import (
    CallContext,
    CallRejected,
    ConfigError,
    InvalidArguments,
    NotOffered,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
)
from toolkeep.events import Changed
from toolkeep.testing import ScriptedServer

ALICE = CallContext(principal="alice", headers={"x-user": "alice"})
HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}

TWO_PROMPTS = """
[prompts.review]
description = "Looks for mistakes"
arguments = ["language", {name = "tone", required = false}]
text = "Review this {{language}} code. {{tone}}{{unknown}}"

[prompts.greet]
text = "The user's own greeting."
"""


def text_of(answer: Any) -> str:
    return "\n".join(message.content.text for message in answer.messages)


@both_eras
@pytest.mark.requirement("T9", "T1")
async def test_prompts_are_listed_and_fetched_with_their_arguments(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, _):
        assert names(run.catalogue.prompts) == ["kit.greet"]
        (argument,) = run.catalogue.prompt("greet").definition.arguments or []
        assert (argument.name, argument.required) == ("name", True)
        for name in ("greet", "kit.greet"):
            assert text_of(await run.get_prompt(name, {"name": "Ada"})) == "Greet Ada."
        assert text_of(await run.get_prompt("greet", {"name": "A"}, context=ALICE)) == "Greet A."
        asked = await kit.requests("prompts/get")
        assert users_of(asked) == ["", "", "alice"]
        assert asked[0].session_id != asked[2].session_id or era == "modern"


@both_eras
@pytest.mark.requirement("T9")
async def test_prompts_of_two_servers_have_names_like_tools(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as one,
        ScriptedServer.local(era=era) as other,
        opened(server(one, "one"), server(other, "other")) as (run, _),
    ):
        assert names(run.catalogue.prompts) == ["one.greet", "other.greet"]
        with pytest.raises(UnknownPrompt) as ambiguous:
            await run.get_prompt("greet", {"name": "Ada"})
        assert ambiguous.value.suggestions == ("one.greet", "other.greet")
        with pytest.raises(UnknownPrompt) as unknown:
            await run.get_prompt("one.gret")
        assert unknown.value.suggestions[0] == "one.greet"
        await run.get_prompt("other.greet", {"name": "Ada"})
        assert await one.requests("prompts/get") == []


@both_eras
@pytest.mark.requirement("T5", "T9")
async def test_other_prompts_are_a_change(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (_, diary):
        told, answer = len(diary.changes), {**HINTS, "prompts": [{"name": "other"}]}
        await kit.script(when("prompts/list", result=answer))
        await kit.notify(PROMPTS_CHANGED)
        await diary.until(lambda: len(diary.changes) > told)
        delta = diary.changes[told].changes.prompts
        assert (delta.added, delta.removed) == (("kit.other",), ("kit.greet",))
        assert not diary.changes[told].changes.tools


@both_eras
@pytest.mark.requirement("T9")
async def test_a_prompts_file_stands_beside_what_the_server_has(era: Era, tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text(TWO_PROMPTS)
    async with (
        ScriptedServer.local(era=era) as kit,
        opened(server(kit, prompts_file=str(file))) as (run, _),
    ):
        assert names(run.catalogue.prompts) == ["kit.greet", "kit.review"]
        said = text_of(await run.get_prompt("review", {"language": "{{tone}} C"}, context=ALICE))
        assert said == "Review this {{tone}} C code. {{unknown}}"
        # The server's own of the same name counts.
        assert text_of(await run.get_prompt("greet", {"name": "Ada"})) == "Greet Ada."
        for wrong in (None, {}, {"language": "C", "colour": "red"}):
            with pytest.raises(InvalidArguments):
                await run.get_prompt("review", wrong)
        assert len(await kit.requests("prompts/get")) == 1


@both_eras
@pytest.mark.requirement("T9")
async def test_a_folder_stands_in_for_a_server_that_has_no_prompts(
    era: Era, tmp_path: Path
) -> None:
    (tmp_path / "daily.md").write_text("Say what happened on {{day}}.")
    (tmp_path / "weekly.md").write_text("---\ndescription: A week\n---\nSum it up.")
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("prompts/list", error={"code": -32601, "message": "unknown"}))
        async with opened(server(kit, prompts_file=str(tmp_path))) as (run, _):
            assert names(run.catalogue.prompts) == ["kit.daily", "kit.weekly"]
            said = text_of(await run.get_prompt("daily", {"day": "Monday"}))
            assert said == "Say what happened on Monday."
            assert run.catalogue.prompt("weekly").definition.description == "A week"
            assert await kit.requests("prompts/get") == []


async def test_a_prompts_file_that_cannot_be_read_is_said_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    async with ScriptedServer.local() as kit:
        with pytest.raises(ConfigError) as caught:
            async with opened(server(kit, prompts_file=str(tmp_path / "none.toml"))):
                pass
        assert caught.value.server == "kit"
        assert await kit.connections() == 0


@both_eras
@pytest.mark.requirement("T9")
async def test_guides_are_appended_to_descriptions(era: Era, tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text('[prompts.careful]\ntext = "Think twice."\n[prompts.calm]\ntext = "Slowly."')
    guides = {
        "echo": "Only for tests.",
        "e*": "careful",
        "add": "*",
        "slow": "house_rules",
        "big": "nobody_has_this",
        "fail": "greet",
    }
    rules = {"name": "house_rules"}
    greet = {"name": "greet", "arguments": [{"name": "name", "required": True}]}
    said = {"role": "user", "content": {"type": "text", "text": "Rules of the house."}}
    async with ScriptedServer.local(era=era) as kit:
        await kit.script(when("prompts/list", result={**HINTS, "prompts": [rules, greet]}))
        await kit.script(when("prompts/get", result={"resultType": "complete", "messages": [said]}))
        settings = {"prompts_file": str(file), "guides": guides}
        async with opened(server(kit, **settings)) as (run, _):
            described = {one.tool: one.description for one in run.catalogue}
            assert described["echo"] == "Say it again.\n\nOnly for tests.\n\nThink twice."
            assert described["add"] == "Add two numbers.\n\nThink twice.\n\nSlowly."
            assert described["slow"] == "Takes its time.\n\nRules of the house."
            assert described["big"] == "A long answer."
            assert described["fail"] == "Fails as a tool fails."  # its prompt needs an argument
            plain = run.catalogue.tool("kit.echo").definition.description
            assert plain == "Say it again."
            view = await run.catalogue_for(ALICE)
            assert {one.tool: one.description for one in view} == described
            assert "kit.slow" in names(run.catalogue.search("rules of the house"))


@both_eras
@pytest.mark.requirement("T9", "T1")
async def test_resources_are_listed_and_read_where_they_are(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as one,
        ScriptedServer.local(era=era) as other,
    ):
        await one.set_resource("kit://mine", "of one")
        async with opened(server(one, "one"), server(other, "other")) as (run, _):
            uris = [(found.server, found.uri) for found in run.catalogue.resources]
            assert uris == [
                *(("one", "kit://notes"), ("one", "kit://mine")),
                ("other", "kit://notes"),
            ]
            templates = [found.uri_template for found in run.catalogue.templates]
            assert templates == ["kit://notes/{day}"] * 2
            assert content(await run.read_resource("kit://mine")) == "of one"
            with pytest.raises(UnknownResource):
                await run.read_resource("kit://notes")
            with pytest.raises(UnknownResource):
                await run.read_resource("kit://notes/monday")
            found = await run.read_resource("kit://notes/monday", server="other", context=ALICE)
            assert content(found) == "a note"
            assert users_of(await other.requests("resources/read")) == ["alice"]
            assert len(await one.requests("resources/read")) == 1
            with pytest.raises(CallRejected):
                await run.read_resource("other://x", server="one")
            with pytest.raises(UnknownServer):
                await run.read_resource("kit://notes", server="nobody")


def content(answer: Any) -> str:
    return answer.contents[0].text


@both_eras
@pytest.mark.requirement("T9")
async def test_a_subscription_is_told_until_it_is_ended(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):

        def told() -> list[str | None]:
            changes = [event for event in diary.events if isinstance(event, Changed)]
            return [event.uri for event in changes if event.what == "resource"]

        await run.subscribe("kit://notes", server="kit")
        await kit.resource_updated("kit://notes")
        await diary.until(lambda: told() == ["kit://notes"])
        await run.unsubscribe("kit://notes", server="kit")
        await eventually(lambda: nobody_subscribes(kit))
        with pytest.raises(UnknownServer):
            await run.subscribe("kit://notes", server="nobody")


async def nobody_subscribes(kit: ScriptedServer) -> bool:
    return not any((await kit.subscriptions()).values())


@both_eras
@pytest.mark.requirement("T9")
async def test_completions_of_prompts_and_templates(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, _):
        for name in ("greet", "kit.greet"):
            assert (await run.complete(name, "name", "A")).values == ["Ada", "Alan"]
        found = await run.complete(
            "kit://notes/{day}", "day", "G", context=ALICE, arguments={"month": "May"}
        )
        assert found.values == ["Grace"]
        asked = await kit.requests("completion/complete")
        assert users_of(asked) == ["", "", "alice"]
        refs = [one.body["params"]["ref"] for one in asked]
        assert refs[0] == refs[1] == {"type": "ref/prompt", "name": "greet"}
        assert refs[2] == {"type": "ref/resource", "uri": "kit://notes/{day}"}
        assert asked[2].body["params"]["context"] == {"arguments": {"month": "May"}}
        with pytest.raises(NotOffered):
            await run.complete("kit.gret", "name", "A")


@both_eras
@pytest.mark.requirement("T9")
async def test_completions_are_asked_of_nobody_else(era: Era) -> None:
    """What a user has typed so far is not for a server that lists what another has."""
    taken = [{"uriTemplate": uri, "name": "it"} for uri in ("pay.greet", "kit://notes/{day}")]
    async with (
        ScriptedServer.local(era=era) as mail,
        ScriptedServer.local(era=era) as pay,
    ):
        await mail.script(
            when("resources/templates/list", result={**HINTS, "resourceTemplates": taken})
        )
        async with opened(server(mail, "mail"), server(pay, "pay")) as (run, _):
            assert (await run.complete("pay.greet", "name", "G")).values == ["Grace"]
            with pytest.raises(NotOffered):
                await run.complete("kit://notes/{day}", "day", "G")
            await run.complete("pay.kit://notes/{day}", "day", "G")
            assert await mail.requests("completion/complete") == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.requirement("T9")
async def test_all_of_it_works_over_a_pipe(era: Era) -> None:
    async with (
        ScriptedServer.stdio(era=era, tools=[tool("own")]) as kit,
        opened(server(kit, guides={"own": "A guide in words."})) as (run, _),
    ):
        assert run.catalogue.tool("own").description == "A guide in words."
        assert text_of(await run.get_prompt("greet", {"name": "Ada"})) == "Greet Ada."
        assert content(await run.read_resource("kit://notes")) == "a note"
        assert (await run.complete("greet", "name", "G")).values == ["Grace"]
