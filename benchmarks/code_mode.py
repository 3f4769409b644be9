"""What does code mode save a model? Bytes and round trips, for a task of ten dependent calls.

A catalogue of 500 tools. One of them, `ledger.follow`, gives the amount of a booking and the
reference of the next one; the task is the sum of ten bookings, each known only from the one before.
A scripted model does it in three ways:

- classic loop: every request shows it all tools, and it calls one tool in each round trip;
- search and call: it is shown `search_tools` and `call_tool` (`toolkeep.tool_search`);
- code mode: it is shown `search_tools` and `run_code`, and writes one program.

A request is the JSON that a provider would be sent: the tools, and the conversation so far. The
bytes are the same on every machine, so a test holds the page to them.

    python -m benchmarks.code_mode [--write]     --write: the table of docs/how-to/code-mode.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.search_quality import generated
from toolkeep import CallResult, Runtime, Tool
from toolkeep.code_mode import code_tools
from toolkeep.config import tool as function
from toolkeep.runtime import tool_search
from toolkeep.testing import ScriptedServer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "code-mode.md"
BEGIN, END = "<!-- code mode: written by benchmarks/code_mode.py -->", "<!-- end -->"

TOOLS, CALLS = 500, 10
TASK = "Sum the amounts of ten bookings. The first is b0; each names the next."
PROGRAM = """total, reference = 0, "b0"
for _ in range(10):
    booking = await builtin__follow(reference=reference)
    total, reference = total + booking["amount"], booking["next"]
total"""

Say = tuple[str, dict[str, Any]] | str
"""A tool that the model calls, or its last word."""


followed: list[str] = []


def follow(reference: str) -> dict[str, Any]:
    """Read a booking of the ledger by its reference: its amount, and the next reference."""
    followed.append(reference)
    number = int(reference.removeprefix("b"))
    return {"amount": number * number, "next": f"b{number + 1}"}


@dataclass
class Conversation:
    """What a provider is sent and sends back, counted."""

    tools: Sequence[Tool]
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    round_trips: int = 0
    sent: int = 0
    received: int = 0

    async def held(self, model: Callable[[list[CallResult]], Say]) -> str:
        shown = [
            {"name": one.model_name, "description": one.description, "parameters": one.input_schema}
            for one in self.tools
        ]
        by_name = {one.model_name: one for one in self.tools}
        results: list[CallResult] = []
        self.messages = [{"role": "user", "content": TASK}]
        while True:
            self.round_trips += 1
            self.sent += size({"tools": shown, "messages": self.messages})
            said = model(results)
            self.received += size(said)
            if isinstance(said, str):
                return said
            name, arguments = said
            result = await by_name[name].call(arguments)
            assert not result.is_error, result.text
            results.append(result)
            self.messages += [
                {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]},
                {"role": "tool", "content": result.text},
            ]


def classic(results: list[CallResult]) -> Say:
    """Calls the one tool, with what the last result says."""
    if len(results) == CALLS:
        return str(sum(one.data["amount"] for one in results))
    return "builtin__follow", {"reference": results[-1].data["next"] if results else "b0"}


def searching(results: list[CallResult]) -> Say:
    if not results:
        return "toolkeep__search_tools", {"query": "booking of the ledger", "limit": 5}
    said = classic(results[1:])
    if isinstance(said, str):
        return said
    return "toolkeep__call_tool", {"name": "builtin.follow", "arguments": said[1]}


def programming(results: list[CallResult]) -> Say:
    if not results:
        return "toolkeep__search_tools", {"query": "booking of the ledger"}
    if len(results) == 1:
        assert "async def builtin__follow" in results[0].text
        return "toolkeep__run_code", {"code": PROGRAM}
    return results[1].text


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


async def measure() -> dict[str, Conversation]:
    others = [
        {
            "name": f"{one.server}_{one.tool}",
            "description": one.description,
            "inputSchema": one.input_schema,
        }
        for one in generated(TOOLS - 3)  # and `follow`, and the two that are always there
    ]
    found: dict[str, Conversation] = {}
    followed.clear()
    async with ScriptedServer.local(tools=others) as server:
        spec = {**server.spec, "include_tools": [one["name"] for one in others]}
        functions = [function(follow, read_only=True)]
        async with Runtime({"office": spec}, functions=functions) as runtime:
            every = [await runtime.resolve([tool.name]) for tool in runtime.catalogue.tools]
            ways = {
                "classic loop": ([one for [one] in every], classic),
                "search and call": (tool_search(runtime), searching),
                "code mode": (code_tools(runtime), programming),
            }
            for name, (tools, model) in ways.items():
                found[name] = Conversation(tools)
                answer = await found[name].held(model)
                assert answer == "285", answer
            assert len(found["classic loop"].tools) == TOOLS
            assert len(followed) == CALLS * len(ways)
    return found


def table(found: dict[str, Conversation]) -> str:
    rows = [["", *found], ["---"] * (len(found) + 1)]
    about: dict[str, Callable[[Conversation], int]] = {
        "tools that the model is shown": lambda one: len(one.tools),
        "round trips to the model": lambda one: one.round_trips,
        "bytes to the model": lambda one: one.sent,
        "bytes from the model": lambda one: one.received,
        "calls of MCP tools": lambda one: CALLS,
    }
    for words, count in about.items():
        rows.append([words, *(f"{count(one):,}" for one in found.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write(text: str) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    given = parser.parse_args()
    text = table(asyncio.run(measure()))
    if given.write:
        write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
