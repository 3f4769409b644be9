"""Prompts of your own beside the servers', and guides for tools that say too little."""

import asyncio
import tempfile
from pathlib import Path

from toolkeep import Runtime
from toolkeep.testing import ScriptedServer

REVIEW = """---
description: Looks for mistakes
arguments:
  - name: language
---
Review this {{language}} code.
"""


async def main(folder: Path) -> None:
    (folder / "review.md").write_text(REVIEW)
    (folder / "carefully.md").write_text("Ask before you record anything.\n")
    async with ScriptedServer.local() as server:
        notes = {
            "url": server.url,
            "prompts_file": str(folder),
            "guides": {"record*": "carefully", "add": "Numbers only, please."},
        }
        async with Runtime.open({"notes": notes}) as runtime:
            print(*(prompt.name for prompt in runtime.catalogue.prompts))
            for name, given in (("greet", {"name": "Ada"}), ("review", {"language": "Rust"})):
                answer = await runtime.get_prompt(f"notes.{name}", given)
                print("  ", getattr(answer.messages[0].content, "text", ""))
            print(repr(runtime.catalogue.tool("notes.record").description))


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(Path(place)))
