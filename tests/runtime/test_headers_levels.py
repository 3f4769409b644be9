"""The five levels of headers, from the call's down to the server's, as they reach the wire."""

import itertools
from types import MappingProxyType
from typing import Any

import pytest

from tests.runtime._identity import Era, every_era, house, kinds, named, seen
from toolkeep import CallContext, Runtime

LEVELS = ("call", "tool", "task", "derived", "server")
"""The highest first."""
SPELLINGS = dict(zip(LEVELS, ("X-Same", "x-SAME", "X-sAME", "x-sAmE", "x-same"), strict=True))
WHO = pytest.mark.parametrize("principal", [None, "ann"], ids=["nobody in particular", "named"])


def spec_of(given: tuple[str, ...]) -> dict[str, Any]:
    """A server that is configured for these levels."""
    spec: dict[str, Any] = {}
    if "tool" in given:
        spec["tool_headers"] = {"headers": {SPELLINGS["tool"]: "of the tool"}}
    if "derived" in given:
        spec["derived_headers"] = {"user": SPELLINGS["derived"]}
    if "server" in given:
        spec["headers"] = {SPELLINGS["server"]: "of the server"}
    return spec


async def sent(runtime: Runtime, given: tuple[str, ...], principal: str | None) -> str:
    """The header as the server sees it, in a call at all of these levels."""
    task = {SPELLINGS["task"]: "of the task"} if "task" in given else {}
    context = CallContext(principal=principal, headers=task, user_id="of the derived")
    call = {SPELLINGS["call"]: "of the call"} if "call" in given else None
    return (await seen(runtime, context, headers=call))["x-same"]


@pytest.mark.requirement("H1")
@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(LEVELS, 2)))
@WHO
@every_era
async def test_of_two_levels_the_higher_one_is_sent(
    era: Era, principal: str | None, higher: str, lower: str
):
    async with house(era, spec_of((higher, lower))) as (_, runtime):
        assert await sent(runtime, (higher, lower), principal) == f"of the {higher}"


@pytest.mark.requirement("H1")
@WHO
@every_era
async def test_each_level_shows_when_those_above_it_are_gone(era: Era, principal: str | None):
    found: list[str] = []
    for first in range(len(LEVELS)):
        async with house(era, spec_of(LEVELS[first:])) as (_, runtime):
            found.append(await sent(runtime, LEVELS[first:], principal))
    assert found == [f"of the {level}" for level in LEVELS]


@pytest.mark.requirement("H1")
@every_era
async def test_headers_of_different_names_are_all_sent(era: Era):
    spec = {
        "headers": {"X-Server": "5"},
        "derived_headers": {"user": "X-Derived"},
        "tool_headers": {"headers": {"X-Tool": "2"}, "record": {"X-Other": "no"}},
    }
    async with house(era, spec) as (server, runtime):
        context = CallContext(headers={"X-Task": "3"}, user_id="4")
        found = await seen(runtime, context, headers={"X-Call": "1"})
        names = ("x-call", "x-tool", "x-task", "x-derived", "x-server", "x-other")
        assert [found.get(name) for name in names] == ["1", "2", "3", "4", "5", None]
        for record in await server.requests():
            assert record.headers["x-server"] == "5"
            if record.rpc_method != "tools/call":
                assert "x-tool" not in record.headers


@pytest.mark.requirement("H1")
@every_era
async def test_nothing_that_was_given_is_changed(era: Era):
    given = {"X-Task": "t", "Authorization": "a", "Accept": "text/html"}
    call, kept = {"X-Call": "c", "x-same": "1"}, dict(given)
    tool = {"X-Tool": "o"}
    spec = {"tool_headers": {"headers": tool}, "derived_headers": ["user"]}
    async with house(era, spec) as (_, runtime):
        context = CallContext(headers=given, user_id="u")
        await seen(runtime, context, headers=call)
        frozen = CallContext(headers=MappingProxyType(given))
        await seen(runtime, frozen, headers=MappingProxyType(call))
    assert (given, call, tool) == (kept, {"X-Call": "c", "x-same": "1"}, {"X-Tool": "o"})


@pytest.mark.requirement("H1")
async def test_tools_of_one_server_may_send_different_headers_in_one_session():
    spec = {
        "headers": {"x-tier": "basic"},
        "tool_headers": {"record": {"x-tier": "gold"}, "record_idempotent": {"x-tier": "tin"}},
    }
    async with house("legacy", spec) as (server, runtime):
        for tool in ("record", "record_idempotent", "record_read_only", "record"):
            await runtime.call(f"kit.{tool}")
        calls = await server.requests("tools/call")
        assert [call.headers["x-tier"] for call in calls] == ["gold", "tin", "basic", "gold"]
        assert len({call.session_id for call in calls}) == 1


@pytest.mark.requirement("H1")
@every_era
async def test_a_tool_that_was_resolved_takes_headers_of_its_own(era: Era):
    spec = {"tool_headers": {"headers": {"x-a": "configured", "x-b": "configured"}}}
    async with house(era, spec) as (_, runtime):
        context = named("ann", x_a="of the task", x_c="of the task")
        (tool,) = await runtime.resolve(["kit.headers"], context)
        mine = tool.with_headers({"X-A": "mine"})
        for one, expected in ((mine, "mine"), (tool, "configured")):
            found = (await one.call()).data
            assert [found[name] for name in ("x-a", "x-b", "x-c")] == [
                expected,
                "configured",
                "of the task",
            ]
        found = (await mine.call(headers={"x-a": "of the call"})).data
        assert found["x-a"] == "of the call"


# -- derived ------------------------------------------------------------------------------------

CONTEXT = CallContext(
    principal="p", user_id="u", session_id="s", execution_id="e", trace_id="t", metadata={"m": "m"}
)
USUAL = {
    "user": ("x-user-id", "u"),
    "session": ("x-session-id", "s"),
    "execution": ("x-execution-id", "e"),
    "trace": ("x-trace-id", "t"),
    "principal": ("x-principal", "p"),
}


@pytest.mark.requirement("H2")
@every_era
async def test_nothing_of_a_context_but_its_headers_is_sent_unless_it_is_asked_for(era: Era):
    async with house(era) as (server, runtime):
        plain = await seen(runtime, None)
        assert set(await seen(runtime, CONTEXT)) - {"mcp-session-id"} == set(plain) - {
            "mcp-session-id"
        }
        assert not {name for name, _ in USUAL.values()} & {
            name for record in await server.requests() for name in record.headers
        }


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("fact", USUAL)
async def test_each_fact_of_a_context_is_sent_under_its_usual_name_or_a_configured_one(fact: str):
    usual, value = USUAL[fact]
    for asked, name in (([fact], usual), ({fact: "X-My-Own"}, "x-my-own")):
        async with house("legacy", {"derived_headers": asked}) as (_, runtime):
            found = await seen(runtime, CONTEXT)
            assert found[name] == value
            others = {other for other, _ in USUAL.values()} - {name}
            assert not others & set(found)
            assert name not in await seen(runtime, CallContext())


@pytest.mark.requirement("H2")
async def test_a_server_may_ask_for_all_and_another_for_none():
    async with house("modern", {"derived_headers": True}) as (_, runtime):
        found = await seen(runtime, CONTEXT)
        assert {name: found.get(name) for name, _ in USUAL.values()} == dict(USUAL.values())


@pytest.mark.requirement("H2", "H4")
async def test_a_derived_trace_id_splits_no_session_and_a_derived_user_does():
    spec = {"derived_headers": {"trace": "x-my-trace", "user": "x-user-id"}}
    async with house("legacy", spec) as (server, runtime):
        for user in (None, "u", "v"):
            for trace in "abc":
                found = await seen(runtime, CallContext(user_id=user, trace_id=trace))
                assert (found["x-my-trace"], found.get("x-user-id")) == (trace, user)
        calls = await server.requests("tools/call")
        assert len({call.session_id for call in calls}) == 3
        assert kinds(await server.requests()).count("initialize") == 3
        assert runtime.servers[0].sessions == 2
