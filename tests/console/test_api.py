"""What the console's API says of a runtime, by real servers over real sockets."""

import asyncio
import sys
from typing import Any

import pytest

from tests.console.viewer import Answer, Viewer, following, viewing
from toolkeep import CallContext, CallOutcomeUnknown, Runtime
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.timeout(60)

DESTRUCTIVE = {
    "name": "pay",
    "description": "Pays",
    "inputSchema": {
        "type": "object",
        "properties": {"card": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["amount"],
    },
}


def assert_error(answer: Answer, status: int, kind: str) -> None:
    assert answer.status == status, answer.text
    assert answer.json["error"]["type"] == kind
    assert answer.json["error"]["message"]


async def test_the_state_names_the_process_and_shows_each_server_with_its_remedy():
    async with ScriptedServer.local(era="modern") as server:
        config = {"math": server.url, "down": "http://127.0.0.1:9/mcp"}
        async with Runtime.open(config, backoff=None) as runtime, viewing(runtime) as viewer:
            await runtime.call("math.add", {"a": 1, "b": 2})
            state = (await viewer.get("state")).json
    assert state["process"]["pid"] > 0
    assert state["process"]["program"] == sys.argv[0].rpartition("/")[2]
    assert state["allowed"] is False
    assert state["summary"].startswith("1/2 servers healthy")
    math, down = state["servers"]
    assert (math["name"], math["health"], math["breaker"]) == ("math", "healthy", "closed")
    assert (math["era"], math["calls"], math["in_flight"]) == ("modern", 1, 0)
    assert 0 < math["p50"] <= math["max"]
    assert math["since"] <= state["process"]["now"]
    assert (down["health"], down["fault"]) == ("down", "port-closed")
    assert down["error"]["kind"] == "unreachable"
    assert "Start the server" in down["remedy"]


async def test_a_call_is_shown_live_from_its_start_over_its_progress_to_its_verdict():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as server,
        Runtime.open({"lab": server.url}) as runtime,
        viewing(runtime) as viewer,
        following(viewer) as follower,
    ):
        context = CallContext(principal="ada")
        call = runtime.stream("lab.steps", {"count": 2, "gap": 0.2}, context=context)
        async with call:
            running = await follower.until(
                lambda: [c for c in follower.calls.values() if c["progress"]]
            )
            await call.result()
        ended = await follower.ended("steps")
    assert running[0]["state"] == "running"
    assert running[0]["progress"]["fraction"] == 0.5
    assert running[0]["progress"]["message"] == "step 1 of 2"
    assert (ended["verdict"], ended["outcome"]) == ("ran", "ok")
    assert (ended["principal"], ended["server"], ended["console"]) == ("ada", "lab", False)
    assert ended["reason"] == "the server answered with a result"
    assert ended["duration"] >= 0.4
    assert [a["outcome"] for a in ended["attempts"]] == ["answered"]


async def test_the_verdict_has_its_reason_from_the_rules():
    async with ScriptedServer.local(era="legacy") as server:
        await server.set_tools([DESTRUCTIVE])
        await server.script(Rule(tool="pay", do=Behaviour(drop="after_run"), times=1))
        async with (
            Runtime.open({"shop": server.url}) as runtime,
            viewing(runtime) as viewer,
            following(viewer) as follower,
        ):
            with pytest.raises(CallOutcomeUnknown):
                await runtime.call("shop.pay", {"amount": 5})
            unknown = await follower.ended("pay")
            follower.calls.clear()
            await server.forget_sessions()
            await runtime.call("shop.add", {"a": 1, "b": 2})
            retried = await follower.ended("add")
            follower.calls.clear()
            with pytest.raises(ValueError, match="amount"):
                await runtime.call("shop.pay", {})
            refused = await follower.ended("pay")
    assert (unknown["verdict"], unknown["outcome"]) == ("unknown", "failed")
    assert unknown["reason"] == (
        "the server closed the connection without a response; "
        "not sent again: the tool is not marked read-only or idempotent"
    )
    (attempt,) = unknown["attempts"]
    assert attempt["failure"]["kind"] == "broken"
    first, second = retried["attempts"]
    assert first["failure"]["kind"] == "session lost"
    assert first["decision"] == "sent again: the server refused it before it could run"
    assert (second["outcome"], retried["verdict"]) == ("answered", "ran")
    assert (refused["verdict"], refused["outcome"]) == ("did not run", "failed")
    assert refused["reason"] == "the arguments do not match the tool's schema: not sent"


async def test_arguments_and_results_are_masked_unless_values_may_be_shown():
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
    ):
        async with viewing(runtime) as viewer, following(viewer) as follower:
            with pytest.raises(ValueError, match="private"):
                await runtime.call("kit.add", {"a": "my private words", "b": 1})
            wrong = await follower.ended("add")
            await viewer.get(f"calls/{wrong['id']}")
            await runtime.call("kit.echo", {"text": "my private words"})
            call = await follower.ended("echo")
            masked = (await viewer.get(f"calls/{call['id']}")).json
            refused = await viewer.get(f"calls/{call['id']}?values=1")
            assert "private" not in "".join(viewer.everything)
        async with viewing(runtime, allow_calls=True) as viewer:
            masked_too = (await viewer.get(f"calls/{call['id']}")).json
            shown = (await viewer.get(f"calls/{call['id']}?values=1")).json
            shown_error = (await viewer.get(f"calls/{wrong['id']}?values=1")).json["error"]
            gone = await viewer.get("calls/nothing")
    assert masked["arguments"] == {"text": "string(16)"}
    assert "private" in shown_error["message"]
    assert masked["result"]["content"] == [{"type": "text", "text": "string(16)"}]
    assert masked_too["arguments"] == masked["arguments"]
    assert_error(refused, 403, "NotAllowed")
    assert (shown["shown"], shown["arguments"]) == (True, {"text": "my private words"})
    assert shown["result"]["content"][0]["text"] == "my private words"
    assert_error(gone, 404, "UnknownCall")


async def test_actions_are_refused_unless_they_are_allowed():
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        await runtime.call("kit.add", {"a": 1, "b": 2}, context=CallContext(principal="ada"))
        sessions = (await viewer.get("sessions")).json["sessions"]
        of_ada = next(one for one in sessions if one["principal"] == "ada")
        for path, body in (
            ("call", {"name": "kit.echo", "arguments": {"text": "x"}}),
            ("prompt", {"name": "kit.greet", "arguments": {"name": "x"}}),
            ("resource", {"uri": "kit://notes"}),
            ("servers/kit/reconnect", {}),
            ("servers/kit/login", {}),
            (f"sessions/{of_ada['id']}/end", {}),
        ):
            assert_error(await viewer.post(path, body), 403, "NotAllowed")
        assert await server.executions("echo") == 0


async def test_a_function_of_the_application_decides_about_each_action():
    asked: list[Any] = []

    async def allow(action: Any) -> bool:
        asked.append((action.kind, action.server, action.name, action.principal))
        return action.name == "kit.slow"

    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime, allow_calls=allow) as viewer,
    ):
        slow = {"name": "kit.slow", "arguments": {"seconds": 30}, "principal": "ada"}
        made = await viewer.post("call", slow)
        assert made.status == 202
        assert (await viewer.get(f"calls/{made.json['id']}?values=1")).json["shown"] is True
        assert (await viewer.post(f"calls/{made.json['id']}/cancel")).status == 204
        add = {"name": "kit.add", "arguments": {"a": 1, "b": 2}}
        assert_error(await viewer.post("call", add), 403, "NotAllowed")
    calls = [one for one in asked if one[0] == "call"]
    of_slow = ("call", "kit", "kit.slow", "ada")  # to make it, to see it, to cancel it
    assert calls == [of_slow, of_slow, of_slow, ("call", "kit", "kit.add", None)]


async def test_a_tool_is_checked_called_and_cancelled_from_the_page():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
        following(viewer) as follower,
    ):
        checked = await viewer.post("check", {"name": "kit.add", "arguments": {"a": "x"}})
        body = {"name": "kit.add", "arguments": {"a": 2, "b": 3}}
        made = await viewer.post("call", body)
        add = await follower.ended("add")
        detail = (await viewer.get(f"calls/{add['id']}?values=1")).json
        wrong = await viewer.post("call", {"name": "kit.add", "arguments": {"a": "x"}})
        slow = await viewer.post("call", {"name": "kit.slow", "arguments": {"seconds": 30}})
        cancelled = await viewer.post(f"calls/{slow.json['id']}/cancel")
        ended = await follower.ended("slow")
        refused = await follower.until(
            lambda: follower.calls.get(wrong.json["id"], {}).get("verdict")
        )
        prompt = await viewer.post("prompt", {"name": "kit.greet", "arguments": {"name": "Ada"}})
        resource = await viewer.post("resource", {"uri": "kit://notes"})
        unknown = await viewer.post("prompt", {"name": "kit.nothing"})
    assert len(checked.json["problems"]) >= 2
    assert (made.status, made.json["id"], add["console"]) == (202, add["id"], True)
    assert detail["result"]["structuredContent"] == {"sum": 5}
    assert refused == "did not run"
    assert cancelled.status == 204
    assert (ended["outcome"], ended["verdict"]) == ("cancelled", "unknown")
    assert "Ada" in prompt.json["result"]["messages"][0]["content"]["text"]
    assert resource.json["result"]["contents"][0]["uri"] == "kit://notes"
    assert_error(unknown, 404, "UnknownPrompt")


QUESTION = {"message": "Really?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_question_of_a_server_waits_and_is_answered_from_the_page(era: Any):
    requests = {"q": {"method": "elicitation/create", "params": QUESTION}}
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        Runtime.open({"kit": server.url}, elicitation="caller") as runtime,
        viewing(runtime, allow_calls=True) as viewer,
        following(viewer) as follower,
    ):
        made = await viewer.post("call", {"name": "kit.ask", "arguments": {"requests": requests}})
        (question,) = await follower.until(lambda: follower.state.get("questions"))
        path = f"questions/{question['id']}"
        answered = await viewer.post(path, {"action": "accept", "content": {}})
        ended = await follower.ended("ask")
        await follower.until(lambda: follower.state.get("questions") == [])
        again = await viewer.post(path, {"action": "accept", "content": {}})
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Really?")
    assert (question["call"], question["answer_required"]) == (made.json["id"], True)
    assert answered.status == 204
    assert (ended["verdict"], ended["questions"]) == ("ran", 1)
    assert again.status in (404, 409)


async def test_sessions_are_listed_by_principal_and_ended():
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
    ):
        for principal in ("ada", "ada", "bob"):
            context = CallContext(principal=principal)
            await runtime.call("kit.add", {"a": 1, "b": 1}, context=context)
        sessions = (await viewer.get("sessions")).json["sessions"]
        own, ada, bob = sessions
        ended = await viewer.post(f"sessions/{ada['id']}/end")
        left = (await viewer.get("sessions")).json["sessions"]
        of_own = await viewer.post(f"sessions/{own['id']}/end")
    assert (own["own"], own["principal"], ada["principal"]) == (True, None, "ada")
    assert (ada["uses"], bob["uses"], ada["users"]) == (2, 1, 0)
    assert (ada["has_session"], ada["era"], ada["state"]) == (True, "legacy", "idle")
    assert ended.status == 204
    assert [one["label"] for one in left] == ["the server's own", "bob"]
    assert_error(of_own, 404, "UnknownSession")


async def test_one_server_is_reconnected_and_its_health_says_since_when():
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime.open({"kit": server.url}, backoff=None) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
    ):
        before = (await viewer.get("state")).json["servers"][0]
        answer = await viewer.post("servers/kit/reconnect")
        nothing = await viewer.post("servers/nothing/reconnect")
        opened = await server.requests("initialize")
    assert answer.json["server"]["health"] == "healthy"
    assert answer.json["server"]["since"] > before["since"]
    assert len(opened) == 2
    assert_error(nothing, 404, "UnknownServer")


async def test_the_catalogue_is_paged_searched_and_says_what_changed():
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
        following(viewer) as follower,
    ):
        whole = (await viewer.get("catalogue?kind=tools&limit=2")).json
        page = (await viewer.get("catalogue?kind=tools&q=ECHO&server=kit")).json
        item = (await viewer.get("item?kind=tools&name=kit.add")).json
        await server.set_tools([DESTRUCTIVE])
        await runtime.refresh("kit")
        changed = {**DESTRUCTIVE, "description": "Pays twice"}
        await server.set_tools([changed])
        await runtime.refresh("kit")
        revision = await follower.until(
            lambda: follower.state.get("revision") == runtime.catalogue.revision
        )
        changes = (await viewer.get("changes")).json["changes"]
        last = (await viewer.get(f"changes/{changes[0]['id']}")).json
        prompts = (await viewer.get("catalogue?kind=prompts")).json["items"]
        wrong = await viewer.get("catalogue?kind=everything")
    assert (whole["total"], len(whole["items"])) == (14, 2)
    assert [one["name"] for one in page["items"]] == ["kit.echo"]
    assert item["definition"]["inputSchema"]["required"] == ["a", "b"]
    assert revision
    assert [(one["change"], one["name"]) for one in changes] == [
        ("changed", "kit.pay"),
        ("added", "kit.pay"),
    ]
    assert last["before"]["description"] == "Pays"
    assert last["after"]["description"] == "Pays twice"
    assert prompts[0]["arguments"][0]["name"] == "name"
    assert_error(wrong, 400, "BadRequest")


async def wire_of(viewer: Viewer, server: str) -> list[dict[str, Any]]:
    return (await viewer.get(f"wire?server={server}")).json["exchanges"]


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_the_wire_of_a_live_server_is_paired_and_nothing_is_reconnected(transport: str):
    http = ScriptedServer.local(era="legacy")
    async with (
        http if transport == "http" else ScriptedServer.stdio() as server,
        Runtime.open({"mcpServers": {"kit": server.spec}}) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
        following(viewer) as follower,
    ):
        await runtime.call("kit.echo", {"text": "before"})
        assert (await viewer.post("servers/kit/trace", {"on": True})).status == 204
        await runtime.call("kit.echo", {"text": "during"})
        await follower.until(lambda: follower.state.get("wire"))
        assert (await viewer.post("servers/kit/trace", {"on": False})).status == 204
        await runtime.call("kit.echo", {"text": "after"})
        exchanges = await wire_of(viewer, "kit")
        lines = await viewer.get("servers/kit/wire.jsonl")
        one = (await viewer.get(f"wire/{exchanges[0]['id']}")).json
        handshakes = await server.requests("initialize")
    (echo,) = [each for each in exchanges if each["method"] == "tools/call"]
    assert (echo["name"], echo["state"], echo["from"]) == ("echo", "answered", "client")
    assert echo["took"] > 0
    assert "during" in echo["request"]["body"]
    assert "during" in echo["answers"][-1]["body"]
    assert echo["status"] == (200 if transport == "http" else None)
    assert lines.text.count("\n") == len(exchanges)
    assert "attachment" in lines.headers["content-disposition"]
    assert one["request"]["body"]
    assert "before" not in lines.text
    assert "after" not in lines.text
    assert len(handshakes) <= 1


async def test_the_wire_is_masked_where_values_may_not_be_shown():
    async with (
        ScriptedServer.local(era="modern", encoding="sse") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
        following(viewer) as follower,
    ):
        await viewer.post("servers/kit/trace", {"on": True})
        await runtime.call("kit.echo", {"text": "my private words"})
        await runtime.refresh("kit")
        await follower.until(lambda: follower.state.get("wire"))
        exchanges = await wire_of(viewer, "kit")
        await viewer.get("servers/kit/wire.jsonl")
    echo = next(each for each in exchanges if each["method"] == "tools/call")
    listed = next(each for each in exchanges if each["method"] == "tools/list")
    assert (echo["masked"], echo["name"]) == (True, "echo")
    assert '"string(16)"' in echo["request"]["body"]
    assert (listed["masked"], "inputSchema" in listed["answers"][-1]["body"]) == (False, True)
    assert "private" not in "".join(viewer.everything)


async def test_latencies_come_as_buckets_by_server_and_tool():
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
    ):
        for _ in range(3):
            await runtime.call("kit.add", {"a": 1, "b": 2})
        (whole,) = (await viewer.get("latency")).json["series"]
        tools = (await viewer.get("latency?server=kit")).json["series"]
    assert (whole["tool"], whole["count"]) == (None, 3)
    assert sum(count for _, count in whole["buckets"]) == 3
    assert [one["tool"] for one in tools] == [None, "add"]


async def test_calls_of_the_last_second_are_counted_by_server():
    async with (
        ScriptedServer.local(era="modern") as server,
        Runtime.open({"kit": server.url}) as runtime,
        viewing(runtime) as viewer,
        following(viewer) as follower,
    ):
        await asyncio.gather(*(runtime.call("kit.add", {"a": 1, "b": 2}) for _ in "12345"))
        tick = await follower.until(
            lambda: follower.state.get("tick", {}).get("servers", {}).get("kit")
        )
        ticks = (await viewer.get("ticks")).json["ticks"]
    assert tick == {"calls": 5, "errors": 0, "in_flight": 0}
    assert ticks[-1]["servers"]["kit"]["calls"] in (0, 5)
