"""`toolkeep login`, `logout` and `auth`, as a person uses them, in processes of their own."""

import asyncio
import contextlib
import re
import shutil
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from tests.cli.helpers_running import TOOLKEEP, Home
from tests.oauth.world import approve_device, browse, ledger, running_provider
from toolkeep.testing import ScriptedServer

pytestmark = [pytest.mark.requirement("N5"), pytest.mark.timeout(180)]

KEY = {"TOOLKEEP_KEY": "44" * 32}
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@asynccontextmanager
async def guarded(home: Home, **settings: Any) -> AsyncIterator[tuple[str, str]]:
    """A configuration with one server that wants a login, and the origin of its provider."""
    async with ScriptedServer.local() as server:
        with running_provider(upstream=server.url) as origin:
            yield home.configure({"files": {"url": f"{origin}/mcp", **settings}}), origin


@asynccontextmanager
async def logging_in(
    home: Home, *words: str, **env: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`toolkeep login` as it waits, and the address that it names."""
    command = (TOOLKEEP, "login", *words)
    given = home.env(**KEY, **env)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=home.path, env=given
    )
    try:
        async with asyncio.timeout(90):
            assert process.stderr is not None
            while not (line := await process.stderr.readline()).startswith(b"http"):
                assert line, "it ended before it named an address"
            yield process, line.decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def come_back(url: str, user: str) -> str:
    """Log in as this user, and bring back the address that the browser is sent to."""
    (redirect,) = parse_qs(urlsplit(url).query)["redirect_uri"]
    return await browse(url, user, until=redirect)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def test_a_person_pastes_the_address_and_is_logged_in_until_logout(home: Home):
    async with guarded(home) as (config, origin):
        ran = await home.run("call", "-c", config, "files.headers", env=KEY)
        assert ran.code == 1
        assert "Run 'toolkeep login files'" in ran.err
        async with logging_in(home, "files", "-c", config, "--no-browser") as (process, url):
            callback = await come_back(url, "alice")
            out, err = await process.communicate(f"\n{callback}\n".encode())
            assert (process.returncode, b"logged in to files" in out) == (0, True)
        ran = await home.run("call", "-c", config, "files.headers", "--json", env=KEY)
        assert '"x-user": "alice"' in ran.out
        ran = await home.run("auth", "--json", env=KEY)
        (login,) = ran.document["logins"]
        assert (login["server"], login["principal"], login["issuer"]) == ("files", None, origin)
        assert login["renewable"]
        said = (out + err).decode() + (await home.run("auth", env=KEY)).said + ran.out
        ran = await home.run("logout", "files", "-c", config, "--json", env=KEY)
        assert ran.document == {"server": "files", "principal": None, "revoked": True}
        assert (await ledger(origin))["revoked"] > 0
        assert (await home.run("auth", "--json", env=KEY)).document == {"logins": []}
        for secret in re.findall(r"code=([\w-]+)", callback):
            assert secret not in said
        for path in home.path.rglob("*"):
            assert not path.is_file() or b"refresh_token" not in path.read_bytes()


async def test_the_browser_comes_back_to_a_page_that_takes_one_answer(home: Home):
    async with guarded(home) as (config, _):
        async with logging_in(home, "-c", config, "--no-browser", "--as", "ann") as (process, url):
            callback = await come_back(url, "ann")
            base = callback.partition("/callback")[0]
            assert process.stdin is not None
            process.stdin.close()  # no one can paste anything: the page is left
            async with aiohttp.ClientSession() as session:
                for wrong in (
                    "/favicon.ico",
                    "/callback",
                    "/callback?state=x&code=y",
                    "/callback?",
                ):
                    async with session.get(base + wrong) as answer:
                        assert answer.status == 404
                async with session.get(callback) as answer:
                    assert "You are logged in" in await answer.text()
            assert await process.wait() == 0
        (login,) = (await home.run("auth", "--json", env=KEY)).document["logins"]
        assert (login["server"], login["principal"]) == ("files", "ann")


@pytest.mark.requirement("N8")
@pytest.mark.parametrize("key", ["callback_port", "redirect_uri"])
async def test_the_callback_is_where_the_client_is_registered(home: Home, key: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        at = f"http://127.0.0.1:{port}/{'callback' if key == 'callback_port' else 'my/own'}"
        auth = {"type": "oauth", key: port if key == "callback_port" else at}
        async with guarded(home, auth=auth) as (config, origin):
            ran = await home.run("login", "files", "-c", config, "--no-browser", env=KEY)
            assert (ran.code, f"cannot listen at 127.0.0.1:{port}" in ran.err) == (2, True)
            assert (await ledger(origin))["registered"] == []
            taken.close()
            async with logging_in(home, "-c", config, "--no-browser") as (process, url):
                callback = await come_back(url, "ann")
                assert callback.startswith(f"{at}?")
                async with aiohttp.ClientSession() as session, session.get(callback) as answer:
                    assert "You are logged in" in await answer.text()
                assert await process.wait() == 0


async def test_a_refused_login_says_why_here_and_in_the_browser(home: Home):
    async with guarded(home) as (config, _):  # noqa: SIM117
        async with logging_in(home, "-c", config, "--no-browser") as (process, url):
            callback = await come_back(url, "ann")
            refused = re.sub(r"code=[^&]+", "error=access_denied", callback)
            async with aiohttp.ClientSession() as session, session.get(refused) as answer:
                assert "access_denied" in await answer.text()
            _, err = await process.communicate()
            assert (process.returncode, b"access_denied" in err) == (1, True)


async def test_a_person_logs_in_on_another_device(home: Home):
    async with guarded(home) as (config, _):
        command = (TOOLKEEP, "login", "-c", config, "--device")
        env = home.env(**KEY)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, cwd=home.path, env=env
        )
        try:
            async with asyncio.timeout(90):
                assert process.stderr is not None
                line = (await process.stderr.readline()).decode()
                found = re.search(r"Open (\S+) .* code (\S+)", line)
                assert found is not None, line
                await approve_device(found[1], found[2], "carol")
                out, _ = await process.communicate()
                assert (process.returncode, b"logged in to files" in out) == (0, True)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def test_a_login_that_could_not_be_kept_is_not_begun(home: Home):
    async with guarded(home) as (config, origin):
        env = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
        ran = await home.run("login", "files", "-c", config, "--no-browser", env=env)
        assert ran.code == 2
        assert "TOOLKEEP_KEY" in ran.err
        assert (await ledger(origin))["registered"] == []


@pytest.mark.skipif(not CHROMIUM, reason="left out: the login in a real browser needs Chromium")
async def test_a_login_in_a_real_browser(home: Home):
    """oidc-provider's pages lead through redirects to the callback, which Chromium follows."""
    options = f"--headless=new --no-sandbox --disable-gpu --user-data-dir={home.path / 'chromium'}"
    browser = f"{CHROMIUM} {options} --virtual-time-budget=20000 --dump-dom %s"
    async with guarded(home) as (config, _):
        async with logging_in(home, "files", "-c", config, BROWSER=browser) as (process, _):
            out, err = await process.communicate()
            assert process.returncode == 0, err
            assert b"logged in to files" in out
        ran = await home.run("call", "-c", config, "files.headers", "--json", env=KEY)
        assert '"x-user": "somebody"' in ran.out
