"""A stored legacy session, at servers on two SDKs: who takes it up, who does not, and its end."""

import asyncio
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.interop.programs import (
    BOUND,
    SESSIONS_SERVERS,
    both_sdks,
    listening,
    seen_at,
    sessions_in,
)
from toolkeep import CallTimedOut, Client

pytestmark = pytest.mark.requirement("S11")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def client_of(port: int, directory: Path, *, path: str = "/mcp", **options: Any) -> Client:
    spec = {"name": "stored", "url": f"http://127.0.0.1:{port}{path}", "mode": "legacy"}
    spec |= {key: options.pop(key) for key in ("api_key", "headers") if key in options}
    return Client(spec, state=f"sqlite://{directory}/state.db", **options)


async def session_of(client: Client) -> str | None:
    """The session in which a call was made; the client is closed afterwards."""
    async with asyncio.timeout(BOUND), client:
        assert (await client.call_tool("slow", {"tag": "it", "seconds": 0})).text == "it"
        return client.session_id


@both_sdks
@pytest.mark.parametrize(
    ("terminate", "ended"), [(None, False), (False, False), (True, True)], ids=str
)
async def test_closing_leaves_a_stored_session_unless_told_otherwise(
    sdk: str, terminate: bool | None, ended: bool, directory: Path
):
    async with listening(SESSIONS_SERVERS[sdk]) as port:
        first = await session_of(client_of(port, directory, terminate_on_close=terminate))
        assert (await seen_at(port))["delete"] == (1 if ended else 0)
        assert await sessions_in(directory) == ([] if ended else [first])
        second = await session_of(client_of(port, directory))
        assert (second == first) is not ended
        assert (await seen_at(port))["initialize"] == (2 if ended else 1)


async def answer_roots(needed: object) -> Any:
    return {"roots": []}


@both_sdks
async def test_nobody_takes_up_the_session_of_somebody_else(sdk: str, directory: Path):
    others: list[dict[str, Any]] = [
        {},
        {"principal": "ann"},
        {"principal": "bob"},
        {"api_key": "one"},
        {"api_key": "two"},
        {"headers": {"x-user": "ann"}},
        {"path": "/mcp?tenant=2"},
        {"roots": answer_roots},
    ]
    async with listening(SESSIONS_SERVERS[sdk]) as port:
        sessions = [await session_of(client_of(port, directory, **other)) for other in others]
        assert len(set(sessions)) == (await seen_at(port))["initialize"] == len(others)
        again = [await session_of(client_of(port, directory, **other)) for other in others]
        assert again == sessions
        rotated = client_of(port, directory, principal="ann", api_key="new")
        assert await session_of(rotated) == sessions[1]
        assert (await seen_at(port))["initialize"] == len(others)


@both_sdks
@pytest.mark.requirement("P5")
async def test_in_a_shared_session_only_the_call_that_was_given_up_ends(sdk: str, directory: Path):
    async with (
        listening(SESSIONS_SERVERS[sdk]) as port,
        asyncio.timeout(BOUND),
        client_of(port, directory) as first,
        client_of(port, directory) as second,
    ):
        assert first.session_id == second.session_id
        going = asyncio.create_task(second.call_tool("slow", {"tag": "on", "seconds": 1.0}))
        with pytest.raises(CallTimedOut):
            await first.call_tool("slow", {"tag": "given up", "seconds": 60}, timeout=0.3)
        assert (await going).text == "on"
        while (await seen_at(port))["cancelled"] < 1:
            await asyncio.sleep(0.01)
        assert (await first.call_tool("slow", {"tag": "next", "seconds": 0})).text == "next"
        assert (await seen_at(port))["cancelled"] == 1


async def end_session(port: int, session: str) -> None:
    url, headers = f"http://127.0.0.1:{port}/mcp", {"mcp-session-id": session}

    def ask() -> None:
        request = urllib.request.Request(url, method="DELETE", headers=headers)
        urllib.request.urlopen(request, timeout=BOUND).close()

    await asyncio.to_thread(ask)


@both_sdks
async def test_a_stored_session_that_the_server_has_ended_is_replaced(sdk: str, directory: Path):
    async with listening(SESSIONS_SERVERS[sdk]) as port:
        first = await session_of(client_of(port, directory))
        assert first is not None
        await end_session(port, first)
        second = await session_of(client_of(port, directory))
        assert second != first
        assert await sessions_in(directory) == [second]
        assert await session_of(client_of(port, directory)) == second
        assert (await seen_at(port))["initialize"] == 2


def readable_by_others(directory: Path) -> None:
    directory.chmod(0o755)


def a_link(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"))


def a_file(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.write_text("no directory")


def no_database(directory: Path) -> None:
    (directory / "state.db").write_text("{" * 10_000)


def a_database_readable_by_others(directory: Path) -> None:
    (directory / "state.db").chmod(0o644)


TROUBLES = (
    readable_by_others,
    a_link,
    a_file,
    no_database,
    a_database_readable_by_others,
)


@pytest.mark.skipif(os.name != "posix", reason="files have no such modes here")
@both_sdks
async def test_a_store_that_cannot_be_used_costs_a_fresh_session_and_no_call(
    sdk: str, tmp_path: Path
):
    async with listening(SESSIONS_SERVERS[sdk]) as port:
        for number, trouble in enumerate(TROUBLES):
            directory = tmp_path / str(number) / "sessions"
            first = await session_of(client_of(port, directory))
            trouble(directory)
            assert await session_of(client_of(port, directory)) != first, trouble.__name__
        assert (await seen_at(port))["initialize"] == 2 * len(TROUBLES)
