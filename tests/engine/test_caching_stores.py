"""A store for answers may be shared: by those who may see the same, and by nobody else.

One that fails costs time, never an answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_rounds import ONE_EACH, Way, client_of, server_of
from toolkeep.auth import StaticKey
from toolkeep.state import MemoryStore

HTTP = Way("json", "modern")
STDIO = Way("stdio", "modern")
NOTES = "kit://notes"
SECRET = "s3cret"


async def ask(client: Any) -> None:
    await client.list_tools()
    await client.read_resource(NOTES)


async def asked(server: Any) -> tuple[int, int]:
    lists, reads = [await server.requests(m) for m in ("tools/list", "resources/read")]
    return len(lists), len(reads)


SAME = [
    {},
    {"principal": "ann"},
    {"principal": "ann", "auth": StaticKey("k")},
    {"api_key": "k"},
    {"headers": {"authorization": "Bearer k"}},
]


@pytest.mark.parametrize("scope", ["public", "private"])
@pytest.mark.parametrize("given", SAME, ids=range(len(SAME)))
async def test_clients_of_one_principal_share_a_store(given: Any, scope: Any) -> None:
    store = MemoryStore()
    async with server_of(HTTP) as server:
        await server.set_cache(60_000, scope)
        for _ in range(2):
            async with client_of(server, HTTP, state=store, **given) as client:
                await ask(client)
        assert await asked(server) == (1, 1)


APART: list[tuple[Any, Any]] = [
    ({"principal": "ann"}, {"principal": "bob"}),
    ({"principal": "ann"}, {}),
    ({"api_key": "a"}, {"api_key": "b"}),
    ({"api_key": "a"}, {}),
    ({"headers": {"authorization": "Bearer a"}}, {"headers": {"authorization": "Bearer b"}}),
    ({"headers": {"x-user": "a"}}, {"headers": {"x-user": "b"}}),
    *(
        ({"principal": "ann", "headers": {"x-tenant": "a"}}, {"principal": "ann", **other})
        for other in ({"headers": {"x-tenant": "b"}}, {})
    ),
]


@pytest.mark.parametrize("scope", ["public", "private"])
@pytest.mark.parametrize(("one", "other"), APART, ids=range(len(APART)))
async def test_others_are_never_shown_what_one_was_told(one: Any, other: Any, scope: Any) -> None:
    store = MemoryStore()
    async with server_of(HTTP) as server:
        await server.set_cache(60_000, scope)
        for given in (one, other):
            async with client_of(server, HTTP, state=store, **given) as client:
                await ask(client)
        assert await asked(server) == (2, 2)


async def test_servers_are_kept_apart() -> None:
    store = MemoryStore()
    async with server_of(HTTP) as one, server_of(HTTP) as other:
        for server in (one, other):
            await server.set_cache(60_000)
            async with client_of(server, HTTP, state=store, principal="ann") as client:
                await ask(client)
            assert await asked(server) == (1, 1)


async def test_programs_are_kept_apart() -> None:
    store = MemoryStore()
    async with server_of(STDIO) as one, server_of(STDIO) as other:
        for server in (one, other):
            await server.set_cache(60_000)
            async with client_of(server, STDIO, state=store, principal="ann") as client:
                await ask(client)
            assert await asked(server) == (1, 1), "the same name, another program"


async def test_a_program_started_in_another_directory_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with server_of(STDIO) as server:
        await server.set_cache(60_000)
        for here in ("one", "other"):
            (tmp_path / here).mkdir()
            monkeypatch.chdir(tmp_path / here)
            async with client_of(server, STDIO, state=store, principal="ann") as client:
                await ask(client)
        assert await asked(server) == (2, 2)


@pytest.mark.parametrize("way", ONE_EACH, ids=str)
async def test_no_secret_is_a_key_of_the_store(way: Way) -> None:
    keys: list[str] = []

    class Seeing(MemoryStore):
        async def get(self, key: str) -> Any:
            keys.append(key)
            return await super().get(key)

        async def put(self, key: str, value: bytes, **options: Any) -> Any:
            keys.append(key)
            return await super().put(key, value, **options)

    given: Any = {"state": Seeing(), "api_key": SECRET, "headers": {"x-key": SECRET}}
    async with server_of(way) as server, client_of(server, way, **given) as client:
        await server.set_cache(60_000)
        await ask(client)
    assert keys
    assert SECRET not in "".join(keys)


class Broken(MemoryStore):
    """Does something else than it should."""

    def __init__(self, does: Callable[[], Awaitable[Any]], *operations: str) -> None:
        super().__init__()
        self._does, self._operations = does, operations

    async def get(self, key: str) -> Any:
        return await (self._does() if "get" in self._operations else super().get(key))

    async def put(self, key: str, value: bytes, **options: Any) -> Any:
        doing = super().put(key, value, **options)
        if "put" in self._operations:
            doing.close()
            return await self._does()
        return await doing

    async def delete(self, key: str, **options: Any) -> Any:
        return await (self._does() if "delete" in self._operations else super().delete(key))


async def fail() -> Any:
    raise ConnectionError(SECRET)


async def cancel_itself() -> Any:
    raise asyncio.CancelledError(SECRET)


@pytest.mark.parametrize("does", [fail, cancel_itself])
@pytest.mark.parametrize("operation", ["get", "put", "delete"])
async def test_a_store_that_fails_costs_no_answer(
    does: Any, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(does, operation)
    with caplog.at_level(logging.DEBUG):
        async with server_of(HTTP) as server, client_of(server, HTTP, state=store) as client:
            await server.set_cache(60_000)
            for text in ("one", "two"):
                await server.set_resource(NOTES, text)
                result = await client.read_resource(NOTES, refresh=True)
                assert getattr(result.contents[0], "text", None) == text
            await ask(client)
    assert SECRET not in caplog.text


async def hang() -> Any:
    await asyncio.Event().wait()


async def test_a_store_that_hangs_costs_nothing_but_time() -> None:
    store = Broken(hang, "get")
    async with server_of(HTTP) as server, client_of(server, HTTP, state=store) as client:
        await server.set_cache(60_000)
        assert await client.list_prompts()
        assert len(await server.requests("prompts/list")) == 1
