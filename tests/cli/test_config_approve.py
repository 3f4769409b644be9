"""`toolkeep config approve`: only what a person lets be started is started."""

import json
from pathlib import Path

import pytest

from tests.cli.helpers_running import Home
from toolkeep import load

PROGRAMS = {"mcpServers": {"one": {"command": "first"}, "two": {"command": "second"}}}


@pytest.fixture(autouse=True)
def programs(home: Home) -> Path:
    path = home.path / "mcp.json"
    path.write_text(json.dumps(PROGRAMS))
    return path


def waiting(home: Home) -> list[str]:
    found = load(cwd=home.path, env=home.env())
    return [one.name for one in found.needs_approval]


@pytest.mark.requirement("C4")
async def test_what_is_named_is_approved_listed_and_revoked(home: Home, programs: Path):
    assert waiting(home) == ["one", "two"]
    ran = await home.run("config", "approve", "one", "--json")
    assert (ran.code, ran.document) == (0, {"approved": ["one"], "waiting": ["two"]})
    assert "first" in ran.err, "the command is shown"
    assert waiting(home) == ["two"]
    listed = await home.run("config", "approve", "--list", "--json")
    (kept,) = listed.document["approved"]
    assert "one: first" in kept["note"]
    revoked = await home.run("config", "approve", "--revoke", "one")
    assert revoked.code == 0, revoked.said
    assert waiting(home) == ["one", "two"]


async def test_an_approval_can_be_revoked_by_its_key_from_anywhere(home: Home, programs: Path):
    await home.run("config", "approve", "two")
    programs.unlink()
    (kept,) = (await home.run("config", "approve", "--list", "--json")).document["approved"]
    ran = await home.run("config", "approve", "--revoke", kept["key"][:12])
    assert ran.code == 0, ran.said
    assert (await home.run("config", "approve", "--list", "--json")).document["approved"] == []


async def test_where_nothing_is_configured_nothing_waits_and_nothing_is_warned_of(
    home: Home, programs: Path
):
    programs.unlink()
    ran = await home.run("config", "approve")
    assert (ran.code, ran.out, ran.err) == (0, "no server needs approval\n", "")


async def test_without_a_terminal_nobody_is_asked_and_nothing_approved(home: Home):
    unasked = await home.run("config", "approve")
    unknown = await home.run("config", "approve", "three")
    unknown_too = await home.run("config", "approve", "--revoke", "one")
    assert (unasked.code, unknown.code, unknown_too.code) == (2, 2, 2)
    assert waiting(home) == ["one", "two"]


async def test_on_a_terminal_all_are_shown_and_only_a_clear_yes_is_one(home: Home):
    async with home.terminal("config", "approve") as terminal:
        await terminal.until("wants to start 2 programs")
        await terminal.until("two: second")
        await terminal.until("Start one, now and from now on? [y/N/all/none]")
        terminal.type("y\n")
        await terminal.until("Start two")
        assert waiting(home) == ["two"], "a yes is saved at once"
        terminal.type("\n")
        ran = await terminal.ended()
    assert ran.code == 0, ran.out
    assert waiting(home) == ["two"]


@pytest.mark.parametrize(("answer", "left"), [("all", []), ("none", ["one", "two"])])
async def test_one_answer_can_be_for_all(home: Home, answer: str, left: list[str]):
    async with home.terminal("config", "approve") as terminal:
        await terminal.until("[y/N/all/none]")
        terminal.type(f"{answer}\n")
        await terminal.ended()
    assert waiting(home) == left


async def test_one_command_approves_all_and_shows_what(home: Home):
    ran = await home.run("config", "approve", "--all")
    assert (ran.code, ran.out) == (0, "approved: one, two\n")
    assert ran.err == "mcp.json may start:\n  one: first\n  two: second\n"
    assert waiting(home) == []
    both = await home.run("config", "approve", "--all", "one")
    assert both.code == 2
    assert "give no names" in both.err


async def test_several_are_approved_by_name_and_an_unknown_one_approves_none(home: Home):
    wrong = await home.run("config", "approve", "one", "three")
    assert (wrong.code, waiting(home)) == (2, ["one", "two"])
    right = await home.run("config", "approve", "one", "two")
    assert (right.code, waiting(home)) == (0, [])


async def test_another_command_says_once_how_to_approve_all(home: Home):
    ran = await home.run("tools")
    assert ran.code == 2
    assert ran.err.startswith("not started:\n  one: first\n  two: second\n")
    assert ran.err.count("toolkeep config approve --all") == 1
