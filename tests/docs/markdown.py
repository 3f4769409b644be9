"""Pages as the tests see them: fenced blocks, links, and marks for the tutorial's reader."""

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
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
PLACE = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
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


def links(page: Path) -> list[str]:
    return LINK.findall(page.read_text(encoding="utf-8"))


def places(page: Path) -> list[tuple[Path, str]]:
    """The headings that a page links to, its own included."""
    found = PLACE.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / link if link else page, place) for link, place in found]


def headings(page: Path) -> set[str]:
    """As GitHub names them in links."""
    found = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def is_a_part_of(text: str, file: Path) -> bool:
    """Whether the text is a run of whole lines of the file, indented or not."""
    wanted = text.strip("\n").splitlines()
    lines = file.read_text(encoding="utf-8").splitlines()
    return any(
        textwrap.dedent("\n".join(lines[start : start + len(wanted)])) == "\n".join(wanted)
        for start in range(len(lines) - len(wanted) + 1)
    )
