"""No secret is shown: not in errors, their causes, reprs, events or logs, whatever goes wrong."""

import asyncio
import base64
import traceback
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal
from urllib.parse import quote

import pytest

from tests.engine.helpers_secrets import (
    HEADER,
    KEY,
    MARK,
    MINE,
    PASSWORD,
    PROXY,
    QUERY,
    USER,
    Stage,
    chain,
    stage,
)
from tests.engine.helpers_tasks import Era, closing, every_era, outcome
from toolkeep import (
    AuthNeeded,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    Client,
    ConfigError,
    InvalidArguments,
    NotPermitted,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.auth import AuthRequest, Challenge, StaticKey
from toolkeep.config import ServerSpec
from toolkeep.errors import Delivery
from toolkeep.testing import ALL_LOSSES, Behaviour, FaultProxy, Rule, ScriptedServer, SessionLoss

pytestmark = pytest.mark.requirement("H6")


def call(stage: Stage, tool: str = "record", **more: Any) -> Awaitable[Any]:
    return stage.client.call_tool(tool, headers={"x-request-id": MINE}, **more)


def _basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


ANSWERS: dict[str, tuple[Behaviour, type[BaseException]]] = {
    "401": (Behaviour(status=401), AuthNeeded),
    "403": (Behaviour(status=403), AuthNeeded),
    "429": (Behaviour(status=429), CallNotDelivered),
    "400": (Behaviour(status=400), CallNotDelivered),
    "500": (Behaviour(status=500, body="oops"), CallOutcomeUnknown),
    "html": (Behaviour(body="<html>"), CallOutcomeUnknown),
    "half a JSON": (Behaviour(body='{"jsonrpc": '), CallOutcomeUnknown),
    "reset": (Behaviour(drop="after_run", reset=True), CallOutcomeUnknown),
    "closed": (Behaviour(drop="after_body"), CallOutcomeUnknown),
    "cut": (Behaviour(drop="mid_answer"), CallOutcomeUnknown),
    "rejected": (Behaviour(error={"code": -32602, "message": "no"}), CallRejected),
    "foreign redirect": (
        Behaviour(redirect=f"http://{USER}:{PASSWORD}@elsewhere.test/?token={QUERY}"),
        CallOutcomeUnknown,
    ),
    "redirect to itself": (Behaviour(redirect=f"/mcp?token={QUERY}"), CallOutcomeUnknown),
    "bad redirect": (Behaviour(redirect=f"http://{USER}:{PASSWORD}@[/"), CallOutcomeUnknown),
    "too large": (Behaviour(body_bytes=200_000), CallOutcomeUnknown),
}


@pytest.mark.parametrize("answer", ANSWERS)
@every_era
async def test_no_answer_makes_an_error_show_a_secret(
    era: Era, answer: str, caplog: pytest.LogCaptureFixture
):
    behaviour, kind = ANSWERS[answer]
    async with stage(era, caplog, max_result_bytes=100_000) as act:
        await act.client.connect()
        await act.server.script(Rule(tool="record", do=behaviour))
        await act.expect(kind, call(act))


@pytest.mark.parametrize("answer", ANSWERS)
@every_era
async def test_no_answer_to_the_handshake_makes_an_error_show_a_secret(
    era: Era, answer: str, caplog: pytest.LogCaptureFixture
):
    async with stage(era, caplog) as act:
        await act.server.script(Rule(do=ANSWERS[answer][0]))
        error = await outcome(call(act))
        assert isinstance(error, ToolkeepError)
        act.errors.append(error)


async def refused(act: Stage) -> None:
    act.proxy.refuse()
    act.proxy.kill_connections()
    await act.expect(ServerUnavailable, call(act))


async def timed_out(act: Stage) -> None:
    await act.client.connect()
    await act.expect(CallTimedOut, call(act, "slow", arguments={"seconds": 20}, timeout=0.1))


async def bad_arguments(act: Stage) -> None:
    await act.client.list_tools()
    await act.expect(InvalidArguments, call(act, "add", arguments={"a": 1}))
    await act.expect(InvalidArguments, call(act, "echo", arguments={"text": object()}))


async def bad_header(act: Stage) -> None:
    header = {"x-mine": f"{MINE}\r\nx-other: 1"}
    await act.expect(InvalidArguments, act.client.call_tool("record", headers=header))


async def not_permitted(act: Stage) -> None:
    if act.client.spec.mode == "legacy":
        header = {"authorization": f"Bearer {MINE}"}
        await act.expect(NotPermitted, act.client.call_tool("record", headers=header))


async def cancelled(act: Stage) -> None:
    caller = asyncio.ensure_future(call(act, "slow", arguments={"seconds": 20}))
    await act.server.requests(tool="slow", at_least=1)
    caller.cancel()
    await asyncio.wait((caller,), timeout=2)
    assert caller.cancelled()
    await act.server.cancelled(at_least=1)


async def closed_in_flight(act: Stage) -> None:
    await act.client.connect()
    caller = asyncio.ensure_future(call(act, "slow", arguments={"seconds": 20}))
    await act.server.requests(tool="slow", at_least=1)
    await act.client.aclose()
    await act.expect(CallOutcomeUnknown, caller)


async def streamed(act: Stage) -> None:
    async with act.client.stream("steps", {"count": 2}, headers={"x-request-id": MINE}) as watched:
        act.events.extend([event async for event in watched])


SCENES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    *(refused, timed_out, bad_arguments, bad_header, not_permitted, cancelled),
    *(closed_in_flight, streamed),
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@every_era
async def test_nothing_that_goes_wrong_on_our_side_shows_a_secret(
    era: Era, scene: Callable[[Stage], Awaitable[None]], caplog: pytest.LogCaptureFixture
):
    async with stage(era, caplog) as act:
        await scene(act)


@pytest.mark.parametrize("replays", [0, 3])
@pytest.mark.parametrize("loss", ALL_LOSSES)
async def test_a_lost_session_is_told_without_its_id(
    loss: str, replays: int, caplog: pytest.LogCaptureFixture
):
    """A session id lets its holder speak for the session; some servers quote it."""
    async with stage("legacy", caplog, session_loss=ALL_LOSSES[loss], max_retries=replays) as act:
        await act.client.connect()
        await act.server.forget_sessions()
        if replays:
            await call(act)
        else:
            await act.expect(CallNotDelivered, call(act))
        assert len(act.sessions) >= 1


QUOTED = '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Unknown session {session}"}}'


async def test_a_session_id_that_the_server_quotes_is_not_shown(caplog: pytest.LogCaptureFixture):
    loss = SessionLoss(source="a server that quotes", status=404, body=QUOTED)
    async with stage("legacy", caplog, session_loss=loss) as act:
        await act.client.connect()
        await act.server.forget_sessions()
        await act.expect(CallNotDelivered, call(act))
        assert act.sessions


@pytest.mark.parametrize("status", [200, 400, 401])
@every_era
async def test_a_key_that_the_server_quotes_is_not_shown(
    era: Era, status: int, caplog: pytest.LogCaptureFixture
):
    async with stage(era, caplog) as act:
        await act.client.connect()
        said = {"code": -32000, "message": f"the key {KEY} is not known to {HEADER}"}
        await act.server.script(Rule(tool="record", do=Behaviour(status=status, error=said)))
        await act.expect(AuthNeeded if status == 401 else CallRejected, call(act))


@every_era
async def test_what_is_in_the_url_is_sent_but_not_shown(era: Era, caplog: pytest.LogCaptureFixture):
    async with ScriptedServer.local(era=era) as server:
        url = f"http://{USER}:{PASSWORD}@127.0.0.1:{server.port}/mcp?api_key={QUERY}"
        async with stage(era, caplog, url=url, api_key=None) as act:
            await act.client.connect()
            said = {"code": -32000, "message": f"{USER} with {PASSWORD} and {QUERY}: unknown"}
            await server.script(
                Rule(tool="record", times=1, do=Behaviour(status=500)),
                Rule(tool="record", do=Behaviour(error=said)),
            )
            await act.expect(CallOutcomeUnknown, call(act))
            await act.expect(CallRejected, call(act))
            sent = (await server.requests(tool="record"))[0].headers
            assert sent["authorization"].startswith("Basic ")


@pytest.mark.parametrize("answer", ["refuses", "407", "resets"])
@every_era
async def test_a_proxys_credentials_are_not_shown(
    era: Era, answer: str, caplog: pytest.LogCaptureFixture
):
    async with ScriptedServer.local() as server, FaultProxy.to("127.0.0.1", server.port) as dead:
        port = server.port if answer == "407" else dead.port
        if answer == "refuses":
            dead.refuse()
        if answer == "resets":
            dead.reset()
        await server.script(Rule(do=Behaviour(status=407)))
        proxy = f"http://{USER}:{PROXY}@127.0.0.1:{port}"
        async with stage(era, caplog, proxy=proxy) as act:
            error = await outcome(call(act))
            assert isinstance(error, ToolkeepError)
            act.errors.append(error)


class Talkative:
    """An authorizer whose errors quote what it works with."""

    def __init__(self, where: str) -> None:
        self.where, self.armed = where, False

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if self.armed and self.where == "headers":
            raise RuntimeError(f"no token for {KEY}")
        if self.armed and self.where == "malformed":
            return {"authorization": f"Bearer {KEY}\r\nx-other: 1"}
        return {"authorization": f"Bearer {KEY}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        raise RuntimeError(f"no token for {KEY}")


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("where", ["headers", "malformed", "challenge"])
@every_era
async def test_what_an_authorizer_says_is_not_passed_on(
    era: Era, where: str, opened: bool, caplog: pytest.LogCaptureFixture
):
    async with stage(era, caplog) as act:
        auth = Talkative(where)
        async with closing(Client(act.client.spec, auth=auth)) as client:
            if opened:
                await client.connect()
            await act.server.script(Rule(do=Behaviour(status=401)))
            auth.armed = True
            error = await outcome(client.call_tool("record"))
        assert isinstance(error, ToolkeepError)
        assert error.delivery in (Delivery.NOT_SENT, Delivery.REFUSED)
        act.errors.append(error)


BAD_SPECS: dict[str, dict[str, Any]] = {
    "no scheme, user": {"url": f"{USER}:{PASSWORD}@host/mcp"},
    "no scheme, query": {"url": f"host/mcp?token={QUERY}"},
    "no scheme, slashes": {"url": f"//{USER}:{PASSWORD}@host/mcp"},
    "other scheme": {"url": f"ftp://{USER}:{PASSWORD}@host/mcp"},
    "bad port": {"url": f"http://{USER}:{PASSWORD}@host:port/mcp"},
    "no host": {"url": f"http://{USER}:{PASSWORD}@/mcp"},
    "bad proxy": {"proxy": f"{USER}:{PROXY}@host:1"},
    "socks proxy": {"proxy": f"socks5://{USER}:{PROXY}@host:1"},
    "key of a wrong type": {"api_key": [KEY]},
    "header of a wrong type": {"headers": {"x-secret": [HEADER]}},
    "header with a line break": {"headers": {"x-secret": f"{HEADER}\r\n"}},
    "unset variable": {"api_key": f"{KEY}${{UNSET_VARIABLE}}"},
    "half a variable": {"api_key": f"{KEY}${{"},
    "unknown key": {"apikey": KEY},
}


@pytest.mark.parametrize("bad", BAD_SPECS)
def test_no_mistake_in_the_configuration_shows_a_secret(bad: str):
    spec = {"name": "kit", "url": "http://localhost/mcp", **BAD_SPECS[bad]}
    with pytest.raises(ConfigError) as caught:
        Client(spec)
    shown = [repr(error) + str(error) for error in chain(caught.value)]
    shown += traceback.format_exception(caught.value)
    assert not [line for line in shown if MARK in line.replace(repr(spec), "")]


def test_no_repr_shows_a_secret():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = ServerSpec.parse(
            {
                "name": "kit",
                "url": f"https://{USER}:{PASSWORD}@host/mcp?token={QUERY}",
                "api_key": KEY,
                "headers": {"x-secret": HEADER},
                "proxy": f"http://{USER}:{PROXY}@host:1",
                "tls": {"client_key_password": PASSWORD},
            }
        )
    for shown in (spec, Client(spec), StaticKey(KEY), spec.tls, spec.api_key, [spec], {"s": spec}):
        assert MARK not in repr(shown)
        assert MARK not in str(shown)
        assert MARK not in f"{shown}"


async def test_a_stranger_at_the_address_is_told_without_the_addresss_secrets(
    caplog: pytest.LogCaptureFixture,
):
    async with stage("legacy", caplog) as act:
        await act.server.script(Rule(do=Behaviour(body="<html>", content_type="text/html")))
        await act.expect(RemoteProtocolError, call(act))


async def test_what_refuses_a_notification_is_quoted_without_secrets(
    caplog: pytest.LogCaptureFixture,
):
    quote = {"code": -32000, "message": f"bad {KEY}, bad {HEADER}"}
    async with stage("legacy", caplog) as acted:
        refusal = Behaviour(status=422, error=quote)
        await acted.server.script(Rule(method="notifications/initialized", do=refusal))
        await acted.expect(ServerUnavailable, acted.client.connect())
        assert "bad ***" in str(acted.errors[0])


# -- what servers quote of it ----------------------------------------------------------------------

COOKIE, SHORT = "sekret-cookie", "sekr3t"
PARTS = {
    "a cookie's value": ({"cookie": f"theme=dark; sid={COOKIE}"}, COOKIE),
    "the password of Basic": ({"authorization": _basic(f"me:{PASSWORD}")}, PASSWORD),
    "a short password of Basic": ({"authorization": _basic("me:sekret")}, "sekret"),
    "a quoted parameter": (
        {"authorization": f'Digest username="me", response="{HEADER}", qop=auth'},
        HEADER,
    ),
    "a bare parameter": ({"x-credentials": f"id=7,hmac={HEADER}"}, HEADER),
    "as a URL has it": ({"x-secret": f"{HEADER} /+"}, quote(f"{HEADER} /+", safe="")),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("answer", ["json", "sse"])
@every_era
async def test_a_part_of_a_header_that_the_server_quotes_is_not_shown(
    era: Era, answer: str, part: str, caplog: pytest.LogCaptureFixture
):
    headers, quoted = PARTS[part]
    async with stage(era, caplog, api_key=None, headers=headers) as act:
        await act.client.connect()
        said = {"code": -32000, "message": f"who is {quoted}?", "data": [{quoted: [quoted]}]}
        prefix = ": a stream\n\n" if answer == "sse" else None
        await act.server.script(Rule(tool="record", do=Behaviour(error=said, sse_prefix=prefix)))
        await act.expect(CallRejected, call(act))
        error = act.errors[0]
        assert isinstance(error, CallRejected)
        assert error.failure is not None
        assert error.failure.data == [{"***": ["***"]}]


class Rotating:
    """An authorizer that has another token after each challenge."""

    def __init__(self) -> None:
        self.number = 1

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"authorization": f"Bearer {KEY}-{self.number}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        self.number += 1
        return True


@pytest.mark.parametrize("transport", ["streamable", "sse"])
async def test_a_token_that_was_renewed_is_still_not_shown(
    transport: Literal["streamable", "sse"], caplog: pytest.LogCaptureFixture
):
    """The server quotes the token of the attempt before, and in another session even."""
    said = {"code": -32000, "message": f"{KEY}-1 was revoked", "data": {f"{KEY}-1": f"{KEY}-2"}}
    async with ScriptedServer.local(era="legacy", transport=transport) as server:
        terms = {
            "url": server.url,
            "transport": "sse" if transport == "sse" else None,
            "max_retries": 2,
        }
        async with stage("legacy", caplog) as act:
            spec = act.client.spec.replace(**terms, api_key=None)
            async with closing(Client(spec, auth=Rotating())) as client:
                await client.connect()
                await server.script(
                    Rule(tool="record", times=1, do=Behaviour(run=False, status=401)),
                    Rule(tool="record", do=Behaviour(error=said)),
                )
                for _ in range(2):
                    error = await outcome(client.call_tool("record"))
                    assert isinstance(error, CallRejected), repr(error)
                    act.errors.append(error)
                    await server.forget_sessions()


async def test_a_callers_earlier_token_is_not_shown(caplog: pytest.LogCaptureFixture):
    """Of a caller that renews its tokens itself, and gives each call the one of now."""
    said = {"code": -32000, "message": f"{MINE}-1 was revoked"}
    async with stage("modern", caplog, api_key=None) as act:
        await act.client.call_tool("record", headers={"authorization": f"Bearer {MINE}-1"})
        await act.server.script(Rule(tool="record", do=Behaviour(error=said)))
        later = {"authorization": f"Bearer {MINE}-2"}
        await act.expect(CallRejected, act.client.call_tool("record", headers=later))


QUERIES = ["code", "jwt", "pwd", "pass", "PASS", "db_pass", "otp", "sid", "device_code", "%63ode"]


@pytest.mark.parametrize("name", QUERIES)
async def test_a_secret_parameter_that_the_server_quotes_is_not_shown(
    name: str, caplog: pytest.LogCaptureFixture
):
    async with ScriptedServer.local() as server:
        url = f"{server.url}?{name}={QUERY}"
        async with stage("legacy", caplog, url=url, api_key=None) as act:
            await act.client.connect()
            said = {"code": -32000, "message": f"{QUERY} has expired"}
            await server.script(Rule(tool="record", do=Behaviour(error=said)))
            await act.expect(CallRejected, call(act))
