"""Nothing passes for something else: not a tool for a removed one, not a prompt for a tool, not an
address for another."""

from typing import Any

import pytest

from toolkeep import CallContext, NotPermitted, Runtime, ServerUnavailable, UnknownTool
from toolkeep._runtime.access_policy import is_normal_uri
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ANN = CallContext(principal="ann")


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def specs(**servers: ScriptedServer) -> list[dict[str, Any]]:
    return [{"name": name, "url": server.url} for name, server in servers.items()]


@pytest.mark.requirement("T2")
async def test_a_tool_of_a_server_that_was_removed_is_called_nowhere():
    async with ScriptedServer.local() as pay, ScriptedServer.local() as mail:
        await mail.set_tools([tool("pay.echo")])
        async with Runtime.open(specs(pay=pay, mail=mail)) as runtime:
            (found,) = await runtime.resolve(["pay.echo"])
            dressed = found.with_headers({"authorization": "Bearer pay"})
            await runtime.remove("pay")
            for call in (dressed.call({"text": "a"}), runtime.call("pay.echo", {"text": "a"})):
                with pytest.raises(UnknownTool) as caught:
                    await call
                assert "mail.pay.echo" not in caught.value.suggestions
            with pytest.raises(UnknownTool):
                await runtime.resolve([dressed])
        assert await mail.requests("tools/call") == []


@pytest.mark.requirement("T7")
async def test_a_prompt_of_the_same_name_shows_no_hidden_tool():
    async with ScriptedServer.local() as kit:
        await kit.set_tools([tool("greet")])

        def permits(action: str, what: Any, context: Any) -> bool:
            return type(what).__name__ != "Tool"

        async with Runtime.open(specs(kit=kit), permissions=permits) as runtime:
            names = {prompt.prompt for prompt in runtime.catalogue.prompts}
            seen = await runtime.catalogue_for()
            assert (names, len(seen.tools), len(seen.prompts)) == ({"greet"}, 0, 1)
            with pytest.raises(UnknownTool):
                await runtime.resolve(["kit.greet"])


@pytest.mark.requirement("T2")
async def test_while_a_server_cannot_be_asked_no_other_answers_for_it():
    async with ScriptedServer.local(era="legacy") as kit, ScriptedServer.local() as two:
        async with Runtime.open(specs(kit=kit, two=two)) as runtime:
            await kit.script(Rule(do=Behaviour(status=500), method="tools/list"))
            for name in ("echo", "kit.echo", "kit__echo"):
                with pytest.raises(ServerUnavailable):
                    await runtime.call(name, {"text": "a"}, context=ANN, timeout=2)
            with pytest.raises(ServerUnavailable):
                await runtime.resolve(["echo"], ANN)
        assert await two.requests("tools/call") == []


@pytest.mark.requirement("H4")
async def test_what_a_caller_puts_on_a_tool_says_who_is_calling():
    async with ScriptedServer.local(era="legacy") as kit:
        async with Runtime.open(specs(kit=kit)) as runtime:
            (found,) = await runtime.resolve(["kit.headers"])
            for token in ("a", "b"):
                await found.with_headers({"authorization": token}).call()
        calls = await kit.requests("tools/call")
        assert [call.headers["authorization"] for call in calls] == ["a", "b"]
        assert len({call.session_id for call in calls}) == 2


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("file:///pub/a%20b.txt", True),
        ("kit://notes", True),
        ("file:///pub/../etc/passwd", False),
        ("file:///pub/%2e%2e/etc", False),
        ("file:///%65tc", False),
        ("FILE:///etc", False),
        ("http://HOST/a", False),
        ("file:///pub\\..\\etc", False),
        ("http://[::1", False),
        ("file:///a\nb", False),
    ],
)
def test_an_address_that_a_pattern_cannot_judge_is_not_plain(uri: str, plain: bool):
    assert is_normal_uri(uri) is plain


@pytest.mark.requirement("T7")
async def test_an_address_written_in_another_way_passes_no_permission():
    async with ScriptedServer.local() as kit:
        permissions = {"*": ["kit.kit://*"]}
        async with Runtime.open(specs(kit=kit), permissions=permissions) as runtime:
            with pytest.raises(NotPermitted):
                await runtime.read_resource("kit://notes/../secret", server="kit")
            with pytest.raises(NotPermitted):
                await runtime.subscribe("KIT://notes", server="kit")
        assert await kit.requests("resources/read") == []
