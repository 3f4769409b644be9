"""Several addresses that are not all alike: down, odd, older, stored, wrongly configured."""

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Any

import pytest

from tests.engine.helpers_endpoints import (
    PATIENCE,
    addresses,
    busy_one,
    calls_at,
    gone,
    nobody,
    runs,
    spec_of,
)
from tests.engine.helpers_rounds import ADA, ELICIT
from tests.runtime._life import Ear, config_of, eventually
from toolkeep import (
    AuthNeeded,
    CallContext,
    CallNotDelivered,
    CallOutcomeUnknown,
    Client,
    ConfigError,
    NotPermitted,
    Runtime,
    ServerUnavailable,
)
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.config import ServerSpec
from toolkeep.events import Changed, Connected, Disconnected, Event
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer


@pytest.mark.requirement("G9")
async def test_an_address_that_is_down_is_left_alone_and_tried_again() -> None:
    async with addresses(2, era="modern") as (first, second):
        spec = spec_of([first, second], breaker_threshold=2, breaker_cooldown=0.3)
        async with Runtime.open([spec], listen=False, health_interval=None) as runtime:
            await first.script(Rule(do=Behaviour(drop="after_body"), method="tools/call"))
            for _ in range(20):
                await runtime.call("kit.record_read_only", {"key": "x"})
            (status,) = runtime.servers
            (down,) = [each for each in status.endpoints if each.url == first.url]
            assert down.cooling_down
            assert down.faults < 5
            await first.clear()
            async with asyncio.timeout(PATIENCE):
                while await runs([first]) == Counter():
                    await runtime.call("kit.record_read_only", {"key": "x"})
            (status,) = runtime.servers
            assert not any(each.cooling_down for each in status.endpoints)


async def test_an_address_that_answers_with_a_page_keeps_nobody_from_the_other() -> None:
    async with addresses(2) as (page, good):
        html = Behaviour(body="<html>", content_type="text/html", status=200, run=False)
        await page.script(Rule(do=html))
        spec = spec_of([page, good], balance="call", breaker_cooldown=PATIENCE)
        async with Client(spec) as client:
            for _ in range(20):
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
            assert client.endpoints[0].cooling_down
        assert len(await page.requests()) <= 2  # it was asked once, in whichever era


async def test_a_handshake_that_one_address_refuses_is_made_with_the_other() -> None:
    async with addresses(2, era="legacy") as (sick, good):
        error = {"code": -32603, "message": "not today"}
        await sick.script(Rule(method="initialize", do=Behaviour(error=error)))
        spec = spec_of([sick, good], mode="legacy", balance="call", max_retries=0)
        async with Client(spec) as client:
            for number in range(4):
                await client.call_tool("record", {"key": str(number)})
        assert await runs([good]) == {str(number): 1 for number in range(4)}


async def test_an_address_that_never_answers_leaves_time_for_the_other() -> None:
    async with addresses(2, era="legacy") as (deaf, good):
        await deaf.script(Rule(do=Behaviour(hang=True, run=False)))
        spec = spec_of([deaf, good], mode="legacy", balance="call", breaker_cooldown=PATIENCE)
        async with Client(spec) as client:
            for _ in range(4):
                result = await client.call_tool("record", {"key": "one"}, timeout=3.0)
                assert result.success
        assert (await runs([good]))["one"] == 4


async def test_a_redirect_to_another_address_is_not_followed_but_that_address_is_asked() -> None:
    async with addresses(2, era="modern") as (moved, good):
        await moved.script(Rule(do=Behaviour(redirect=good.url)))
        async with Client(spec_of([moved, good], api_key="s3cr3t")) as client:
            for number in range(4):
                await client.call_tool("record", {"key": str(number)})
        assert await runs([good]) == {str(number): 1 for number in range(4)}


async def test_a_call_that_is_redirected_is_not_known_to_have_failed() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            await server.script(Rule(tool="record", do=Behaviour(redirect=nobody())))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "one"})
        assert sum([await calls_at(server) for server in servers]) == 1


async def test_a_challenge_is_the_servers_and_not_taken_elsewhere() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            await server.script(Rule(tool="echo", do=Behaviour(status=401)))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(AuthNeeded):
                await client.call_tool("echo", {"text": "hi"})
        assert sum([await calls_at(server) for server in servers]) == 1


class Renewing:
    """Has a better token once it is asked for one."""

    def __init__(self, takes: float = 0.0) -> None:
        self.token, self.urls = "old", set[str]()
        self.takes, self.asked = takes, 0

    async def headers(self, request: AuthRequest) -> dict[str, str]:
        self.urls.add(request.url)
        return {"authorization": f"Bearer {self.token}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        self.asked += 1
        await asyncio.sleep(self.takes)
        renewed, self.token = self.token != "new", "new"
        return renewed


async def test_an_address_that_challenges_is_asked_again_with_better_credentials() -> None:
    async with addresses(2, api_key="new") as servers:
        auth = Renewing()
        async with Client(spec_of(servers, balance="call"), auth=auth) as client:
            for number in range(6):
                await client.call_tool("record", {"key": str(number)})
        assert await runs(servers) == {str(number): 1 for number in range(6)}
        assert auth.urls == {server.url for server in servers}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("when", ["the handshake", "a call"])
async def test_credentials_are_renewed_once_whichever_addresses_ask_for_it(
    era: Any, when: str
) -> None:
    """Also where one address is slow to say so."""
    async with addresses(3, era=era, api_key="new") as servers:
        await servers[0].script(Rule(do=Behaviour(delay=0.2), times=2))
        auth = Renewing(takes=0.05)
        async with aclosing(Client(spec_of(servers, balance="call"), auth=auth)) as client:
            if when == "a call":
                auth.token = "new"
                await asyncio.gather(*(client.call_tool("echo", {"text": "hi"}) for _ in range(6)))
                auth.token = "old"
            calls = (client.call_tool("record", {"key": str(number)}) for number in range(12))
            await asyncio.gather(*calls)
        assert auth.asked == 1
        ran = await runs(servers)
        assert {str(number): ran[str(number)] for number in range(12)} == dict.fromkeys(
            map(str, range(12)), 1
        )


async def test_an_opening_that_others_began_with_older_credentials_is_made_again() -> None:
    async with (
        addresses(1, era="legacy") as (slow,),
        addresses(1, era="legacy", api_key="new") as (quick,),
    ):
        await slow.script(Rule(do=Behaviour(status=401, delay=2.0), times=1))
        auth = Renewing()
        async with aclosing(Client(spec_of([slow, quick], balance="call"), auth=auth)) as client:
            first = [asyncio.create_task(client.call_tool("echo", {"text": "a"})) for _ in range(2)]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            assert auth.asked == 1
            more = [asyncio.create_task(client.call_tool("echo", {"text": "b"})) for _ in range(4)]
            await quick.requests("tools/call", at_least=3)  # the others wait for the opening
            await asyncio.gather(*first, *more)
        assert auth.asked == 1


async def test_addresses_may_be_of_different_eras() -> None:
    """A server that is being upgraded, one address after the other."""
    async with addresses(1, era="legacy") as (old,), addresses(1, era="modern") as (new,):
        async with Client(spec_of([old, new], balance="call")) as client:
            for number in range(10):
                await client.call_tool("record", {"key": str(number)})
        assert await runs([old, new]) == {str(number): 1 for number in range(10)}
        assert await calls_at(old) == await calls_at(new) == 5


async def test_a_question_of_a_modern_address_is_answered_also_where_a_legacy_one_leads() -> None:
    async def answer(needed: Any) -> Any:
        return ADA

    async with addresses(1, era="legacy") as (old,), addresses(1, era="modern") as (new,):
        await old.script(Rule(tool="ask", do=Behaviour(status=404)))
        for _ in range(50):  # which one leads is left to chance
            async with Client(spec_of([old, new], balance="call"), elicitation=answer) as client:
                if client.era == "legacy":
                    result = await client.call_tool("ask", {"requests": {"who": ELICIT}})
                    assert result.success
                    return
    pytest.fail("the legacy address has never led")


async def test_one_address_may_speak_the_http_of_2024() -> None:
    async with (
        ScriptedServer.local(era="legacy", transport="sse") as old,
        ScriptedServer.local(era="legacy") as new,
    ):
        async with Client(spec_of([old, new], balance="call")) as client:
            for number in range(6):
                await client.call_tool("record", {"key": str(number)})
        assert await runs([old, new]) == {str(number): 1 for number in range(6)}
        assert (await runs([old])).total() == 3


# -- sessions that are kept --------------------------------------------------------------------


@pytest.mark.requirement("S11")
async def test_a_stored_session_is_taken_up_at_the_address_where_it_was_left() -> None:
    async with addresses(4, era="legacy") as servers:
        store, spec = MemoryStore(), spec_of(servers)
        for _ in range(6):
            async with Client(spec, state=store, principal="ada") as client:
                calls = (client.call_tool("echo", {"text": "hi"}) for _ in range(3))
                await asyncio.gather(*calls)
        assert sorted([await calls_at(server) for server in servers]) == [0, 0, 0, 18]
        assert sum([len(await server.requests("initialize")) for server in servers]) == 1


async def test_forgetting_a_principal_ends_its_stored_session_wherever_it_is() -> None:
    async with addresses(3, era="legacy") as servers:
        store, spec = MemoryStore(), spec_of(servers, balance="call")
        ada = CallContext(principal="ada")
        async with Runtime.open([spec], state=store, listen=False) as runtime:
            for _ in range(3):
                await runtime.call("kit.echo", {"text": "hi"}, context=ada)
        async with Runtime.open([spec], state=store, listen=False) as runtime:
            await runtime.forget("ada")
        for server in servers:
            (call,) = await server.requests("tools/call")
            seen = await server.requests()
            ended = {record.session_id for record in seen if record.http_method == "DELETE"}
            assert call.session_id in ended


async def test_closing_waits_for_no_store_that_hangs() -> None:
    asked = asyncio.Event()

    class Hanging(MemoryStore):
        async def get(self, key: str) -> Any:
            asked.set()
            await asyncio.Event().wait()

    async with addresses(2, era="legacy") as servers:
        client = Client(spec_of(servers), state=Hanging(), principal="ada")
        call = asyncio.create_task(client.call_tool("echo", {"text": "hi"}))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        async with asyncio.timeout(2.0):  # less than a store is given
            await client.aclose()
            await asyncio.wait([call])
        with pytest.raises(CallNotDelivered):
            await call


async def test_an_address_that_asks_for_a_pause_keeps_its_session() -> None:
    async with addresses(2, era="legacy") as servers, Client(spec_of(servers)) as client:
        await client.call_tool("echo", {"text": "hi"})
        home, other = await busy_one(servers)
        pause = Behaviour(status=429, headers={"retry-after": "1"})
        await home.script(Rule(tool="record", do=pause, times=1))
        await client.call_tool("record", {"key": "after a pause"})
        await client.call_tool("record", {"key": "later"})
        ran = await runs([home])
        assert (ran["after a pause"], ran["later"]) == (1, 1)
        assert len({record.session_id for record in await home.requests("tools/call")}) == 1
        assert not await other.requests()


@pytest.mark.parametrize(
    "trouble",
    [
        Behaviour(status=429, headers={"retry-after": "0"}),
        Behaviour(status=429),
        Behaviour(status=503, run=False),
        Behaviour(drop="after_body", run=False),
    ],
    ids=["429 with Retry-After", "429", "503", "reset"],
)
async def test_what_may_pass_takes_no_call_out_of_its_session(trouble: Behaviour) -> None:
    async with addresses(2, era="legacy") as servers, Client(spec_of(servers)) as client:
        await client.list_tools()
        await client.call_tool("record_read_only", {"key": "open"})
        home, other = await busy_one(servers)
        await home.script(Rule(tool="record_read_only", do=trouble, times=1))
        for key in ("click", "close"):
            await client.call_tool("record_read_only", {"key": key})
        assert await runs([home]) == {"open": 1, "click": 1, "close": 1}
        assert len({record.session_id for record in await home.requests("tools/call")}) == 1
        assert not await other.requests()


async def test_a_session_that_is_refused_something_is_not_left_for_it() -> None:
    """One address alone would not have been asked again either."""
    async with addresses(2, era="legacy") as servers, Client(spec_of(servers)) as client:
        await client.call_tool("echo", {"text": "hi"})
        home, other = await busy_one(servers)
        await home.script(Rule(tool="record", do=Behaviour(status=405)))
        with pytest.raises(CallNotDelivered):
            await client.call_tool("record", {"key": "one"})
        await client.call_tool("echo", {"text": "hi"})
        assert await calls_at(home) == 3
        assert not await other.requests()


async def test_a_session_is_left_for_good_when_its_breaker_refuses() -> None:
    async with addresses(2, era="legacy") as servers:
        spec = spec_of(servers, breaker_threshold=2, breaker_cooldown=0.1)
        async with Client(spec) as client:
            await client.list_tools()
            await client.call_tool("record_read_only", {"key": "before"})
            home, other = await busy_one(servers)
            await home.script(Rule(tool="record_read_only", do=Behaviour(status=502, run=False)))
            await client.call_tool("record_read_only", {"key": "meanwhile"})
            assert await runs([other]) == {"meanwhile": 1}
            await home.clear()
            await eventually(lambda: not any(each.cooling_down for each in client.endpoints))
            for _ in range(4):
                await client.call_tool("record_read_only", {"key": "after"})
        assert await runs([other]) == {"meanwhile": 1, "after": 4}
        assert len({record.session_id for record in await other.requests("tools/call")}) == 1


async def test_a_session_whose_address_cannot_be_reached_is_left_once_and_for_good() -> None:
    async with addresses(2, era="legacy") as servers:
        heard: list[Event] = []
        client = Client(spec_of(servers, keep_alive=0.001, max_retries=1, breaker_threshold=0))
        client.observe(heard.append, listen=False)
        await client.call_tool("echo", {"text": "hi"})
        home, other = await busy_one(servers)
        await gone(home)
        for number in range(3):
            await client.call_tool("record", {"key": str(number)})
        at_home = [each.attempts for each in client.endpoints if each.url == home.url]
        await client.aclose()
        assert await runs([other]) == {str(number): 1 for number in range(3)}
        assert at_home == [1 + 2]  # the call before, and the first one after: twice
        left = [event for event in heard if isinstance(event, Disconnected) and not event.requested]
        assert [event.endpoint for event in left] == [home.url]


async def test_a_stored_session_whose_address_is_gone_costs_a_fresh_one_elsewhere() -> None:
    async with addresses(2, era="legacy") as servers:
        store, spec = MemoryStore(), spec_of(servers)
        async with Client(spec, state=store, principal="ada") as client:
            await client.call_tool("echo", {"text": "hi"})
        home, other = await busy_one(servers)
        await gone(home)
        async with Client(spec, state=store, principal="ada") as client:
            await client.call_tool("record", {"key": "one"})
        assert await runs([other]) == {"one": 1}


async def test_a_client_is_one_principal_at_all_its_addresses() -> None:
    async with (
        addresses(2, era="legacy") as servers,
        Client(spec_of(servers, balance="call")) as client,
    ):
        await client.call_tool("echo", {"text": "hi"}, headers={"x-user": "ada"})
        for _ in range(2):
            with pytest.raises(NotPermitted):
                await client.call_tool("echo", {"text": "hi"}, headers={"x-user": "bob"})


# -- in a runtime ------------------------------------------------------------------------------


async def test_a_strict_runtime_opens_while_one_address_is_alive() -> None:
    async with addresses(1) as (alive,):
        spec = spec_of([nobody(), alive, nobody()])
        async with Runtime.open([spec], strict=True) as runtime:
            assert (await runtime.call("kit.echo", {"text": "hi"})).text == "hi"
    with pytest.raises(ServerUnavailable):
        await Runtime([spec_of([nobody(), nobody()])], strict=True).connect()


async def test_health_is_that_of_whoever_can_be_asked() -> None:
    async with addresses(2, era="legacy") as servers:
        spec = spec_of(servers, keep_alive=0.001)
        async with Runtime.open([spec], health_interval=0.05) as runtime:
            first = [len(await server.requests("initialize")) for server in servers]
            (lead,) = [s for s, made in zip(servers, first, strict=True) if made]
            (other,) = [server for server in servers if server is not lead]
            await gone(lead)
            await other.requests("ping", at_least=2, within=PATIENCE)
            await eventually(lambda: runtime.servers[0].health.value == "healthy")


async def test_what_a_server_says_is_heard_whichever_address_leads() -> None:
    async with addresses(2, era="legacy") as servers:
        spec = spec_of(servers, keep_alive=0.001)
        async with Runtime.open([spec], health_interval=0.05) as runtime:
            ear = Ear(runtime)
            made = [len(await server.requests("initialize")) for server in servers]
            (lead,) = [s for s, count in zip(servers, made, strict=True) if count]
            (other,) = [server for server in servers if server is not lead]
            await lead.notify("notifications/tools/list_changed", within=PATIENCE)
            await ear.first(Changed)
            await gone(lead)
            tool = {"name": "extra", "inputSchema": {"type": "object"}}
            await other.set_tools([tool])
            await other.notify("notifications/tools/list_changed", within=PATIENCE)
            await eventually(lambda: "kit.extra" in {each.name for each in runtime.catalogue.tools})


@pytest.mark.parametrize(
    ("era", "balance"), [("legacy", "session"), ("legacy", "call"), ("modern", "session")]
)
async def test_a_lone_client_hears_the_next_leader_once_its_requests_have_failed(
    era: Any, balance: Any
) -> None:
    async with addresses(2, era=era) as servers:
        spec = spec_of(servers, balance=balance, keep_alive=0.001, breaker_threshold=2)
        heard = asyncio.Event()
        client = Client(spec)
        client.observe(lambda event: heard.set() if isinstance(event, Changed) else None)
        async with client:
            asked = [await server.requests() for server in servers]
            lead, other = servers if asked[0] else reversed(servers)
            await gone(lead)
            for _ in range(4):
                await client.list_tools(refresh=True)
            await other.notify("notifications/tools/list_changed", within=PATIENCE)
            await asyncio.wait_for(heard.wait(), PATIENCE)


async def test_a_server_is_listed_once_however_many_addresses_it_has() -> None:
    async with addresses(3, era="modern") as servers:
        async with Runtime.open([spec_of(servers)], listen=False) as runtime:
            for _ in range(9):
                await runtime.call("kit.echo", {"text": "hi"})
            lists = [len(await server.requests("tools/list")) for server in servers]
        assert sum(lists) == 1


async def test_a_reload_with_other_addresses_goes_there_and_nowhere_else() -> None:
    async with addresses(3, era="modern") as (first, second, third):

        def config(*servers: ScriptedServer) -> dict[str, Any]:
            return config_of(kit={"urls": [server.url for server in servers]})

        async with Runtime.open(config(first, second), listen=False) as runtime:
            for _ in range(4):
                await runtime.call("kit.echo", {"text": "hi"})
            assert await calls_at(first) == await calls_at(second) == 2
            change = await runtime.reload(config(second, third))
            assert [spec.name for spec in change.changed] == ["kit"]
            for _ in range(4):
                await runtime.call("kit.echo", {"text": "hi"})
            assert [each.url for each in runtime.servers[0].endpoints] == [second.url, third.url]
            await runtime.remove("kit")
            await runtime.add({"name": "kit", "urls": [first.url, third.url]})
            for _ in range(4):
                await runtime.call("kit.echo", {"text": "hi"})
        assert [await calls_at(server) for server in (first, second, third)] == [4, 4, 4]


async def test_principals_share_no_session_at_any_address() -> None:
    async with addresses(2, era="legacy") as servers:
        spec = spec_of(servers, balance="call")
        async with Runtime.open([spec], listen=False) as runtime:
            for number in range(12):
                context = CallContext(principal=f"u{number % 3}", headers={"x-u": f"{number % 3}"})
                await runtime.call("kit.echo", {"text": "hi"}, context=context)
        for server in servers:
            seen = await server.requests("tools/call")
            pairs = {(record.session_id, record.headers["x-u"]) for record in seen}
            assert len(pairs) == len({session for session, _ in pairs}) == 3


async def test_limits_are_those_of_each_address() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            await server.script(Rule(tool="slow", do=Behaviour(hang=True)))
        spec = spec_of(servers, max_in_flight=2)
        async with Runtime.open([spec], listen=False, health_interval=None) as runtime:
            calls = [
                asyncio.create_task(runtime.call("kit.slow", {"seconds": 1})) for _ in range(10)
            ]
            for server in servers:
                await server.requests(tool="slow", at_least=2)
            assert [each.in_flight for each in runtime.servers[0].endpoints] == [5, 5]
            assert [await calls_at(server) for server in servers] == [2, 2]
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)


async def test_events_say_which_address_they_are_about() -> None:
    async with addresses(2, era="legacy") as servers:
        heard: list[Event] = []
        client = Client(spec_of(servers, balance="call"))
        client.observe(heard.append, listen=False)
        for _ in range(2):
            await client.call_tool("echo", {"text": "hi"})
        await client.aclose()
        urls = {server.url for server in servers}
        assert {event.endpoint for event in heard if isinstance(event, Connected)} == urls
        assert {event.endpoint for event in heard if isinstance(event, Disconnected)} == urls


async def test_a_closed_client_can_be_used_again_at_all_its_addresses() -> None:
    async with addresses(2, era="legacy") as servers:
        client = Client(spec_of(servers, balance="call"))
        for _ in range(2):
            for _ in range(4):
                await client.call_tool("echo", {"text": "hi"})
            await client.aclose()
        for server in servers:
            seen = await server.requests()
            opened = sum(record.rpc_method == "initialize" for record in seen)
            assert opened == sum(record.http_method == "DELETE" for record in seen) == 2


# -- configuration -----------------------------------------------------------------------------


def test_addresses_are_checked_and_their_secrets_are_never_shown() -> None:
    spec = ServerSpec(name="kit", urls=("http://localhost:1/mcp", "http://localhost:2/mcp"))
    assert spec.url == "http://localhost:1/mcp"
    assert ServerSpec(name="kit", urls=("http://localhost:1/mcp",)).urls == ()
    with pytest.warns(match="secret"):
        secret = ServerSpec(name="kit", urls=("http://localhost:1", "http://u:pa55@localhost:2"))
    assert "pa55" not in repr(secret) + secret.model_dump_json()


async def test_secrets_in_addresses_are_in_no_figure_error_or_event() -> None:
    hosts = [nobody().removeprefix("http://") for _ in range(2)]
    urls = [f"http://u:pa55w0rd@{host}?key=t0k3n" for host in hosts]
    with pytest.warns(match="secret"):
        spec = spec_of(urls)
    heard: list[Event] = []
    client = Client(spec)
    client.observe(heard.append)
    with pytest.raises(ServerUnavailable) as caught:
        await client.call_tool("echo", {"text": "hi"})
    told = [repr(client.endpoints), repr(client), str(caught.value), repr(caught.value), *heard]
    assert len(client.endpoints) == 2
    assert not [one for one in map(str, told) if "pa55w0rd" in one or "t0k3n" in one]
    await client.aclose()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"urls": ["http://localhost:1", "http://localhost:1"]}, "urls"),
        ({"urls": ["http://localhost:1", "ftp://localhost:2"]}, "urls"),
        ({"urls": ["http://localhost:1", "nonsense"]}, "urls"),
        (
            {"url": "http://localhost:3", "urls": ["http://localhost:1", "http://localhost:2"]},
            "urls",
        ),
        ({"urls": ["http://localhost:1", "http://localhost:2"], "command": "x"}, "url"),
        ({"urls": ["http://localhost:1"], "balance": "chance"}, "balance"),
    ],
)
def test_addresses_that_cannot_work_are_a_mistake_that_is_named(given: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"name": "kit", **given})
    assert caught.value.key is not None
    assert caught.value.key.startswith(key)
