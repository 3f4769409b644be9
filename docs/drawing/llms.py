"""`llms.txt`: all pages with one line each, in the order of the index, for machines that read.

The lines are those of `index.md`; a page that is not in its lists (one module of the API) has its
first sentence.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from drawing import api
from drawing.contents import Entry, parts


def drawn(docs: Path) -> str:
    index = (docs / "index.md").read_text(encoding="utf-8")
    lead = " ".join(index.split("\n\n")[1].replace("**", "").split()).rstrip(".")
    listed = [
        f"## {part.caption}\n\n" + "\n".join(map(line, part.entries)) for part in parts(index)
    ]
    modules = "## Modules\n\n" + "\n".join(map(module, api.modules()))
    return "\n\n".join([f"# toolkeep\n\n> {lead}.", *listed, modules]) + "\n"


def line(entry: Entry) -> str:
    return f"- [{entry.title}]({entry.place})" + (f": {entry.said}" if entry.said else "")


def module(name: str) -> str:
    said = api.first_paragraph(importlib.import_module(name).__doc__)
    return f"- [{name}](reference/api/{name}.md): {said}"
