"""The programs of the protocol's own collection that are written in TypeScript: files, a memory,
and a chain of thoughts. All of them know the legacy era only, and stdio only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.interop.matrix import Feature, at, lacks, proves
from tests.interop.programs import BOUND, MODULES, NODE, Heard, Person, assert_lacks
from toolkeep import Client, InvalidArguments

LACKING: tuple[Feature, ...] = (
    *("prompts", "completion", "progress", "logging", "list changes", "cancellation"),
    *("sampling", "elicitation"),
)
NO_ROOTS: tuple[Feature, ...] = (*LACKING, "roots")


@asynccontextmanager
async def client_of(
    program: str, lacking: tuple[Feature, ...], person: Person | None = None, **spec: Any
) -> AsyncIterator[Client]:
    """In whichever era it speaks."""
    script = str(MODULES / f"server-{program}" / "dist" / "index.js")
    spec |= {"name": program, "command": NODE, "args": [script, *spec.get("args", ())]}
    heard = Heard()
    answers = (person or Person()).answers()
    async with asyncio.timeout(BOUND), Client(spec, **answers) as client:
        with closing(client.observe(heard)):
            assert client.protocol_version == "2025-11-25"
            yield client
            await assert_lacks(client, heard, lacking)


@at("server-filesystem", "stdio", "legacy")
@pytest.mark.requirement("S13", "F3", "P11")
@proves("tools", "roots")
@lacks("resources", *LACKING)
async def test_files_are_written_and_read_within_the_roots(tmp_path: Path):
    person = Person()
    inside, moved = tmp_path / "inside", tmp_path / "moved"
    for folder in (inside, moved):
        folder.mkdir()
    person.roots = [inside.as_uri()]
    async with client_of("filesystem", ("resources", *LACKING), person) as client:
        assert "write_file" in {tool.name for tool in await client.list_tools()}
        await person.asked_for_roots.wait()
        poem = str(inside / "poem.txt")
        await until_allowed(client, inside)
        assert (await client.call_tool("write_file", {"path": poem, "content": "sea ☃"})).success
        assert (inside / "poem.txt").read_text("utf-8") == "sea ☃"
        assert "sea ☃" in (await client.call_tool("read_text_file", {"path": poem})).text
        outside = {"path": str(tmp_path / "poem.txt"), "content": "no"}
        assert (await client.call_tool("write_file", outside)).is_error
        with pytest.raises(InvalidArguments):
            await client.call_tool("write_file", {"path": poem})
        person.roots = [moved.as_uri()]
        await client.notify_roots_changed()
        await until_allowed(client, moved)
        assert (await client.call_tool("read_text_file", {"path": poem})).is_error


async def until_allowed(client: Client, folder: Path) -> None:
    """It asks for the roots in the course of no call, and takes a moment to use the answer."""
    while str(folder) not in (await client.call_tool("list_allowed_directories")).text:
        await asyncio.sleep(0.01)


@at("server-memory", "stdio", "legacy")
@pytest.mark.requirement("S13", "P11")
@proves("tools", "resources")
@lacks(*NO_ROOTS)
async def test_what_is_remembered_is_found_again_by_the_next_process(tmp_path: Path):
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
    async with client_of("memory", NO_ROOTS, env=env) as client:
        await client.list_tools()
        made = await client.call_tool("create_entities", {"entities": [ada]})
        assert made.data["entities"] == [ada]
    async with client_of("memory", NO_ROOTS, env=env) as client:
        found = await client.call_tool("search_nodes", {"query": "program"})
        assert [entity["name"] for entity in found.data["entities"]] == ["Ada"]
        (resource,) = await client.list_resources()
        assert "Ada" in str((await client.read_resource(resource.uri)).contents)


@at("server-sequential-thinking", "stdio", "legacy")
@pytest.mark.requirement("S13")
@proves("tools")
@lacks("resources", *NO_ROOTS)
async def test_thoughts_follow_each_other():
    lacking: tuple[Feature, ...] = ("resources", *NO_ROOTS)
    async with client_of("sequential-thinking", lacking) as client:
        assert [tool.name for tool in await client.list_tools()] == ["sequentialthinking"]
        for number in (1, 2):
            thought = {"thought": "so", "thoughtNumber": number, "totalThoughts": 2}
            told = await client.call_tool(
                "sequentialthinking", {**thought, "nextThoughtNeeded": number < 2}
            )
            assert told.data["thoughtHistoryLength"] == number
        with pytest.raises(InvalidArguments):
            await client.call_tool("sequentialthinking", {"thought": "so"})
