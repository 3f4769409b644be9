"""`toolkeep check` at servers that want a login: which step of OAuth fails, and what to do."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.oauth.test_connected import guarded, log_in
from tests.oauth.world import Faulty, callback_for, faulty, token
from toolkeep import Runtime
from toolkeep._doctor.report import Fault, Finding, State
from toolkeep._doctor.steps import examine
from toolkeep.auth.configured import ServerAuth
from toolkeep.auth.login import begin_login, complete_login
from toolkeep.config import ServerSpec

pytestmark = pytest.mark.requirement("N5", "N8")


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("TOOLKEEP_KEY", "55" * 32)


async def findings(url: str, **settings: Any) -> list[Finding]:
    spec = ServerSpec.parse({"name": "files", "url": url, **settings})
    return [finding async for finding in examine(spec)]


async def failure(url: str, **settings: Any) -> Finding:
    found = await findings(url, **settings)
    (failed,) = (finding for finding in found if finding.state is State.FAILED)
    return failed


@asynccontextmanager
async def logged_in(server: Faulty, given: dict[str, Any], **auth: Any) -> AsyncIterator[str]:
    """A login with this token, at a server that refuses whatever it is sent."""
    server.standard()
    server.routes["/token"] = (200, given)
    url = f"{server.origin}/mcp"
    spec = ServerSpec.parse({"name": "files", "url": url, "auth": {"type": "oauth", **auth}})
    made = ServerAuth(spec)
    assert made.login is not None
    login = await begin_login(made.login, redirect_uri="http://127.0.0.1:7777/callback")
    await complete_login(made.login, callback_for(login.url))
    await made.aclose()
    yield url


WRONG: dict[str, tuple[Fault, str, dict[str, Any]]] = {
    "no metadata": (Fault.OAUTH_METADATA, "publishes no metadata", {}),
    "issuer": (Fault.OAUTH_ISSUER, "names the issuer", {"issuer": "https://other.example"}),
    "pkce": (Fault.OAUTH_PKCE, "PKCE", {"code_challenge_methods_supported": None}),
    "registration": (Fault.OAUTH_REGISTRATION, "client_id", {"registration_endpoint": None}),
    "nothing": (Fault.LOGIN_NEEDED, "toolkeep login files", {}),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_the_step_that_fails_is_named_with_a_remedy(wrong: str):
    fault, said, metadata = WRONG[wrong]
    async with faulty() as server:
        server.standard(**metadata)
        if wrong == "no metadata":
            del server.routes["/.well-known/oauth-authorization-server"]
        found = await failure(f"{server.origin}/mcp", auth="oauth")
        assert (found.fault, said in found.cause + found.remedy) == (fault, True), found
        assert found.remedy
        assert server.asked("/register") == [], "a check registers nothing"


async def test_a_server_that_offers_a_login_needs_no_configuration_to_be_examined():
    async with faulty() as server:
        server.standard()
        where = f"{server.origin}/.well-known/oauth-protected-resource/mcp"
        challenge = {"www-authenticate": f'Bearer resource_metadata="{where}"'}
        server.routes["/mcp"] = (401, {}, challenge)
        assert (await failure(f"{server.origin}/mcp")).fault is Fault.LOGIN_NEEDED


async def test_a_server_that_wants_a_key_is_not_examined_for_a_login():
    async with faulty() as server:
        server.standard()
        assert (await failure(f"{server.origin}/mcp")).fault is Fault.UNAUTHORIZED


def jwt_for(audience: str) -> str:
    parts = ({"alg": "none"}, {"aud": audience}, {})
    raw = (json.dumps(part).encode() for part in parts)
    return ".".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in raw)


ENDED: dict[str, tuple[Fault, Any, dict[str, str]]] = {
    "revoked": (Fault.LOGIN_EXPIRED, (400, {"error": "invalid_grant"}), {}),
    "down": (Fault.OAUTH_TOKEN, (503, {}), {}),
    "refused": (Fault.LOGIN_EXPIRED, (200, token("again", "r")), {}),
    "audience": (Fault.TOKEN_AUDIENCE, (200, token(jwt_for("https://other.example"), "r")), {}),
    "clock": (Fault.CLOCK, (200, token("again", "r")), {"date": "Mon, 01 Jan 2024 00:00:00 GMT"}),
}


@pytest.mark.parametrize("how", ENDED)
async def test_a_login_that_does_not_work_any_more_is_told_from_one_that_never_did(how: str):
    fault, answer, headers = ENDED[how]
    async with faulty() as server, logged_in(server, token("first", "the-refresh-token")) as url:
        server.routes["/token"] = answer
        server.routes["/mcp"] = (401, {}, {"www-authenticate": "Bearer", **headers})
        found = await failure(url, auth="oauth")
        assert found.fault is fault, found
        assert "the-refresh-token" not in repr(found)


async def test_a_service_without_a_token_is_named():
    async with faulty() as server:
        server.standard()
        server.routes["/token"] = (401, {"error": "invalid_client"})
        auth = {"type": "client_credentials", "client_id": "me", "client_secret": "the-secret"}
        found = await failure(f"{server.origin}/mcp", auth=auth)
        assert found.fault is Fault.OAUTH_TOKEN
        assert "invalid_client" in found.cause
        assert "the-secret" not in repr(found)


@pytest.mark.parametrize("configured", [True, False])
async def test_with_a_login_the_whole_server_is_examined(configured: bool):
    settings = {"auth": "oauth"} if configured else {}
    async with guarded() as (_, origin):
        servers = {"files": {"url": f"{origin}/mcp", **settings}}
        async with Runtime.open({"mcpServers": servers}) as runtime:
            await log_in(runtime, None, "alice")
        found = await findings(f"{origin}/mcp", **settings)
        assert [one for one in found if one.state is State.FAILED] == []
        assert found[-1].step.value == "ping"
