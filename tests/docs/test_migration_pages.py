"""The tables of those who come from elsewhere name what is there, on both sides."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from toolkeep import CallResult, Client, Runtime, ServerGroup, ServerSpec, Timeouts
from toolkeep._runtime.options import Options

HOW_TO = ROOT / "docs" / "how-to"
NAMES = ROOT / "docs" / "explanation" / "names-from-other-systems.md"
CODE = re.compile(r"`([^`]+)`")
WORD = re.compile(r"(?<![\w.\"'-])([a-z]+(?:_[a-z]+)*)(?=\(|=|$)")
FREE = {"async", "with", "stream", "tool", "server_tool", "server"}
"""Words that are no names of either: Python's, and patterns of tools' names."""


def rows(page: Path, heading: str) -> list[list[str]]:
    part = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line for line in part.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line.strip("|")) for line in found[2:]]


def words(cells: Iterable[str]) -> set[str]:
    code = (code.lstrip(".").removesuffix("()") for cell in cells for code in CODE.findall(cell))
    return {word for piece in code for word in WORD.findall(piece)} - FREE


def known(*things: Any) -> set[str]:
    """Members, fields and arguments of these."""
    found: set[str] = set()
    for thing in things:
        found |= set(dir(thing)) | set(getattr(thing, "__annotations__", ()))
        for function in (thing, getattr(thing, "call_tool", thing)):
            found |= set(inspect.signature(function).parameters)
    return found


OURS = known(Client, Runtime, ServerGroup, CallResult, ServerSpec, Timeouts)
OURS |= (
    set(Options.__optional_keys__)
    | set(ServerSpec.model_fields)
    | set(inspect.signature(Client.call_tool).parameters)
)


def test_what_the_sdk_has_and_what_takes_its_place():
    import mcp
    import mcp_types

    theirs = known(mcp.Client, mcp.ClientSession, mcp.StdioServerParameters)
    theirs |= set(mcp_types.CallToolResult.model_fields) | set(
        mcp.StdioServerParameters.model_fields
    )
    theirs |= set(mcp_types.ListToolsResult.model_fields)
    theirs |= set(inspect.signature(mcp.Client.list_tools).parameters)
    check(HOW_TO / "migrate-from-the-sdk.md", "Old and new", theirs)


def test_what_fastmcp_has_and_what_takes_its_place():
    import fastmcp
    from fastmcp.client.client import CallToolResult

    theirs = known(fastmcp.Client, CallToolResult)
    check(HOW_TO / "migrate-from-fastmcp.md", "Old and new", theirs)


def test_what_a_server_manager_has_and_what_takes_its_place():
    from agents.mcp import MCPServerManager

    theirs = known(MCPServerManager) | set(inspect.signature(MCPServerManager.reconnect).parameters)
    check(NAMES, "From MCPServerManager", theirs)


def check(page: Path, heading: str, theirs: set[str]) -> None:
    table = rows(page, heading)
    old, new = words(row[0] for row in table), words(row[1] for row in table)
    assert len(old) > 8
    assert sorted(old - theirs) == []
    assert sorted(new - OURS) == []


@pytest.mark.parametrize("page", sorted(HOW_TO.glob("migrate-*.md")), ids=lambda page: page.stem)
def test_a_page_for_those_who_move_says_what_is_gained_and_what_is_missing(page: Path):
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert parts == ["Old and new", "What you gain", "What is not there"]


def test_the_table_of_names_has_all_that_the_design_names():
    text = NAMES.read_text(encoding="utf-8")
    pairs = {
        "McpClient": "Client",
        "MCPToolRegistry": "Runtime",
        "ToolService": "Runtime",
        "MCPServerManager": "ServerGroup",
        "MCPServerConfig": "ServerSpec",
        "UniversalTool": "Tool",
        "ToolResolver": "Runtime.resolve",
        "ToolRequest": "CallContext",
        "ToolResult": "CallResult",
        "call_tool_stream": "Runtime.stream",
        "execute_tool_stream": "Runtime.stream",
        "list-tools": "toolkeep tools",
        "test-tool": "toolkeep call",
        "test-streaming": "toolkeep call --watch",
        "test-mcp-server": "toolkeep check",
        "debug-mcp-discovery": "toolkeep check --trace",
    }
    table = text.partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    for old, new in pairs.items():
        (row,) = [line for line in lines if f"`{old}`" in line.split("|")[1]]
        assert f"`{new}`" in row.split("|")[2]
    assert "isolated session" in text.partition("## What has no counterpart")[2]
