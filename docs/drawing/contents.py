"""The lists of `index.md`: under which heading which page stands, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ENTRY = re.compile(r"- \[(?P<title>.+?)\]\((?P<place>[^)#]+\.md)\)(?::\s+(?P<said>.*))?", re.DOTALL)
PART = re.compile(r"^(#{2,3}) (.+)\n\n((?:- .*\n(?:  .*\n)*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    title: str
    place: str
    said: str


@dataclass(frozen=True)
class Part:
    """What stands under one heading; `caption` says also under which it stands itself."""

    caption: str
    entries: tuple[Entry, ...]


def parts(index: str) -> Iterator[Part]:
    above = ""
    for level, heading, listed in PART.findall(index):
        above = heading if level == "##" else above
        entries = tuple(entries_of(listed))
        if entries:
            yield Part(heading if heading == above else f"{above}: {heading.lower()}", entries)


def entries_of(listed: str) -> Iterator[Entry]:
    for entry in filter(None, re.split(r"\n(?=- )", listed.strip("\n"))):
        found = ENTRY.fullmatch(entry)
        if found is None:
            raise SystemExit(f"docs/index.md: not “- [title](page.md): words”: {entry}")
        yield Entry(found["title"], found["place"], " ".join((found["said"] or "").split()))
