"""Logging in to a server from the page, at a real authorization server."""

from pathlib import Path

import pytest

from tests.console.viewer import following, viewing
from tests.oauth.test_connected import config_of, guarded
from tests.oauth.world import browse
from toolkeep import Runtime
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.timeout(60)


async def test_a_login_begins_on_the_page_and_ends_at_its_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TOOLKEEP_KEY", "66" * 32)
    async with (
        guarded() as (_, origin),
        Runtime.open(config_of(origin, auth="oauth")) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
        following(viewer) as follower,
    ):
        (before,) = (await viewer.get("state")).json["servers"]
        begun = await viewer.post("servers/files/login")
        callback = await browse(begun.json["url"], until=f"{viewer.url}/callback")
        viewer.session.cookie_jar.clear()  # the browser comes from another site, without cookies
        forged = await viewer.request("GET", "/callback?code=x&state=y")
        done = await viewer.request("GET", callback.removeprefix(viewer.url))
        again = await viewer.request("GET", callback.removeprefix(viewer.url))
        healthy = await follower.until(
            lambda: [s for s in follower.state.get("servers", []) if s["health"] == "healthy"]
        )
    assert (before["health"], before["fault"]) == ("needs authorization", "login-needed")
    assert before["can_log_in"] is True
    assert (done.status, done.text) == (200, "Logged in to files. You can close this tab.")
    assert [answer.status for answer in (forged, again)] == [400, 400]
    assert done.headers["content-type"].startswith("text/plain")
    assert healthy[0]["name"] == "files"


async def test_a_server_without_logins_says_so():
    async with (
        ScriptedServer.local() as server,
        Runtime.open({"kit": {"url": server.url, "api_key": "a-key"}}) as runtime,
        viewing(runtime, allow_calls=True) as viewer,
    ):
        answer = await viewer.post("servers/kit/login")
    assert answer.status == 400
    assert "cannot log in" in answer.json["error"]["message"]
