"""Which calls of an OpenAI agent need approval: in doubt, each."""

from typing import Any

import pytest
from agents import Runner

from tests.adapters._openai_agents import Offer, agent_of, run, scripted, surfaces
from tests.adapters._servers import ADA, house, wait_for
from toolkeep import ConfigError, Runtime
from toolkeep.adapters.openai_agents import RuntimeServer

pytestmark = pytest.mark.requirement("A3")


def never(run: Any, agent: Any, tool: Any) -> bool:
    return False


async def only_others(run: Any, agent: Any, tool: Any) -> bool:
    return tool.name != "kit__record"


def broken(run: Any, agent: Any, tool: Any) -> bool:
    raise RuntimeError("the policy's own mistake")


def by_user(run: Any, agent: Any, tool: Any) -> bool:
    return run.context.principal != "ada"


NOT_ASKED: list[Any] = [
    *(None, "never", False, never, only_others, by_user),
    *({"kit.record": "never"}, {"kit__record": False}),
    {"never": {"tool_names": ["kit.record"]}, "always": {"tool_names": ["kit.echo"]}},
]
ASKED: list[Any] = [
    *("always", True, broken, lambda run, agent, tool: None, lambda: False),
    *({"kit.record": "always"}, {"kit.record": True}, {"kit.echo": "never"}, {}),
    {"always": {"tool_names": ["kit.record"]}},
    {"never": {"tool_names": ["kit.echo"]}},
    {"never": {"tool_names": ["kit.record"]}, "always": {"tool_names": ["kit__record"]}},
    {"always": "never", "never": "always"},  # tools may have such names
]


@surfaces
@pytest.mark.parametrize("policy", NOT_ASKED)
async def test_what_needs_no_approval_is_called(policy: Any, offer: Offer):
    async with house() as (kit, runtime):
        model = scripted([("kit__record", {})], "Done.")
        result = await run(model, await offer(runtime, require_approval=policy), context=ADA)
        assert (result.interruptions, result.final_output) == ([], "Done.")
        assert await kit.executions("record") == 1


@surfaces
@pytest.mark.parametrize("policy", ASKED)
async def test_what_needs_approval_or_may_need_it_is_asked_for(policy: Any, offer: Offer):
    async with house() as (kit, runtime):
        model = scripted([("kit__record", {})], "Done.")
        agent = agent_of(model, **await offer(runtime, require_approval=policy))
        result = await wait_for(Runner.run(agent, "Go on.", context=ADA))
        (question,) = result.interruptions
        assert (question.name, await kit.executions("record")) == ("kit__record", 0)
        state = result.to_state()
        state.approve(question)
        assert (await wait_for(Runner.run(agent, state))).final_output == "Done."
        calls = await kit.requests("tools/call")
        assert [call.headers["authorization"] for call in calls] == ["Bearer ada"]


@surfaces
async def test_what_is_rejected_is_not_called(offer: Offer):
    async with house() as (kit, runtime):
        model = scripted([("kit__record", {})], "Then not.")
        agent = agent_of(model, **await offer(runtime, require_approval="always"))
        result = await wait_for(Runner.run(agent, "Go on."))
        state = result.to_state()
        state.reject(result.interruptions[0])
        assert (await wait_for(Runner.run(agent, state))).final_output == "Then not."
        assert await kit.requests("tools/call") == []


@pytest.mark.parametrize(
    "policy",
    [
        *("sometimes", 1, ["kit.record"], {"kit.record": "maybe"}, {"always": ["kit.record"]}),
        {"never": {"tool_names": ["kit.record"]}, "always": {"tool_names": ["kit.record"]}},
    ],
)
async def test_a_policy_that_is_none_is_refused_at_once(policy: Any):
    with pytest.raises(ConfigError) as refused:
        RuntimeServer(Runtime({}), require_approval=policy)
    assert refused.value.key == "require_approval"
    if isinstance(policy, dict):
        assert "kit.record" in str(refused.value)
