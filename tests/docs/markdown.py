"""Pages as the tests see them: fenced blocks, links, headings, and marks for who follows them."""

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAPERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]

FENCED = re.compile(
    r"(?:<!-- test: (?P<mark>[^>]*) -->\n+(?:[^`\n][^\n]*\n|\n)*?)?"
    r"^```(?P<language>\w+)[ \t]*(?P<about>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^ *```.*$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"(?:\]\(|^\[[\w-]+\]: |\bsrc=\"|\bhref=\")(?!\w+:)([^)#\s\"]*)(?:#([^)\s\"]+))?",
    re.MULTILINE,
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. `mark` is what a comment before it tells the test to do meanwhile."""

    page: Path
    line: int
    language: str
    about: str
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        mark = found["mark"] or ""
        yield Block(page, line, found["language"], found["about"], found["text"], mark)


def blocks_in(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


@dataclass(frozen=True)
class Link:
    """To a file of this repository, or to a heading (`place`) of one."""

    text: str
    target: Path
    place: str


def links(page: Path) -> list[Link]:
    """In round brackets, by reference, and of pictures; not what code looks like one."""
    text = CODE.sub("``", page.read_text(encoding="utf-8"))
    return [
        Link(found[0], Path(os.path.normpath(page.parent / path)) if path else page, place or "")
        for found in LINK.finditer(text)
        for path, place in [found.groups()]
        if path or place
    ]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as code hosts name them in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named: dict[str, int] = {}
    for heading in HEADING.findall(text):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        named[plain] = named.get(plain, 0) + 1
    return {
        name if time == 0 else f"{name}-{time}"
        for name, times in named.items()
        for time in range(times)
    }


def fences(page: Path) -> int:
    """Lines that begin or end a block, whatever they say."""
    return len(FENCE.findall(page.read_text(encoding="utf-8")))


def is_a_part_of(text: str, whole: Path | str) -> bool:
    """Whether the text is a run of whole lines of a file or text, indented or not."""
    wanted = text.strip("\n").splitlines()
    lines = (whole if isinstance(whole, str) else whole.read_text(encoding="utf-8")).splitlines()
    return any(
        textwrap.dedent("\n".join(lines[start : start + len(wanted)])) == "\n".join(wanted)
        for start in range(len(lines) - len(wanted) + 1)
    )
