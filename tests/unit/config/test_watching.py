"""Watching a configuration: every edit once, a broken one as a value, the last good one kept."""

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolkeep.config.approval import MemoryApprovals
from toolkeep.config.dialects.draft import InputDefinition
from toolkeep.config.loader import DEFAULT_PATHS, load
from toolkeep.config.spec import Difference
from toolkeep.config.watcher import watch
from toolkeep.errors import ConfigError

BOUND = 10


def described(**urls: str) -> str:
    servers = {name: {"url": f"http://localhost:{port}/"} for name, port in urls.items()}
    return json.dumps({"mcpServers": servers})


class Bell:
    """Says that something may have changed, whenever the test says so."""

    def __init__(self) -> None:
        self.watched: list[frozenset[Path]] = []
        self.open = 0
        self._send, self._receive = anyio.create_memory_object_stream[bool](100)

    def ring(self) -> None:
        self._send.send_nowait(True)

    def notice(self, files: frozenset[Path]) -> AsyncGenerator[object, None]:
        self.watched.append(files)
        return self._rings()

    async def _rings(self) -> AsyncGenerator[object, None]:
        self.open += 1
        try:
            while True:
                yield await self._receive.receive()
        finally:
            self.open -= 1

    def close(self) -> None:
        self._send.close()
        self._receive.close()


class Watched:
    """One file, watched; `edit` writes it and `said` waits for what comes of it."""

    def __init__(self, path: Path, bell: Bell, edits: AsyncGenerator[Any, None]) -> None:
        self.path, self.bell, self._edits = path, bell, edits

    def edit(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        self.bell.ring()

    async def said(self) -> Any:
        with anyio.fail_after(BOUND):
            return await anext(self._edits)


@asynccontextmanager
async def watching(folder: Path, text: str, **given: Any) -> AsyncIterator[Watched]:
    path, bell = folder / "mcp.json", Bell()
    path.write_text(text)
    given.setdefault("since", load(path, env={}) if "inputs" not in given else load({}, env={}))
    given = {"env": {}, "cwd": folder, **given}
    async with aclosing(watch(path, notice=bell.notice, **given)) as edits:
        yield Watched(path, bell, edits)
    assert bell.open == 0
    bell.close()


async def test_an_edit_is_told_as_the_difference(tmp_path: Path):
    async with watching(tmp_path, described(a="1", b="2")) as watched:
        watched.edit(described(b="3", c="4"))
        found = await watched.said()
        assert [spec.name for spec in found.added] == ["c"]
        assert found.removed == ("a",)
        assert [spec.url for spec in found.changed] == ["http://localhost:3/"]
        watched.edit(described(b="3"))
        found = await watched.said()
        assert (found.removed, found.unchanged) == (("c",), ("b",))


async def test_a_broken_edit_is_a_value_and_the_last_good_one_is_kept(tmp_path: Path):
    async with watching(tmp_path, described(a="1")) as watched:
        watched.edit('{"mcpServers": ')
        error = await watched.said()
        assert isinstance(error, ConfigError)
        assert error.file == "mcp.json:1"
        watched.edit(described(a="1", b="2"))
        found = await watched.said()
        assert ([spec.name for spec in found.added], found.unchanged) == (["b"], ("a",))


async def test_a_file_that_goes_and_comes_back(tmp_path: Path):
    async with watching(tmp_path, described(a="1")) as watched:
        watched.path.unlink()
        watched.bell.ring()
        assert isinstance(await watched.said(), ConfigError)
        watched.edit(described(a="2"))
        found = await watched.said()
        assert [spec.name for spec in found.changed] == ["a"]


async def test_an_edit_that_changes_no_server_is_not_told(tmp_path: Path):
    async with watching(tmp_path, described(a="1")) as watched:
        watched.edit(described(a="1") + "\n\n")
        watched.bell.ring()
        watched.edit(described(a="2"))
        found = await watched.said()
        assert [spec.url for spec in found.changed] == ["http://localhost:2/"]


async def test_what_was_written_before_the_first_look_is_seen(tmp_path: Path):
    before = load({"a": "http://localhost:1/"}, env={})
    async with watching(tmp_path, described(a="2"), since=before) as watched:
        found = await watched.said()
        assert [spec.name for spec in found.changed] == ["a"]


async def test_an_env_file_is_watched_as_soon_as_it_is_named(tmp_path: Path):
    secrets = tmp_path / "secrets.env"
    secrets.write_text("KEY=old")
    program = {"command": "x", "envFile": "secrets.env"}
    async with watching(tmp_path, described(a="1")) as watched:
        watched.edit(json.dumps({"mcpServers": {"kit": program}}))
        await watched.said()
        secrets.write_text("KEY=newer")
        watched.bell.ring()
        found = await watched.said()
        assert [spec.env for spec in found.changed] == [{"KEY": "newer"}]
        assert secrets in watched.bell.watched[-1]


async def test_without_a_source_the_usual_places_are_watched(tmp_path: Path):
    bell = Bell()
    (tmp_path / "mcp.json").write_text(described(a="1"))
    before = load(env={}, cwd=tmp_path)
    edits = watch(since=before, env={}, cwd=tmp_path, notice=bell.notice)
    async with aclosing(edits):
        (tmp_path / "toolkeep.toml").write_text("[servers]\nb = 'http://localhost:2/'\n")
        with anyio.fail_after(BOUND):
            found = await anext(edits)
        assert isinstance(found, Difference)
        assert [spec.name for spec in found.added] == ["b"]
        assert {tmp_path / place for place in DEFAULT_PATHS} <= bell.watched[-1]
    bell.close()


async def test_a_program_that_now_waits_for_approval_is_told(tmp_path: Path):
    bell, path = Bell(), tmp_path / "mcp.json"
    path.write_text(described(a="1"))
    before = load(env={}, cwd=tmp_path, approvals=MemoryApprovals())
    path.write_text(json.dumps({"mcpServers": {"a": "http://localhost:1/", "b": {"command": "b"}}}))
    edits = watch(
        since=before, env={}, cwd=tmp_path, notice=bell.notice, approvals=MemoryApprovals()
    )
    async with aclosing(edits):
        with anyio.fail_after(BOUND):
            found = await anext(edits)
    assert isinstance(found, Difference)
    assert [one.name for one in found.configuration.needs_approval] == ["b"]
    assert found.added == ()
    bell.close()


async def test_nobody_is_asked_for_an_input_twice(tmp_path: Path):
    asked: list[str] = []

    def ask(one: InputDefinition) -> str:
        asked.append(one.id)
        return "answer"

    def text(url: str) -> str:
        server = {"url": url, "headers": {"x": "${input:key}"}}
        return json.dumps({"servers": {"a": server}, "inputs": [{"id": "key"}]})

    async with watching(tmp_path, text("http://localhost:1/"), inputs=ask) as watched:
        await watched.said()
        watched.edit(text("http://localhost:2/"))
        await watched.said()
    assert asked == ["key"]


async def test_a_mistake_at_the_start_is_raised(tmp_path: Path):
    bell = Bell()
    with pytest.raises(ConfigError):
        await anext(watch(tmp_path / "mcp.json", env={}, notice=bell.notice))
    bell.close()


async def test_it_ends_with_what_gives_notice(tmp_path: Path):
    async def never(_files: frozenset[Path]) -> AsyncGenerator[object, None]:
        return
        yield

    (tmp_path / "mcp.json").write_text(described(a="1"))
    assert [one async for one in watch(tmp_path / "mcp.json", env={}, notice=never)] == []


async def test_without_watchfiles_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ConfigError) as caught:
        await anext(watch(tmp_path / "mcp.json", env={}))
    assert "`watch`" in caught.value.remedy


async def test_with_watchfiles_a_real_edit_is_seen(tmp_path: Path):
    pytest.importorskip("watchfiles")
    path = tmp_path / "mcp.json"
    path.write_text(described(a="1"))
    before = load(path, env={})

    async def write_now_and_then() -> None:
        for port in range(2, 1000):
            await anyio.sleep(0.1)
            # At once, as editors do: half a file would be a mistake of its own.
            draft = tmp_path / "draft"
            draft.write_text(described(a=str(port)))
            draft.replace(path)

    async with (
        aclosing(watch(path, since=before, env={})) as edits,
        anyio.create_task_group() as group,
    ):
        group.start_soon(write_now_and_then)
        with anyio.fail_after(BOUND):
            found = await anext(edits)
        assert isinstance(found, Difference)
        assert [spec.name for spec in found.changed] == ["a"]
        group.cancel_scope.cancel()
