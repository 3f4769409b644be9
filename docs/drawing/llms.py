"""`llms.txt`: all pages with one line each, in the order of the index, for machines that read.

The lines are those of `index.md`; a page that is not in its lists (one module of the API) has its
first sentence.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from drawing import api

SECTION = re.compile(r"^\*\*([\w ]+)\*\*[^\n]*\n\n((?:- .*\n(?:  .*\n)*)+)", re.MULTILINE)
ENTRY = re.compile(r"- \[(.+?)\]\(([^)#]+\.md)\),?:?\s*(.*)", re.DOTALL)


def drawn(docs: Path) -> str:
    index = (docs / "index.md").read_text(encoding="utf-8")
    lead = " ".join(index.split("\n\n")[1].partition("; the [README]")[0].split()).rstrip(".")
    parts = [f"# mainstay\n\n> {plain(lead)}."]
    for heading, listed in SECTION.findall(index):
        parts.append(f"## {heading}\n\n" + "\n".join(lines(listed)))
    parts.append("## Modules\n\n" + "\n".join(map(module, api.modules())))
    return "\n\n".join(parts) + "\n"


def lines(listed: str) -> Iterator[str]:
    for entry in re.split(r"\n(?=- )", listed.strip("\n")):
        found = ENTRY.match(entry)
        if found is not None:
            title, place, said = found.groups()
            said = " ".join(said.split())
            yield f"- [{title}]({place})" + (f": {plain(said)}" if said else "")


def module(name: str) -> str:
    said = api.first_paragraph(importlib.import_module(name).__doc__)
    return f"- [{name}](reference/api/{name}.md): {said}"


def plain(text: str) -> str:
    """Without links: only the page itself is linked."""
    return re.sub(r"\[(.+?)\]\([^)]*\)", r"\1", text)
