"""Clients and runtimes at a scripted MCP server that stands behind oidc-provider."""

import asyncio
import logging
import re
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.oauth.test_real_server import signing_key
from tests.oauth.world import REDIRECT, browse, ledger, order, running_provider
from toolkeep import AuthNeeded, CallContext, Client, ConfigError, Runtime, ToolkeepError
from toolkeep.auth import LoginRequest
from toolkeep.auth.authorizer import OAuthError
from toolkeep.auth.grants import stored_grants
from toolkeep.auth.storage import LoginStorage
from toolkeep.events import Health
from toolkeep.testing import Behaviour, Rule, ScriptedServer

KEY = "33" * 32
OAUTH: dict[str, Any] = {"auth": {"type": "oauth", "redirect_uri": REDIRECT}}


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logins of this test are in a file of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("TOOLKEEP_KEY", KEY)


@asynccontextmanager
async def guarded(era: str = "both", **settings: Any) -> AsyncIterator[tuple[ScriptedServer, str]]:
    """A scripted server, and the origin of the authorization server before it."""
    async with ScriptedServer.local(era=era) as server:  # pyright: ignore[reportArgumentType]
        with running_provider(upstream=server.url, **settings) as origin:
            yield server, origin


def config_of(origin: str, **files: Any) -> dict[str, Any]:
    return {"mcpServers": {"files": {"url": f"{origin}/mcp", **files}}}


def as_user(name: str) -> CallContext:
    return CallContext(principal=name)


async def who(runtime: Runtime, principal: str | None) -> str:
    context = None if principal is None else as_user(principal)
    return (await runtime.call("files.headers", context=context)).data["x-user"]


async def log_in(runtime: Runtime, principal: str | None, user: str) -> None:
    login = await runtime.begin_login("files", principal, redirect_uri=REDIRECT)
    assert isinstance(login, LoginRequest)
    callback = await browse(login.url, user)
    done = await runtime.complete_login(callback, principal=principal)
    assert (done.server, done.principal, done.is_renewable) == ("files", principal, True)


@pytest.mark.requirement("N3", "N5")
@pytest.mark.parametrize("configured", [True, False], ids=["configured", "found out"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_wants_a_login_works_as_soon_as_there_is_one(
    era: str, configured: bool
):
    async with guarded(era) as (server, origin):
        spec = config_of(origin, **(OAUTH if configured else {}))
        async with Runtime.open(spec) as runtime:
            (status,) = runtime.servers
            assert status.health is Health.NEEDS_AUTHORIZATION
            assert "Run 'toolkeep login files'" in str(status.error)
            with pytest.raises(AuthNeeded, match="toolkeep login files") as caught:
                await runtime.call("files.headers")
            assert caught.value.scopes == ("files:read",)
            assert await server.requests() == [], "nothing reaches it without a token"
            await log_in(runtime, None, "alice")
            assert runtime.servers[0].health is Health.HEALTHY
            assert await who(runtime, None) == "alice"
        # A process that starts later needs no login; found out: after one refused request.
        async with Runtime.open(spec) as runtime:
            assert await who(runtime, None) == "alice"


@pytest.mark.requirement("N7")
async def test_users_of_one_runtime_have_their_own_accounts():
    async with guarded() as (_, origin), Runtime.open(config_of(origin, **OAUTH)) as runtime:
        for name in ("ann", "ben"):
            with pytest.raises(AuthNeeded, match=rf"begin_login\('files', '{name}'\)") as e:
                await who(runtime, name)
            assert e.value.principal == name
            await log_in(runtime, name, f"account-of-{name}")
        users = ["ann", "ben"] * 10
        found = await asyncio.gather(*(who(runtime, name) for name in users))
        assert found == [f"account-of-{name}" for name in users]
        with pytest.raises(AuthNeeded):
            await who(runtime, None)
        assert await runtime.logout("files", "ann")
        with pytest.raises(AuthNeeded):
            await who(runtime, "ann")
        assert await who(runtime, "ben") == "account-of-ben"


@pytest.mark.requirement("N5")
async def test_another_replica_completes_a_login_and_its_user_is_logged_in_at_both():
    async with guarded() as (_, origin):
        spec = config_of(origin, **OAUTH)
        async with Runtime.open(spec) as first, Runtime.open(spec) as second:
            login = await first.begin_login("files", "ann")
            callback = await browse(login.url, "ann")
            with pytest.raises(OAuthError, match="another principal"):
                await second.complete_login(callback, principal="eve")
            await second.complete_login(callback, principal="ann")
            assert [await who(one, "ann") for one in (first, second)] == ["ann", "ann"]


@pytest.mark.requirement("N4")
async def test_a_client_refreshes_by_itself_and_asks_nobody():
    async with guarded(ttl=2) as (_, origin):
        async with Runtime.open(config_of(origin)) as runtime:
            await log_in(runtime, None, "alice")
        async with Client({"name": "files", "url": f"{origin}/mcp"}) as client:
            async with asyncio.timeout(30):
                while "refresh_token" not in (await ledger(origin))["grants"]:
                    assert (await client.call_tool("headers")).data["x-user"] == "alice"
                    await asyncio.sleep(0.1)
        assert (await ledger(origin))["refused"] == []


@pytest.mark.requirement("N4")
@pytest.mark.parametrize("configured", [True, False], ids=["configured", "found out"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_stored_token_that_is_refused_is_refreshed_after_a_restart(
    era: str, configured: bool
):
    async with guarded(era) as (_, origin):
        spec = config_of(origin, **(OAUTH if configured else {}))
        async with Runtime.open(spec) as runtime:
            await log_in(runtime, None, "alice")
        await order(origin, "/expire?user=alice")
        async with Runtime.open(spec) as runtime:
            assert await who(runtime, None) == "alice"
        assert (await ledger(origin))["grants"] == ["authorization_code", "refresh_token"]


@pytest.mark.requirement("N3")
async def test_a_call_that_needs_more_scopes_says_so_and_a_login_gives_them():
    async with guarded(needs={"record": "files:write"}) as (server, origin):
        spec = config_of(origin, auth={"scopes": "files:read"})
        async with Runtime.open(spec) as runtime:
            await log_in(runtime, None, "alice")
            with pytest.raises(AuthNeeded) as caught:
                await runtime.call("files.record", {"key": "k"})
            assert (caught.value.status, "files:write" in caught.value.scopes) == (403, True)
            assert await server.executions("k") == 0
            await log_in(runtime, None, "alice")
            await runtime.call("files.record", {"key": "k"})
            assert await server.executions("k") == 1


@pytest.mark.requirement("N6")
async def test_services_are_configured_with_a_secret_or_a_key(monkeypatch: pytest.MonkeyPatch):
    key, public = signing_key()
    secret = {"auth_method": "client_secret_post", "client_secret": "${SECRET}"}
    services = {
        "service": secret,
        "signer": {"signing_key": "${SIGNING_KEY}", "key_id": "one"},
    }
    monkeypatch.setenv("SECRET", "service-secret")
    monkeypatch.setenv("SIGNING_KEY", key)
    async with guarded(jwks={"keys": [public]}) as (_, origin):
        for name, how in services.items():
            auth = {"type": "client_credentials", "client_id": name, **how}
            async with Runtime.open(config_of(origin, auth=auth)) as runtime:
                assert await who(runtime, None) == name
                assert await who(runtime, "ann") == name
                assert "service-secret" not in repr(runtime.configuration)
                with pytest.raises(ConfigError, match="users cannot log in"):
                    await runtime.begin_login("files")


async def test_a_call_with_a_token_of_its_own_gets_no_other():
    async with guarded("modern") as (_, origin):
        async with Runtime.open(config_of(origin)) as runtime:
            await log_in(runtime, None, "alice")
            assert await who(runtime, None) == "alice"
        async with Client({"name": "files", "url": f"{origin}/mcp"}) as client:
            assert (await client.call_tool("headers")).data["x-user"] == "alice"
            with pytest.raises(AuthNeeded):
                await client.call_tool("headers", headers={"authorization": "Bearer wrong"})


async def test_the_results_of_a_login_are_not_shared_with_others():
    async with guarded() as (server, origin):
        spec = config_of(origin, cache_results=60)
        for _ in range(2):
            async with Runtime.open(spec) as runtime:
                if not await _has_login(runtime):
                    await log_in(runtime, None, "alice")
                await runtime.call("files.headers")
        assert len(await server.requests(tool="headers")) >= 2


async def _has_login(runtime: Runtime) -> bool:
    return runtime.servers[0].health is Health.HEALTHY


async def test_a_server_with_a_key_cannot_be_logged_in_to():
    async with (
        ScriptedServer.local(api_key="k") as server,
        Runtime.open({"mcpServers": {"kit": {"url": server.url, "api_key": "k"}}}) as runtime,
    ):
        with pytest.raises(ConfigError, match="users cannot log in to this server"):
            await runtime.begin_login("kit", redirect_uri=REDIRECT)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"auth": "oauth", "api_key": "k"}, "auth"),
        ({"auth": "oauth", "headers": {"Authorization": "x"}}, "auth"),
        ({"auth": "oauth", "urls": ["http://127.0.0.1:1/mcp", "http://[::1]:1/mcp"]}, "auth"),
        ({"auth": "sk-secret-token"}, "auth"),
        ({"auth": {"client_secret": "s"}}, "auth.client_id"),
        ({"auth": {"type": "client_credentials"}}, "auth.client_id"),
        ({"auth": {"callback_port": 70000}}, "auth.callback_port"),
        ({"auth": {"redirect_uri": "http://app.example/cb"}}, "auth.redirect_uri"),
        ({"auth": {"issuer": "login.example"}}, "auth.issuer"),
        ({"auth": {"resource": "everything"}}, "auth.resource"),
        ({"auth": {"clientid": "x"}}, "auth.clientid"),
    ],
)
def test_mistakes_are_found_before_anything_is_opened(given: dict[str, Any], key: str):
    with pytest.raises(ConfigError) as caught:
        Client({"name": "kit", "url": "http://127.0.0.1:1/mcp", **given})
    assert caught.value.key == key
    assert "secret-token" not in str(caught.value)


@pytest.mark.requirement("N7")
async def test_no_token_is_in_logs_events_errors_or_reprs(caplog: pytest.LogCaptureFixture):
    """Through a login, calls, a refresh, a refused scope, a failing tool, a logout and its end."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    secrets: set[str] = set()
    async with guarded(ttl=2, needs={"record": "files:write"}) as (server, origin):
        await server.script(Rule(tool="fail", do=Behaviour(status=500), times=1))
        async with Runtime.open(config_of(origin, auth={"scopes": "files:read"})) as runtime:
            runtime.observe(lambda event: told.append(f"{event!r} {event.to_json()}"))
            login = await runtime.begin_login("files", "ann", redirect_uri=REDIRECT)
            callback = await browse(login.url, "ann")
            secrets.update(re.findall(r"[?&]code=([^&]+)", callback))
            told.append(repr(await runtime.complete_login(callback, principal="ann")))
            storage = LoginStorage()
            store = await storage.open()
            async with asyncio.timeout(30):
                while (await ledger(origin))["grants"].count("refresh_token") < 2:
                    for tool, arguments in (
                        ("echo", {"text": "x"}),
                        ("record", {"key": "k"}),
                        ("fail", {}),
                    ):
                        try:
                            await runtime.call(f"files.{tool}", arguments, context=as_user("ann"))
                        except ToolkeepError as error:
                            told.append("".join(traceback.format_exception(error)) + repr(error))
                    async for grant in stored_grants(store):
                        secrets |= {grant.access_token, grant.refresh_token}
                        told.append(repr(grant))
                    await asyncio.sleep(0.1)
            assert await runtime.logout("files", "ann")
            told.append(repr([runtime, *runtime.servers, runtime.configuration]))
            await storage.aclose()
    told.append(caplog.text)
    assert len(secrets) >= 6
    shown = "\n".join(told)
    assert [secret for secret in secrets if secret in shown] == []
